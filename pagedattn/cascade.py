"""Decode attention of sequences that share their leading blocks, which are read once for all.

Plain decode reads a shared block once per sequence. Here one pass attends to the common prefix with
the whole batch as the query rows of a single sequence, another one to what each sequence has of its
own, and the two are merged by their log-sum-exp (Hydragen, Juravsky et al. 2024; cascade inference
of FlashInfer, Ye et al. 2024)::

    block_tables            prefix pass                      suffix pass
    | 7 3 | 1 4 |           rows 0, 1, 2 x blocks 7 3        row 0 x blocks 1 4
    | 7 3 | 9   |                                            row 1 x block  9
    | 7 3 | 2 5 |                                            row 2 x blocks 2 5
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_ops = torch.ops.pagedattn

# Where two passes overtake one on the CPU (bench/cascade.py): with 4096 common tokens for two
# sequences, 600 for eight; below 512 a second pass gains little from any number of rows. On a GPU
# they are a guess.
_MIN_COMMON_TOKENS = 512
_MIN_SAVED_TOKENS = 4096


def should_cascade(num_seqs: int, num_common_tokens: int) -> bool:
    """Whether reading ``num_common_tokens`` once instead of ``num_seqs`` times is worth its price.

    Saved are the reads of all sequences but one. The price is two more launches, and for each
    sequence two outputs that are written and read again. Both numbers are the host's, so the answer
    waits for no device.
    """
    num_saved_tokens = (num_seqs - 1) * num_common_tokens
    return num_common_tokens >= _MIN_COMMON_TOKENS and num_saved_tokens >= _MIN_SAVED_TOKENS


def cascade_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    max_seq_len: int,
    scale: float,
    *,
    num_common_blocks: int,
    window_left: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    sinks: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
) -> Tensor:
    """``paged_attention`` of sequences whose block tables begin with the same blocks.

    num_common_blocks: how many leading blocks all rows of ``block_tables`` have in common, a host
    value: ``BlockManager.common_prefix_blocks(request_ids)``. Every sequence must fill them: no
    seq_len is below ``num_common_blocks * block_size``. 0 is always right.

    The other arguments and the result, ``[num_seqs, num_q_heads, head_dim]``, are those of
    ``torch.ops.pagedattn.paged_attention``, and so is the result's accuracy. Where the prefix is
    too short to be worth it (:func:`should_cascade`), or a window could hide a part of it, that op
    does the work. Otherwise the bits of a row depend on the number of sequences, which give their
    prefix pass its shape.

    Waits for no device, and can be captured in a CUDA graph, whose replays have the same
    num_common_blocks. Raises ValueError if num_common_blocks is negative or more than the columns
    of ``block_tables``, or if its tokens are more than max_seq_len; else what the ops raise.
    """
    block_size = key_cache.shape[1]
    prefix_len = num_common_blocks * block_size
    if not 0 <= num_common_blocks <= block_tables.shape[1]:
        raise ValueError(
            "cascade_attention: num_common_blocks must be in [0, block_tables.size(1) = "
            f"{block_tables.shape[1]}], got {num_common_blocks}"
        )
    if prefix_len > max_seq_len:
        raise ValueError(
            f"cascade_attention: num_common_blocks * block_size = {prefix_len} must be at most "
            f"max_seq_len = {max_seq_len}"
        )
    options: dict[str, Any] = {
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "sinks": sinks,
        "k_scale": k_scale,
        "v_scale": v_scale,
    }
    arguments = (query, key_cache, value_cache, block_tables, seq_lens, max_seq_len, scale)
    # Rows of one pass have consecutive positions; a window that begins elsewhere for each row
    # cannot be told to the prefix pass.
    prefix_is_visible = window_left < 0 or window_left >= max_seq_len - 1
    if prefix_is_visible and should_cascade(query.shape[0], prefix_len):
        return attend_in_two_passes(*arguments, num_common_blocks=num_common_blocks, **options)
    out: Tensor = _ops.paged_attention(*arguments, window_left=window_left, **options)
    return out


def attend_in_two_passes(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    max_seq_len: int,
    scale: float,
    *,
    num_common_blocks: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    sinks: Tensor | None,
    k_scale: Tensor | None,
    v_scale: Tensor | None,
) -> Tensor:
    """What :func:`cascade_attention` does where it is worth it; at least one sequence."""
    num_seqs = query.shape[0]
    prefix_len = num_common_blocks * key_cache.shape[1]
    options: dict[str, Any] = {
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "k_scale": k_scale,
        "v_scale": v_scale,
    }
    # Made on the device: nothing is uploaded, nothing waited for.
    device = query.device
    cu_seqlens_q = torch.arange(0, num_seqs + 1, num_seqs, dtype=torch.int32, device=device)
    prefix_lens = torch.full((1,), prefix_len, dtype=torch.int32, device=device)
    prefix_out, suffix_out = query.new_empty(2, *query.shape).unbind()
    prefix_lse, suffix_lse = query.new_empty(2, *query.shape[:2], dtype=torch.float32).unbind()
    _ops.paged_attention_varlen(
        prefix_out,
        query,
        key_cache,
        value_cache,
        cu_seqlens_q,
        block_tables[:1],
        prefix_lens,
        num_seqs,
        prefix_len,
        scale,
        causal=False,
        **options,
        lse=prefix_lse,
    )
    if alibi_slopes is not None:
        # The pass took the rows for the last tokens of the prefix. At a row's true position every
        # bias slope * (kv_pos - q_pos) differs by the same amount: weights stay, lse moves.
        taken_for = torch.arange(prefix_len - num_seqs, prefix_len, device=device)
        prefix_lse += alibi_slopes.float() * (taken_for - (seq_lens - 1))[:, None]
    # Positions count from the first block of the table; ALiBi sees only their differences.
    _ops.paged_attention_v1(
        suffix_out,
        query,
        key_cache,
        value_cache,
        block_tables[:, num_common_blocks:],
        seq_lens - prefix_len,
        max_seq_len - prefix_len,
        scale,
        **options,
        sinks=sinks,
        lse=suffix_lse,
    )
    _ops.merge_attention_states(prefix_out, None, prefix_out, prefix_lse, suffix_out, suffix_lse)
    return prefix_out
