"""`decode` and `prefill`: paged attention beside its limit and its peers."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace

import torch
from torch import Tensor

from . import cuda_timing, memory, presets, raw_read
from .measure import CHOICE, Contestant, check, measure
from .notes import note_left_out
from .options import Options
from .problem import TOLERANCE, Problem, build, num_bytes, num_layers
from .report import Group, progress_bar
from .timers import timer_for

PARTITION_SIZES = (256, 512, 1024)  # of V2, beside the one that is chosen
SMALLEST_CHOICE = 128

_ops = torch.ops.pagedattn


def groups(what: str, options: Options) -> Iterator[Group]:
    for case in presets.cases(what, options.preset):
        if not options.wants(case.title):
            continue
        try:
            memory.require(bytes_needed(case, options.device), torch.device(options.device))
            group = bench_case(case, options)
        except (memory.TooLarge, torch.OutOfMemoryError) as reason:
            note_left_out(case.title, reason)
        else:
            yield group


def bytes_needed(case: presets.Case, device: str) -> int:
    """Without peers."""
    problem = num_bytes(case.shape, num_layers(case.shape, device))
    copy = case.shape.kv_bytes if device == "cuda" else 0
    return problem * (2 if case.compares_order else 1) + copy


def bench_case(case: presets.Case, options: Options) -> Group:
    """Checks everyone, then times them. Raises WrongResult if ours is wrong."""
    shape = case.shape
    problem = build(shape, num_layers(shape, options.device), options.device)
    is_decode = shape.query_len == 1
    limits = reads(problem) if is_decode else [equal_matmul(problem)]
    ours = [our_decode(problem) if is_decode else our_varlen(problem)]
    if case.compares_splits:
        ours += splits(problem)
    if case.compares_order:
        in_order = build(shape, problem.num_layers, options.device, shuffled=False)
        ours.append(replace(our_decode(in_order), name="pagedattn, blocks in order"))

    tolerance = TOLERANCE[shape.query_dtype]
    errors = {ours_.name: check(ours_, problem.expected, tolerance) for ours_ in ours}
    peers: list[Contestant] = []
    for name, peer in options.peers.items():
        try:
            for contestant in peer.contestants(problem):
                errors[contestant.name] = check(contestant, problem.expected, tolerance)
                peers.append(contestant)
        except Exception as reason:  # whatever it is, the others' results are not lost for it
            note_left_out(f"{case.title}: {name}", reason)

    contestants = [limits[0], ours[0], *limits[1:], *ours[1:], *peers]
    timings = measure(
        contestants,
        problem.num_layers,
        options.seconds,
        timer_for(options.device),
        progress_bar(case.title),
    )
    return Group(
        title=case.title,
        timings=[replace(timing, error=errors.get(timing.name)) for timing in timings],
        place=case.place,
        facts={**asdict(shape), "kv_bytes": shape.kv_bytes, "flops": shape.flops},
        moved_bytes=shape.kv_bytes if is_decode else None,
    )


def reads(problem: Problem) -> list[Contestant]:
    if problem.query.device.type == "cuda":
        return [cuda_timing.equal_copy(problem.shape.kv_bytes)]
    return [
        Contestant("raw read", raw_read.linear(list(problem.storage), problem.shape.kv_bytes)),
        Contestant("read in table order", raw_read.table_order(problem)),
    ]


def equal_matmul(problem: Problem) -> Contestant:
    """A matrix product of as many operations as the two of attention together."""
    size = 2048
    rows = max(1, round(problem.shape.flops / (2 * size * size)))
    device, dtype = problem.query.device, problem.query.dtype
    in_fp32 = device.type == "cpu" and dtype == torch.float16
    if in_fp32:  # as ours: torch's product in fp16 takes a hundred times as long on most CPUs
        dtype = torch.float32
    left, right = (torch.randn(n, size, device=device).to(dtype) for n in (rows, size))
    return Contestant(
        "matmul of equal work", lambda layer: left @ right, "in fp32" if in_fp32 else ""
    )


def our_decode(problem: Problem) -> Contestant:
    def run(layer: int) -> Tensor:
        out: Tensor = _ops.paged_attention(
            problem.query,
            *problem.layer(layer),
            problem.block_tables,
            problem.seq_lens,
            problem.shape.max_seq_len,
            problem.softmax_scale,
            k_scale=problem.k_scale,
            v_scale=problem.v_scale,
        )
        return out

    return Contestant("pagedattn", run)


def our_varlen(problem: Problem) -> Contestant:
    out = torch.empty_like(problem.query)

    def run(layer: int) -> Tensor:
        _ops.paged_attention_varlen(
            out,
            problem.query,
            *problem.layer(layer),
            problem.cu_seqlens_q,
            problem.block_tables,
            problem.seq_lens,
            problem.shape.query_len,
            problem.shape.max_seq_len,
            problem.softmax_scale,
            k_scale=problem.k_scale,
            v_scale=problem.v_scale,
        )
        return out

    return Contestant("pagedattn", run)


def splits(problem: Problem) -> list[Contestant]:
    """V1, and V2 at some partition sizes; the one that paged_attention chooses is marked.

    Its choice is not told, but shows in the bits: ops add up in an order of their own.
    """
    telling = with_telling_bits(problem)
    chosen = our_decode(telling).run(0)

    def marked(split: Callable[[Problem], Contestant]) -> Contestant:
        same = torch.equal(split(telling).run(0), chosen)
        return replace(split(problem), note=CHOICE if same else "")

    found = [marked(v1)]
    for size in sorted({*PARTITION_SIZES, *possible_choices(problem.shape.max_seq_len)}):
        contestant = marked(functools.partial(v2, partition_size=size))
        if contestant.note or size in PARTITION_SIZES:
            found.append(contestant)
    return found


def with_telling_bits(problem: Problem) -> Problem:
    """A problem for which the same is chosen, where the order of additions shows.

    That of fp32 is often lost in a rounding to 16 bits. On a CPU the choice does not depend on the
    dtype, nor on what is in the blocks, so some blocks in fp32 stand for all.
    """
    if problem.query.device.type == "cuda":
        return problem
    blocks = problem.storage[:1, :, :64].float()
    return replace(
        problem,
        shape=replace(problem.shape, dtype="fp32"),
        query=problem.query.float(),
        storage=blocks,
        block_tables=problem.block_tables % blocks.shape[2],
        k_scale=None,
        v_scale=None,
    )


def possible_choices(max_seq_len: int) -> list[int]:
    """Partition sizes that paged_attention may choose: powers of two that leave two partitions."""
    sizes = itertools.takewhile(
        lambda size: size < max_seq_len, (SMALLEST_CHOICE << i for i in itertools.count())
    )
    return list(sizes)


def v1(problem: Problem) -> Contestant:
    out = torch.empty_like(problem.query)

    def run(layer: int) -> Tensor:
        _ops.paged_attention_v1(
            out,
            problem.query,
            *problem.layer(layer),
            problem.block_tables,
            problem.seq_lens,
            problem.shape.max_seq_len,
            problem.softmax_scale,
            k_scale=problem.k_scale,
            v_scale=problem.v_scale,
        )
        return out

    return Contestant("V1", run)


def v2(problem: Problem, partition_size: int) -> Contestant:
    shape = problem.shape
    num_partitions = math.ceil(shape.max_seq_len / partition_size)
    out = torch.empty_like(problem.query)
    partial_lse = torch.empty(
        (shape.num_seqs, shape.num_q_heads, num_partitions), device=out.device
    )
    partial_out = torch.empty((*partial_lse.shape, shape.head_dim), device=out.device)

    def run(layer: int) -> Tensor:
        _ops.paged_attention_v2(
            out,
            partial_out,
            partial_lse,
            problem.query,
            *problem.layer(layer),
            problem.block_tables,
            problem.seq_lens,
            shape.max_seq_len,
            partition_size,
            problem.softmax_scale,
            k_scale=problem.k_scale,
            v_scale=problem.v_scale,
        )
        return out

    return Contestant(f"V2, partitions of {partition_size}", run)
