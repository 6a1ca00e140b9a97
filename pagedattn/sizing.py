"""How much memory a KV cache takes, and how much of it holds tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from transformers import PretrainedConfig

# The fp32 scale that each token and head of an 8-bit cache has, for its key and for its value.
SCALE_BYTES = 4


def is_quantized(dtype: torch.dtype) -> bool:
    """Whether a cache of this dtype holds 8-bit codes, which need scales."""
    return dtype.itemsize == 1


@dataclass(frozen=True)
class KVShape:
    """What decides the size of a token's keys and values."""

    num_layers: int
    num_kv_heads: int
    head_dim: int
    dtype: torch.dtype

    @classmethod
    def from_config(cls, config: PretrainedConfig, dtype: torch.dtype | None = None) -> KVShape:
        """The shape of a model with a transformers configuration; dtype None: the model's own."""
        config = config.get_text_config(decoder=True)
        num_heads = config.num_attention_heads
        return cls(
            num_layers=config.num_hidden_layers,
            num_kv_heads=getattr(config, "num_key_value_heads", None) or num_heads,
            head_dim=getattr(config, "head_dim", None) or config.hidden_size // num_heads,
            dtype=dtype or getattr(config, "dtype", None) or torch.float32,
        )

    @property
    def bytes_per_token(self) -> int:
        """Keys, values and their scales of one token in all layers."""
        row = self.head_dim * self.dtype.itemsize + SCALE_BYTES * is_quantized(self.dtype)
        return 2 * self.num_layers * self.num_kv_heads * row

    def bytes_per_block(self, block_size: int = 16) -> int:
        return self.bytes_per_token * block_size

    def bytes_per_sequence(self, num_tokens: int, block_size: int = 16) -> int:
        """Of the blocks that a sequence of ``num_tokens`` holds when it shares none."""
        return blocks_for_tokens(num_tokens, block_size) * self.bytes_per_block(block_size)

    def blocks_for_budget(self, num_bytes: int, block_size: int = 16) -> int:
        """Blocks that fit into ``num_bytes``."""
        return num_bytes // self.bytes_per_block(block_size)


def blocks_for_tokens(num_tokens: int, block_size: int = 16) -> int:
    """Blocks that hold ``num_tokens`` tokens of one sequence."""
    return -(-num_tokens // block_size)


def utilization(seq_lens: Iterable[int], block_size: int = 16) -> float:
    """Part of the allocated slots that hold a token, for sequences that share no block."""
    lengths = list(seq_lens)
    slots = sum(blocks_for_tokens(length, block_size) * block_size for length in lengths)
    return sum(lengths) / slots if slots else 1.0


def utilization_bound(seq_len: int, block_size: int = 16) -> float:
    """Lower bound ``1 - B / (s + B)`` of a sequence's utilisation: under B slots are empty."""
    return 1.0 - block_size / (seq_len + block_size)


def contiguous_utilization(seq_lens: Iterable[int], max_model_len: int) -> float:
    """The same if each sequence reserved a contiguous buffer of ``max_model_len`` slots."""
    lengths = list(seq_lens)
    return sum(lengths) / (len(lengths) * max_model_len) if lengths else 1.0
