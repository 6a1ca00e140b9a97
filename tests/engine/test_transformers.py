"""The attention function that transformers calls, and the models it refuses."""

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    BloomConfig,
    FalconConfig,
    Llama4TextConfig,
    LlamaConfig,
    MptConfig,
    T5Config,
    T5ForConditionalGeneration,
)

from pagedattn.engine import Engine
from pagedattn.integrations.transformers import (
    AttentionMetadata,
    enable,
    paged_forward,
    probe_kv_shape,
)
from pagedattn.kv_cache import KVCache

from .conftest import tiny_model, tiny_prompt


@pytest.mark.parametrize(
    "config",
    [
        BloomConfig(vocab_size=50, hidden_size=64, n_layer=1, n_head=2),
        MptConfig(vocab_size=50, d_model=64, n_layers=1, n_heads=2),
        FalconConfig(vocab_size=50, hidden_size=64, num_hidden_layers=1, num_attention_heads=2),
    ],
    ids=lambda config: config.model_type,
)
def test_models_without_the_attention_interface_say_so(config):
    model = AutoModelForCausalLM.from_config(config)
    with pytest.raises(ValueError, match="does not use transformers' attention interface"):
        Engine(model)


def test_encoder_decoders_are_refused():
    config = T5Config(vocab_size=50, d_model=64, d_ff=64, num_layers=1, num_heads=2, d_kv=32)
    with pytest.raises(ValueError, match="is an encoder-decoder"):
        Engine(T5ForConditionalGeneration(config))


def test_layers_with_other_masks_are_refused():
    config = Llama4TextConfig(
        vocab_size=50,
        hidden_size=64,
        intermediate_size=64,
        intermediate_size_mlp=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        num_local_experts=1,
    )
    with pytest.raises(ValueError, match="layers of type chunked_attention"):
        enable(AutoModelForCausalLM.from_config(config))


def test_head_dims_that_the_ops_do_not_take_are_refused():
    config = LlamaConfig(vocab_size=50, hidden_size=32, num_hidden_layers=1, num_attention_heads=2)
    with pytest.raises(ValueError, match="has head_dim 16"):
        Engine(AutoModelForCausalLM.from_config(config))


def test_probe_finds_the_shape(family):
    model = tiny_model(family)
    enable(model)
    assert probe_kv_shape(model) == (2, 2, 32)


def test_outside_of_a_step_the_model_says_what_to_do():
    model = tiny_model("llama")
    enable(model)
    ids = torch.tensor([[1, 2]])
    with pytest.raises(RuntimeError, match="called outside of paged_forward"):
        model(ids)
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model(ids).logits, tiny_model("llama")(ids).logits)


@torch.inference_mode()
def test_mixed_batch_gives_the_models_own_logits(family):
    """A prefill beside a decode, without an engine: what INTEGRATION code would write."""
    first, second = tiny_prompt(37), tiny_prompt(30, seed=1)
    model = tiny_model(family)
    expected = [model(torch.tensor([p])).logits[0, -1] for p in (first, second)]
    enable(model)
    cache = KVCache(2, 10, 8, 2, 32)
    tables = torch.tensor([[3, 9, 1, 4, 2], [5, 0, 7, 6, -1]], dtype=torch.int32)

    def run(parts):
        """parts: (sequence, begin, end) of the tokens to compute."""
        ids, positions, slots, lengths = [], [], [], []
        for sequence, begin, end in parts:
            span = range(begin, end)
            ids += (first, second)[sequence][begin:end]
            positions += span
            slots += [int(tables[sequence, p // 8]) * 8 + p % 8 for p in span]
            lengths.append(end - begin)
        cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int()
        metadata = AttentionMetadata(
            slot_mapping=torch.tensor(slots),
            block_tables=tables[[sequence for sequence, _, _ in parts]],
            seq_lens=torch.tensor([end for _, _, end in parts], dtype=torch.int32),
            cu_seqlens_q=cu_seqlens,
            max_query_len=max(lengths),
            max_seq_len=max(end for _, _, end in parts),
        )
        with paged_forward(cache, metadata):
            logits = model(
                input_ids=torch.tensor([ids]),
                position_ids=torch.tensor([positions]),
                use_cache=False,
            ).logits[0]
        return logits[cu_seqlens[1:].long() - 1]

    run([(0, 0, 36)])
    mixed = run([(0, 36, 37), (1, 0, 30)])
    for got, want in zip(mixed, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    decoded = run([(0, 36, 37), (1, 29, 30)])
    for got, want in zip(decoded, expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)


def test_metadata_moves_all_its_tensors_and_keeps_its_numbers():
    metadata = AttentionMetadata(*(torch.zeros(2, dtype=torch.int32) for _ in range(4)), 3, 7)
    moved = vars(metadata.to(torch.device("meta")))
    tensors = [value for value in moved.values() if isinstance(value, torch.Tensor)]
    assert [tensor.device.type for tensor in tensors] == ["meta"] * 4
    assert (moved["max_query_len"], moved["max_seq_len"]) == (3, 7)
