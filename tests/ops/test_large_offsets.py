"""Offsets beyond 2^31 elements, in tensors whose memory is mostly never touched.

Fresh pages cost nothing until they are written, so a tensor may span gigabytes and hold two blocks.
Each test compares with the same values in compact tensors: bit for bit, but for attention over far
strides, which the tensor-core kernels leave to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pagedattn import reference

from .backends import Backend
from .cases import Spec, build
from .running import Guarded, run_v1, run_v2, run_varlen

FAR = 2**31 + 64  # elements
DTYPE = torch.bfloat16
BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM = 8, 2, 32
SPEC = Spec(dtype=DTYPE, head_dim=HEAD_DIM, heads=(4, 2), block_size=BLOCK_SIZE, seq_lens=(13, 21))
DENSE = {"token": NUM_KV_HEADS * HEAD_DIM, "head": HEAD_DIM}  # strides


def far_strides(far_dim: str, shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a cache of which one dimension takes such steps that its end is beyond 2^31."""
    token = NUM_KV_HEADS * HEAD_DIM
    strides = {"block": BLOCK_SIZE * token, "token": token, "head": HEAD_DIM}
    steps = dict(zip(("block", "token", "head"), shape, strict=False))[far_dim] - 1
    # Beyond the other dimensions, and a multiple of 64 elements.
    strides[far_dim] = max(FAR // steps // 64 * 64 + 64, shape[0] * strides["block"])
    return (*strides.values(), 1)


def spread_out(tensor: Tensor, strides: Sequence[int], device: torch.device) -> Tensor:
    far = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=device)
    assert sum((n - 1) * s for n, s in zip(tensor.shape, strides, strict=True)) >= 2**31
    return far.copy_(tensor.to(device))


@pytest.mark.parametrize("far_dim", ["block", "token", "head"])
def test_attention_over_a_far_strided_cache(far_dim: str, backend: Backend):
    for spec in (SPEC, replace(SPEC, query_lens=(2, 5))):
        case = build(spec)
        strides = far_strides(far_dim, case.key_cache.shape)
        far = replace(
            case.to(backend.device),
            key_cache=spread_out(case.key_cache, strides, backend.device),
            value_cache=spread_out(case.value_cache, strides, backend.device),
        )
        for run in (run_v1, run_v2) if spec.query_lens is None else (run_varlen,):
            result, expected = run(far, backend), run(case, backend)
            torch.testing.assert_close(result.out, expected.out, rtol=2e-2, atol=1e-2)
            torch.testing.assert_close(result.lse, expected.lse, rtol=1e-4, atol=1e-4)


def test_attention_with_a_far_block_id(backend: Backend):
    """A dense pool of more than 2^31 elements, read at its end."""
    block_elements = BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM
    case = build(SPEC)
    num_blocks = FAR // block_elements + case.key_cache.shape[0] + 1
    first = num_blocks - case.key_cache.shape[0]
    caches = []
    for compact in (case.key_cache, case.value_cache):
        shape = (num_blocks, *compact.shape[1:])
        pool = torch.empty(shape, dtype=DTYPE, device=backend.device)
        pool[first:].copy_(compact.contiguous().to(backend.device))
        caches.append(pool)
    far = replace(
        case.to(backend.device),
        key_cache=caches[0],
        value_cache=caches[1],
        block_tables=(case.block_tables.clamp(0, num_blocks - first - 1) + first).to(
            backend.device
        ),
    )
    for run in (run_v1, run_v2):
        assert torch.equal(run(far, backend).out, run(case, backend).out)


@pytest.mark.parametrize("far_dim", ["token", "head"])
def test_attention_with_a_far_strided_query_and_out(far_dim: str, backend: Backend):
    case = build(replace(SPEC, query_lens=(3, 4)))
    num_tokens, num_q_heads, head_dim = case.query.shape
    if far_dim == "token":
        strides = (FAR // (num_tokens - 1) // 64 * 64 + 64, head_dim, 1)
    else:
        strides = (head_dim, FAR // (num_q_heads - 1) // 64 * 64 + 64, 1)
    far = replace(case.to(backend.device), query=spread_out(case.query, strides, backend.device))
    expected = run_varlen(case, backend)
    assert torch.equal(run_varlen(far, backend).out, expected.out)
    out = spread_out(torch.zeros_like(case.query), strides, backend.device)
    given = case.to(backend.device)
    backend.ops.paged_attention_varlen(
        out,
        given.query,
        given.key_cache,
        given.value_cache,
        given.cu_seqlens_q,
        given.block_tables,
        given.seq_lens,
        case.max_query_len,
        case.max_seq_len,
        case.scale,
    )
    assert torch.equal(out[: case.num_rows].cpu(), expected.out)


def test_v2_with_far_apart_partials(backend: Backend):
    """A workspace made for a far longer sequence: the second row's partials begin beyond 2^31."""
    case = build(replace(SPEC, heads=(1, 1), seq_lens=(13, 100)))
    expected = run_v2(case, backend)
    num_partitions = FAR // HEAD_DIM
    given = case.to(backend.device)
    out = Guarded(case.query.shape, DTYPE, backend.device)
    partial_shape = (2, 1, num_partitions)
    backend.ops.paged_attention_v2(
        out.tensor,
        torch.empty(*partial_shape, HEAD_DIM, device=backend.device),
        torch.empty(*partial_shape, device=backend.device),
        given.query,
        given.key_cache,
        given.value_cache,
        given.block_tables,
        given.seq_lens,
        case.max_seq_len,
        64,
        case.scale,
    )
    assert torch.equal(out.result(), expected.out)


@pytest.mark.parametrize("far_dim", ["block", "token", "head"])
def test_reshape_and_gather_on_a_far_strided_cache(far_dim: str, backend: Backend):
    shape = (3, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    strides = far_strides(far_dim, shape)
    rng = torch.Generator().manual_seed(0)
    tokens = torch.randn(2 * BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM, generator=rng).to(DTYPE)
    tokens = tokens.to(backend.device)
    caches = [
        spread_out(torch.zeros(shape, dtype=DTYPE), strides, backend.device) for _ in range(2)
    ]
    slots = torch.cat([torch.arange(2 * BLOCK_SIZE, 3 * BLOCK_SIZE), torch.arange(BLOCK_SIZE)])
    backend.ops.reshape_and_cache(tokens, -tokens, *caches, slots.to(backend.device))
    assert torch.equal(caches[0][2].cpu(), tokens[:BLOCK_SIZE].cpu())
    assert torch.equal(caches[0][0].cpu(), tokens[BLOCK_SIZE:].cpu())
    key, value = backend.ops.gather_cache(
        *caches,
        torch.tensor([[2, 0]], dtype=torch.int32).to(backend.device),
        torch.tensor([0, 2 * BLOCK_SIZE], dtype=torch.int32).to(backend.device),
        2 * BLOCK_SIZE,
    )
    assert torch.equal(key, tokens)
    assert torch.equal(value, -tokens)


@pytest.mark.parametrize("far_dim", ["block", "token", "head"])
def test_copy_and_swap_on_a_far_strided_cache(far_dim: str, backend: Backend):
    shape = (3, BLOCK_SIZE, NUM_KV_HEADS, HEAD_DIM)
    compact = torch.arange(3 * BLOCK_SIZE * NUM_KV_HEADS * HEAD_DIM).view(shape).to(DTYPE)
    far = spread_out(compact, far_strides(far_dim, shape), backend.device)
    mapping = torch.tensor([[2, 0]])
    (expected,) = reference.swap_blocks([compact], [compact], mapping)
    backend.ops.copy_blocks([far], [compact.clone().to(backend.device)], mapping.to(backend.device))
    assert torch.equal(far.cpu(), expected)

    host = torch.zeros(shape, dtype=DTYPE)
    backend.ops.swap_blocks([far], [host], torch.tensor([[2, 1]]))
    assert torch.equal(host[1], compact[2])
    backend.ops.swap_blocks([host + 1], [far], torch.tensor([[1, 2]]))
    assert torch.equal(far[2].cpu(), compact[2] + 1)


def test_merge_of_far_strided_states(backend: Backend):
    rng = torch.Generator().manual_seed(0)
    states = [torch.randn(2, 3, HEAD_DIM, generator=rng) for _ in range(2)]
    lses = [torch.randn(2, 3, generator=rng).to(backend.device) for _ in range(2)]
    strides = (FAR, HEAD_DIM, 1)
    far = [spread_out(state, strides, backend.device) for state in states]
    out = spread_out(torch.zeros_like(states[0]), strides, backend.device)
    backend.ops.merge_attention_states(out, None, far[0], lses[0], far[1], lses[1])
    near = [state.to(backend.device) for state in states]
    expected = torch.empty_like(near[0])
    backend.ops.merge_attention_states(expected, None, near[0], lses[0], near[1], lses[1])
    assert torch.equal(out, expected)
