"""The command line."""

import pytest

from pagedattn.cli import main


def test_info_says_what_is_installed(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for part in ("pagedattn", "torch", "CUDA half", "CPU kernels", "devices"):
        assert part in out


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
