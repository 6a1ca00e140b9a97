"""What is shared by prefix, for how long, and what can never be."""

from __future__ import annotations

import pytest

from pagedattn.block_manager import BlockManager, OutOfBlocks

SIZE = 4


def prompt(num_blocks: int, start: int = 0) -> list[int]:
    return list(range(start, start + num_blocks * SIZE))


def test_whole_prompt_cached_still_computes_a_token() -> None:
    manager = BlockManager(10, SIZE)
    first = manager.allocate("a", prompt(3))
    second = manager.allocate("b", prompt(3))
    assert second.num_cached_tokens == 2 * SIZE
    assert second.block_ids[:2] == first.block_ids[:2]
    assert second.block_ids[2] != first.block_ids[2]


@pytest.mark.parametrize("length", [1, SIZE - 1, SIZE, SIZE + 1, 3 * SIZE - 1, 3 * SIZE])
def test_lookup_says_what_allocate_will_say(length: int) -> None:
    manager = BlockManager(20, SIZE)
    manager.allocate("a", prompt(3))
    promised = manager.lookup(prompt(3)[:length])
    assert promised == (length - 1) // SIZE * SIZE
    assert manager.allocate("b", prompt(3)[:length]).num_cached_tokens == promised


def test_lookup_changes_nothing() -> None:
    manager = BlockManager(2, SIZE)
    manager.allocate("old", prompt(1))
    manager.free("old")
    manager.allocate("new", prompt(1, 100))
    manager.free("new")
    before = manager.stats()
    assert manager.lookup([*prompt(1), 0]) == SIZE
    assert manager.stats() == before
    manager.allocate("other", [7])  # evicts "old", which lookup has not made recent
    assert manager.lookup([*prompt(1), 0]) == 0
    assert manager.lookup([*prompt(1, 100), 0]) == SIZE


def test_hits_that_are_all_free_while_the_pool_is_nearly_full() -> None:
    manager = BlockManager(5, SIZE)
    blocks = manager.allocate("a", prompt(3)).block_ids
    manager.free("a")
    manager.allocate("b", prompt(2, 100))  # takes the two blocks that hold nothing
    assert manager.num_free_blocks == 3
    # Two hits and two new blocks need four: one too many, and the hits must stay cached.
    with pytest.raises(OutOfBlocks) as caught:
        manager.allocate("c", [*prompt(2), *prompt(2, 200)])
    assert (caught.value.needed, caught.value.free) == (4, 3)
    assert [manager.ref_count(b) for b in blocks] == [0, 0, 0]
    assert manager.allocate("d", [*prompt(2), 7]).block_ids == [*blocks[:2], blocks[2]]


def test_failed_allocation_changes_nothing() -> None:
    manager = BlockManager(4, SIZE)
    manager.allocate("a", prompt(2))
    before = (manager.stats(), [manager.ref_count(b) for b in range(4)])
    with pytest.raises(OutOfBlocks):
        manager.allocate("b", [*prompt(2), *prompt(3, 50)])
    assert (manager.stats(), [manager.ref_count(b) for b in range(4)]) == before
    assert "b" not in manager
    manager.check_invariants()


def test_out_of_blocks_says_what_was_needed() -> None:
    manager = BlockManager(4, SIZE)
    manager.allocate("a", prompt(2))
    with pytest.raises(MemoryError, match=r"'b' needed 3, free 2, total 4") as caught:
        manager.allocate("b", prompt(3, 50))
    error = caught.value
    assert isinstance(error, OutOfBlocks)
    assert (error.needed, error.free, error.total, error.request_id) == (3, 2, 4, "b")


def test_evicted_content_is_gone_and_can_come_back() -> None:
    manager = BlockManager(2, SIZE)
    manager.allocate("a", prompt(2))
    manager.free("a")
    manager.allocate("b", prompt(2, 100))
    assert manager.stats().num_evictions == 2
    manager.free("b")
    assert manager.lookup([*prompt(2), 0]) == 0
    manager.allocate("c", prompt(2))
    assert manager.lookup([*prompt(2), 0]) == 2 * SIZE


def test_content_behind_an_evicted_block_hits_again_once_the_gap_is_filled() -> None:
    manager = BlockManager(6, SIZE)
    manager.allocate("a", prompt(1))
    manager.allocate("b", prompt(1))  # same content in a block of its own, not published
    manager.append("b", prompt(1, 100))  # published behind a's block
    manager.free("a")
    for i in range(4):
        manager.allocate(f"filler{i}", [i])
        if i < 3:
            assert manager.lookup([*prompt(1), *prompt(1, 100), 0]) == 2 * SIZE
    assert manager.lookup([*prompt(1), *prompt(1, 100), 0]) == 0
    manager.free("filler0")
    manager.allocate("c", prompt(1))
    assert manager.lookup([*prompt(1), *prompt(1, 100), 0]) == 2 * SIZE


class TestSalt:
    def test_equal_tokens_under_different_salts_share_nothing(self) -> None:
        manager = BlockManager(20, SIZE)
        tables = [
            manager.allocate(repr(salt), prompt(2), cache_salt=salt).block_ids
            for salt in (None, "", "x", "y", "None")
        ]
        assert len({block for table in tables for block in table}) == 10
        assert manager.lookup(prompt(2), cache_salt="x") == SIZE
        assert manager.lookup(prompt(2), cache_salt="z") == 0

    def test_a_salt_that_reads_like_tokens_or_another_salt_plus_tokens(self) -> None:
        manager = BlockManager(20, SIZE)
        manager.allocate("a", [ord(c) for c in "saltsalt"], cache_salt="x")
        for salt in ("salt", "xsalt", "x\0", "\0", "115", "saltsalt"):
            assert manager.lookup([ord(c) for c in "saltsalt"], cache_salt=salt) == 0

    def test_a_salt_is_forgotten_with_its_content(self) -> None:
        manager = BlockManager(1, SIZE)
        for i in range(50):
            manager.allocate("a", prompt(1), cache_salt=f"tenant {i}")
            manager.free("a")
        assert manager.lookup([*prompt(1), 0], cache_salt="tenant 49") == SIZE
        assert manager.lookup([*prompt(1), 0], cache_salt="tenant 48") == 0
        manager.check_invariants()


def test_same_block_tokens_after_different_prefixes_are_different_content() -> None:
    manager = BlockManager(20, SIZE)
    manager.allocate("a", [*prompt(1), *prompt(1, 50)])
    assert manager.lookup([*prompt(1, 9), *prompt(1, 50), 0]) == 0
    assert manager.lookup([*prompt(1, 50), 0]) == 0


@pytest.mark.parametrize("token", [0, -1, 2**31 - 1, -(2**31)])
@pytest.mark.parametrize("other", [2**32, -(2**32), 2**62])
def test_tokens_with_equal_low_halves_are_different_tokens(token: int, other: int) -> None:
    narrow, wide = [token] * SIZE, [token] * (SIZE - 1) + [token ^ other]
    manager = BlockManager(20, SIZE)
    manager.allocate("a", narrow * 2)
    assert manager.lookup([*narrow, *wide, 0]) == SIZE
    manager.allocate("b", [*narrow, *wide])
    for tokens in (narrow, wide):
        assert manager.lookup([*narrow, *tokens, 0]) == 2 * SIZE
        assert manager.lookup([*wide, *tokens, 0]) == 0
    manager.check_invariants()


def test_requests_of_one_step_share() -> None:
    manager = BlockManager(20, SIZE)
    first = manager.allocate("a", [*prompt(2), 1])
    second = manager.allocate("b", [*prompt(2), 2])
    assert second.block_ids[:2] == first.block_ids[:2]
    assert manager.ref_count(first.block_ids[0]) == 2


def test_blocks_filled_by_append_are_published() -> None:
    manager = BlockManager(20, SIZE)
    manager.allocate("a", prompt(1)[:2])
    manager.append("a", prompt(1)[2:3])
    assert manager.lookup([*prompt(1), 0]) == 0
    manager.append("a", prompt(2)[3:])
    assert manager.lookup([*prompt(2), 0]) == 2 * SIZE


class TestDuplicateContent:
    """Two blocks with the same prefix are both kept; the one published first serves the hits."""

    def test_neither_table_changes(self) -> None:
        manager = BlockManager(10, SIZE)
        manager.allocate("a", prompt(1)[:3])
        manager.allocate("b", prompt(1)[:3])
        manager.append("a", [3])
        manager.append("b", [3])
        (a,), (b,) = manager.block_table("a"), manager.block_table("b")
        assert a != b
        assert manager.allocate("c", [*prompt(1), 9]).block_ids[0] == a

    def test_the_private_one_holds_nothing_cached_when_freed(self) -> None:
        manager = BlockManager(10, SIZE)
        manager.allocate("a", prompt(1))
        manager.allocate("b", prompt(1))
        manager.free("a")
        manager.free("b")
        assert manager.stats().num_hittable_free == 1


class TestEvictionOrder:
    def test_least_recently_used_first(self) -> None:
        manager = BlockManager(3, SIZE)
        for name, start in (("a", 0), ("b", 100), ("c", 200)):
            manager.allocate(name, prompt(1, start))
        for name in ("b", "a", "c"):
            manager.free(name)
        hits = []
        for i in range(3):
            manager.allocate(f"new{i}", [i])
            hits.append([manager.lookup([*prompt(1, s), 0]) > 0 for s in (0, 100, 200)])
        assert hits == [[True, False, True], [False, False, True], [False, False, False]]

    def test_later_blocks_of_a_request_before_its_earlier_ones(self) -> None:
        manager = BlockManager(4, SIZE)
        manager.allocate("a", prompt(4))
        manager.free("a")
        lengths = []
        for i in range(4):
            manager.allocate(f"new{i}", [i])
            lengths.append(manager.lookup([*prompt(4), 0]))
        assert lengths == [3 * SIZE, 2 * SIZE, SIZE, 0]

    def test_blocks_that_hold_nothing_cached_first_of_all(self) -> None:
        manager = BlockManager(4, SIZE)
        manager.allocate("cached", prompt(2))
        manager.free("cached")
        manager.allocate("partial", [1, 2])
        manager.free("partial")  # the most recent one, but there is nothing to keep in it
        manager.allocate("new", prompt(2, 50))
        assert manager.stats().num_evictions == 0
        assert manager.lookup([*prompt(2), 0]) == 2 * SIZE

    def test_a_hit_makes_recent(self) -> None:
        manager = BlockManager(3, SIZE)
        for name, start in (("a", 0), ("b", 100)):
            manager.allocate(name, prompt(1, start))
            manager.free(name)
        manager.allocate("hit", [*prompt(1), 9])
        manager.free("hit")
        manager.allocate("new", [1, *range(SIZE)])  # one empty block and the oldest cached one
        assert manager.lookup([*prompt(1), 0]) == SIZE
        assert manager.lookup([*prompt(1, 100), 0]) == 0


class TestPins:
    def test_pinned_prefix_survives_any_traffic(self) -> None:
        manager = BlockManager(6, SIZE)
        manager.allocate("system", prompt(2))
        manager.free("system")
        assert manager.pin_prefix(prompt(2)) == 2 * SIZE
        assert manager.num_free_blocks == 4
        assert manager.stats().num_pinned == 2
        for i in range(20):
            manager.allocate("x", prompt(4, 1000 * i + 1000))
            manager.free("x")
        assert manager.lookup([*prompt(2), 0]) == 2 * SIZE
        with pytest.raises(OutOfBlocks):
            manager.allocate("y", prompt(5, 77))

    def test_pins_nest(self) -> None:
        manager = BlockManager(4, SIZE)
        manager.allocate("system", prompt(2))
        manager.free("system")
        assert manager.pin_prefix(prompt(2)) == 2 * SIZE
        assert manager.pin_prefix(prompt(1)) == SIZE
        assert manager.unpin_prefix(prompt(2)) == 2 * SIZE
        assert manager.stats().num_pinned == 1
        assert manager.unpin_prefix(prompt(1)) == SIZE
        assert manager.stats().num_pinned == 0
        assert manager.unpin_prefix(prompt(1)) == 0
        assert manager.num_free_blocks == 4

    def test_pins_what_is_there(self) -> None:
        manager = BlockManager(8, SIZE)
        assert manager.pin_prefix(prompt(3)) == 0
        manager.allocate("a", prompt(2)[:-1])
        assert manager.pin_prefix(prompt(3)) == SIZE

    def test_unpinned_content_is_evicted_later_blocks_first(self) -> None:
        manager = BlockManager(2, SIZE)
        manager.allocate("system", prompt(2))
        manager.free("system")
        manager.pin_prefix(prompt(2))
        manager.unpin_prefix(prompt(2))
        manager.allocate("x", [1])
        assert manager.lookup([*prompt(2), 0]) == SIZE

    def test_overwriting_a_pinned_block_copies_it(self) -> None:
        manager = BlockManager(4, SIZE)
        (block,) = manager.allocate("a", prompt(1)).block_ids
        manager.pin_prefix(prompt(1))
        manager.truncate("a", 2)
        ((source, _),) = manager.append("a", [9]).copies
        assert source == block
        assert manager.lookup([*prompt(1), 0]) == SIZE

    def test_a_salted_prefix_is_pinned_under_its_salt(self) -> None:
        manager = BlockManager(4, SIZE)
        manager.allocate("a", prompt(1), cache_salt="x")
        assert manager.pin_prefix(prompt(1)) == 0
        assert manager.pin_prefix(prompt(1), cache_salt="x") == SIZE


class TestReset:
    def test_forgets_everything(self) -> None:
        manager = BlockManager(4, SIZE)
        manager.allocate("a", prompt(2))
        manager.free("a")
        assert manager.reset_prefix_cache() is True
        assert manager.lookup([*prompt(2), 0]) == 0
        assert manager.stats().num_hittable_free == 0
        assert manager.num_free_blocks == 4

    def test_refuses_while_blocks_are_used_pinned_or_on_the_host(self) -> None:
        manager = BlockManager(4, SIZE, num_host_blocks=4)
        manager.allocate("a", prompt(2))
        assert manager.reset_prefix_cache() is False
        manager.swap_out("a")
        assert manager.reset_prefix_cache() is False
        manager.free("a")
        manager.pin_prefix(prompt(1))
        assert manager.reset_prefix_cache() is False
        assert manager.lookup([*prompt(2), 0]) == 2 * SIZE
        manager.unpin_prefix(prompt(1))
        assert manager.reset_prefix_cache() is True


def test_without_prefix_caching_nothing_is_shared() -> None:
    manager = BlockManager(8, SIZE, enable_prefix_caching=False)
    manager.allocate("a", prompt(2))
    assert manager.allocate("b", prompt(2)).num_cached_tokens == 0
    assert manager.lookup(prompt(2)) == 0
    assert manager.pin_prefix(prompt(2)) == 0
    manager.free("a")
    assert manager.stats().num_hittable_free == 0
    manager.check_invariants()
