"""Sizes of KV caches."""

import pytest
import torch
from transformers import GPT2Config, LlamaConfig

from pagedattn.kv_cache import KVCache
from pagedattn.sizing import (
    KVShape,
    contiguous_utilization,
    utilization,
    utilization_bound,
)


def test_llama_2_13b_takes_800_kb_per_token():
    # The figure of the PagedAttention paper (SOSP 2023, section 3) for OPT-13B: 2 * 40 * 5120 * 2.
    config = LlamaConfig(hidden_size=5120, num_hidden_layers=40, num_attention_heads=40)
    shape = KVShape.from_config(config, torch.float16)
    assert shape.bytes_per_token == 800 * 1024
    assert shape.bytes_per_sequence(17, 16) == 32 * shape.bytes_per_token
    assert shape.blocks_for_budget(10 * shape.bytes_per_block(16) - 1, 16) == 9


def test_shape_from_other_spellings():
    assert KVShape.from_config(GPT2Config()) == KVShape(12, 12, 64, torch.float32)
    config = LlamaConfig(num_attention_heads=8, num_key_value_heads=2, head_dim=96)
    assert KVShape.from_config(config, torch.bfloat16) == KVShape(32, 2, 96, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.int8], ids=str)
def test_agrees_with_the_cache(dtype):
    cache = KVCache(2, 6, 8, 3, 32, dtype=dtype)
    shape = KVShape(2, 3, 32, dtype)
    assert shape.bytes_per_token == cache.bytes_per_token
    assert shape.blocks_for_budget(cache.num_bytes, 8) == 6


@pytest.mark.parametrize("block_size", [1, 8, 16, 128])
def test_utilization_is_above_its_bound(block_size):
    for length in range(1, 600):
        assert utilization([length], block_size) > utilization_bound(length, block_size)


def test_utilization_of_a_batch():
    assert utilization([16, 1], 16) == pytest.approx(17 / 32)
    assert utilization([], 16) == 1.0
    assert contiguous_utilization([100, 300], 1000) == pytest.approx(0.2)
