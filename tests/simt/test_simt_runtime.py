"""Runs the C++ tests of the SIMT runtime, among them the planted bugs that it has to catch."""

from __future__ import annotations

import os
import subprocess

import pytest

from . import build

pytestmark = pytest.mark.skipif(
    bool(build.missing_tools()), reason=f"no {', '.join(build.missing_tools())}"
)


@pytest.mark.parametrize("target", ["simt_tests", "simt_tests_asan"])
def test_runtime(target: str) -> None:
    """Messages of AddressSanitizer become findings that the tests expect, hence the options."""
    options = "halt_on_error=0:suppress_equal_pcs=0:detect_leaks=0:log_path=/dev/null"
    result = subprocess.run(
        [build.build(target) / target],
        env={**os.environ, "ASAN_OPTIONS": options},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
