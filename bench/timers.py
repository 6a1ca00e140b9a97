"""The stop watch for each device."""

from __future__ import annotations

from .cuda_timing import GraphTimer, synchronised
from .measure import Timer, on_cpu


def timer_for(device: str, capturable: bool = True) -> Timer:
    """capturable=False: a CUDA graph cannot hold what is timed."""
    if device == "cpu":
        return on_cpu
    return GraphTimer() if capturable else synchronised
