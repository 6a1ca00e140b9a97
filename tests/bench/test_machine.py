"""What is recorded about the machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bench import machine


@pytest.fixture(autouse=True)
def _gpu(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid=f"uuid-{device}")
    )


def install(directory: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program nvidia-smi."""
    program = directory / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory))


def test_clocks_are_those_of_the_current_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    script = '[ "$1" = --id=GPU-uuid-1 ] && echo "1980 MHz, 3201 MHz, 41, 310.50 W"'
    install(tmp_path, script, monkeypatch)
    assert machine.clocks() == {
        "clocks.sm": "1980 MHz",
        "clocks.mem": "3201 MHz",
        "temperature.gpu": "41",
        "power.draw": "310.50 W",
    }


def test_nothing_is_ever_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    install(tmp_path, f'echo "$@" > {tmp_path}/asked; echo 1, 2, 3, 4', monkeypatch)
    machine.clocks()
    asked = (tmp_path / "asked").read_text().split()
    assert [word.split("=")[0] for word in asked] == ["--id", "--query-gpu", "--format"]


@pytest.mark.parametrize("script", ["exit 1", None])
def test_what_cannot_be_asked_is_unknown(
    script: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("PATH", str(tmp_path))
    if script is not None:
        install(tmp_path, script, monkeypatch)
    assert set(machine.clocks().values()) == {"unknown"}
