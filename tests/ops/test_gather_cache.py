"""gather_cache: a paged sequence in one piece, as stored or dequantised."""

from __future__ import annotations

import pytest
import torch

from pagedattn import reference

from .backends import Backend
from .cases import Spec, built
from .pairwise import all_pairs

FP8_E4M3, FP8_E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
PLAIN_FACTORS = {
    "dtype": [torch.float32, torch.float16, torch.bfloat16],
    "head_dim": [32, 80, 120, 256],
    "heads": [(1, 1), (3, 3), (40, 8)],
    "block_size": [8, 16, 128],
    "layout": ["NHD", "HND"],
    "interleaved": [False, True],
}
QUANTIZED_FACTORS = {
    **PLAIN_FACTORS,
    "head_dim": [32, 40, 128],
    "cache_dtype": [FP8_E4M3, FP8_E5M2, INT8],
    "scale_kind": ["none", "tensor", "head", "token_head"],
}
SPECS = [
    Spec(**row) for factors in (PLAIN_FACTORS, QUANTIZED_FACTORS) for row in all_pairs(factors)
]


def gather(spec: Spec, dtype: torch.dtype | None, backend: Backend) -> None:
    """Runs the op and compares it bit for bit with the reference."""
    case = built(spec)
    lengths = case.seq_lens.tolist()
    cu_seq_lens = torch.tensor([0, *lengths]).cumsum(0).int()
    scales = {"k_scale": case.k_scale, "v_scale": case.v_scale}
    expected = reference.gather_cache(
        case.key_cache, case.value_cache, case.block_tables, cu_seq_lens, **scales, dtype=dtype
    )
    given = case.to(backend.device)
    result = backend.ops.gather_cache(
        given.key_cache,
        given.value_cache,
        given.block_tables,
        cu_seq_lens.to(backend.device),
        sum(lengths),
        k_scale=given.k_scale,
        v_scale=given.v_scale,
        dtype=dtype,
    )
    for got, want in zip(result, expected, strict=True):
        assert got.dtype == want.dtype
        assert got.shape == want.shape
        assert got.is_contiguous()
        assert torch.equal(got.cpu().view(torch.uint8), want.contiguous().view(torch.uint8))


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_none_copies_what_is_stored(spec: Spec, backend: Backend):
    gather(spec, None, backend)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("spec", SPECS[::3], ids=str)
def test_a_dtype_dequantises_or_converts(spec: Spec, dtype: torch.dtype, backend: Backend):
    gather(spec, dtype, backend)


@pytest.mark.parametrize("cache_dtype", [FP8_E4M3, FP8_E5M2, INT8], ids=str)
def test_every_finite_code_dequantises_exactly(cache_dtype: torch.dtype, backend: Backend):
    codes = torch.arange(256, dtype=torch.uint8).view(cache_dtype)
    cache = codes.reshape(1, 8, 1, 32).clone().to(backend.device)
    key, value = backend.ops.gather_cache(
        cache,
        cache.clone(),
        torch.zeros(1, 1, dtype=torch.int32).to(backend.device),
        torch.tensor([0, 8], dtype=torch.int32).to(backend.device),
        8,
        dtype=torch.float32,
    )
    expected = codes.float()
    for gathered in (key.cpu().flatten(), value.cpu().flatten()):
        torch.testing.assert_close(gathered, expected, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(
            gathered.signbit()[~expected.isnan()], expected.signbit()[~expected.isnan()]
        )


def test_nothing_to_gather_gives_empty_tensors(backend: Backend):
    gather(Spec(seq_lens=()), None, backend)
    gather(Spec(seq_lens=(0, 0)), torch.float16, backend)
