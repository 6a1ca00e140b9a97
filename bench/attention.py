"""`decode` and `prefill`: paged attention beside its limit and its peers."""

from __future__ import annotations

from dataclasses import asdict, replace

import torch
from torch import Tensor

from . import raw_read
from .measure import Contestant, WrongResult, check, measure
from .peers import Unsupported
from .problem import TOLERANCE, Problem, build, last_level_cache_bytes, num_layers_for
from .report import Group, clear_progress, progress_bar
from .run import Options
from .shapes import AttentionShape

_ops = torch.ops.pagedattn


def our_decode(problem: Problem) -> Contestant:
    shape = problem.shape

    def run(layer: int) -> Tensor:
        return _ops.paged_attention(
            problem.query,
            *problem.layer(layer),
            problem.block_tables,
            problem.seq_lens,
            shape.max_seq_len,
            problem.softmax_scale,
            k_scale=problem.k_scale,
            v_scale=problem.v_scale,
        )

    return Contestant("pagedattn", run)


def our_varlen(problem: Problem) -> Contestant:
    shape = problem.shape
    out = torch.empty_like(problem.query)

    def run(layer: int) -> Tensor:
        _ops.paged_attention_varlen(
            out,
            problem.query,
            *problem.layer(layer),
            problem.cu_seqlens_q,
            problem.block_tables,
            problem.seq_lens,
            shape.query_len,
            shape.max_seq_len,
            problem.softmax_scale,
            k_scale=problem.k_scale,
            v_scale=problem.v_scale,
        )
        return out

    return Contestant("pagedattn", run)


def equal_matmul(problem: Problem) -> Contestant:
    """A matrix product of as many operations as the two of attention."""
    size = 2048
    rows = max(1, round(problem.shape.flops / (2 * size * size)))
    left = torch.randn(rows, size, dtype=torch.float32).to(problem.query)
    right = torch.randn(size, size, dtype=torch.float32).to(problem.query)
    return Contestant("matmul of equal work", lambda layer: left @ right)


def decode_contestants(problem: Problem) -> tuple[list[Contestant], list[Contestant]]:
    """(limits, ours)."""
    limits = [
        Contestant("raw read", raw_read.linear(problem)),
        Contestant("read in table order", raw_read.table_order(problem)),
    ]
    return limits, [our_decode(problem)]


def prefill_contestants(problem: Problem) -> tuple[list[Contestant], list[Contestant]]:
    return [equal_matmul(problem)], [our_varlen(problem)]


def bench_shape(shape: AttentionShape, options: Options) -> Group:
    """Checks, then times, everyone on one shape. Raises WrongResult if ours is wrong."""
    num_layers = num_layers_for(shape, last_level_cache_bytes())
    problem = build(shape, num_layers, options.device)
    make = decode_contestants if shape.query_len == 1 else prefill_contestants
    limits, ours = make(problem)
    tolerance = TOLERANCE[shape.query_dtype]
    errors = {c.name: check(c, problem.expected, tolerance) for c in ours}
    peers = []
    for name, peer in options.peers.items():
        try:
            for contestant in peer.contestants(problem):
                errors[contestant.name] = check(contestant, problem.expected, tolerance)
                peers.append(contestant)
        except (Unsupported, WrongResult) as reason:
            options.say(f"{shape.title}: {name} left out: {reason}")
    # The first two are what ratios are taken to.
    contestants = [limits[0], *ours, *limits[1:], *peers]
    timings = measure(contestants, num_layers, options.seconds, progress=progress_bar(shape.title))
    clear_progress()
    return Group(
        title=shape.title,
        limit=limits[0].name,
        timings=[replace(t, error=errors.get(t.name)) for t in timings],
        facts={**asdict(shape), "lengths": shape.lengths, "num_layers": num_layers},
    )
