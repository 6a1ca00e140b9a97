"""The others: an adapter each, used where its package can be imported."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, TypeVar

from .. import memory
from ..measure import Contestant
from ..notes import first_line
from ..problem import Problem

# Name on the command line: module and class.
ATTENTION = {
    "sdpa": "sdpa:Sdpa",
    "vllm-cpu": "vllm_cpu:VllmCpu",
    "flex": "flex:Flex",
    "openvino": "openvino:OpenVino",
    "vllm": "vllm_cuda:VllmCuda",
    "flashinfer": "flashinfer:FlashInfer",
    "flash-attn": "flash_attn:FlashAttn",
}
BLOCK_MANAGERS = {"vllm": "vllm_blocks:VllmBlocks"}


class Unsupported(Exception):
    """A peer cannot do a problem; the message says why."""


P = TypeVar("P", contravariant=True)


class Peer(ABC, Generic[P]):
    """Makes contestants of another implementation, for problems of a kind.

    The constructor raises ImportError where the implementation is not installed.
    """

    devices: ClassVar[tuple[str, ...]]

    @abstractmethod
    def contestants(self, problem: P) -> Sequence[Contestant]:
        """With the problem's content in the peer's own memory. Raises Unsupported."""


def require_memory(problem: Problem, num_copies: int) -> None:
    """Raises TooLarge if so many copies of all layers do not fit."""
    num_bytes = num_copies * problem.num_layers * problem.shape.kv_bytes
    memory.require(num_bytes, problem.query.device)


def choose(
    wish: str, registry: Mapping[str, str], device: str
) -> tuple[dict[str, Peer[Any]], dict[str, str]]:
    """The peers that `auto`, `none` or a list of names asks for, and why others are left out.

    Raises ValueError for a name that is unknown or not of this device, and ImportError for one that
    is asked for by name and cannot be had.
    """
    if wish == "none":
        return {}, {}
    classes = {name: load_class(where) for name, where in registry.items()}
    classes = {name: cls for name, cls in classes.items() if device in cls.devices}
    names = list(classes) if wish == "auto" else wish.split(",")
    for name in names:
        if name not in classes:
            known = ", ".join(classes) or "none"
            raise ValueError(f"no peer here is called {name!r}; on {device} there are: {known}")
    peers: dict[str, Peer[Any]] = {}
    left_out: dict[str, str] = {}
    for name in names:
        try:
            peers[name] = classes[name]()
        except Exception as error:  # an import of another project ends with anything
            if wish != "auto":
                raise ImportError(f"{name}: {first_line(error)}") from error
            left_out[name] = first_line(error)
    return peers, left_out


def load_class(where: str) -> type[Peer[Any]]:
    module, class_name = where.split(":")
    found: type[Peer[Any]] = getattr(importlib.import_module(f".{module}", __name__), class_name)
    return found
