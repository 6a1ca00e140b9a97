"""What the command line asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .peers import Peer


@dataclass(frozen=True)
class Options:
    device: str = "cpu"
    preset: str = "quick"
    peers: dict[str, Peer[Any]] = field(default_factory=dict)
    seconds: float = 3.0  # that a case is timed for, about
    words: frozenset[str] = frozenset()

    def wants(self, title: str) -> bool:
        """Whether a case's title has all the words that `--only` gave."""
        return self.words <= set(title.split())
