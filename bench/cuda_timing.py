"""Timing on a GPU: graph replays between events, with a cold L2, beside a copy in the same run.

Launch costs are the graph's, not Python's. Clocks are whatever the driver makes of them: they are
recorded with the results and never set.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .measure import Contestant, StopWatch
from .notes import first_line
from .problem import TOLERANCE, relative_error

WARM_UP_RUNS = 3  # before the capture: compilations, workspaces
# Read before each run, at least: the run's launch is queued before the GPU is done with them.
MIN_READ_BYTES = 256 << 20


class GraphTimer:
    """Makes stop watches for work on the current device.

    What cannot be captured is launched as it is, between the same events; its note says so.
    """

    def __init__(self) -> None:
        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        num_bytes = max(2 * properties.L2_cache_size, MIN_READ_BYTES)
        self.other_memory = torch.ones(num_bytes // 4, device="cuda")

    def __call__(self, run: Callable[[int], Any]) -> StopWatch:
        warm_up(run)
        try:
            replay = captured(run)
        except RuntimeError as error:
            return StopWatch(self.between_events(run), f"without a graph: {first_line(error)}")
        return StopWatch(self.between_events(replay))

    def between_events(self, launch: Callable[[int], Any]) -> Callable[[int], float]:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

        def seconds(layer: int) -> float:
            self.empty_l2()
            start.record()
            launch(layer)
            end.record()
            end.synchronize()
            return start.elapsed_time(end) * 1e-3

        return seconds

    def empty_l2(self) -> None:
        """Fills it with what no one needs, by reading: lines that were written cost a write."""
        self.other_memory.sum()


def warm_up(run: Callable[[int], Any]) -> None:
    """On a stream of its own, as a capture is."""
    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        for _ in range(WARM_UP_RUNS):
            run(0)
    torch.cuda.current_stream().wait_stream(side_stream)


def captured(run: Callable[[int], Any]) -> Callable[[int], Any]:
    """Replays `run` on layer 0; L2 is emptied, so that it does as well as any other.

    Raises RuntimeError if that cannot be captured, or if a replay does not do what `run` does.
    """
    wanted = copy_of(run(0))
    graph = torch.cuda.CUDAGraph()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with torch.cuda.graph(graph):
            result = run(0)
    if any("Graph is empty" in str(warning.message) for warning in caught):
        raise RuntimeError("its graph is empty")
    if wanted is not None:
        result.zero_()
        graph.replay()
        if not relative_error(result, wanted) <= TOLERANCE[result.dtype]:
            raise RuntimeError("a replay of its graph computes something else")

    def replay(layer: int) -> Any:
        graph.replay()
        return result  # which lives for as long as it is written to

    return replay


def copy_of(result: Any) -> Tensor | None:
    """In float64, if it is a tensor that can be compared."""
    if isinstance(result, Tensor) and result.dtype in TOLERANCE:
        return result.double()
    return None


def synchronised(run: Callable[[int], Any]) -> StopWatch:
    """For what no graph can capture, the host's part included."""

    def seconds(layer: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        run(layer)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    return StopWatch(seconds)


def equal_copy(num_bytes: int) -> Contestant:
    """A copy that moves so many bytes, reads and writes together."""
    source, target = torch.zeros(2, num_bytes // 2, dtype=torch.uint8, device="cuda")
    return Contestant("copy of as many bytes", lambda layer: target.copy_(source))
