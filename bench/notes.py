"""What is said beside the results."""

from __future__ import annotations

import sys


def note(line: str) -> None:
    print(line, file=sys.stderr)


def note_left_out(what: str, error: Exception) -> None:
    """Says in a line why something is not among the results."""
    note(f"{what} left out: {first_line(error)}")


def first_line(error: Exception) -> str:
    """Of an error's text; a compiler's complaints have thousands."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0]
