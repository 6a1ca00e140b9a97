"""What the built op library may and may not depend on."""

import ctypes
import importlib.util
import os
import shutil
import subprocess
import sys

import pytest

from pagedattn.ops import build_info


def library() -> str:
    spec = importlib.util.find_spec("pagedattn._C")
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


@pytest.mark.skipif(shutil.which("nm") is None, reason="needs binutils")
def test_no_symbol_of_torchs_cuda_libraries_is_needed() -> None:
    """One library serves CPU-only and CUDA builds of torch."""
    listing = subprocess.run(
        ["nm", "-D", "--undefined-only", library()], capture_output=True, text=True, check=True
    ).stdout
    needed = [line.split()[-1] for line in listing.splitlines()]
    assert "torch_parallel_for" in needed  # the listing is what we think it is
    assert [name for name in needed if "c10_cuda" in name or "torch_cuda" in name] == []


def test_every_symbol_resolves_at_once() -> None:
    ctypes.CDLL(library(), mode=os.RTLD_NOW)


def test_build_info_names_the_instruction_set_in_use() -> None:
    info = build_info()
    assert info.cpu_isa in ("generic", "avx2", "avx512", "avx512_bf16", "avx512_amx")
    assert (info.cuda_version is None) == (not info.cuda_archs)


def test_an_impossible_instruction_set_is_a_clear_error() -> None:
    program = "from pagedattn.ops import build_info; build_info()"
    environment = {**os.environ, "PAGEDATTN_CPU_ISA": "mmx"}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 1
    assert "ValueError: PAGEDATTN_CPU_ISA=mmx: unknown instruction set, want one of" in run.stderr
