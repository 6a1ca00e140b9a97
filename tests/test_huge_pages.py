"""Which memory the kernel is asked to back with huge pages."""

from __future__ import annotations

import mmap
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pagedattn.huge_pages import advise_huge_pages
from pagedattn.kv_cache import KVCache

SMAPS = Path("/proc/self/smaps")
HUGE_PAGE_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not HUGE_PAGE_SETTING.exists(), reason="huge pages of Linux"
)


def is_advised(tensor: Tensor) -> bool:
    """Whether the middle of the tensor lies in memory with the flag "hg"."""
    middle = tensor.data_ptr() + tensor.nbytes // 2
    inside = False
    for line in SMAPS.read_text().splitlines():
        first, *rest = line.split()
        if "-" in first and not first.endswith(":"):
            begin, end = (int(bound, 16) for bound in first.split("-"))
            inside = begin <= middle < end
        elif inside and first == "VmFlags:":
            return "hg" in rest
    raise AssertionError("the tensor's memory is not mapped")


def test_a_large_tensor_is_advised():
    # Memory that malloc hands out again may be advised already.
    memory = mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    tensor = torch.frombuffer(memory, dtype=torch.uint8)
    assert not is_advised(tensor)
    advise_huge_pages(tensor)
    assert is_advised(tensor)


@pytest.mark.parametrize("num_bytes", [0, 1, 4096])
def test_a_tensor_without_a_whole_page_is_left_alone(num_bytes: int):
    advise_huge_pages(torch.empty(num_bytes, dtype=torch.uint8))


def test_the_kv_cache_is_advised():
    cache = KVCache(2, 512, 16, 4, 64)
    assert is_advised(cache.key_caches[0])
    assert is_advised(cache.value_caches[-1])
