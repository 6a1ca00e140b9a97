"""Huge pages for large tensors in host memory.

The block table scatters what attention reads, and with pages of 4 KiB nearly every row of a cache
costs the CPU a walk through the page tables.
"""

from __future__ import annotations

import ctypes
import mmap

from torch import Tensor


def advise_huge_pages(memory: Tensor) -> None:
    """Asks Linux to back a contiguous CPU tensor that no one has written yet with huge pages.

    A hint (``madvise``, MADV_HUGEPAGE): where it cannot be followed, nothing happens.
    """
    if memory.device.type != "cpu" or not hasattr(mmap, "MADV_HUGEPAGE"):
        return
    begin = -(-memory.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    end = memory.data_ptr() + memory.nbytes
    if begin < end:
        madvise = ctypes.CDLL(None).madvise
        madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_HUGEPAGE)
