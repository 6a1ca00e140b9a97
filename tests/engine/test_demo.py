"""The demo, on a terminal and into a pipe."""

import io

import pytest

from pagedattn.demo import QUESTIONS, run_demo


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("out", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_answers_and_measures(smollm2_engine, out):
    run_demo(smollm2_engine, max_tokens=3, out=out)
    text = out.getvalue()
    assert len(QUESTIONS) >= 8
    for question in QUESTIONS:
        assert f"> {question}" in text
    for row in (
        "tokens/s",
        "time to first token",
        "inter-token latency",
        "prefix cache hit rate",
        "peak cache usage",
        "wasted slots, paged",
        "wasted slots, contiguous",
    ):
        assert row in text
    assert f"{len(QUESTIONS)}/{len(QUESTIONS)} answers" in text
