"""Batch invariance: a row's bits do not depend on what else is in the call.

Neither on the other sequences and their number, nor on the upper bounds given, the number of
threads, or the place of the row in the batch and of its blocks in the pool.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from .arguments import valid_arguments
from .backends import Backend
from .cases import Case, Spec, build, to_device
from .running import Result, run_paged_attention, run_v1, run_v2, run_varlen

E4M3 = torch.float8_e4m3fn
SEQ_LENS = (1, 40, 0, 700, 17, 129, 64)
SPECS = [
    Spec(seq_lens=SEQ_LENS),
    Spec(seq_lens=SEQ_LENS, dtype=torch.bfloat16, heads=(9, 3), head_dim=80, layout="NHD"),
    Spec(seq_lens=SEQ_LENS, dtype=torch.float16, heads=(8, 1), window_left=50, softcap=4.0),
    Spec(seq_lens=SEQ_LENS, heads=(1, 1), head_dim=128, alibi=True, sinks=True),
    Spec(seq_lens=SEQ_LENS, dtype=torch.float16, cache_dtype=E4M3, scale_kind="token_head"),
]
QUERY_LENS = (1, 40, 0, 65, 4, 129, 1)


def run_v2_at_192(case: Case, backend: Backend, **bounds: int) -> Result:
    return run_v2(case, backend, partition_size=192, **bounds)


DECODE = {"v1": run_v1, "v2": run_v2, "v2_at_192": run_v2_at_192}


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def only(case: Case, *seqs: int) -> Case:
    """The same cache with a batch of these sequences alone, in this order."""
    index = list(seqs)
    picked = replace(case, block_tables=case.block_tables[index], seq_lens=case.seq_lens[index])
    picked.max_seq_len = int(picked.seq_lens.max())
    if case.cu_seqlens_q is None:
        return replace(picked, query=case.query[index])
    bounds = case.cu_seqlens_q.tolist()
    rows = [torch.arange(bounds[seq], bounds[seq + 1]) for seq in index]
    lengths = [len(row) for row in rows]
    masks = dict(case.varlen_masks)
    if "tree_mask" in masks:
        masks["tree_mask"] = masks["tree_mask"][torch.cat(rows), : max(lengths)]
    return replace(
        picked,
        query=case.query[torch.cat(rows)],
        cu_seqlens_q=torch.tensor([0, *lengths]).cumsum(0).int(),
        max_query_len=max(lengths),
        varlen_masks=masks,
    )


def relocated(case: Case) -> Case:
    """The same sequences in other blocks: the pool in reverse order."""
    last = case.key_cache.shape[0] - 1
    used = (case.block_tables >= 0) & (case.block_tables <= last)
    flip = {"key_cache": case.key_cache.flip(0), "value_cache": case.value_cache.flip(0)}
    for name in ("k_scale", "v_scale"):
        scale = getattr(case, name)
        flip[name] = scale.flip(0) if scale is not None and scale.dim() == 3 else scale
    tables = torch.where(used, last - case.block_tables, case.block_tables)
    return replace(case, block_tables=tables, **flip)


def assert_rows_equal(result: Result, expected: Result, rows: list[int] | slice) -> None:
    assert torch.equal(result.out, expected.out[rows])
    if result.lse is not None:
        assert torch.equal(result.lse, expected.lse[rows])


@pytest.mark.parametrize("op", DECODE)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_decode_rows_do_not_depend_on_the_batch(spec: Spec, op: str, backend: Backend):
    run, case = DECODE[op], build(spec)
    batch = run(case, backend)
    for seq in range(len(SEQ_LENS)):
        assert_rows_equal(run(only(case, seq), backend), batch, [seq])
    backwards = list(range(len(SEQ_LENS)))[::-1]
    assert_rows_equal(run(only(case, *backwards), backend), batch, backwards)
    many = backwards * 5
    assert_rows_equal(run(only(case, *many), backend), batch, many)


@pytest.mark.parametrize("op", DECODE)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_decode_rows_do_not_depend_on_bounds_threads_or_place(
    spec: Spec, op: str, backend: Backend
):
    run, case = DECODE[op], build(spec)
    batch = run(case, backend)
    assert_rows_equal(run(case, backend, max_seq_len=9000), batch, slice(None))
    assert_rows_equal(run(relocated(case), backend), batch, slice(None))
    for count in (1, 3):
        with threads(count):
            assert_rows_equal(run(case, backend), batch, slice(None))


VARLEN_SPECS = (
    [replace(spec, query_lens=QUERY_LENS) for spec in SPECS]
    + [
        Spec(query_lens=(4, 9, 1), seq_lens=(20, 300, 64), tree=True),
        Spec(query_lens=QUERY_LENS, seq_lens=SEQ_LENS, causal=False),
    ]
    + [
        # Few, one tile and more rows side by side, small enough for slow backends.
        Spec(
            dtype=dtype,
            query_lens=(1, 20, 0, 33, 5),
            seq_lens=(40, 70, 0, 33, 130),
            window_left=window_left,
            sinks=window_left >= 0,
        )
        for dtype, window_left in ((torch.bfloat16, -1), (torch.float16, 30))
    ]
    + [
        # The same over an 8-bit cache.
        Spec(
            dtype=torch.bfloat16,
            query_lens=(1, 20, 0, 33, 5),
            seq_lens=(40, 70, 0, 33, 130),
            cache_dtype=torch.int8,
            scale_kind=scale_kind,
        )
        for scale_kind in ("head", "token_head")
    ]
    + [
        # Short queries over long contexts, whose keys may be split.
        Spec(
            dtype=torch.bfloat16,
            head_dim=32,
            heads=(2, 1),
            query_lens=(1, 20, 2),
            seq_lens=(4500, 70, 4100),
            **masks,
        )
        for masks in ({"sinks": True}, {"window_left": 2100}, {"cache_dtype": E4M3})
    ]
)


@pytest.mark.parametrize("spec", VARLEN_SPECS, ids=str)
def test_varlen_rows_do_not_depend_on_the_batch(spec: Spec, backend: Backend):
    case = build(spec)
    batch = run_varlen(case, backend)
    bounds = case.cu_seqlens_q.tolist()

    def rows(*seqs: int) -> list[int]:
        return [row for seq in seqs for row in range(bounds[seq], bounds[seq + 1])]

    num_seqs = len(case.seq_lens)
    for seq in range(num_seqs):
        if rows(seq):
            assert_rows_equal(run_varlen(only(case, seq), backend), batch, rows(seq))
    many = list(range(num_seqs))[::-1] * 3
    assert_rows_equal(run_varlen(only(case, *many), backend), batch, rows(*many))


@pytest.mark.parametrize("spec", VARLEN_SPECS, ids=str)
def test_varlen_rows_do_not_depend_on_bounds_threads_or_place(spec: Spec, backend: Backend):
    case = build(spec)
    batch = run_varlen(case, backend)
    loose = {"max_seq_len": 9000} if spec.tree else {"max_seq_len": 9000, "max_query_len": 900}
    assert_rows_equal(run_varlen(case, backend, **loose), batch, slice(None))
    assert_rows_equal(run_varlen(relocated(case), backend), batch, slice(None))
    for count in (1, 3):
        with threads(count):
            assert_rows_equal(run_varlen(case, backend), batch, slice(None))


def test_paged_attention_gives_the_bits_of_one_of_its_two_ways(backend: Backend):
    """Whichever it picks, for a lone short sequence and for a lone long one."""
    for seq_lens in ((17,), (3000,)):
        case = build(Spec(seq_lens=seq_lens))
        chosen = run_paged_attention(case, backend).out
        ways = [run_v1(case, backend).out]
        ways += [run_v2(case, backend, partition_size=64 * k).out for k in range(1, 33)]
        assert any(torch.equal(chosen, way) for way in ways)


def test_merged_rows_do_not_depend_on_the_batch(backend: Backend):
    valid = valid_arguments("merge_attention_states", torch.bfloat16)
    inputs = [valid[name] for name in ("prefix_out", "prefix_lse", "suffix_out", "suffix_lse")]

    def merge(rows: list[int]) -> tuple[Tensor, Tensor]:
        given = [to_device(tensor[rows], backend.device) for tensor in inputs]
        out, lse = torch.empty_like(given[0]), torch.empty_like(given[1])
        backend.ops.merge_attention_states(out, lse, *given)
        return out.cpu(), lse.cpu()

    out, lse = merge([0, 1, 2])
    for rows in ([0], [2], [2, 1, 0] * 40):
        for result, expected in zip(merge(rows), (out, lse), strict=True):
            assert torch.equal(result, expected[rows])
