"""Runs a Hugging Face model on the tokens of a step."""

from __future__ import annotations

import inspect
import itertools

import torch
from torch import Tensor
from transformers import PreTrainedModel

from .block_manager import BlockManager
from .integrations.transformers import AttentionMetadata, paged_forward
from .kv_cache import KVCache
from .scheduler import Step


class ModelRunner:
    """Packs a step's tokens into one row, calls the model over the paged cache, keeps the logits
    that are sampled from."""

    def __init__(
        self, model: PreTrainedModel, kv_cache: KVCache, block_manager: BlockManager
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._block_manager = block_manager
        # Most models can compute the logits of chosen positions only.
        self._model_selects_logits = "logits_to_keep" in inspect.signature(model.forward).parameters

    @torch.inference_mode()
    def run(self, step: Step) -> Tensor:
        """Logits ``[num_rows, vocab_size]``: a row per request of which ``step.samples`` is true.

        The step's block copies are made first; then K and V of its tokens are written.
        """
        self._kv_cache.copy_blocks(step.copies)
        device = self._model.device
        token_ids: list[int] = []
        positions: list[int] = []
        for request, count in step.num_tokens.items():
            start = request.num_computed_tokens
            token_ids += request.next_token_ids(count)
            positions += range(start, start + count)
        position_ids = torch.tensor(positions)
        metadata = self._metadata(step, position_ids)
        ends = metadata.cu_seqlens_q[1:].tolist()
        sampled = [
            end - 1
            for request, end in zip(step.requests, ends, strict=True)
            if step.samples(request)
        ]
        logits_at = torch.tensor(sampled, dtype=torch.long, device=device)
        kwargs = {"logits_to_keep": logits_at} if self._model_selects_logits else {}
        with paged_forward(self._kv_cache, metadata.to(device)):
            logits = self._model(
                input_ids=torch.tensor([token_ids], device=device),
                position_ids=position_ids[None].to(device),
                use_cache=False,
                **kwargs,
            ).logits[0]
        return logits if self._model_selects_logits else logits[logits_at]

    def _metadata(self, step: Step, position_ids: Tensor) -> AttentionMetadata:
        """The step's metadata on the host."""
        counts = list(step.num_tokens.values())
        num_seqs = len(counts)
        seq_lens_list = [r.num_computed_tokens + n for r, n in step.num_tokens.items()]
        max_seq_len = max(seq_lens_list)
        block_size = self._kv_cache.block_size
        block_tables = torch.empty(num_seqs, -(-max_seq_len // block_size), dtype=torch.int32)
        seq_lens = torch.empty(num_seqs, dtype=torch.int32)
        sequence_ids = [request.sequence_id for request in step.requests]
        self._block_manager.fill_batch(sequence_ids, block_tables, seq_lens)
        sequence = torch.repeat_interleave(torch.arange(num_seqs), torch.tensor(counts))
        blocks = block_tables[sequence, position_ids // block_size].long()
        return AttentionMetadata(
            slot_mapping=blocks * block_size + position_ids % block_size,
            block_tables=block_tables,
            seq_lens=seq_lens,
            cu_seqlens_q=torch.tensor([0, *itertools.accumulate(counts)], dtype=torch.int32),
            max_query_len=max(counts),
            max_seq_len=max_seq_len,
            num_common_blocks=self._block_manager.common_prefix_blocks(sequence_ids),
        )
