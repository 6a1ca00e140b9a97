"""Which shapes are measured, and where in a plot each is drawn.

`quick` has the shapes that the project's own goals are stated for. `paper` has those that others
publish: FlashInfer's bench_batch_decode, FlashAttention's sweep of split-KV decode, and sweeps of
what is particular to paging. `smoke` has tiny ones, whose times mean nothing: for tests of the
program itself, and for who has a GPU in an emulator only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from .report import Place
from .shapes import AttentionShape


@dataclass(frozen=True)
class Case:
    shape: AttentionShape
    place: Place
    compares_splits: bool = False  # V1 and V2 beside the choice between them
    compares_order: bool = False  # blocks in order beside shuffled ones

    @property
    def title(self) -> str:
        return f"{self.shape.title} [{self.place.figure}]"


def equal(batch: int, length: int) -> tuple[int, ...]:
    return (length,) * batch


def ragged(batch: int, longest: int) -> tuple[int, ...]:
    """Lognormal lengths between 1 and `longest`, the middle one an eighth of it."""
    spread = torch.Generator().manual_seed(0)
    logs = math.log(longest / 8) + 1.2 * torch.randn(batch, generator=spread)
    lengths = [max(1, min(longest, round(length))) for length in logs.exp().tolist()]
    return (*lengths[:-1], longest)


def smoke_decode() -> Iterator[Case]:
    base = AttentionShape((40, 40), dtype="fp32", num_q_heads=4, num_kv_heads=2, head_dim=32)
    for dtype in ("fp32", "bf16", "fp16", "int8", "e4m3"):
        shape = replace(base, dtype=dtype)
        yield Case(shape, Place("smoke", dtype, shape.lengths))
    ragged = replace(base, seq_lens=(3, 200), layout="NHD")
    yield Case(ragged, Place("smoke", "fp32", ragged.lengths), compares_order=True)
    # Long enough to be split on any device.
    long = replace(base, seq_lens=(4096,), dtype="bf16", head_dim=64)
    yield Case(long, Place("smoke", "bf16", long.lengths), compares_splits=True)


def smoke_prefill() -> Iterator[Case]:
    for query_len in (40, 24):
        shape = AttentionShape((40,), query_len, "fp32", 4, 2, head_dim=32)
        yield Case(shape, Place("smoke", "fp32", f"last {query_len} of 40"))


def quick_decode() -> Iterator[Case]:
    for dtype in ("fp32", "bf16", "fp16", "int8", "e4m3"):
        for batch, length in ((1, 4096), (8, 1024), (32, 2048), (16, 8192)):
            shape = AttentionShape(equal(batch, length), dtype=dtype)
            yield Case(shape, Place("decode", dtype, shape.lengths))
    for dtype in ("fp32", "bf16"):
        base = AttentionShape(equal(32, 2048), dtype=dtype)
        variants = {
            "32/32": replace(base, seq_lens=equal(8, 2048), num_kv_heads=32),
            "64/8": replace(base, num_q_heads=64),
            "9/3 d64": replace(base, num_q_heads=9, num_kv_heads=3, head_dim=64),
            "32/8 NHD": replace(base, layout="NHD"),
        }
        for name, shape in variants.items():
            yield Case(shape, Place("decode-heads", dtype, name))


def flashinfer_decode() -> Iterator[Case]:
    """Shapes of FlashInfer's benchmarks/bench_batch_decode.py."""
    for num_kv_heads in (4, 32):
        for batch in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
            for length in (512, 1024, 2048, 4096, 8192, 16384):
                shape = AttentionShape(equal(batch, length), num_kv_heads=num_kv_heads)
                figure = f"flashinfer-32-{num_kv_heads}"
                yield Case(shape, Place(figure, f"batch {batch}", length))


def split_decode() -> Iterator[Case]:
    """FlashAttention's split-KV sweep and, at a usual context, V1 against V2."""
    for batch in (1, 2, 4, 8, 16):
        shape = AttentionShape(equal(batch, 131072), num_q_heads=64)
        yield Case(shape, Place("split", "context 131072", batch), compares_splits=True)
    for batch in (1, 2, 4, 8, 16, 32):
        shape = AttentionShape(equal(batch, 4096), num_q_heads=64)
        yield Case(shape, Place("split", "context 4096", batch), compares_splits=True)


def paging_decode() -> Iterator[Case]:
    """Block sizes, order of the blocks, unequal lengths."""
    for dtype in ("fp32", "bf16"):
        base = AttentionShape(equal(32, 2048), dtype=dtype)
        for block_size in (8, 16, 32, 64, 128, 256):
            shape = replace(base, block_size=block_size)
            place = Place("block-size", dtype, block_size)
            yield Case(shape, place, compares_order=True)
        lengths = ragged(64, 8192)
        mean = round(sum(lengths) / len(lengths))
        for name, seq_lens in (("lognormal", lengths), ("equal", equal(len(lengths), mean))):
            shape = replace(base, seq_lens=seq_lens)
            yield Case(shape, Place("ragged", dtype, name))


def quick_prefill() -> Iterator[Case]:
    for dtype in ("fp32", "bf16"):
        for length, query_len in ((2048, 2048), (2048, 512), (8192 + 512, 512)):
            shape = AttentionShape((length,), query_len, dtype)
            name = f"last {query_len} of {length}" if query_len < length else f"{length}"
            yield Case(shape, Place("prefill", dtype, name))


def sweep_prefill() -> Iterator[Case]:
    for dtype in ("fp32", "bf16", "fp16", "int8", "e4m3"):
        for length in (512, 1024, 2048, 4096, 8192):
            shape = AttentionShape((length,), length, dtype)
            yield Case(shape, Place("prefill-sweep", dtype, length))
        for length in (1024, 2048, 4096, 8192, 16384):
            shape = AttentionShape((length + 512,), 512, dtype)
            yield Case(shape, Place("prefill-chunk", dtype, length))


PRESETS: dict[tuple[str, str], Sequence[Callable[[], Iterator[Case]]]] = {
    ("decode", "smoke"): [smoke_decode],
    ("decode", "quick"): [quick_decode],
    ("decode", "paper"): [quick_decode, flashinfer_decode, split_decode, paging_decode],
    ("prefill", "smoke"): [smoke_prefill],
    ("prefill", "quick"): [quick_prefill],
    ("prefill", "paper"): [quick_prefill, sweep_prefill],
}


def cases(what: str, preset: str) -> Iterator[Case]:
    """`what` is decode or prefill."""
    for part in PRESETS[what, preset]:
        yield from part()
