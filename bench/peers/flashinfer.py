"""FlashInfer's batch wrappers, over the very cache that ours reads."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..measure import Contestant
from ..paging import num_blocks_of
from ..problem import SCALE_OF_CODES, Problem
from . import Peer, Unsupported

WORKSPACE_BYTES = 256 << 20


class FlashInfer(Peer[Problem]):
    devices = ("cuda",)

    def __init__(self) -> None:
        self.library = importlib.import_module("flashinfer")

    def contestants(self, problem: Problem) -> Sequence[Contestant]:
        shape = problem.shape
        if shape.dtype in ("fp32", "int8"):
            raise Unsupported(f"a cache of {shape.dtype}")
        # Zeros: some of its kernels count in it.
        workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=problem.query.device)
        scales: dict[str, Any] = {}
        if shape.quantised:
            scales = {"k_scale": SCALE_OF_CODES, "v_scale": SCALE_OF_CODES}
        if shape.query_len > 1:
            wrapper = self.library.BatchPrefillWithPagedKVCacheWrapper(workspace, shape.layout)
            plan_prefill(wrapper, problem)
            return [contestant("FlashInfer", wrapper, problem, scales)]
        found = []
        for tensor_cores in (False, True):
            wrapper = self.library.BatchDecodeWithPagedKVCacheWrapper(
                workspace.clone(), shape.layout, use_tensor_cores=tensor_cores
            )
            plan_decode(wrapper, problem)
            name = "FlashInfer, tensor cores" if tensor_cores else "FlashInfer"
            found.append(contestant(name, wrapper, problem, scales))
        return found


def contestant(name: str, wrapper: Any, problem: Problem, scales: dict[str, Any]) -> Contestant:
    def run(layer: int) -> Tensor:
        # Without our transposition, a layer is (keys, values) in FlashInfer's HND or NHD.
        out: Tensor = wrapper.run(problem.query, tuple(problem.storage[layer]), **scales)
        return out

    return Contestant(name, run)


def pages(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """int32 (indptr, indices, last_page_len): the block tables in FlashInfer's compressed rows."""
    shape, device = problem.shape, problem.query.device
    counts = num_blocks_of(shape.seq_lens, shape.block_size)
    indptr = torch.tensor([0, *counts]).cumsum(0).int().to(device)
    rows = [row[:count] for row, count in zip(problem.block_tables, counts, strict=True)]
    last = (problem.seq_lens - 1) % shape.block_size + 1
    return indptr, torch.cat(rows), last


def plan_decode(wrapper: Any, problem: Problem) -> None:
    shape = problem.shape
    wrapper.plan(
        *pages(problem),
        shape.num_q_heads,
        shape.num_kv_heads,
        shape.head_dim,
        shape.block_size,
        q_data_type=shape.query_dtype,
        kv_data_type=shape.cache_dtype,
        sm_scale=problem.softmax_scale,
    )


def plan_prefill(wrapper: Any, problem: Problem) -> None:
    shape = problem.shape
    wrapper.plan(
        problem.cu_seqlens_q,
        *pages(problem),
        shape.num_q_heads,
        shape.num_kv_heads,
        shape.head_dim,
        shape.block_size,
        causal=True,
        sm_scale=problem.softmax_scale,
        q_data_type=shape.query_dtype,
        kv_data_type=shape.cache_dtype,
    )
