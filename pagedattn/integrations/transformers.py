"""Paged attention for Hugging Face transformers models.

Importing this module registers ``"pagedattn"`` with transformers' ``AttentionInterface``. A model
switched to it (``model.set_attn_implementation("pagedattn")``) takes the tokens of many sequences
packed into one row, ``input_ids`` and ``position_ids`` of shape ``[1, num_tokens]``, and reads and
writes the KV cache named by the surrounding :func:`paged_forward`::

    with paged_forward(kv_cache, metadata):
        logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits

No mask is registered for ``"pagedattn"`` with transformers' mask interface, so transformers builds
none: causality and windows are the op's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, PreTrainedModel

from ..cascade import cascade_attention
from ..kv_cache import KVCache

IMPLEMENTATION = "pagedattn"

_ops = torch.ops.pagedattn

# Layer types whose mask the ops can express (config.layer_types).
_SUPPORTED_LAYER_TYPES = {"full_attention", "sliding_attention"}


@dataclass(frozen=True)
class AttentionMetadata:
    """What the attention layers of one step need to know about the batch.

    slot_mapping: int64 ``[num_tokens]``, where each new token's K and V go.
    block_tables: int32 ``[num_seqs, max_blocks_per_seq]``.
    seq_lens: int32 ``[num_seqs]``, the new tokens included.
    cu_seqlens_q: int32 ``[num_seqs + 1]``, bounds of each sequence's new tokens in the packed row.
    max_query_len, max_seq_len: the largest of each, on the host.
    num_common_blocks: how many leading blocks all sequences share, as far as that is known.
    """

    slot_mapping: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    cu_seqlens_q: Tensor
    max_query_len: int
    max_seq_len: int
    num_common_blocks: int = 0

    @property
    def is_decode(self) -> bool:
        """Every sequence brings exactly one token."""
        return self.max_query_len == 1 and self.slot_mapping.numel() == self.seq_lens.numel()

    def to(self, device: torch.device) -> AttentionMetadata:
        """The same with its tensors on ``device``; the copies are asynchronous."""
        return replace(
            self,
            slot_mapping=self.slot_mapping.to(device, non_blocking=True),
            block_tables=self.block_tables.to(device, non_blocking=True),
            seq_lens=self.seq_lens.to(device, non_blocking=True),
            cu_seqlens_q=self.cu_seqlens_q.to(device, non_blocking=True),
        )


@dataclass
class _Probe:
    """Records the (num_kv_heads, head_dim) of each layer instead of attending."""

    shapes: dict[int, tuple[int, int]] = field(default_factory=dict)


_Step = tuple[KVCache, AttentionMetadata]
_current: ContextVar[_Step | _Probe | None] = ContextVar("pagedattn_step", default=None)


@contextmanager
def paged_forward(kv_cache: KVCache, metadata: AttentionMetadata) -> Iterator[None]:
    """Makes ``kv_cache`` and ``metadata`` those of the model calls inside the ``with`` block."""
    token = _current.set((kv_cache, metadata))
    try:
        yield
    finally:
        _current.reset(token)


def paged_attention_forward(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    is_causal: bool | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """The attention function that transformers calls in every layer.

    query ``[1, num_q_heads, num_tokens, head_dim]``, key and value ``[1, num_kv_heads, num_tokens,
    head_dim]`` of the new tokens only. Returns ``[1, num_tokens, num_q_heads, head_dim]`` and no
    weights. ``sliding_window`` counts the query's own token, as transformers does. Raises
    RuntimeError outside of :func:`paged_forward`, ValueError for what paged attention cannot do.
    """
    step = _current.get()
    if step is None:
        raise RuntimeError(
            "pagedattn attention was called outside of paged_forward(); run the model through "
            'pagedattn.Engine, or switch it back with model.set_attn_implementation("sdpa")'
        )
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    _check_call(query, key, value, attention_mask, dropout, causal)
    # [1, heads, tokens, dim] -> [tokens, heads, dim]; a view whatever the model's layout.
    query, key, value = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    layer: int = module.layer_idx  # type: ignore[assignment]
    if isinstance(step, _Probe):
        step.shapes[layer] = (key.shape[1], key.shape[2])
        return torch.zeros_like(query, memory_format=torch.contiguous_format)[None], None

    kv_cache, meta = step
    key_cache, value_cache = kv_cache.layer(layer)
    scales = kv_cache.scales(layer)
    _ops.reshape_and_cache(key, value, key_cache, value_cache, meta.slot_mapping, **scales)
    scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
    masks: dict[str, Any] = {
        "window_left": -1 if sliding_window is None else sliding_window - 1,
        "softcap": softcap or 0.0,
        "sinks": None if s_aux is None else s_aux.float(),
    }
    if meta.is_decode:
        out = cascade_attention(
            query,
            key_cache,
            value_cache,
            meta.block_tables,
            meta.seq_lens,
            meta.max_seq_len,
            scale,
            num_common_blocks=meta.num_common_blocks,
            **masks,
            **scales,
        )
    else:
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        _ops.paged_attention_varlen(
            out,
            query,
            key_cache,
            value_cache,
            meta.cu_seqlens_q,
            meta.block_tables,
            meta.seq_lens,
            meta.max_query_len,
            meta.max_seq_len,
            scale,
            **masks,
            **scales,
        )
    return out[None], None


def _check_call(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, causal: bool
) -> None:
    if query.shape[0] != 1 or key.shape[2] != query.shape[2]:
        raise ValueError(
            "pagedattn takes all sequences packed into one row and use_cache=False; got query "
            f"{tuple(query.shape)} and key {tuple(key.shape)}"
        )
    if mask is not None:
        raise ValueError("pagedattn builds causal masks itself; attention_mask must be None")
    if not causal:
        raise ValueError("pagedattn serves causal decoders only; this layer is not causal")
    if dropout:
        raise ValueError(f"pagedattn is for inference; got dropout={dropout}, call model.eval()")
    if key.shape[3] != value.shape[3]:
        raise ValueError(
            "pagedattn needs keys and values of one head_dim; got "
            f"{key.shape[3]} and {value.shape[3]} (multi-head latent attention is not supported)"
        )


def enable(model: PreTrainedModel) -> None:
    """Switches ``model`` to paged attention.

    Raises ValueError, saying why, for models that compute attention in another way.
    """
    name = type(model).__name__
    if not model._can_set_attn_implementation():
        raise ValueError(
            f"{name} does not use transformers' attention interface (BLOOM, MPT and Falcon do "
            "not), so pagedattn cannot take its attention over"
        )
    config = model.config.get_text_config(decoder=True)
    if model.config.is_encoder_decoder:
        raise ValueError(f"{name} is an encoder-decoder; pagedattn serves decoder-only models")
    layer_types = set(getattr(config, "layer_types", None) or ()) - _SUPPORTED_LAYER_TYPES
    if layer_types or getattr(config, "attention_chunk_size", None):
        kinds = ", ".join(sorted(layer_types)) or "chunked_attention"
        raise ValueError(f"{name} has layers of type {kinds}, which pagedattn does not support")
    model.set_attn_implementation(IMPLEMENTATION)


@torch.inference_mode()
def probe_kv_shape(model: PreTrainedModel, num_tokens: int = 1) -> tuple[int, int, int]:
    """(num_layers, num_kv_heads, head_dim) of a model that :func:`enable` has accepted.

    Runs ``num_tokens`` tokens through the model and looks at what reaches the attention function,
    so it needs no knowledge of the configuration's spelling. Raises ValueError if nothing does, or
    if layers differ.
    """
    probe = _Probe()
    token = _current.set(probe)
    try:
        ids = torch.zeros(1, num_tokens, dtype=torch.long, device=model.device)
        model(input_ids=ids, position_ids=ids, use_cache=False)
    finally:
        _current.reset(token)
    name = type(model).__name__
    if not probe.shapes:
        raise ValueError(f"no layer of {name} uses transformers' attention interface")
    layers = model.config.get_text_config(decoder=True).num_hidden_layers
    if sorted(probe.shapes) != list(range(layers)):
        raise ValueError(f"{len(probe.shapes)} of the {layers} layers of {name} use attention")
    shapes = set(probe.shapes.values())
    if len(shapes) > 1:
        raise ValueError(
            f"layers of {name} differ in (num_kv_heads, head_dim): {sorted(shapes)}; "
            "pagedattn needs one shape for all"
        )
    num_kv_heads, head_dim = shapes.pop()
    if head_dim % 8 or not 32 <= head_dim <= 256:
        raise ValueError(
            f"{name} has head_dim {head_dim}; the attention ops take multiples of 8 from 32 to 256"
        )
    return layers, num_kv_heads, head_dim


AttentionInterface.register(IMPLEMENTATION, paged_attention_forward)
