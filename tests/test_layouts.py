"""Layouts: which element goes where, which functions copy, and what is refused."""

from __future__ import annotations

import pytest
import torch

from pagedattn import layouts

NUM_BLOCKS, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM = 3, 8, 2, 32
SHAPE = (NUM_BLOCKS, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)


@pytest.fixture
def cache() -> torch.Tensor:
    return torch.arange(NUM_BLOCKS * BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM).float().view(SHAPE)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_allocate_cache_has_the_logical_shape_and_the_layouts_strides(layout):
    cache = layouts.allocate_cache(*SHAPE, layout=layout, dtype=torch.bfloat16)
    assert cache.shape == SHAPE
    assert cache.dtype == torch.bfloat16
    stored = cache if layout == "NHD" else cache.transpose(1, 2)
    assert stored.is_contiguous()


@pytest.mark.parametrize("kv_dim", [0, 1])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_unstack_views_keys_and_values_without_a_copy(cache, layout, kv_dim):
    stored = [half if layout == "NHD" else half.transpose(1, 2) for half in (cache, -cache)]
    stacked = torch.stack(stored, dim=kv_dim)
    key_cache, value_cache = layouts.unstack(stacked, kv_dim=kv_dim, layout=layout)
    assert torch.equal(key_cache, cache)
    assert torch.equal(value_cache, -cache)
    assert key_cache.untyped_storage().data_ptr() == stacked.untyped_storage().data_ptr()
    assert value_cache.untyped_storage().data_ptr() == stacked.untyped_storage().data_ptr()
    assert key_cache.stride(-1) == value_cache.stride(-1) == 1


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_dim_major_elements_find_their_place(cache, layout):
    dim_major = layouts.to_dim_major(cache)
    assert dim_major.is_contiguous()
    assert dim_major.shape == (NUM_BLOCKS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE)
    assert dim_major[2, 1, 30, 5] == cache[2, 5, 1, 30]
    back = layouts.from_dim_major(dim_major, layout=layout)
    assert torch.equal(back, cache)
    assert back.stride() == layouts.allocate_cache(*SHAPE, layout=layout).stride()


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
def test_packed_elements_find_their_place(cache, layout, dtype):
    cache = (cache % 127).to(dtype)
    packed = layouts.to_packed(cache)
    x = 16 // cache.element_size()
    assert packed.is_contiguous()
    assert packed.shape == (NUM_BLOCKS, NUM_KV_HEADS, HEAD_DIM // x, BLOCK_SIZE, x)
    assert packed[2, 1, 19 // x, 5, 19 % x] == cache[2, 5, 1, 19]
    back = layouts.from_packed(packed, layout=layout)
    assert torch.equal(back, cache)
    assert back.stride() == layouts.allocate_cache(*SHAPE, layout=layout).stride()


def test_pack_width_can_be_given(cache):
    assert layouts.to_packed(cache, pack=8).shape[-1] == 8
    assert torch.equal(layouts.from_packed(layouts.to_packed(cache, pack=8)), cache)


def test_conversions_own_their_memory(cache):
    # With one block, or pack = head_dim, a permutation may be the identity: still a copy.
    one_token = cache[:, :1]
    for converted in (
        layouts.to_dim_major(one_token),
        layouts.to_packed(cache, pack=HEAD_DIM),
        layouts.from_dim_major(one_token.permute(0, 2, 3, 1)),
    ):
        assert converted.data_ptr() != cache.data_ptr()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: layouts.unstack(torch.empty(2, 3, 8, 2), kv_dim=0, layout="NHD"),
            r"kv_cache must have 5 dimensions, .*got shape \[2, 3, 8, 2\]",
        ),
        (
            lambda: layouts.unstack(torch.empty(3, 2, 8, 2, 32), kv_dim=0, layout="NHD"),
            r"kv_cache must have size 2 .* in dimension kv_dim=0, got shape \[3, 2, 8, 2, 32\]",
        ),
        (
            lambda: layouts.unstack(torch.empty(3, 2, 8, 2, 32), kv_dim=2, layout="NHD"),
            "kv_dim must be 0 or 1, got 2",
        ),
        (
            lambda: layouts.unstack(torch.empty(2, 3, 8, 2, 32).mT, kv_dim=0, layout="NHD"),
            "kv_cache must have a contiguous last dimension, got strides",
        ),
        (
            lambda: layouts.allocate_cache(*SHAPE, layout="DHN"),
            "layout must be 'NHD' or 'HND', got",
        ),
        (
            lambda: layouts.from_dim_major(torch.empty(3, 2, 4, 8, 8)),
            "cache must have 4 dimensions",
        ),
        (lambda: layouts.to_dim_major(torch.empty(3, 8, 2)), "cache must have 4 dimensions"),
        (lambda: layouts.from_packed(torch.empty(SHAPE)), "key_cache must have 5 dimensions"),
        (lambda: layouts.to_packed(torch.empty(3, 8, 2)), "key_cache must have 4 dimensions"),
        (
            lambda: layouts.to_packed(torch.empty(SHAPE), pack=5),
            "pack must divide head_dim = 32, got 5",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()
