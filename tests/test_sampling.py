"""Sampling: exact sets and distributions, and independence of the batch."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pagedattn.sampling import SamplingParams, SamplingRow, sample, uniform


def draw(logits, params, seeds, tokens=(1, 2)):
    rows = [SamplingRow(params, list(tokens), seed) for seed in seeds]
    return [t.token_id for t in sample(logits.expand(len(rows), -1), rows)]


def chi_square(counts, probs):
    expected = probs * counts.sum()
    return ((counts - expected) ** 2 / expected)[probs > 0].sum().item()


def transformers_probs(logits, params, tokens=(1, 2)):
    """The distribution by transformers' own processors, in vLLM's order."""
    processors = LogitsProcessorList()
    if params.repetition_penalty != 1.0:
        processors.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    processors.append(TemperatureLogitsWarper(params.temperature))
    if params.min_p > 0.0:
        processors.append(MinPLogitsWarper(params.min_p))
    if params.top_k > 0:
        processors.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        processors.append(TopPLogitsWarper(params.top_p))
    return processors(torch.tensor([list(tokens)]), logits[None].clone())[0].softmax(-1).double()


LOGITS = torch.randn(24, generator=torch.Generator().manual_seed(7)) * 2


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(temperature=0.6),
        SamplingParams(temperature=1.7, top_k=5),
        SamplingParams(top_p=0.8),
        SamplingParams(min_p=0.1),
        SamplingParams(min_p=0.2, top_p=0.8),
        SamplingParams(min_p=0.05, top_k=4),
        SamplingParams(repetition_penalty=1.8),
        SamplingParams(temperature=1.3, top_k=12, top_p=0.9, min_p=0.05, repetition_penalty=1.3),
    ],
    ids=str,
)
def test_distribution_is_that_of_transformers_processors(params):
    probs = transformers_probs(LOGITS, params)
    num_draws = 4000
    counts = torch.bincount(
        torch.tensor(draw(LOGITS, params, range(num_draws))), minlength=len(LOGITS)
    ).double()
    assert not counts[probs == 0].any()
    degrees = int((probs > 0).sum()) - 1
    # Far beyond the 99.99 % quantile; the seeds are fixed, so this never flickers.
    assert chi_square(counts, probs) < degrees + 4 * math.sqrt(2 * degrees) + 8


def test_chi_square_sees_a_wrong_distribution():
    counts = torch.bincount(
        torch.tensor(draw(LOGITS, SamplingParams(temperature=1.3), range(4000))), minlength=24
    ).double()
    assert chi_square(counts, transformers_probs(LOGITS, SamplingParams())) > 100


@pytest.mark.parametrize(
    ("filters", "kept"),
    [
        ({"min_p": 0.3, "top_p": 0.7}, {0}),  # .5 is 71 % of the .7 that min_p leaves
        ({"min_p": 0.3, "top_p": 0.72}, {0, 1}),
        ({"top_k": 2, "top_p": 0.7}, {0}),
        ({"top_p": 0.65}, {0, 1}),
        ({"min_p": 0.3, "top_k": 1}, {0}),
        ({"min_p": 0.3, "top_k": 4}, {0, 1}),
        ({"min_p": 0.1, "top_p": 0.85}, {0, 1, 2, 3}),
    ],
    ids=str,
)
def test_min_p_comes_before_top_k_and_those_before_top_p(filters, kept):
    logits = torch.tensor([0.5, 0.2, 0.1, 0.1, 0.1]).log()
    assert set(draw(logits, SamplingParams(**filters), range(300))) == kept


def test_greedy_is_argmax():
    assert draw(LOGITS, SamplingParams(temperature=0.0), [1, 2]) == [int(LOGITS.argmax())] * 2


def test_tiny_temperature_does_not_overflow():
    logits = torch.tensor([1e4, 3e4, -3e4])
    assert draw(logits, SamplingParams(temperature=1e-30), range(5)) == [1] * 5


def test_top_k_of_one_is_greedy():
    assert set(draw(LOGITS, SamplingParams(top_k=1), range(50))) == {int(LOGITS.argmax())}


def test_tokens_of_probability_zero_are_never_drawn():
    logits = torch.full((50,), -torch.inf)
    logits[[0, 17, 49]] = 0.0
    assert set(draw(logits, SamplingParams(), range(300))) == {0, 17, 49}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.integers(0, 1000))
def test_a_row_does_not_depend_on_its_batch(kinds, seed):
    menu = [
        SamplingParams(temperature=0.0),
        SamplingParams(),
        SamplingParams(top_k=4),
        SamplingParams(top_p=0.5),
        SamplingParams(min_p=0.2),
        SamplingParams(repetition_penalty=1.5),
        SamplingParams(temperature=2.0, top_k=9, top_p=0.95),
    ]
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(len(kinds), 40, generator=generator)
    rows = [SamplingRow(menu[kind], [1, 2, 3], seed + i, i) for i, kind in enumerate(kinds)]
    together = sample(logits, rows)
    alone = [sample(logits[i : i + 1], [row])[0] for i, row in enumerate(rows)]
    assert together == alone


def test_stream_depends_on_seed_sample_and_position():
    values = {
        uniform(seed, sample, position)
        for seed in (0, 1, 2**63)
        for sample in range(4)
        for position in range(50)
    }
    assert len(values) == 3 * 4 * 50
    assert all(0.0 <= value < 1.0 for value in values)
    assert uniform(5, 1, 9) == uniform(5, 1, 9)


def test_uniform_is_uniform_over_positions():
    counts = torch.histc(torch.tensor([uniform(3, 0, i) for i in range(20_000)]), 20, 0, 1)
    assert chi_square(counts.double(), torch.full((20,), 0.05).double()) < 60


def test_logprobs_are_of_the_models_own_distribution():
    params = SamplingParams(temperature=0.5, repetition_penalty=1.5, logprobs=3, seed=0)
    token = sample(LOGITS[None], [SamplingRow(params, [1, 2], 4)])[0]
    logprobs = LOGITS.log_softmax(-1)
    assert token.logprob == pytest.approx(logprobs[token.token_id].item())
    assert token.top_logprobs is not None
    best = LOGITS.topk(3).indices.tolist()
    assert list(token.top_logprobs)[:3] == best
    assert token.top_logprobs.keys() == {*best, token.token_id}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n": 0}, "n must be an integer >= 1, got 0"),
        ({"n": 3, "best_of": 2}, "best_of must be None or an integer >= n"),
        ({"temperature": -0.1}, "temperature must be finite and >= 0, got -0.1"),
        ({"temperature": math.nan}, "temperature"),
        ({"top_p": 0.0}, r"top_p must be in \(0, 1\], got 0.0"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k must be an integer >= -1, got -2"),
        ({"top_k": 2.5}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"repetition_penalty": 0.0}, "repetition_penalty must be finite and > 0"),
        ({"max_tokens": 0}, "max_tokens must be an integer >= 1, got 0"),
        ({"stop": ["a", ""]}, "stop must be non-empty strings"),
        ({"stop_token_ids": ["a"]}, "stop_token_ids"),
        ({"seed": 1.5}, "seed"),
        ({"logprobs": -1}, "logprobs"),
    ],
)
def test_wrong_parameters(change, message):
    with pytest.raises(ValueError, match=message):
        SamplingParams(**change)
