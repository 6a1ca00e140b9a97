"""The stop watch for each device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .cuda_timing import GraphTimer, synchronised
from .measure import Timed, on_cpu

Timer = Callable[[Callable[[int], Any]], Timed]


def timer_for(device: str, capturable: bool = True) -> Timer:
    """capturable=False: a CUDA graph cannot hold what is timed."""
    if device == "cpu":
        return on_cpu
    return GraphTimer() if capturable else synchronised
