"""Sequences in blocks: tables, and where in a cache each token lies."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


def num_blocks_of(seq_lens: Sequence[int], block_size: int) -> list[int]:
    return [math.ceil(length / block_size) for length in seq_lens]


def block_tables(seq_lens: Sequence[int], block_size: int, shuffled: bool = True) -> Tensor:
    """int32 [num_seqs, max_blocks_per_seq] over exactly as many blocks as are needed."""
    counts = num_blocks_of(seq_lens, block_size)
    order = torch.randperm(sum(counts)) if shuffled else torch.arange(sum(counts))
    tables = torch.zeros(len(counts), max(counts), dtype=torch.int32)
    for row, blocks in zip(tables, order.split(counts), strict=True):
        row[: len(blocks)] = blocks
    return tables


def slots_of(tables: Tensor, seq_lens: Sequence[int], block_size: int) -> Tensor:
    """int64 [num_tokens]: block * block_size + offset of every token, sequence after sequence."""
    pieces = []
    for table, length in zip(tables.long(), seq_lens, strict=True):
        position = torch.arange(length, device=tables.device)
        pieces.append(table[position // block_size] * block_size + position % block_size)
    return torch.cat(pieces)


def fill(cache: Tensor, slots: Tensor, rows: Tensor) -> None:
    """Writes rows [num_tokens, num_kv_heads, head_dim] to slots, bit by bit as they are.

    The cache is [num_blocks, block_size, num_kv_heads, head_dim], of any strides.
    """
    block_size = cache.shape[1]
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[cache.itemsize]
    cache.view(bits)[slots // block_size, slots % block_size] = rows.view(bits)
