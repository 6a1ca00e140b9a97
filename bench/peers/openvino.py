"""OpenVINO's PagedAttention on the CPU, in a model of that one op.

Unlike the others it writes the new tokens' keys and values to the cache as well.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..measure import Contestant
from ..paging import block_tables, fill, num_blocks_of, slots_of
from ..problem import Problem
from ..shapes import AttentionShape
from . import Peer, Unsupported, require_memory

BLOCK_SIZE = 32  # the only one of the CPU plugin
PRECISIONS = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}


class OpenVino(Peer[Problem]):
    devices = ("cpu",)

    def __init__(self) -> None:
        self.ov = importlib.import_module("openvino")
        try:
            self.op = importlib.import_module("openvino.op")._PagedAttentionExtension
        except AttributeError as error:
            raise ImportError("this openvino does not show its PagedAttention") from error

    def contestants(self, problem: Problem) -> Sequence[Contestant]:
        shape = problem.shape
        if shape.quantised:
            raise Unsupported("8-bit caches have a layout of their own")
        require_memory(problem, 1)
        tables = block_tables(shape.seq_lens, BLOCK_SIZE)
        slots = slots_of(tables, shape.seq_lens, BLOCK_SIZE)
        counts = num_blocks_of(shape.seq_lens, BLOCK_SIZE)
        storage = torch.zeros(
            (
                problem.num_layers,
                2,
                sum(counts),
                shape.num_kv_heads,
                BLOCK_SIZE,
                shape.head_dim,
            ),
            dtype=shape.cache_dtype,
        )
        for layer in storage:
            for cache, rows in zip(
                layer.transpose(-3, -2), (problem.key, problem.value), strict=True
            ):
                fill(cache, slots, rows)
        used = [table[:count] for table, count in zip(tables, counts, strict=True)]
        inputs = {
            "query": problem.query.float().flatten(1),
            "key": new_rows(problem.key, shape),
            "value": new_rows(problem.value, shape),
            "past_lens": problem.seq_lens - shape.query_len,
            "subsequence_begins": problem.cu_seqlens_q,
            "block_indices": torch.cat(used),
            "block_indices_begins": torch.tensor([0, *counts]).cumsum(0).int(),
            "max_context_len": torch.tensor(shape.max_seq_len, dtype=torch.int32),
        }
        shared = {name: self.tensor(tensor) for name, tensor in inputs.items()}
        compiled = self.compile(shape, problem.softmax_scale)
        requests = []
        for key_cache, value_cache in storage:
            request = compiled.create_infer_request()
            for name, tensor in shared.items():
                request.set_tensor(name, tensor)
            request.set_tensor("key_cache", self.tensor(key_cache))
            request.set_tensor("value_cache", self.tensor(value_cache))
            requests.append(request)

        run = Run(requests, problem.query.shape, kept=(inputs, storage))
        return [Contestant(f"OpenVINO, blocks of {BLOCK_SIZE}", run)]

    def tensor(self, tensor: Tensor) -> Any:
        """The same memory."""
        if tensor.dtype == torch.bfloat16:
            bits = tensor.view(torch.int16).numpy().view(np.uint16)
            return self.ov.Tensor(bits, self.ov.Shape(list(tensor.shape)), self.ov.Type.bf16)
        return self.ov.Tensor(tensor.numpy(), shared_memory=True)

    def compile(self, shape: AttentionShape, softmax_scale: float) -> Any:
        ops, types = importlib.import_module("openvino.opset13"), self.ov.Type
        precision = getattr(types, PRECISIONS[shape.dtype])

        def parameter(name: str, dims: Sequence[int], dtype: Any) -> Any:
            node = ops.parameter(dims, dtype)
            node.get_output_tensor(0).set_names({name})
            return node

        def unused(rank: int, dtype: str) -> Any:
            return ops.constant(np.zeros((0,) * rank), getattr(types, dtype))

        kv_width = shape.num_kv_heads * shape.head_dim
        cache_dims = [-1, shape.num_kv_heads, BLOCK_SIZE, shape.head_dim]
        given = [
            parameter("query", [-1, shape.num_q_heads * shape.head_dim], types.f32),
            parameter("key", [-1, kv_width], types.f32),
            parameter("value", [-1, kv_width], types.f32),
            parameter("key_cache", cache_dims, precision),
            parameter("value_cache", cache_dims, precision),
            parameter("past_lens", [-1], types.i32),
            parameter("subsequence_begins", [-1], types.i32),
            parameter("block_indices", [-1], types.i32),
            parameter("block_indices_begins", [-1], types.i32),
        ]
        max_context_len = parameter("max_context_len", [], types.i32)
        settings = [
            ops.constant(softmax_scale, types.f32),
            ops.constant(0, types.i32),  # no window
            unused(1, "f32"),  # ALiBi
            max_context_len,
            unused(1, "i32"),  # aggregation of scores
            unused(1, "i32"),  # rotation: blocks, deltas, table
            unused(2, "i32"),
            unused(2, "f32"),
            unused(1, "f32"),  # sparse attention: threshold, block size, stride
            ops.constant(64, types.i32),
            ops.constant(8, types.i32),
            unused(4, "f32"),  # sinks
            ops.constant(0, types.i32),  # eviction: start, sizes, sets of blocks, their begins
            unused(1, "i32"),
            unused(1, "i32"),
            unused(1, "i32"),
            unused(1, "i32"),  # token types
            unused(1, "u8"),  # bias between queries, its begins
            unused(1, "i32"),
        ]
        attention = self.op([node.output(0) for node in (*given, *settings)])
        runtime = attention.get_rt_info()
        for kind in "kv":
            runtime[f"num_{kind}_heads"] = shape.num_kv_heads
            runtime[f"{kind}_head_size"] = shape.head_dim
        model = self.ov.Model([attention.output(0)], [*given, max_context_len], "attention")
        config = {
            "INFERENCE_PRECISION_HINT": precision,
            "KV_CACHE_PRECISION": precision,
            "INFERENCE_NUM_THREADS": torch.get_num_threads(),
            "PERFORMANCE_HINT": "LATENCY",
        }
        return self.ov.Core().compile_model(model, "CPU", config)


@dataclass
class Run:
    """Requests, one a layer, over memory that they do not keep alive themselves."""

    requests: list[Any]
    out_shape: torch.Size
    kept: Any

    def __call__(self, layer: int) -> Tensor:
        self.requests[layer].infer()
        out = torch.from_numpy(self.requests[layer].get_output_tensor(0).data)
        return out.view(self.out_shape)


def new_rows(rows: Tensor, shape: AttentionShape) -> Tensor:
    """float32 [num_tokens, num_kv_heads * head_dim] of the tokens that are queries too."""
    last = [sequence[-shape.query_len :] for sequence in rows.split(shape.seq_lens)]
    return torch.cat(last).float().flatten(1)
