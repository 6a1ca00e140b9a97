"""`python -m bench`: each subject end to end on tiny shapes, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench import attention, cache, peers
from bench.__main__ import main
from bench.measure import Contestant

QUICK = ["--seconds", "0", "--threads", "1"]


@pytest.fixture(autouse=True)
def _threads_as_before(tiny: None):
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("subject", ["decode", "prefill"])
def test_attention_beside_its_limit_and_sdpa(
    subject: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main([subject, "--peers", "sdpa", "--json", str(tmp_path), *QUICK]) == 0
    table = capsys.readouterr().out
    (file,) = tmp_path.glob("*.json")
    content = json.loads(file.read_text())
    assert content["machine"]["threads"] == 1
    (group,) = content["groups"]
    names = [timing["name"] for timing in group["timings"]]
    assert names[1] == "pagedattn"
    assert {"SDPA contiguous", "gather + SDPA"} <= set(names)
    assert all(timing["median"] > 0 for timing in group["timings"])
    assert all(name in table for name in names)


def test_the_choice_between_v1_and_v2_is_marked(capsys: pytest.CaptureFixture[str]):
    assert main(["decode", "--peers", "none", *QUICK]) == 0
    assert "<- the choice" in capsys.readouterr().out


def test_plots_are_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    assert main(["decode", "--peers", "none", "--plot", str(tmp_path), *QUICK]) == 0
    png, svg = sorted(tmp_path.iterdir())
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in svg.read_text()


@pytest.mark.parametrize("words", ["bf16 NHD", "swap_blocks"])
def test_cache(words: str, capsys: pytest.CaptureFixture[str]):
    assert main(["cache", "--only", words, *QUICK]) == 0
    assert "memcpy" in capsys.readouterr().out


def test_cascade(capsys: pytest.CaptureFixture[str]):
    assert main(["cascade", *QUICK]) == 0
    table = capsys.readouterr().out
    assert "two passes" in table
    assert "one pass" in table


@pytest.mark.parametrize("words", ["allocate prompt", "free", "decode"])
def test_block_manager(words: str, capsys: pytest.CaptureFixture[str]):
    assert main(["block_manager", "--peers", "none", "--only", words, *QUICK]) == 0
    assert "median" in capsys.readouterr().out


@pytest.mark.parametrize("subject", ["decode", "block_manager"])
def test_a_peer_that_fails_is_left_out_in_one_line(
    subject: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(problem: object) -> list[Contestant]:
        raise OSError("no such engine\nand a thousand lines more")

    peer = SimpleNamespace(contestants=fail)
    monkeypatch.setattr(peers, "choose", lambda *_: ({"broken": peer}, {}))
    assert main([subject, "--only", "free" if subject == "block_manager" else "", *QUICK]) == 0
    printed = capsys.readouterr()
    assert "median" in printed.out
    assert "broken left out: no such engine" in printed.err
    assert "thousand" not in printed.err


def test_words_that_no_case_has(capsys: pytest.CaptureFixture[str]):
    assert main(["decode", "--peers", "none", "--only", "nonsense", *QUICK]) == 0
    assert "no case has all of the words 'nonsense'" in capsys.readouterr().err


def test_an_unknown_peer_is_refused(capsys: pytest.CaptureFixture[str]):
    assert main(["decode", "--peers", "nobody", *QUICK]) == 2
    assert "'nobody'" in capsys.readouterr().err


def test_a_kernel_that_is_wrong_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    ops = torch.ops.pagedattn
    wrong = SimpleNamespace(
        paged_attention=lambda query, *args, **kwargs: query.clone(),
        paged_attention_v1=ops.paged_attention_v1,
        paged_attention_v2=ops.paged_attention_v2,
    )
    monkeypatch.setattr(attention, "_ops", wrong)
    assert main(["decode", "--peers", "none", *QUICK]) == 1
    captured = capsys.readouterr()
    assert "wrong result: pagedattn is off" in captured.err
    assert "median" not in captured.out


def test_a_cache_op_that_is_wrong_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    idle = SimpleNamespace(reshape_and_cache=lambda *args: None)
    monkeypatch.setattr(cache, "_ops", idle)
    assert main(["cache", "--only", "reshape_and_cache", *QUICK]) == 1
    assert "reshape_and_cache did not move" in capsys.readouterr().err
