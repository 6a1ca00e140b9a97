"""Greedy output equals that of the model's own ``generate``, however the work is cut up."""

from unittest import mock

import pytest

from pagedattn import cascade
from pagedattn.engine import Engine
from pagedattn.kv_cache import KVCache
from pagedattn.sampling import SamplingParams

from .conftest import FAMILIES, assert_greedy, reference_answer, tiny_model, tiny_prompt

LENGTHS = [1, 2, 7, 8, 9, 15, 16, 17, 31, 33, 64, 100, 257]
MAX_TOKENS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=MAX_TOKENS)


@pytest.fixture(scope="module", params=FAMILIES)
def case(request):
    """(family, model, prompts, the model's answers)."""
    model = tiny_model(request.param)
    prompts = [tiny_prompt(length) for length in LENGTHS]
    expected = [reference_answer(model, prompt, MAX_TOKENS) for prompt in prompts]
    return request.param, model, prompts, expected


def answers(outputs):
    return [output.outputs[0].token_ids for output in outputs]


def check(case, engine, outputs):
    _, model, prompts, expected = case
    assert_greedy(model, prompts, answers(outputs), expected)
    engine.block_manager.check_invariants()
    assert engine.block_manager.num_free_blocks == engine.kv_cache.num_blocks


def test_alone(case):
    engine = Engine(tiny_model(case[0]), block_size=8, num_blocks=64, enable_prefix_caching=False)
    check(case, engine, [engine.generate([prompt], GREEDY)[0] for prompt in case[2]])


def test_batched_then_from_the_prefix_cache(case):
    engine = Engine(tiny_model(case[0]), block_size=16, num_blocks=256)
    check(case, engine, engine.generate(case[2], GREEDY))
    again = engine.generate(case[2], GREEDY)
    check(case, engine, again)
    for prompt, output in zip(case[2], again, strict=True):
        # All full blocks but at least one token.
        assert output.num_cached_tokens == (len(prompt) - 1) // 16 * 16


def test_chunked_into_tiny_steps(case):
    engine = Engine(tiny_model(case[0]), block_size=8, num_blocks=200, max_num_batched_tokens=13)
    check(case, engine, engine.generate(case[2], GREEDY))
    assert engine.metrics.num_steps > sum(LENGTHS) / 13


def test_preempted_in_a_tiny_pool(case):
    engine = Engine(tiny_model(case[0]), block_size=8, num_blocks=40)
    check(case, engine, engine.generate(case[2], GREEDY))
    assert engine.metrics.as_dict()["num_preemptions"] > 0


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_swapped_out_of_a_tiny_pool(kv_cache_dtype):
    """The same answers as where nobody has to be preempted."""
    swap = KVCache.swap_blocks
    prompts = [tiny_prompt(length) for length in (31, 33, 64, 40)]

    def run(**options):
        engine = Engine(tiny_model("llama"), block_size=8, kv_cache_dtype=kv_cache_dtype, **options)
        with mock.patch.object(KVCache, "swap_blocks", autospec=True, side_effect=swap) as spy:
            return engine, answers(engine.generate(prompts, GREEDY)), spy.call_count

    _, expected, _ = run(num_blocks=64)
    engine, swapped, num_swaps = run(num_blocks=24, preemption="swap", swap_space_bytes=1 << 20)
    assert swapped == expected
    assert num_swaps >= 2  # out and in
    assert engine.block_manager.num_host_free_blocks == engine.scheduler.swap_space.num_blocks


def test_without_chunked_prefill(case):
    engine = Engine(
        tiny_model(case[0]),
        block_size=8,
        num_blocks=100,
        max_num_batched_tokens=40,
        enable_chunked_prefill=False,
    )
    check(case, engine, engine.generate(case[2], GREEDY))


@pytest.mark.parametrize("family", ["llama", "gpt-oss-sinks"])
def test_a_long_shared_prefix_is_attended_to_once(family):
    model = tiny_model(family)
    prompts = [tiny_prompt(600) + tiny_prompt(1 + 3 * i, seed=i) for i in range(8)]
    params = SamplingParams(temperature=0.0, max_tokens=4)
    expected = [reference_answer(model, prompt, 4) for prompt in prompts]
    engine = Engine(tiny_model(family), block_size=16, num_blocks=128)
    two_passes = cascade.attend_in_two_passes
    with mock.patch.object(cascade, "attend_in_two_passes", side_effect=two_passes) as spy:
        outputs = engine.generate(prompts, params)
    num_layers = {"llama": 2, "gpt-oss-sinks": 1}[family]  # without a window
    assert spy.call_count == 3 * num_layers  # each decode step
    assert_greedy(model, prompts, answers(outputs), expected)


def test_smollm2(smollm2, smollm2_engine):
    """A real model, prompts of 1 to 700 tokens: batched, cached, and each alone and cold."""
    model, tokenizer = smollm2
    text = " ".join(
        f"Chapter {i}. The {noun} crossed the river and counted {i * 7} stones on the far side."
        for i, noun in enumerate(["fox", "miller", "girl", "soldier", "ferryman", "wolf"] * 6)
    )
    ids = tokenizer.encode(text)
    prompts = [ids[:length] for length in (1, 5, 16, 17, 63, 200, 448, 700)]
    params = SamplingParams(temperature=0.0, max_tokens=12)
    expected = [reference_answer(model, prompt, 12) for prompt in prompts]
    batched = smollm2_engine.generate(prompts, params)
    assert_greedy(model, prompts, answers(batched), expected)
    cached = smollm2_engine.generate(prompts, params)
    assert_greedy(model, prompts, answers(cached), expected)
    assert cached[-1].num_cached_tokens == 699 // 16 * 16
    alone = []
    for prompt in prompts:
        assert smollm2_engine.block_manager.reset_prefix_cache()
        alone += smollm2_engine.generate([prompt], params)
    assert_greedy(model, prompts, answers(alone), expected)
    assert all(output.num_cached_tokens == 0 for output in alone)
    for output in batched:
        assert output.outputs[0].text == tokenizer.decode(
            output.outputs[0].token_ids, skip_special_tokens=True
        )
