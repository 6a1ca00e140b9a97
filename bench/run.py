"""What the command line asked for, and running it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import torch

from .machine import describe
from .peers import Peer
from .report import Group, print_group, write_json


@dataclass
class Options:
    device: str = "cpu"
    preset: str = "quick"
    peers: dict[str, Peer] = field(default_factory=dict)
    threads: tuple[int, ...] = ()
    seconds: float = 3.0  # a case is timed for
    only: tuple[str, ...] = ()
    json: Path | None = None
    plot: Path | None = None

    def say(self, line: str) -> None:
        print(line, file=sys.stderr)

    def wants(self, title: str) -> bool:
        """Whether a case's title has all the words that `--only` gave."""
        return set(self.only) <= set(title.split())
