"""Runs an attention op on a case, and compares with what the case expects.

Outputs come from memory that is NaN before, with guard rows around it: what a kernel does not
write, and what it writes outside, shows. Everything returned is on the CPU.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .backends import Backend
from .cases import Case

# Largest norm(out - expected) / norm(expected) of a row.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 1e-3, torch.bfloat16: 8e-3}
# Of 1 + abs(lse); logits are summed in fp32 whatever the dtype.
LSE_TOLERANCE = 1e-5
# The same where a CPU may round queries, in bf16, to 2^-15 of their largest element.
INTEGER_LSE_TOLERANCE = 1e-4


class Guarded:
    """A NaN-filled tensor with a guard row before and after it."""

    def __init__(self, shape: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        rows, *inner = shape
        self.storage = torch.full((rows + 2, *inner), math.nan, dtype=dtype).to(device)
        self.tensor = self.storage[1:-1]

    def result(self) -> Tensor:
        storage = self.storage.cpu()
        assert storage[0].isnan().all(), "written before the first row"
        assert storage[-1].isnan().all(), "written after the last row"
        return storage[1:-1]


class Result(NamedTuple):
    out: Tensor
    lse: Tensor | None = None
    partial_out: Tensor | None = None
    partial_lse: Tensor | None = None


def run_v1(case: Case, backend: Backend, *, max_seq_len: int | None = None) -> Result:
    given = case.to(backend.device)
    out = Guarded(case.query.shape, case.query.dtype, backend.device)
    lse = Guarded(case.query.shape[:2], torch.float32, backend.device)
    backend.ops.paged_attention_v1(
        out.tensor,
        given.query,
        given.key_cache,
        given.value_cache,
        given.block_tables,
        given.seq_lens,
        case.max_seq_len if max_seq_len is None else max_seq_len,
        case.scale,
        **given.options,
        lse=lse.tensor,
    )
    return Result(out.result(), lse.result())


def run_v2(
    case: Case,
    backend: Backend,
    *,
    partition_size: int = 64,
    extra_partitions: int = 1,
    max_seq_len: int | None = None,
) -> Result:
    max_seq_len = case.max_seq_len if max_seq_len is None else max_seq_len
    given = case.to(backend.device)
    num_partitions = max(1, math.ceil(max_seq_len / partition_size)) + extra_partitions
    partial_shape = (*case.query.shape[:2], num_partitions)
    out = Guarded(case.query.shape, case.query.dtype, backend.device)
    lse = Guarded(case.query.shape[:2], torch.float32, backend.device)
    partial_out = Guarded((*partial_shape, case.query.shape[2]), torch.float32, backend.device)
    partial_lse = Guarded(partial_shape, torch.float32, backend.device)
    backend.ops.paged_attention_v2(
        out.tensor,
        partial_out.tensor,
        partial_lse.tensor,
        given.query,
        given.key_cache,
        given.value_cache,
        given.block_tables,
        given.seq_lens,
        max_seq_len,
        partition_size,
        case.scale,
        **given.options,
        lse=lse.tensor,
    )
    return Result(out.result(), lse.result(), partial_out.result(), partial_lse.result())


def run_paged_attention(case: Case, backend: Backend, *, max_seq_len: int | None = None) -> Result:
    given = case.to(backend.device)
    out = backend.ops.paged_attention(
        given.query,
        given.key_cache,
        given.value_cache,
        given.block_tables,
        given.seq_lens,
        case.max_seq_len if max_seq_len is None else max_seq_len,
        case.scale,
        **given.options,
    )
    return Result(out.cpu())


def run_varlen(
    case: Case,
    backend: Backend,
    *,
    max_query_len: int | None = None,
    max_seq_len: int | None = None,
) -> Result:
    """The rows that belong to a sequence; asserts that the others were left alone."""
    given = case.to(backend.device)
    out = Guarded(case.query.shape, case.query.dtype, backend.device)
    lse = Guarded(case.query.shape[:2], torch.float32, backend.device)
    backend.ops.paged_attention_varlen(
        out.tensor,
        given.query,
        given.key_cache,
        given.value_cache,
        given.cu_seqlens_q,
        given.block_tables,
        given.seq_lens,
        case.max_query_len if max_query_len is None else max_query_len,
        case.max_seq_len if max_seq_len is None else max_seq_len,
        case.scale,
        **given.options,
        **given.varlen_masks,
        lse=lse.tensor,
    )
    out_rows, lse_rows = out.result(), lse.result()
    assert out_rows[case.num_rows :].isnan().all(), "out written past cu_seqlens_q[-1]"
    assert lse_rows[case.num_rows :].isnan().all(), "lse written past cu_seqlens_q[-1]"
    return Result(out_rows[: case.num_rows], lse_rows[: case.num_rows])


def relative_errors(out: Tensor, expected: Tensor) -> Tensor:
    """norm(out - expected) / norm(expected) of each row; infinite for a row that should be 0."""
    error = (out.double() - expected.double()).norm(dim=-1)
    size = expected.double().norm(dim=-1)
    return torch.where(error == 0, 0.0, error / size)


def assert_out_close(out: Tensor, expected: Tensor, computed_in: torch.dtype | None = None) -> None:
    """computed_in: the dtype that bounds the error, where it is not the dtype of `out`."""
    assert out.shape == expected.shape
    errors = relative_errors(out, expected)
    tolerance = TOLERANCE[computed_in or out.dtype]
    bad = ~(errors <= tolerance)  # a NaN is bad
    assert not bad.any(), (
        f"{int(bad.sum())} of {bad.numel()} rows are off, the worst by {errors.max():.3g} "
        f"(tolerance {tolerance:g}), the first at {bad.nonzero()[0].tolist()}"
    )


def assert_lse_close(lse: Tensor, expected: Tensor, tolerance: float = LSE_TOLERANCE) -> None:
    assert lse.dtype == torch.float32
    torch.testing.assert_close(lse.double(), expected.double(), rtol=tolerance, atol=tolerance)


def assert_as_expected(result: Result, case: Case) -> None:
    out, lse = case.expected
    assert_out_close(result.out, out)
    if result.lse is not None:
        integers = case.key_cache.dtype == torch.int8 and case.query.dtype == torch.bfloat16
        assert_lse_close(result.lse, lse, INTEGER_LSE_TOLERANCE if integers else LSE_TOLERANCE)
