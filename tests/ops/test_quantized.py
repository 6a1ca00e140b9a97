"""Attention over 8-bit caches: what a code means, and what quantising costs.

That attention agrees with the reference on dequantised values is in test_decode and test_varlen.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pagedattn import reference

from .backends import Backend
from .cases import Case, Spec, build, poisoned
from .running import run_v1, run_v2, run_varlen

FP8_E4M3, FP8_E5M2, INT8 = torch.float8_e4m3fn, torch.float8_e5m2, torch.int8
QUANTIZED_DTYPES = [FP8_E4M3, FP8_E5M2, INT8]
OPS = {"v1": run_v1, "v2": run_v2, "varlen": run_varlen}


def all_codes(dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int) -> Case:
    """head_dim one-token sequences, all on the token whose heads hold the 256 codes.

    Row i's query is 2**-6 in dimension i of every head: its logit there is the key's element. NaN
    codes are among the values only.
    """
    codes = torch.arange(256, dtype=torch.uint8).view(cache_dtype).reshape(-1, head_dim)
    finite = torch.where(codes.float().isfinite(), codes.float(), 0.0).to(cache_dtype)
    shape = (1, 8, *codes.shape)
    key_cache, value_cache = (poisoned(shape, cache_dtype) for _ in range(2))
    key_cache[0, 0], value_cache[0, 0] = finite, codes
    return Case(
        query=(torch.eye(head_dim) / 64)[:, None, :].repeat(1, len(codes), 1).to(dtype),
        key_cache=key_cache,
        value_cache=value_cache,
        block_tables=torch.zeros(head_dim, 1, dtype=torch.int32),
        seq_lens=torch.ones(head_dim, dtype=torch.int32),
        scale=64.0,
        max_seq_len=1,
        cu_seqlens_q=torch.arange(head_dim + 1, dtype=torch.int32),
    )


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("head_dim", [32, 64])
@pytest.mark.parametrize("cache_dtype", QUANTIZED_DTYPES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_every_code_is_read_exactly(
    dtype: torch.dtype, cache_dtype: torch.dtype, head_dim: int, op: str, backend: Backend
):
    """Of one key the softmax is 1: out is its value, lse its logit. Subnormal codes are not 0."""
    case = all_codes(dtype, cache_dtype, head_dim)
    result = OPS[op](case, backend)
    keys, values = case.key_cache[0, 0].float(), case.value_cache[0, 0].float()
    # Codes differ by 2**-7 at least; in 16 bits, the weight of 1 may be off by its rounding.
    rtol = 0.0 if dtype == torch.float32 else 1e-3
    torch.testing.assert_close(
        result.out.float(), values.expand(result.out.shape), rtol=rtol, atol=0, equal_nan=True
    )
    # Codes differ by 2**-16 at least; a kernel may compute a logit beside a reference of its own.
    torch.testing.assert_close(result.lse, keys.t(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("cache_dtype", "scale_kind", "bound"),
    [(FP8_E4M3, "head", 4e-2), (FP8_E4M3, "token_head", 4e-2), (INT8, "token_head", 1e-2)],
    ids=str,
)
def test_error_against_unquantised_attention_on_gaussian_data(
    cache_dtype: torch.dtype, scale_kind: str, bound: float, op: str, backend: Backend
):
    """Frobenius-relative. Keys and values are each off by 2.6e-2 in e4m3, and both count."""
    plain = build(Spec(head_dim=128, heads=(8, 2), seq_lens=(100, 513, 40)))
    plain.query /= 2  # of unit size
    cu_seqlens_q = torch.arange(4, dtype=torch.int32)
    case = replace(quantised(plain, cache_dtype, scale_kind), cu_seqlens_q=cu_seqlens_q)
    exact = plain.expected[0]
    error = (OPS[op](case, backend).out.double() - exact).norm() / exact.norm()
    assert error <= bound


def quantised(case: Case, cache_dtype: torch.dtype, scale_kind: str) -> Case:
    """The case over an 8-bit cache; the codes and scales of its unused slots come from NaN."""
    changes: dict[str, Tensor] = {}
    for name, scale_name in (("key_cache", "k_scale"), ("value_cache", "v_scale")):
        rows = getattr(case, name)
        if scale_kind == "head":
            scale = rows.abs().nan_to_num(nan=0.0).amax(dim=(0, 1, 3))
            scale /= reference.QUANTIZED_MAX[cache_dtype]
            codes = reference.quantize(rows, scale, cache_dtype)
        else:
            codes, scale = reference.quantize_per_token_head(rows, cache_dtype)
        changes |= {name: codes, scale_name: scale}
    return replace(case, **changes)
