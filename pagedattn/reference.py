"""Every op of pagedattn in plain PyTorch: the specification that the kernels are tested against.

The functions take the ops' arguments in the ops' order, without the output tensors and without the
host's upper bounds (`max_seq_len`, `max_query_len`, `num_tokens`), and return what the ops write.
Nothing given is modified. Attention is computed in the dtype of `query`, with scales and masks
converted to it: pass a float64 query, over a cache of any dtype, to get an oracle.

Shapes, with B = block_size and logical cache shape `[num_blocks, B, num_kv_heads, head_dim]`:

    query, out       [num_tokens, num_q_heads, head_dim]   head h reads KV head h // (q / kv heads)
    lse              [num_tokens, num_q_heads]             natural log; an empty row is (0, -inf)
    block_tables     [num_seqs, max_blocks_per_seq]        position p is in block_tables[s, p // B]
    seq_lens         [num_seqs]                            tokens in the cache, new ones included
    k_scale, v_scale [], [1], [num_kv_heads] or [num_blocks, B, num_kv_heads]; None means 1

Only the slots of positions below seq_len that lie in some row's window are read, so whatever is in
other slots, in other blocks or in other entries of a table cannot reach a result.

Sources: PagedAttention, Kwon et al. 2023; online softmax, Milakov & Gimelshein 2018; its use tile
by tile, FlashAttention, Dao et al. 2022; ALiBi, Press et al. 2022; attention sinks as a logit of
their own, Xiao et al. 2024 and gpt-oss; merging by log-sum-exp, Flash-Decoding, Dao et al. 2023.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

# Largest magnitude that each 8-bit type stores. int8 leaves -128 out, to be symmetric.
QUANTIZED_MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0, torch.int8: 127.0}


# --- Attention over one sequence, whose keys and values lie in one piece --------------------------


@dataclass(frozen=True)
class Masks:
    """What bends or hides a logit, apart from the scale.

    `alibi_slopes` is `[num_q_heads]`. `tree_mask` is `[query_len, >= query_len]` bool: row = query
    token, column = draft token; among the last query_len positions it takes the place of `causal`.
    """

    causal: bool = True
    window_left: int = -1
    softcap: float = 0.0
    alibi_slopes: Tensor | None = None
    tree_mask: Tensor | None = None


def visible_keys(q_pos: Tensor, kv_pos: Tensor, masks: Masks) -> Tensor:
    """Bool `[query_len, num_keys]`: which keys, at `kv_pos`, each row, at `q_pos`, attends to."""
    distance = kv_pos[None, :] - q_pos[:, None]
    visible = torch.ones_like(distance, dtype=torch.bool)
    if masks.tree_mask is not None:
        draft = kv_pos - q_pos[0]  # column of the tree mask; negative: before the draft
        column = draft.clamp(min=0)
        visible = masks.tree_mask[:, column] | (draft < 0)[None, :]
    elif masks.causal:
        visible = distance <= 0
    if masks.window_left >= 0:
        visible = visible & (distance >= -masks.window_left)
    return visible


def masked_logits(
    query: Tensor, key: Tensor, q_pos: Tensor, kv_pos: Tensor, scale: float, masks: Masks
) -> Tensor:
    """`[num_q_heads, query_len, num_keys]`: scale, softcap, ALiBi and masks, applied in that order.

    `query` is `[query_len, num_q_heads, head_dim]`, `key` `[num_keys, num_kv_heads, head_dim]`.
    """
    (num_q_heads, head_dim), num_kv_heads = query.shape[1:], key.shape[1]
    grouped_query = query.reshape(len(query), num_kv_heads, num_q_heads // num_kv_heads, head_dim)
    logits = torch.einsum("qngd,knd->ngqk", grouped_query, key).flatten(0, 1) * scale
    if masks.softcap > 0:
        logits = masks.softcap * torch.tanh(logits / masks.softcap)
    if masks.alibi_slopes is not None:
        distance = (kv_pos[None, :] - q_pos[:, None]).to(logits.dtype)
        logits = logits + masks.alibi_slopes.to(logits.dtype)[:, None, None] * distance
    return logits.masked_fill(~visible_keys(q_pos, kv_pos, masks), -math.inf)


def weighted_values(weights: Tensor, value: Tensor) -> Tensor:
    """`[num_q_heads, query_len, num_keys] x [num_keys, num_kv_heads, head_dim]`, GQA included,
    -> `[num_q_heads, query_len, head_dim]`."""
    (num_q_heads, query_len, num_keys), num_kv_heads = weights.shape, value.shape[1]
    grouped_weights = weights.reshape(
        num_kv_heads, num_q_heads // num_kv_heads, query_len, num_keys
    )
    return torch.einsum("ngqk,knd->ngqd", grouped_weights, value).flatten(0, 1)


def attend(logits: Tensor, value: Tensor, sinks: Tensor | None) -> tuple[Tensor, Tensor]:
    """Softmax over the keys, directly. -> (out `[num_q_heads, query_len, head_dim]`, lse).

    A sink is one more logit in the denominator, without a value.
    """
    denominator = logits
    if sinks is not None:
        sink_column = sinks.to(logits.dtype)[:, None, None].expand(-1, logits.shape[1], 1)
        denominator = torch.cat([logits, sink_column], dim=-1)
    lse = torch.logsumexp(denominator, dim=-1)
    weights = torch.exp(logits - _finite(lse)[..., None])
    return weighted_values(weights, value), lse


def _finite(lse: Tensor) -> Tensor:
    """Replaces -inf by 0: exp(-inf - lse) becomes the 0 that an empty row is due, and not NaN."""
    return torch.where(lse == -math.inf, 0.0, lse)


# --- Reading the paged cache ----------------------------------------------------------------------


def dequantize(stored: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Stored * scale, as `dtype`: the product in fp32 or wider, then rounded once.

    `stored` is `[..., num_kv_heads, head_dim]`; `scale` is broadcastable to `[..., num_kv_heads]`.
    """
    if scale is None:
        return stored.to(dtype)
    wide = torch.promote_types(dtype, torch.float32)
    return (stored.to(wide) * scale.to(wide)[..., None]).to(dtype)


def read_slots(cache: Tensor, scale: Tensor | None, slots: Tensor, dtype: torch.dtype) -> Tensor:
    """`[len(slots), num_kv_heads, head_dim]`: what slots `block * B + offset` hold, dequantised."""
    block_size = cache.shape[1]
    where = (slots // block_size, slots % block_size)
    if scale is not None and scale.dim() == 3:  # per token and head
        scale = scale[where]
    return dequantize(cache[where], scale, dtype)


def slots_of(block_table: Tensor, positions: Tensor, block_size: int) -> Tensor:
    """Virtual to physical: the slot of each position of a sequence with this block table."""
    return block_table[positions // block_size].long() * block_size + positions % block_size


@dataclass(frozen=True)
class PagedCache:
    """Keys and values of all sequences, with the scales of an 8-bit cache."""

    key_cache: Tensor
    value_cache: Tensor
    k_scale: Tensor | None
    v_scale: Tensor | None

    @property
    def block_size(self) -> int:
        return self.key_cache.shape[1]

    def read(
        self, block_table: Tensor, positions: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor]:
        """(key, value) at some positions of one sequence, each `[n, num_kv_heads, head_dim]`."""
        slots = slots_of(block_table, positions, self.block_size)
        return (
            read_slots(self.key_cache, self.k_scale, slots, dtype),
            read_slots(self.value_cache, self.v_scale, slots, dtype),
        )


def first_in_window(q_pos: int, window_left: int) -> int:
    """The first position that a row at `q_pos` may see."""
    return 0 if window_left < 0 else max(0, q_pos - window_left)


# --- Attention ops --------------------------------------------------------------------------------


def paged_attention_varlen(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    cu_seqlens_q: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    *,
    causal: bool = True,
    window_left: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    tree_mask: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Attention of ragged queries; row i of sequence s sits at seq_lens[s] - query_len + i.

    -> (out, lse). Rows at or past `cu_seqlens_q[-1]` belong to no sequence: (0, -inf) here.
    """
    cache = PagedCache(key_cache, value_cache, k_scale, v_scale)
    out = query.new_zeros(query.shape)
    lse = query.new_full(query.shape[:2], -math.inf)
    bounds = cu_seqlens_q.tolist()
    for seq, seq_len in enumerate(seq_lens.tolist()):
        rows = slice(bounds[seq], bounds[seq + 1])
        query_len = rows.stop - rows.start
        if query_len == 0:
            continue
        first_row = seq_len - query_len
        start = first_in_window(first_row, window_left)
        q_pos = torch.arange(first_row, seq_len, device=query.device)
        kv_pos = torch.arange(start, seq_len, device=query.device)
        key, value = cache.read(block_tables[seq], kv_pos, query.dtype)
        tree = None if tree_mask is None else tree_mask[rows]
        masks = Masks(causal, window_left, softcap, alibi_slopes, tree)
        logits = masked_logits(query[rows], key, q_pos, kv_pos, scale, masks)
        seq_out, seq_lse = attend(logits, value, sinks)
        out[rows], lse[rows] = seq_out.transpose(0, 1), seq_lse.transpose(0, 1)
    return out, lse


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    *,
    window_left: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Decode: one query row per sequence, at its last position. -> (out, lse)."""
    cu_seqlens_q = torch.arange(query.shape[0] + 1, dtype=torch.int32)
    return paged_attention_varlen(
        query,
        key_cache,
        value_cache,
        cu_seqlens_q,
        block_tables,
        seq_lens,
        scale,
        window_left=window_left,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        k_scale=k_scale,
        v_scale=v_scale,
    )


paged_attention_v1 = paged_attention


def paged_attention_v2(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    partition_size: int,
    scale: float,
    *,
    window_left: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Decode with the KV range cut into partitions of `partition_size` positions from position 0.

    -> (out, lse, partial_out `[num_seqs, num_q_heads, num_partitions, head_dim]`, partial_lse
    `[num_seqs, num_q_heads, num_partitions]`). Each partial is a normalised attention over the
    partition's keys alone, without sinks; one that sees no key is (0, -inf).
    """
    num_seqs, num_q_heads, head_dim = query.shape
    longest = max(seq_lens.tolist(), default=0)
    num_partitions = max(1, math.ceil(longest / partition_size))
    cache = PagedCache(key_cache, value_cache, k_scale, v_scale)
    partial_out = query.new_zeros(num_seqs, num_q_heads, num_partitions, head_dim)
    partial_lse = query.new_full((num_seqs, num_q_heads, num_partitions), -math.inf)
    masks = Masks(window_left=window_left, softcap=softcap, alibi_slopes=alibi_slopes)
    for seq, seq_len in enumerate(seq_lens.tolist()):
        q_pos = torch.tensor([seq_len - 1], device=query.device)
        window = first_in_window(seq_len - 1, window_left)
        for part, first in enumerate(range(0, seq_len, partition_size)):
            start, stop = max(first, window), min(first + partition_size, seq_len)
            kv_pos = torch.arange(start, max(start, stop), device=query.device)
            key, value = cache.read(block_tables[seq], kv_pos, query.dtype)
            logits = masked_logits(query[seq, None], key, q_pos, kv_pos, scale, masks)
            part_out, part_lse = attend(logits, value, sinks=None)
            partial_out[seq, :, part], partial_lse[seq, :, part] = part_out[:, 0], part_lse[:, 0]
    out, lse = reduce_partitions(partial_out, partial_lse, sinks)
    return out, lse, partial_out, partial_lse


def reduce_partitions(
    partial_out: Tensor, partial_lse: Tensor, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Combines attentions over disjoint sets of keys; sinks `[num_q_heads]` enter once, here.

    `partial_out` is `[num_tokens, num_q_heads, num_partitions, head_dim]`. What a partition with
    lse = -inf holds in it does not count. -> (out, lse).
    """
    denominator = partial_lse
    if sinks is not None:
        sink_column = sinks.to(partial_lse.dtype)[None, :, None].expand(len(partial_lse), -1, 1)
        denominator = torch.cat([partial_lse, sink_column], dim=-1)
    lse = torch.logsumexp(denominator, dim=-1)
    weights = torch.exp(partial_lse - _finite(lse)[..., None])
    terms = torch.where(partial_lse[..., None] == -math.inf, 0.0, weights[..., None] * partial_out)
    return terms.sum(dim=2).to(partial_out.dtype), lse


def merge_attention_states(
    prefix_out: Tensor, prefix_lse: Tensor, suffix_out: Tensor, suffix_lse: Tensor
) -> tuple[Tensor, Tensor]:
    """The attention over the union of two disjoint sets of keys, from that over each.

    -> (out, lse). Both empty gives (0, -inf).
    """
    return reduce_partitions(
        torch.stack([prefix_out, suffix_out], dim=2), torch.stack([prefix_lse, suffix_lse], dim=2)
    )


def online_softmax_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    *,
    window_left: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Decode as the kernels do it: one walk over a sequence's blocks in constant memory.

    Three quantities per query head are carried from block to block (the papers' m, l and o):

        top     the largest logit so far
        total   sum of exp(logit - top)
        mixed   sum of exp(logit - top) * value

    When a block raises the maximum, what was summed relative to the old one is rescaled by
    exp(old - new). At the end out = mixed / total and lse = top + log(total). A sink is a logit
    seen before the first block, without a value. -> (out, lse), equal to `paged_attention`.
    """
    num_seqs, num_q_heads, head_dim = query.shape
    cache = PagedCache(key_cache, value_cache, k_scale, v_scale)
    masks = Masks(window_left=window_left, softcap=softcap, alibi_slopes=alibi_slopes)
    out = query.new_zeros(num_seqs, num_q_heads, head_dim)
    lse = query.new_full((num_seqs, num_q_heads), -math.inf)
    for seq, seq_len in enumerate(seq_lens.tolist()):
        if sinks is None:
            top, total = query.new_full((num_q_heads,), -math.inf), query.new_zeros(num_q_heads)
        else:
            top, total = sinks.to(query.dtype), query.new_ones(num_q_heads)
        mixed = query.new_zeros(num_q_heads, head_dim)
        q_pos = torch.tensor([seq_len - 1], device=query.device)

        window = first_in_window(seq_len - 1, window_left)
        for block in range(window // cache.block_size, math.ceil(seq_len / cache.block_size)):
            start, stop = block * cache.block_size, (block + 1) * cache.block_size
            kv_pos = torch.arange(max(start, window), min(stop, seq_len), device=query.device)
            key, value = cache.read(block_tables[seq], kv_pos, query.dtype)
            logits = masked_logits(query[seq, None], key, q_pos, kv_pos, scale, masks)[:, 0]

            new_top = torch.maximum(top, logits.amax(dim=-1))
            rescale = torch.exp(top - _finite(new_top))
            weights = torch.exp(logits - _finite(new_top)[:, None])
            total = total * rescale + weights.sum(dim=-1)
            mixed = mixed * rescale[:, None] + weighted_values(weights[:, None], value)[:, 0]
            top = new_top

        seen = total > 0
        out[seq] = torch.where(seen[:, None], mixed / total[:, None], 0.0)
        lse[seq] = torch.where(seen, top + torch.log(total), -math.inf)
    return out, lse


# --- Cache ops ------------------------------------------------------------------------------------


def quantize(rows: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Codes of `rows` `[..., head_dim]`: x / scale in fp32, saturated, rounded to nearest even.

    `scale` is broadcastable to `rows.shape[:-1]`. NaN stays NaN in fp8 and becomes 0 in int8.
    """
    limit = QUANTIZED_MAX[dtype]
    scaled = (rows.float() / scale.float()[..., None]).clamp(-limit, limit)
    if dtype == torch.int8:
        scaled = scaled.nan_to_num(nan=0.0).round()
    return scaled.to(dtype)


def quantize_per_token_head(rows: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Codes of `rows` `[..., head_dim]`, and scales that put each row's absmax on the largest code.

    NaN does not count towards the absmax. An all-zero row has scale 0 and codes 0.
    """
    rows = rows.float()
    scale = rows.abs().nan_to_num(nan=0.0, posinf=math.inf).amax(dim=-1) / QUANTIZED_MAX[dtype]
    return quantize(rows, torch.where(scale == 0, 1.0, scale), dtype), scale


def write_slots(
    rows: Tensor, cache: Tensor, scale: Tensor | None, slots: Tensor
) -> tuple[Tensor, Tensor | None]:
    """Cache and scale after rows `[len(slots), num_kv_heads, head_dim]` were written to `slots`."""
    block_size = cache.shape[1]
    where = (slots // block_size, slots % block_size)
    cache = cache.clone()
    if cache.dtype not in QUANTIZED_MAX:
        cache[where] = rows.to(cache.dtype)
    elif scale is not None and scale.dim() == 3:  # per token and head: computed here
        scale = scale.clone()
        cache[where], scale[where] = quantize_per_token_head(rows, cache.dtype)
    else:
        cache[where] = quantize(rows, rows.new_ones(()) if scale is None else scale, cache.dtype)
    return cache, scale


def reshape_and_cache(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor | None, Tensor | None]:
    """Writes token i to slot `slot_mapping[i]`; a negative slot skips the token.

    -> (key_cache, value_cache, k_scale, v_scale) as they are afterwards. An 8-bit cache is
    quantised by the scale given, or, with a scale per token and head, by one computed per row.
    """
    kept = slot_mapping >= 0
    slots = slot_mapping[kept]
    key_cache, k_scale = write_slots(key[kept], key_cache, k_scale, slots)
    value_cache, v_scale = write_slots(value[kept], value_cache, v_scale, slots)
    return key_cache, value_cache, k_scale, v_scale


def gather_cache(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    cu_seq_lens: Tensor,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    """The sequences' tokens in one piece.

    -> (key, value), each `[cu_seq_lens[-1], num_kv_heads, head_dim]`. Token i of sequence s is at
    row `cu_seq_lens[s] + i`. `dtype=None` copies what is stored, unscaled; another dtype
    dequantises.
    """
    slots = torch.cat(
        [cu_seq_lens.new_empty(0, dtype=torch.long)]
        + [
            slots_of(table, torch.arange(length, device=table.device), key_cache.shape[1])
            for table, length in zip(block_tables, cu_seq_lens.diff().tolist(), strict=True)
        ]
    )
    if dtype is None:
        k_scale = v_scale = None
        dtype = key_cache.dtype
    return (
        read_slots(key_cache, k_scale, slots, dtype),
        read_slots(value_cache, v_scale, slots, dtype),
    )


def copy_blocks(
    key_caches: Sequence[Tensor], value_caches: Sequence[Tensor], block_mapping: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Copies block `block_mapping[i, 0]` over block `block_mapping[i, 1]` within every cache.

    -> (key_caches, value_caches) as they are afterwards.
    """
    return (
        swap_blocks(key_caches, key_caches, block_mapping),
        swap_blocks(value_caches, value_caches, block_mapping),
    )


def swap_blocks(
    src: Sequence[Tensor], dst: Sequence[Tensor], block_mapping: Tensor
) -> list[Tensor]:
    """Copies block `block_mapping[i, 0]` of `src[c]` over block `block_mapping[i, 1]` of `dst[c]`.

    -> the `dst` as they are afterwards, each on its own device.
    """
    result = [tensor.clone() for tensor in dst]
    for source, target in zip(src, result, strict=True):
        for source_block, target_block in block_mapping.tolist():
            target[target_block] = source[source_block].to(target.device)
    return result
