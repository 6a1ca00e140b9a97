"""Builds pagedattn: the op library `_C` (CPU kernels, and CUDA kernels where nvcc is) and `_block_manager`.

Environment: PAGEDATTN_CUDA=0|1 leaves out or demands the CUDA half, PAGEDATTN_CUDART=static|shared says how
libcudart is linked, TORCH_CUDA_ARCH_LIST and MAX_JOBS mean what they mean to every torch extension.
"""

import concurrent.futures
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from setuptools import setup
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parent
SOURCES = json.loads((ROOT / "csrc" / "sources.json").read_text())
MIN_TORCH = (2, 10)
RELEASE_ARCHS = "7.5;8.0;8.9;9.0;10.0;12.0+PTX"
CXX_FLAGS = ["-O3", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
# -Wextra's objections to torch's own headers are not ours to mend.
CXX_FLAGS += [f"-isystem{path}" for path in cpp_extension.include_paths()]
NVCC_FLAGS = ["-O3", "-std=c++20", "--expt-relaxed-constexpr", "-lineinfo", "-Werror", "all-warnings"]
NVCC_FLAGS += ["-Xcompiler", "-fvisibility=hidden"]
# The oldest torch whose stable ABI has all that the ops use; the library then loads in every later one.
TARGET_MACRO = f"-DTORCH_TARGET_VERSION=0x{MIN_TORCH[0]:02x}{MIN_TORCH[1]:02x}000000000000ULL"


def find_cuda_home() -> Path | None:
    """The CUDA toolkit: CUDA_HOME, CUDA_PATH, or what nvcc on PATH says (it may be a wrapper script)."""
    named = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    if named:
        return Path(named) if (Path(named) / "bin" / "nvcc").exists() else None
    if not shutil.which("nvcc"):
        return None
    plan = subprocess.run(
        ["nvcc", "--dryrun", "-x", "cu", os.devnull], capture_output=True, text=True, check=False
    )
    top = re.search(r"^#\$ TOP=(.+)$", plan.stderr, re.MULTILINE)
    return Path(top.group(1)).resolve() if top else None


def choose_cuda() -> Path | None:
    """The toolkit to build the CUDA half with, or None; prints which and why in one line."""
    wish = os.environ.get("PAGEDATTN_CUDA", "auto")
    if wish not in ("auto", "0", "1"):
        sys.exit(f"pagedattn: PAGEDATTN_CUDA must be 0 or 1, got {wish!r}")
    home = None if wish == "0" else find_cuda_home()
    if wish == "0":
        print("pagedattn: building the CPU half only: PAGEDATTN_CUDA=0")
    elif home:
        print(f"pagedattn: building the CPU and CUDA halves: nvcc found in {home}")
    elif wish == "1":
        sys.exit("pagedattn: PAGEDATTN_CUDA=1 but no nvcc was found; put it on PATH or set CUDA_HOME")
    else:
        print("pagedattn: building the CPU half only: no nvcc on PATH and no CUDA_HOME")
    return home


def choose_archs() -> str:
    """TORCH_CUDA_ARCH_LIST, else the archs of the GPUs at hand, else the release list."""
    named = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if named:
        return named.replace(" ", ";")
    gpus = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return ";".join(f"{major}.{minor}" for major, minor in sorted(gpus)) or RELEASE_ARCHS


def ops_extension():
    cxx_flags = [*CXX_FLAGS, TARGET_MACRO]
    sources = SOURCES["ops"] + SOURCES["cpu"]
    options = {}
    cuda_home = choose_cuda()
    if cuda_home:
        archs = choose_archs()
        os.environ["TORCH_CUDA_ARCH_LIST"] = archs
        cpp_extension.CUDA_HOME = str(cuda_home)  # None in a CPU-only torch, whatever the environment says
        version = re.search(r"#define CUDART_VERSION\s+(\d+)",
                            (cuda_home / "include" / "cuda_runtime_api.h").read_text())
        cxx_flags += [
            "-DPAGEDATTN_WITH_CUDA",
            f"-DPAGEDATTN_CUDA_VERSION={version.group(1) if version else 0}",
            # As bare words: a quoted string would have to survive setuptools, ninja and the shell.
            "-DPAGEDATTN_CUDA_ARCHS=" + ",".join(
                ("compute_" if arch.endswith("+PTX") else "sm_") + arch.removesuffix("+PTX").replace(".", "")
                for arch in archs.split(";")
            ),
        ]
        shared = os.environ.get("PAGEDATTN_CUDART", "static") == "shared"
        sources = sources + SOURCES["cuda"]
        options = {
            "include_dirs": [str(cuda_home / "include")],
            "library_dirs": [str(cuda_home / "lib64"), str(cuda_home / "lib")],
            "libraries": ["cudart"] if shared else ["cudart_static", "rt", "dl", "pthread"],
        }
    return cpp_extension.CppExtension(
        "pagedattn._C",
        sources,
        extra_compile_args={"cxx": cxx_flags, "nvcc": NVCC_FLAGS},
        **options,
    )


def block_manager_extension():
    # pybind11's headers come with torch; the code itself knows no torch.
    return cpp_extension.CppExtension(
        "pagedattn._block_manager",
        SOURCES["block_manager"],
        extra_compile_args={"cxx": [*CXX_FLAGS, "-std=c++17"]},
        libraries=[],
    )


class BuildExtension(cpp_extension.BuildExtension):
    """Adds to `_C` the CPU kernels, compiled once for each instruction set."""

    def finalize_options(self):
        super().finalize_options()
        if self.inplace:  # also in an editable install: keep objects, so that a rebuild is incremental
            self.build_temp = str(ROOT / "build" / "inplace")

    def build_extensions(self):
        ops = next(ext for ext in self.extensions if ext.name == "pagedattn._C")
        jobs = []
        for isa, spec in SOURCES["isas"].items():
            if "any" in spec["machines"] or platform.machine() in spec["machines"]:
                jobs += [(isa, spec["flags"], source) for source in SOURCES["cpu_per_isa"]]
        workers = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
        with concurrent.futures.ThreadPoolExecutor(workers) as pool:
            # The generic objects are linked first: where several define the same weak symbol, theirs is kept.
            ops.extra_objects = list(pool.map(lambda job: self.compile_for_isa(*job), jobs))
        super().build_extensions()

    def compile_for_isa(self, isa: str, flags: list[str], source: str) -> str:
        target = Path(self.build_temp) / "isa" / isa / Path(source).with_suffix(".o")
        headers = (ROOT / "csrc").rglob("*.h")
        newest = max(path.stat().st_mtime for path in [ROOT / source, ROOT / "setup.py", *headers])
        if not target.exists() or target.stat().st_mtime < newest:
            target.parent.mkdir(parents=True, exist_ok=True)
            compiler = os.environ.get("CXX", "c++").split()
            command = [*compiler, *CXX_FLAGS, TARGET_MACRO, *flags, "-c", str(ROOT / source), "-o", str(target)]
            print(" ".join(command))
            subprocess.run(command, check=True)
        return str(target)


if tuple(int(part) for part in torch.__version__.split(".")[:2]) < MIN_TORCH:
    sys.exit(f"pagedattn needs torch >= {MIN_TORCH[0]}.{MIN_TORCH[1]} (its stable ABI); found {torch.__version__}")

setup(
    ext_modules=[ops_extension(), block_manager_extension()],
    cmdclass={"build_ext": BuildExtension},
)
