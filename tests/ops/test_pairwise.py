"""The all-pairs generator that the op tests draw their cases from."""

from __future__ import annotations

import itertools
import math

from .pairwise import all_pairs, pairs_of

FACTORS = {"dtype": ["a", "b", "c"], "dim": [1, 2, 3, 4, 5], "layout": [0, 1], "size": [8, 16, 32]}


def test_every_two_values_of_two_factors_meet():
    covered = set().union(*(pairs_of(row) for row in all_pairs(FACTORS)))
    for a, b in itertools.combinations(sorted(FACTORS), 2):
        for x, y in itertools.product(FACTORS[a], FACTORS[b]):
            assert (a, x, b, y) in covered


def test_far_fewer_rows_than_the_product():
    rows = all_pairs(FACTORS)
    assert 15 <= len(rows) < math.prod(map(len, FACTORS.values())) // 3  # 15: dim x dtype alone


def test_a_seed_gives_the_same_rows_again():
    assert all_pairs(FACTORS, seed=3) == all_pairs(FACTORS, seed=3)
