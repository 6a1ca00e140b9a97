"""The CPU kernels of each instruction set that this CPU has: the best one is what all other tests
run on, and a process chooses once, so the others get processes of their own."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from pagedattn import ops

HERE = Path(__file__).parent
REPRESENTATIVE = (
    "test_decode.py::test_every_head_dim",
    "test_decode.py::test_v2_partials",
    "test_decode.py::test_keys_and_values_may_differ_in_layout_and_kind_of_scale",
    "test_varlen.py::test_rows_before_the_first_key_see_nothing_unless_noncausal",
    "test_varlen.py::test_a_tree_mask_overrides_causal",
    "test_prefill.py",
    "test_accuracy.py",
    "test_quantized.py::test_every_code_is_read_exactly",
    "test_merge.py",
    "test_reshape_and_cache.py::test_matches_the_reference_exactly",
    "test_gather_cache.py::test_a_dtype_dequantises_or_converts",
)
X86_ONLY = ("avx2", "avx512", "avx512_bf16", "avx512_amx")
COMPILED = ("generic", *(X86_ONLY if platform.machine() in ("x86_64", "AMD64") else ()))
COPY = """
import torch, pagedattn
cache = torch.zeros(2, 8, 1, 32)
torch.ops.pagedattn.copy_blocks([cache], [cache.clone()], torch.tensor([[0, 1]]))
print(pagedattn.ops.build_info().cpu_isa)
"""


def run_python(isa: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PAGEDATTN_CPU_ISA": isa, "PAGEDATTN_TEST_BACKENDS": "cpu"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("isa", COMPILED)
def test_representative_tests_pass(isa: str):
    if ops.build_info().cpu_isa == isa:
        pytest.skip("all other tests run on it")
    probe = run_python(isa, "-c", COPY)
    if "does not have that instruction set" in probe.stderr:
        pytest.skip("this CPU does not have it")
    assert probe.stdout.strip() == isa, probe.stderr
    tests = [str(HERE / name) for name in REPRESENTATIVE]
    result = run_python(isa, "-m", "pytest", "-q", "-x", *tests)
    assert result.returncode == 0, result.stdout[-4000:]


def test_an_unknown_instruction_set_is_refused_by_name():
    probe = run_python("mmx", "-c", COPY)
    assert "RuntimeError: PAGEDATTN_CPU_ISA=mmx: unknown instruction set" in probe.stderr
