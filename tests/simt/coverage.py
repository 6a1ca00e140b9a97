"""Line coverage of the CUDA kernels by the op tests, from a build for gcov.

    PAGEDATTN_SIMT_VARIANT=coverage PAGEDATTN_TEST_BACKENDS=simt python -m pytest tests/ops
    python tests/simt/coverage.py [--at-least PERCENT]

A line of a template counts as run if any of its instantiations ran it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "build" / "cpp-coverage"  # as build.py calls it


def line_counts() -> Iterator[tuple[Path, int, int]]:
    """(file, line, times run), as often as there are objects and instantiations with the line."""
    for data in FOLDER.rglob("*.gcda"):
        command = ["gcov", "--json-format", "--stdout", data.name]
        output = subprocess.run(command, cwd=data.parent, capture_output=True, check=True).stdout
        for source in json.loads(output)["files"]:
            for line in source["lines"]:
                yield Path(source["file"]).resolve(), line["line_number"], line["count"]


def ranges(lines: list[int]) -> str:
    """[3, 4, 5, 9] -> "3-5, 9"."""
    parts: list[list[int]] = []
    for line in sorted(lines):
        if parts and line == parts[-1][-1] + 1:
            parts[-1].append(line)
        else:
            parts.append([line])
    return ", ".join(f"{p[0]}-{p[-1]}" if len(p) > 1 else str(p[0]) for p in parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--at-least", type=float, default=0.0, metavar="PERCENT")
    arguments = parser.parse_args()
    counts: dict[Path, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for file, line, count in line_counts():
        if file.suffix == ".cuh" and file.is_relative_to(ROOT / "csrc"):
            counts[file][line] += count
    total = sum(len(lines) for lines in counts.values())
    if total == 0:
        sys.exit(f"{FOLDER} has no coverage data")
    run = 0
    for file, lines in sorted(counts.items()):
        missed = [line for line, count in lines.items() if count == 0]
        run += len(lines) - len(missed)
        name = file.relative_to(ROOT)
        percent = 100 * (1 - len(missed) / len(lines))
        print(f"{percent:6.1f} % of {len(lines):4} lines  {name}  {ranges(missed)}")
    percent = 100 * run / total
    print(f"{percent:6.1f} % of {total:4} lines")
    if percent < arguments.at_least:
        sys.exit(f"less than {arguments.at_least} %")


if __name__ == "__main__":
    main()
