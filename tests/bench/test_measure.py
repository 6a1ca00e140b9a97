"""Rounds, ratios and percentiles of the benchmarks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from bench.measure import (
    Contestant,
    StopWatch,
    WrongResult,
    check,
    measure,
    median_ratio,
    percentile_10,
)
from bench.problem import relative_error
from bench.report import Group, print_group


def test_ratios_are_taken_within_a_round():
    """The host slows down threefold in the last round: no ratio may see it."""
    assert median_ratio([2.0, 2.0, 6.0], [1.0, 1.0, 3.0]) == 2.0
    assert median_ratio([1.0, 4.0, 3.0], [1.0, 1.0, 1.0]) == 3.0


@pytest.mark.parametrize(("values", "expected"), [([5.0], 5.0), ([*range(11, 0, -1)], 2)])
def test_percentile_10(values: list[float], expected: float):
    assert percentile_10(values) == expected


def instant(run: Callable[[int], Any]) -> StopWatch:
    """A timer for which a run takes as many seconds as it returns."""
    return StopWatch(run)


def test_every_run_takes_the_next_layer_and_every_round_an_order_of_its_own():
    runs: list[tuple[str, int]] = []

    def contestant(name: str) -> Contestant:
        return Contestant(name, lambda layer: runs.append((name, layer)) or 1.0)

    measure([contestant(name) for name in "abc"], 5, seconds=0, timer=instant)
    rounds = ["".join(name for name, _ in runs[i : i + 3]) for i in range(0, len(runs), 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in rounds)
    assert len(set(rounds)) > 3  # a rotation has three
    assert [layer for _, layer in runs[:7]] == [0, 1, 2, 3, 4, 0, 1]


def test_the_first_is_the_limit_and_the_second_is_ours():
    contestants = [Contestant(f"takes {t}", lambda layer, t=t: t) for t in (1.0, 2.0, 8.0)]
    timings = measure(contestants, 1, seconds=0, timer=instant)
    assert [timing.median for timing in timings] == [1.0, 2.0, 8.0]
    assert [timing.x_limit for timing in timings] == [1.0, 2.0, 8.0]
    assert [timing.x_ours for timing in timings] == [0.5, 1.0, 4.0]


def test_time_of_one_call_and_work_between_runs():
    between = []
    many = Contestant("many", lambda layer: 6.0, calls=3, after=lambda: between.append(1))
    one, other = measure([many, Contestant("one", lambda layer: 1.0)], 1, 0, timer=instant)
    assert one.median == 2.0
    assert len(between) == one.rounds + 1  # a round warms up
    assert other.x_limit == 0.5


def test_times_of_a_busy_host_are_called_unsteady(capsys: pytest.CaptureFixture[str]):
    for times, unsteady in (([1.0] * 8, False), ([1.0, 8.0] * 5, True)):
        left = iter(times)
        contestants = [Contestant("limit", lambda layer, left=left: next(left, 8.0))]
        contestants.append(Contestant("ours", lambda layer: 1.0))
        print_group(Group("case", measure(contestants, 1, seconds=0, timer=instant)))
        assert ("UNSTEADY" in capsys.readouterr().out) == unsteady


def test_the_stop_watch_has_its_say_in_the_note():
    contestants = [
        Contestant("limit", lambda layer: 1.0),
        Contestant("ours", lambda layer: 1.0, note="mine"),
    ]
    timings = measure(contestants, 1, 0, timer=lambda run: StopWatch(run, "no graph"))
    assert [timing.note for timing in timings] == ["no graph", "mine, no graph"]


def test_the_bandwidth_is_told_beside_the_limits(capsys: pytest.CaptureFixture[str]):
    contestants = [Contestant("copy", lambda layer: 0.5), Contestant("ours", lambda layer: 0.625)]
    timings = measure(contestants, 1, seconds=0, timer=instant)
    print_group(Group("case", timings, moved_bytes=10**9))
    assert "ours moves 1.6 GB/s, 80 % of what copy does (2 GB/s)" in capsys.readouterr().out


def test_a_wrong_result_is_not_timed():
    expected = torch.ones(2, 3, 4, dtype=torch.float64)
    right = Contestant("right", lambda layer: expected.float())
    assert check(right, expected, 1e-6) == 0
    wrong = expected.float()
    wrong[1, 2, 3] = 1.01
    with pytest.raises(WrongResult, match=r"wrong is off by 0\.005"):
        check(Contestant("wrong", lambda layer: wrong), expected, 1e-3)
    wrong[0, 0, 0] = math.nan
    with pytest.raises(WrongResult):
        check(Contestant("wrong", lambda layer: wrong), expected, 1e-3)


def test_the_error_is_that_of_the_worst_row():
    expected = torch.ones(2, 1, 4, dtype=torch.float64)
    assert relative_error(expected * torch.tensor([1.0, 1.25]).view(2, 1, 1), expected) == 0.25
