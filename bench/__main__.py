"""`python -m bench`: the speed of the ops beside their limits and their peers.

    python -m bench decode --only "32x2048 bf16"
    python -m bench prefill --peers none --threads 1,2

Every contestant's result is compared with a float64 reference before it is timed. Contestants run
in turn, round after round, on memory that no CPU cache holds; "/ limit" and "/ ours" are medians of
ratios within a round. Two runs' times do not compare: the speed of a host's memory changes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import torch

from pagedattn.ops import build_info

from . import attention, block_manager, cache, cascade, peers
from .machine import clocks, describe
from .measure import WrongResult
from .notes import note
from .options import Options
from .report import Group, print_group, write_json


class Subject(NamedTuple):
    """What can be measured: its groups of results, and where its peers are."""

    groups: Callable[[Options], Iterator[Group]]
    peers: Mapping[str, str]


SUBJECTS: dict[str, Subject] = {
    "decode": Subject(lambda options: attention.groups("decode", options), peers.ATTENTION),
    "prefill": Subject(lambda options: attention.groups("prefill", options), peers.ATTENTION),
    "cache": Subject(cache.groups, {}),
    "cascade": Subject(cascade.groups, {}),
    "block_manager": Subject(block_manager.groups, peers.BLOCK_MANAGERS),
}


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", choices=SUBJECTS)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument(
        "--preset",
        choices=["quick", "paper", "smoke"],
        default="quick",
        help="smoke: tiny, to see that the program runs; its times mean nothing",
    )
    names = ",".join(peers.ATTENTION)
    parser.add_argument("--peers", default="auto", help=f"auto, none, or some of {names}")
    parser.add_argument(
        "--threads",
        type=lambda text: [int(part) for part in text.split(",")],
        default=[torch.get_num_threads()],
        help="CPU threads, a run for each, as in 1,2",
    )
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="the cases whose titles have all these words"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="to time each case for, about")
    parser.add_argument("--json", type=Path, metavar="DIR", help="writes results into it")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draws PNG and SVG into it")
    return parser.parse_args(argv)


def run(args: argparse.Namespace, options: Options, threads: int) -> None:
    torch.set_num_threads(threads)
    machine = describe(args.device)
    print(", ".join(f"{key} {value}" for key, value in machine.items()))
    stem = f"{args.what}-{args.device}-{args.preset}-{threads}-threads"
    results = []
    for group in SUBJECTS[args.what].groups(options):  # each is kept: a run may end early
        print_group(group)
        sys.stdout.flush()
        if args.device == "cuda":
            group = replace(group, facts=group.facts | {"just after": clocks()})
        results.append(group)
        if args.json:
            write_json(args.json / f"{stem}.json", machine, results)
    if not results:
        note(f"no results for --only {args.only!r}")
        return
    if args.plot:
        from .plot import draw_all  # matplotlib is an extra

        caption = f"{machine.get('gpu', machine['cpu'])}, {threads} threads, {machine['commit']}"
        draw_all(results, args.plot, stem, caption)


def no_cuda() -> str:
    """Why nothing can run on a GPU; empty if it can."""
    if not torch.cuda.is_available():
        return f"torch {torch.__version__} sees no GPU"
    if build_info().cuda_version is None:
        return "pagedattn was built without CUDA"
    return ""


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    if args.device == "cuda" and (reason := no_cuda()):
        note(f"--device cuda: {reason}")
        return 2
    if args.plot and find_spec("matplotlib") is None:
        note("--plot: matplotlib is not installed")
        return 2
    try:
        chosen, left_out = peers.choose(args.peers, SUBJECTS[args.what].peers, args.device)
    except (ValueError, ImportError) as error:
        note(f"--peers: {error}")
        return 2
    for name, reason in left_out.items():
        note(f"{name} left out: {reason}")
    options = Options(args.device, args.preset, chosen, args.seconds, frozenset(args.only.split()))
    try:
        with torch.inference_mode():
            for threads in args.threads:
                run(args, options, threads)
    except WrongResult as error:
        note(f"wrong result: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
