"""Decode over a shared prefix: `cascade_attention`'s two passes beside plain `paged_attention`.

    python bench/cascade.py

Both are checked against each other and run in turn, round after round, on a layer of memory that
has left the CPU's caches; the ratio is the median of the rounds' ratios. The last column says
whether `should_cascade` chooses the two passes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pagedattn import cascade
from pagedattn.kv_cache import KVCache

BLOCK_SIZE = 16
NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM = 32, 8, 128
BYTES_OF_ALL_LAYERS = 256 << 20  # no core's own cache holds a layer that long
ROUNDS = 15


@dataclass(frozen=True)
class Case:
    """`num_seqs` sequences that share `num_common` tokens and have `num_own` more each."""

    num_seqs: int
    num_common: int
    num_own: int
    dtype: torch.dtype = torch.bfloat16


@dataclass(frozen=True)
class Result:
    plain: float  # seconds, medians
    split: float
    speedup: float  # median of plain / split within a round


class Batch:
    """A decode batch over several layers of the same random content."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.num_common_blocks = case.num_common // BLOCK_SIZE
        own_blocks = -(-case.num_own // BLOCK_SIZE)
        num_blocks = self.num_common_blocks + case.num_seqs * own_blocks
        self.max_seq_len = case.num_common + case.num_own
        block_bytes = 2 * BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM * case.dtype.itemsize
        num_layers = max(2, BYTES_OF_ALL_LAYERS // (num_blocks * block_bytes))
        self.cache = KVCache(
            num_layers, num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, dtype=case.dtype
        )
        query_dtype = torch.bfloat16 if case.dtype.itemsize == 1 else case.dtype
        rows = torch.randn(2, num_blocks * BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM).to(query_dtype)
        slots = torch.randperm(num_blocks * BLOCK_SIZE)
        for layer in range(num_layers):
            torch.ops.pagedattn.reshape_and_cache(
                *rows, *self.cache.layer(layer), slots, **self.cache.scales(layer)
            )
        order = torch.randperm(num_blocks, dtype=torch.int32)
        common, own = order.split([self.num_common_blocks, case.num_seqs * own_blocks])
        self.block_tables = torch.cat(
            [common.expand(case.num_seqs, -1), own.view(case.num_seqs, own_blocks)], dim=1
        )
        self.seq_lens = torch.full((case.num_seqs,), self.max_seq_len, dtype=torch.int32)
        self.query = torch.randn(case.num_seqs, NUM_Q_HEADS, HEAD_DIM).to(query_dtype)

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

    def plain(self, layer: int) -> Tensor:
        out: Tensor = torch.ops.pagedattn.paged_attention(**self.arguments(layer))
        return out

    def split(self, layer: int) -> Tensor:
        return cascade.attend_in_two_passes(
            **self.arguments(layer), num_common_blocks=self.num_common_blocks
        )


def measure(case: Case) -> Result:
    """Raises AssertionError if the two disagree."""
    batch = Batch(case)
    torch.testing.assert_close(batch.split(0), batch.plain(0), rtol=2e-2, atol=2e-2)
    layers = iter(range(10**9))
    times = []
    for _ in range(ROUNDS):
        row = []
        for contestant in (batch.plain, batch.split):
            layer = next(layers) % batch.cache.num_layers
            start = time.perf_counter()
            contestant(layer)
            row.append(time.perf_counter() - start)
        times.append(row)
    plain_times, split_times = zip(*times, strict=True)
    speedup = statistics.median(plain / split for plain, split in times)
    return Result(statistics.median(plain_times), statistics.median(split_times), speedup)


def cases() -> Iterator[Case]:
    for dtype in (torch.bfloat16, torch.float32, torch.int8, torch.float8_e4m3fn):
        yield Case(16, 2048, 128, dtype)
    for num_seqs in (2, 4, 8, 16, 64):
        for num_common in (256, 512, 1024, 4096):
            yield Case(num_seqs, num_common, 128)


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print(
        f"{NUM_Q_HEADS}/{NUM_KV_HEADS} heads, head_dim {HEAD_DIM}, blocks of {BLOCK_SIZE} tokens, "
        f"{torch.get_num_threads()} threads"
    )
    print("sequences  common   own  cache            plain ms  split ms  speed-up  chosen")
    with torch.inference_mode():
        for case in cases():
            result = measure(case)
            chosen = cascade.should_cascade(case.num_seqs, case.num_common)
            print(
                f"{case.num_seqs:>9}  {case.num_common:>6}  {case.num_own:>4}  "
                f"{str(case.dtype).removeprefix('torch.'):<15}  {1e3 * result.plain:>8.2f}  "
                f"{1e3 * result.split:>8.2f}  {result.speedup:>7.2f}x  {'yes' if chosen else 'no'}"
            )


if __name__ == "__main__":
    main()
