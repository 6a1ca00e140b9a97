"""copy_blocks and swap_blocks: whole blocks move, bit for bit, and nothing else changes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from pagedattn import reference

from .backends import Backend
from .cases import Spec, poisoned_cache_pair, to_device

DTYPES = [torch.float32, torch.bfloat16, torch.float8_e5m2, torch.int8]
NUM_BLOCKS = 9
CPU = torch.device("cpu")


def random_layers(spec: Spec, num_layers: int, seed: int = 0) -> tuple[list[Tensor], list[Tensor]]:
    """Key caches and value caches filled with random bits, one pair per layer."""
    rng = torch.Generator().manual_seed(seed)
    layers = [poisoned_cache_pair(spec, NUM_BLOCKS) for _ in range(num_layers)]
    for cache in (cache for pair in layers for cache in pair):
        noise = torch.randint(-100, 100, cache.shape, generator=rng)
        cache.copy_(noise.to(cache.dtype))
    return [key for key, _ in layers], [value for _, value in layers]


def assert_all_equal(result: list[Tensor], expected: list[Tensor]) -> None:
    for got, want in zip(result, expected, strict=True):
        assert torch.equal(got.cpu().float(), want.float())


def pairs(*mapping: tuple[int, int]) -> Tensor:
    return torch.tensor(mapping, dtype=torch.int64).reshape(-1, 2)


MAPPINGS = {
    "one": pairs((0, 1)),
    "last": pairs((NUM_BLOCKS - 1, 0)),
    "fan_out": pairs((3, 1), (3, 7), (3, 5)),
    "adjacent": pairs((0, 4), (1, 5), (2, 6)),
    "scattered": pairs((8, 2), (0, 5), (6, 1)),
    "empty": pairs(),
}


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_copy_blocks(layout: str, interleaved: bool, mapping: str, backend: Backend):
    spec = Spec(layout=layout, interleaved=interleaved, head_dim=40, heads=(3, 3))
    key_caches, value_caches = random_layers(spec, num_layers=3)
    expected_keys, expected_values = reference.copy_blocks(
        key_caches, value_caches, MAPPINGS[mapping]
    )
    keys = [to_device(cache, backend.device) for cache in key_caches]
    values = [to_device(cache, backend.device) for cache in value_caches]
    backend.ops.copy_blocks(keys, values, MAPPINGS[mapping].to(backend.device))
    assert_all_equal(keys, expected_keys)
    assert_all_equal(values, expected_values)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("head_dim", [1, 20, 300])
def test_copy_blocks_takes_any_block_shape(
    head_dim: int, block_size: int, dtype: torch.dtype, backend: Backend
):
    spec = Spec(head_dim=head_dim, heads=(1, 1), block_size=block_size, dtype=dtype)
    key_caches, value_caches = random_layers(spec, num_layers=1)
    expected, _ = reference.copy_blocks(key_caches, value_caches, MAPPINGS["scattered"])
    keys = [to_device(cache, backend.device) for cache in key_caches]
    values = [to_device(cache, backend.device) for cache in value_caches]
    backend.ops.copy_blocks(keys, values, MAPPINGS["scattered"].to(backend.device))
    assert_all_equal(keys, expected)


def test_copy_blocks_on_more_layers_than_one_launch_holds(backend: Backend):
    """32 KB of kernel parameters hold about 4000 pointers."""
    storage = torch.arange(5000 * 2 * 8 * 8, dtype=torch.int32).view(5000, 2, 8, 1, 8)
    caches = list(storage.clone().to(backend.device))
    backend.ops.copy_blocks(caches[:2500], caches[2500:], pairs((0, 1)).to(backend.device))
    result = torch.stack([cache.cpu() for cache in caches])
    assert torch.equal(result[:, 0], storage[:, 0])
    assert torch.equal(result[:, 1], storage[:, 0])


def test_copy_blocks_on_layers_of_different_shape(backend: Backend):
    """Models that alternate layer types, and draft models, mix head counts and layouts."""
    specs = [Spec(heads=(2, 2)), Spec(heads=(2, 2), layout="NHD"), Spec(heads=(1, 1), head_dim=32)]
    key_caches, value_caches = [], []
    for spec in specs:
        keys, values = random_layers(spec, num_layers=1)
        key_caches += keys
        value_caches += values
    expected_keys, expected_values = reference.copy_blocks(key_caches, value_caches, pairs((2, 0)))
    keys = [to_device(cache, backend.device) for cache in key_caches]
    values = [to_device(cache, backend.device) for cache in value_caches]
    backend.ops.copy_blocks(keys, values, pairs((2, 0)).to(backend.device))
    assert_all_equal(keys, expected_keys)
    assert_all_equal(values, expected_values)


def test_copy_blocks_without_caches_is_taken(backend: Backend):
    backend.ops.copy_blocks([], [], pairs((0, 1)).to(backend.device))


def devices_of_a_swap(backend: Backend) -> list[tuple[torch.device, torch.device]]:
    both = {backend.device, CPU}
    return [(src, dst) for src in both for dst in both]


@pytest.mark.parametrize("mapping", MAPPINGS)
@pytest.mark.parametrize("src_layout", ["NHD", "HND"])
@pytest.mark.parametrize("dst_layout", ["NHD", "HND"])
def test_swap_blocks(dst_layout: str, src_layout: str, mapping: str, backend: Backend):
    src, _ = random_layers(Spec(layout=src_layout, interleaved=True), num_layers=2)
    dst, _ = random_layers(Spec(layout=dst_layout), num_layers=2, seed=1)
    block_mapping = MAPPINGS[mapping]
    expected = reference.swap_blocks(src, dst, block_mapping)
    for src_device, dst_device in devices_of_a_swap(backend):
        sources = [to_device(cache, src_device) for cache in src]
        targets = [to_device(cache.clone(), dst_device) for cache in dst]
        backend.ops.swap_blocks(sources, targets, block_mapping)
        assert_all_equal(targets, expected)
        assert_all_equal(sources, src)


def test_swap_blocks_there_and_back_restores_a_block(backend: Backend):
    device_caches, _ = random_layers(Spec(), num_layers=2)
    original = [cache.clone() for cache in device_caches]
    on_device = [to_device(cache, backend.device) for cache in device_caches]
    host, _ = random_layers(Spec(), num_layers=2, seed=1)
    backend.ops.swap_blocks(on_device, host, pairs((2, 7), (3, 8)))
    backend.ops.swap_blocks(host, on_device, pairs((7, 5), (8, 6)))
    for cache, before in zip(on_device, original, strict=True):
        assert torch.equal(cache[5:7].cpu(), before[2:4])


def test_swap_blocks_between_pools_of_different_size(backend: Backend):
    (src,), _ = random_layers(Spec(), num_layers=1)
    dst = torch.zeros(20, *src.shape[1:])
    backend.ops.swap_blocks([to_device(src, backend.device)], [dst], pairs((1, 19)))
    assert torch.equal(dst[19], src[1])
    assert (dst[:19] == 0).all()


def test_swap_blocks_without_caches_is_taken(backend: Backend):
    backend.ops.swap_blocks([], [], pairs((0, 1)))


@pytest.mark.parametrize("shape", [(4, 0, 2, 8), (4, 8, 0, 8), (4, 8, 2, 0)])
def test_blocks_without_bytes_are_taken(shape: tuple[int, ...], backend: Backend):
    cache = torch.empty(shape, device=backend.device)
    backend.ops.copy_blocks([cache], [cache], pairs((0, 1)).to(backend.device))
    backend.ops.swap_blocks([cache], [cache.clone()], pairs((0, 1)))
