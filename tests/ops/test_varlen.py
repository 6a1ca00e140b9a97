"""Varlen attention (prefill, chunks, drafts, mixed batches) against the float64 reference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from .backends import Backend
from .cases import Case, Spec, build, built
from .pairwise import all_pairs
from .running import assert_as_expected, assert_lse_close, assert_out_close, run_v1, run_varlen

FP8_E4M3, FP8_E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8


def mixed(block_size: int) -> dict[str, tuple[int, ...]]:
    """Decodes, a prefill, chunks of a prefill and empty queries in one batch."""
    b = block_size
    pairs = [(1, b), (b + 1, b + 1), (3, 2 * b + 5), (0, 9), (1, 1), (0, 0), (20, b + 50)]
    return {"query_lens": tuple(q for q, _ in pairs), "seq_lens": tuple(k for _, k in pairs)}


SHAPE_FACTORS = {
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "head_dim": [32, 64, 80, 96, 112, 120, 128, 192, 256],
    "heads": [(1, 1), (4, 4), (9, 3), (40, 40), (64, 8), (12, 1)],
    "block_size": [8, 16, 32, 128, 512],
    "layout": ["NHD", "HND"],
    "interleaved": [False, True],
    "packed_query": [False, True],
    "causal": [False, True],
}
SHAPES = [Spec(**row, **mixed(min(row["block_size"], 32))) for row in all_pairs(SHAPE_FACTORS)]

QUANTIZED_FACTORS = {
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "cache_dtype": [FP8_E4M3, FP8_E5M2, INT8],
    "scale_kind": ["none", "tensor", "head", "token_head"],
    "head_dim": [40, 64, 128, 256],
    "heads": [(4, 4), (9, 3), (12, 1)],
    "block_size": [8, 16, 32],
    "layout": ["NHD", "HND"],
    "interleaved": [False, True],
}
QUANTIZED = [Spec(**row, **mixed(row["block_size"])) for row in all_pairs(QUANTIZED_FACTORS)]

MASK_OPTIONS = {
    "window_left": [-1, 0, 21],
    "softcap": [0.0, 3.0],
    "alibi": [False, True],
    "sinks": [False, True],
    "causal": [False, True],
    "tree": [False, True],
}
DRAFTS = {"query_lens": (8, 1, 17, 3, 0), "seq_lens": (8, 30, 80, 65, 4)}
MASKS = [
    Spec(heads=(6, 2), **DRAFTS, **dict(zip(MASK_OPTIONS, values, strict=True)))
    for values in itertools.product(*MASK_OPTIONS.values())
] + [
    Spec(
        dtype=dtype,
        heads=(6, 2),
        head_dim=80,
        window_left=33,
        softcap=5.0,
        alibi=True,
        sinks=True,
        **DRAFTS,
    )
    for dtype in (torch.float16, torch.bfloat16)
]

LENGTHS = [
    Spec(query_lens=(1, 1, 1), seq_lens=(1, 40, 0)),
    Spec(query_lens=(300,), seq_lens=(300,)),
    Spec(query_lens=(64, 2), seq_lens=(150, 2), tree=True),
    Spec(query_lens=(40,), seq_lens=(300,), window_left=7),  # query_len > window
    Spec(query_lens=(1, 257), seq_lens=(4097, 257), heads=(2, 1)),
    Spec(query_lens=(130, 1, 1, 5), seq_lens=(4200, 17, 1, 5), heads=(2, 1), dtype=torch.bfloat16),
]

HALVES = (torch.float16, torch.bfloat16)
# Packed rows (query_len * query heads per KV head) at and around the sizes of a kernel's row tiles,
# with keys that end inside and at the end of a tile of keys.
ROW_TILES = [
    Spec(dtype=dtype, head_dim=head_dim, heads=heads, query_lens=query_lens, seq_lens=seq_lens)
    for dtype, head_dim, heads, query_lens, seq_lens in [
        (torch.float16, 64, (2, 2), (15, 16, 17, 1), (63, 64, 65, 129)),
        (torch.bfloat16, 64, (1, 1), (63, 64, 65, 66), (64, 128, 65, 70)),
        (torch.float16, 96, (1, 1), (127, 1, 9), (127, 200, 9)),
        (torch.bfloat16, 128, (1, 1), (128, 129), (128, 140)),
        (torch.bfloat16, 128, (8, 1), (8, 2, 3, 16), (64, 300, 67, 16)),
        (torch.float16, 192, (3, 1), (21, 22, 5, 6), (21, 128, 300, 70)),
        (torch.bfloat16, 256, (2, 1), (31, 33, 8, 9), (31, 64, 8, 200)),
        (torch.float16, 72, (71, 1), (1, 2), (90, 70)),  # a decode of more than 64 rows
    ]
]

HALF_MASKS = [
    Spec(dtype=dtype, heads=(4, 2), head_dim=64, query_lens=(40, 1, 33, 6), **lengths, **masks)
    for dtype, lengths, masks in zip(
        itertools.cycle(HALVES),
        itertools.cycle([{"seq_lens": (150, 90, 33, 70)}, {"seq_lens": (40, 1, 130, 64)}]),
        [
            {"window_left": 0},
            {"window_left": 20, "sinks": True},
            {"window_left": 70, "softcap": 3.0},
            {"causal": False, "window_left": 9},
            {"causal": False, "alibi": True, "sinks": True},
            {"softcap": 30.0, "alibi": True},
            {"tree": True},
            {"tree": True, "window_left": 12, "alibi": True},
            {"tree": True, "softcap": 2.0, "sinks": True},
        ],
        strict=False,
    )
] + [
    Spec(dtype=torch.bfloat16, query_lens=(64, 5), seq_lens=(170, 5), heads=(1, 1), tree=True),
    Spec(dtype=torch.float16, query_lens=(64, 64), seq_lens=(64, 128), heads=(2, 1), tree=True),
]


# 8-bit caches on tensor cores: every row tile, with keys in one and in several tiles of keys.
QUANTIZED_HALF_FACTORS = {
    "dtype": [torch.float16, torch.bfloat16],
    "cache_dtype": [FP8_E4M3, FP8_E5M2, INT8],
    "scale_kind": ["none", "tensor", "head", "token_head"],
    "head_dim": [48, 64, 80, 128, 144, 256],
    "lengths": [((1, 4), (200, 65)), ((14, 2), (150, 64)), ((40, 1), (70, 130)), ((35,), (35,))],
    "heads": [(4, 4), (4, 1)],
    "block_size": [8, 16, 64],
    "masks": ["none", "window", "rule", "noncausal", "tree"],
}
MASK_SETS: dict[str, dict[str, Any]] = {
    "none": {},
    "window": {"window_left": 20, "sinks": True},
    "rule": {"softcap": 3.0, "alibi": True},
    "noncausal": {"causal": False, "window_left": 70},
    "tree": {"tree": True},
}


def quantized_half(
    lengths: tuple[tuple[int, ...], tuple[int, ...]], masks: str, **row: Any
) -> Spec:
    return Spec(query_lens=lengths[0], seq_lens=lengths[1], **row, **MASK_SETS[masks])


QUANTIZED_HALF = [quantized_half(**row) for row in all_pairs(QUANTIZED_HALF_FACTORS)]


# Short queries whose keys are split into partitions of 2048 tokens and more, beside others.
SPLITS = [
    Spec(head_dim=32, **spec)
    for spec in (
        {"dtype": torch.bfloat16, "heads": (2, 1), "query_lens": (1, 3), "seq_lens": (4097, 50)},
        {"dtype": torch.float16, "heads": (1, 1), "query_lens": (30, 1), "seq_lens": (40, 6200)},
        {"dtype": torch.bfloat16, "heads": (2, 2), "query_lens": (2,), "seq_lens": (4100,)},
        {
            "dtype": torch.float16,
            "heads": (1, 1),
            "query_lens": (1, 2),
            "seq_lens": (9000, 4200),
            "window_left": 2500,
            "sinks": True,
        },
        {
            "dtype": torch.bfloat16,
            "heads": (1, 1),
            "query_lens": (3, 1),
            "seq_lens": (4098, 4099),
            "softcap": 5.0,
            "alibi": True,
            "sinks": True,
        },
        {
            "dtype": torch.float16,
            "heads": (1, 1),
            "query_lens": (5,),
            "seq_lens": (6146,),
            "tree": True,
        },
        {
            "dtype": torch.bfloat16,
            "heads": (1, 1),
            "query_lens": (4,),
            "seq_lens": (4100,),
            "causal": False,
            "sinks": True,
        },
        {
            "dtype": torch.bfloat16,
            "heads": (2, 1),
            "query_lens": (2, 1),
            "seq_lens": (4500, 300),
            "cache_dtype": FP8_E4M3,
            "scale_kind": "token_head",
        },
        # Tiles of 64 and of 128 rows.
        {"dtype": torch.float16, "heads": (20, 1), "query_lens": (1,), "seq_lens": (4161,)},
        {"dtype": torch.float16, "heads": (9, 1), "query_lens": (8,), "seq_lens": (6150,)},
        {"dtype": torch.bfloat16, "heads": (4, 1), "query_lens": (16,), "seq_lens": (20000,)},
    )
]


@pytest.mark.parametrize(
    "spec",
    SHAPES + QUANTIZED + MASKS + LENGTHS + ROW_TILES + HALF_MASKS + QUANTIZED_HALF + SPLITS,
    ids=str,
)
def test_matches_the_reference(spec: Spec, backend: Backend):
    assert_as_expected(run_varlen(built(spec), backend), built(spec))


@pytest.mark.parametrize("sinks", [False, True])
@pytest.mark.parametrize("causal", [False, True])
def test_rows_before_the_first_key_see_nothing_unless_noncausal(
    causal: bool, sinks: bool, backend: Backend
):
    """query_len > seq_len puts the first rows at negative positions."""
    spec = Spec(query_lens=(5, 3), seq_lens=(2, 0), causal=causal, sinks=sinks)
    case = built(spec)
    result = run_varlen(case, backend)
    assert_as_expected(result, case)
    empty = slice(5, 8) if not causal else [0, 1, 2, 5, 6, 7]
    assert torch.equal(result.out[empty], torch.zeros_like(result.out[empty]))
    if not sinks:
        assert (result.lse[empty] == -math.inf).all()


def test_no_sequences_and_no_rows_are_taken(backend: Backend):
    assert run_varlen(build(Spec(query_lens=(), seq_lens=())), backend).out.shape[0] == 0
    assert run_varlen(build(Spec(query_lens=(0, 0), seq_lens=(5, 0))), backend).out.shape[0] == 0


def test_upper_bounds_may_be_larger_than_the_batch_needs(backend: Backend):
    case = built(Spec(query_lens=(3, 1), seq_lens=(20, 30)))
    exact = run_varlen(case, backend)
    loose = run_varlen(case, backend, max_query_len=500, max_seq_len=100_000)
    assert torch.equal(loose.out, exact.out)
    assert torch.equal(loose.lse, exact.lse)


def test_one_token_per_sequence_is_decode(backend: Backend):
    decode = built(Spec(seq_lens=(1, 17, 300), sinks=True, window_left=100))
    as_varlen = replace(decode, cu_seqlens_q=torch.tensor([0, 1, 2, 3], dtype=torch.int32))
    varlen = run_varlen(as_varlen, backend)
    v1 = run_v1(decode, backend)
    assert_out_close(varlen.out, v1.out.double())
    assert_lse_close(varlen.lse, v1.lse)


def test_a_lower_triangle_as_tree_mask_is_causality(backend: Backend):
    case = built(Spec(query_lens=(6, 4), seq_lens=(6, 40)))
    triangle = torch.ones(6, 6).tril().bool()
    tree_mask = torch.cat([triangle, triangle[:4], torch.zeros(2, 6, dtype=torch.bool)])
    chain = replace(case, varlen_masks={"tree_mask": tree_mask})
    assert_as_expected(run_varlen(chain, backend), case)


def test_a_tree_mask_may_be_strided_and_wider_rows_do_not_matter(backend: Backend):
    case = built(Spec(query_lens=(8, 3), seq_lens=(30, 20), tree=True))
    narrow = case.varlen_masks["tree_mask"]
    transposed = narrow.t().contiguous().t()
    assert transposed.stride() != narrow.stride()
    expected = run_varlen(case, backend)
    strided = replace(case, varlen_masks={"causal": True, "tree_mask": transposed})
    assert torch.equal(run_varlen(strided, backend).out, expected.out)


def test_a_tree_mask_overrides_causal(backend: Backend):
    case = built(Spec(query_lens=(8, 3), seq_lens=(30, 20), tree=True))
    ignored = replace(case, varlen_masks={**case.varlen_masks, "causal": False})
    assert torch.equal(run_varlen(ignored, backend).out, run_varlen(case, backend).out)


def chunks_of(case: Case, size: int) -> Iterator[tuple[slice, Case]]:
    """The rows of a case of one prefill, chunk by chunk against a growing cache."""
    for start in range(0, case.num_rows, size):
        stop = min(start + size, case.num_rows)
        yield (
            slice(start, stop),
            replace(
                case,
                query=case.query[start:stop],
                cu_seqlens_q=torch.tensor([0, stop - start], dtype=torch.int32),
                seq_lens=torch.tensor([stop], dtype=torch.int32),
                max_query_len=stop - start,
            ),
        )


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("chunk", [1, 7, 16, 40])
def test_chunked_prefill_equals_prefill_in_one(chunk: int, dtype: torch.dtype, backend: Backend):
    case = built(Spec(query_lens=(100,), seq_lens=(100,), block_size=8, dtype=dtype))
    out, lse = case.expected
    for rows, piece in chunks_of(case, chunk):
        result = run_varlen(piece, backend)
        assert_out_close(result.out, out[rows])
        assert_lse_close(result.lse, lse[rows])


@pytest.mark.parametrize("window_left", [-1, 50])
@pytest.mark.parametrize("cache_dtype", [None, FP8_E4M3], ids=str)
@pytest.mark.parametrize("dtype", HALVES)
def test_tensor_core_rows_have_the_same_bits_in_every_chunking(
    dtype: torch.dtype, cache_dtype: torch.dtype | None, window_left: int, backend: Backend
):
    """Chunks of more than 16 packed rows: with fewer, the warps share the keys out."""
    if backend.name == "cpu":
        pytest.skip("the CPU kernel cuts the keys by the length of the query")
    spec = Spec(query_lens=(100,), seq_lens=(100,), heads=(2, 1), head_dim=32, dtype=dtype)
    if cache_dtype is not None:
        spec = replace(spec, cache_dtype=cache_dtype, scale_kind="token_head")
    case = built(replace(spec, window_left=window_left))
    whole = run_varlen(case, backend)
    for size in (9, 20, 33, 64, 90):
        for rows, piece in chunks_of(case, size):
            if piece.num_rows <= 8:
                continue
            result = run_varlen(piece, backend)
            assert torch.equal(result.out, whole.out[rows])
            assert torch.equal(result.lse, whole.lse[rows])


def assert_a_bad_value_reaches_only_rows_that_see_it(
    spec: Spec, bad: float, backend: Backend
) -> None:
    """`bad` in one element of the second kv head's value at position 77, of one sequence."""
    position, dim = 77, 5
    case = build(spec)
    assert spec.query_lens is not None
    first_row = spec.query_lens[0] - (spec.seq_lens[0] - position)
    clean = run_varlen(case, backend)
    block = case.block_tables[0, position // case.value_cache.shape[1]]
    case.value_cache[block, position % case.value_cache.shape[1], 1, dim] = bad
    result = run_varlen(case, backend)
    touched = torch.zeros_like(clean.out, dtype=torch.bool)
    touched[first_row:, 2:, dim] = True
    expected = torch.full_like(result.out[touched], bad)
    torch.testing.assert_close(result.out[touched], expected, equal_nan=True)
    assert torch.equal(result.out[~touched], clean.out[~touched])
    assert torch.equal(result.lse, clean.lse)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
@pytest.mark.parametrize("query_len", [4, 20, 70])
def test_a_value_that_is_not_finite_reaches_only_rows_that_see_it(
    query_len: int, dtype: torch.dtype, bad: float, backend: Backend
):
    spec = Spec(query_lens=(query_len,), seq_lens=(80,), heads=(4, 2), dtype=dtype)
    assert_a_bad_value_reaches_only_rows_that_see_it(spec, bad, backend)


@pytest.mark.parametrize("query_len", [4, 20, 70])
@pytest.mark.parametrize(
    ("cache_dtype", "bad"),
    [(FP8_E4M3, math.nan), (FP8_E5M2, math.nan), (FP8_E5M2, math.inf)],
    ids=str,
)
def test_a_code_that_is_not_finite_reaches_only_rows_that_see_it(
    cache_dtype: torch.dtype, bad: float, query_len: int, backend: Backend
):
    spec = Spec(
        query_lens=(query_len,),
        seq_lens=(80,),
        dtype=torch.float16,
        cache_dtype=cache_dtype,
        scale_kind="head",
    )
    assert_a_bad_value_reaches_only_rows_that_see_it(spec, bad, backend)


def test_a_key_that_is_not_finite_reaches_only_rows_that_see_it(backend: Backend):
    length, position = 80, 77
    case = build(Spec(query_lens=(20,), seq_lens=(length,), heads=(2, 1), dtype=torch.bfloat16))
    clean = run_varlen(case, backend)
    block = case.block_tables[0, position // case.key_cache.shape[1]]
    case.key_cache[block, position % case.key_cache.shape[1]] = math.nan
    result = run_varlen(case, backend)
    assert result.out[-3:].isnan().all()
    assert torch.equal(result.out[:-3], clean.out[:-3])
    assert torch.equal(result.lse[:-3], clean.lse[:-3])


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_logits_that_rise_or_fall_by_hundreds_keep_their_precision(
    dtype: torch.dtype, backend: Backend
):
    """A running maximum that moves in every tile, and one that never moves again."""
    case = build(Spec(query_lens=(20, 20), seq_lens=(300, 300), heads=(1, 1), dtype=dtype))
    case.query[:] = 1.0
    size = case.key_cache.shape[1]
    for seq, sign in ((0, 1), (1, -1)):
        for position in range(300):
            block = case.block_tables[seq, position // size]
            case.key_cache[block, position % size] = sign * (position - 150) * 0.25
    assert_as_expected(run_varlen(case, backend), case)


@pytest.mark.parametrize("scale", [0.0, -0.1])
def test_scales_that_are_not_positive_are_taken(scale: float, backend: Backend):
    spec = Spec(query_lens=(20, 1), seq_lens=(90, 70), dtype=torch.bfloat16)
    case = replace(build(spec), scale=scale)
    assert_as_expected(run_varlen(case, backend), case)


def test_loose_bounds_of_the_lengths_are_taken(backend: Backend):
    case = built(Spec(seq_lens=(20, 3), query_lens=(20, 1)))
    loose = run_varlen(case, backend, max_query_len=2**31 - 1, max_seq_len=2**31 - 1)
    assert_as_expected(loose, case)


@pytest.mark.parametrize("query_len", [1, 12, 40])
@pytest.mark.parametrize("dtype", HALVES)
def test_scales_of_tokens_from_zero_to_huge_keep_their_precision(
    dtype: torch.dtype, query_len: int, backend: Backend
):
    """Side by side in a sequence, and over all the range of the output's type."""
    case = build(
        Spec(
            query_lens=(query_len, query_len),
            seq_lens=(150, 70),
            dtype=dtype,
            cache_dtype=FP8_E5M2,
            scale_kind="token_head",
        )
    )
    steps = torch.tensor([2.0**-10, 1.0, 2.0**6, 0.0])  # 0: of a row of zeros
    case.v_scale.mul_(steps[torch.arange(case.v_scale.shape[1]) % 4, None])
    case.v_scale *= torch.tensor([2.0**-3, 2.0**3] if dtype == torch.float16 else [1e-12, 1e15])
    case.k_scale[:, ::7] = 0.0
    assert_as_expected(run_varlen(case, backend), case)


@pytest.mark.parametrize("scale_kind", ["head", "token_head"])
@pytest.mark.parametrize("dtype", HALVES)
def test_cache_scales_may_be_zero_or_negative(
    dtype: torch.dtype, scale_kind: str, backend: Backend
):
    case = build(
        Spec(
            query_lens=(20, 1, 3),
            seq_lens=(90, 70, 130),
            dtype=dtype,
            heads=(6, 3),
            cache_dtype=INT8,
            scale_kind=scale_kind,
        )
    )
    for scale in (case.k_scale, case.v_scale):
        scale[..., 0] *= -1
    case.k_scale[..., 1] = 0.0
    assert_as_expected(run_varlen(case, backend), case)


@pytest.mark.parametrize("dtype", HALVES)
def test_queries_of_any_size_over_8_bit_caches(dtype: torch.dtype, backend: Backend):
    """Rows far from 1 in either direction, within what their dtype holds."""
    spec = Spec(query_lens=(20, 3), seq_lens=(90, 70), dtype=dtype, cache_dtype=FP8_E4M3)
    case = build(replace(spec, scale_kind="tensor"))
    largest = 2.0**12 if dtype == torch.float16 else 2.0**60
    case.query[::3] *= 2.0**-10
    case.query[1::3] *= largest
    case = replace(case, scale=case.scale / largest)
    assert_as_expected(run_varlen(case, backend), case)
