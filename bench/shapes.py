"""What is measured: the shapes of attention calls, and presets of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int8": torch.int8,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}


@dataclass(frozen=True)
class AttentionShape:
    """One attention call: `query_len` query tokens for each of some sequences.

    `dtype` is that of the cache; queries of an 8-bit cache are bf16.
    """

    seq_lens: tuple[int, ...]
    query_len: int = 1
    dtype: str = "bf16"
    num_q_heads: int = 32
    num_kv_heads: int = 8
    head_dim: int = 128
    block_size: int = 16
    layout: str = "HND"
    study: str = ""
    """What the shape is part of; variations that the title does not show, such as raggedness."""

    @property
    def cache_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def query_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.quantised else self.cache_dtype

    @property
    def quantised(self) -> bool:
        return self.cache_dtype.itemsize == 1

    @property
    def num_seqs(self) -> int:
        return len(self.seq_lens)

    @property
    def max_seq_len(self) -> int:
        return max(self.seq_lens)

    @property
    def num_kv_tokens(self) -> int:
        return sum(self.seq_lens)

    @property
    def equal_lengths(self) -> bool:
        return len(set(self.seq_lens)) == 1

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        return 2 * self.num_kv_heads * self.head_dim * self.cache_dtype.itemsize

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values that the call has to read."""
        return self.num_kv_tokens * self.token_bytes

    @property
    def num_blocks(self) -> int:
        return sum(math.ceil(length / self.block_size) for length in self.seq_lens)

    @property
    def flops(self) -> int:
        """Of the two matrix products, over the visible part of causal attention."""
        visible = sum(
            self.query_len * length - self.query_len * (self.query_len - 1) // 2
            for length in self.seq_lens
        )
        return 4 * visible * self.num_q_heads * self.head_dim

    @property
    def lengths(self) -> str:
        if self.equal_lengths:
            return f"{self.num_seqs}x{self.seq_lens[0]}"
        return f"{self.num_seqs}x{min(self.seq_lens)}..{self.max_seq_len}"

    @property
    def title(self) -> str:
        parts = [self.lengths, self.dtype, f"{self.num_q_heads}/{self.num_kv_heads}"]
        parts += [f"d{self.head_dim}", f"block{self.block_size}", self.layout]
        if self.query_len > 1:
            parts.insert(1, f"q{self.query_len}")
        return " ".join(parts + self.study.split())


def equal(batch: int, length: int) -> tuple[int, ...]:
    return (length,) * batch


def quick_decode() -> Iterator[AttentionShape]:
    """The shapes of the project's own bars, then a few heads and layouts."""
    for batch, length in ((8, 1024), (32, 2048), (16, 8192), (1, 4096)):
        for dtype in ("fp32", "bf16", "fp16", "int8", "e4m3"):
            yield AttentionShape(equal(batch, length), dtype=dtype)
    base = AttentionShape(equal(32, 2048))
    for dtype in ("fp32", "bf16"):
        yield replace(base, dtype=dtype, num_q_heads=32, num_kv_heads=32, seq_lens=equal(8, 2048))
        yield replace(base, dtype=dtype, num_q_heads=64, num_kv_heads=8)
        yield replace(base, dtype=dtype, num_q_heads=9, num_kv_heads=3, head_dim=64)
        yield replace(base, dtype=dtype, layout="NHD")


def quick_prefill() -> Iterator[AttentionShape]:
    for dtype in ("fp32", "bf16", "fp16"):
        yield AttentionShape((2048,), query_len=2048, dtype=dtype)
        yield AttentionShape((2048,), query_len=512, dtype=dtype)
        yield AttentionShape((8192 + 512,), query_len=512, dtype=dtype)


DECODE = {"quick": quick_decode, "paper": quick_decode}
PREFILL = {"quick": quick_prefill, "paper": quick_prefill}
