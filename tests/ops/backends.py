"""Where the op tests run: the ops of a device, and what about it the tests need to know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

import pagedattn  # noqa: F401  (registers torch.ops.pagedattn)


@dataclass(frozen=True)
class Backend:
    """`ops` has the attributes of `torch.ops.pagedattn`; its tensors live on `device`.

    A slow backend runs only cases of at most `max_work` multiply-adds (see Spec.work).
    """

    name: str
    ops: Any
    device: torch.device
    max_work: float = float("inf")
    checks_values: bool = True  # block ids, slots and lengths out of range raise


def available() -> list[str]:
    names = ["cpu"]
    if torch.cuda.is_available():
        names.append("cuda")
    return names


def load(name: str) -> Backend:
    if name == "cpu":
        return Backend("cpu", torch.ops.pagedattn, torch.device("cpu"))
    return Backend("cuda", torch.ops.pagedattn, torch.device("cuda"), checks_values=False)
