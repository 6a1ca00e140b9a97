"""bench/memory.py."""

from __future__ import annotations

import gc
import weakref

import torch

from bench import memory


class Holder:
    """Tensors, in a cycle of references as an error and its frames are."""

    def __init__(self) -> None:
        self.tensor = torch.empty(1)
        self.itself = self


def test_tensors_held_only_by_a_cycle_count_as_free():
    gc.disable()
    try:
        tensor = weakref.ref(Holder().tensor)
        assert tensor() is not None
        memory.available(torch.device("cpu"))
        assert tensor() is None
    finally:
        gc.enable()
