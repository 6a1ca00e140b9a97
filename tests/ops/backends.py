"""Where the op tests run: the ops of a device, and what about it the tests need to know.

`cpu` and, where torch has a GPU, `cuda` are there by default. PAGEDATTN_TEST_BACKENDS names
others, e.g. `simt`: the CUDA kernels on the CPU, which take minutes to build.
PAGEDATTN_TEST_MAX_WORK leaves out cases of more multiply-adds than that (see Spec.work), for an
emulated GPU.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import torch

import pagedattn  # noqa: F401  (registers torch.ops.pagedattn)

DEFAULT_MAX_WORK = {"simt": 2e6}


@dataclass(frozen=True)
class Backend:
    """`ops` has the attributes of `torch.ops.pagedattn`; its tensors live on `device`."""

    name: str
    ops: Any
    device: torch.device
    checks_values: bool = True  # block ids, slots and lengths out of range raise


def available() -> list[str]:
    named = os.environ.get("PAGEDATTN_TEST_BACKENDS")
    if named:
        return named.split(",")
    return ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]


def max_work(name: str) -> float:
    return float(os.environ.get("PAGEDATTN_TEST_MAX_WORK") or DEFAULT_MAX_WORK.get(name, "inf"))


def load(name: str) -> Backend:
    if name == "cuda":
        return Backend(name, torch.ops.pagedattn, torch.device("cuda"), checks_values=False)
    if name == "simt":
        from simt import build  # tests/simt

        return Backend(name, build.load_ops(), torch.device("cpu"))
    assert name == "cpu", f"PAGEDATTN_TEST_BACKENDS: no backend is called {name}"
    return Backend(name, torch.ops.pagedattn, torch.device("cpu"))
