"""Small enough for tests: a machine with a tiny cache, and presets of tiny shapes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import block_manager, cache, cascade, presets, problem
from bench.report import Place
from bench.shapes import AttentionShape

TINY = AttentionShape((40, 40), dtype="fp32", num_q_heads=4, num_kv_heads=2, head_dim=32)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes every benchmark a matter of moments."""

    def decode() -> Iterator[presets.Case]:
        yield presets.Case(TINY, Place("decode", "fp32", "2x40"), compares_splits=True)

    def prefill() -> Iterator[presets.Case]:
        shape = AttentionShape((40,), 24, "fp32", num_q_heads=4, num_kv_heads=2, head_dim=32)
        yield presets.Case(shape, Place("prefill", "fp32", 40))

    monkeypatch.setitem(presets.PRESETS, ("decode", "quick"), [decode])
    monkeypatch.setitem(presets.PRESETS, ("prefill", "quick"), [prefill])
    for module in (problem, cache, cascade):
        monkeypatch.setattr(module, "last_level_cache_bytes", lambda: 1 << 15)
    monkeypatch.setattr(cache, "NUM_TOKENS", {"quick": (16,)})
    monkeypatch.setattr(cache, "CALLS", 2)
    monkeypatch.setattr(cascade, "shapes", lambda preset: [cascade.SharedPrefix(2, 32, 5)])
    monkeypatch.setattr(block_manager, "POOLS", (500, 600))
