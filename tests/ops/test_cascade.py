"""cascade_attention: decode over a shared prefix read once, against the float64 reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest
import torch
from torch import Tensor

from pagedattn import cascade as cascade_module
from pagedattn import cascade_attention
from pagedattn.cascade import should_cascade

from .backends import Backend
from .cases import Case, Spec, build
from .pairwise import all_pairs
from .running import assert_out_close, run_paged_attention

FP8_E4M3, FP8_E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
NUM_COMMON_TOKENS = 256
OWN_LENS = (0, 1, 9, 130, 70)  # tokens past the prefix; row 0 is the shortest

PLAIN_FACTORS = {
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "head_dim": [32, 64, 120, 256],
    "heads": [(4, 4), (9, 3), (64, 8)],
    "block_size": [8, 16, 64],
    "layout": ["NHD", "HND"],
    "packed_query": [False, True],
    "softcap": [0.0, 3.0],
    "alibi": [False, True],
    "sinks": [False, True],
}
QUANTIZED_FACTORS = {
    **PLAIN_FACTORS,
    "head_dim": [40, 64, 128],
    "cache_dtype": [FP8_E4M3, FP8_E5M2, INT8],
    "scale_kind": ["none", "tensor", "head", "token_head"],
}
SPECS = [
    Spec(**row) for factors in (PLAIN_FACTORS, QUANTIZED_FACTORS) for row in all_pairs(factors)
]


def shared(spec: Spec, own_lens: tuple[int, ...] = OWN_LENS) -> Case:
    """A decode batch whose first NUM_COMMON_TOKENS tokens lie in the blocks of its first row."""
    seq_lens = tuple(NUM_COMMON_TOKENS + own for own in own_lens)
    case = build(replace(spec, seq_lens=seq_lens))
    case.block_tables[:, : common_blocks(case)] = case.block_tables[0, : common_blocks(case)]
    return case


def common_blocks(case: Case) -> int:
    return NUM_COMMON_TOKENS // case.key_cache.shape[1]


@contextmanager
def called_ops(backend: Backend, worth_it: bool = True) -> Iterator[list[str]]:
    """Lets cascade_attention run on the backend's ops, and names those it calls.

    worth_it: what should_cascade answers, for batches small enough to test.
    """
    names: list[str] = []

    class Recorder:
        def __getattr__(self, name: str):
            names.append(name)
            return getattr(backend.ops, name)

    ops = mock.patch.object(cascade_module, "_ops", Recorder())
    choice = mock.patch.object(cascade_module, "should_cascade", return_value=worth_it)
    with ops, choice:
        yield names


def run(case: Case, backend: Backend, num_common_blocks: int | None = None) -> Tensor:
    given = case.to(backend.device)
    return cascade_attention(
        given.query,
        given.key_cache,
        given.value_cache,
        given.block_tables,
        given.seq_lens,
        case.max_seq_len,
        case.scale,
        num_common_blocks=common_blocks(case) if num_common_blocks is None else num_common_blocks,
        **given.options,
    ).cpu()


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_matches_the_reference(spec: Spec, backend: Backend):
    case = shared(spec)
    with called_ops(backend) as names:
        out = run(case, backend)
    assert names == ["paged_attention_varlen", "paged_attention_v1", "merge_attention_states"]
    assert_out_close(out, case.expected[0])


def test_steep_alibi_slopes_and_more_rows_than_common_tokens(backend: Backend):
    """Slopes of 1 over distances of hundreds; the prefix pass puts rows at negative positions."""
    case = shared(Spec(head_dim=32, alibi=True), own_lens=(3, 40) * 20)
    case.masks["alibi_slopes"] = torch.tensor([1.0, 0.25, 2**-8, 0.0])
    with called_ops(backend):
        for num_common_blocks in (1, 2, common_blocks(case)):
            out = run(case, backend, num_common_blocks)
            assert_out_close(out, case.expected[0])


def test_a_window_that_could_hide_keys_of_the_prefix_is_left_to_plain_attention(backend: Backend):
    longest = NUM_COMMON_TOKENS + max(OWN_LENS)
    for window_left, split in ((longest - 1, True), (longest - 2, False), (20, False)):
        case = shared(Spec(window_left=window_left))
        with called_ops(backend) as names:
            out = run(case, backend)
        assert ("merge_attention_states" in names) == split
        assert_out_close(out, case.expected[0])


def test_what_is_not_worth_it_is_left_to_plain_attention(backend: Backend):
    case = shared(Spec(alibi=True, sinks=True, softcap=3.0))
    with called_ops(backend, worth_it=False) as names:
        out = run(case, backend)
    assert names == ["paged_attention"]
    assert torch.equal(out, run_paged_attention(case, backend).out)


def test_it_is_worth_it_for_many_sequences_with_much_in_common():
    assert should_cascade(16, 2048)
    assert should_cascade(2, 4096)
    assert not should_cascade(2, 2048)
    assert not should_cascade(1000, 256)
    assert not should_cascade(1, 100_000)
    assert not should_cascade(0, 100_000)


def test_no_sequences_are_taken(backend: Backend):
    case = build(Spec(seq_lens=()))
    with called_ops(backend, worth_it=False):
        assert run(case, backend, num_common_blocks=0).shape == case.query.shape


def test_wrong_numbers_of_common_blocks():
    case = shared(Spec())
    backend = Backend("cpu", torch.ops.pagedattn, torch.device("cpu"))
    columns = case.block_tables.shape[1]
    for wrong in (-1, columns + 1):
        message = rf"num_common_blocks must be in \[0, .* = {columns}\], got {wrong}"
        with pytest.raises(ValueError, match=message):
            run(case, backend, wrong)
    with pytest.raises(ValueError, match=r"block_size = 256 must be at most max_seq_len = 255"):
        run(replace(case, max_seq_len=255), backend)


def test_compiles_into_one_graph(backend: Backend):
    if backend.ops is not torch.ops.pagedattn:
        pytest.skip("only the package's own ops have fake kernels")
    torch._dynamo.reset()
    case = shared(Spec(alibi=True, sinks=True))
    compiled = torch.compile(run, fullgraph=True, backend="eager")
    always = mock.patch.multiple(cascade_module, _MIN_COMMON_TOKENS=1, _MIN_SAVED_TOKENS=1)
    with always, torch.inference_mode():
        assert_out_close(compiled(case, backend), case.expected[0])
