"""Timing on a GPU: graph replays between events, with a cold L2, beside a copy in the same run.

Launch costs are the graph's, not Python's. Clocks are whatever the driver makes of them: they are
recorded with the results and never set.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from .measure import Contestant, Timed

WARM_UP_RUNS = 3  # before the capture: compilations, workspaces


class GraphTimer:
    """Makes a stop watch of work on the current device: `GraphTimer()(run)(layer)` is seconds."""

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.other_memory = torch.ones(2 * properties.L2_cache_size // 4, device="cuda")

    def __call__(self, run: Callable[[int], Any]) -> Timed:
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(WARM_UP_RUNS):
                run(0)
        torch.cuda.current_stream().wait_stream(side_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run(0)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def timed(layer: int) -> float:
            self.empty_l2()
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            return start.elapsed_time(end) * 1e-3

        return timed

    def empty_l2(self) -> None:
        """Fills it with what no one needs, by reading: lines that were written cost a write."""
        self.other_memory.sum()


def synchronised(run: Callable[[int], Any]) -> Timed:
    """A stop watch of what no graph can capture, the host's part included."""

    def timed(layer: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        run(layer)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    return timed


def equal_copy(num_bytes: int) -> Contestant:
    """A copy that moves so many bytes, reads and writes together."""
    source, target = torch.zeros(2, num_bytes // 2, dtype=torch.uint8, device="cuda")
    return Contestant("copy of as many bytes", lambda layer: target.copy_(source))
