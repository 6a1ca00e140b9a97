"""No less exact than torch's own attention in the same dtype, where both have rounding only."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pagedattn import reference

from .backends import Backend
from .cases import Case, Spec, built
from .running import run_paged_attention, run_v1, run_v2, run_varlen

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SDPA_RATIO = 1.5


def sdpa(case: Case, device: torch.device) -> Tensor:
    """Sequence by sequence on contiguous keys and values; causal when it has several query rows."""
    bounds = range(len(case.query) + 1) if case.cu_seqlens_q is None else case.cu_seqlens_q.tolist()
    outs = []
    for seq, seq_len in enumerate(case.seq_lens.tolist()):
        slots = reference.slots_of(
            case.block_tables[seq], torch.arange(seq_len), case.key_cache.shape[1]
        )
        query = case.query[bounds[seq] : bounds[seq + 1]]
        key = reference.read_slots(case.key_cache, None, slots, query.dtype)
        value = reference.read_slots(case.value_cache, None, slots, query.dtype)
        batch = [t.transpose(0, 1)[None].contiguous().to(device) for t in (query, key, value)]
        out = scaled_dot_product_attention(
            *batch, scale=case.scale, is_causal=len(query) > 1, enable_gqa=True
        )
        outs.append(out[0].transpose(0, 1).cpu())
    return torch.cat(outs)


def assert_as_exact_as_sdpa(out: Tensor, case: Case, device: torch.device) -> None:
    expected = case.expected[0]
    error, sdpa_error = ((o.double() - expected).norm() for o in (out, sdpa(case, device)))
    assert error <= SDPA_RATIO * sdpa_error, f"{error / sdpa_error:.2f} times the error of SDPA"


@pytest.mark.parametrize("op", [run_v1, run_v2, run_paged_attention])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_decode(dtype: torch.dtype, head_dim: int, op, backend: Backend):
    lengths = (33, 200, 555, 1000)
    case = built(Spec(dtype=dtype, head_dim=head_dim, heads=(8, 2), seq_lens=lengths))
    assert_as_exact_as_sdpa(op(case, backend).out, case, backend.device)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_prefill(dtype: torch.dtype, head_dim: int, backend: Backend):
    lengths = (33, 200)
    spec = Spec(dtype=dtype, head_dim=head_dim, heads=(8, 2), seq_lens=lengths, query_lens=lengths)
    case = built(spec)
    assert_as_exact_as_sdpa(run_varlen(case, backend).out, case, backend.device)
