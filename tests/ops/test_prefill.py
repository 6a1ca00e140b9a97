"""Varlen attention on long queries: where a kernel may take tiles of keys, strips of query rows and
packed copies of the cache, all of which end somewhere."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch

from .backends import Backend
from .cases import Case, Spec, build, built
from .running import assert_as_expected, run_varlen

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
BF16, FP16 = torch.bfloat16, torch.float16
CHUNK = {"query_lens": (150,), "seq_lens": (700,)}  # crosses multiples of 64, 128 and 256

SPECS = [
    *(Spec(**CHUNK, dtype=dtype, heads=(8, 2)) for dtype in (torch.float32, FP16, BF16)),
    *(Spec(**CHUNK, dtype=BF16, head_dim=d, heads=(3, 1)) for d in (32, 40, 72, 112, 256)),
    *(Spec(**CHUNK, head_dim=d, heads=(3, 1)) for d in (40, 72, 112, 256)),
    *(
        Spec(**CHUNK, dtype=dtype, cache_dtype=cache_dtype, scale_kind="token_head")
        for dtype in (torch.float32, BF16)
        for cache_dtype in (E4M3, E5M2, torch.int8)
    ),
    *(
        Spec(**CHUNK, dtype=dtype, window_left=201, softcap=5.0, alibi=True, sinks=True)
        for dtype in (torch.float32, BF16)
    ),
    *(Spec(**CHUNK, dtype=dtype, window_left=100) for dtype in (torch.float32, BF16)),
    *(Spec(**CHUNK, dtype=dtype, causal=False) for dtype in (torch.float32, BF16)),
    *(
        Spec(query_lens=(64, 33), seq_lens=(300, 33), dtype=dtype, tree=True)
        for dtype in (torch.float32, BF16)
    ),
    Spec(query_lens=(70, 40), seq_lens=(30, 0), sinks=True),  # rows before the first key
    Spec(query_lens=(70, 40), seq_lens=(30, 0), causal=False, dtype=BF16),
    Spec(query_lens=(40,), seq_lens=(60,), heads=(80, 1), dtype=BF16),
    Spec(query_lens=(20,), seq_lens=(20,), heads=(600, 1), head_dim=32),  # a group fills a unit
    Spec(**CHUNK, block_size=8, layout="NHD", interleaved=True, packed_query=True, dtype=BF16),
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_matches_the_reference(spec: Spec, backend: Backend):
    assert_as_expected(run_varlen(built(spec), backend), built(spec))


def test_a_scale_may_be_negative(backend: Backend):
    case = replace(build(Spec(**CHUNK)), scale=-0.1)
    assert_as_expected(run_varlen(case, backend), case)


def chunk(case: Case, begin: int, end: int) -> Case:
    """Query rows [begin, end) of a prefill of one sequence, with the cache as it is by then."""
    return replace(
        case,
        query=case.query[begin:end],
        seq_lens=torch.tensor([end], dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, end - begin], dtype=torch.int32),
        max_query_len=end - begin,
        max_seq_len=end,
    )


@pytest.mark.parametrize("dtype", [torch.float32, FP16, BF16], ids=str)
@pytest.mark.parametrize("masks", [{}, {"window_left": 90, "softcap": 4.0, "sinks": True}], ids=str)
def test_chunks_give_the_bits_of_the_whole(masks: dict, dtype: torch.dtype, backend: Backend):
    if backend.name != "cpu":
        pytest.skip("there the split of the keys depends on query_len")
    case = build(Spec(query_lens=(600,), seq_lens=(600,), heads=(6, 2), dtype=dtype, **masks))
    whole = run_varlen(case, backend)
    for bounds in ([0, 256, 512, 600], [0, 17, 333, 600], [0, 100, 255, 400, 583, 600]):
        for begin, end in itertools.pairwise(bounds):
            part = run_varlen(chunk(case, begin, end), backend)
            assert torch.equal(part.out, whole.out[begin:end])
            assert torch.equal(part.lse, whole.lse[begin:end])


DIM = 5


def poke(case: Case, name: str, position: int, value: float) -> Case:
    """One element of one token's row, for all kv heads."""
    cache = getattr(case, name).clone()
    block_size = cache.shape[1]
    block = case.block_tables[0, position // block_size]
    cache[block, position % block_size, :, DIM] = value
    return replace(case, **{name: cache})


@pytest.mark.parametrize("dtype", [torch.float32, FP16, BF16], ids=str)
def test_logits_may_grow_from_tile_to_tile(dtype: torch.dtype, backend: Backend):
    """What was added up before has to shrink: by e^2 and more per hundred keys."""
    case = build(Spec(**CHUNK, dtype=dtype, heads=(4, 2)))
    case.query[..., DIM] = 1.0
    block_size = case.key_cache.shape[1]
    for position in range(700):
        block = case.block_tables[0, position // block_size]
        case.key_cache[block, position % block_size, :, DIM] = position / 50 / case.scale
    assert_as_expected(run_varlen(case, backend), case)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["key_cache", "value_cache"])
@pytest.mark.parametrize("dtype", [torch.float32, BF16], ids=str)
def test_what_is_not_finite_reaches_only_those_who_see_it(
    dtype: torch.dtype, name: str, value: float, backend: Backend
):
    """Token 310 is seen by rows [110, 161), and nobody else may notice."""
    spec = Spec(query_lens=(200,), seq_lens=(400,), window_left=50, heads=(4, 2), dtype=dtype)
    case = build(spec)
    before = run_varlen(case, backend)
    after = run_varlen(poke(case, name, 310, value), backend)
    seeing = slice(110, 161)
    others = [row for row in range(200) if not 110 <= row < 161]
    assert torch.equal(after.out[others], before.out[others])
    assert torch.equal(after.lse[others], before.lse[others])
    if name == "value_cache":
        assert torch.equal(after.lse, before.lse)
        assert after.out[seeing, :, DIM].isnan().all() or (after.out[seeing, :, DIM] == value).all()
        assert torch.equal(after.out[seeing, :, :DIM], before.out[seeing, :, :DIM])
    elif math.isnan(value):
        assert after.out[seeing].isnan().all()
        assert after.lse[seeing].isnan().all()
