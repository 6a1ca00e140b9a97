"""All-pairs covering: few rows in which every two values of two factors meet at least once.

The full product of the op tests' factors has thousands of rows; most faults need one value or the
meeting of two (Kuhn et al., "Software Fault Interactions", 2004).
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

Pair = tuple[str, Any, str, Any]


def pairs_of(row: Mapping[str, Any]) -> set[Pair]:
    return {(a, row[a], b, row[b]) for a, b in itertools.combinations(sorted(row), 2)}


def all_pairs(factors: Mapping[str, Sequence[Any]], seed: int = 0) -> list[dict[str, Any]]:
    """Greedy: each row starts from an uncovered pair and takes, factor by factor, the value that
    covers most. The same arguments give the same rows."""
    rng = random.Random(seed)
    uncovered = [
        (a, x, b, y)
        for a, b in itertools.combinations(sorted(factors), 2)
        for x, y in itertools.product(factors[a], factors[b])
    ]
    rng.shuffle(uncovered)
    remaining = dict.fromkeys(uncovered)  # a set that remembers its order
    rows = []
    while remaining:
        a, x, b, y = next(iter(remaining))
        row = {a: x, b: y}
        others = [name for name in factors if name not in row]
        rng.shuffle(others)
        for name in others:
            values = list(factors[name])
            rng.shuffle(values)
            row[name] = max(
                values,
                key=lambda value: sum(pair in remaining for pair in pairs_of({**row, name: value})),
            )
        for pair in pairs_of(row):
            remaining.pop(pair, None)
        rows.append({name: row[name] for name in factors})
    return rows
