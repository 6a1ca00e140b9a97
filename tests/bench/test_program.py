"""`python -m bench`: each subject end to end on tiny shapes, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench import attention, cache, memory, peers, presets
from bench.__main__ import main
from bench.measure import Contestant

QUICK = ["--preset", "smoke", "--seconds", "0", "--threads", "1"]
SPLIT = ["decode", "--only", "1x4096", "--peers", "none", *QUICK, "--threads", "2"]  # 1: not split
ONE = {"decode": "2x40 fp32", "prefill": "q24"}  # words of one case of each


@pytest.fixture(autouse=True)
def _threads_as_before(tiny: None):
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("subject", ["decode", "prefill"])
def test_attention_beside_its_limit_and_sdpa(
    subject: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    arguments = ["--only", ONE[subject], "--peers", "sdpa", "--json", str(tmp_path)]
    assert main([subject, *arguments, *QUICK]) == 0
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
    assert ("GB/s" in table) == (subject == "decode")


@pytest.mark.parametrize("subject", ["decode", "prefill"])
def test_every_case_runs(subject: str, capsys: pytest.CaptureFixture[str]):
    assert main([subject, "--peers", "none", *QUICK]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert all(case.title in printed.out for case in presets.cases(subject, "smoke"))


def test_the_choice_between_v1_and_v2_is_marked(capsys: pytest.CaptureFixture[str]):
    assert main(SPLIT) == 0
    lines = capsys.readouterr().out.splitlines()
    (choice,) = (line for line in lines if "<- the choice" in line)
    assert choice.startswith("V2, partitions of 256 ")


def test_a_choice_beside_the_usual_ones_is_found_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr(attention, "PARTITION_SIZES", (1024,))
    assert main(SPLIT) == 0
    assert "V2, partitions of 256 " in capsys.readouterr().out


def test_what_does_not_fit_is_left_out_with_a_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    enough = memory.LEFT_ALONE + (1 << 20)  # for all but one
    monkeypatch.setattr(memory, "available", lambda device: enough)
    assert main(["decode", "--peers", "none", *QUICK]) == 0
    printed = capsys.readouterr()
    (line,) = printed.err.splitlines()
    assert line.startswith("1x4096 bf16 4/2 d64 block16 HND [smoke] left out: needs 0.0 GiB")
    assert "2x40 fp32" in printed.out


def test_memory_runs_out_all_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def fail(*args: object) -> None:
        raise torch.OutOfMemoryError("Tried to allocate 20.00 GiB.\nAnd advice.")

    monkeypatch.setattr(attention, "build", fail)
    assert main(["decode", "--only", ONE["decode"], "--peers", "none", *QUICK]) == 0
    assert "left out: Tried to allocate 20.00 GiB.\n" in capsys.readouterr().err


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize(
    ("subject", "words", "columns"),
    [
        ("decode", "", {"copy of as many bytes", "pagedattn", "V1", "pagedattn, blocks in order"}),
        ("prefill", "", {"matmul of equal work", "pagedattn"}),
        ("cache", "16 bf16 NHD", {"memcpy", "memcpy to the host", "pagedattn"}),
        ("cascade", "", {"copy of as many bytes", "one pass", "two passes"}),
        ("block_manager", "free", {"2,000 blocks"}),
    ],
)
def test_every_subject_runs_on_a_gpu(subject: str, words: str, columns: set[str], tmp_path: Path):
    arguments = ["--device", "cuda", "--peers", "none", "--json", str(tmp_path)]
    assert main([subject, "--only", words, *arguments, *QUICK]) == 0
    (file,) = tmp_path.glob("*.json")
    content = json.loads(file.read_text())
    assert content["machine"]["gpu"]
    assert "clocks.max.sm" in content["machine"]
    groups = content["groups"]
    assert all("clocks.sm" in group["facts"]["just after"] for group in groups)
    assert columns <= {timing["name"] for group in groups for timing in group["timings"]}
    for group in groups:
        assert not any("without a graph" in timing["note"] for timing in group["timings"][1:2])


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_a_gpu_that_is_not_there_is_said_so(capsys: pytest.CaptureFixture[str]):
    assert main(["decode", "--device", "cuda", *QUICK]) == 2
    assert "sees no GPU" in capsys.readouterr().err


def test_plots_are_drawn(tmp_path: Path):
    pytest.importorskip("matplotlib")
    arguments = ["--only", "1x4096", "--peers", "none", "--plot", str(tmp_path)]
    assert main(["decode", *arguments, *QUICK]) == 0
    png, svg = sorted(tmp_path.iterdir())
    assert png.read_bytes().startswith(b"\x89PNG")
    assert "<!-- the choice -->" in svg.read_text()


@pytest.mark.parametrize("words", ["16 bf16 NHD", "1024 fp32 HND", "swap_blocks 16"])
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
    words = "free" if subject == "block_manager" else ONE[subject]
    assert main([subject, "--only", words, *QUICK]) == 0
    printed = capsys.readouterr()
    assert "median" in printed.out
    assert "broken left out: no such engine" in printed.err
    assert "thousand" not in printed.err


def test_words_that_no_case_has(capsys: pytest.CaptureFixture[str]):
    assert main(["decode", "--peers", "none", "--only", "nonsense", *QUICK]) == 0
    assert "no results for --only 'nonsense'" in capsys.readouterr().err


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
    assert main(["decode", "--only", ONE["decode"], "--peers", "none", *QUICK]) == 1
    captured = capsys.readouterr()
    assert "wrong result: pagedattn is off" in captured.err
    assert "median" not in captured.out


def test_a_cache_op_that_is_wrong_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    idle = SimpleNamespace(reshape_and_cache=lambda *args: None)
    monkeypatch.setattr(cache, "_ops", idle)
    assert main(["cache", "--only", "reshape_and_cache 16", *QUICK]) == 1
    assert "reshape_and_cache did not move" in capsys.readouterr().err
