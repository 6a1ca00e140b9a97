"""torch's flex_attention over its own paged cache (torch.nn.attention.experimental)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from ..measure import Contestant
from ..paging import block_tables, fill, num_blocks_of, slots_of
from ..problem import Problem
from . import Peer, Unsupported, require_memory

PAGE_SIZE = 128  # its best; 16 took twice to four times as long


class Flex(Peer[Problem]):
    devices = ("cpu", "cuda")

    def __init__(self) -> None:
        from torch.nn.attention.experimental import _paged_attention

        self.paged_attention = _paged_attention.PagedAttention

    def contestants(self, problem: Problem) -> Sequence[Contestant]:
        shape, device = problem.shape, problem.query.device
        if shape.quantised:
            raise Unsupported("an 8-bit cache")
        require_memory(problem, 1)
        tables = block_tables(shape.seq_lens, PAGE_SIZE).to(device)
        slots = slots_of(tables, shape.seq_lens, PAGE_SIZE)
        num_pages = sum(num_blocks_of(shape.seq_lens, PAGE_SIZE))
        # One row of pages for all sequences: [1, num_kv_heads, num_pages * PAGE_SIZE, head_dim].
        storage = torch.zeros(
            (problem.num_layers, 2, shape.num_kv_heads, num_pages * PAGE_SIZE, shape.head_dim),
            dtype=shape.cache_dtype,
            device=device,
        )
        for layer in storage:
            for cache, rows in zip(layer, (problem.key, problem.value), strict=True):
                pages = cache.unflatten(1, (num_pages, PAGE_SIZE)).permute(1, 2, 0, 3)
                fill(pages, slots, rows)
        query = problem.query.unflatten(0, (shape.num_seqs, shape.query_len)).transpose(1, 2)
        mask = self.block_mask(problem, tables, num_pages)
        # Anew for each problem: compiling it once more for another shape can fail, after which
        # torch's caches hold all tensors for good.
        torch.compiler.reset()
        attend = torch.compile(flex_attention, dynamic=True)

        def run(layer: int) -> Tensor:
            key, value = storage[layer][:, None]
            out = attend(
                query,
                key,
                value,
                block_mask=mask,
                scale=problem.softmax_scale,
                enable_gqa=shape.num_q_heads != shape.num_kv_heads,
            )
            return out.transpose(1, 2).flatten(0, 1)

        return [Contestant(f"torch flex, pages of {PAGE_SIZE}", run)]

    def block_mask(self, problem: Problem, tables: Tensor, num_pages: int) -> BlockMask:
        shape, device = problem.shape, tables.device
        paged = self.paged_attention(num_pages, PAGE_SIZE, shape.num_seqs, device=str(device))
        paged.page_table[:, : tables.shape[1]] = tables
        for seq, count in enumerate(num_blocks_of(shape.seq_lens, PAGE_SIZE)):
            logical = torch.arange(count, device=device)
            paged.physical_to_logical[seq, tables[seq, :count].long()] = logical
        first = problem.seq_lens - shape.query_len

        def causal(seq: Tensor, head: Tensor, row: Tensor, position: Tensor) -> Tensor:
            return position <= first[seq] + row

        mask = create_block_mask(
            causal,
            shape.num_seqs,
            None,
            shape.query_len,
            tables.shape[1] * PAGE_SIZE,
            device=device,
            BLOCK_SIZE=(128, PAGE_SIZE),
        )
        converted: BlockMask = paged.convert_logical_block_mask(mask, kv_len=problem.seq_lens)
        return converted
