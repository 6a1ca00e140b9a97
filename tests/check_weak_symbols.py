"""Checks that objects compiled for one instruction set cannot leak code into the others.

The CPU kernels are compiled once per instruction set. Where two objects define the same weak
symbol (an inline function or a template), the linker keeps one of them for everybody: were it the
AVX512 build, the library would die of SIGILL on a CPU without AVX512. So a weak function in such an
object must carry its instruction set in its name, which makes it a symbol of its own. Code that
runs while the library is loaded, before any choice, must not use vector registers.

    python tests/check_weak_symbols.py avx2 build/**/avx2/*.o
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

VECTOR_REGISTER = re.compile(r"%[xyz]mm\d")


def run(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def weak_functions(nm_output: str) -> list[str]:
    """Demangled names of the weak definitions in the output of `nm -C --defined-only`."""
    names = []
    for line in nm_output.splitlines():
        fields = line.split(maxsplit=2)
        if len(fields) == 3 and fields[1] in ("W", "V", "u"):
            names.append(fields[2])
    return names


def leaks(names: Iterable[str], isa: str) -> list[str]:
    """Those of `names` that another object could define as well."""
    # DW.ref.* is no code: a pointer to the unwinder's routine.
    own = re.compile(rf"\bpagedattn::{isa}::|\bat::vec::{isa.upper()}::|^DW\.ref\.")
    return [name for name in names if not own.search(name)]


def vector_initialisers(disassembly: str) -> list[str]:
    """Static initialisers in the output of `objdump -d` that touch a vector register."""
    found = []
    for function in disassembly.split("\n\n"):
        name = re.search(r"<(_GLOBAL__sub_I_[^>]*|__static_initialization[^>]*)>:", function)
        if name and VECTOR_REGISTER.search(function):
            found.append(name.group(1))
    return found


def main(isa: str, objects: list[str]) -> int:
    if not objects:
        print(f"no objects of {isa} given")
        return 2
    problems = 0
    for path in map(Path, objects):
        nm_output = run("nm", "-C", "--defined-only", str(path))
        for name in leaks(weak_functions(nm_output), isa):
            print(f"{path}: weak outside of its instruction set: {name}")
            problems += 1
        for name in vector_initialisers(run("objdump", "-d", "--no-show-raw-insn", str(path))):
            print(f"{path}: uses vector registers at load time: {name}")
            problems += 1
    if problems == 0:
        print(f"{isa}: {len(objects)} objects, nothing leaks")
    return int(problems > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
