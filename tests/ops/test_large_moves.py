"""Moves of many megabytes: on the CPU they take stores that bypass its caches."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from .backends import Backend

SEQ_LENS = (1700, 13, 1600)  # 4 MB with 4 heads of 40, in fp32
NUM_TOKENS, NUM_HEADS, BLOCK_SIZE = sum(SEQ_LENS), 4, 16
BLOCKS_PER_SEQ = 110
NUM_BLOCKS = len(SEQ_LENS) * BLOCKS_PER_SEQ


@pytest.fixture(autouse=True)
def _no_simt(backend: Backend) -> None:
    if backend.name == "simt":
        pytest.skip("takes minutes, and has no code of its own for this")


def new_caches(layout: str, head_dim: int, offset: int, backend: Backend) -> list[Tensor]:
    """A key cache and a value cache that begin `offset` elements into their memory."""
    inner = (BLOCK_SIZE, NUM_HEADS) if layout == "NHD" else (NUM_HEADS, BLOCK_SIZE)
    shape = (NUM_BLOCKS, *inner, head_dim)
    memory = torch.zeros(2, offset + NUM_BLOCKS * BLOCK_SIZE * NUM_HEADS * head_dim)
    caches = [half[offset:].view(shape) for half in memory.to(backend.device)]
    return caches if layout == "NHD" else [cache.transpose(1, 2) for cache in caches]


@pytest.mark.parametrize(("head_dim", "offset"), [(128, 0), (128, 8), (40, 0)])
@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_tokens_return_as_they_were(layout: str, head_dim: int, offset: int, backend: Backend):
    torch.manual_seed(0)
    key, value = torch.randn(2, NUM_TOKENS, NUM_HEADS, head_dim).to(backend.device)
    key_cache, value_cache = new_caches(layout, head_dim, offset, backend)
    tables = torch.randperm(NUM_BLOCKS).int().view(len(SEQ_LENS), BLOCKS_PER_SEQ)
    slots = (tables.long()[:, :, None] * BLOCK_SIZE + torch.arange(BLOCK_SIZE)).flatten(1)
    slots = torch.cat([row[:length] for row, length in zip(slots, SEQ_LENS, strict=True)])
    slots, tables = slots.to(backend.device), tables.to(backend.device)
    cu_seq_lens = torch.tensor([0, *SEQ_LENS]).cumsum(0).int().to(backend.device)

    backend.ops.reshape_and_cache(key, value, key_cache, value_cache, slots)
    blocks, offsets = slots // BLOCK_SIZE, slots % BLOCK_SIZE
    for cache, rows in ((key_cache, key), (value_cache, value)):
        assert torch.equal(cache[blocks, offsets], rows)
        assert cache.count_nonzero() == rows.count_nonzero()  # no other slot was touched

    gathered = backend.ops.gather_cache(key_cache, value_cache, tables, cu_seq_lens, NUM_TOKENS)
    assert torch.equal(gathered[0], key)
    assert torch.equal(gathered[1], value)


@pytest.mark.parametrize(("head_dim", "offset"), [(128, 0), (128, 8), (40, 0)])
def test_blocks_arrive_as_they_were(head_dim: int, offset: int, backend: Backend):
    torch.manual_seed(0)
    caches = new_caches("HND", head_dim, offset, backend)
    for cache in caches:
        cache.normal_()
    before = [cache.clone() for cache in caches]
    source, target = torch.randperm(NUM_BLOCKS).view(2, -1)
    mapping = torch.stack([source, target], 1)

    backend.ops.copy_blocks(caches[:1], caches[1:], mapping.to(backend.device))
    for cache, old in zip(caches, before, strict=True):
        old[target] = old[source]
        assert torch.equal(cache, old)

    others = new_caches("HND", head_dim, offset, backend)
    backend.ops.swap_blocks(caches, others, mapping)
    for cache, other in zip(caches, others, strict=True):
        assert torch.equal(other[target], cache[source])
        assert other[source].count_nonzero() == 0
