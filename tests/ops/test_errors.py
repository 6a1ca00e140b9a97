"""Every wrong argument raises a RuntimeError that names the op, the argument and what was given."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from .arguments import ALL_OPS, ATTENTION_OPS, CACHE_OPS, to_backend, valid_arguments
from .backends import Backend

E4M3, INT8 = torch.float8_e4m3fn, torch.int8
Arguments = dict[str, Any]


class Bad(NamedTuple):
    """A call that differs from the valid one in `argument`, and words its error must have."""

    op: str
    argument: str
    value: Callable[[Arguments], Any]  # of the valid arguments
    words: str
    also: Callable[[Arguments], Arguments] = lambda arguments: {}  # further changes that go with it

    def __str__(self) -> str:
        return f"{self.op}-{self.argument}-{re.sub(r'[^a-z0-9_]+', '_', self.words)}"


def spread(tensor: Tensor) -> Tensor:
    """The same values, every second element of a larger tensor: stride 2 in the last dimension."""
    return torch.stack([tensor, tensor], dim=-1)[..., 0]


def expanded(tensor: Tensor) -> Tensor:
    """The first row again and again, in one place."""
    return tensor[:1].expand(tensor.shape)


def repeated(tensor: Tensor) -> Tensor:
    """The first element of each row again and again: stride 0 in the last dimension."""
    return tensor[..., :1].expand(tensor.shape)


def with_value(
    name: str, index: int | tuple[int, ...], value: int
) -> Callable[[Arguments], Tensor]:
    def changed(arguments: Arguments) -> Tensor:
        tensor = arguments[name].clone()
        tensor[index] = value
        return tensor

    return changed


def constant(value: Any) -> Callable[[Arguments], Any]:
    return lambda arguments: value


def each(ops: tuple[str, ...], *bad: tuple) -> list[Bad]:
    return [Bad(op, *fields) for op in ops for fields in bad]


def quantised(arguments: Arguments) -> Arguments:
    return {name: arguments[name].to(E4M3) for name in ("key_cache", "value_cache")}


def value_like_key(shape: tuple[int, ...]) -> tuple:
    """key_cache of a shape, and value_cache with it."""
    return (
        "key_cache",
        lambda a: torch.zeros(shape),
        re.escape(str(list(shape))),
        lambda a: {"value_cache": torch.zeros(shape)},
    )


CACHE = each(
    CACHE_OPS,
    ("key_cache", lambda a: a["key_cache"].double(), "float64"),
    ("key_cache", lambda a: spread(a["key_cache"]), "contiguous last dimension"),
    ("value_cache", lambda a: spread(a["value_cache"]), "contiguous last dimension"),
    ("value_cache", lambda a: repeated(a["value_cache"]), "contiguous last dimension"),
    ("value_cache", lambda a: a["value_cache"].half(), "float16"),
    ("value_cache", lambda a: a["value_cache"][1:], r"got \["),
    ("value_cache", lambda a: a["value_cache"][0], r"got \["),
    ("key_cache", lambda a: a["key_cache"][0], r"got \["),
    ("key_cache", lambda a: a["key_cache"][..., None, :], "pagedattn.layouts"),  # packed, stacked
    value_like_key((16, 12, 2, 32)),  # block_size
    value_like_key((16, 520, 2, 32)),
    value_like_key((16, 1024, 2, 32)),
    ("k_scale", constant(torch.ones(())), "None for an unquantised cache"),
    ("v_scale", constant(torch.ones(2)), "None for an unquantised cache"),
    ("k_scale", constant(torch.ones(3)), r"got \[3\]", quantised),
    ("v_scale", constant(torch.ones(2, 2)), r"got \[2, 2\]", quantised),
    ("v_scale", constant(torch.ones(2).double()), "float64", quantised),
)

HEAD_DIM = each(("gather_cache",), *(value_like_key((4, 8, 2, d)) for d in (24, 36, 264)))

ATTENTION = each(
    ATTENTION_OPS,
    ("query", lambda a: a["query"].double(), "float64"),
    ("query", lambda a: a["query"][0], r"got \["),
    ("query", lambda a: spread(a["query"]), "contiguous last dimension"),
    ("query", lambda a: repeated(a["query"]), "contiguous last dimension"),
    ("query", lambda a: a["query"][:, :3], "got 3"),  # heads that the KV heads do not divide
    ("query", lambda a: a["query"][:, :0], "0"),
    ("key_cache", lambda a: a["key_cache"].half(), "float16"),
    ("key_cache", lambda a: a["key_cache"][..., :24], r"24\]"),
    # The layout of published sketches, [num_blocks, num_kv_heads, head_dim, block_size].
    ("key_cache", lambda a: a["key_cache"].permute(0, 2, 3, 1).contiguous(), "pagedattn.layouts"),
    ("block_tables", lambda a: a["block_tables"].long(), "int64"),
    ("block_tables", lambda a: a["block_tables"][0], r"got \["),
    ("block_tables", lambda a: spread(a["block_tables"]), "contiguous last dimension"),
    ("block_tables", lambda a: repeated(a["block_tables"]), "contiguous last dimension"),
    ("block_tables", lambda a: a["block_tables"][0, 0], r"got \[\]"),
    ("seq_lens", lambda a: a["seq_lens"].long(), "int64"),
    ("seq_lens", lambda a: a["seq_lens"][:2], r"got \[2\]"),
    ("seq_lens", lambda a: spread(a["seq_lens"]), "contiguous"),
    ("max_seq_len", constant(-1), "got -1"),
    ("scale", constant(math.nan), "got nan"),
    ("scale", constant(math.inf), "got inf"),
    ("scale", constant(1e39), "got 1e"),  # not a float32
    ("window_left", constant(-2), "got -2"),
    ("softcap", constant(-1.0), "got -1"),
    ("softcap", constant(math.nan), "got nan"),
    ("softcap", constant(1e39), "got 1e"),
    ("softcap", constant(1e-50), "got 1e-50"),
    ("alibi_slopes", constant(torch.ones(3)), r"got \[3\]"),
    ("alibi_slopes", constant(torch.ones(4).long()), "int64"),
    ("sinks", constant(torch.ones(4, 1)), r"got \[4, 1\]"),
    ("sinks", constant(torch.ones(4).double()), "float64"),
)

WITH_OUT = tuple(op for op in ATTENTION_OPS if op != "paged_attention")
OUTPUTS = each(
    WITH_OUT,
    ("out", lambda a: a["out"].half(), "float16"),
    ("out", lambda a: a["out"][:1], r"got \[1, 4, 32\]"),
    ("out", lambda a: spread(a["out"]), "contiguous last dimension"),
    ("out", lambda a: expanded(a["out"]), "expanded"),
    ("out", lambda a: a["out"][0, 0, 0], r"got \[\]"),
    ("lse", lambda a: a["lse"].double(), "float64"),
    ("lse", lambda a: a["lse"].t(), r"got \[4, "),
    ("lse", lambda a: expanded(a["lse"]), "expanded"),
)

DECODE = each(
    ("paged_attention_v1", "paged_attention_v2", "paged_attention"),
    # One token per sequence, and no more.
    (
        "query",
        lambda a: torch.zeros(4, 4, 32),
        r"got \[4, 4, 32\]",
        lambda a: {
            name: torch.zeros((4, *a[name].shape[1:]))
            for name in ("out", "lse", "partial_out", "partial_lse")
            if name in a
        },
    ),
)

V2 = each(
    ("paged_attention_v2",),
    *(("partition_size", constant(size), f"got {size}") for size in (0, -64, 32, 65, 100)),
    ("partial_out", lambda a: a["partial_out"].half(), "float16"),
    (
        "partial_out",
        lambda a: a["partial_out"][:, :, :1],
        r"got",
        lambda a: {"partial_lse": a["partial_lse"][:, :, :1].contiguous()},
    ),
    (
        "partial_out",
        lambda a: a["partial_out"][:, :, :1].contiguous(),
        "got 1",
        lambda a: {"partial_lse": a["partial_lse"][:, :, :1].contiguous()},
    ),
    ("partial_out", lambda a: a["partial_out"][0], r"got \[4, 2, 32\]"),
    ("partial_out", lambda a: spread(a["partial_out"]), "contiguous"),
    ("partial_lse", lambda a: a["partial_lse"].half(), "float16"),
    ("partial_lse", lambda a: torch.zeros(3, 4, 3), r"got \[3, 4, 3\]"),
    ("partial_lse", lambda a: spread(a["partial_lse"]), "contiguous"),
)

VARLEN = each(
    ("paged_attention_varlen",),
    ("cu_seqlens_q", lambda a: a["cu_seqlens_q"].long(), "int64"),
    ("cu_seqlens_q", lambda a: a["cu_seqlens_q"][1:], r"got \[3\]"),
    ("cu_seqlens_q", lambda a: spread(a["cu_seqlens_q"]), "contiguous"),
    ("max_query_len", constant(-1), "got -1"),
    ("tree_mask", lambda a: a["tree_mask"].int(), "int32"),
    ("tree_mask", lambda a: a["tree_mask"][:, :3], r"got \[9, 3\]"),
    ("tree_mask", lambda a: a["tree_mask"][:7], r"got \[7, 4\]"),
)

MERGE = each(
    ("merge_attention_states",),
    ("out", lambda a: a["out"].double(), "float64"),
    ("out", lambda a: a["out"][0], r"got \["),
    ("out", lambda a: expanded(a["out"]), "expanded"),
    ("out", lambda a: spread(a["out"]), "contiguous last dimension"),
    ("prefix_out", lambda a: a["prefix_out"].half(), "float16"),
    ("prefix_out", lambda a: a["prefix_out"][:2], r"got \[2, 4, 32\]"),
    ("suffix_out", lambda a: a["suffix_out"][..., :16], r"got \[3, 4, 16\]"),
    ("suffix_out", lambda a: spread(a["suffix_out"]), "contiguous last dimension"),
    ("suffix_out", lambda a: repeated(a["suffix_out"]), "contiguous last dimension"),
    ("prefix_lse", lambda a: a["prefix_lse"].half(), "float16"),
    ("suffix_lse", lambda a: a["suffix_lse"].t(), r"got \[4, 3\]"),
    ("out_lse", lambda a: a["out_lse"].double(), "float64"),
    ("out_lse", lambda a: a["out_lse"][:2], r"got \[2, 4\]"),
    ("out_lse", lambda a: expanded(a["out_lse"]), "expanded"),
)

RESHAPE = each(
    ("reshape_and_cache",),
    ("key", lambda a: a["key"].double(), "float64"),
    ("key", lambda a: a["key"].half(), "float"),
    ("key", lambda a: a["key"][0], r"got \["),
    ("key", lambda a: a["key"][:, :1], r"got \[3, 1, 32\]"),
    ("key", lambda a: spread(a["key"]), "contiguous last dimension"),
    ("value", lambda a: a["value"].half(), "float16"),
    ("value", lambda a: a["value"][:2], r"got \[2, 2, 32\]"),
    ("value", lambda a: spread(a["value"]), "contiguous last dimension"),
    ("value", lambda a: a["value"][0, 0, 0], r"got \[\]"),
    ("slot_mapping", lambda a: a["slot_mapping"].int(), "int32"),
    ("slot_mapping", lambda a: a["slot_mapping"][:2], r"got \[2\]"),
    ("slot_mapping", lambda a: spread(a["slot_mapping"]), "contiguous"),
    ("key_cache", lambda a: expanded(a["key_cache"]), "expanded"),
    ("value_cache", lambda a: expanded(a["value_cache"]), "expanded"),
    # Computed and written: one for each token and head.
    *(
        (
            name,
            lambda a: torch.zeros(a["key_cache"].shape[:2])[..., None].expand(-1, -1, 2),
            "expanded",
            quantised,
        )
        for name in ("k_scale", "v_scale")
    ),
)

GATHER = each(
    ("gather_cache",),
    ("block_tables", lambda a: a["block_tables"].long(), "int64"),
    ("block_tables", lambda a: a["block_tables"][0], r"got \["),
    ("cu_seq_lens", lambda a: a["cu_seq_lens"].long(), "int64"),
    ("cu_seq_lens", lambda a: a["cu_seq_lens"][1:], r"got \[3\]"),
    ("cu_seq_lens", lambda a: spread(a["cu_seq_lens"]), "contiguous"),
    ("num_tokens", constant(-1), "got -1"),
    ("dtype", constant(torch.int32), "int32"),
    ("dtype", constant(E4M3), "float8_e4m3fn"),
)

BLOCKS = each(
    ("copy_blocks", "swap_blocks"),
    ("block_mapping", lambda a: a["block_mapping"].int(), "int32"),
    ("block_mapping", lambda a: a["block_mapping"][0], r"got \[2\]"),
    ("block_mapping", lambda a: torch.zeros(2, 3).long(), r"got \[2, 3\]"),
    ("block_mapping", lambda a: spread(a["block_mapping"]), "contiguous"),
)
COPY = each(
    ("copy_blocks",),
    ("value_caches", lambda a: a["value_caches"][:1], "2 and 1"),
    ("key_caches", lambda a: [a["key_caches"][0], a["key_caches"][1][0]], r"key_caches\[1\].*got"),
    ("key_caches", lambda a: [a["key_caches"][0], a["key_caches"][1][:3]], r"key_caches\[1\].*got"),
    (
        "value_caches",
        lambda a: [a["key_caches"][0], expanded(a["key_caches"][1])],
        r"\[1\].*expanded",
    ),
)
SWAP = each(
    ("swap_blocks",),
    ("src", lambda a: a["src"][:1], "1 and 2"),
    ("dst", lambda a: [a["dst"][0], a["dst"][1].half()], r"dst\[1\].*float16"),
    ("dst", lambda a: [a["dst"][0], a["dst"][1][:, :4]], r"dst\[1\].*got \[6, 4, 2, 32\]"),
    ("dst", lambda a: [a["dst"][0], expanded(a["dst"][1])], r"dst\[1\].*expanded"),
    ("src", lambda a: [a["src"][0], a["src"][1][0]], r"src\[1\].*got \[8, 2, 32\]"),
    ("src", lambda a: [a["src"][0][0, 0, 0, 0], a["src"][1]], r"src\[0\].*got \[\]"),
    # Within one cache the order of copies would matter.
    (
        "block_mapping",
        constant(torch.tensor([[0, 1], [1, 2]])),
        "both source and destination",
        lambda a: {"dst": a["src"]},
    ),
)

BAD = [*CACHE, *HEAD_DIM, *ATTENTION, *OUTPUTS, *DECODE, *V2, *VARLEN, *MERGE, *RESHAPE, *GATHER]
BAD += [*BLOCKS, *COPY, *SWAP]

# Values inside tensors: only where the host may look at them.
BAD_VALUES = [
    *each(
        ATTENTION_OPS,
        ("seq_lens", with_value("seq_lens", 1, -1), r"seq_lens\[1\].*got -1"),
        ("seq_lens", with_value("seq_lens", 1, 101), r"seq_lens\[1\].*max_seq_len.*got 101"),
        (
            "seq_lens",
            with_value("seq_lens", 1, 121),
            r"seq_lens\[1\].*got 121",
            lambda a: {"max_seq_len": 128},
        ),
        ("block_tables", with_value("block_tables", (1, 12), -1), r"block_tables\[1, 12\].*got -1"),
        (
            "block_tables",
            with_value("block_tables", (2, 0), 2**31 - 1),
            r"\[2, 0\].*got 2147483647",
        ),
    ),
    *each(
        ("paged_attention_varlen",),
        ("cu_seqlens_q", with_value("cu_seqlens_q", 0, 1), r"cu_seqlens_q\[0\].*got 1"),
        ("cu_seqlens_q", with_value("cu_seqlens_q", 2, 1), "cu_seqlens_q.*2 then 1"),
        ("cu_seqlens_q", with_value("cu_seqlens_q", 3, 10), r"cu_seqlens_q\[3\].*got 10"),
        (
            "max_query_len",
            constant(3),
            "max_query_len = 3",
            lambda a: {"tree_mask": a["tree_mask"][:, :3]},
        ),
        (
            "tree_mask",
            lambda a: a["tree_mask"],
            "query_len <= seq_len",
            lambda a: {"seq_lens": with_value("seq_lens", 0, 1)(a)},
        ),
    ),
    *each(
        ("reshape_and_cache",),
        ("slot_mapping", with_value("slot_mapping", 0, 32), r"slot_mapping\[0\].*got 32"),
        (
            "slot_mapping",
            with_value("slot_mapping", 2, 2**40),
            r"slot_mapping\[2\].*got 1099511627776",
        ),
    ),
    *each(
        ("gather_cache",),
        ("num_tokens", constant(16), "16"),
        ("num_tokens", constant(18), "got 18"),
        ("cu_seq_lens", with_value("cu_seq_lens", 0, 1), r"cu_seq_lens\[0\].*got 1"),
        ("cu_seq_lens", with_value("cu_seq_lens", 2, 6), "7 then 6"),
        ("cu_seq_lens", constant(torch.tensor([0, 17, 17, 17]).int()), "17 tokens"),
        ("block_tables", with_value("block_tables", (1, 1), 4), r"block_tables\[1, 1\].*got 4"),
    ),
    *each(
        ("copy_blocks", "swap_blocks"),
        ("block_mapping", with_value("block_mapping", (0, 0), 4), r"block_mapping\[0, 0\].*got 4"),
        (
            "block_mapping",
            with_value("block_mapping", (1, 0), -1),
            r"block_mapping\[1, 0\].*got -1",
        ),
        ("block_mapping", with_value("block_mapping", (1, 1), 6), r"block_mapping\[1, 1\].*got 6"),
        (
            "block_mapping",
            constant(torch.tensor([[0, 2], [1, 2]])),
            "distinct destinations.*block 2",
        ),
    ),
    Bad("copy_blocks", "block_mapping", constant(torch.tensor([[0, 1], [1, 2]])), "both.*block 1"),
]


def assert_refused(bad: Bad, backend: Backend) -> None:
    arguments = valid_arguments(bad.op)
    arguments = {
        **arguments,
        **bad.also(arguments),
        bad.argument: bad.value(arguments),
    }
    given = to_backend(bad.op, arguments, backend.device)
    with pytest.raises(RuntimeError, match=rf"^pagedattn::{bad.op}: .*{bad.words}") as error:
        getattr(backend.ops, bad.op)(**given)
    first_line = str(error.value).splitlines()[0]
    assert bad.argument in first_line


@pytest.mark.parametrize("op", ALL_OPS)
def test_the_valid_arguments_are_taken(op: str, backend: Backend):
    getattr(backend.ops, op)(**to_backend(op, valid_arguments(op), backend.device))


@pytest.mark.parametrize("bad", BAD, ids=str)
def test_wrong_arguments(bad: Bad, backend: Backend):
    assert_refused(bad, backend)


@pytest.mark.parametrize("bad", BAD_VALUES, ids=str)
def test_wrong_values(bad: Bad, backend: Backend):
    if not backend.checks_values:
        pytest.skip("the host does not wait for device values")
    assert_refused(bad, backend)


@pytest.mark.parametrize("op", ALL_OPS)
def test_tensors_on_another_device(op: str, backend: Backend):
    if backend.device.type == "cpu":
        pytest.skip("there is no other device")
    valid = to_backend(op, valid_arguments(op), backend.device)
    for name, value in valid.items():
        is_list = isinstance(value, list)
        if not (is_list or isinstance(value, Tensor)) or op == "swap_blocks":
            continue
        elsewhere = [value[0], value[1].cpu()] if is_list else value.cpu()
        with pytest.raises(RuntimeError, match=f"^pagedattn::{op}: .*must be on"):
            getattr(backend.ops, op)(**{**valid, name: elsewhere})


GRADIENT_INPUTS = {
    **dict.fromkeys(ATTENTION_OPS, "query"),
    "reshape_and_cache": "key",
    "gather_cache": "key_cache",
    "merge_attention_states": "prefix_out",
}


@pytest.mark.parametrize("op", GRADIENT_INPUTS)
def test_an_input_that_needs_a_gradient(op: str):
    arguments = valid_arguments(op)
    arguments[GRADIENT_INPUTS[op]].requires_grad_()
    with pytest.raises(RuntimeError, match=f"pagedattn::{op} has no backward"):
        getattr(torch.ops.pagedattn, op)(**arguments)
    with torch.no_grad():
        getattr(torch.ops.pagedattn, op)(**arguments)
