"""The least that attention has to do on a CPU: reading its keys and values once."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.utils import cpp_extension

from .paging import slots_of
from .problem import Problem

GRAIN = 256  # bytes that native/read.cpp takes at a time


@functools.cache
def library() -> ctypes.CDLL:
    """native/read.cpp, compiled for this CPU the first time."""
    path = cpp_extension.load(
        "pagedattn_bench_read",
        [str(Path(__file__).parent / "native" / "read.cpp")],
        extra_cflags=["-O3", "-march=native"],
        is_python_module=False,
    )
    native = ctypes.CDLL(path)
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    native.read_linear.argtypes = [pointer, size]
    native.read_scattered.argtypes = [pointer, pointer, size, size]
    native.read_linear.restype = native.read_scattered.restype = None
    return native


def linear(layers: Sequence[Tensor], num_bytes: int) -> Callable[[int], None]:
    """Reads the first so many bytes of a layer, which has as many at least, in a row."""
    if any(layer.nbytes < num_bytes for layer in layers):
        raise ValueError(f"num_bytes is {num_bytes}, more than a layer has")
    read = library().read_linear
    addresses = [layer.data_ptr() for layer in layers]
    whole = num_bytes // GRAIN * GRAIN
    return lambda layer: read(addresses[layer], whole)


def table_order(problem: Problem) -> Callable[[int], None]:
    """Reads the blocks of a layer in the order of the block tables, a kv head at a time if HND.

    The last block of a sequence is read as a whole.
    """
    read = library().read_scattered
    offsets, run_bytes = runs(problem)
    addresses = [layer.data_ptr() for layer in problem.storage]
    return lambda layer: read(addresses[layer], offsets.data_ptr(), len(offsets), run_bytes)


def runs(problem: Problem) -> tuple[Tensor, int]:
    """int64 byte offsets, within a layer, of the runs that lie in one piece, and their length."""
    shape, caches = problem.shape, problem.storage[0]
    run = caches[0, 0, 0] if shape.layout == "HND" else caches[0, 0]
    run_bytes = run.numel() * run.itemsize
    cache_bytes = caches[0].numel() * caches.itemsize
    block_bytes = cache_bytes // shape.num_blocks
    tokens = slots_of(problem.block_tables, shape.seq_lens, shape.block_size)
    pieces = []
    for slots in tokens.split(shape.seq_lens):
        blocks = slots[:: shape.block_size] // shape.block_size * block_bytes
        pairs = torch.stack([blocks, cache_bytes + blocks], 1)  # a block of keys, one of values
        heads = torch.arange(0, block_bytes, run_bytes)
        pieces.append((heads[:, None, None] + pairs).flatten())
    return torch.cat(pieces), run_bytes
