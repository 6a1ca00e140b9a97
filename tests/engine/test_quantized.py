"""Engines over 8-bit KV caches: what they answer, beside what the model says itself."""

import itertools
import math

import pytest
import torch

from pagedattn.chat import chat_prompt
from pagedattn.config import KV_CACHE_DTYPES
from pagedattn.demo import QUESTIONS
from pagedattn.engine import Engine
from pagedattn.integrations.transformers import AttentionMetadata, enable, paged_forward
from pagedattn.kv_cache import KVCache
from pagedattn.sampling import SamplingParams

from .conftest import copy_of, tiny_model, tiny_prompt

EIGHT_BIT = [name for name, dtype in KV_CACHE_DTYPES.items() if dtype is not None]
BLOCK_SIZE = 16


@pytest.mark.parametrize("name", EIGHT_BIT)
def test_the_cache_has_the_dtype_asked_for(name):
    engine = Engine(tiny_model("llama"), num_blocks=8, kv_cache_dtype=name)
    assert engine.kv_cache.dtype == KV_CACHE_DTYPES[name]
    (output,) = engine.generate([tiny_prompt(30)], SamplingParams(temperature=0.0, max_tokens=5))
    assert len(output.outputs[0].token_ids) == 5


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_scales_follow_their_blocks(name):
    """Samples that fork, copy on write, hit the prefix cache and are preempted stay the same."""
    prompts = [tiny_prompt(length) for length in (3, 20, 41, 66)]
    params = [
        SamplingParams(n=1 + i % 3, temperature=0.7, max_tokens=15, seed=i)
        for i in range(len(prompts))
    ]

    def answers(**options):
        engine = Engine(tiny_model("llama"), block_size=8, kv_cache_dtype=name, **options)
        outputs = engine.generate(prompts, params) + engine.generate(prompts, params)
        tokens = [[answer.token_ids for answer in output.outputs] for output in outputs]
        return tokens, engine.metrics.as_dict()

    expected, metrics = answers(num_blocks=64)
    assert metrics["prefix_cache_hit_rate"] > 0
    preempted, metrics = answers(num_blocks=14)
    assert metrics["num_preemptions"] > 0
    assert preempted == expected


@torch.inference_mode()
def all_logits(model, sequences, cache_dtype):
    """Logits ``[num_tokens, vocab_size]`` of all sequences' tokens, computed over a paged cache."""
    config = model.config
    num_blocks = [-(-len(ids) // BLOCK_SIZE) for ids in sequences]
    cache = KVCache(
        config.num_hidden_layers,
        sum(num_blocks),
        BLOCK_SIZE,
        config.num_key_value_heads,
        config.hidden_size // config.num_attention_heads,
        dtype=cache_dtype,
    )
    first_blocks = torch.tensor([0, *itertools.accumulate(num_blocks)])[:-1]
    tables = first_blocks[:, None] + torch.arange(max(num_blocks))
    lengths = [len(ids) for ids in sequences]
    positions = torch.cat([torch.arange(length) for length in lengths])
    starts = torch.repeat_interleave(first_blocks * BLOCK_SIZE, torch.tensor(lengths))
    metadata = AttentionMetadata(
        slot_mapping=starts + positions,
        block_tables=tables.int(),
        seq_lens=torch.tensor(lengths, dtype=torch.int32),
        cu_seqlens_q=torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32),
        max_query_len=max(lengths),
        max_seq_len=max(lengths),
    )
    with paged_forward(cache, metadata):
        return model(
            input_ids=torch.tensor([list(itertools.chain(*sequences))]),
            position_ids=positions[None],
            use_cache=False,
        ).logits[0]


def test_the_demo_models_greedy_tokens_survive_8_bits(smollm2, smollm2_engine):
    """Teacher-forced: the best next token after each token of the prompts and their answers.

    95 % of them agree, as far as so many tokens can tell: the last bit of a kernel's sums decides
    close races one way or the other, and two standard deviations of such a count are allowed for.
    """
    model, tokenizer = smollm2
    prompts = [chat_prompt(tokenizer, question) for question in QUESTIONS]
    outputs = smollm2_engine.generate(prompts, SamplingParams(temperature=0.0, max_tokens=96))
    answers = [output.outputs[0].token_ids for output in outputs]
    sequences = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]
    paged = copy_of(model)
    enable(paged)
    best = all_logits(paged, sequences, torch.float32).argmax(dim=-1)
    for dtype in (torch.int8, torch.float8_e4m3fn):
        agreement = (all_logits(paged, sequences, dtype).argmax(dim=-1) == best).float().mean()
        assert agreement >= 0.95 - 2 * math.sqrt(0.95 * 0.05 / len(best)), (
            f"{dtype}: {agreement:.3f} of {len(best)} tokens"
        )
