"""Decode attention, V1, V2 and paged_attention, against the float64 reference."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from pagedattn import reference

from .backends import Backend
from .cases import Spec, built
from .pairwise import all_pairs
from .running import (
    assert_as_expected,
    assert_lse_close,
    assert_out_close,
    run_paged_attention,
    run_v1,
    run_v2,
)

FP8_E4M3, FP8_E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
SHAPE_FACTORS = {
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "head_dim": [32, 64, 80, 96, 112, 120, 128, 192, 256],
    "heads": [(1, 1), (4, 4), (9, 3), (40, 40), (64, 8), (12, 1)],
    "block_size": [8, 16, 32, 128, 512],
    "layout": ["NHD", "HND"],
    "interleaved": [False, True],
    "packed_query": [False, True],
}
SHAPES = [Spec(**row) for row in all_pairs(SHAPE_FACTORS)]

QUANTIZED_FACTORS = {
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "cache_dtype": [FP8_E4M3, FP8_E5M2, INT8],
    "scale_kind": ["none", "tensor", "head", "token_head"],
    "head_dim": [40, 64, 128, 256],
    "heads": [(4, 4), (9, 3), (12, 1), (40, 1)],
    "block_size": [8, 16, 32],
    "layout": ["NHD", "HND"],
    "interleaved": [False, True],
}
QUANTIZED = [Spec(**row) for row in all_pairs(QUANTIZED_FACTORS)]

LONG = [
    Spec(dtype=torch.float32, seq_lens=(4097, 3), heads=(4, 2)),
    Spec(dtype=torch.float16, seq_lens=(5000,), heads=(9, 3), block_size=32, layout="NHD"),
    Spec(dtype=torch.bfloat16, seq_lens=(1, 8200), heads=(2, 1), head_dim=128, block_size=512),
]

MASKS = [
    Spec(
        dtype=dtype,
        head_dim=head_dim,
        heads=(6, 2),
        window_left=window_left,
        softcap=softcap,
        alibi=alibi,
        sinks=sinks,
    )
    for (dtype, head_dim), window_left, softcap, alibi, sinks in itertools.product(
        [(torch.float32, 64), (torch.bfloat16, 80)],
        [-1, 21],
        [0.0, 3.0],
        [False, True],
        [False, True],
    )
]
MASKS += [
    Spec(
        dtype=torch.bfloat16,
        head_dim=96,
        heads=heads,
        cache_dtype=cache_dtype,
        scale_kind=scale_kind,
        window_left=21,
        softcap=3.0,
        alibi=True,
        sinks=True,
    )
    for cache_dtype, scale_kind, heads in [
        (FP8_E4M3, "head", (6, 2)),
        (FP8_E5M2, "token_head", (6, 2)),
        (INT8, "token_head", (24, 2)),
    ]
]
MASKS += [Spec(window_left=w, sinks=w == 0) for w in (0, 1, 15, 16, 63, 64, 1000)]

OPS = {"v1": run_v1, "v2": run_v2, "paged_attention": run_paged_attention}


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("spec", SHAPES + QUANTIZED + LONG + MASKS, ids=str)
def test_matches_the_reference(spec: Spec, op: str, backend: Backend):
    assert_as_expected(OPS[op](built(spec), backend), built(spec))


@pytest.mark.parametrize("op", [run_v1, run_v2])
@pytest.mark.parametrize("cache_dtype", [None, FP8_E4M3, INT8], ids=str)
@pytest.mark.parametrize("dtype", SHAPE_FACTORS["dtype"], ids=str)
def test_logits_may_grow_from_tile_to_tile(
    dtype: torch.dtype, cache_dtype: torch.dtype | None, op, backend: Backend
):
    """What was added up before has to shrink: by e^3 per 64 keys."""
    scale_kind = "none" if cache_dtype is None else "head"
    spec = Spec(dtype=dtype, cache_dtype=cache_dtype, scale_kind=scale_kind, heads=(8, 2))
    case = built(replace(spec, head_dim=128, seq_lens=(700, 65)))
    case = replace(case, masks={**case.masks, "alibi_slopes": torch.full((8,), 0.05)})
    assert_as_expected(op(case, backend), case)


@pytest.mark.parametrize("partition_size", [64, 128, 192, 512, 1024])
@pytest.mark.parametrize("block_size", [8, 32, 512])
def test_v2_partition_size_is_free_of_block_size(
    partition_size: int, block_size: int, backend: Backend
):
    case = built(Spec(block_size=block_size, seq_lens=(1, 64, 65, 513, 700)))
    assert_as_expected(run_v2(case, backend, partition_size=partition_size), case)


@pytest.mark.parametrize(
    "spec",
    [Spec(), Spec(sinks=True, dtype=torch.float16), Spec(window_left=100, softcap=5.0, alibi=True)],
    ids=str,
)
def test_v2_partials(spec: Spec, backend: Backend):
    """Each is the normalised attention over its partition alone, without sinks; the workspace of
    a partition without a visible key is not written."""
    partition_size = 64
    case = built(replace(spec, seq_lens=(0, 1, 63, 64, 65, 300)))
    result = run_v2(case, backend, partition_size=partition_size, extra_partitions=2)
    _, _, partial_out, partial_lse = reference.paged_attention_v2(
        case.query.double(),
        case.key_cache,
        case.value_cache,
        case.block_tables,
        case.seq_lens,
        partition_size,
        case.scale,
        **case.options,
    )
    num_partitions = partial_lse.shape[2]
    visible = partial_lse > -math.inf
    written_out = result.partial_out[:, :, :num_partitions]
    written_lse = result.partial_lse[:, :, :num_partitions]
    # Tensor cores take the softmax's weights in the dtype of the query.
    assert_out_close(written_out[visible], partial_out[visible], case.query.dtype)
    assert_lse_close(written_lse[visible], partial_lse[visible])
    assert written_out[~visible].isnan().all()
    assert written_lse[~visible].isnan().all()
    assert result.partial_out[:, :, num_partitions:].isnan().all()
    assert result.partial_lse[:, :, num_partitions:].isnan().all()


def test_a_sequence_without_keys_gives_zeros_and_its_sink(backend: Backend):
    empty = built(Spec(seq_lens=(0, 0)))
    for result in (run_v1(empty, backend), run_v2(empty, backend)):
        assert torch.equal(result.out, torch.zeros_like(result.out))
        assert (result.lse == -math.inf).all()
    with_sinks = built(Spec(seq_lens=(0, 0), sinks=True))
    for result in (run_v1(with_sinks, backend), run_v2(with_sinks, backend)):
        assert torch.equal(result.out, torch.zeros_like(result.out))
        assert_lse_close(result.lse, with_sinks.masks["sinks"].expand_as(result.lse))


def test_a_sink_of_minus_infinity_is_none(backend: Backend):
    case = built(Spec(seq_lens=(0, 5, 100)))
    masks = {**case.masks, "sinks": torch.full((4,), -math.inf)}
    with_sinks = replace(case, masks=masks)
    for run in (run_v1, run_v2):
        assert_as_expected(run(with_sinks, backend), case)


@pytest.mark.parametrize("window_left", [100, 2**31 - 1, 2**40])
def test_a_window_longer_than_the_sequence_is_none(window_left: int, backend: Backend):
    case = built(Spec(seq_lens=(5, 100)))
    wide = replace(case, masks={**case.masks, "window_left": window_left})
    for run in (run_v1, run_v2):
        assert_as_expected(run(wide, backend), case)


@pytest.mark.parametrize("head_dim", range(32, 257, 8))
def test_every_head_dim(head_dim: int, backend: Backend):
    case = built(Spec(head_dim=head_dim, heads=(2, 1), seq_lens=(20,), dtype=torch.float16))
    assert_as_expected(run_v1(case, backend), case)


@pytest.mark.parametrize("group", [8, 9, 16, 17, 24, 32, 33, 48, 64, 65])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_class_of_groups(dtype: torch.dtype, head_dim: int, group: int, backend: Backend):
    """Kernels may lay out a kv head's query heads by their number; here each has its own slope."""
    heads = (2 * group, 2)
    case = built(Spec(dtype, head_dim, heads, seq_lens=(3, 150), alibi=True, sinks=True))
    assert_as_expected(run_v1(case, backend), case)
    plain = built(Spec(dtype, head_dim, heads, seq_lens=(20, 333), window_left=300))
    assert_as_expected(run_v2(plain, backend, partition_size=192), plain)


def test_blocks_of_one_token(backend: Backend):
    if backend.name != "cpu":
        pytest.skip("a block of one token is for CPUs only")
    case = built(Spec(block_size=1, seq_lens=(0, 1, 2, 70)))
    for run in (run_v1, run_v2, run_paged_attention):
        assert_as_expected(run(case, backend), case)


def test_keys_and_values_may_differ_in_layout_and_kind_of_scale(backend: Backend):
    spec = Spec(cache_dtype=INT8, scale_kind="head", seq_lens=(9, 70))
    case = built(spec)
    value_cache = case.value_cache.contiguous()  # NHD, beside HND keys
    per_token_head = case.v_scale.expand(value_cache.shape[:3]).contiguous()
    for v_scale in (None, torch.tensor([0.02]), per_token_head):
        mixed = replace(case, value_cache=value_cache, v_scale=v_scale)
        for run in (run_v1, run_v2):
            assert_as_expected(run(mixed, backend), mixed)


def test_an_empty_batch_is_taken(backend: Backend):
    case = built(Spec(seq_lens=()))
    assert run_v1(case, backend).out.shape == (0, 4, 64)
    assert run_v2(case, backend).out.shape == (0, 4, 64)
    assert run_paged_attention(case, backend).out.shape == (0, 4, 64)


def test_out_and_lse_may_be_strided_and_lse_left_out(backend: Backend):
    case = built(Spec(seq_lens=(5, 40)))
    given = case.to(backend.device)
    num_seqs, num_q_heads, head_dim = case.query.shape
    out = torch.full((num_seqs, num_q_heads, 2, head_dim), math.nan).to(backend.device)[:, :, 1]
    lse = torch.full((num_q_heads, num_seqs), math.nan).to(backend.device).t()
    arguments = (given.query, given.key_cache, given.value_cache, given.block_tables)
    arguments += (given.seq_lens, case.max_seq_len, case.scale)
    backend.ops.paged_attention_v1(out, *arguments, lse=lse)
    assert_out_close(out.cpu().contiguous(), case.expected[0])
    assert_lse_close(lse.cpu().contiguous(), case.expected[1])
    without_lse = torch.full((num_seqs, num_q_heads, head_dim), math.nan).to(backend.device)
    backend.ops.paged_attention_v1(without_lse, *arguments)
    assert torch.equal(without_lse.cpu(), out.cpu())


def test_a_long_tail_of_equal_logits_keeps_its_mean(backend: Backend):
    """All weights equal: the output is the plain mean, and lse = logit + log(seq_len)."""
    case = built(Spec(seq_lens=(1000,)))
    uniform = replace(case, query=torch.zeros_like(case.query))
    result = run_v1(uniform, backend)
    assert_as_expected(result, uniform)
    assert_lse_close(result.lse, torch.full_like(result.lse, math.log(1000)))


def test_large_logits_do_not_overflow(backend: Backend):
    """Logits of several hundred: exp of any of them alone would be infinite."""
    case = built(Spec(seq_lens=(3, 130, 500)))
    sharp = replace(case, query=case.query, scale=40.0)
    for result in (run_v1(sharp, backend), run_v2(sharp, backend)):
        out, lse = sharp.expected
        assert lse.max() > 200
        torch.testing.assert_close(result.lse.double(), lse, rtol=1e-5, atol=0)
        # An error of 1e-6 in such a logit is one of 1e-4 in its weight.
        torch.testing.assert_close(result.out.double(), out, rtol=0, atol=2e-3)


@pytest.mark.parametrize("factor", [2.0**40, 2.0**-40])
@pytest.mark.parametrize("cache_dtype", [FP8_E4M3, FP8_E5M2, INT8], ids=str)
def test_a_query_may_leave_the_range_of_fp16(
    cache_dtype: torch.dtype, factor: float, backend: Backend
):
    """Kernels for 8-bit caches may compute in fp16, whatever the query's type."""
    spec = Spec(torch.bfloat16, heads=(8, 2), cache_dtype=cache_dtype, scale_kind="head")
    case = built(spec)
    scaled = replace(case, query=case.query * factor, scale=case.scale / factor)
    assert_as_expected(run_v1(scaled, backend), scaled)


@pytest.mark.parametrize("dtype", SHAPE_FACTORS["dtype"], ids=str)
@pytest.mark.parametrize("cache_dtype", [FP8_E4M3, FP8_E5M2, INT8], ids=str)
def test_an_element_of_a_query_may_dwarf_the_others(
    dtype: torch.dtype, cache_dtype: torch.dtype, backend: Backend
):
    """Kernels may give a row's elements a common scale; here they have bits of 2^-6 of it."""
    case = built(Spec(dtype, heads=(8, 2), cache_dtype=cache_dtype, scale_kind="head"))
    query = case.query.clone()
    query[..., 3] = 64.0
    key_cache = case.key_cache.clone()
    key_cache[..., 3] = 1  # of all keys, so that the others decide
    outlier = replace(case, query=query, key_cache=key_cache)
    assert_out_close(run_v1(outlier, backend).out, outlier.expected[0])


@pytest.mark.parametrize("cache_dtype", [torch.bfloat16, FP8_E4M3, INT8], ids=str)
def test_nan_in_a_query_spoils_its_own_row_alone(cache_dtype: torch.dtype, backend: Backend):
    scale_kind = "none" if cache_dtype == torch.bfloat16 else "head"
    case = built(Spec(torch.bfloat16, heads=(8, 2), cache_dtype=cache_dtype, scale_kind=scale_kind))
    query = case.query.clone()
    query[1, 2, 5] = math.nan
    out = run_v1(replace(case, query=query), backend).out
    sound = run_v1(case, backend).out
    assert out[1, 2].isnan().all()
    out[1, 2] = sound[1, 2]
    assert torch.equal(out, sound)


@pytest.mark.parametrize("cache_dtype", [FP8_E4M3, FP8_E5M2, INT8], ids=str)
def test_token_scales_may_differ_widely(cache_dtype: torch.dtype, backend: Backend):
    """Weight times scale neither overflows nor vanishes beside the largest such product."""
    spec = Spec(torch.float16, heads=(8, 2), cache_dtype=cache_dtype, scale_kind="token_head")
    case = built(spec)
    exponents = torch.arange(case.v_scale.numel()).view(case.v_scale.shape) % 24 - 16
    v_scale = case.v_scale * torch.exp2(exponents.float())
    v_scale[exponents == 0] = 0.0
    wide = replace(case, v_scale=v_scale)
    assert_as_expected(run_v1(wide, backend), wide)


def test_keys_of_infinitely_small_weight_may_come_first(backend: Backend):
    """Logits of -inf over whole tiles and partitions, finite ones after them."""
    case = built(Spec(seq_lens=(200, 130)))
    query = case.query.clone()
    query[..., 0] = 1.0
    key_cache = case.key_cache.clone()
    key_cache[case.block_tables[:, : 128 // case.key_cache.shape[1]].long(), :, :, 0] = -math.inf
    steep = replace(case, query=query, key_cache=key_cache)
    assert_as_expected(run_v1(steep, backend), steep)
    assert_as_expected(run_v2(steep, backend, partition_size=64), steep)


def test_a_loose_bound_of_the_length_costs_no_workspace(backend: Backend):
    case = built(Spec(seq_lens=(70,)))
    assert_as_expected(run_paged_attention(case, backend, max_seq_len=2**31 - 1), case)
