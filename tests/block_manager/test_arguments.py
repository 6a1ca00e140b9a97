"""What the bindings take and refuse: nothing crashes, and every refusal changes nothing."""

from __future__ import annotations

import array
import contextlib
import threading
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedattn.block_manager import BlockManager

BIG = 2**63 - 1


@pytest.mark.parametrize(
    "tokens",
    [
        [5, -1, BIG, -(2**63), 2**30, -(2**30), 2**40],
        (5, -1, BIG, -(2**63), 2**30, -(2**30), 2**40),
        deque([5, -1, BIG, -(2**63), 2**30, -(2**30), 2**40]),
        [np.int64(5), -1, BIG, -(2**63), np.int32(2**30), -(2**30), 2**40],
        np.array([5, -1, BIG, -(2**63), 2**30, -(2**30), 2**40]),
        torch.tensor([5, -1, BIG, -(2**63), 2**30, -(2**30), 2**40]),
        array.array("q", [5, -1, BIG, -(2**63), 2**30, -(2**30), 2**40]),
        np.array([5, 0, -1, 0, BIG, 0, -(2**63), 0, 2**30, 0, -(2**30), 0, 2**40])[::2],
        np.array([2**40, -(2**30), 2**30, -(2**63), BIG, -1, 5])[::-1],
    ],
    ids=["list", "tuple", "deque", "scalars", "numpy", "torch", "array", "strided", "reversed"],
)
def test_every_form_of_the_same_tokens_hits(tokens: Any) -> None:
    manager = BlockManager(20, 1)
    manager.allocate("a", [5, -1, BIG, -(2**63), 2**30, -(2**30), 2**40])
    assert manager.lookup(tokens) == 6
    assert manager.allocate("b", tokens).num_cached_tokens == 6


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_32_and_64_bit_arrays_are_the_same_tokens(dtype: type) -> None:
    manager = BlockManager(20, 2)
    manager.allocate("a", np.arange(-4, 4, dtype=dtype))
    assert manager.lookup(list(range(-4, 4))) == 6
    assert manager.lookup(torch.arange(-4, 4, dtype=torch.int32)) == 6


def test_unaligned_array() -> None:
    raw = bytearray(1 + 8 * 4)
    tokens = np.frombuffer(raw, np.int64, count=4, offset=1)
    tokens[:] = [1, 2, 3, 4]
    manager = BlockManager(20, 1)
    manager.allocate("a", tokens)
    assert manager.lookup([1, 2, 3, 4]) == 3


@pytest.mark.parametrize(
    ("tokens", "error", "text"),
    [
        (None, TypeError, "NoneType"),
        (7, TypeError, "int"),
        ("abc", TypeError, "str"),
        (b"abc", TypeError, "int32 or int64"),
        ([1, 2.0], TypeError, r"token_ids\[1\].*float"),
        ([1, None], TypeError, r"token_ids\[1\].*NoneType"),
        ([1, "2"], TypeError, r"token_ids\[1\].*str"),
        ([[1]], TypeError, r"token_ids\[0\].*list"),
        ([0, 2**63], OverflowError, r"token_ids\[1\].*int64"),
        ([-(2**63) - 1], OverflowError, r"token_ids\[0\].*int64"),
        ({1, 2}, TypeError, "set"),
        ({1: 2}, TypeError, "dict"),
        (iter([1]), TypeError, "iterator"),
        (np.zeros(3), TypeError, "int32 or int64"),
        (np.zeros(3, np.uint64), TypeError, "int32 or int64"),
        (np.zeros(3, np.int16), TypeError, "int32 or int64"),
        (np.zeros(3, bool), TypeError, "int32 or int64"),
        (np.zeros(3, ">i8"), TypeError, "int32 or int64"),
        (np.zeros(3, object), TypeError, "int32 or int64"),
        (np.zeros((3, 1), np.int64), ValueError, "1 dimension"),
        (np.zeros((1, 1, 1), np.int64), ValueError, "dimension"),
        (np.int64(3), ValueError, "1 dimension"),
        (np.array(3), ValueError, "dimension"),
        (torch.zeros(3), TypeError, "float32"),
        (torch.zeros(3, dtype=torch.bfloat16), TypeError, "bfloat16"),
        (torch.zeros(3, dtype=torch.bool), TypeError, "bool"),
        (torch.zeros(3, dtype=torch.uint8), TypeError, "uint8"),
        (torch.zeros((2, 2), dtype=torch.int64), ValueError, "1 dimension"),
        (torch.tensor(3), ValueError, "dimension"),
    ],
    ids=repr,
)
def test_unsuitable_tokens(tokens: Any, error: type[Exception], text: str) -> None:
    manager = BlockManager(20, 2)
    manager.allocate("live", [1])
    for call in (
        lambda: manager.allocate("a", tokens),
        lambda: manager.append("live", tokens),
        lambda: manager.lookup(tokens),
        lambda: manager.pin_prefix(tokens),
        lambda: manager.append_batch(["live"], tokens),
    ):
        with pytest.raises(error, match=text):
            call()
    assert manager.num_tokens("live") == 1
    assert "a" not in manager


@pytest.mark.parametrize("request_id", [None, 3, b"a", ["a"], 1.5])
def test_request_id_must_be_a_str(request_id: Any) -> None:
    manager = BlockManager(20, 2)
    for call in (
        lambda: manager.allocate(request_id, [1]),
        lambda: manager.append(request_id, [1]),
        lambda: manager.free(request_id),
        lambda: manager.fork("a", request_id),
        lambda: manager.block_table(request_id),
    ):
        with pytest.raises(TypeError, match="must be a str"):
            call()


@pytest.mark.parametrize("request_ids", [None, "ab", 3, [1], ["a", None], {"a": 1}])
def test_request_ids_must_be_strs(request_ids: Any) -> None:
    manager = BlockManager(20, 2)
    with pytest.raises(TypeError, match="request_ids"):
        manager.append_batch(request_ids, [1])


@pytest.mark.parametrize("request_id", ["", "ü", "数", "a\0b", "x" * 10_000])
def test_any_str_is_a_request_id(request_id: str) -> None:
    manager = BlockManager(20, 2)
    manager.allocate("a", [1])
    manager.allocate(request_id, [2])
    assert manager.num_tokens(request_id) == 1
    with pytest.raises(ValueError, match="exists already"):
        manager.fork("a", request_id)


@pytest.mark.parametrize("salt", [3, b"x", ["x"]])
def test_salt_must_be_a_str(salt: Any) -> None:
    with pytest.raises(TypeError, match="cache_salt"):
        BlockManager(20, 2).allocate("a", [1], cache_salt=salt)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"num_blocks": 0}, ValueError, "num_blocks"),
        ({"num_blocks": -5}, ValueError, "num_blocks"),
        ({"num_blocks": 2**31}, ValueError, "num_blocks"),
        ({"num_blocks": 2**70}, OverflowError, "num_blocks"),
        ({"num_blocks": 1.5}, TypeError, "num_blocks"),
        ({"num_blocks": "4"}, TypeError, "num_blocks"),
        ({"num_blocks": 4, "block_size": 0}, ValueError, "block_size"),
        ({"num_blocks": 4, "num_host_blocks": -1}, ValueError, "num_host_blocks"),
        ({"num_blocks": 4, "watermark": -0.1}, ValueError, "watermark"),
        ({"num_blocks": 4, "watermark": 1.1}, ValueError, "watermark"),
        ({"num_blocks": 4, "watermark": float("nan")}, ValueError, "watermark"),
        ({"num_blocks": 4, "window": -1}, ValueError, "window"),
        ({"num_blocks": 1, "window": 4}, ValueError, "num_blocks"),
    ],
)
def test_constructor_ranges(options: dict[str, Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        BlockManager(**options)


def test_block_ids_out_of_range() -> None:
    manager = BlockManager(4, 2)
    for block in (-1, 4, BIG):
        with pytest.raises(IndexError, match="block_id"):
            manager.ref_count(block)


def test_enormous_prompts_do_not_fit_and_do_no_harm() -> None:
    manager = BlockManager(4, 2)
    assert manager.can_allocate(BIG).name == "NEVER"
    with pytest.raises(ValueError, match="num_tokens"):
        manager.can_allocate(-1)
    with pytest.raises(MemoryError, match="needed 500000"):
        manager.allocate("a", np.zeros(1_000_000, np.int64))
    assert manager.num_free_blocks == 4


def test_an_index_method_that_changes_the_list_it_is_in() -> None:
    tokens: list[Any] = [1, 2, 3]

    class Vandal:
        def __index__(self) -> int:
            tokens.clear()
            return 4

    tokens.insert(1, Vandal())
    manager = BlockManager(8, 1)
    manager.allocate("a", tokens)
    assert manager.num_tokens("a") == 4
    assert manager.lookup([1, 4, 2, 3, 9]) == 4


def test_an_index_method_that_raises() -> None:
    class Broken:
        def __index__(self) -> int:
            raise ZeroDivisionError

    manager = BlockManager(8, 1)
    with pytest.raises(ZeroDivisionError):
        manager.allocate("a", [1, Broken()])
    assert "a" not in manager


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.one_of(st.integers(), st.text(max_size=2), st.none()), max_size=4),
    st.lists(st.integers(-3, 3), max_size=8),
    st.lists(st.sampled_from(["a", "b", "c"]), max_size=3),
    st.builds(lambda n, t: np.zeros(n, t), st.integers(0, 9), st.sampled_from(["i4", "i8", "f4"])),
    st.builds(lambda n, m: np.zeros((n, m), np.int32), st.integers(0, 4), st.integers(0, 4)),
    st.builds(lambda n: torch.zeros(n, dtype=torch.int64), st.integers(0, 9)),
    st.sampled_from(["a", "b"]),
)
METHODS = sorted(
    name
    for name in dir(BlockManager)
    if not name.startswith("_") and callable(getattr(BlockManager, name))
)


@settings(max_examples=300, deadline=None)
@given(
    calls=st.lists(
        st.tuples(
            st.sampled_from(METHODS),
            st.lists(ANYTHING, max_size=4),
            st.dictionaries(
                st.sampled_from(
                    ["cache_salt", "num_computed", "slot_mapping", "block_tables", "seq_lens"]
                ),
                ANYTHING,
                max_size=2,
            ),
        ),
        max_size=12,
    )
)
def test_no_argument_breaks_the_manager(calls: list[tuple[str, list[Any], dict[str, Any]]]) -> None:
    manager = BlockManager(6, 2, num_host_blocks=3)
    manager.allocate("a", [1, 2, 3])
    for method, args, kwargs in calls:
        with contextlib.suppress(TypeError, ValueError, LookupError, OverflowError, MemoryError):
            getattr(manager, method)(*args, **kwargs)
        manager.check_invariants()


def test_threads_share_a_manager() -> None:
    manager = BlockManager(400, 4)
    errors: list[BaseException] = []

    def work(name: str) -> None:
        try:
            for i in range(60):
                tokens = np.arange(i, i + 9000 // (1 + i % 2) % 700 + 1)
                manager.allocate(name, tokens)
                manager.fork(name, name + "fork")
                manager.append_batch([name, name + "fork"], [i, i])
                manager.stats()
                manager.free(name)
                manager.free(name + "fork")
        except MemoryError:
            pass
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(f"t{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    manager.check_invariants()


def test_long_calls_from_threads() -> None:
    manager = BlockManager(40_000, 1)
    tokens = np.arange(9000)  # long enough for the GIL to be released
    threads = [threading.Thread(target=manager.allocate, args=(f"t{i}", tokens)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert manager.ref_count(0) == 4
    manager.check_invariants()
