"""KVCache: storage, and moving blocks about."""

import pytest
import torch

import pagedattn  # noqa: F401  (loads the ops)
from pagedattn.kv_cache import KVCache

QUANTIZED = [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8]
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.int8], ids=str)


def make_cache(layout="HND", num_blocks=6, **options):
    cache = KVCache(2, num_blocks, 8, 3, 32, layout=layout, **options)
    for i, tensor in enumerate(contents(cache)):
        rows = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(i))
        tensor.copy_(64 * rows)
    return cache


def contents(cache):
    """Everything that is stored, in views that write through."""
    scales = [scale for i in range(cache.num_layers) for scale in cache.scales(i).values()]
    return cache.key_caches + cache.value_caches + [s for s in scales if s is not None]


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


@each_dtype
def test_no_cache_shares_memory_with_another(dtype):
    """Of those that do, torch.compile makes copies, or refuses views of several dtypes."""
    tensors = contents(KVCache(2, 6, 8, 3, 32, dtype=dtype))
    assert len({tensor.untyped_storage().data_ptr() for tensor in tensors}) == len(tensors)


@each_dtype
def test_a_compiled_model_writes_and_reads_every_layer(dtype):
    cache, rows = make_cache(dtype=dtype), torch.randn(3, 3, 32)
    slots = torch.tensor([8, 9, 10])
    table, seq_lens = torch.tensor([[1]], dtype=torch.int32), torch.tensor([3], dtype=torch.int32)
    ops = torch.ops.pagedattn

    def attend(query, key_cache, value_cache, scales):
        ops.reshape_and_cache(rows, rows, key_cache, value_cache, slots, **scales)
        return ops.paged_attention(query, key_cache, value_cache, table, seq_lens, 3, 1.0, **scales)

    compiled = torch.compile(attend, fullgraph=True)
    for layer in range(2):
        arguments = (rows[:1], *cache.layer(layer), cache.scales(layer))
        out = compiled(*arguments)
        stored = [tensor.clone() for tensor in contents(cache)]
        assert torch.equal(out, attend(*arguments))
        assert all(map(torch.equal, stored, contents(cache)))


def test_bytes():
    cache = KVCache(2, 6, 8, 3, 32, dtype=torch.bfloat16)
    assert cache.bytes_per_token == 2 * 2 * 3 * 32 * 2
    stored = sum(t.numel() * t.element_size() for t in contents(cache))
    assert cache.num_bytes == stored


@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
def test_bytes_include_the_scales(dtype):
    cache = KVCache(2, 6, 8, 3, 32, dtype=dtype)
    assert cache.bytes_per_token == 2 * 2 * 3 * (32 + 4)
    assert cache.num_bytes == sum(t.numel() * t.element_size() for t in contents(cache))


@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
def test_an_8_bit_cache_has_a_scale_per_token_and_head(dtype, layout):
    cache = KVCache(2, 6, 8, 3, 32, dtype=dtype, layout=layout)
    for layer in range(2):
        scales = cache.scales(layer)
        assert list(scales) == ["k_scale", "v_scale"]
        for scale in scales.values():
            assert scale.shape == (6, 8, 3)
            assert scale.dtype == torch.float32
    assert KVCache(2, 6, 8, 3, 32).scales(1) == {"k_scale": None, "v_scale": None}


@pytest.mark.parametrize("layout", ["HND", "NHD"])
@pytest.mark.parametrize("dtype", QUANTIZED, ids=str)
def test_what_is_written_to_an_8_bit_cache_comes_back(dtype, layout):
    cache = KVCache(2, 6, 8, 3, 32, dtype=dtype, layout=layout)
    for tensor in contents(cache):
        tensor.copy_(torch.full_like(tensor, torch.nan, dtype=torch.float32))
    rows = torch.randn(2, 2, 13, 3, 32, generator=torch.Generator().manual_seed(0))
    slots = torch.cat([torch.arange(4 * 8, 5 * 8), torch.arange(8, 13)])
    for layer, (key, value) in enumerate(rows):
        torch.ops.pagedattn.reshape_and_cache(
            key, value, *cache.layer(layer), slots, **cache.scales(layer)
        )
    tables = torch.tensor([[4, 1]], dtype=torch.int32)
    cu_seq_lens = torch.tensor([0, 13], dtype=torch.int32)
    for layer, written in enumerate(rows):
        gathered = cache.gather(layer, tables, cu_seq_lens, 13, dtype=torch.float32)
        for got, want in zip(gathered, written, strict=True):
            bound = {torch.int8: 1e-2, torch.float8_e4m3fn: 3e-2, torch.float8_e5m2: 6e-2}[dtype]
            assert (got - want).norm() <= bound * want.norm()


@each_dtype
@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_copies_run_in_order(layout, dtype):
    cache = make_cache(layout, dtype=dtype)
    expected = [t.clone() for t in contents(cache)]
    pairs = [(0, 1), (0, 2), (2, 3), (4, 2), (5, 1)]  # several build on one another
    for tensor in expected:
        for src, dst in pairs:
            tensor[dst] = tensor[src]
    cache.copy_blocks(pairs)
    for got, want in zip(contents(cache), expected, strict=True):
        assert torch.equal(got, want)


def test_copying_nothing_is_fine():
    make_cache().copy_blocks([])


@each_dtype
@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_swap_there_and_back(layout, dtype):
    cache = make_cache(layout, dtype=dtype)
    host = KVCache(2, 9, 8, 3, 32, layout=layout, dtype=dtype)
    before = [t.clone() for t in contents(cache)]
    cache.swap_blocks(host, [(1, 7), (2, 8), (5, 0)])
    for tensor in contents(cache):
        tensor[[1, 2, 5]] = 0
    host.swap_blocks(cache, [(0, 5), (7, 1), (8, 2)])
    for got, want in zip(contents(cache), before, strict=True):
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
        ({"dtype": torch.int32}, "dtype torch.int32 is not supported"),
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
