"""reshape_and_cache: where a token goes, what is stored there, and that nothing else changes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from pagedattn import reference

from .backends import Backend
from .cases import Spec, poisoned_cache_pair, to_device
from .pairwise import all_pairs

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
QUANTIZED_DTYPES = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]
NUM_BLOCKS = 5

PLAIN_FACTORS = {
    "dtype": DTYPES,
    "head_dim": [32, 80, 120, 256],
    "heads": [(1, 1), (3, 3), (40, 8)],
    "block_size": [8, 16, 128],
    "layout": ["NHD", "HND"],
    "interleaved": [False, True],
    "packed_query": [False, True],  # here: key and value are slices of packed QKV
}
QUANTIZED_FACTORS = {
    **PLAIN_FACTORS,
    "head_dim": [32, 40, 128],
    "cache_dtype": QUANTIZED_DTYPES,
    "scale_kind": ["none", "tensor", "head", "token_head"],
}
SPECS = [
    Spec(**row) for factors in (PLAIN_FACTORS, QUANTIZED_FACTORS) for row in all_pairs(factors)
]


@dataclass
class Write:
    """The arguments of one call."""

    key: Tensor
    value: Tensor
    key_cache: Tensor
    value_cache: Tensor
    slot_mapping: Tensor
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None

    def run(self, backend: Backend) -> tuple[Tensor | None, ...]:
        """(key_cache, value_cache, k_scale, v_scale) afterwards, on the CPU; self is unchanged."""
        fields = {
            name: None if tensor is None else to_device(tensor.clone(), backend.device)
            for name, tensor in vars(self).items()
        }
        for name in ("key", "value", "key_cache", "value_cache"):  # keep strides
            fields[name] = to_device(cloned_with_storage(getattr(self, name)), backend.device)
        k_scale, v_scale = fields.pop("k_scale"), fields.pop("v_scale")
        backend.ops.reshape_and_cache(*fields.values(), k_scale=k_scale, v_scale=v_scale)
        written = (fields["key_cache"], fields["value_cache"], k_scale, v_scale)
        return tuple(None if tensor is None else tensor.cpu() for tensor in written)

    def expected(self) -> tuple[Tensor | None, ...]:
        return reference.reshape_and_cache(**vars(self))


def cloned_with_storage(tensor: Tensor) -> Tensor:
    size = tensor.untyped_storage().nbytes() // tensor.element_size()
    storage = tensor.as_strided((size,), (1,), 0).clone()
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def scale_of_kind(kind: str, num_heads: int, block_size: int) -> Tensor | None:
    """Not powers of two, so that a product by the reciprocal would round differently."""
    if kind == "none":
        return None
    if kind == "tensor":
        return torch.tensor([0.0137])
    if kind == "head":
        return 0.0137 + 0.003 * torch.arange(num_heads)
    return torch.full((NUM_BLOCKS, block_size, num_heads), math.nan)


def write_of(spec: Spec) -> Write:
    """Seven tokens, two of them skipped, to scattered slots of a poisoned cache."""
    rng = torch.Generator().manual_seed(0)
    num_heads, head_dim = spec.heads[1], spec.head_dim
    pitch = 3 * num_heads if spec.packed_query else num_heads
    key, value = (torch.randn(7, pitch, head_dim, generator=rng).to(spec.dtype) for _ in range(2))
    slots = torch.randperm(NUM_BLOCKS * spec.block_size, generator=rng)[:7]
    slots[2], slots[5] = -1, -(2**40)
    key_cache, value_cache = poisoned_cache_pair(spec, NUM_BLOCKS)
    return Write(
        key[:, :num_heads],
        value[:, -num_heads:],
        key_cache,
        value_cache,
        slots,
        k_scale=scale_of_kind(spec.scale_kind, num_heads, spec.block_size),
        v_scale=scale_of_kind(spec.scale_kind, num_heads, spec.block_size),
    )


def assert_same(result: Tensor | None, expected: Tensor | None) -> None:
    """Equal value for value, NaN to NaN; 0 and -0 are the same."""
    if expected is None:
        assert result is None
        return
    assert result.dtype == expected.dtype
    torch.testing.assert_close(result.float(), expected.float(), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_matches_the_reference_exactly(spec: Spec, backend: Backend):
    write = write_of(spec)
    for result, expected in zip(write.run(backend), write.expected(), strict=True):
        assert_same(result, expected)


def test_no_tokens_and_only_skipped_tokens_change_nothing(backend: Backend):
    write = write_of(Spec())
    write.slot_mapping = torch.full((7,), -1)
    assert write.run(backend)[0].isnan().all()
    write.key, write.value = write.key[:0], write.value[:0]
    write.slot_mapping = write.slot_mapping[:0]
    assert write.run(backend)[0].isnan().all()


def quantised_row(
    row: Tensor, cache_dtype: torch.dtype, scale: Tensor | None, backend: Backend
) -> tuple[Tensor, Tensor | None]:
    """The codes of one token's key `[head_dim]` and the scale stored for it."""
    spec = Spec(head_dim=len(row), heads=(1, 1), block_size=8, cache_dtype=cache_dtype)
    key_cache, value_cache = poisoned_cache_pair(spec, 1)
    tokens = row[None, None]
    write = Write(tokens, tokens, key_cache, value_cache, torch.tensor([3]), scale, scale)
    codes, value_codes, k_scale, v_scale = write.run(backend)
    assert_same(value_codes, codes)
    if k_scale is not None:
        assert_same(v_scale, k_scale)
        k_scale = k_scale[0, 3, 0] if k_scale.dim() == 3 else k_scale
    return codes[0, 3, 0], k_scale


@pytest.mark.parametrize("cache_dtype", QUANTIZED_DTYPES, ids=str)
def test_every_code_stores_and_reads_back_as_itself(cache_dtype: torch.dtype, backend: Backend):
    """x = code * scale, exactly representable, gives that code again; int8 never stores -128."""
    codes = torch.arange(256, dtype=torch.uint8).view(cache_dtype)
    values = codes.float() * 0.25
    stored, _ = quantised_row(values, cache_dtype, torch.tensor(0.25), backend)
    if cache_dtype == torch.int8:
        codes = codes.clamp(min=-127)
    finite = codes.float().isfinite()
    assert_same(stored[finite], codes[finite])
    assert torch.equal(stored.float().signbit()[finite], codes.float().signbit()[finite])
    assert stored.float()[values.isnan()].isnan().all()


@pytest.mark.parametrize("cache_dtype", QUANTIZED_DTYPES, ids=str)
def test_halfway_values_round_to_even(cache_dtype: torch.dtype, backend: Backend):
    codes = torch.arange(256, dtype=torch.uint8).view(cache_dtype).float()
    grid = codes[codes.isfinite() & (codes >= 0)].unique()[:61]  # sorted; grid[i] has code i
    halfway = (grid[:-1] + grid[1:]) / 2
    even = torch.arange(60) + torch.arange(60) % 2
    row = torch.cat([halfway, -halfway])
    stored, _ = quantised_row(row, cache_dtype, torch.tensor(1.0), backend)
    assert torch.equal(stored.float(), torch.cat([grid[even], -grid[even]]))


@pytest.mark.parametrize("cache_dtype", QUANTIZED_DTYPES, ids=str)
def test_quotients_are_true_divisions(cache_dtype: torch.dtype, backend: Backend):
    """At halfway points times a scale, a product by the reciprocal rounds to another code."""
    codes = torch.arange(256, dtype=torch.uint8).view(cache_dtype).float()
    grid = codes[codes.isfinite() & (codes >= 0)].unique()[:65]
    scale = torch.tensor(0.0137)
    row = (grid[:-1] + grid[1:]) / 2 * scale
    expected = reference.quantize(row, scale, cache_dtype).float()
    by_reciprocal = reference.quantize(row * (1 / scale), torch.tensor(1.0), cache_dtype).float()
    assert not torch.equal(expected, by_reciprocal), "the row tells the two apart"
    stored, _ = quantised_row(row, cache_dtype, scale, backend)
    assert torch.equal(stored.float(), expected)


@pytest.mark.parametrize("cache_dtype", QUANTIZED_DTYPES, ids=str)
def test_out_of_range_saturates_and_nan_is_as_documented(
    cache_dtype: torch.dtype, backend: Backend
):
    limit = reference.QUANTIZED_MAX[cache_dtype]
    row = torch.zeros(32)
    row[:7] = torch.tensor(
        [limit, limit * 1.04, limit * 100, -limit * 100, math.inf, -math.inf, math.nan]
    )
    stored, _ = quantised_row(row, cache_dtype, torch.tensor([1.0]), backend)
    expected = torch.tensor([limit, limit, limit, -limit, limit, -limit])
    assert torch.equal(stored.float()[:6], expected)
    if cache_dtype == torch.int8:
        assert stored[6] == 0
    else:
        assert stored.float()[6].isnan()
    assert (stored.float()[7:] == 0).all()


@pytest.mark.parametrize("cache_dtype", QUANTIZED_DTYPES, ids=str)
def test_a_scale_per_token_and_head_is_the_absmax_over_the_largest_code(
    cache_dtype: torch.dtype, backend: Backend
):
    limit = reference.QUANTIZED_MAX[cache_dtype]
    rng = torch.Generator().manual_seed(0)
    for size in (1e-30, 1.0, 3e4):
        row = size * torch.randn(64, generator=rng)
        per_token = torch.full((1, 8, 1), math.nan)
        stored, scale = quantised_row(row, cache_dtype, per_token, backend)
        assert scale == row.abs().max() / limit
        assert stored.float().abs().max() == limit


@pytest.mark.parametrize("cache_dtype", QUANTIZED_DTYPES, ids=str)
def test_an_all_zero_row_has_scale_zero_and_codes_zero(cache_dtype: torch.dtype, backend: Backend):
    stored, scale = quantised_row(
        torch.zeros(32), cache_dtype, torch.full((1, 8, 1), math.nan), backend
    )
    assert scale == 0
    assert (stored.float() == 0).all()


@pytest.mark.parametrize(
    ("cache_dtype", "scale_kind", "bound"),
    [
        (torch.float8_e4m3fn, "head", 3e-2),
        (torch.float8_e4m3fn, "token_head", 3e-2),
        (torch.int8, "token_head", 1e-2),
    ],
    ids=str,
)
def test_quantisation_error_on_gaussian_data(
    cache_dtype: torch.dtype, scale_kind: str, bound: float, backend: Backend
):
    """Frobenius-relative, after a write and a gather."""
    rng = torch.Generator().manual_seed(0)
    spec = Spec(head_dim=128, heads=(4, 4), cache_dtype=cache_dtype)
    tokens = torch.randn(64, 4, 128, generator=rng)
    num_blocks = 64 // spec.block_size
    if scale_kind == "head":
        scale = tokens.abs().amax(dim=(0, 2)) / reference.QUANTIZED_MAX[cache_dtype]
    else:
        scale = torch.full((num_blocks, spec.block_size, 4), math.nan)
    caches = poisoned_cache_pair(spec, num_blocks)
    write = Write(tokens, tokens, *caches, torch.arange(64), scale, scale)
    key_cache, _, k_scale, _ = write.run(backend)
    back = reference.read_slots(key_cache, k_scale, torch.arange(64), torch.float32)
    assert (back - tokens).norm() / tokens.norm() <= bound
