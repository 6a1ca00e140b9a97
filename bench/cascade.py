"""`cascade`: decode over a shared prefix in two passes, beside one pass over everything.

The limit is a read of the prefix once and of what each sequence has of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pagedattn import cascade, reference
from pagedattn.kv_cache import KVCache

from . import cuda_timing, raw_read
from .measure import CHOICE, Contestant, check, measure
from .options import Options
from .problem import TOLERANCE, layers_to_leave_caches
from .report import Group, Place, progress_bar
from .shapes import DTYPES
from .timers import timer_for

BLOCK_SIZE = 16
NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128


@dataclass(frozen=True)
class SharedPrefix:
    """`num_seqs` sequences that share `num_common` tokens and have `num_own` more each."""

    num_seqs: int
    num_common: int
    num_own: int = 128
    dtype: str = "bf16"

    @property
    def title(self) -> str:
        return f"{self.num_seqs} sequences {self.num_common} common {self.num_own} own {self.dtype}"


def shapes(preset: str) -> Iterator[SharedPrefix]:
    if preset == "smoke":
        yield SharedPrefix(2, 32, 5)
        return
    for dtype in ("bf16", "fp32", "int8", "e4m3"):
        yield SharedPrefix(16, 2048, dtype=dtype)
    sizes = (512, 4096) if preset == "quick" else (256, 512, 1024, 2048, 4096, 8192)
    for num_seqs in (2, 8, 64):
        for num_common in sizes:
            yield SharedPrefix(num_seqs, num_common)


class Batch:
    """A decode batch over several layers of the same random content."""

    def __init__(self, shape: SharedPrefix, device: str) -> None:
        torch.manual_seed(0)
        dtype = DTYPES[shape.dtype]
        query_dtype = torch.bfloat16 if dtype.itemsize == 1 else dtype
        self.num_common_blocks = shape.num_common // BLOCK_SIZE
        own_blocks = -(-shape.num_own // BLOCK_SIZE)
        num_blocks = self.num_common_blocks + shape.num_seqs * own_blocks
        num_tokens = num_blocks * BLOCK_SIZE
        self.kv_bytes = 2 * num_tokens * NUM_KV_HEADS * HEAD_DIM * dtype.itemsize
        self.num_layers = 1
        if device == "cpu":
            self.num_layers = layers_to_leave_caches(self.kv_bytes)
        self.cache = KVCache(
            self.num_layers,
            num_blocks,
            BLOCK_SIZE,
            NUM_KV_HEADS,
            HEAD_DIM,
            dtype=dtype,
            device=device,
        )
        rows = torch.randn(2, num_tokens, NUM_KV_HEADS, HEAD_DIM).to(device, query_dtype)
        slots = torch.randperm(num_tokens).to(device)
        for layer in range(self.num_layers):
            torch.ops.pagedattn.reshape_and_cache(
                *rows, *self.cache.layer(layer), slots, **self.cache.scales(layer)
            )
        order = torch.randperm(num_blocks, dtype=torch.int32).to(device)
        common, own = order.split([self.num_common_blocks, shape.num_seqs * own_blocks])
        self.block_tables = torch.cat(
            [common.expand(shape.num_seqs, -1), own.view(shape.num_seqs, own_blocks)], dim=1
        )
        self.max_seq_len = shape.num_common + shape.num_own
        self.seq_lens = torch.full(
            (shape.num_seqs,), self.max_seq_len, dtype=torch.int32, device=device
        )
        self.query = torch.randn(shape.num_seqs, NUM_Q_HEADS, HEAD_DIM).to(device, query_dtype)

    def arguments(self, layer: int) -> dict[str, Any]:
        key_cache, value_cache = self.cache.layer(layer)
        return {
            "query": self.query,
            "key_cache": key_cache,
            "value_cache": value_cache,
            "block_tables": self.block_tables,
            "seq_lens": self.seq_lens,
            "max_seq_len": self.max_seq_len,
            "scale": HEAD_DIM**-0.5,
            "softcap": 0.0,
            "alibi_slopes": None,
            "sinks": None,
            **self.cache.scales(layer),
        }

    def in_one_pass(self, layer: int) -> Tensor:
        out: Tensor = torch.ops.pagedattn.paged_attention(**self.arguments(layer))
        return out

    def in_two_passes(self, layer: int) -> Tensor:
        return cascade.attend_in_two_passes(
            **self.arguments(layer), num_common_blocks=self.num_common_blocks
        )

    def expected(self) -> Tensor:
        """float64."""
        arguments = self.arguments(0)
        del arguments["max_seq_len"]
        arguments["query"] = self.query.double()
        out, _ = reference.paged_attention(**arguments)
        return out


def groups(options: Options) -> Iterator[Group]:
    for shape in shapes(options.preset):
        if options.wants(shape.title):
            yield bench_shape(shape, options)


def bench_shape(shape: SharedPrefix, options: Options) -> Group:
    """Raises WrongResult if a way to compute it is wrong."""
    batch = Batch(shape, options.device)
    chosen = cascade.should_cascade(shape.num_seqs, shape.num_common)
    two = Contestant("two passes", batch.in_two_passes, note=CHOICE if chosen else "")
    one = Contestant("one pass", batch.in_one_pass, note="" if chosen else CHOICE)
    expected = batch.expected()
    for contestant in (two, one):
        check(contestant, expected, TOLERANCE[batch.query.dtype])
    timings = measure(
        [limit(batch), two, one],
        batch.num_layers,
        options.seconds,
        timer_for(options.device),
        progress_bar(shape.title),
    )
    place = Place("cascade", f"{shape.num_seqs} sequences, {shape.dtype}", shape.num_common)
    return Group(shape.title, timings, place, moved_bytes=batch.kv_bytes)


def limit(batch: Batch) -> Contestant:
    if batch.query.device.type == "cuda":
        return cuda_timing.equal_copy(batch.kv_bytes)
    caches = (batch.cache.key_caches, batch.cache.value_caches)
    read_keys, read_values = (raw_read.linear(cache, batch.kv_bytes // 2) for cache in caches)

    def read(layer: int) -> None:
        read_keys(layer)
        read_values(layer)

    return Contestant("raw read", read)
