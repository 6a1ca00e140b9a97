"""merge_attention_states: the attention over a union of keys from that over its parts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from pagedattn import reference

from .backends import Backend
from .cases import to_device
from .running import TOLERANCE, Guarded

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def states(
    dtype: torch.dtype, num_tokens: int = 5, num_heads: int = 3, head_dim: int = 40
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """prefix_out, prefix_lse, suffix_out, suffix_lse"""
    rng = torch.Generator().manual_seed(0)
    shape = (num_tokens, num_heads, head_dim)
    prefix_out, suffix_out = (torch.randn(shape, generator=rng).to(dtype) for _ in range(2))
    prefix_lse, suffix_lse = (3 * torch.randn(shape[:2], generator=rng) for _ in range(2))
    return prefix_out, prefix_lse, suffix_out, suffix_lse


def merge(inputs: tuple[Tensor, ...], backend: Backend) -> tuple[Tensor, Tensor]:
    given = [to_device(tensor, backend.device) for tensor in inputs]
    out = Guarded(inputs[0].shape, inputs[0].dtype, backend.device)
    lse = Guarded(inputs[1].shape, torch.float32, backend.device)
    backend.ops.merge_attention_states(out.tensor, lse.tensor, *given)
    return out.result(), lse.result()


def assert_merged(result: tuple[Tensor, Tensor], inputs: tuple[Tensor, ...]) -> None:
    out, lse = reference.merge_attention_states(*(tensor.double() for tensor in inputs))
    # One rounding to the dtype of values of about unit size, whatever they cancel to.
    tolerance = TOLERANCE[inputs[0].dtype]
    torch.testing.assert_close(result[0].double(), out, rtol=tolerance, atol=tolerance / 10)
    torch.testing.assert_close(result[1].double(), lse, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("head_dim", [1, 5, 64, 80, 512])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matches_the_reference(dtype: torch.dtype, head_dim: int, backend: Backend):
    inputs = states(dtype, head_dim=head_dim)
    assert_merged(merge(inputs, backend), inputs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_an_empty_side_is_not_read_and_changes_nothing(dtype: torch.dtype, backend: Backend):
    prefix_out, prefix_lse, suffix_out, suffix_lse = states(dtype)
    prefix_lse[0], suffix_lse[1] = -math.inf, -math.inf
    prefix_out[0], suffix_out[1] = math.nan, math.inf
    out, lse = merge((prefix_out, prefix_lse, suffix_out, suffix_lse), backend)
    assert torch.equal(out[0], suffix_out[0])
    assert torch.equal(lse[0], suffix_lse[0])
    assert torch.equal(out[1], prefix_out[1])
    assert torch.equal(lse[1], prefix_lse[1])
    assert out.isfinite().all()


def test_two_empty_sides_give_zero_and_minus_infinity(backend: Backend):
    prefix_out, prefix_lse, suffix_out, suffix_lse = states(torch.float32)
    for out, lse in ((prefix_out, prefix_lse), (suffix_out, suffix_lse)):
        out[2], lse[2] = math.nan, -math.inf
    out, lse = merge((prefix_out, prefix_lse, suffix_out, suffix_lse), backend)
    assert torch.equal(out[2], torch.zeros_like(out[2]))
    assert (lse[2] == -math.inf).all()


def test_far_apart_and_large_lse_neither_overflow_nor_lose_the_greater(backend: Backend):
    prefix_out, prefix_lse, suffix_out, suffix_lse = states(torch.float32, num_tokens=3)
    prefix_lse[:] = torch.tensor([500.0, -500.0, 300.0])[:, None]
    suffix_lse[:] = torch.tensor([-500.0, 500.0, 300.0])[:, None]
    out, lse = merge((prefix_out, prefix_lse, suffix_out, suffix_lse), backend)
    assert torch.equal(out[0], prefix_out[0])
    assert torch.equal(out[1], suffix_out[1])
    assert_merged((out, lse), (prefix_out, prefix_lse, suffix_out, suffix_lse))


@pytest.mark.parametrize("side", ["prefix", "suffix"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_out_may_alias_an_input(dtype: torch.dtype, side: str, backend: Backend):
    inputs = states(dtype, head_dim=256)
    expected_out, expected_lse = merge(inputs, backend)
    given = [to_device(tensor.clone(), backend.device) for tensor in inputs]
    out, lse = (given[0], given[1]) if side == "prefix" else (given[2], given[3])
    backend.ops.merge_attention_states(out, lse, *given)
    assert torch.equal(out.cpu(), expected_out)
    assert torch.equal(lse.cpu(), expected_lse)


def test_lse_may_be_left_out_and_everything_may_be_strided(backend: Backend):
    inputs = states(torch.float32)
    expected_out, expected_lse = merge(inputs, backend)

    def strided(tensor: Tensor) -> Tensor:
        """The same values, heads before tokens in memory."""
        return to_device(tensor.transpose(0, 1).contiguous().transpose(0, 1), backend.device)

    given = [strided(tensor) for tensor in inputs]
    out = strided(torch.full_like(inputs[0], math.nan))
    backend.ops.merge_attention_states(out, None, *given)
    assert torch.equal(out.cpu(), expected_out)
    lse = strided(torch.full_like(inputs[1], math.nan))
    backend.ops.merge_attention_states(out, lse, *given)
    assert torch.equal(lse.cpu(), expected_lse)


def test_no_tokens_are_taken(backend: Backend):
    out, lse = merge(states(torch.float32, num_tokens=0), backend)
    assert out.shape[0] == lse.shape[0] == 0


def test_halves_of_an_attention_merge_to_the_whole(backend: Backend):
    """The keys of one softmax, cut in two at any place."""
    rng = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(4, 2, 33, generator=rng)
    values = torch.randn(33, 64, generator=rng)

    def attend(keys: slice) -> tuple[Tensor, Tensor]:
        return logits[..., keys].softmax(-1) @ values[keys], logits[..., keys].logsumexp(-1)

    whole_out, whole_lse = attend(slice(0, 33))
    for cut in (1, 16, 32):
        inputs = (*attend(slice(0, cut)), *attend(slice(cut, 33)))
        out, lse = merge(inputs, backend)
        torch.testing.assert_close(out, whole_out, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(lse, whole_lse, rtol=1e-6, atol=1e-6)
