"""Plants one bug at a time in the kernels' numerics and sees the op tests fail.

`python tests/mutate.py [--backend cpu|simt] [NAME...]` works in a copy of the repository under
build/mutate. A mutation that no test notices, or whose text is no longer in the file, is an error.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPY = ROOT / "build" / "mutate"
CPU = "csrc/attention/cpu/"
CUDA = "csrc/attention/cuda/"
DECODE_FILE = "tests/ops/test_decode.py::"
DECODE = DECODE_FILE + "test_matches_the_reference"
VARLEN_FILE = "tests/ops/test_varlen.py::"
VARLEN = VARLEN_FILE + "test_matches_the_reference"
GROWING = "tests/ops/test_prefill.py::test_logits_may_grow_from_tile_to_tile"


@dataclass(frozen=True)
class Mutation:
    """Replaces `old`, which occurs once in `file`, by `new`; `tests` is where it has to show."""

    name: str
    backend: str
    file: str
    old: str
    new: str
    tests: str = DECODE


MUTATIONS = [
    Mutation(
        "mask: window one token too long",
        "cpu",
        "csrc/attention/visibility.h",
        "q_pos - masks.window_left;",
        "q_pos - masks.window_left - 1;",
    ),
    Mutation(
        "mask: query sees the next token",
        "cpu",
        "csrc/attention/visibility.h",
        "sees_ahead ? seq_len : q_pos + 1;",
        "sees_ahead || q_pos + 1 == seq_len ? seq_len : q_pos + 2;",
        VARLEN,
    ),
    Mutation(
        "block: the next entry of the table",
        "cpu",
        CPU + "tile.h",
        "int block_index = begin / cache.block_size;",
        "int block_index = begin / (cache.block_size + 1);",
    ),
    Mutation(
        "rescale: skipped",
        "cpu",
        CPU + "decode_unit.h",
        "if (correction != 1.0f) scale_row",
        "if (correction > 1.0f) scale_row",
        DECODE_FILE + "test_logits_may_grow_from_tile_to_tile",
    ),
    Mutation(
        "rescale: sum kept when the reference moves in prefill",
        "cpu",
        CPU + "prefill/weights.h",
        "load(row.sum) * Vec(correction)",
        "load(row.sum) * Vec(1.0f)",
        GROWING,
    ),
    Mutation(
        "mask: a tile's last key hidden in prefill",
        "cpu",
        CPU + "prefill/unit.h",
        "const int end = row.keys.end - tile_->begin;",
        "const int end = row.keys.end - 1 - tile_->begin;",
        VARLEN,
    ),
    Mutation(
        "scale: key scale of the tile's first token for all",
        "cpu",
        CPU + "softmax.h",
        "logit * load(key_scale + t);",
        "logit * Vec(key_scale[0]);",
    ),
    Mutation(
        "scale: value scale left out of the output",
        "cpu",
        CPU + "decode_unit.h",
        "result.factor * common_scale(params_.cache.value.scale, kv_head);",
        "result.factor * (common_scale(params_.cache.value.scale, kv_head) * 0.0f + 1.0f);",
    ),
    Mutation(
        "tail: lanes past the tile count as tokens",
        "cpu",
        CPU + "softmax.h",
        "token < Vec(static_cast<float>(tile.count))",
        "token < Vec(static_cast<float>(kTile))",
    ),
    Mutation(
        "mask: window one token too short in tensor-core decode",
        "simt",
        CUDA + "decode_mma/masks.cuh",
        "visible.begin <= token && token",
        "visible.begin < token && token",
    ),
    Mutation(
        "block: a tile's second group where its first one lies",
        "simt",
        CUDA + "decode_mma/loader.cuh",
        "__shfl_sync(kFullWarp, block_, next_tile_, kHalf);",
        "__shfl_sync(kFullWarp, block_, next_tile_);",
    ),
    Mutation(
        "scale: V's left out of the weights in tensor-core decode",
        "simt",
        CUDA + "decode_mma/scales.cuh",
        "weights[e] = values[Layout::token(lane, e)];",
        "weights[e] = values[0];",
    ),
    Mutation(
        "rescale: sum kept when the reference moves",
        "simt",
        CUDA + "decode_mma/softmax.cuh",
        "sum[state] *= rescale[state];",
        "sum[state] *= 1.0f;",
    ),
    Mutation(
        "tail: V rows past the end keep what they hold",
        "simt",
        CUDA + "decode_mma/loader.cuh",
        "make_uint4(0, 0, 0, 0);",
        "make_uint4(~0u, ~0u, ~0u, ~0u);",
    ),
    Mutation(
        "rescale: output kept when the maximum rises in varlen",
        "simt",
        CUDA + "varlen.cuh",
        "out[r][j].y *= factor;",
        "out[r][j].y *= 1.0f;",
        VARLEN,
    ),
    Mutation(
        "block: second group of a warp's share in the first one's block",
        "simt",
        CUDA + "varlen_mma/loader.cuh",
        "group == 0 ? groups.x : groups.z",
        "group == 0 ? groups.x : groups.x",
        VARLEN,
    ),
    Mutation(
        "rescale: output kept when a row's reference moves in tensor-core varlen",
        "simt",
        CUDA + "varlen_mma/softmax.cuh",
        "block[e] *= rescale[e / 2];",
        "block[e] *= rescale[0];",
        VARLEN,
    ),
    Mutation(
        "bits: rows move each other's reference",
        "simt",
        CUDA + "varlen_mma/softmax.cuh",
        "if (is_two(row_bits)) minus",
        "minus",
        VARLEN_FILE + "test_tensor_core_rows_have_the_same_bits_in_every_chunking",
    ),
    Mutation(
        "tail: V rows past the end keep what they hold in tensor-core varlen",
        "simt",
        CUDA + "varlen_mma/values.cuh",
        "chunk = make_uint4(0, 0, 0, 0);",
        "chunk.x = chunk.x;",
        VARLEN,
    ),
    Mutation(
        "values: a masked NaN is not looked for",
        "simt",
        CUDA + "varlen_mma/values.cuh",
        "return found != 0;",
        "return false;",
        VARLEN_FILE + "test_a_value_that_is_not_finite_reaches_only_rows_that_see_it",
    ),
    Mutation(
        "work: a sequence's last tile twice",
        "simt",
        CUDA + "varlen_mma/work.cuh",
        "owner) - 1 - index) * kRows",
        "owner) - 1 - max(index, 1)) * kRows",
        VARLEN,
    ),
    Mutation(
        "scale: left out by the SIMT-core decode kernel",
        "simt",
        CUDA + "decode.cuh",
        "tokens.value_scales[t] = source.value_scale.at(slot);",
        "tokens.value_scales[t] = 1.0f;",
    ),
    Mutation(
        "partitions: the last one left out of the reduction",
        "simt",
        CUDA + "reduce_partitions.cuh",
        "(visible.end - 1) / partition_size + 1 : begin",
        "(visible.end - 1) / partition_size + (visible.end <= partition_size) : begin",
    ),
    Mutation(
        "partitions: a split sequence's second one begins at its first key",
        "simt",
        CUDA + "varlen_mma/partition.cuh",
        "max(keys.begin, begin)",
        "keys.begin",
        VARLEN,
    ),
    Mutation(
        "scale: of V's tokens left out by tensor-core varlen",
        "simt",
        CUDA + "varlen_mma/scales.cuh",
        "weight * scales[8 * n + e]",
        "weight",
        VARLEN,
    ),
]


def run(command: list[str], **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=COPY,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def synchronize() -> None:
    """Brings the copy up to date; unchanged files keep their time, so that little is rebuilt."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in listed.stdout.splitlines():
        source, target = ROOT / name, COPY / name
        if not source.is_file():
            continue
        if target.exists() and target.read_bytes() == source.read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def build(backend: str) -> None:
    """Brings the library under test up to date, in the copy."""
    if backend == "cpu":
        command = ["setup.py", "--quiet", "build_ext", "--inplace"]
    else:
        for library in (ROOT / "pagedattn").glob("*.so"):  # for the tests to import
            shutil.copy(library, COPY / "pagedattn")
        command = ["tests/simt/build.py", "pagedattn_simt"]
    result = run([sys.executable, *command], PAGEDATTN_CUDA="0")
    if result.returncode != 0:
        sys.exit(f"the build failed:\n{result.stdout}")


def tests_pass(backend: str, tests: str) -> bool:
    """Whether all tests of the backend pass; anything but passed or failed tests is an error."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", tests]
    result = run(command, PAGEDATTN_TEST_BACKENDS=backend)
    if result.returncode not in (0, 1):
        sys.exit(f"pytest could not run {tests} on {backend}:\n{result.stdout}")
    return result.returncode == 0


def is_noticed(mutation: Mutation) -> bool:
    path = COPY / mutation.file
    original = path.read_text()
    if original.count(mutation.old) != 1:
        sys.exit(f"'{mutation.name}': its text is not once in {mutation.file}")
    path.write_text(original.replace(mutation.old, mutation.new))
    try:
        build(mutation.backend)
        return not tests_pass(mutation.backend, mutation.tests)
    finally:
        path.write_text(original)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="run mutations whose name contains one of these")
    parser.add_argument("--backend", choices=["cpu", "simt"])
    arguments = parser.parse_args()
    chosen = [
        mutation
        for mutation in MUTATIONS
        if arguments.backend in (None, mutation.backend)
        and (not arguments.names or any(name in mutation.name for name in arguments.names))
    ]
    synchronize()
    unnoticed = []
    for backend in sorted({mutation.backend for mutation in chosen}):
        mutations = [mutation for mutation in chosen if mutation.backend == backend]
        build(backend)
        for tests in sorted({mutation.tests for mutation in mutations}):
            if not tests_pass(backend, tests):
                sys.exit(f"{tests} fails on {backend} without a mutation")
        for mutation in mutations:
            noticed = is_noticed(mutation)
            print(f"{backend}: {mutation.name}: {'noticed' if noticed else 'NOT NOTICED'}")
            if not noticed:
                unnoticed.append(mutation)
        build(backend)
    if unnoticed:
        sys.exit(f"{len(unnoticed)} of {len(chosen)} mutations went unnoticed")


if __name__ == "__main__":
    main()
