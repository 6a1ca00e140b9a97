"""torch's scaled_dot_product_attention, over contiguous keys and values and over gathered ones."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from ..measure import Contestant
from ..problem import Problem
from . import Peer, Unsupported, require_memory


class Sdpa(Peer[Problem]):
    devices = ("cpu", "cuda")

    def contestants(self, problem: Problem) -> Sequence[Contestant]:
        shape = problem.shape
        if not shape.equal_lengths:
            raise Unsupported("sequences of different lengths")
        if shape.quantised:
            raise Unsupported("an 8-bit cache")
        require_memory(problem, 1)
        cu_seq_lens = torch.arange(
            0, shape.num_kv_tokens + 1, shape.max_seq_len, dtype=torch.int32
        ).to(problem.query.device)
        mask = causal_mask(problem)

        def headed(rows: Tensor) -> Tensor:
            return rows.unflatten(0, (shape.num_seqs, shape.max_seq_len)).transpose(1, 2)

        contiguous = [
            (headed(problem.key).contiguous(), headed(problem.value).contiguous())
            for _ in range(problem.num_layers)
        ]

        def over_gathered(layer: int) -> Tensor:
            key, value = torch.ops.pagedattn.gather_cache(
                *problem.layer(layer), problem.block_tables, cu_seq_lens, shape.num_kv_tokens
            )
            return attend(problem, headed(key), headed(value), mask)

        return [
            Contestant("SDPA contiguous", lambda layer: attend(problem, *contiguous[layer], mask)),
            Contestant("gather + SDPA", over_gathered),
        ]


def causal_mask(problem: Problem) -> Tensor | None:
    """None where SDPA's own is_causal says the same, or nothing is hidden."""
    query_len, length = problem.shape.query_len, problem.shape.max_seq_len
    if query_len in (1, length):
        return None
    ones = torch.ones(query_len, length, dtype=torch.bool, device=problem.query.device)
    return ones.tril(length - query_len)


def attend(problem: Problem, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Over key and value [num_seqs, num_kv_heads, seq_len, head_dim]."""
    shape = problem.shape
    if shape.query_len == 1:
        # The query heads of a group as rows of one query: each key is read once.
        query = problem.query.unflatten(1, (shape.num_kv_heads, -1))
        out = scaled_dot_product_attention(query, key, value, scale=problem.softmax_scale)
        return out.flatten(1, 2)
    query = problem.query.unflatten(0, (shape.num_seqs, -1)).transpose(1, 2)
    out = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=problem.softmax_scale,
        enable_gqa=True,
    )
    return out.transpose(1, 2).flatten(0, 1)
