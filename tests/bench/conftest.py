"""What makes a matter of moments of the preset `smoke`."""

from __future__ import annotations

import pytest

from bench import cache, problem
from bench.shapes import AttentionShape

TINY = AttentionShape((40, 40), dtype="fp32", num_q_heads=4, num_kv_heads=2, head_dim=32)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with a tiny cache, and few calls."""
    monkeypatch.setattr(problem, "last_level_cache_bytes", lambda: 1 << 15)
    monkeypatch.setattr(cache, "CALLS", 2)
