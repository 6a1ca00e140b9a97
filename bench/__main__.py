"""`python -m bench`: speed of the ops and of the block manager, beside their limits and peers.

python -m bench decode --only "32x2048 bf16"
python -m bench prefill --peers none --threads 1,2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

import torch

from . import peers
from .attention import bench_shape
from .machine import describe
from .measure import WrongResult
from .report import Group, print_group, write_json
from .run import Options
from .shapes import DECODE, PREFILL


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(
        prog="python -m bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    root.add_argument("what", choices=["decode", "prefill"])
    root.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    root.add_argument("--preset", choices=["quick", "paper"], default="quick")
    root.add_argument("--peers", default="auto", help="auto, none or a comma-separated list")
    root.add_argument("--threads", default="", help="CPU threads: a number or several, as 1,2")
    root.add_argument("--only", default="", metavar="WORDS", help="cases with all these words")
    root.add_argument("--seconds", type=float, default=3.0, help="how long a case is timed")
    root.add_argument("--json", type=Path, metavar="DIR", help="writes the results there")
    root.add_argument("--plot", type=Path, metavar="DIR", help="writes PNG and SVG plots there")
    return root


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    try:
        chosen, left_out = peers.choose(args.peers, args.device)
    except (ValueError, ImportError) as error:
        print(f"--peers: {error}", file=sys.stderr)
        return 2
    for name, reason in left_out.items():
        print(f"{name} left out: {reason}", file=sys.stderr)
    options = Options(
        device=args.device,
        preset=args.preset,
        peers=chosen,
        seconds=args.seconds,
        only=tuple(args.only.split()),
    )
    shapes = {"decode": DECODE, "prefill": PREFILL}[args.what][args.preset]
    threads = [int(n) for n in args.threads.split(",") if n] or [torch.get_num_threads()]
    for count in threads:
        torch.set_num_threads(count)
        machine = describe(args.device)
        print(", ".join(f"{key} {value}" for key, value in machine.items()))
        groups: list[Group] = []
        try:
            for shape in shapes():
                if options.wants(shape.title):
                    groups.append(bench_shape(shape, options))
                    print_group(groups[-1])
        except WrongResult as error:
            print(f"wrong result: {error}", file=sys.stderr)
            return 1
        if args.json:
            name = f"{args.what}-{args.device}-{args.preset}-{count}.json"
            write_json(args.json / name, machine, groups)
    return 0


if __name__ == "__main__":
    with torch.inference_mode():
        sys.exit(main())
