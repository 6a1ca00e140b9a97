"""The tensors that are benchmarked hold what they should, and reads cover all of it."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from bench import attention, presets, raw_read
from bench.paging import block_tables, fill, slots_of
from bench.problem import TOLERANCE, build, num_bytes, relative_error
from bench.shapes import AttentionShape
from pagedattn import reference

RAGGED = AttentionShape((40, 7, 16), num_q_heads=4, num_kv_heads=2, head_dim=32)
VARIANTS = [
    RAGGED,
    replace(RAGGED, layout="NHD", dtype="fp32"),
    replace(RAGGED, dtype="int8"),
    replace(RAGGED, dtype="e4m3", block_size=8),
    replace(RAGGED, query_len=5),
]


@pytest.mark.parametrize("shape", VARIANTS, ids=lambda shape: shape.title)
def test_every_layer_holds_what_is_expected(shape: AttentionShape):
    problem = build(shape, num_layers=3)
    for layer in range(3):
        out, _ = reference.paged_attention_varlen(
            problem.query.double(),
            *problem.layer(layer),
            problem.cu_seqlens_q,
            problem.block_tables,
            problem.seq_lens,
            problem.softmax_scale,
            k_scale=problem.k_scale,
            v_scale=problem.v_scale,
        )
        assert relative_error(out, problem.expected) < 1e-12


def test_content_does_not_depend_on_the_order_of_blocks():
    shuffled, in_order = build(RAGGED, 1), build(RAGGED, 1, shuffled=False)
    assert torch.equal(shuffled.expected, in_order.expected)
    assert in_order.block_tables[0].tolist() == [0, 1, 2]


def test_tables_use_every_block_once():
    tables = block_tables((40, 7, 16), 16)
    used = torch.cat([tables[0], tables[1, :1], tables[2, :1]])
    assert used.sort().values.tolist() == [0, 1, 2, 3, 4]


def test_rows_come_back_from_their_slots():
    rows = torch.arange(63 * 2 * 4, dtype=torch.int32).view(63, 2, 4)
    slots = slots_of(block_tables((40, 7, 16), 16), (40, 7, 16), 16)
    cache = torch.zeros(5, 16, 2, 4, dtype=torch.int32)
    fill(cache, slots, rows)
    assert torch.equal(cache.view(80, 2, 4)[slots], rows)


@pytest.mark.parametrize("layout", ["HND", "NHD"])
def test_reads_in_table_order_cover_each_block_once(layout: str):
    problem = build(replace(RAGGED, layout=layout), 1)
    offsets, run_bytes = raw_read.runs(problem)
    layer_bytes = problem.storage[0].numel() * problem.storage.itemsize
    assert offsets.sort().values.tolist() == list(range(0, layer_bytes, run_bytes))
    first_key = problem.layer(0)[0][problem.block_tables[0, 0]]
    base = problem.storage.data_ptr()
    assert base + int(offsets[0]) == first_key.data_ptr()


def test_raw_reads_run():
    problem = build(RAGGED, 2)
    raw_read.linear(list(problem.storage), problem.shape.kv_bytes)(1)
    raw_read.table_order(problem)(1)


def test_flops_count_the_visible_pairs():
    shape = AttentionShape((5,), 3, num_q_heads=4, num_kv_heads=2, head_dim=32)
    assert shape.flops == 4 * (3 + 4 + 5) * 4 * 32


def test_every_case_of_a_preset_has_a_title_of_its_own():
    for what, preset in presets.PRESETS:
        cases = list(presets.cases(what, preset))
        assert len({case.title for case in cases}) == len(cases) > 0
        assert all(case.shape.query_dtype in TOLERANCE for case in cases)


def test_the_published_shapes_are_there():
    shapes = [case.shape for case in presets.cases("decode", "paper")]
    for num_kv_heads in (4, 32):
        grid = itertools.product([2**i for i in range(10)], [512 << i for i in range(6)])
        wanted = {AttentionShape((n,) * batch, num_kv_heads=num_kv_heads) for batch, n in grid}
        assert wanted <= set(shapes)
    long = {shape.num_seqs for shape in shapes if shape.max_seq_len == 131072}
    assert long == {1, 2, 4, 8, 16}
    assert AttentionShape((4096,) * 8, num_q_heads=64) in shapes


def test_the_bytes_of_a_problem_are_those_of_its_tensors():
    shape = replace(RAGGED, seq_lens=(64, 64))
    problem = build(shape, num_layers=3)
    large = (problem.key, problem.value, problem.storage)
    between = shape.kv_bytes  # fp32 keys before they are rounded to bf16
    assert num_bytes(shape, 3) == sum(tensor.nbytes for tensor in large) + between


def test_ragged_lengths_are_lognormal_up_to_the_longest():
    lengths = presets.ragged(64, 8192)
    assert max(lengths) == 8192
    assert min(lengths) < 200
    assert 500 < sorted(lengths)[32] < 2000


def test_a_raw_read_stays_within_its_layers():
    with pytest.raises(ValueError, match="num_bytes is 2048, more than a layer has"):
        raw_read.linear([torch.empty(1024, dtype=torch.uint8)], 2048)


def test_the_limit_of_prefill_is_a_fast_product_in_every_dtype():
    """On a CPU torch's in fp16 is not."""
    for dtype, computed in (("fp16", torch.float32), ("bf16", torch.bfloat16)):
        problem = build(replace(RAGGED, dtype=dtype, query_len=5), 1)
        assert attention.equal_matmul(problem).run(0).dtype == computed
