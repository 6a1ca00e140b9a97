"""The README's snippet runs as it stands."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def test_the_snippet_runs_and_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    snippet = re.search(r"runs this -->\n```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert snippet is not None
    promised = re.search(r"print\(.*\)  # (.*)", snippet.group(1))
    assert promised is not None
    exec(compile(snippet.group(1), "README.md", "exec"), {})
    assert capsys.readouterr().out.strip() == promised.group(1)
