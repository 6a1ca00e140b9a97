"""KVCache: storage, and moving blocks about."""

import pytest
import torch

import pagedattn  # noqa: F401  (loads the ops)
from pagedattn.kv_cache import KVCache


def make_cache(layout="HND", num_blocks=6, **options):
    cache = KVCache(2, num_blocks, 8, 3, 32, layout=layout, **options)
    for i, tensor in enumerate(cache.key_caches + cache.value_caches):
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(i)))
    return cache


@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_logical_shape_is_the_same_in_both_layouts(layout):
    cache = make_cache(layout)
    for tensor in cache.layer(1):
        assert tensor.shape == (6, 8, 3, 32)
        assert tensor.stride(-1) == 1


def test_hnd_is_the_default_and_keeps_a_heads_tokens_together():
    key, _ = KVCache(1, 6, 8, 3, 32).layer(0)
    assert key.stride(1) == 32
    assert key.stride(2) == 8 * 32
    key, _ = KVCache(1, 6, 8, 3, 32, layout="NHD").layer(0)
    assert key.stride(1) == 3 * 32
    assert key.stride(2) == 32


def test_bytes():
    cache = KVCache(2, 6, 8, 3, 32, dtype=torch.bfloat16)
    assert cache.bytes_per_token == 2 * 2 * 3 * 32 * 2
    stored = sum(t.numel() * t.element_size() for t in cache.key_caches + cache.value_caches)
    assert cache.num_bytes == stored


@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_copies_run_in_order(layout):
    cache = make_cache(layout)
    expected = [t.clone() for t in cache.key_caches + cache.value_caches]
    pairs = [(0, 1), (0, 2), (2, 3), (4, 2), (5, 1)]  # several build on one another
    for tensor in expected:
        for src, dst in pairs:
            tensor[dst] = tensor[src]
    cache.copy_blocks(pairs)
    for got, want in zip(cache.key_caches + cache.value_caches, expected, strict=True):
        assert torch.equal(got, want)


def test_copying_nothing_is_fine():
    make_cache().copy_blocks([])


@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_swap_there_and_back(layout):
    cache = make_cache(layout)
    host = KVCache(2, 9, 8, 3, 32, layout=layout)
    before = [t.clone() for t in cache.key_caches + cache.value_caches]
    cache.swap_blocks(host, [(1, 7), (2, 8), (5, 0)])
    for tensor in cache.key_caches + cache.value_caches:
        tensor[[1, 2, 5]] = torch.nan
    host.swap_blocks(cache, [(0, 5), (7, 1), (8, 2)])
    for got, want in zip(cache.key_caches + cache.value_caches, before, strict=True):
        assert torch.equal(got, want)


def test_swap_refuses_blocks_of_another_shape():
    with pytest.raises(ValueError, match="target holds blocks of"):
        make_cache().swap_blocks(KVCache(2, 6, 16, 3, 32), [(0, 0)])


@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_gather_reads_sequences_through_their_tables(layout):
    cache = make_cache(layout)
    tables = torch.tensor([[4, 1], [3, -9]], dtype=torch.int32)
    cu_seq_lens = torch.tensor([0, 11, 16], dtype=torch.int32)
    key, value = cache.gather(1, tables, cu_seq_lens, 16)
    for got, store in zip((key, value), cache.layer(1), strict=True):
        assert torch.equal(got, torch.cat([store[4], store[1][:3], store[3][:5]]))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_blocks": 0}, "num_blocks must be at least 1, got 0"),
        ({"num_layers": -1}, "num_layers"),
        ({"dtype": torch.int8}, "dtype torch.int8 is not supported"),
        ({"layout": "NHWC"}, "layout must be"),
    ],
)
def test_wrong_arguments(change, message):
    arguments = {
        "num_layers": 2,
        "num_blocks": 6,
        "block_size": 8,
        "num_kv_heads": 3,
        "head_dim": 32,
    }
    with pytest.raises(ValueError, match=message):
        KVCache(**{**arguments, **change})
