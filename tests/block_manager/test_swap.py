"""Requests on the host and back; what they share stays shared and moves once."""

from __future__ import annotations

import pytest

from pagedattn.block_manager import BlockManager, OutOfBlocks

SIZE = 4


def make(num_blocks: int = 10, num_host_blocks: int = 10) -> BlockManager:
    return BlockManager(num_blocks, SIZE, num_host_blocks=num_host_blocks)


def test_there_and_back() -> None:
    manager = make()
    table = manager.allocate("a", list(range(10))).block_ids
    out = manager.swap_out("a")
    assert [device for device, _ in out] == table
    assert manager.num_free_blocks == 10
    assert manager.num_host_free_blocks == 7
    back = manager.swap_in("a")
    assert [host for host, _ in back] == [host for _, host in out]
    assert manager.block_table("a") == [device for _, device in back]
    assert manager.num_host_free_blocks == 10
    assert manager.num_tokens("a") == 10
    manager.append("a", [10])
    manager.check_invariants()


def test_a_swapped_request_allows_three_calls() -> None:
    manager = make()
    manager.allocate("a", [1, 2])
    manager.swap_out("a")
    for call in (
        lambda: manager.append("a", [1]),
        lambda: manager.append_batch(["a"], [1]),
        lambda: manager.fork("a", "b"),
        lambda: manager.truncate("a", 1),
        lambda: manager.block_table("a"),
        lambda: manager.common_prefix_blocks(["a"]),
        lambda: manager.swap_out("a"),
    ):
        with pytest.raises(ValueError, match="swapped out"):
            call()
    assert manager.num_tokens("a") == 2
    manager.swap_in("a")
    with pytest.raises(ValueError, match="not swapped out"):
        manager.swap_in("a")
    manager.swap_out("a")
    manager.free("a")
    assert (manager.num_free_blocks, manager.num_host_free_blocks) == (10, 10)


class TestFamily:
    """A parent with two full blocks and a partial one, and its fork."""

    def family(self, **sizes: int) -> tuple[BlockManager, list[int]]:
        manager = make(**sizes)
        table = manager.allocate("a", list(range(10))).block_ids
        manager.fork("a", "b")
        return manager, table

    def test_blocks_that_a_resident_request_holds_stay(self) -> None:
        manager, table = self.family()
        assert manager.swap_out("a") == []
        assert [manager.ref_count(block) for block in table] == [2, 2, 2]
        assert manager.swap_in("a") == []
        assert manager.block_table("a") == table

    def test_shared_blocks_move_once(self) -> None:
        manager, table = self.family()
        manager.append("b", [99])  # its own last block
        own = manager.block_table("b")[2]
        assert [d for d, _ in manager.swap_out("a")] == table[2:]
        assert [d for d, _ in manager.swap_out("b")] == [*table[:2], own]
        assert manager.num_host_free_blocks == 6
        assert len(manager.swap_in("a")) == 3
        assert [d for _, d in manager.swap_in("b")] == manager.block_table("b")[2:]
        assert manager.block_table("a")[:2] == manager.block_table("b")[:2]
        assert [manager.ref_count(b) for b in manager.block_table("a")] == [2, 2, 1]
        manager.check_invariants()

    def test_one_of_them_freed_on_the_host(self) -> None:
        manager, _ = self.family()
        manager.swap_out("a")
        manager.swap_out("b")
        assert manager.num_host_free_blocks == 7
        manager.free("a")
        assert manager.num_host_free_blocks == 7
        assert len(manager.swap_in("b")) == 3
        manager.free("b")
        assert (manager.num_free_blocks, manager.num_host_free_blocks) == (10, 10)

    def test_out_again_after_one_came_back(self) -> None:
        manager, _ = self.family()
        manager.swap_out("a")
        manager.swap_out("b")
        manager.swap_in("a")
        assert len(manager.swap_out("a")) == 3
        assert len(manager.swap_in("b")) == 3
        assert manager.swap_in("a") == []
        assert manager.block_table("a") == manager.block_table("b")

    def test_too_few_host_blocks(self) -> None:
        manager, table = self.family(num_host_blocks=2)
        manager.swap_out("a")
        with pytest.raises(OutOfBlocks, match=r"host.*'b' needed 3, free 2, total 2"):
            manager.swap_out("b")
        assert manager.block_table("b") == table
        manager.check_invariants()

    def test_too_few_device_blocks(self) -> None:
        manager, _ = self.family(num_blocks=4)
        manager.swap_out("a")
        manager.swap_out("b")
        manager.allocate("c", [70, 71, 72, 73, 74])
        with pytest.raises(OutOfBlocks, match=r"'a' needed 3, free 2, total 4"):
            manager.swap_in("a")
        assert manager.num_host_free_blocks == 7
        manager.check_invariants()


def test_host_blocks_serve_no_hits_and_serve_them_again_when_back() -> None:
    manager = make(num_blocks=3)
    manager.allocate("a", list(range(8)))
    manager.swap_out("a")
    assert manager.lookup([*range(8), 0]) == 8  # still in the device blocks it left
    manager.allocate("b", list(range(100, 112)))
    assert manager.lookup([*range(8), 0]) == 0
    manager.free("b")
    manager.swap_in("a")
    assert manager.lookup([*range(8), 0]) == 8


def test_pinned_blocks_stay() -> None:
    manager = make()
    table = manager.allocate("a", list(range(10))).block_ids
    manager.pin_prefix(range(8))
    assert [device for device, _ in manager.swap_out("a")] == table[2:]
    assert manager.ref_count(table[0]) == 1
