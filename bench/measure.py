"""Times contestants against each other in interleaved rounds.

A host's memory changes speed by half for minutes, so only times of one round are compared: in each
round every contestant runs once, and its ratios to the limit and to ours are taken there.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from .problem import relative_error

MIN_ROUNDS = 7
MAX_ROUNDS = 500
WARM_UP_ROUNDS = 1
CHOICE = "<- the choice"  # of whom a heuristic chooses: begins the note


class StopWatch(NamedTuple):
    """`seconds(layer)` of a run on that layer, and what is unusual in how they are taken."""

    seconds: Callable[[int], float]
    note: str = ""


Timer = Callable[[Callable[[int], Any]], StopWatch]


@dataclass(frozen=True)
class Contestant:
    """`run(layer)` does the work on that layer's memory, `calls` times, and returns its result.

    `after()` follows each run, untimed.
    """

    name: str
    run: Callable[[int], Any]
    note: str = ""
    calls: int = 1
    after: Callable[[], Any] = lambda: None


@dataclass(frozen=True)
class Timing:
    """Seconds of one call; ratios are medians over rounds of time / the other's time."""

    name: str
    median: float
    p10: float
    x_limit: float
    x_ours: float
    rounds: int
    note: str = ""
    error: float | None = None


class WrongResult(Exception):
    """A contestant computed something else than the reference."""


def check(contestant: Contestant, expected: Tensor, tolerance: float) -> float:
    """The error of the contestant's result. Raises WrongResult if it is beyond the tolerance."""
    out = contestant.run(0)
    error = relative_error(out, expected.to(out.device))
    if not error <= tolerance:  # a NaN is wrong
        raise WrongResult(f"{contestant.name} is off by {error:.2g} (tolerance {tolerance:g})")
    return error


def percentile_10(values: Sequence[float]) -> float:
    return sorted(values)[(len(values) - 1) // 10]


def on_cpu(run: Callable[[int], Any]) -> StopWatch:
    def seconds(layer: int) -> float:
        start = time.perf_counter_ns()
        run(layer)
        return (time.perf_counter_ns() - start) * 1e-9

    return StopWatch(seconds)


def measure(
    contestants: Sequence[Contestant],
    num_layers: int,
    seconds: float,
    timer: Timer = on_cpu,
    progress: Callable[[float], None] = lambda done: None,
) -> list[Timing]:
    """Times all of them, the first being the limit and the second ours, for about `seconds`.

    Each run takes the next layer, so that none finds in a cache what the one before it read. Every
    round has an order of its own, so that nobody always comes after the same one, whose threads may
    not be at rest yet.
    """
    watches = [timer(contestant.run) for contestant in contestants]
    rounds: list[list[float]] = []
    layer = 0
    gc.collect()
    gc.disable()
    start = time.perf_counter()
    try:
        while len(rounds) < WARM_UP_ROUNDS + MAX_ROUNDS:
            elapsed = time.perf_counter() - start
            if elapsed >= seconds and len(rounds) >= WARM_UP_ROUNDS + MIN_ROUNDS:
                break
            progress(elapsed / seconds if elapsed < seconds else 1.0)
            times = [0.0] * len(watches)
            for index in random.Random(len(rounds)).sample(range(len(watches)), len(watches)):
                times[index] = watches[index].seconds(layer) / contestants[index].calls
                contestants[index].after()
                layer = (layer + 1) % num_layers
            rounds.append(times)
    finally:
        gc.enable()
    columns = list(zip(*rounds[WARM_UP_ROUNDS:], strict=True))
    return [
        Timing(
            name=contestant.name,
            median=statistics.median(times),
            p10=percentile_10(times),
            x_limit=median_ratio(times, columns[0]),
            x_ours=median_ratio(times, columns[1]),
            rounds=len(times),
            note=", ".join(filter(None, (contestant.note, watch.note))),
        )
        for contestant, watch, times in zip(contestants, watches, columns, strict=True)
    ]


def median_ratio(times: Sequence[float], others: Sequence[float]) -> float:
    """The median of the ratios of times that were taken in the same round."""
    return statistics.median(time / other for time, other in zip(times, others, strict=True))
