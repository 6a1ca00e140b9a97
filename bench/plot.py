"""Figures of the results: time over the limit's, a line per contestant."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from .measure import CHOICE, Timing
from .report import Group, Place

matplotlib.rcParams["svg.hashsalt"] = "pagedattn"  # the same figure, the same file
COLUMNS = 5
TOP = 16.0  # slower than this times the limit is drawn at the edge


Placed = tuple[Place, list[Timing]]


def draw_all(groups: Sequence[Group], directory: Path, stem: str, caption: str) -> list[Path]:
    """`<stem>-<figure>.png` and `.svg` for each figure that the groups have a place in."""
    directory.mkdir(parents=True, exist_ok=True)
    figures: dict[str, list[Placed]] = defaultdict(list)
    for group in groups:
        if group.place is not None:
            figures[group.place.figure].append((group.place, group.timings))
    paths = []
    for name, members in figures.items():
        figure = draw(members, f"{name}: {caption}")
        for suffix in ("png", "svg"):
            path = directory / f"{stem}-{name}.{suffix}"
            figure.savefig(path, dpi=120, metadata={"Date": None} if suffix == "svg" else None)
            paths.append(path)
    return paths


def draw(members: Sequence[Placed], title: str) -> Figure:
    panels: dict[str, list[Placed]] = defaultdict(list)
    for place, timings in members:
        panels[place.panel].append((place, timings))
    names = list(dict.fromkeys(timing.name for _, timings in members for timing in timings[1:]))
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = max(6.0, 1.2 + 3.6 * columns)
    figure = Figure(figsize=(width, 1.6 + 3.0 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False).flat
    for axis, (panel, inside) in zip(axes, panels.items(), strict=False):
        draw_panel(axis, panel, inside, names)
    for axis in list(axes)[len(panels) :]:
        axis.set_visible(False)
    handles: dict[str, Any] = {}
    for axis in figure.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    figure.legend(
        handles.values(),
        handles.keys(),
        loc="outside lower center",
        ncols=round(width / 2.2),
        fontsize=8,
        frameon=False,
    )
    figure.suptitle(title, fontsize=10)
    return figure


def draw_panel(axis: Axes, title: str, members: Sequence[Placed], names: Sequence[str]) -> None:
    limit = members[0][1][0].name
    axis.axhline(1, color="black", linestyle="--", linewidth=1, label=limit)
    ticks = list(dict.fromkeys(place.x for place, _ in members))
    to_scale = all(isinstance(x, int) for x in ticks)
    dots = [
        (timing, place.x if to_scale else ticks.index(place.x), min(timing.x_limit, TOP))
        for place, timings in members
        for timing in timings
    ]
    for index, name in enumerate(names):
        points = [(x, y) for timing, x, y in dots if timing.name == name]
        ours = name == members[0][1][1].name
        axis.plot(
            [x for x, _ in points],
            [y for _, y in points],
            marker="o" if ours else ".",
            linewidth=2.5 if ours else 1.2,
            color="black" if ours else f"C{index}",
            zorder=3 if ours else 2,
            label=name,
        )
    chosen = [(x, y) for timing, x, y in dots if timing.note.startswith(CHOICE)]
    if chosen:
        xs, ys = zip(*chosen, strict=True)
        axis.scatter(
            xs, ys, s=90, facecolors="none", edgecolors="black", zorder=4, label="the choice"
        )
    axis.set_title(title, fontsize=9)
    axis.set_yscale("log", base=2)
    axis.set_ylim(0.45, TOP * 1.1)
    axis.set_yticks([0.5, 1, 2, 4, 8, 16], ["0.5", "1", "2", "4", "8", "16"])
    axis.minorticks_off()
    axis.set_ylabel(f"time / {limit}", fontsize=8)
    axis.label_outer(remove_inner_ticks=False)
    axis.xaxis.set_tick_params(labelbottom=True, labelsize=8)
    axis.grid(alpha=0.3)
    if to_scale:
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks, [str(x) for x in ticks], rotation=45)
        axis.minorticks_off()
    else:
        labels = [str(x) for x in ticks]
        axis.set_xticks(range(len(ticks)), labels, rotation=20, ha="right", rotation_mode="anchor")
