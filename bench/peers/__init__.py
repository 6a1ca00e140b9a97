"""The others: an adapter each, used where its package can be imported."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from ..measure import Contestant
from ..problem import Problem

# Name on the command line: module and class.
REGISTRY = {
    "sdpa": "sdpa:Sdpa",
}


class Unsupported(Exception):
    """A peer cannot do a problem; the message says why."""


class Peer(ABC):
    """Makes contestants of another implementation. The constructor may raise ImportError."""

    devices: ClassVar[tuple[str, ...]]

    @abstractmethod
    def contestants(self, problem: Problem) -> Sequence[Contestant]:
        """With the problem's content in the peer's own memory. Raises Unsupported."""


def choose(wish: str, device: str) -> tuple[dict[str, Peer], dict[str, str]]:
    """The peers that `auto`, `none` or a list of names asks for, and why others are left out.

    Raises ValueError for an unknown name, and ImportError for one that is asked for by name and
    cannot be had.
    """
    names = list(REGISTRY) if wish == "auto" else [] if wish == "none" else wish.split(",")
    unknown = [name for name in names if name not in REGISTRY]
    if unknown:
        raise ValueError(
            f"unknown peer {unknown[0]!r}; there are auto, none and {', '.join(REGISTRY)}"
        )
    peers: dict[str, Peer] = {}
    left_out: dict[str, str] = {}
    for name in names:
        module, class_name = REGISTRY[name].split(":")
        peer_class = getattr(importlib.import_module(f".{module}", __name__), class_name)
        if device not in peer_class.devices:
            left_out[name] = f"runs on {' and '.join(peer_class.devices)} only"
            continue
        try:
            peers[name] = peer_class()
        except ImportError as error:
            if wish != "auto":
                raise
            left_out[name] = str(error)
    return peers, left_out
