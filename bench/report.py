"""What came out: a table for people, a JSON file for everything else."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .measure import Timing


@dataclass(frozen=True)
class Place:
    """Where a group is drawn: a figure, a panel in it, and what it has on the x axis there.

    Numbers are drawn to scale, strings one after the other.
    """

    figure: str
    panel: str
    x: int | str


@dataclass(frozen=True)
class Group:
    """Contestants that were timed against each other: first the limit, then ours.

    A group without a place is drawn nowhere; one without timings has facts alone. `moved_bytes` is
    what a call of both has to move, reads and writes together, where that is what takes the time.
    """

    title: str
    timings: list[Timing]
    place: Place | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    moved_bytes: int | None = None
    columns: tuple[str, str] = ("/ limit", "/ ours")


def print_group(group: Group) -> None:
    print(f"\n{group.title}")
    if not group.timings:
        for name, fact in group.facts.items():
            print(f"{name:<30}{fact}")
        return
    if is_unsteady(group):
        print("UNSTEADY: the limit's own times differ too much for these ratios to mean anything")
    width = max(30, *(len(timing.name) + 2 for timing in group.timings))
    first, second = group.columns
    print(f"{'':<{width}}{'median':>10}{'p10':>10}{first:>9}{second:>8}{'error':>9}")
    for timing in group.timings:
        error = "" if timing.error is None else f"{timing.error:.1e}"
        print(
            f"{timing.name:<{width}}{duration(timing.median):>10}{duration(timing.p10):>10}"
            f"{timing.x_limit:>9.2f}{timing.x_ours:>8.2f}{error:>9}  {timing.note}".rstrip()
        )
    if group.moved_bytes is not None:
        print(bandwidth(group, group.moved_bytes))


def bandwidth(group: Group, moved_bytes: int) -> str:
    """Ours, and what part it is of the limit's, which was measured in the same rounds."""
    limit, ours = group.timings[:2]
    rates = [moved_bytes / timing.median / 1e9 for timing in (ours, limit)]
    return (
        f"{ours.name} moves {rates[0]:.3g} GB/s, {100 / ours.x_limit:.0f} % "
        f"of what {limit.name} does ({rates[1]:.3g} GB/s)"
    )


def is_unsteady(group: Group) -> bool:
    """Whether the host had something else to do, so that threads waited for each other."""
    limit = group.timings[0]
    return limit.median > 1.5 * limit.p10


def duration(seconds: float) -> str:
    for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.2f} {unit}"
    return f"{seconds * 1e9:.1f} ns"


def write_json(path: Path, machine: dict[str, Any], groups: list[Group]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"machine": machine, "groups": [asdict(group) for group in groups]}
    path.write_text(json.dumps(content, indent=1) + "\n")


def progress_bar(title: str) -> Callable[[float], None]:
    """Draws how much of a case is done on the last line of a terminal; silent elsewhere."""
    if not sys.stderr.isatty():
        return lambda done: None

    def draw(done: float) -> None:
        filled = round(30 * done)
        bar = "#" * filled + "." * (30 - filled)
        print(f"\r\033[K[{bar}] {title}", end="\r", file=sys.stderr, flush=True)

    return draw


def clear_progress() -> None:
    if sys.stderr.isatty():
        print("\r\033[K", end="", file=sys.stderr, flush=True)
