"""The life of a request: append, copy on write, fork, truncate, failed steps, window."""

from __future__ import annotations

import random

import pytest

from pagedattn.block_manager import AllocationStatus, BlockManager, OutOfBlocks

SIZE = 4


def test_slots_follow_the_block_table() -> None:
    manager = BlockManager(10, SIZE)
    manager.allocate("a", [1, 2, 3])
    slots = manager.append("a", [4, 5, 6, 7, 8, 9]).slots
    table = manager.block_table("a")
    assert slots == [table[p // SIZE] * SIZE + p % SIZE for p in range(3, 9)]
    assert manager.num_tokens("a") == 9


def test_appending_nothing_is_nothing() -> None:
    manager = BlockManager(1, SIZE)
    manager.allocate("a", [1])
    before = manager.stats()
    assert manager.append("a", []) == ([], [])
    assert manager.stats() == before


def test_unknown_and_duplicate_requests() -> None:
    manager = BlockManager(4, SIZE)
    manager.allocate("a", [1])
    for call in (
        lambda: manager.append("b", [1]),
        lambda: manager.free("b"),
        lambda: manager.fork("b", "c"),
        lambda: manager.truncate("b", 0),
        lambda: manager.block_table("b"),
        lambda: manager.num_tokens("b"),
        lambda: manager.swap_out("b"),
        lambda: manager.append_batch(["a", "b"], [1, 2]),
    ):
        with pytest.raises(KeyError, match="'b'"):
            call()
    for call in (
        lambda: manager.allocate("a", [1]),
        lambda: manager.fork("a", "a"),
        lambda: manager.append_batch(["a", "a"], [1, 2]),
        lambda: manager.allocate_batch(["c", "c"], [1, 2], [1, 1]),
        lambda: manager.allocate("c", []),
    ):
        with pytest.raises(ValueError, match=r"'a'|'c'"):
            call()
    assert manager.num_tokens("a") == 1
    assert "c" not in manager


def test_free_in_any_order() -> None:
    for seed in range(20):
        manager = BlockManager(12, SIZE)
        names = [f"r{i}" for i in range(4)]
        for i, name in enumerate(names):
            manager.allocate(name, [0] * 5 + [i] * i)
        manager.fork("r3", "fork")
        names.append("fork")
        random.Random(seed).shuffle(names)
        for name in names:
            manager.free(name)
            manager.check_invariants()
        assert manager.num_free_blocks == 12


class TestFork:
    def test_first_append_to_a_shared_partial_block_copies_it(self) -> None:
        manager = BlockManager(10, SIZE)
        table = manager.allocate("a", [1, 2, 3, 4, 5]).block_ids
        manager.fork("a", "b")
        assert manager.block_table("b") == table
        assert manager.ref_count(table[1]) == 2
        result = manager.append("a", [6])
        (new,) = set(manager.block_table("a")) - set(table)
        assert result == ([new * SIZE + 1], [(table[1], new)])
        assert manager.append("b", [7]) == ([table[1] * SIZE + 1], [])  # now its own
        assert manager.stats().num_copies_on_write == 1

    def test_a_full_last_block_is_shared_without_a_copy(self) -> None:
        manager = BlockManager(10, SIZE)
        manager.allocate("a", [1, 2, 3, 4])
        manager.fork("a", "b")
        assert manager.append("a", [5]).copies == []
        assert manager.append("b", [5]).copies == []
        assert manager.block_table("a")[0] == manager.block_table("b")[0]

    def test_copy_that_does_not_fit_changes_nothing(self) -> None:
        manager = BlockManager(2, SIZE)
        manager.allocate("a", [1, 2, 3, 4, 5])
        manager.fork("a", "b")
        with pytest.raises(OutOfBlocks):
            manager.append("a", [6])
        assert manager.block_table("a") == manager.block_table("b")
        assert manager.num_tokens("a") == 5
        manager.check_invariants()

    def test_beam_search_leaks_nothing(self) -> None:
        width, steps = 4, 64
        manager = BlockManager(100, SIZE)
        rng = random.Random(0)
        manager.allocate("beam0-0", list(range(10)))
        for i in range(1, width):
            manager.fork("beam0-0", f"beam0-{i}")
        for step in range(steps):
            parents = [rng.randrange(width) for _ in range(width)]
            for i, parent in enumerate(parents):
                manager.fork(f"beam{step}-{parent}", f"beam{step + 1}-{i}")
            for i in range(width):
                manager.free(f"beam{step}-{i}")
            copies = [
                pair
                for i in range(width)
                for pair in manager.append(f"beam{step + 1}-{i}", [rng.randrange(50)]).copies
            ]
            assert len({dst for _, dst in copies}) == len(copies)
            manager.check_invariants()
        assert manager.num_tokens(f"beam{steps}-0") == 10 + steps
        for i in range(width):
            manager.free(f"beam{steps}-{i}")
        assert manager.num_free_blocks == 100

    @pytest.mark.parametrize("num_forks", [0, 1, 5])
    @pytest.mark.parametrize("prompt_length", [7, 8, 9])
    def test_memory_is_the_shared_blocks_plus_the_own_ones(
        self, num_forks: int, prompt_length: int
    ) -> None:
        manager = BlockManager(200, SIZE)
        manager.allocate("0", list(range(prompt_length)))
        lengths = [5 + 3 * i for i in range(num_forks + 1)]
        for i in range(1, num_forks + 1):
            manager.fork("0", str(i))
        for i, length in enumerate(lengths):
            manager.append(str(i), [1000 * i + t for t in range(length)])
        shared = prompt_length // SIZE if num_forks else 0
        own = sum(-(-(prompt_length + length) // SIZE) - shared for length in lengths)
        assert 200 - manager.num_free_blocks == shared + own


class TestTruncate:
    def test_gives_blocks_back_and_keeps_their_content(self) -> None:
        manager = BlockManager(10, SIZE)
        manager.allocate("a", list(range(12)))
        manager.truncate("a", 5)
        assert len(manager.block_table("a")) == 2
        assert manager.num_free_blocks == 8
        assert manager.lookup([*range(12), 0]) == 12

    def test_then_append_never_serves_the_old_content(self) -> None:
        manager = BlockManager(10, SIZE)
        manager.allocate("a", list(range(8)))
        manager.truncate("a", 6)
        assert manager.append("a", [60, 70]).copies == []  # in place
        assert manager.lookup([*range(8), 0]) == 4
        assert manager.lookup([0, 1, 2, 3, 4, 5, 60, 70, 0]) == 8

    def test_into_a_block_that_others_hold_copies_it(self) -> None:
        manager = BlockManager(10, SIZE)
        manager.allocate("a", list(range(8)))
        table = manager.allocate("b", [*range(8), 8]).block_ids
        manager.truncate("a", 6)
        ((source, target),) = manager.append("a", [60, 70]).copies
        assert source == table[1]
        assert manager.block_table("a") == [table[0], target]
        assert manager.lookup([*range(8), 0]) == 8  # b's content is untouched
        assert manager.lookup([0, 1, 2, 3, 4, 5, 60, 70, 0]) == 8

    def test_to_nothing_and_on(self) -> None:
        manager = BlockManager(10, SIZE)
        manager.allocate("a", list(range(8)))
        manager.truncate("a", 0)
        assert manager.block_table("a") == []
        assert manager.num_free_blocks == 10
        manager.append("a", [5, 6])
        assert manager.num_tokens("a") == 2

    def test_rolls_back_rejected_speculation(self) -> None:
        manager = BlockManager(10, SIZE)
        manager.allocate("a", list(range(6)))
        for token in range(6, 20):
            manager.append("a", [token, 900, 901, 902])
            manager.truncate("a", token + 1)
        assert manager.lookup([*range(20), 0]) == 20
        assert len(manager.block_table("a")) == 5

    @pytest.mark.parametrize("length", [-1, 9, 2**40])
    def test_to_a_length_it_has_not(self, length: int) -> None:
        manager = BlockManager(10, SIZE)
        manager.allocate("a", list(range(8)))
        with pytest.raises(ValueError, match=r"\[0, 8\]"):
            manager.truncate("a", length)


class TestFailedStep:
    def test_uncomputed_blocks_serve_no_hits(self) -> None:
        manager = BlockManager(10, SIZE)
        manager.allocate("a", list(range(12)))
        assert manager.free("a", num_computed=5) == []
        assert manager.lookup([*range(12), 0]) == 4
        assert manager.stats().num_hittable_free == 1

    def test_names_the_requests_that_share_them(self) -> None:
        manager = BlockManager(20, SIZE)
        manager.allocate("a", list(range(12)))
        manager.allocate("one block", [*range(4), 77])
        manager.allocate("all", [*range(12), 77])
        assert manager.free("a", num_computed=4) == ["all"]
        assert manager.lookup([*range(12), 0]) == 4

    def test_blocks_it_hit_are_not_its_own(self) -> None:
        manager = BlockManager(20, SIZE)
        manager.allocate("a", list(range(8)))
        manager.allocate("b", list(range(12)))
        assert manager.free("b", num_computed=0) == []
        assert manager.lookup([*range(12), 0]) == 8

    def test_a_fork_of_it_is_named(self) -> None:
        manager = BlockManager(20, SIZE)
        manager.allocate("a", list(range(6)))
        manager.fork("a", "b")
        assert manager.free("a", num_computed=5) == ["b"]

    def test_a_computed_request_unpublishes_nothing(self) -> None:
        manager = BlockManager(20, SIZE)
        manager.allocate("a", list(range(6)))
        manager.fork("a", "b")
        assert manager.free("a", num_computed=6) == []
        assert manager.lookup([*range(4), 0]) == 4

    @pytest.mark.parametrize("num_computed", [-1, 7])
    def test_more_than_it_has(self, num_computed: int) -> None:
        manager = BlockManager(20, SIZE)
        manager.allocate("a", list(range(6)))
        with pytest.raises(ValueError, match=r"num_computed .* \[0, 6\]"):
            manager.free("a", num_computed=num_computed)
        assert "a" in manager


class TestWindow:
    def test_a_long_request_runs_in_a_bounded_number_of_blocks(self) -> None:
        window = 6
        manager = BlockManager(5, SIZE, window=window)
        manager.allocate("a", [0])
        for position in range(1, 200):
            manager.append("a", [position])
            manager.check_invariants()
            for i, block in enumerate(manager.block_table("a")):
                last_position = (i + 1) * SIZE - 1
                assert (block == 0) == (last_position < position - window)

    def test_the_null_block_is_no_capacity(self) -> None:
        manager = BlockManager(4, SIZE, window=8)
        assert manager.num_free_blocks == 3
        assert 0 not in manager.allocate("a", list(range(12))).block_ids
        with pytest.raises(OutOfBlocks, match="total 3"):
            manager.allocate("b", [1])

    def test_given_back_blocks_stay_hittable(self) -> None:
        manager = BlockManager(20, SIZE, window=4)
        manager.allocate("a", list(range(12)))
        manager.append("a", [12])
        assert manager.block_table("a")[:2] == [0, 0]
        assert manager.lookup([*range(12), 0]) == 12

    def test_failed_append_gives_nothing_back(self) -> None:
        manager = BlockManager(4, SIZE, window=4)
        table = manager.allocate("a", list(range(12))).block_ids
        with pytest.raises(OutOfBlocks):
            manager.append("a", list(range(12, 40)))
        assert manager.block_table("a") == table

    def test_truncating_below_the_last_append(self) -> None:
        manager = BlockManager(20, SIZE, window=4)
        manager.allocate("a", list(range(12)))
        manager.append("a", [12, 13, 14])
        manager.truncate("a", 12)
        with pytest.raises(ValueError, match="window"):
            manager.truncate("a", 11)


class TestCanAllocate:
    def test_watermark(self) -> None:
        manager = BlockManager(10, SIZE, watermark=0.15)  # keeps 2 free
        assert manager.can_allocate(8 * SIZE) is AllocationStatus.OK
        assert manager.can_allocate(8 * SIZE + 1) is AllocationStatus.NEVER
        manager.allocate("a", [1])
        assert manager.can_allocate(8 * SIZE) is AllocationStatus.LATER
        assert manager.can_allocate(7 * SIZE) is AllocationStatus.OK
        manager.allocate("b", list(range(9 * SIZE)))  # allocate ignores it

    def test_ignores_hits(self) -> None:
        manager = BlockManager(4, SIZE)
        manager.allocate("a", list(range(2 * SIZE)))
        assert manager.can_allocate(3 * SIZE) is AllocationStatus.LATER

    def test_the_null_block_does_not_count(self) -> None:
        manager = BlockManager(4, SIZE, window=8)
        assert manager.can_allocate(3 * SIZE) is AllocationStatus.OK
        assert manager.can_allocate(4 * SIZE) is AllocationStatus.NEVER


class TestCommonPrefix:
    def test_counts_full_shared_blocks(self) -> None:
        manager = BlockManager(30, SIZE)
        manager.allocate("a", [*range(8), 1])
        manager.allocate("b", [*range(8), 2])
        manager.allocate("c", [*range(4), 3])
        manager.fork("a", "d")
        assert manager.common_prefix_blocks(["a", "b"]) == 2
        assert manager.common_prefix_blocks(["a", "b", "c"]) == 1
        assert manager.common_prefix_blocks(["a", "d"]) == 2  # the partial block is no prefix
        assert manager.common_prefix_blocks(["a"]) == 2
        assert manager.common_prefix_blocks([]) == 0

    def test_equal_content_in_different_blocks_is_not_shared(self) -> None:
        manager = BlockManager(30, SIZE)
        manager.allocate("a", list(range(8)))
        manager.allocate("b", list(range(8)))
        assert manager.common_prefix_blocks(["a", "b"]) == 1


class TestUtilisation:
    def test_bound_per_request(self) -> None:
        size = 16
        manager = BlockManager(1000, size)
        for length in range(1, 300, 7):
            manager.allocate("a", list(range(length)))
            utilisation = length / (len(manager.block_table("a")) * size)
            assert utilisation >= 1 - size / (length + size)
            manager.free("a")

    def test_waste_is_small_on_a_chat_like_length_mix(self) -> None:
        # Log-normal lengths with the mean prompt plus answer of ShareGPT, about 500 tokens.
        rng = random.Random(0)
        size, used = 16, 0
        manager = BlockManager(40_000, size, enable_prefix_caching=False)
        for i in range(400):
            length = max(4, int(rng.lognormvariate(5.9, 0.8)))
            manager.allocate(str(i), list(range(length)))
            used += length
        held = (40_000 - manager.num_free_blocks) * size
        assert 1 - used / held < 0.04
