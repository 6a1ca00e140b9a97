"""Models for the engine's tests: tiny random ones of several families, and SmolLM2."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GptOssConfig,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
)

from pagedattn.engine import Engine
from pagedattn.loading import load

VOCAB_SIZE = 101
_SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "initializer_range": 0.3,  # large enough that the next token is no coin toss
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
_CONFIGS = {
    "llama": lambda: LlamaConfig(**_SIZES),
    "qwen2": lambda: Qwen2Config(**_SIZES),
    "mistral-window": lambda: MistralConfig(**_SIZES, sliding_window=20),
    "gemma2-softcap-window": lambda: Gemma2Config(
        **_SIZES, sliding_window=20, attn_logit_softcapping=5.0, query_pre_attn_scalar=8
    ),
    "gpt-oss-sinks": lambda: GptOssConfig(
        **_SIZES, sliding_window=20, num_local_experts=2, num_experts_per_tok=1
    ),
}
FAMILIES = list(_CONFIGS)


def tiny_model(family: str):
    """A random model; the same weights at each call."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(_CONFIGS[family](), attn_implementation="eager")
    return model.eval()


def tiny_prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(1000 * seed + length)
    return torch.randint(2, VOCAB_SIZE, (length,), generator=generator).tolist()


@torch.inference_mode()
def reference_answer(model, prompt: list[int], max_tokens: int) -> list[int]:
    """The model's own greedy continuation."""
    ids = torch.tensor([prompt])
    out = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=max_tokens,
        pad_token_id=0,
    )
    return out[0, len(prompt) :].tolist()


@torch.inference_mode()
def assert_greedy(model, prompts, answers, expected, *, gap=1e-3, share=0.95):
    """The engine's greedy answers equal the model's own, as far as rounding lets them.

    At a first difference the model itself must be torn: its two best logits closer than ``gap``.
    At least ``share`` of the answers match to the end.
    """
    matches = 0
    for prompt, answer, reference in zip(prompts, answers, expected, strict=True):
        if answer == reference:
            matches += 1
            continue
        pairs = list(zip(answer, reference, strict=False))
        at = next((i for i, (a, b) in enumerate(pairs) if a != b), len(pairs))
        logits = model(torch.tensor([prompt + reference[:at]])).logits[0, -1]
        best = logits.topk(2).values
        assert best[0] - best[1] < gap, f"prompt of {len(prompt)} tokens: differs at token {at}"
    assert matches >= share * len(prompts)


@pytest.fixture(params=FAMILIES)
def family(request):
    return request.param


@pytest.fixture(scope="session")
def smollm2():
    """(model, tokenizer), the model with its own attention."""
    try:
        return load("smollm2")
    except FileNotFoundError as error:
        pytest.skip(str(error))


def copy_of(model):
    """The same weights in a module tree of its own, whose attention can be switched."""
    copy = type(model)(model.config.__class__(**model.config.to_dict()))
    copy.load_state_dict(model.state_dict(), assign=True)
    copy.generation_config = model.generation_config
    copy.tie_weights()
    return copy.eval()


@pytest.fixture(scope="session")
def smollm2_engine(smollm2):
    model, tokenizer = smollm2
    return Engine(copy_of(model), tokenizer, num_blocks=256)
