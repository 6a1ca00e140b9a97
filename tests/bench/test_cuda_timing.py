"""Graphs, events and the L2 on a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from conftest import TINY
from torch import Tensor

from bench.attention import our_decode
from bench.cuda_timing import GraphTimer, equal_copy, synchronised
from bench.problem import Problem, build

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.fixture
def problem() -> Problem:
    return build(TINY, 1, "cuda")


def counted(run: Callable[[int], Any]) -> tuple[Callable[[int], Any], list[int]]:
    """`run`, and the layers that it is called for."""
    layers: list[int] = []

    def counting(layer: int) -> Any:
        layers.append(layer)
        return run(layer)

    return counting, layers


def test_what_can_be_captured_is_replayed(problem: Problem):
    run, calls = counted(our_decode(problem).run)
    watch = GraphTimer()(run)
    before = len(calls)
    assert watch.note == ""
    assert all(watch.seconds(layer) > 0 for layer in range(3))
    assert len(calls) == before


def test_what_does_nothing_on_the_gpu_is_not_replayed():
    run, calls = counted(lambda layer: None)
    watch = GraphTimer()(run)
    assert watch.note == "without a graph: its graph is empty"
    watch.seconds(5)
    assert calls[-1] == 5


def test_what_waits_for_the_gpu_is_launched_between_events(problem: Problem):
    out = our_decode(problem).run(0)
    run, calls = counted(lambda layer: out.sum().item())
    watch = GraphTimer()(run)
    assert watch.note.startswith("without a graph: ")
    assert watch.seconds(5) > 0
    assert calls[-1] == 5


def test_a_replay_that_computes_something_else_is_not_timed(problem: Problem):
    scales = itertools.cycle((0.1, 1.0))  # the host's, which a graph bakes in

    def run(layer: int) -> Tensor:
        return torch.ops.pagedattn.paged_attention(
            problem.query,
            *problem.layer(layer),
            problem.block_tables,
            problem.seq_lens,
            problem.shape.max_seq_len,
            next(scales),
        )

    assert "computes something else" in GraphTimer()(run).note


def test_the_l2_is_emptied_by_twice_as_much():
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    assert GraphTimer().other_memory.nbytes >= 2 * properties.L2_cache_size > 0


def test_work_is_waited_for(problem: Problem):
    run, calls = counted(our_decode(problem).run)
    assert synchronised(run).seconds(0) > 0
    assert calls == [0]


def test_the_copy_reads_and_writes_as_many_bytes_together():
    assert equal_copy(1 << 20).run(0).nbytes == 1 << 19
