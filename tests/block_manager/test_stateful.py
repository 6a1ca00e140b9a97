"""Random call sequences against the plain-Python model: every observable, after every call."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pagedattn.block_manager import BlockManager, OutOfBlocks

from .model import ModelBlockManager, ModelOutOfBlocks

NAMES = st.sampled_from(["a", "b", "c", "d", "e"])
SALTS = st.sampled_from([None, None, None, "s", ""])


class BlockManagerMachine(RuleBasedStateMachine):
    @initialize(
        num_blocks=st.integers(2, 12),
        block_size=st.sampled_from([1, 2, 8, 16]),
        caching=st.sampled_from([True, True, True, False]),
        num_host_blocks=st.integers(0, 6),
        watermark=st.sampled_from([0.0, 0.1, 0.34, 1.0]),
        window=st.sampled_from([None, None, 0, 1, 5, 20]),
        one=st.sampled_from([1, -1, 2**32]),
    )
    def start(
        self,
        num_blocks: int,
        block_size: int,
        caching: bool,
        num_host_blocks: int,
        watermark: float,
        window: int | None,
        one: int,
    ) -> None:
        options: dict[str, Any] = {
            "enable_prefix_caching": caching,
            "num_host_blocks": num_host_blocks,
            "watermark": watermark,
            "window": window,
        }
        self.size = block_size
        self.real = BlockManager(num_blocks, block_size, **options)
        self.model = ModelBlockManager(num_blocks, block_size, **options)
        # Few distinct prompts, so that prefixes meet: a block is all token 0 or all the other
        # token, whose low half may be that of 0.
        self.alphabet = (0, one)
        self.last_prompt = [0] * (3 * block_size)

    def tokens(self, bits: list[int], cut: int) -> list[int]:
        tokens = [self.alphabet[bit] for bit in bits for _ in range(self.size)]
        return tokens[: max(0, len(tokens) - cut % self.size)]

    def both(self, real: Callable[[], Any], model: Callable[[], Any]) -> None:
        """Runs both; they return equal values or raise equal errors."""
        wanted: tuple[int, ...] | type[Exception]
        try:
            expected = model()
        except ModelOutOfBlocks as error:
            wanted = (error.needed, error.free, error.total)
        except (KeyError, ValueError) as error:
            wanted = type(error)
        else:
            assert real() == expected
            return
        if isinstance(wanted, type):
            with pytest.raises(wanted):
                real()
        else:
            with pytest.raises(OutOfBlocks) as raised:
                real()
            assert (raised.value.needed, raised.value.free, raised.value.total) == wanted

    BITS = st.lists(st.integers(0, 1), min_size=0, max_size=5)
    CUT = st.integers(0, 15)

    @rule(name=NAMES, bits=BITS, cut=CUT, salt=SALTS, again=st.booleans(), array=st.booleans())
    def allocate(
        self, name: str, bits: list[int], cut: int, salt: str | None, again: bool, array: bool
    ) -> None:
        tokens = list(self.last_prompt) if again else self.tokens(bits, cut)
        self.last_prompt = tokens
        given = np.array(tokens, np.int64) if array else tokens
        self.both(
            lambda: tuple(self.real.allocate(name, given, cache_salt=salt)),
            lambda: self.model.allocate(name, tokens, salt),
        )

    @rule(name=NAMES, bit=st.integers(0, 1), count=st.integers(0, 20))
    def append(self, name: str, bit: int, count: int) -> None:
        tokens = [self.alphabet[bit]] * count
        self.both(
            lambda: tuple(self.real.append(name, tokens)),
            lambda: self.model.append(name, tokens),
        )

    @rule(name=NAMES, bit=st.integers(0, 1))
    def append_up_to_a_full_block(self, name: str, bit: int) -> None:
        request = self.model.requests.get(name)
        if request is not None:
            tokens = [self.alphabet[bit]] * (self.size - len(request.tokens) % self.size)
            self.both(
                lambda: tuple(self.real.append(name, tokens)),
                lambda: self.model.append(name, tokens),
            )

    @rule(names=st.lists(NAMES, unique=True), counts=st.lists(st.integers(0, 9), min_size=5))
    def append_batch(self, names: list[str], counts: list[int]) -> None:
        names = [
            n for n in names if n in self.model.requests and not self.model.requests[n].swapped
        ]
        counts = counts[: len(names)]
        one = self.alphabet[1]
        tokens = [one] * sum(counts)
        slots = np.full(len(tokens) + 1, 77, np.int64)
        tables = np.full((len(names) + 1, 40), 77, np.int32)
        lens = np.full(len(names) + 1, 77, np.int32)
        columns_short = any(
            self.model.blocks_for(len(self.model.requests[n].tokens) + c) > 40
            for n, c in zip(names, counts, strict=True)
        )
        if columns_short:
            return

        failed, expected_slots, copies = self.model.append_batch(names, [[one] * c for c in counts])
        result = self.real.append_batch(
            names, tokens, counts, slot_mapping=slots, block_tables=tables, seq_lens=lens
        )
        assert tuple(result) == (failed, copies)
        assert slots.tolist() == [*expected_slots, -1]
        self.check_rows(names, tables, lens)
        # One launch can run the copies.
        sources, destinations = {s for s, _ in copies}, [d for _, d in copies]
        assert len(set(destinations)) == len(destinations)
        assert not sources & set(destinations)

    @rule(names=st.lists(NAMES, unique=True))
    def fill_batch(self, names: list[str]) -> None:
        names = [
            n for n in names if n in self.model.requests and not self.model.requests[n].swapped
        ]
        tables = np.full((len(names) + 1, 60), 77, np.int32)
        lens = np.full(len(names) + 1, 77, np.int32)
        if all(len(self.model.requests[n].places) <= 60 for n in names):
            self.real.fill_batch(names, tables, lens)
            self.check_rows(names, tables, lens)

    def check_rows(self, names: list[str], tables: np.ndarray, lens: np.ndarray) -> None:
        assert lens.tolist() == [*(len(self.model.requests[n].tokens) for n in names), 0]
        for row, name in zip(tables.tolist(), names, strict=False):
            table = self.model.block_table(name)
            assert row == table + [0] * (tables.shape[1] - len(table))
        assert not tables[-1].any()

    @rule(names=st.lists(NAMES, unique=True, min_size=1), bits=BITS, cut=CUT, salt=SALTS)
    def allocate_batch(self, names: list[str], bits: list[int], cut: int, salt: str | None) -> None:
        names = [n for n in names if n not in self.model.requests]
        prompt = self.tokens(bits, cut)
        if not prompt:
            return
        lens = np.full(len(names), 77, np.int32)
        slots = np.full(len(names) * len(prompt), 77, np.int64)
        failed, cached, expected_slots = [], [], []
        for i, name in enumerate(names):
            try:
                table, num_cached = self.model.allocate(name, prompt, salt)
            except ModelOutOfBlocks:
                failed.append(i)
                cached.append(0)
                expected_slots += [-1] * len(prompt)
                continue
            cached.append(num_cached)
            size = self.size
            expected_slots += [
                table[p // size] * size + p % size if p >= num_cached else -1
                for p in range(len(prompt))
            ]
        result = self.real.allocate_batch(
            names,
            prompt * len(names),
            [len(prompt)] * len(names),
            cache_salt=salt,
            seq_lens=lens,
            slot_mapping=slots,
        )
        assert tuple(result) == (failed, cached)
        assert slots.tolist() == expected_slots
        assert lens.tolist() == [0 if i in failed else len(prompt) for i in range(len(names))]

    @rule(parent=NAMES, child=NAMES)
    def fork(self, parent: str, child: str) -> None:
        self.both(lambda: self.real.fork(parent, child), lambda: self.model.fork(parent, child))

    @rule(name=NAMES, cut=st.integers(-1, 40))
    def truncate(self, name: str, cut: int) -> None:
        request = self.model.requests.get(name)
        length = len(request.tokens) - cut if request else 0
        self.both(
            lambda: self.real.truncate(name, length), lambda: self.model.truncate(name, length)
        )

    @rule(name=NAMES)
    def free(self, name: str) -> None:
        self.both(lambda: set(self.real.free(name)), lambda: self.model.free(name, None))

    @rule(name=NAMES, back=st.integers(-1, 40))
    def free_uncomputed(self, name: str, back: int) -> None:
        request = self.model.requests.get(name)
        computed = len(request.tokens) - back if request else 0
        self.both(
            lambda: set(self.real.free(name, num_computed=computed)),
            lambda: self.model.free(name, computed),
        )

    @rule(bits=BITS, cut=CUT, salt=SALTS)
    def pin(self, bits: list[int], cut: int, salt: str | None) -> None:
        tokens = self.tokens(bits, cut)
        self.both(
            lambda: self.real.pin_prefix(tokens, cache_salt=salt),
            lambda: self.model.pin_prefix(tokens, salt),
        )

    @rule(bits=BITS, cut=CUT, salt=SALTS)
    def unpin(self, bits: list[int], cut: int, salt: str | None) -> None:
        tokens = self.tokens(bits, cut)
        self.both(
            lambda: self.real.unpin_prefix(tokens, cache_salt=salt),
            lambda: self.model.unpin_prefix(tokens, salt),
        )

    @rule(name=NAMES)
    def pin_request(self, name: str) -> None:
        request = self.model.requests.get(name)
        if request is not None:
            self.both(
                lambda: self.real.pin_prefix(request.tokens, cache_salt=request.salt),
                lambda: self.model.pin_prefix(request.tokens, request.salt),
            )

    @rule(name=NAMES)
    def swap_out(self, name: str) -> None:
        self.both(lambda: self.real.swap_out(name), lambda: self.model.swap_out(name))

    @rule(name=NAMES)
    def swap_in(self, name: str) -> None:
        self.both(lambda: self.real.swap_in(name), lambda: self.model.swap_in(name))

    @rule()
    def reset(self) -> None:
        assert self.real.reset_prefix_cache() == self.model.reset_prefix_cache()

    @rule(bits=BITS, cut=CUT, salt=SALTS)
    def lookup(self, bits: list[int], cut: int, salt: str | None) -> None:
        tokens = self.tokens(bits, cut)
        assert self.real.lookup(tokens, cache_salt=salt) == self.model.lookup(tokens, salt)

    @rule(num_tokens=st.integers(0, 250))
    def can_allocate(self, num_tokens: int) -> None:
        assert self.real.can_allocate(num_tokens).name == self.model.can_allocate(num_tokens)

    @rule(names=st.lists(NAMES))
    def common_prefix(self, names: list[str]) -> None:
        self.both(
            lambda: self.real.common_prefix_blocks(names),
            lambda: self.model.common_prefix_blocks(names),
        )

    @invariant()
    def same_state(self) -> None:
        if not hasattr(self, "real"):
            return
        real, model = self.real, self.model
        real.check_invariants()
        assert [real.ref_count(b) for b in range(model.num_blocks)] == [
            model.ref_count(b) for b in range(model.num_blocks)
        ]
        for name, request in model.requests.items():
            assert name in real
            assert real.num_tokens(name) == len(request.tokens)
            if not request.swapped:
                assert real.block_table(name) == model.block_table(name)
        assert real.num_free_blocks == model.num_free()
        assert real.num_host_free_blocks == len(model.free_hosts)
        assert real.stats() == (
            model.num_blocks,
            model.num_free(),
            len(model.cached),
            len(model.pinned_blocks()),
            (model.capacity - model.num_free()) / model.capacity,
            model.num_host_blocks,
            len(model.free_hosts),
            model.queried,
            model.hit,
            model.evictions,
            model.copies_on_write,
        )
        for salt, tokens in model.published:
            prompt = [*tokens, 2]
            assert real.lookup(prompt, cache_salt=salt) == model.lookup(prompt, salt)


# PAGEDATTN_FUZZ_EXAMPLES=5000 turns the everyday check into a long one.
BlockManagerMachine.TestCase.settings = settings(
    max_examples=int(os.environ.get("PAGEDATTN_FUZZ_EXAMPLES", "100")),
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
TestBlockManager = BlockManagerMachine.TestCase
