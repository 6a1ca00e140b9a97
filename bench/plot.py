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

from .report import Group

matplotlib.rcParams["svg.hashsalt"] = "pagedattn"  # the same figure, the same file
COLUMNS = 5
TOP = 12.0  # slower than this times the limit is drawn at the edge


def draw_all(groups: Sequence[Group], directory: Path, stem: str, caption: str) -> list[Path]:
    """`<stem>-<figure>.png` and `.svg` for each figure that the groups have a place in."""
    directory.mkdir(parents=True, exist_ok=True)
    figures: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        figures[group.place.figure].append(group)
    paths = []
    for name, members in figures.items():
        figure = draw(members, f"{name}: {caption}")
        for suffix in ("png", "svg"):
            path = directory / f"{stem}-{name}.{suffix}"
            figure.savefig(path, dpi=120, metadata={"Date": None} if suffix == "svg" else None)
            paths.append(path)
    return paths


def draw(groups: Sequence[Group], title: str) -> Figure:
    panels: dict[str, list[Group]] = defaultdict(list)
    for group in groups:
        panels[group.place.panel].append(group)
    names = list(dict.fromkeys(t.name for group in groups for t in group.timings[1:]))
    columns = min(COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    width = max(6.0, 1.2 + 3.6 * columns)
    figure = Figure(figsize=(width, 1.6 + 3.0 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, sharey=True, squeeze=False).flat
    for axis, (panel, members) in zip(axes, panels.items(), strict=False):
        draw_panel(axis, panel, members, names)
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


def draw_panel(axis: Axes, title: str, groups: Sequence[Group], names: Sequence[str]) -> None:
    limit = groups[0].timings[0].name
    axis.axhline(1, color="black", linestyle="--", linewidth=1, label=limit)
    ticks = list(dict.fromkeys(group.place.x for group in groups))
    to_scale = all(isinstance(x, int) for x in ticks)
    for index, name in enumerate(names):
        points = [
            (group.place.x if to_scale else ticks.index(group.place.x), min(timing.x_limit, TOP))
            for group in groups
            for timing in group.timings
            if timing.name == name
        ]
        ours = name == "pagedattn"
        axis.plot(
            [x for x, _ in points],
            [y for _, y in points],
            marker="o" if ours else ".",
            linewidth=2.5 if ours else 1.2,
            color="black" if ours else f"C{index}",
            zorder=3 if ours else 2,
            label=name,
        )
    axis.set_title(title, fontsize=9)
    axis.set_yscale("log", base=2)
    axis.set_ylim(0.45, TOP * 1.05)
    axis.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
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
        axis.set_xticks(range(len(ticks)), [str(x) for x in ticks], rotation=30)
