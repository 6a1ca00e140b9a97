"""Free memory, and what does not fit into it."""

from __future__ import annotations

import gc
from pathlib import Path

import torch

LEFT_ALONE = 4 << 30  # bytes


class TooLarge(Exception):
    """It does not fit; the message says by how much."""


def require(num_bytes: int, device: torch.device) -> None:
    """Raises TooLarge if so much more does not fit."""
    free = available(device)
    if num_bytes + LEFT_ALONE > free:
        raise TooLarge(f"needs {num_bytes / 2**30:.1f} GiB, {free / 2**30:.1f} are free")


def available(device: torch.device) -> int:
    """Bytes, after what a failed peer's error may hold in a cycle of references is freed."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what torch keeps for later is free too
        return torch.cuda.mem_get_info(device)[0]
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo does not say MemAvailable")
