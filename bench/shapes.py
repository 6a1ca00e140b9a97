"""The shape of an attention call."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .paging import num_blocks_of

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
    """`query_len` query tokens for each of some sequences.

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

    @property
    def cache_dtype(self) -> torch.dtype:
        return DTYPES[self.dtype]

    @property
    def quantised(self) -> bool:
        return self.cache_dtype.itemsize == 1

    @property
    def query_dtype(self) -> torch.dtype:
        return torch.bfloat16 if self.quantised else self.cache_dtype

    @property
    def num_seqs(self) -> int:
        return len(self.seq_lens)

    @property
    def max_seq_len(self) -> int:
        return max(self.seq_lens)

    @property
    def equal_lengths(self) -> bool:
        return len(set(self.seq_lens)) == 1

    @property
    def num_tokens(self) -> int:
        """Query tokens."""
        return self.num_seqs * self.query_len

    @property
    def num_kv_tokens(self) -> int:
        return sum(self.seq_lens)

    @property
    def num_blocks(self) -> int:
        return sum(num_blocks_of(self.seq_lens, self.block_size))

    @property
    def kv_bytes(self) -> int:
        """Bytes of keys and values, which the call has to read."""
        row = self.num_kv_heads * self.head_dim * self.cache_dtype.itemsize
        return 2 * self.num_kv_tokens * row

    @property
    def flops(self) -> int:
        """Of the two matrix products, over the visible part of causal attention."""
        hidden = self.query_len * (self.query_len - 1) // 2
        visible = sum(self.query_len * length - hidden for length in self.seq_lens)
        return 4 * visible * self.num_q_heads * self.head_dim

    @property
    def heads(self) -> str:
        return f"{self.num_q_heads}/{self.num_kv_heads}"

    @property
    def lengths(self) -> str:
        if self.equal_lengths:
            return f"{self.num_seqs}x{self.max_seq_len}"
        return f"{self.num_seqs}x{min(self.seq_lens)}..{self.max_seq_len}"

    @property
    def title(self) -> str:
        query = [f"q{self.query_len}"] if self.query_len > 1 else []
        return " ".join(
            [
                self.lengths,
                *query,
                self.dtype,
                self.heads,
                f"d{self.head_dim}",
                f"block{self.block_size}",
                self.layout,
            ]
        )
