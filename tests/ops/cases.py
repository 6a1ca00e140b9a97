"""Builds the arguments of an attention call from a short description of them.

Everything a kernel must not use is poisoned: unused slots, unused blocks and the scales of unused
slots are NaN, table entries that no visible key lies in are wild block ids, and so are the rows of
a packed QKV that are not the query's and the query rows that belong to no sequence.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from pagedattn import reference

WILD_BLOCK_IDS = (-1, 2**31 - 1, -(2**31))
PACKED_TAIL_ROWS = 2  # query rows past cu_seqlens_q[-1]


@dataclass(frozen=True)
class Spec:
    """What varies between cases. `query_lens=None` means decode: one query token per sequence."""

    dtype: torch.dtype = torch.float32
    head_dim: int = 64
    heads: tuple[int, int] = (4, 2)  # query, KV
    block_size: int = 16
    layout: str = "HND"
    interleaved: bool = False  # keys and values are views of one tensor
    packed_query: bool = False  # query is a slice of packed QKV
    cache_dtype: torch.dtype | None = None  # None: that of query
    scale_kind: str = "none"  # none, tensor, head, token_head
    seq_lens: tuple[int, ...] | None = None  # None: ragged, around the block size
    query_lens: tuple[int, ...] | None = None
    causal: bool = True
    window_left: int = -1
    softcap: float = 0.0
    alibi: bool = False
    sinks: bool = False
    tree: bool = False

    def lengths(self) -> tuple[int, ...]:
        b = self.block_size
        ragged = (0, 1, max(b - 1, 1), b, b + 1, b + 195)
        return ragged if self.seq_lens is None else self.seq_lens

    def work(self) -> int:
        """Multiply-adds of the two matrix products, for thinning out slow backends' cases."""
        query_lens = self.query_lens or (1,) * len(self.lengths())
        pairs = sum(q * k for q, k in zip(query_lens, self.lengths(), strict=True))
        return 2 * pairs * self.heads[0] * self.head_dim

    def __str__(self) -> str:
        short = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
        num_q_heads, num_kv_heads = self.heads
        parts = [short[self.dtype], f"d{self.head_dim}", f"h{num_q_heads}x{num_kv_heads}"]
        parts += [f"b{self.block_size}", self.layout]
        if self.cache_dtype is not None:
            parts += [str(self.cache_dtype).removeprefix("torch."), self.scale_kind]
        if self.window_left >= 0:
            parts.append(f"window{self.window_left}")
        flags = ("interleaved", "packed_query", "softcap", "alibi", "sinks", "tree")
        parts += [name for name in flags if getattr(self, name)]
        if not self.causal:
            parts.append("noncausal")
        return "-".join(parts)


@dataclass
class Case:
    """The arguments of an attention call, and what it should return."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    scale: float
    max_seq_len: int
    masks: dict[str, Any] = field(default_factory=dict)  # the keywords MASKS of the ops
    k_scale: Tensor | None = None
    v_scale: Tensor | None = None
    cu_seqlens_q: Tensor | None = None  # None: decode
    max_query_len: int = 1
    varlen_masks: dict[str, Any] = field(default_factory=dict)  # causal, tree_mask

    @property
    def options(self) -> dict[str, Any]:
        return {**self.masks, "k_scale": self.k_scale, "v_scale": self.v_scale}

    @property
    def num_rows(self) -> int:
        """Query rows that belong to a sequence."""
        return len(self.query) if self.cu_seqlens_q is None else int(self.cu_seqlens_q[-1])

    def to(self, device: torch.device) -> Case:
        def move(value: Any) -> Any:
            if isinstance(value, Tensor):
                return to_device(value, device)
            if isinstance(value, dict):
                return {key: move(item) for key, item in value.items()}
            return value

        return Case(**{f.name: move(getattr(self, f.name)) for f in fields(self)})

    @functools.cached_property
    def expected(self) -> tuple[Tensor, Tensor]:
        """(out, lse) in float64, of the rows that belong to a sequence."""
        cache = (self.key_cache, self.value_cache)
        query = self.query[: self.num_rows].double()
        if self.cu_seqlens_q is None:
            return reference.paged_attention(
                query, *cache, self.block_tables, self.seq_lens, self.scale, **self.options
            )
        return reference.paged_attention_varlen(
            query,
            *cache,
            self.cu_seqlens_q,
            self.block_tables,
            self.seq_lens,
            self.scale,
            **self.options,
            **self.varlen_masks,
        )


def to_device(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Moves a tensor with all of the storage it views, so that its strides stay what they are."""
    if tensor.device == torch.device(device):
        return tensor
    storage_size = tensor.untyped_storage().nbytes() // tensor.element_size()
    storage = tensor.as_strided((storage_size,), (1,), 0).to(device)
    return storage.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def poisoned(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """NaN where the dtype has one, else its least likely value."""
    tensor = torch.empty(tuple(shape), dtype=dtype)
    return tensor.fill_(math.nan if dtype.is_floating_point else torch.iinfo(dtype).min)


def poisoned_cache_pair(spec: Spec, num_blocks: int) -> tuple[Tensor, Tensor]:
    """Key and value cache `[num_blocks, block_size, num_kv_heads, head_dim]`, as the spec asks."""
    inner = (spec.block_size, spec.heads[1], spec.head_dim)
    if spec.layout == "HND":
        inner = (spec.heads[1], spec.block_size, spec.head_dim)
    dtype = spec.cache_dtype or spec.dtype
    if spec.interleaved:
        key_cache, value_cache = poisoned((num_blocks, 2, *inner), dtype).unbind(1)
    else:
        key_cache, value_cache = (poisoned((num_blocks, *inner), dtype) for _ in range(2))
    if spec.layout == "HND":
        key_cache, value_cache = key_cache.transpose(1, 2), value_cache.transpose(1, 2)
    return key_cache, value_cache


def random_rows(spec: Spec, num_rows: int, rng: torch.Generator) -> Tensor:
    """Keys or values of `num_rows` tokens, as stored: of about unit size once dequantised."""
    shape = (num_rows, spec.heads[1], spec.head_dim)
    dtype = spec.cache_dtype or spec.dtype
    rows = torch.randn(shape, generator=rng)
    if spec.scale_kind != "none":
        rows = rows / CODE_UNIT
    if dtype == torch.int8:
        return rows.round().clamp(-127, 127).to(dtype)
    return rows.to(dtype)


CODE_UNIT = 1 / 32  # the size of a scale: codes are then about 32


def random_scale(spec: Spec, slots: Tensor, num_blocks: int, rng: torch.Generator) -> Tensor | None:
    """fp32 scales of the kind asked, NaN for slots that are not used."""

    def draw(*shape: int) -> Tensor:
        return CODE_UNIT * (0.5 + torch.rand(shape, generator=rng))

    num_kv_heads = spec.heads[1]
    if spec.scale_kind == "none":
        return None
    if spec.scale_kind == "tensor":
        return draw()
    if spec.scale_kind == "head":
        return draw(num_kv_heads)
    scale = poisoned((num_blocks, spec.block_size, num_kv_heads), torch.float32)
    scale[slots // spec.block_size, slots % spec.block_size] = draw(len(slots), num_kv_heads)
    return scale


def shuffled_block_tables(
    first_blocks: Sequence[int], end_blocks: Sequence[int], rng: torch.Generator
) -> tuple[Tensor, int]:
    """int32 tables in which sequence s has blocks [first, end), and how many blocks there are.

    All other entries are wild. Two blocks, and two columns, are left over.
    """
    counts = [end - first for first, end in zip(first_blocks, end_blocks, strict=True)]
    num_blocks = sum(counts) + 2
    shuffled = torch.randperm(num_blocks, generator=rng).int()
    shape = (len(counts), max(end_blocks, default=0) + 2)
    wild = torch.tensor(WILD_BLOCK_IDS, dtype=torch.int32)
    tables = wild[torch.arange(math.prod(shape)) % len(wild)].reshape(shape)
    for seq, blocks in enumerate(shuffled[: sum(counts)].split(counts)):
        tables[seq, first_blocks[seq] : end_blocks[seq]] = blocks
    return tables, num_blocks


def random_query(spec: Spec, num_rows: int, rng: torch.Generator) -> Tensor:
    num_q_heads, num_kv_heads = spec.heads
    heads = num_q_heads + 2 * num_kv_heads if spec.packed_query else num_q_heads
    packed = poisoned((num_rows, heads, spec.head_dim), spec.dtype)
    query = packed[:, :num_q_heads]
    # Twice the unit size: logits spread enough for a running maximum to change often.
    query.copy_(2 * torch.randn(query.shape, generator=rng))
    return query


def random_tree_mask(query_lens: Sequence[int], num_rows: int, rng: torch.Generator) -> Tensor:
    """bool `[num_rows, max_query_len]`: each token sees itself and its ancestors in a random tree.

    Columns past a sequence's query_len mean nothing and are random.
    """
    mask = torch.rand(num_rows, max(query_lens), generator=rng) < 0.5
    row = 0
    for query_len in query_lens:
        for token in range(query_len):
            mask[row + token, :query_len] = False
            if token > 0:
                parent = int(torch.randint(token, (1,), generator=rng))
                mask[row + token, :query_len] = mask[row + parent, :query_len]
            mask[row + token, token] = True
        row += query_len
    return mask


def build(spec: Spec, seed: int = 0) -> Case:
    rng = torch.Generator().manual_seed(seed)
    seq_lens = spec.lengths()
    query_lens = spec.query_lens or (1,) * len(seq_lens)
    block_size = spec.block_size

    first_blocks = [
        reference.first_in_window(k - q, spec.window_left) // block_size
        for q, k in zip(query_lens, seq_lens, strict=True)
    ]
    end_blocks = [math.ceil(k / block_size) for k in seq_lens]
    block_tables, num_blocks = shuffled_block_tables(first_blocks, end_blocks, rng)

    used = [
        reference.slots_of(table, torch.arange(first * block_size, k), block_size)
        for table, first, k in zip(block_tables, first_blocks, seq_lens, strict=True)
    ]
    slots = torch.cat([torch.empty(0, dtype=torch.long), *used])
    key_cache, value_cache = poisoned_cache_pair(spec, num_blocks)
    for cache in (key_cache, value_cache):
        cache[slots // block_size, slots % block_size] = random_rows(spec, len(slots), rng)

    num_q_heads = spec.heads[0]
    masks: dict[str, Any] = {"window_left": spec.window_left, "softcap": spec.softcap}
    if spec.alibi:
        masks["alibi_slopes"] = 0.1 * torch.rand(num_q_heads, generator=rng)
    if spec.sinks:
        masks["sinks"] = 2 * torch.randn(num_q_heads, generator=rng)

    num_rows = len(seq_lens) if spec.query_lens is None else sum(query_lens) + PACKED_TAIL_ROWS
    case = Case(
        query=random_query(spec, num_rows, rng),
        key_cache=key_cache,
        value_cache=value_cache,
        block_tables=block_tables,
        seq_lens=torch.tensor(seq_lens, dtype=torch.int32),
        scale=spec.head_dim**-0.5,
        max_seq_len=max(seq_lens, default=0),
        masks=masks,
        k_scale=random_scale(spec, slots, num_blocks, rng),
        v_scale=random_scale(spec, slots, num_blocks, rng),
    )
    if spec.query_lens is None:
        return case
    case.query[sum(query_lens) :] = math.nan
    varlen_masks: dict[str, Any] = {"causal": spec.causal}
    if spec.tree:
        varlen_masks["tree_mask"] = random_tree_mask(query_lens, num_rows, rng)
    return replace(
        case,
        cu_seqlens_q=torch.tensor([0, *query_lens]).cumsum(0).int(),
        max_query_len=max(query_lens, default=0),
        varlen_masks=varlen_masks,
    )


@functools.lru_cache(maxsize=4)
def built(spec: Spec, seed: int = 0) -> Case:
    """`build` for tests that run several ops on one case in a row."""
    return build(spec, seed)
