"""append_batch, allocate_batch and fill_batch: what they write, and into what."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from pagedattn.block_manager import BlockManager

SIZE = 4

Make = Callable[[Any, type], Any]


def numpy_array(values: Any, dtype: type) -> Any:
    return np.array(values, dtype)


def torch_tensor(values: Any, dtype: type) -> Any:
    return torch.from_numpy(np.array(values, dtype))


def three_requests() -> BlockManager:
    manager = BlockManager(20, SIZE)
    for i, length in enumerate((3, 4, 9)):
        manager.allocate(f"r{i}", [100 * i + t for t in range(length)])
    return manager


@pytest.mark.parametrize("make", [numpy_array, torch_tensor])
@pytest.mark.parametrize("as_list", [True, False])
def test_append_batch_is_append_for_each(make: Make, as_list: bool) -> None:
    one, other = three_requests(), three_requests()
    expected = [one.append(f"r{i}", [i]).slots[0] for i in range(3)]
    slots, tables, lens = (
        make([7] * 3, np.int64),
        make(np.full((3, 5), 7), np.int32),
        make([7] * 3, np.int32),
    )
    tokens = [0, 1, 2] if as_list else make([0, 1, 2], np.int64)
    result = other.append_batch(
        ["r0", "r1", "r2"], tokens, slot_mapping=slots, block_tables=tables, seq_lens=lens
    )
    assert result == ([], [])
    assert slots.tolist() == expected
    assert lens.tolist() == [4, 5, 10]
    for i, row in enumerate(tables.tolist()):
        table = one.block_table(f"r{i}")
        assert row == table + [0] * (5 - len(table))


def test_counts_give_each_request_its_tokens() -> None:
    manager = three_requests()
    slots = np.empty(7, np.int64)
    manager.append_batch(["r2", "r0", "r1"], range(7), [5, 0, 2], slot_mapping=slots)
    assert [manager.num_tokens(f"r{i}") for i in range(3)] == [3, 6, 14]
    table = manager.block_table("r2")
    assert slots[:5].tolist() == [table[p // SIZE] * SIZE + p % SIZE for p in range(9, 14)]


def test_what_does_not_fit_fails_alone() -> None:
    manager = BlockManager(4, SIZE)
    for name in ("a", "b", "c"):
        manager.allocate(name, [ord(name)] * SIZE)
    slots, lens = np.empty(3, np.int64), np.empty(3, np.int32)
    tables = np.empty((3, 2), np.int32)
    result = manager.append_batch(
        ["a", "b", "c"], [1, 2, 3], slot_mapping=slots, block_tables=tables, seq_lens=lens
    )
    assert result.failed == [1, 2]
    assert slots.tolist() == [3 * SIZE, -1, -1]
    assert lens.tolist() == [5, 4, 4]
    assert tables.tolist() == [[0, 3], [1, 0], [2, 0]]
    manager.check_invariants()


def test_copies_of_a_batch_can_run_in_one_launch() -> None:
    manager = BlockManager(20, SIZE)
    manager.allocate("0", [1, 2])
    for i in range(1, 5):
        manager.fork("0", str(i))
    copies = manager.append_batch([str(i) for i in range(5)], range(5)).copies
    assert len(copies) == 4  # the last one writes in place
    assert {source for source, _ in copies} == {0}
    assert len({target for _, target in copies}) == 4
    assert 0 not in {target for _, target in copies}


def test_a_copy_source_given_back_in_the_batch_is_no_copy_target() -> None:
    manager = BlockManager(20, 8, window=8, enable_prefix_caching=False)
    manager.allocate("d", range(65))
    manager.fork("d", "a")
    manager.truncate("a", 12)  # shares d's second block, of which it keeps a half
    source = manager.block_table("a")[1]
    manager.allocate("f", range(12))
    manager.fork("f", "e")
    # a copies the source, d's window passes it, e needs a block to copy into.
    copies = manager.append_batch(["a", "d", "e"], [1, 1, 1]).copies
    assert [src for src, _ in copies] == [source, manager.block_table("f")[1]]
    assert source not in {target for _, target in copies}
    manager.check_invariants()
    assert manager.ref_count(source) == 0
    assert manager.append("e", range(8)).slots[-1] // 8 == source  # free after the batch


def test_a_copy_source_given_back_in_the_batch_is_not_free_in_it() -> None:
    manager = BlockManager(13, 8, window=8, enable_prefix_caching=False)
    manager.allocate("d", range(32))
    manager.fork("d", "a")
    manager.truncate("a", 12)
    manager.allocate("f", range(52))
    assert manager.num_free_blocks == 1
    # a takes the last block. d's window frees its third but not the second, a's source, of the
    # two blocks it needs.
    assert manager.append_batch(["a", "d"], range(10), [1, 9]).failed == [1]
    assert manager.num_free_blocks == 0
    manager.check_invariants()


def test_past_the_batch_is_filled_as_empty_sequences() -> None:
    manager = three_requests()
    slots, lens = np.full(5, 7, np.int64), np.full(4, 7, np.int32)
    tables = np.full((5, 6), 7, np.int32)
    manager.append_batch(
        ["r0", "r1"], [1, 2], slot_mapping=slots, block_tables=tables, seq_lens=lens
    )
    assert slots[2:].tolist() == [-1] * 3
    assert lens[2:].tolist() == [0] * 2
    assert not tables[2:].any()


def test_rows_of_a_wider_buffer() -> None:
    manager = three_requests()
    buffer = np.full((3, 10), 7, np.int32)
    manager.fill_batch(["r0", "r1", "r2"], buffer[:, :4], np.empty(3, np.int32))
    assert buffer[2].tolist() == [*manager.block_table("r2"), 0, 7, 7, 7, 7, 7, 7]


def test_allocate_batch_is_allocate_for_each() -> None:
    manager = BlockManager(20, SIZE)
    prompt = list(range(9))
    slots, lens = np.empty(18, np.int64), np.empty(2, np.int32)
    tables = np.empty((2, 3), np.int32)
    result = manager.allocate_batch(
        ["a", "b"], prompt * 2, [9, 9], slot_mapping=slots, block_tables=tables, seq_lens=lens
    )
    assert result == ([], [0, 8])
    assert tables.tolist() == [manager.block_table("a"), manager.block_table("b")]
    assert lens.tolist() == [9, 9]
    assert slots[:9].tolist() == list(range(9))
    assert slots[9:].tolist() == [-1] * 8 + [manager.block_table("b")[2] * SIZE]


def test_allocate_batch_failure_leaves_no_request() -> None:
    manager = BlockManager(2, SIZE)
    lens = np.full(3, 7, np.int32)
    result = manager.allocate_batch(["a", "b", "c"], range(14), [4, 6, 4], seq_lens=lens)
    assert result == ([1], [0, 0, 0])
    assert lens.tolist() == [4, 0, 4]
    assert "b" not in manager


BAD_OUTPUTS = {
    "dtype of slots": ({"slot_mapping": np.empty(3, np.int32)}, TypeError, "slot_mapping.*int64"),
    "dtype of tables": (
        {"block_tables": np.empty((3, 9), np.int64)},
        TypeError,
        "block_tables.*int32",
    ),
    "float": ({"seq_lens": np.empty(3, np.float32)}, TypeError, "seq_lens"),
    "float tensor": ({"seq_lens": torch.empty(3)}, TypeError, "seq_lens.*float32"),
    "a list": ({"seq_lens": [0, 0, 0]}, TypeError, "seq_lens.*list"),
    "too few slots": ({"slot_mapping": np.empty(2, np.int64)}, ValueError, "slot_mapping.*3"),
    "no slots": ({"slot_mapping": torch.empty(0, dtype=torch.int64)}, ValueError, "slot_mapping"),
    "too few rows": ({"block_tables": np.empty((2, 9), np.int32)}, ValueError, "2 rows, needs 3"),
    "too few columns": (
        {"block_tables": np.empty((3, 2), np.int32)},
        ValueError,
        "2 columns, needs 3",
    ),
    "dimensions": ({"block_tables": np.empty(27, np.int32)}, ValueError, "2 dimensions"),
    "dimensions of slots": (
        {"slot_mapping": np.empty((3, 1), np.int64)},
        ValueError,
        "1 dimension",
    ),
    "three dimensions": ({"block_tables": np.empty((3, 9, 1), np.int32)}, ValueError, "has 3"),
    "transposed": ({"block_tables": np.empty((9, 3), np.int32).T}, ValueError, "contiguous"),
    "strided": ({"seq_lens": np.empty(6, np.int32)[::2]}, ValueError, "contiguous"),
    "strided tensor": (
        {"seq_lens": torch.empty(6, dtype=torch.int32)[::2]},
        ValueError,
        "contiguous",
    ),
    "overlapping rows": (
        {"block_tables": torch.empty(9, dtype=torch.int32).expand(3, 9)},
        ValueError,
        "overlap",
    ),
    "bytes": ({"seq_lens": b"123412341234"}, TypeError, "seq_lens"),
    "meta tensor": (
        {"seq_lens": torch.empty(3, dtype=torch.int32, device="meta")},
        ValueError,
        "seq_lens cannot be read: .*meta",
    ),
}


@pytest.mark.parametrize("case", BAD_OUTPUTS)
def test_unsuitable_outputs_are_refused_before_anything_happens(case: str) -> None:
    outputs, error, text = BAD_OUTPUTS[case]
    manager = three_requests()
    before = manager.stats()
    with pytest.raises(error, match=text):
        manager.append_batch(["r0", "r1", "r2"], [1, 2, 3], **outputs)
    assert manager.stats() == before
    assert manager.num_tokens("r0") == 3


def test_read_only_outputs_are_refused() -> None:
    lens = np.zeros(3, np.int32)
    lens.flags.writeable = False
    with pytest.raises(ValueError, match="seq_lens is read-only"):
        three_requests().fill_batch(["r0"], np.zeros((1, 5), np.int32), lens)


@pytest.mark.parametrize(
    ("counts", "text"), [([1, 1], "2 entries"), ([1, 1, 2], "sum"), ([4, -1, 0], r"counts\[1\]")]
)
def test_counts_that_do_not_match(counts: list[int], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        three_requests().append_batch(["r0", "r1", "r2"], [1, 2, 3], counts)


def test_empty_batches() -> None:
    manager = three_requests()
    lens = np.full(2, 7, np.int32)
    assert manager.append_batch([], [], seq_lens=lens) == ([], [])
    assert lens.tolist() == [0, 0]
    assert manager.allocate_batch([], [], []) == ([], [])
    manager.fill_batch([], np.empty((0, 3), np.int32), np.empty(0, np.int32))
