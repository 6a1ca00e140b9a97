"""The attention that vLLM runs on NVIDIA GPUs by default: its own build of FlashAttention."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

import torch
from torch import Tensor

from ..measure import Contestant
from ..problem import Problem
from . import Peer, Unsupported


class VllmCuda(Peer[Problem]):
    devices = ("cuda",)

    def __init__(self) -> None:
        self.attend = importlib.import_module("vllm.vllm_flash_attn").flash_attn_varlen_func

    def contestants(self, problem: Problem) -> Sequence[Contestant]:
        shape = problem.shape
        if shape.dtype not in ("fp16", "bf16"):
            raise Unsupported(f"a cache of {shape.dtype}")
        out = torch.empty_like(problem.query)

        def run(layer: int) -> Tensor:
            key_cache, value_cache = problem.layer(layer)
            self.attend(
                q=problem.query,
                k=key_cache,
                v=value_cache,
                max_seqlen_q=shape.query_len,
                cu_seqlens_q=problem.cu_seqlens_q,
                max_seqlen_k=shape.max_seq_len,
                seqused_k=problem.seq_lens,
                block_table=problem.block_tables,
                softmax_scale=problem.softmax_scale,
                causal=True,
                out=out,
            )
            return out

        return [Contestant("vLLM's FlashAttention", run)]
