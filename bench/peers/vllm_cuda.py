"""vLLM's own build of FlashAttention, in the version that vLLM chooses for the GPU.

That is what vLLM runs by default on all GPUs but Blackwell's.
"""

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
        choice = importlib.import_module("vllm.v1.attention.backends.fa_utils")
        self.choose_version = choice.get_flash_attn_version

    def contestants(self, problem: Problem) -> Sequence[Contestant]:
        shape = problem.shape
        if shape.dtype not in ("fp16", "bf16"):
            raise Unsupported(f"a cache of {shape.dtype}")
        version = self.choose_version(head_size=shape.head_dim)
        if version is None:
            raise Unsupported("no version of it runs here")
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
                fa_version=version,
            )
            return out

        return [Contestant(f"vLLM's FlashAttention {version}", run)]
