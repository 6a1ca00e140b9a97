"""The reference itself: against loops over single numbers, torch's attention, and one another."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pagedattn import reference

BLOCK_SIZE, NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 6, 2, 8
SEQ_LENS = (0, 1, 3, 4, 5, 19)
SCALE = 0.3

MASKS: list[dict[str, Any]] = [
    {},
    {"window_left": 0},
    {"window_left": 6},
    {"softcap": 1.5},
    {"alibi_slopes": torch.linspace(0.05, 0.5, NUM_Q_HEADS)},
    {"sinks": torch.linspace(-1, 2, NUM_Q_HEADS)},
    {
        "window_left": 5,
        "softcap": 2.0,
        "alibi_slopes": torch.linspace(0.05, 0.5, NUM_Q_HEADS),
        "sinks": torch.linspace(-1, 2, NUM_Q_HEADS),
    },
]
each_masks = pytest.mark.parametrize("masks", MASKS, ids=lambda masks: "-".join(masks) or "none")


class Paged:
    """Random sequences in shuffled blocks of a float64 cache that is NaN elsewhere."""

    def __init__(self, seq_lens: tuple[int, ...] = SEQ_LENS) -> None:
        rng = torch.Generator().manual_seed(0)
        counts = [math.ceil(n / BLOCK_SIZE) for n in seq_lens]
        num_blocks = sum(counts) + 2
        shape = (num_blocks, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
        self.key_cache = torch.full(shape, math.nan, dtype=torch.float64)
        self.value_cache = self.key_cache.clone()
        self.block_tables = torch.full((len(seq_lens), max(counts) + 1), -1, dtype=torch.int32)
        self.seq_lens = torch.tensor(seq_lens, dtype=torch.int32)
        self.keys: list[Tensor] = []
        self.values: list[Tensor] = []
        free = torch.randperm(num_blocks, generator=rng).tolist()
        for seq, seq_len in enumerate(seq_lens):
            key, value = (
                torch.randn(seq_len, *shape[2:], dtype=torch.float64, generator=rng)
                for _ in range(2)
            )
            for pos in range(seq_len):
                if pos % BLOCK_SIZE == 0:
                    self.block_tables[seq, pos // BLOCK_SIZE] = free.pop()
                block = self.block_tables[seq, pos // BLOCK_SIZE]
                self.key_cache[block, pos % BLOCK_SIZE] = key[pos]
                self.value_cache[block, pos % BLOCK_SIZE] = value[pos]
            self.keys.append(key)
            self.values.append(value)

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.key_cache, self.value_cache, self.block_tables, self.seq_lens


@pytest.fixture(scope="module")
def paged() -> Paged:
    return Paged()


def queries(num_tokens: int) -> Tensor:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(num_tokens, NUM_Q_HEADS, HEAD_DIM, dtype=torch.float64, generator=rng)


def attention_by_loops(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    first_position: int,
    causal: bool = True,
    **masks: Any,
) -> tuple[Tensor, Tensor]:
    """One number at a time, straight from the definition of each mask."""
    out = torch.zeros_like(query)
    lse = torch.full(query.shape[:2], -math.inf, dtype=query.dtype)
    for row, head in ((r, h) for r in range(len(query)) for h in range(NUM_Q_HEADS)):
        position = first_position + row
        kv_head = head // (NUM_Q_HEADS // NUM_KV_HEADS)
        weights = {}
        for kv_position in range(len(key)):
            if causal and kv_position > position:
                continue
            if masks.get("window_left", -1) >= 0 and kv_position < position - masks["window_left"]:
                continue
            logit = SCALE * math.fsum((query[row, head] * key[kv_position, kv_head]).tolist())
            if "softcap" in masks:
                logit = masks["softcap"] * math.tanh(logit / masks["softcap"])
            if "alibi_slopes" in masks:
                logit += float(masks["alibi_slopes"][head]) * (kv_position - position)
            weights[kv_position] = math.exp(logit)
        total = math.fsum(weights.values())
        if "sinks" in masks:
            total += math.exp(float(masks["sinks"][head]))
        for kv_position, weight in weights.items():
            out[row, head] += weight / total * value[kv_position, kv_head]
        if total > 0:
            lse[row, head] = math.log(total)
    return out, lse


@each_masks
def test_decode_is_what_the_definition_says(masks: dict[str, Any], paged: Paged):
    query = queries(len(SEQ_LENS))
    out, lse = reference.paged_attention(query, *paged.arguments, SCALE, **masks)
    for seq, seq_len in enumerate(SEQ_LENS):
        expected = attention_by_loops(
            query[seq, None], paged.keys[seq], paged.values[seq], seq_len - 1, **masks
        )
        torch.testing.assert_close(out[seq, None], expected[0])
        torch.testing.assert_close(lse[seq, None], expected[1])


@pytest.mark.parametrize("causal", [True, False])
@each_masks
def test_varlen_is_what_the_definition_says(masks: dict[str, Any], causal: bool, paged: Paged):
    query_lens = (0, 1, 3, 2, 0, 7)
    query = queries(sum(query_lens) + 1)
    cu_seqlens_q = torch.tensor([0, *query_lens]).cumsum(0)
    key_cache, value_cache, *rest = paged.arguments
    out, lse = reference.paged_attention_varlen(
        query, key_cache, value_cache, cu_seqlens_q, *rest, SCALE, causal=causal, **masks
    )
    for seq, query_len in enumerate(query_lens):
        rows = slice(int(cu_seqlens_q[seq]), int(cu_seqlens_q[seq + 1]))
        expected = attention_by_loops(
            query[rows],
            paged.keys[seq],
            paged.values[seq],
            SEQ_LENS[seq] - query_len,
            causal,
            **masks,
        )
        torch.testing.assert_close(out[rows], expected[0])
        torch.testing.assert_close(lse[rows], expected[1])
    assert (lse[sum(query_lens) :] == -math.inf).all()


@each_masks
def test_the_online_walk_equals_the_direct_softmax(masks: dict[str, Any], paged: Paged):
    query = 5 * queries(len(SEQ_LENS))  # large logits: the running maximum matters
    direct = reference.paged_attention(query, *paged.arguments, SCALE, **masks)
    online = reference.online_softmax_attention(query, *paged.arguments, SCALE, **masks)
    torch.testing.assert_close(online, direct)


@pytest.mark.parametrize("partition_size", [1, 3, 4, 64])
@each_masks
def test_partitions_reduce_to_the_whole(masks: dict[str, Any], partition_size: int, paged: Paged):
    query = queries(len(SEQ_LENS))
    out, lse, partial_out, partial_lse = reference.paged_attention_v2(
        query, *paged.arguments, partition_size, SCALE, **masks
    )
    torch.testing.assert_close(
        (out, lse), reference.paged_attention(query, *paged.arguments, SCALE, **masks)
    )
    assert partial_lse.shape == (*query.shape[:2], math.ceil(max(SEQ_LENS) / partition_size))
    assert partial_out.shape == (*partial_lse.shape, HEAD_DIM)


def test_causal_prefill_equals_torch(paged: Paged):
    seq_len = SEQ_LENS[-1]
    query = queries(seq_len)
    out, _ = reference.paged_attention_varlen(
        query,
        paged.key_cache,
        paged.value_cache,
        torch.tensor([0, seq_len]),
        paged.block_tables[-1:],
        paged.seq_lens[-1:],
        SCALE,
    )
    expected = scaled_dot_product_attention(
        query.transpose(0, 1),
        paged.keys[-1].transpose(0, 1),
        paged.values[-1].transpose(0, 1),
        is_causal=True,
        scale=SCALE,
        enable_gqa=True,
    )
    torch.testing.assert_close(out, expected.transpose(0, 1))


def test_a_tree_mask_makes_each_branch_its_own_sequence():
    """Two branches after a common prefix: each draft row sees what it would see without the other,
    apart from positions, which windows and ALiBi would read."""
    paged = Paged((11,))
    key, value = paged.keys[0], paged.values[0]
    query = queries(4)  # draft tokens at positions 7..10: 7 <- 8 and 7 <- 9 <- 10
    tree_mask = torch.tensor([[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [1, 0, 1, 1]]).bool()
    out, _ = reference.paged_attention_varlen(
        query,
        paged.key_cache,
        paged.value_cache,
        torch.tensor([0, 4]),
        paged.block_tables,
        paged.seq_lens,
        SCALE,
        tree_mask=tree_mask,
    )
    for row, seen in enumerate(([7], [7, 8], [7, 9], [7, 9, 10])):
        positions = [*range(7), *seen]
        expected, _ = attention_by_loops(
            query[row, None], key[positions], value[positions], len(positions) - 1
        )
        torch.testing.assert_close(out[row, None], expected)


def test_merge_with_an_empty_side_reads_nothing_of_it():
    out, lse = torch.randn(2, 3, 8), torch.randn(2, 3)
    nothing, no_lse = torch.full_like(out, math.nan), torch.full_like(lse, -math.inf)
    for sides in ((out, lse, nothing, no_lse), (nothing, no_lse, out, lse)):
        torch.testing.assert_close(reference.merge_attention_states(*sides), (out, lse))
    merged_out, merged_lse = reference.merge_attention_states(nothing, no_lse, nothing, no_lse)
    assert torch.equal(merged_out, torch.zeros_like(out))
    assert torch.equal(merged_lse, no_lse)


@pytest.mark.parametrize("kind", ["tensor", "head", "token_head"])
@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8], ids=str)
def test_what_is_written_is_read_back(dtype: torch.dtype, kind: str):
    """reshape_and_cache, then gather_cache, for scattered slots and within half a code's step."""
    rng = torch.Generator().manual_seed(0)
    shape = (3, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    key_cache, value_cache = (torch.zeros(shape).to(dtype) for _ in range(2))
    absmax = 4.0
    unit = absmax / reference.QUANTIZED_MAX[dtype]
    scale = {
        "tensor": torch.tensor([unit]),
        "head": torch.full((NUM_KV_HEADS,), unit),
        "token_head": torch.zeros(shape[:3]),
    }[kind]
    key = torch.rand(6, NUM_KV_HEADS, HEAD_DIM, generator=rng) * 2 * absmax - absmax
    slots = torch.tensor([8, 9, 10, -1, 11, 0])  # blocks 2 and 0; token 3 is skipped
    key_cache, value_cache, k_scale, v_scale = reference.reshape_and_cache(
        key, -key, key_cache, value_cache, slots, k_scale=scale, v_scale=scale
    )
    gathered_key, gathered_value = reference.gather_cache(
        key_cache,
        value_cache,
        torch.tensor([[2, 0]]),
        torch.tensor([0, 5]),
        k_scale=k_scale,
        v_scale=v_scale,
        dtype=torch.float32,
    )
    stored = key[slots >= 0]
    step = {torch.float8_e4m3fn: 2**-4, torch.float8_e5m2: 2**-3, torch.int8: 0.0}[dtype]
    bound = stored.abs() * step + unit / 2
    assert ((gathered_key - stored).abs() <= bound * 1.001).all()
    torch.testing.assert_close(gathered_value, -gathered_key)
    codes, _ = reference.gather_cache(
        key_cache, value_cache, torch.tensor([[2, 0]]), torch.tensor([0, 5])
    )
    assert codes.dtype == dtype


def test_quantising_rounds_to_even_saturates_and_keeps_nan_in_fp8():
    row = torch.tensor([0.5, 1.5, 2.5, -2.5, 300.0, -300.0, math.inf, math.nan])
    one = torch.ones(())
    expected = torch.tensor([0, 2, 2, -2, 127, -127, 127, 0], dtype=torch.int8)
    assert torch.equal(reference.quantize(row, one, torch.int8), expected)
    # e4m3 steps by 2 from 16 on and by 32 from 256 on.
    row = torch.tensor([17.0, 19.0, 500.0, -math.inf, math.nan])
    codes = reference.quantize(row, one, torch.float8_e4m3fn).float()
    assert codes[:4].tolist() == [16.0, 20.0, 448.0, -448.0]
    assert codes[4].isnan()


def test_a_scale_per_token_and_head_ignores_nan_and_is_zero_for_zeros():
    rows = torch.tensor([[1.0, -254.0, math.nan], [0.0, 0.0, 0.0]])
    codes, scale = reference.quantize_per_token_head(rows, torch.int8)
    assert scale.tolist() == [2.0, 0.0]
    assert codes.tolist() == [[0, -127, 0], [0, 0, 0]]


def test_copy_and_swap_return_new_tensors():
    caches = [torch.arange(4.0).repeat_interleave(2).view(4, 1, 1, 2) for _ in range(2)]
    before = [cache.clone() for cache in caches]
    mapping = torch.tensor([[3, 0], [3, 1]])
    keys, values = reference.copy_blocks(caches, caches, mapping)
    assert keys[0][:, 0, 0, 0].tolist() == values[1][:, 0, 0, 0].tolist() == [3, 3, 2, 3]
    (swapped,) = reference.swap_blocks(
        [caches[0]], [torch.zeros(2, 1, 1, 2)], torch.tensor([[2, 1]])
    )
    assert swapped[:, 0, 0, 0].tolist() == [0, 2]
    assert all(torch.equal(cache, old) for cache, old in zip(caches, before, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_any_float_dtype_is_computed_in(dtype: torch.dtype, paged: Paged):
    query = queries(len(SEQ_LENS))
    exact, _ = reference.paged_attention(query, *paged.arguments, SCALE)
    out, lse = reference.paged_attention(query.to(dtype), *paged.arguments, SCALE)
    assert out.dtype == lse.dtype == dtype
    tolerance = 20 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), exact, rtol=tolerance, atol=tolerance)
