"""Builds the op library `_C` (CPU kernels, and CUDA kernels where nvcc is) and `_block_manager`.

Environment: PAGEDATTN_CUDA=0|1 leaves out or demands the CUDA half, PAGEDATTN_CUDART=static|shared
says how libcudart is linked, TORCH_CUDA_ARCH_LIST and MAX_JOBS mean what they mean to every torch
extension.
"""

import json
import os
import platform
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from setuptools import Extension, setup
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parent
SOURCES = json.loads((ROOT / "csrc" / "sources.json").read_text())
# The oldest torch whose stable ABI has all that the ops use; a library built for it loads in every
# later one.
MIN_TORCH = (2, 10)
TARGET_MACRO = f"-DTORCH_TARGET_VERSION=0x{MIN_TORCH[0]:02x}{MIN_TORCH[1]:02x}000000000000ULL"
RELEASE_ARCHS = "7.5;8.0;8.9;9.0;10.0;12.0+PTX"
MIN_CUDA = (12, 8)  # the first that knows all of them

CXX_FLAGS = "-O3 -g0 -std=c++20 -fPIC -fvisibility=hidden -fvisibility-inlines-hidden".split()
# As system headers, torch's own raise none of these warnings.
CXX_FLAGS += ["-Wall", "-Wextra", *(f"-isystem{path}" for path in cpp_extension.include_paths())]
# Which loop the compiler chose to fuse must not show in a row's bits.
PER_ISA_FLAGS = ["-ffp-contract=off"]
NVCC_FLAGS = "-O3 -std=c++20 --expt-relaxed-constexpr -lineinfo".split()
NVCC_FLAGS += ["-Xcompiler", "-Wall,-Wextra,-fvisibility=hidden"]
NVCC_FLAGS += ["--compress-mode=size"]  # a fifth of the default's size, in the same time


def find_cuda_home() -> Path | None:
    """The CUDA toolkit: CUDA_HOME, CUDA_PATH, or what nvcc on PATH, perhaps a wrapper, says."""
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
    wish = os.environ.get("PAGEDATTN_CUDA") or "auto"
    if wish not in ("auto", "0", "1"):
        sys.exit(f"pagedattn: PAGEDATTN_CUDA must be 0 or 1, got {wish!r}")
    home = find_cuda_home()
    why_not = "PAGEDATTN_CUDA=0" if wish == "0" else reason_against(home)
    if why_not and wish == "1":
        sys.exit(f"pagedattn: PAGEDATTN_CUDA=1, but {why_not}")
    if why_not:
        print(f"pagedattn: building the CPU half only: {why_not}")
        return None
    print(f"pagedattn: building the CPU and CUDA halves: nvcc found in {home}")
    return home


def reason_against(home: Path | None) -> str:
    """Why the CUDA half cannot be built with this toolkit; empty if it can."""
    if home is None:
        return "no nvcc on PATH or in CUDA_HOME"
    version = cuda_version(home)
    found = f"nvcc in {home} is of CUDA {version[0]}.{version[1]}"
    if version < MIN_CUDA:
        return f"{found}, older than {MIN_CUDA[0]}.{MIN_CUDA[1]}"
    if torch.version.cuda and int(torch.version.cuda.split(".")[0]) != version[0]:
        return f"{found}, but torch was built with CUDA {torch.version.cuda}"
    return ""


def choose_archs() -> list[str]:
    """TORCH_CUDA_ARCH_LIST, else the archs of the GPUs at hand, else the release list."""
    named = os.environ.get("TORCH_CUDA_ARCH_LIST")
    if named:
        return named.replace(" ", ";").split(";")
    gpus = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return [f"{major}.{minor}" for major, minor in sorted(gpus)] or RELEASE_ARCHS.split(";")


def binary_names(archs: list[str]) -> list[str]:
    """["8.0", "9.0+PTX"] -> ["sm_80", "sm_90", "compute_90"]: bare words need no quoting."""
    names = []
    for arch in archs:
        number = arch.removesuffix("+PTX").replace(".", "")
        names += [f"sm_{number}"] + ([f"compute_{number}"] if arch.endswith("+PTX") else [])
    return names


def cuda_version(home: Path) -> tuple[int, int]:
    header = (home / "include" / "cuda_runtime_api.h").read_text()
    version = int(re.search(r"#define CUDART_VERSION\s+(\d+)", header).group(1))
    return version // 1000, version % 1000 // 10


def ops_extension():
    cxx_flags = [*CXX_FLAGS, TARGET_MACRO]
    sources = SOURCES["ops"] + SOURCES["cpu"]
    options = {}
    home = choose_cuda()
    if home:
        archs = choose_archs()
        os.environ["TORCH_CUDA_ARCH_LIST"] = ";".join(archs)
        cpp_extension.CUDA_HOME = str(home)  # a CPU-only torch sets None, whatever the environment
        cxx_flags += [
            "-DPAGEDATTN_WITH_CUDA",
            "-DPAGEDATTN_CUDA_VERSION={}.{}".format(*cuda_version(home)),
            f"-DPAGEDATTN_CUDA_ARCHS={','.join(binary_names(archs))}",
        ]
        sources = sources + SOURCES["cuda"]
        shared = os.environ.get("PAGEDATTN_CUDART") == "shared"
        options = {
            "include_dirs": [str(home / "include")],
            "library_dirs": [str(home / "lib64"), str(home / "lib")],
            "libraries": ["cudart"] if shared else ["cudart_static", "rt", "dl", "pthread"],
        }
    return cpp_extension.CppExtension(
        "pagedattn._C",
        sources,
        extra_compile_args={"cxx": cxx_flags, "nvcc": NVCC_FLAGS},
        **options,
    )


def block_manager_extension():
    # Of torch it uses pybind11's headers alone, and links nothing.
    return Extension(
        "pagedattn._block_manager",
        SOURCES["block_manager"],
        language="c++",
        extra_compile_args={"cxx": [*CXX_FLAGS, "-std=c++17"]},
    )


def is_newer(path, than: Path) -> bool:
    return not Path(path).exists() or Path(path).stat().st_mtime > than.stat().st_mtime


class BuildExtension(cpp_extension.BuildExtension):
    """Adds to `_C` the CPU kernels, compiled once for each instruction set."""

    def finalize_options(self):
        super().finalize_options()
        if self.inplace:  # also in an editable install: keep the objects for the next build
            self.build_temp = str(ROOT / "build" / "inplace")

    def build_extensions(self):
        jobs = [
            (isa, spec["flags"], source)
            for isa, spec in SOURCES["isas"].items()
            if {"any", platform.machine()} & set(spec["machines"])
            for source in spec.get("sources", SOURCES["cpu_per_isa"])
        ]
        workers = int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)
        ops = next(ext for ext in self.extensions if ext.name == "pagedattn._C")
        with ThreadPoolExecutor(workers) as pool:
            # Generic objects are linked first: of a weak symbol that several define, theirs stays.
            ops.extra_objects = list(pool.map(lambda job: self.compile_for_isa(*job), jobs))
        super().build_extensions()

    def compile_for_isa(self, isa: str, flags: list[str], source: str) -> str:
        target = Path(self.build_temp) / "isa" / isa / Path(source).with_suffix(".o")
        depfile = target.with_suffix(".d")  # "target: source header header \\\n header ..."
        needed = [ROOT / source, ROOT / "setup.py", ROOT / "csrc" / "sources.json"]
        if depfile.exists():
            needed += depfile.read_text().split(":", 1)[1].replace("\\\n", " ").split()
        if not depfile.exists() or not target.exists() or any(is_newer(f, target) for f in needed):
            target.parent.mkdir(parents=True, exist_ok=True)
            compiler = os.environ.get("CXX", "c++").split()
            command = [*compiler, *CXX_FLAGS, *PER_ISA_FLAGS, *flags, "-MMD", "-MF", str(depfile)]
            subprocess.run([*command, "-c", str(ROOT / source), "-o", str(target)], check=True)
        return str(target)


if tuple(int(part) for part in torch.__version__.split(".")[:2]) < MIN_TORCH:
    wanted = ".".join(map(str, MIN_TORCH))
    sys.exit(f"pagedattn needs torch >= {wanted} (its stable ABI); found {torch.__version__}")

setup(
    ext_modules=[ops_extension(), block_manager_extension()],
    cmdclass={"build_ext": BuildExtension},
)
