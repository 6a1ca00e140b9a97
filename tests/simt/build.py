"""Builds csrc/simt: its C++ tests, and the library that registers torch.ops.pagedattn_simt.

Needs g++, CMake, Ninja and the CUDA toolkit's headers (no nvcc, no GPU). From the command line:
`python tests/simt/build.py [TARGET...]`. PAGEDATTN_SIMT_VARIANT builds the library with
AddressSanitizer (`asan`; to be used under LD_PRELOAD=libasan.so) or for gcov (`coverage`).
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def missing_tools() -> list[str]:
    """What a build would lack; empty: it can be built here."""
    tools = ("g++", "cmake", "ninja")
    missing = [tool for tool in tools if shutil.which(tool, path=_path()) is None]
    cuda_home = Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda")
    if not (cuda_home / "include" / "cuda_fp8.h").exists():
        missing.append("the CUDA toolkit's headers (set CUDA_HOME)")
    return missing


def folder() -> Path:
    """Where the variant that the environment names is built."""
    variant = os.environ.get("PAGEDATTN_SIMT_VARIANT", "")
    if variant not in ("", "asan", "coverage"):
        raise ValueError(f"PAGEDATTN_SIMT_VARIANT is {variant!r}, not asan or coverage")
    return ROOT / "build" / "-".join(filter(None, ("cpp", variant)))


def build(*targets: str) -> Path:
    """Brings the targets up to date and returns the folder that they are in.

    Raises:
        subprocess.CalledProcessError: the build failed; its output has gone to stderr.
    """
    # LD_PRELOAD is meant for this process, not for compilers.
    environment = {**os.environ, "PATH": _path(), "LD_PRELOAD": ""}
    configure = ["cmake", "-S", str(ROOT), "-B", str(folder()), "-G", "Ninja"]
    configure += [f"-DPython_EXECUTABLE={sys.executable}"]
    configure += [f"-DSIMT_VARIANT={os.environ.get('PAGEDATTN_SIMT_VARIANT', '')}"]
    make = ["cmake", "--build", str(folder()), "--target", *targets]
    for command in (configure, make):
        subprocess.run(command, env=environment, stdout=sys.stderr, check=True)
    return folder()


@functools.cache
def load_ops() -> Any:
    """Builds and loads the library once per process; returns torch.ops.pagedattn_simt."""
    import torch

    torch.ops.load_library(build("pagedattn_simt") / "pagedattn_simt.so")
    return torch.ops.pagedattn_simt


def _path() -> str:
    """Tools that pip installed beside this interpreter count as well."""
    return os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])


if __name__ == "__main__":
    print(build(*(sys.argv[1:] or ["all"])))
