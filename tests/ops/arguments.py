"""One valid set of arguments per op, by the names of its schema, on the CPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .cases import Spec, build, to_device

DECODE_OPS = ("paged_attention_v1", "paged_attention_v2", "paged_attention")
ATTENTION_OPS = (*DECODE_OPS, "paged_attention_varlen")
CACHE_OPS = (*ATTENTION_OPS, "reshape_and_cache", "gather_cache")
ALL_OPS = (*CACHE_OPS, "merge_attention_states", "copy_blocks", "swap_blocks")

NUM_SEQS, NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM, BLOCK_SIZE = 3, 4, 2, 32, 8


def valid_arguments(op: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """What `getattr(torch.ops.pagedattn, op)(**arguments)` takes: 3 sequences, 4/2 heads of 32."""
    if op in ATTENTION_OPS:
        return _attention_arguments(op, dtype)
    return globals()[f"_{op}_arguments"](dtype)


def _attention_arguments(op: str, dtype: torch.dtype) -> dict[str, Any]:
    varlen = op == "paged_attention_varlen"
    spec = Spec(
        dtype=dtype,
        head_dim=HEAD_DIM,
        heads=(NUM_Q_HEADS, NUM_KV_HEADS),
        block_size=BLOCK_SIZE,
        seq_lens=(5, 100, 17),
        query_lens=(2, 1, 4) if varlen else None,
        tree=varlen,
        window_left=50,
        softcap=4.0,
        alibi=True,
        sinks=True,
    )
    case = build(spec)
    arguments: dict[str, Any] = {
        "query": case.query,
        "key_cache": case.key_cache,
        "value_cache": case.value_cache,
        "block_tables": case.block_tables,
        "seq_lens": case.seq_lens,
        "max_seq_len": case.max_seq_len,
        "scale": case.scale,
        **case.masks,
    }
    if op != "paged_attention":
        arguments["out"] = torch.zeros_like(case.query, memory_format=torch.contiguous_format)
        arguments["lse"] = torch.zeros(case.query.shape[:2])
    if op == "paged_attention_v2":
        arguments["partition_size"] = 64
        arguments["partial_out"] = torch.zeros(NUM_SEQS, NUM_Q_HEADS, 2, HEAD_DIM)
        arguments["partial_lse"] = torch.zeros(NUM_SEQS, NUM_Q_HEADS, 2)
    if varlen:
        arguments["cu_seqlens_q"] = case.cu_seqlens_q
        arguments["max_query_len"] = case.max_query_len
        arguments["tree_mask"] = case.varlen_masks["tree_mask"]
    return arguments


def _caches(dtype: torch.dtype, num_blocks: int = 4) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    shape = (num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    return [torch.randn(shape, generator=rng).to(dtype) for _ in range(2)]


def _reshape_and_cache_arguments(dtype: torch.dtype) -> dict[str, Any]:
    key, value = (torch.randn(NUM_SEQS, NUM_KV_HEADS, HEAD_DIM).to(dtype) for _ in range(2))
    key_cache, value_cache = _caches(dtype)
    slot_mapping = torch.tensor([9, -1, 30])
    return {
        "key": key,
        "value": value,
        "key_cache": key_cache,
        "value_cache": value_cache,
        "slot_mapping": slot_mapping,
    }


def _gather_cache_arguments(dtype: torch.dtype) -> dict[str, Any]:
    key_cache, value_cache = _caches(dtype)
    return {
        "key_cache": key_cache,
        "value_cache": value_cache,
        "block_tables": torch.tensor([[3, -1], [2, 0], [-1, -1]], dtype=torch.int32),
        "cu_seq_lens": torch.tensor([0, 7, 17, 17], dtype=torch.int32),
        "num_tokens": 17,
    }


def _merge_attention_states_arguments(dtype: torch.dtype) -> dict[str, Any]:
    shape = (NUM_SEQS, NUM_Q_HEADS, HEAD_DIM)
    return {
        "out": torch.zeros(shape, dtype=dtype),
        "out_lse": torch.zeros(shape[:2]),
        "prefix_out": torch.randn(shape).to(dtype),
        "prefix_lse": torch.randn(shape[:2]),
        "suffix_out": torch.randn(shape).to(dtype),
        "suffix_lse": torch.randn(shape[:2]),
    }


def _copy_blocks_arguments(dtype: torch.dtype) -> dict[str, Any]:
    return {
        "key_caches": _caches(dtype),
        "value_caches": _caches(dtype),
        "block_mapping": torch.tensor([[0, 1], [3, 2]]),
    }


def _swap_blocks_arguments(dtype: torch.dtype) -> dict[str, Any]:
    return {
        "src": _caches(dtype),
        "dst": _caches(dtype, num_blocks=6),
        "block_mapping": torch.tensor([[0, 5], [3, 2]]),
    }


def to_backend(op: str, arguments: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """Moves the tensors to `device`; the mapping of swap_blocks stays on the CPU.

    What was one tensor stays one.
    """
    moved: dict[int, Tensor] = {}

    def move_tensor(tensor: Tensor) -> Tensor:
        return moved.setdefault(id(tensor), to_device(tensor, device))

    def move(name: str, value: Any) -> Any:
        if isinstance(value, list):
            return [move_tensor(item) for item in value]
        if isinstance(value, Tensor) and (op, name) != ("swap_blocks", "block_mapping"):
            return move_tensor(value)
        return value

    return {name: move(name, value) for name, value in arguments.items()}
