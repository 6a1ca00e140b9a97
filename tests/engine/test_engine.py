"""The engine's interface: streams, samples, stops, errors. Greedy equality is in test_greedy."""

import inspect
import itertools
import logging
import sys
from dataclasses import fields

import pytest
import torch

from pagedattn.config import EngineConfig
from pagedattn.engine import Engine
from pagedattn.sampling import SamplingParams

from .conftest import tiny_model, tiny_prompt
from .test_detokenizer import ByteTokenizer

GREEDY = SamplingParams(temperature=0.0, max_tokens=12)


class LetterTokenizer(ByteTokenizer):
    """Shows token i as a printable letter, so that any answer is text."""

    eos_token_id = None

    def encode(self, text):
        return [ord(c) - 32 for c in text]

    def decode(self, token_ids, *, skip_special_tokens):
        return "".join(chr(t + 32) for t in token_ids)


def make_engine(**options):
    options = {"block_size": 8, "num_blocks": 64, **options}
    return Engine(tiny_model("llama"), LetterTokenizer(), **options)


@pytest.fixture(scope="module")
def engine():
    return make_engine()


def token_ids(output):
    return [answer.token_ids for answer in output.outputs]


def contents(outputs):
    """All of the answers but the log probabilities, which the batch may round differently."""
    return [(answer.text, answer.token_ids, answer.finish_reason) for answer in outputs]


def test_stream_grows_to_what_generate_returns(engine):
    expected = engine.generate("once upon a time", GREEDY)[0]
    outputs = list(engine.stream("once upon a time", GREEDY))
    assert len(outputs) == 12
    for before, after in itertools.pairwise(outputs):
        assert after.outputs[0].text.startswith(before.outputs[0].text)
        assert not before.finished
    assert outputs[-1].finished
    assert contents(outputs[-1].outputs) == contents(expected.outputs)
    assert expected.prompt_token_ids == LetterTokenizer().encode("once upon a time")


def test_interleaved_streams_get_their_own_answers(engine):
    expected = [engine.generate(p, GREEDY)[0].outputs for p in ("abc", "xyz")]
    last = [None, None]
    streams = [engine.stream(prompt, GREEDY) for prompt in ("abc", "xyz")]
    for pair in zip(*streams, strict=False):
        last = pair
    for i, stream in enumerate(streams):
        rest = list(stream)
        assert contents((rest or [last[i]])[-1].outputs) == contents(expected[i])


def test_closing_a_stream_aborts_its_request(engine):
    stream = engine.stream("abc", GREEDY)
    next(stream)
    assert engine.has_unfinished_requests
    stream.close()
    assert not engine.has_unfinished_requests
    assert engine.block_manager.num_free_blocks == 64


@pytest.mark.parametrize("end", ["close", "drop"])
@pytest.mark.parametrize("num_read", [0, 1, 12])
def test_a_stream_that_ends_early_leaves_nothing_behind(engine, end, num_read):
    stream = engine.stream("abc", GREEDY)
    for _ in range(num_read):
        next(stream)
    if end == "close":
        stream.close()
        assert list(stream) == []
        stream.close()
    else:
        del stream
    assert not engine.has_unfinished_requests
    assert engine.block_manager.num_free_blocks == 64
    assert engine.step() == []


def test_a_stream_ends_with_the_error_of_its_step():
    engine = make_engine()
    stream = engine.stream("abc", GREEDY)
    engine._runner.run = fail
    with pytest.raises(FloatingPointError):
        next(stream)
    assert list(stream) == []
    assert not engine.has_unfinished_requests


def test_requests_join_and_leave_between_steps(engine):
    prompts = {"first": "abc", "second": "long" * 10}
    expected = {i: contents(engine.generate(p, GREEDY)[0].outputs) for i, p in prompts.items()}
    engine.add_request("first", prompts["first"], GREEDY)
    finished = {}
    for i in range(40):
        if i == 3:
            engine.add_request("second", prompts["second"], GREEDY)
        finished.update((o.request_id, contents(o.outputs)) for o in engine.step() if o.finished)
    assert finished == expected
    assert engine.step() == []


def test_abort(engine):
    engine.add_request("a", "abc", SamplingParams(n=2, temperature=1.0, max_tokens=50, seed=1))
    engine.step()
    engine.step()
    engine.abort("a")
    engine.abort("nobody")
    (output,) = engine.step()
    assert output.finished
    assert [answer.finish_reason for answer in output.outputs] == ["abort", "abort"]
    assert engine.block_manager.num_free_blocks == 64


def test_seeded_samples_do_not_depend_on_batch_chunks_or_preemption():
    prompts = [tiny_prompt(length) for length in (3, 20, 41, 66)]
    params = [
        SamplingParams(n=1 + i % 2, temperature=0.7, top_p=0.95, max_tokens=15, seed=i)
        for i in range(len(prompts))
    ]
    alone = [
        token_ids(make_engine().generate([p], s)[0]) for p, s in zip(prompts, params, strict=True)
    ]
    for options in ({}, {"max_num_batched_tokens": 9}, {"num_blocks": 14}):
        engine = make_engine(**options)
        assert [token_ids(o) for o in engine.generate(prompts, params)] == alone
    assert engine.metrics.as_dict()["num_preemptions"] > 0


def test_unseeded_requests_differ(engine):
    params = SamplingParams(temperature=2.0, max_tokens=12)
    outputs = engine.generate(["abc"] * 4, params)
    assert len({tuple(token_ids(o)[0]) for o in outputs}) == 4


def test_n_samples_differ_and_the_first_is_that_of_n_1(engine):
    options = {"temperature": 2.0, "seed": 5, "max_tokens": 12}
    single = engine.generate("some prompt", SamplingParams(**options))[0]
    output = engine.generate("some prompt", SamplingParams(n=3, **options))[0]
    assert [answer.index for answer in output.outputs] == [0, 1, 2]
    assert len({tuple(ids) for ids in token_ids(output)}) == 3
    assert token_ids(output)[0] == token_ids(single)[0]


def test_best_of_returns_the_likeliest(engine):
    options = {"temperature": 2.0, "seed": 5, "max_tokens": 6}
    all_four = engine.generate("some prompt", SamplingParams(n=4, **options))[0].outputs
    best = engine.generate("some prompt", SamplingParams(n=2, best_of=4, **options))[0].outputs
    ranked = sorted(all_four, key=lambda answer: -answer.cumulative_logprob)
    assert [answer.token_ids for answer in best] == [a.token_ids for a in ranked[:2]]
    assert [answer.index for answer in best] == [0, 1]


def test_stop_string_ends_the_answer_before_it(engine):
    text = engine.generate("hello", GREEDY)[0].outputs[0].text
    stop = text[4:7]
    answer = engine.generate(
        "hello", SamplingParams(temperature=0.0, max_tokens=12, stop=["\x00", stop])
    )[0].outputs[0]
    assert answer.finish_reason == "stop"
    assert answer.text == text[: text.index(stop)]


def test_stop_token_is_kept_in_the_tokens_and_not_shown(engine):
    answer = engine.generate("hello", GREEDY)[0].outputs[0]
    stop = answer.token_ids[4]
    at = answer.token_ids.index(stop)
    stopped = engine.generate(
        "hello", SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=[stop])
    )[0].outputs[0]
    assert stopped.token_ids == answer.token_ids[: at + 1]
    assert stopped.text == answer.text[:at]
    assert stopped.finish_reason == "stop"


def test_end_of_sequence_and_ignore_eos():
    answer = make_engine().generate("hello", GREEDY)[0].outputs[0]
    model = tiny_model("llama")
    model.generation_config.eos_token_id = [answer.token_ids[3]]
    engine = Engine(model, LetterTokenizer(), block_size=8, num_blocks=64)
    at = answer.token_ids.index(answer.token_ids[3])
    assert engine.generate("hello", GREEDY)[0].outputs[0].token_ids == answer.token_ids[: at + 1]
    ignoring = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    assert engine.generate("hello", ignoring)[0].outputs[0].token_ids == answer.token_ids


def test_logprobs(engine):
    params = SamplingParams(temperature=0.0, max_tokens=5, logprobs=2)
    answer = engine.generate("hello", params)[0].outputs[0]
    assert answer.logprobs is not None
    assert len(answer.logprobs) == 5
    chosen = [top[t] for top, t in zip(answer.logprobs, answer.token_ids, strict=True)]
    assert answer.cumulative_logprob == pytest.approx(sum(chosen))
    assert all(
        max(top.values()) == logprob for top, logprob in zip(answer.logprobs, chosen, strict=True)
    )
    assert engine.generate("hello", GREEDY)[0].outputs[0].logprobs is None


def test_max_model_len_ends_an_answer():
    engine = make_engine(max_model_len=20)
    answer = engine.generate([tiny_prompt(15)], SamplingParams(max_tokens=100))[0].outputs[0]
    assert len(answer.token_ids) == 5
    assert answer.finish_reason == "length"


def test_max_model_len_is_what_the_pool_can_hold():
    assert make_engine(num_blocks=4).max_model_len == 32
    with pytest.raises(ValueError, match="max_model_len=33 tokens do not fit"):
        make_engine(num_blocks=4, max_model_len=33)


def test_one_request_may_fill_the_whole_pool():
    engine = make_engine(num_blocks=4)
    answer = engine.generate([tiny_prompt(31)], GREEDY)[0].outputs[0]
    assert (len(answer.token_ids), answer.finish_reason) == (1, "length")


def test_max_model_len_is_within_the_models_own():
    assert make_engine(num_blocks=200, max_model_len=1024).max_model_len == 1024
    with pytest.raises(ValueError, match="max_model_len=1025 is more than the 1024 positions"):
        make_engine(num_blocks=200, max_model_len=1025)


@pytest.mark.parametrize(("chunked", "expected"), [(True, 16), (False, 1024)])
def test_memory_is_profiled_with_the_tokens_a_step_may_have(monkeypatch, chunked, expected):
    profiled = []

    def choose(config, model, shape, max_model_len, max_num_batched_tokens):
        profiled.append(max_num_batched_tokens)
        return 64

    monkeypatch.setattr("pagedattn.engine.choose_num_blocks", choose)
    engine = make_engine(enable_chunked_prefill=chunked, max_num_batched_tokens=16)
    assert profiled == [engine.scheduler.max_num_batched_tokens] == [expected]


def fail(*_):
    raise FloatingPointError("the model broke")


def fail_once(function, at):
    """``function``, which at its call number ``at`` raises KeyboardInterrupt instead."""
    calls = itertools.count()

    def wrapped(*args, **kwargs):
        if next(calls) == at:
            raise KeyboardInterrupt
        return function(*args, **kwargs)

    return wrapped


# What runs in a step after the model: (owner of the function, its name).
AFTER_THE_MODEL = {
    "complete": lambda engine: (engine.scheduler, "complete"),
    "metrics": lambda engine: (engine.metrics, "observe_step"),
    "tokenizer": lambda engine: (engine.tokenizer, "decode"),
    "log handler": lambda engine: (logging.getLogger("pagedattn"), "info"),
}


@pytest.mark.parametrize("where", AFTER_THE_MODEL)
@pytest.mark.parametrize("at", [0, 1, 2, 7])
def test_an_interrupt_after_the_model_costs_no_request_its_tokens(monkeypatch, where, at):
    engine = make_engine()
    prompts = {"a": "abc", "b": "long" * 10, "c": "xyz"}
    params = [SamplingParams(n=n, temperature=0.7, seed=n, max_tokens=9) for n in (1, 2, 3)]
    expected = [token_ids(o) for o in engine.generate(list(prompts.values()), params)]
    for (name, prompt), sampling in zip(prompts.items(), params, strict=True):
        engine.add_request(name, prompt, sampling)
    owner, function = AFTER_THE_MODEL[where](engine)
    monkeypatch.setattr(owner, function, fail_once(getattr(owner, function), at))
    answers, num_interrupts = {}, 0
    for _ in range(40):
        try:
            answers.update((o.request_id, o) for o in engine.step())
        except KeyboardInterrupt:
            num_interrupts += 1
    assert num_interrupts == (where != "log handler" or at < 6)
    assert not engine.has_unfinished_requests
    assert [token_ids(answers[name]) for name in prompts] == expected
    assert engine.block_manager.num_free_blocks == 64


def test_text_is_whole_after_an_interrupt_in_the_tokenizer(monkeypatch):
    engine = make_engine()
    expected = engine.generate(["abc", "xyz"], GREEDY)
    for at in range(4):
        for name in ("abc", "xyz"):
            engine.add_request(name, name, GREEDY)
        decode = engine.tokenizer.decode
        monkeypatch.setattr(engine.tokenizer, "decode", fail_once(decode, at))
        with pytest.raises(KeyboardInterrupt):
            engine.step()
        answers = {}
        while engine.has_unfinished_requests:
            answers.update((o.request_id, o.outputs) for o in engine.step())
        monkeypatch.setattr(engine.tokenizer, "decode", decode)
        for name, output in zip(("abc", "xyz"), expected, strict=True):
            assert contents(answers[name]) == contents(output.outputs)


def test_a_request_that_cannot_go_on_is_an_error_and_no_endless_loop():
    engine = make_engine()
    engine.add_request("a", "abc", GREEDY)
    engine.step()
    (request,) = engine.scheduler.running.values()
    request.token_ids.pop()
    with pytest.raises(RuntimeError, match="no request can go on: 1 running, 0 waiting"):
        engine.step()
    engine.abort("a")
    assert not engine.has_unfinished_requests


def test_failing_step_names_its_requests(caplog):
    engine = make_engine()
    engine.add_request("r1", "secret words", SamplingParams(n=2, max_tokens=5), tenant="acme")
    engine.add_request("r2", "abc", GREEDY)
    engine.step()
    engine._runner.run = fail
    with pytest.raises(FloatingPointError, match="the model broke") as error:
        engine.step()
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR]
    notes = "".join(error.value.__notes__) if sys.version_info >= (3, 11) else line
    for text in (line, notes):
        assert text.count("request=r1") == text.count("request=r2") == 1
        assert "tenant=acme" in text
        assert "secret" not in text


def test_failing_model_step_is_retried_with_the_same_result():
    engine = make_engine()
    expected = token_ids(make_engine().generate([tiny_prompt(30)], GREEDY)[0])
    engine.add_request("a", tiny_prompt(30), GREEDY)
    engine.step()
    run = engine._runner.run

    def failing(step):
        run(step)
        raise FloatingPointError("the model broke")

    engine._runner.run = failing
    with pytest.raises(FloatingPointError):
        engine.step()
    engine._runner.run = run
    outputs = []
    while engine.has_unfinished_requests:
        outputs = engine.step()
    assert token_ids(outputs[0]) == expected


def test_generate_leaves_nothing_behind_when_it_fails():
    engine = make_engine()
    engine._runner.run = fail
    with pytest.raises(FloatingPointError):
        engine.generate(["abc", "def"], GREEDY)
    assert not engine.has_unfinished_requests
    with pytest.raises(ValueError, match="the prompt has no tokens"):
        engine.generate(["abc", ""], GREEDY)
    assert not engine.has_unfinished_requests


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], None, "the prompt has no tokens"),
        ([5, 101], None, r"token ids of the prompt must be in \[0, 101\)"),
        ([-1], None, "token ids"),
        ([3] * 512, None, "the prompt has 512 tokens; .* max_model_len=512"),
        ([3], SamplingParams(n=300), "300 samples asked for, but at most 256"),
    ],
)
def test_wrong_requests_name_themselves_but_not_their_prompt(engine, prompt, params, message):
    with pytest.raises(ValueError, match=message) as error:
        engine.add_request("r1", prompt, params, tenant="acme")
    assert "request=r1 prompt_sha256=" in str(error.value)
    assert "tenant=acme" in str(error.value)
    assert not engine.has_unfinished_requests


def test_other_wrong_calls(engine):
    engine.add_request("same", "abc", GREEDY)
    with pytest.raises(ValueError, match="request_id 'same' is in use"):
        engine.add_request("same", "abc", GREEDY)
    engine.abort("same")
    with pytest.raises(ValueError, match="2 sampling_params for 1 prompts"):
        engine.generate("abc", [GREEDY, GREEDY])
    without_text = Engine(tiny_model("llama"), block_size=8, num_blocks=64)
    with pytest.raises(ValueError, match="needs a tokenizer"):
        without_text.generate("abc")
    with pytest.raises(ValueError, match="stop strings need a tokenizer"):
        without_text.generate([[1, 2]], SamplingParams(stop="a"))
    assert without_text.generate([[1, 2]], GREEDY)[0].outputs[0].text == ""


@pytest.mark.parametrize(
    ("prompts", "kind"),
    [([1, 2, 3], "int"), ([None], "NoneType"), ([["a"]], "list"), ([[1.5]], "list")],
    ids=str,
)
def test_prompts_that_are_neither_text_nor_token_ids(engine, prompts, kind):
    with pytest.raises(TypeError, match=rf"string or a list of token ids \(integers\), got {kind}"):
        engine.generate(prompts, GREEDY)
    assert not engine.has_unfinished_requests


def test_options_are_in_the_signature():
    options = inspect.signature(Engine).parameters
    assert set(options) - {"model", "tokenizer"} == {f.name for f in fields(EngineConfig)}
    assert options["block_size"].default == 16
    with pytest.raises(TypeError, match=r"Engine.*'blocksize'"):
        make_engine(blocksize=16)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"block_size": 12}, "block_size must be a multiple of 8 from 8 to 512, got 12"),
        ({"num_blocks": 0}, "num_blocks must be at least 1, got 0"),
        ({"kv_cache_bytes": 1 << 20}, "give num_blocks or kv_cache_bytes, not both"),
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization"),
        ({"kv_cache_dtype": "fp4"}, "kv_cache_dtype must be one of .*'int8'.*, got 'fp4'"),
        ({"preemption": "kill"}, "preemption must be"),
        ({"preemption": "swap"}, 'preemption="swap" needs swap_space_bytes'),
        ({"swap_space_bytes": -1}, "swap_space_bytes must be at least 0, got -1"),
        ({"swap_space_bytes": 100}, "swap_space_bytes=100 holds no block; one takes 8192"),
        ({"speculative": {"method": "ngram"}}, "speculative=.* is not supported yet"),
        ({"compile": True}, "compile=True is not supported yet"),
    ],
)
def test_wrong_options(option, message):
    with pytest.raises(ValueError, match=message):
        make_engine(**option)


def test_cache_size_from_bytes():
    per_block = 2 * 2 * 2 * 32 * 4 * 8
    engine = make_engine(num_blocks=None, kv_cache_bytes=10 * per_block + 1)
    assert engine.kv_cache.num_blocks == 10
    with pytest.raises(ValueError, match="leaves 100 bytes for the KV cache; one block takes"):
        make_engine(num_blocks=None, kv_cache_bytes=100)
    per_block = 2 * 2 * 2 * (32 + 4) * 8
    quantised = make_engine(
        num_blocks=None, kv_cache_bytes=10 * per_block + 1, kv_cache_dtype="int8"
    )
    assert quantised.kv_cache.num_blocks == 10
    default = make_engine(num_blocks=None, max_num_seqs=2, max_model_len=100)
    assert default.kv_cache.num_blocks == 2 * 13


def test_log_line_names_the_request_and_hides_the_prompt(engine, caplog):
    with caplog.at_level(logging.INFO, logger="pagedattn"):
        engine.add_request("r7", "secret words", GREEDY, tenant="acme")
        while engine.has_unfinished_requests:
            engine.step()
    (line,) = [record.getMessage() for record in caplog.records]
    for part in ("reason=length", "request=r7", "prompt_sha256=", "tenant=acme", "latency="):
        assert part in line
    assert "secret" not in line


def test_garbage_in_the_cache_is_never_read():
    expected = token_ids(make_engine().generate([tiny_prompt(30)], GREEDY)[0])
    engine = make_engine()
    for tensor in engine.kv_cache.key_caches + engine.kv_cache.value_caches:
        tensor.fill_(torch.nan)
    assert token_ids(engine.generate([tiny_prompt(30)], GREEDY)[0]) == expected
