"""The tensors of an attention call, and what it should return."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .paging import block_tables, fill, slots_of
from .shapes import AttentionShape

SCALE_OF_CODES = 1 / 32  # of an 8-bit cache, whose codes are then about 32


@dataclass
class Problem:
    """An attention call over any of `num_layers` caches, all with the same content.

    Memory as a model has it, so that a cache has left the CPU's caches when its turn comes again:

        storage    [num_layers, 2, num_blocks, num_kv_heads, block_size, head_dim]   HND
        storage    [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]   NHD

    `key` and `value` hold the same content without blocks, sequence after sequence:
    [num_kv_tokens, num_kv_heads, head_dim].
    """

    shape: AttentionShape
    query: Tensor
    key: Tensor
    value: Tensor
    storage: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    cu_seqlens_q: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None
    expected: Tensor
    """float64 [num_tokens, num_q_heads, head_dim]."""

    @property
    def num_layers(self) -> int:
        return len(self.storage)

    @property
    def softmax_scale(self) -> float:
        return self.shape.head_dim**-0.5

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """(key_cache, value_cache) [num_blocks, block_size, num_kv_heads, head_dim]."""
        caches = self.storage[index]
        if self.shape.layout == "HND":
            caches = caches.transpose(-3, -2)
        return caches[0], caches[1]


def num_bytes(shape: AttentionShape, num_layers: int) -> int:
    """Of a problem, with the largest of what is there only while it is built."""
    rows = shape.kv_bytes // 2 * torch.float32.itemsize // shape.cache_dtype.itemsize
    group = shape.num_q_heads // shape.num_kv_heads
    logits = 3 * torch.float64.itemsize * group * shape.query_len * shape.max_seq_len
    return (1 + num_layers) * shape.kv_bytes + max(rows, logits)


def num_layers(shape: AttentionShape, device: str) -> int:
    """On a CPU so many that the others push a layer out of its caches; on a GPU L2 is emptied."""
    return 1 if device == "cuda" else layers_to_leave_caches(shape.kv_bytes)


def layers_to_leave_caches(bytes_per_layer: int) -> int:
    """So many that a layer is in no cache of the CPU when its turn comes again.

    The largest cache need not evict by age: of layers of twice its size, read in turn, a part
    stayed in AMD Zen 4's.
    """
    return max(2, math.ceil(8 * last_level_cache_bytes() / bytes_per_layer))


def last_level_cache_bytes() -> int:
    """Size of the CPU's largest cache."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    units = {"K": 2**10, "M": 2**20, "G": 2**30}
    texts = [path.read_text().strip() for path in sizes]
    return max((int(text[:-1]) * units[text[-1]] for text in texts), default=64 << 20)


def build(
    shape: AttentionShape, num_layers: int, device: str = "cpu", shuffled: bool = True
) -> Problem:
    """The same random numbers for the same shape, whatever the order of its blocks."""
    torch.manual_seed(0)
    query = torch.randn(
        shape.num_tokens, shape.num_q_heads, shape.head_dim, dtype=torch.float32, device=device
    ).to(shape.query_dtype)
    key, value = (random_rows(shape, device) for _ in range(2))
    scale = None
    if shape.quantised:
        scale = torch.full((shape.num_kv_heads,), SCALE_OF_CODES, device=device)

    tables = block_tables(shape.seq_lens, shape.block_size, shuffled).to(device)
    inner = (shape.block_size, shape.num_kv_heads, shape.head_dim)
    if shape.layout == "HND":
        inner = (shape.num_kv_heads, shape.block_size, shape.head_dim)
    storage = torch.empty(
        (num_layers, 2, shape.num_blocks, *inner), dtype=shape.cache_dtype, device=device
    )
    problem = Problem(
        shape=shape,
        query=query,
        key=key,
        value=value,
        storage=storage,
        block_tables=tables,
        seq_lens=torch.tensor(shape.seq_lens, dtype=torch.int32, device=device),
        cu_seqlens_q=torch.arange(
            0, shape.num_tokens + 1, shape.query_len, dtype=torch.int32, device=device
        ),
        k_scale=scale,
        v_scale=scale,
        expected=expected(shape, query, key, value, scale),
    )
    slots = slots_of(tables, shape.seq_lens, shape.block_size)
    for layer in range(num_layers):
        for cache, rows in zip(problem.layer(layer), (key, value), strict=True):
            fill(cache, slots, rows)
    return problem


def random_rows(shape: AttentionShape, device: str) -> Tensor:
    rows = torch.randn(
        shape.num_kv_tokens, shape.num_kv_heads, shape.head_dim, dtype=torch.float32, device=device
    )
    if shape.quantised:
        rows /= SCALE_OF_CODES
    if shape.cache_dtype == torch.int8:
        rows = rows.round_().clamp_(-127, 127)
    return rows.to(shape.cache_dtype)


def expected(
    shape: AttentionShape, query: Tensor, key: Tensor, value: Tensor, scale: Tensor | None
) -> Tensor:
    """Causal attention in float64, one sequence and kv head at a time."""
    group = shape.num_q_heads // shape.num_kv_heads
    out = torch.empty(query.shape, dtype=torch.float64, device=query.device)
    factor = 1.0 if scale is None else SCALE_OF_CODES
    start = 0
    for seq, length in enumerate(shape.seq_lens):
        rows = slice(seq * shape.query_len, (seq + 1) * shape.query_len)
        last = torch.arange(length - shape.query_len, length, device=query.device)
        hidden = torch.arange(length, device=query.device)[None, :] > last[:, None]
        for head in range(shape.num_kv_heads):
            heads = slice(head * group, (head + 1) * group)
            keys = key[start : start + length, head].double() * factor
            values = value[start : start + length, head].double() * factor
            logits = query[rows, heads].double() @ keys.T * shape.head_dim**-0.5
            if shape.query_len > 1:
                logits.masked_fill_(hidden[:, None, :], -math.inf)
            out[rows, heads] = logits.softmax(-1) @ values
        start += length
    return out


# Largest norm(out - expected) / norm(expected) of a row: no rounding gets there, a mistake does.
TOLERANCE = {torch.float32: 1e-4, torch.float16: 5e-3, torch.bfloat16: 3e-2}


def relative_error(out: Tensor, expected: Tensor) -> float:
    """The largest norm(out - expected) / norm(expected) of a row; NaN where out has one."""
    error = (out.double() - expected).norm(dim=-1) / expected.norm(dim=-1)
    return float(error.max())
