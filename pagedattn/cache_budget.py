"""How many blocks an engine's KV cache gets."""

from __future__ import annotations

import os

import torch
from transformers import PreTrainedModel

from .config import EngineConfig
from .integrations.transformers import probe_kv_shape
from .sizing import KVShape, blocks_for_tokens

_CPU_SHARE = 0.25  # of the free memory
_CPU_LIMIT = 4 << 30  # bytes


def choose_num_blocks(
    config: EngineConfig,
    model: PreTrainedModel,
    shape: KVShape,
    max_model_len: int,
    max_num_batched_tokens: int,
) -> int:
    """Blocks for ``model``; raises ValueError if the memory holds not even one.

    max_model_len, max_num_batched_tokens: those in effect, where the config's may be less.
    """
    if config.num_blocks is not None:
        return config.num_blocks
    if config.kv_cache_bytes is not None:
        source, budget = "kv_cache_bytes", config.kv_cache_bytes
    elif model.device.type == "cuda":
        source = f"gpu_memory_utilization={config.gpu_memory_utilization}"
        budget = _cuda_budget(config.gpu_memory_utilization, model, max_num_batched_tokens)
    else:
        source, budget = "the free memory", min(_CPU_LIMIT, int(_free_memory() * _CPU_SHARE))
    num_blocks = shape.blocks_for_budget(budget, config.block_size)
    if num_blocks < 1:
        raise ValueError(
            f"{source} leaves {budget} bytes for the KV cache; one block takes "
            f"{shape.bytes_per_block(config.block_size)}"
        )
    if config.kv_cache_bytes is None:
        # More than all sequences can fill would lie idle.
        per_sequence = blocks_for_tokens(max_model_len, config.block_size)
        num_blocks = min(num_blocks, config.max_num_seqs * per_sequence)
    return num_blocks


def _free_memory() -> int:
    """Bytes of physical memory that are free."""
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _cuda_budget(utilization: float, model: PreTrainedModel, max_num_batched_tokens: int) -> int:
    """What the share of the device's memory leaves beside weights and activations."""
    device = model.device
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(device)
    used = total - free
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    probe_kv_shape(model, num_tokens=max_num_batched_tokens)
    activations = torch.cuda.max_memory_allocated(device) - before
    torch.cuda.empty_cache()
    return max(0, int(total * utilization) - used - activations)
