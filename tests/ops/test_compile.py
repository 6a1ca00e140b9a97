"""torch.compile(fullgraph=True) takes the ops into its graph, one graph for all sizes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from .backends import Backend
from .cases import Spec, build

NUM_Q_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 2, 32


def decode_step(
    hidden: Tensor,
    weight: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    max_seq_len: int,
) -> Tensor:
    """A layer's attention: project, store the new token, attend by every decode op there is."""
    ops = torch.ops.pagedattn
    heads = (NUM_Q_HEADS, NUM_KV_HEADS, NUM_KV_HEADS)
    qkv = (hidden @ weight).unflatten(-1, (sum(heads), HEAD_DIM))
    query, key, value = qkv.split(heads, dim=1)
    ops.reshape_and_cache(key, value, key_cache, value_cache, slot_mapping)
    arguments = (query, key_cache, value_cache, block_tables, seq_lens, max_seq_len)
    scale = HEAD_DIM**-0.5

    chosen = ops.paged_attention(*arguments, scale)
    v1, v1_lse = torch.empty_like(chosen), hidden.new_empty(query.shape[:2])
    ops.paged_attention_v1(v1, *arguments, scale, window_left=20, lse=v1_lse)
    partial_out = hidden.new_empty(*query.shape[:2], 4, HEAD_DIM)
    partial_lse = hidden.new_empty(*query.shape[:2], 4)
    v2 = torch.empty_like(chosen)
    ops.paged_attention_v2(v2, partial_out, partial_lse, *arguments, 64, scale)
    merged, merged_lse = torch.empty_like(chosen), torch.empty_like(v1_lse)
    ops.merge_attention_states(merged, merged_lse, v1, v1_lse, v2, v1_lse)
    return torch.cat([chosen, v1, v2, merged], dim=-1).relu() * merged_lse[..., None]


def step_inputs(seq_lens: tuple[int, ...], device: torch.device) -> tuple:
    case = build(Spec(head_dim=HEAD_DIM, heads=(NUM_Q_HEADS, NUM_KV_HEADS), seq_lens=seq_lens))
    rng = torch.Generator().manual_seed(1)
    block_size = case.key_cache.shape[1]
    last = case.seq_lens.long() - 1
    blocks = case.block_tables.gather(1, (last // block_size)[:, None]).long()[:, 0]
    tensors = (
        torch.randn(len(seq_lens), 16, generator=rng),
        torch.randn(16, (NUM_Q_HEADS + 2 * NUM_KV_HEADS) * HEAD_DIM, generator=rng) / 4,
        case.key_cache,
        case.value_cache,
        blocks * block_size + last % block_size,
        case.block_tables,
        case.seq_lens,
    )
    return (*(tensor.to(device) for tensor in tensors), case.max_seq_len)


@pytest.mark.parametrize("compiler", ["aot_eager", "inductor"])
def test_a_compiled_decode_step_equals_eager_without_recompiling(compiler: str, backend: Backend):
    if backend.ops is not torch.ops.pagedattn:
        pytest.skip("only the package's own ops have fake kernels")
    torch._dynamo.reset()
    compiled = torch.compile(decode_step, fullgraph=True, dynamic=True, backend=compiler)
    with torch._dynamo.config.patch(error_on_recompile=True), torch.inference_mode():
        for seq_lens in ((5, 40, 17), (100, 3, 1, 30, 200), (7, 9)):
            eager_inputs = step_inputs(seq_lens, backend.device)
            compiled_inputs = step_inputs(seq_lens, backend.device)
            expected = decode_step(*eager_inputs)
            result = compiled(*compiled_inputs)
            torch.testing.assert_close(result.cpu(), expected.cpu(), rtol=1e-5, atol=1e-5)
            for cache in (2, 3):  # the new tokens went into both
                torch.testing.assert_close(
                    compiled_inputs[cache].cpu(),
                    eager_inputs[cache].cpu(),
                    rtol=1e-5,
                    atol=1e-5,
                    equal_nan=True,
                )
