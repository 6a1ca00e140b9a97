"""The demo: questions that share a system prompt, answered side by side, and what it took."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from .chat import chat_prompt
from .engine import Engine
from .outputs import RequestOutput
from .sampling import SamplingParams

SYSTEM_PROMPT = (
    "You are a patient assistant in the reading room of a public library. Visitors of every age "
    "ask you about science, history, language and daily life. Answer in plain words and short "
    "sentences. Start with the answer itself and give reasons after it. If a question has several "
    "answers, give the most common one first. Use at most one example. Do not repeat the question, "
    "do not apologise and do not talk about yourself. When you are not sure, say so, and say which "
    "kind of book the visitor should look into. Never give advice on medicine or law beyond what a "
    "school book would say."
)

QUESTIONS = (
    "Why is the sky blue?",
    "What is the capital of France?",
    "How do bees make honey?",
    "Explain in two sentences what a computer's memory is.",
    "Who wrote Don Quixote, and what is it about?",
    "Give me three tips for learning a new language when I only have ten minutes a day.",
    "I have flour, eggs, milk, sugar and a little butter in my kitchen. What is the easiest thing "
    "that I can cook from them, and what are the steps in the right order?",
    "My daughter is eight and asks why the moon looks different every night. She knows that the "
    "earth is round and that it goes around the sun once a year. How can I explain it to her with "
    "a lamp and an orange, and what should she watch for in the sky during the next month?",
    "What does the word 'virtual' mean?",
    "Write a short poem about autumn.",
)


def run_demo(engine: Engine, *, max_tokens: int = 128, out: TextIO | None = None) -> None:
    """Answers ``QUESTIONS`` at once, shows the answers as they grow, then a table."""
    out = out or sys.stdout
    params = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    for i, question in enumerate(QUESTIONS):
        engine.add_request(
            _request_id(i), chat_prompt(engine.tokenizer, question, SYSTEM_PROMPT), params
        )
    display: _TerminalDisplay | _LineDisplay
    display = _TerminalDisplay(out) if out.isatty() else _LineDisplay(out)
    outputs: dict[str, RequestOutput] = {}
    start = time.perf_counter()
    while engine.has_unfinished_requests:
        outputs.update((output.request_id, output) for output in engine.step())
        display.update(outputs, time.perf_counter() - start)
    elapsed = time.perf_counter() - start
    display.close()
    out.write("\n" + _table(engine, list(outputs.values()), elapsed))


def _request_id(index: int) -> str:
    return f"question-{index + 1}"


def _progress(outputs: Mapping[str, RequestOutput], elapsed: float) -> str:
    finished = sum(output.finished for output in outputs.values())
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs.values())
    width = 20
    bar = "#" * (width * finished // len(QUESTIONS))
    return (
        f"[{bar:<{width}}] {finished}/{len(QUESTIONS)} answers, {tokens} tokens, "
        f"{tokens / elapsed:.1f} tokens/s"
    )


def _transcript(index: int, output: RequestOutput) -> str:
    return f"\n> {QUESTIONS[index]}\n{output.outputs[0].text.strip()}\n"


class _TerminalDisplay:
    """One line per question with the end of its answer, redrawn in place; at last all answers."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._num_lines = 0
        self._outputs: Mapping[str, RequestOutput] = {}

    def update(self, outputs: Mapping[str, RequestOutput], elapsed: float) -> None:
        self._outputs = outputs
        width = shutil.get_terminal_size().columns - 1
        lines = []
        for request_id, output in outputs.items():
            label = f"{request_id:<12} "
            text = " ".join(output.outputs[0].text.split())
            room = max(0, width - len(label))
            lines.append(label + text[max(0, len(text) - room) :])
        lines.append(_progress(outputs, elapsed)[:width])
        if self._num_lines:
            self._out.write(f"\x1b[{self._num_lines}A")
        self._out.writelines(f"\x1b[2K{line}\n" for line in lines)
        self._out.flush()
        self._num_lines = len(lines)

    def close(self) -> None:
        for i in range(len(QUESTIONS)):
            self._out.write(_transcript(i, self._outputs[_request_id(i)]))


class _LineDisplay:
    """For logs and pipes: each answer once it is complete, and a line of progress now and then."""

    _INTERVAL = 2.0  # seconds

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._next = 0.0
        self._shown: set[str] = set()

    def update(self, outputs: Mapping[str, RequestOutput], elapsed: float) -> None:
        for i in range(len(QUESTIONS)):
            request_id = _request_id(i)
            output = outputs.get(request_id)
            if output is not None and output.finished and request_id not in self._shown:
                self._shown.add(request_id)
                self._out.write(_transcript(i, output))
                self._next = elapsed
        if outputs and elapsed >= self._next:
            self._next = elapsed + self._INTERVAL
            self._out.write(_progress(outputs, elapsed) + "\n")
        self._out.flush()

    def close(self) -> None:
        pass


def _table(engine: Engine, outputs: list[RequestOutput], elapsed: float) -> str:
    metrics = engine.metrics
    prompt_tokens = sum(len(output.prompt_token_ids) for output in outputs)
    tokens = sum(len(output.outputs[0].token_ids) for output in outputs)
    first, following = metrics.time_to_first_token, metrics.inter_token_latency
    rows = [
        ("requests", f"{len(outputs)}"),
        ("prompt tokens", f"{prompt_tokens}"),
        ("generated tokens", f"{tokens}"),
        ("generated tokens/s", f"{tokens / elapsed:.1f}"),
        ("time to first token", f"{_ms(first.mean)} mean, {_ms(first.percentile(99))} p99"),
        ("inter-token latency", f"{_ms(following.mean)} mean, {_ms(following.percentile(99))} p99"),
        ("prefix cache hit rate", f"{metrics.prefix_cache_hit_rate:.1%} of prompt tokens"),
        (
            "peak cache usage",
            f"{metrics.peak_cache_usage:.1%} of {engine.kv_cache.num_blocks} blocks "
            f"({metrics.peak_cache_usage * engine.kv_cache.num_bytes / 2**20:.1f} MiB)",
        ),
        ("wasted slots, paged", f"{metrics.paged_slots.wasted:.1%}"),
        (
            f"wasted slots, contiguous buffers of {engine.max_model_len}",
            f"{metrics.contiguous_slots.wasted:.1%}",
        ),
    ]
    width = max(len(name) for name, _ in rows)
    return "".join(f"{name:<{width}}  {value}\n" for name, value in rows)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"
