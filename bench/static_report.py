"""What ptxas made of the kernels: a report, and with --check a gate, that needs no GPU.

For every kernel and architecture in a library or object file: registers, spills, local and shared
memory. For the tensor-core decode kernels also resident CTAs, the hot path of the main loop, its
instructions by class and per kilobyte of K and V, and the rate at which an SM could issue it beside
the rate at which memory delivers. For the tensor-core varlen kernels, of the hot path of each row
tile, its instructions by class and the share of them that are mma. `cuobjdump` and `nvdisasm` come
with the CUDA toolkit and as the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm.

    python bench/static_report.py pagedattn/_C*.so --check
"""

from __future__ import annotations

import argparse
import collections
import functools
import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path

# An H200 has 132 SMs at 1.98 GHz and 4.8 TB/s; an SM issues up to 4 warp instructions per clock.
HBM_BYTES_PER_CLOCK_PER_SM = 4.8e12 / 132 / 1.98e9
ISSUE_SLOTS_PER_CLOCK = 4
LDGSTS_BYTES = 32 * 16  # a warp's 16-byte copies
MIN_ISSUE_TO_HBM = 5.0
MIN_ISSUE_TO_HBM_8BIT = 1.5  # half the bytes, and their conversion
# By what the cache holds and head_dim, of the instructions of a varlen kernel's largest row tile.
MIN_MMA_SHARE = {
    "16 bits": {64: 0.2, 96: 0.28, 128: 0.33, 192: 0.3, 256: 0.35},
    "e5m2": {64: 0.18, 128: 0.26, 256: 0.26},
    "int8": {64: 0.16, 128: 0.24, 256: 0.22},
    "e4m3": {64: 0.13, 128: 0.19, 256: 0.16},
}
SHARED_BYTES_PER_SM = {
    80: 164 << 10,
    86: 100 << 10,
    89: 100 << 10,
    90: 228 << 10,
    100: 228 << 10,
    120: 100 << 10,
}
RESERVED_SHARED_BYTES = 1 << 10  # per CTA

LEAVING = ("BRA", "EXIT", "RET", "BRX")
INSTRUCTION_CLASSES = {
    "mma": r"HMMA",
    "ldmatrix": r"LDSM",
    "cp.async": r"LDGSTS",
    "exp": r"MUFU",
    "float": r"F(FMA|MUL|ADD|MNMX|SETP|SEL)",
    "convert": r"F2F|I2F|F2I|I2FP",
    "exchange": r"SHFL|MOVM|VOTE",
    "memory": r"LD|ST|RED|ATOM",
    "barrier": r"BAR|DEPBAR|WARPSYNC",
    "branch": r"BRA|BRX|BSSY|BSYNC|CALL|RET|EXIT",
    "integer": r"IMAD|IADD|ISETP|IMNMX|IABS|LEA|LOP|SHF|SEL|PRMT|PLOP|MOV|U[A-Z]|R2UR|S2|CS2R"
    r"|VIADD|VIMNMX|FLO",
}


@dataclass(frozen=True)
class Instruction:
    address: int
    predicate: str
    opcode: str
    target: int | None  # of a branch, or of a predicated call, which is how loops may be left

    @property
    def pads(self) -> bool:
        """Whether it does nothing, as what ptxas puts between dependent HMMAs."""
        return self.opcode == "NOP" or self.predicate in ("@!PT", "@!UPT")

    @property
    def leaves(self) -> bool:
        """Whether control never falls through to the next instruction.

        BRA.DIV does: it is taken by warps that have diverged before a shuffle.
        """
        name = self.opcode.split(".")[0]
        return not self.predicate and name in LEAVING and ".DIV" not in self.opcode


@dataclass
class Kernel:
    name: str
    arch: int
    code: list[Instruction]
    resources: dict[str, int]

    def count(self, pattern: str) -> int:
        return sum(bool(re.match(pattern, i.opcode)) for i in self.code)


# ---------------------------------------------------------------- reading cubins


def find_tool(name: str) -> str:
    """On PATH, or in the folder where NVIDIA's packages put it."""
    site = Path(sysconfig.get_paths()["purelib"])
    candidates = [
        shutil.which(name),
        *site.glob(f"nvidia/*/bin/{name}"),
        *site.glob(f"triton/backends/nvidia/bin/{name}"),
    ]
    for candidate in candidates:
        if candidate:
            return str(candidate)
    sys.exit(
        f"static_report: {name} not found; it comes with the CUDA toolkit and the package "
        f"nvidia-cuda-{name}"
    )


def cuobjdump(*arguments: str, cwd: str | None = None) -> str:
    environment = dict(os.environ)
    environment["PATH"] += os.pathsep + str(Path(find_tool("nvdisasm")).parent)
    done = subprocess.run(
        [find_tool("cuobjdump"), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    if done.returncode:
        sys.exit(f"static_report: cuobjdump failed: {done.stderr.strip()}")
    return done.stdout


SASS_LINE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(@!?U?P\w+)?\s*([A-Z][\w.]*)\s*(.*?);")


def parse_code(sass: str) -> dict[str, list[Instruction]]:
    functions: dict[str, list[Instruction]] = {}
    code: list[Instruction] = []
    for line in sass.splitlines():
        if header := re.search(r"Function : (\S+)", line):
            code = functions.setdefault(header[1], [])
        elif found := SASS_LINE.match(line):
            address, predicate, opcode, operands = found.groups()
            jumps = opcode.startswith("BRA") and ".DIV" not in opcode
            jumps |= opcode.startswith("CALL") and bool(predicate)
            found_target = re.search(r"0x([0-9a-f]+)", operands) if jumps else None
            target = int(found_target[1], 16) if found_target else None
            code.append(Instruction(int(address, 16), predicate or "", opcode, target))
    return functions


def read_kernels(path: Path) -> list[Kernel]:
    """All kernels of a library, object file or cubin, for every architecture in it."""
    kernels = []
    with tempfile.TemporaryDirectory() as folder:
        cubins = [path.resolve()]
        if path.suffix != ".cubin":
            cuobjdump("-xelf", "all", str(path.resolve()), cwd=folder)
            cubins = sorted(Path(folder).glob("*.cubin"))
        for cubin in cubins:
            usage = cuobjdump("-res-usage", str(cubin))
            arch = re.search(r"arch = sm_(\d+)", usage) or re.search(r"sm_(\d+)", cubin.name)
            resources = {}
            for name, line in re.findall(r"Function (\S+):\s*\n\s*(REG.*)", usage):
                counts = re.findall(r"(\w+)(?:\[\d+\])?:(\d+)", line)
                resources[name] = {key: int(value) for key, value in counts}
            for name, code in parse_code(cuobjdump("-sass", str(cubin))).items():
                number = int(arch[1]) if arch else 0
                kernels.append(Kernel(demangle(name), number, code, resources.get(name, {})))
    return kernels


def demangle(name: str) -> str:
    done = subprocess.run(["c++filt", name], capture_output=True, text=True, check=True)
    signature = done.stdout.strip().removeprefix("void ").removeprefix("pagedattn::")
    return re.split(r"\((?!pagedattn::GroupClass)", signature)[0]


# ---------------------------------------------------------------- the hot path


class Flow:
    """Basic blocks of a kernel. For paths, BSYNC continues behind itself and CALL returns."""

    def __init__(self, code: list[Instruction]):
        leaders = {code[0].address} | {i.target for i in code if i.target is not None}
        leaders |= {
            b.address for a, b in itertools.pairwise(code) if a.target is not None or a.leaves
        }
        self.blocks: dict[int, list[Instruction]] = {}
        for instruction in code:
            if instruction.address in leaders:
                block = self.blocks.setdefault(instruction.address, [])
            block.append(instruction)
        order = sorted(self.blocks)
        self.successors: dict[int, list[int]] = {}
        for start, following in zip(order, [*order[1:], None], strict=True):
            last = self.blocks[start][-1]
            self.successors[start] = [last.target] if last.target in self.blocks else []
            if following is not None and not last.leaves:
                self.successors[start].append(following)
        self.entry = code[0].address

    def reachable(self) -> list[int]:
        """In reverse postorder."""
        seen, postorder, stack = {self.entry}, [], [(self.entry, iter(self.successors[self.entry]))]
        while stack:
            node, rest = stack[-1]
            child = next((c for c in rest if c not in seen), None)
            if child is None:
                postorder.append(node)
                stack.pop()
            else:
                seen.add(child)
                stack.append((child, iter(self.successors[child])))
        return postorder[::-1]

    def loops(self) -> dict[int, set[int]]:
        """Natural loops: header -> blocks."""
        order = self.reachable()
        predecessors = collections.defaultdict(list)
        for node in order:
            for child in self.successors[node]:
                predecessors[child].append(node)
        dominators = {node: set(order) for node in order}
        dominators[self.entry] = {self.entry}
        changed = True
        while changed:
            changed = False
            for node in order[1:]:
                new = set.intersection(*(dominators[p] for p in predecessors[node])) | {node}
                changed |= new != dominators[node]
                dominators[node] = new
        loops: dict[int, set[int]] = {}
        for node in order:
            for header in self.successors[node]:
                if header in dominators[node]:
                    body, todo = {header}, [node]
                    while todo:
                        block = todo.pop()
                        if block not in body:
                            body.add(block)
                            todo += predecessors[block]
                    loops.setdefault(header, set()).update(body)
        return loops

    def hot_path(self, header: int, body: set[int]) -> list[Instruction]:
        """Of the ways once around a loop that do all of its work, the shortest.

        Slow paths only add instructions to it.
        """
        order = [node for node in self.reachable() if node in body]
        position = {node: i for i, node in enumerate(order)}
        work = {
            node: sum(bool(re.match(r"HMMA|LDGSTS|LDSM", i.opcode)) for i in self.blocks[node])
            for node in order
        }
        best: dict[int, tuple[int, int, list[int]]] = {}
        for node in reversed(order):
            ahead: list[tuple[int, int, list[int]]] = []
            for child in self.successors[node]:
                if child == header:
                    ahead.append((0, 0, []))
                elif child in best and position[child] > position[node]:
                    ahead.append(best[child])
            if ahead:
                done, minus_length, path = max(ahead, key=lambda option: option[:2])
                length = minus_length - len(self.blocks[node])
                best[node] = (done + work[node], length, [node, *path])
        blocks = best[header][2] if header in best else []
        return [i for block in blocks for i in self.blocks[block] if not i.pads]

    def shortest_path(
        self, header: int, body: set[int], work: dict[str, int]
    ) -> list[Instruction] | None:
        """Of the ways once around a loop with exactly `work`, opcode -> count, the shortest."""
        order = [node for node in self.reachable() if node in body]
        position = {node: i for i, node in enumerate(order)}
        wanted = tuple(work.values())
        # node -> what is done from there on -> (length, nodes)
        best: dict[int, dict[tuple[int, ...], tuple[int, list[int]]]] = {}
        for node in reversed(order):
            own = [sum(i.opcode.startswith(name) for i in self.blocks[node]) for name in work]
            paths: dict[tuple[int, ...], tuple[int, list[int]]] = {}
            for child in self.successors[node]:
                ahead = best.get(child, {}) if position.get(child, -1) > position[node] else {}
                if child == header:
                    ahead = {(0,) * len(work): (0, [])}
                for done, (length, nodes) in ahead.items():
                    total = tuple(a + b for a, b in zip(own, done, strict=True))
                    option = (length + len(self.blocks[node]), [node, *nodes])
                    if any(a > b for a, b in zip(total, wanted, strict=True)):
                        continue
                    paths[total] = min(paths.get(total, option), option, key=lambda o: o[0])
            best[node] = paths
        if wanted not in best[header]:
            return None
        blocks = best[header][wanted][1]
        return [i for block in blocks for i in self.blocks[block] if not i.pads]


@dataclass(frozen=True)
class HotPath:
    instructions: list[Instruction]  # one step of a warp: its own tile loaded, one tile computed
    team_instructions: list[Instruction]  # what each further tile of the team adds

    @property
    def tile_bytes(self) -> int:
        return LDGSTS_BYTES * sum(i.opcode.startswith("LDGSTS") for i in self.instructions)

    def per_kilobyte(self, team_warps: int) -> float:
        count = len(self.instructions) + (team_warps - 1) * len(self.team_instructions)
        return count / (self.tile_bytes / 1024)


def find_hot_path(kernel: Kernel) -> HotPath:
    flow = Flow(kernel.code)
    paths = {}
    for header, body in flow.loops().items():
        path = flow.hot_path(header, body)
        opcodes = [i.opcode for i in path]
        if any(o.startswith("HMMA") for o in opcodes):
            paths[any(o.startswith("LDGSTS") for o in opcodes)] = path
    if True not in paths:
        sys.exit(f"static_report: no loop with HMMA and LDGSTS in {kernel.name}")
    return HotPath(paths[True], paths.get(False, []))


# ---------------------------------------------------------------- report and gate


LARGEST_GROUPS = (8, 16, 32, 64)  # query heads per kv head, by GroupClass


@dataclass(frozen=True)
class DecodeMma:
    """What the template arguments of a decode kernel say."""

    element_bytes: int
    head_dim: int
    group_class: int

    @property
    def group_heads(self) -> tuple[int, ...]:
        """The largest groups for which an instantiation works in one way."""
        if self.group_class < len(LARGEST_GROUPS) - 1:
            return (LARGEST_GROUPS[self.group_class],)
        return tuple(heads for heads, warps in self.sizes.team_warps.items() if warps > 1)

    @property
    def sizes(self) -> TileSizes:
        return tile_sizes()[self.head_dim, self.element_bytes]

    @property
    def min_issue_to_hbm(self) -> float:
        return MIN_ISSUE_TO_HBM if self.element_bytes == 2 else MIN_ISSUE_TO_HBM_8BIT


TILE_PROGRAM = """
#include <cstdio>
#include <initializer_list>
#include "tile.h"
using namespace pagedattn::decode_mma;
template <int kHeadDim, int kBytes>
void print() {
  std::printf("%d %d %d", kHeadDim, kBytes, Tile<kHeadDim, kBytes>::kStages);
  for (int heads : {8, 16, 32, 64}) {
    const int team = team_warps(heads, max_warp_heads(kHeadDim, kBytes));
    std::printf(" %d %d", SharedLayout<kHeadDim, kBytes>::bytes(heads), team);
  }
  std::puts("");
}
int main() {
  print<64, 2>(), print<96, 2>(), print<128, 2>(), print<192, 2>(), print<256, 2>();
  print<64, 1>(), print<128, 1>(), print<256, 1>();
}
"""


@dataclass(frozen=True)
class TileSizes:
    stages: int
    # By query heads per kv head:
    shared_bytes: dict[int, int]
    team_warps: dict[int, int]


@functools.cache
def tile_sizes() -> dict[tuple[int, int], TileSizes]:
    """By head_dim and bytes per element, as decode_mma/tile.h has them."""
    headers = Path(__file__).resolve().parents[1] / "csrc/attention/cuda/decode_mma"
    compiler = os.environ.get("CXX", "c++").split()
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "tiles")
        command = [*compiler, "-std=c++20", f"-I{headers}", "-x", "c++", "-", "-o", program]
        subprocess.run(command, input=TILE_PROGRAM, text=True, check=True)
        output = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    sizes = {}
    for line in output.splitlines():
        head_dim, element_bytes, stages, *by_heads = map(int, line.split())
        shared = dict(zip(LARGEST_GROUPS, by_heads[::2], strict=True))
        teams = dict(zip(LARGEST_GROUPS, by_heads[1::2], strict=True))
        sizes[head_dim, element_bytes] = TileSizes(stages, shared, teams)
    return sizes


@dataclass(frozen=True)
class VarlenMma:
    """What the template arguments of a varlen kernel say; sizes as in varlen_mma/tile.h."""

    element_bytes: int
    head_dim: int

    @property
    def row_tiles(self) -> tuple[int, ...]:
        return (16, 64, 128) if self.head_dim <= 128 else (16, 64)

    @property
    def tile_bytes(self) -> int:
        """K and V of 64 keys."""
        return 2 * 64 * self.element_bytes * self.head_dim

    @property
    def codes(self) -> tuple[str, ...]:
        """The types that the kernel tells apart at run time; "" if it is compiled for one."""
        return ("",) if self.element_bytes == 2 else ("e5m2", "int8", "e4m3")

    def work(self, rows: int, codes: str, arch: int) -> dict[str, int]:
        """Of a warp, for a tile of 64 keys."""
        fragments = 2 if rows == 128 else 1
        tokens = 16 if rows == 16 else 64
        work = {
            "HMMA": 2 * fragments * tokens // 8 * self.head_dim // 16,
            "LDGSTS": self.tile_bytes // 4 // LDGSTS_BYTES,
        }
        if codes:  # two halves of 4 codes, 4 * 32 codes at a time
            conversions = {"int8": "HADD2", "e4m3": "HSET2" if arch < 89 else "F2FP.F16.E4M3"}
            work |= dict.fromkeys(conversions.values(), 0)
            if codes in conversions:
                work[conversions[codes]] = 2 * self.tile_bytes // 4 // (4 * 32)
        return work


def varlen_mma_of(kernel: Kernel) -> VarlenMma | None:
    found = re.match(r"varlen_mma_kernel<([\w ]+), (\d+)>", kernel.name)
    if not found:
        return None
    return VarlenMma(1 if found[1] == "unsigned char" else 2, int(found[2]))


def decode_mma_of(kernel: Kernel) -> DecodeMma | None:
    pattern = r"decode_mma_kernel<([\w ]+), (\d+), \(pagedattn::GroupClass\)(\d)>"
    found = re.match(pattern, kernel.name)
    if not found:
        return None
    element_bytes = 2 if found[1] in ("__half", "__nv_bfloat16") else 1
    return DecodeMma(element_bytes, int(found[2]), int(found[3]))


def resident_ctas(kernel: Kernel, threads: int, shared_bytes: int) -> int:
    registers = -(-kernel.resources.get("REG", 1) * 32 // 256) * 256 * (threads // 32)
    shared = SHARED_BYTES_PER_SM.get(kernel.arch, 64 << 10)
    return min(65536 // registers, shared // (shared_bytes + RESERVED_SHARED_BYTES))


def classify(path: list[Instruction]) -> str:
    mix: collections.Counter[str] = collections.Counter()
    for instruction in path:
        names = [n for n, p in INSTRUCTION_CLASSES.items() if re.match(p, instruction.opcode)]
        mix[names[0] if names else "other"] += 1
    return ", ".join(f"{name} {count}" for name, count in mix.most_common())


def report(kernel: Kernel) -> list[str]:
    """Prints one kernel; returns what the gate objects to."""
    resources = kernel.resources
    spills = kernel.count("LDL|STL")
    print(f"sm_{kernel.arch} {kernel.name}")
    print(
        f"  {resources.get('REG')} registers, {spills} spill instructions, "
        f"{resources.get('LOCAL', 0)} B local, {resources.get('SHARED', 0)} B static shared, "
        f"{len(kernel.code)} instructions"
    )
    decode, varlen = decode_mma_of(kernel), varlen_mma_of(kernel)
    if (decode is None and varlen is None) or kernel.arch < 80:
        return []
    problems = []
    if spills or resources.get("LOCAL", 0) or resources.get("STACK", 0):
        problems.append("spills or local memory")
    for opcode in ("HMMA", r"LDGSTS.*\.128", "LDSM"):
        if not kernel.count(opcode):
            problems.append(f"no {opcode}")
    if decode is not None:
        problems += report_decode(kernel, decode)
    if varlen is not None:
        problems += report_varlen(kernel, varlen)
    return problems


def report_varlen(kernel: Kernel, config: VarlenMma) -> list[str]:
    flow = Flow(kernel.code)
    loops = flow.loops()
    problems = []
    for rows, codes in itertools.product(config.row_tiles, config.codes):
        work = config.work(rows, codes, kernel.arch)
        # The innermost loop, where several have such a way around.
        order = sorted(loops, key=lambda header: len(loops[header]))
        paths = (flow.shortest_path(header, loops[header], work) for header in order)
        path = next((path for path in paths if path is not None), None)
        if path is None:
            return [f"no loop for {rows} rows {codes}"]
        share = work["HMMA"] / len(path)
        per_kilobyte = 4 * len(path) / (config.tile_bytes / 1024)
        print(
            f"  {rows} rows x 64 keys{f' of {codes}' if codes else ''}: {len(path)} instructions, "
            f"{share:.1%} mma, {per_kilobyte:.0f} per KB: {classify(path)}"
        )
        wanted = MIN_MMA_SHARE[codes or "16 bits"][config.head_dim]
        if rows == config.row_tiles[-1] and share < wanted:
            problems.append(f"{share:.1%} of the instructions for {rows} rows {codes} are mma")
    return problems


def report_decode(kernel: Kernel, config: DecodeMma) -> list[str]:
    problems = []
    path = find_hot_path(kernel)
    print(
        f"  hot path: {len(path.instructions)} instructions for {path.tile_bytes} B: "
        f"{classify(path.instructions)}"
    )
    sizes = config.sizes
    for heads in config.group_heads:
        team_warps = sizes.team_warps[heads]
        shared_bytes = sizes.shared_bytes[heads]
        ctas = resident_ctas(kernel, 128, shared_bytes)
        per_kilobyte = path.per_kilobyte(team_warps)
        rate = ISSUE_SLOTS_PER_CLOCK * 1024 / per_kilobyte
        ratio = rate / HBM_BYTES_PER_CLOCK_PER_SM
        in_flight = ctas * 4 * sizes.stages * path.tile_bytes / 1024
        print(
            f"  {f'teams of {team_warps}: ' if team_warps > 1 else ''}"
            f"{per_kilobyte:.1f} instructions/KB, issue limit {rate:.0f} B/clk/SM = "
            f"{ratio:.1f} x HBM; {shared_bytes} B dynamic shared, {ctas} CTAs/SM, "
            f"{in_flight:.0f} KB in flight/SM"
        )
        max_heads = 32 if config.element_bytes == 2 else 16
        wanted = config.min_issue_to_hbm
        if config.head_dim <= 128 and heads <= max_heads and ratio < wanted:
            problems.append(f"issue limit {ratio:.1f} x HBM, wanted {wanted}")
    return problems


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", help="libraries, object files or cubins")
    parser.add_argument("--filter", default="", help="only kernels whose name matches this regex")
    parser.add_argument("--check", action="store_true", help="fail where decode misses the gate")
    arguments = parser.parse_args()
    problems = []
    num_checked = 0
    for path in arguments.files:
        for kernel in read_kernels(path):
            if re.search(arguments.filter, kernel.name):
                num_checked += decode_mma_of(kernel) is not None
                name = f"sm_{kernel.arch} {kernel.name}"
                problems += [f"{name}: {problem}" for problem in report(kernel)]
    if arguments.check and num_checked == 0:
        sys.exit("static_report: no decode kernel on tensor cores to check")
    if arguments.check and problems:
        sys.exit("\n".join(["static_report: the gate objects:", *problems]))


if __name__ == "__main__":
    main()
