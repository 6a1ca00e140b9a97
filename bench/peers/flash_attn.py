"""flash_attn_with_kvcache of the flash-attn package, over a paged cache of its own page size."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ..measure import Contestant
from ..paging import block_tables, fill, slots_of
from ..problem import Problem
from . import Peer, Unsupported, require_memory

PAGE_SIZE = 256  # pages must be multiples of it


class FlashAttn(Peer[Problem]):
    devices = ("cuda",)

    def __init__(self) -> None:
        self.attend = importlib.import_module("flash_attn").flash_attn_with_kvcache

    def contestants(self, problem: Problem) -> Sequence[Contestant]:
        shape, device = problem.shape, problem.query.device
        if shape.dtype not in ("fp16", "bf16"):
            raise Unsupported(f"a cache of {shape.dtype}")
        require_memory(problem, 1)
        tables = block_tables(shape.seq_lens, PAGE_SIZE).to(device)
        slots = slots_of(tables, shape.seq_lens, PAGE_SIZE)
        inner = (PAGE_SIZE, shape.num_kv_heads, shape.head_dim)
        num_pages = int(tables.max()) + 1
        storage = torch.zeros(
            (problem.num_layers, 2, num_pages, *inner), dtype=shape.cache_dtype, device=device
        )
        for layer in storage:
            for cache, rows in zip(layer, (problem.key, problem.value), strict=True):
                fill(cache, slots, rows)
        query = problem.query.unflatten(0, (shape.num_seqs, shape.query_len))

        def run(layer: int) -> Tensor:
            out: Tensor = self.attend(
                query,
                *storage[layer],
                cache_seqlens=problem.seq_lens,
                block_table=tables,
                softmax_scale=problem.softmax_scale,
                causal=True,
            )
            return out.flatten(0, 1)

        return [Contestant(f"flash-attn, pages of {PAGE_SIZE}", run)]
