"""Storage layouts of a paged cache, and the way from other projects' layouts into ours.

A key or value cache is always addressed as `[num_blocks, block_size, num_kv_heads, head_dim]`.
Which of block_size and num_kv_heads comes first in memory is a matter of strides:

    NHD   one token's heads lie together:          [num_blocks, block_size, num_kv_heads, head_dim]
    HND   one head's tokens lie together, so that
          a kernel reads a block in one piece:     [num_blocks, num_kv_heads, block_size, head_dim]

Other layouts that are in use:

    stacked     keys and values in one tensor, `[2, num_blocks, ...]` (vLLM) or
                `[num_blocks, 2, ...]` (FlashInfer), NHD or HND inside: `unstack` views it, no copy
    dim-major   `[num_blocks, num_kv_heads, head_dim, block_size]`: the keys of published sketches
                and the values of vLLM's original kernels: `from_dim_major`, `to_dim_major` copy
    packed      `[num_blocks, num_kv_heads, head_dim // x, block_size, x]`: the keys of vLLM's
                original kernels, x elements being 16 bytes: `from_packed`, `to_packed` copy

Every function raises ValueError for a shape that does not fit.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Layout = Literal["NHD", "HND"]

_PACK_BYTES = 16


def allocate_cache(
    num_blocks: int,
    block_size: int,
    num_kv_heads: int,
    head_dim: int,
    *,
    layout: Layout = "HND",
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """An uninitialised cache, addressed as `[num_blocks, block_size, num_kv_heads, head_dim]`."""
    if _is_hnd(layout):
        shape = (num_blocks, num_kv_heads, block_size, head_dim)
        return torch.empty(shape, dtype=dtype, device=device).transpose(1, 2)
    shape = (num_blocks, block_size, num_kv_heads, head_dim)
    return torch.empty(shape, dtype=dtype, device=device)


def unstack(kv_cache: Tensor, *, kv_dim: Literal[0, 1], layout: Layout) -> tuple[Tensor, Tensor]:
    """(key_cache, value_cache) as views of one tensor that holds both. Nothing is copied.

    `kv_cache` is 5-dimensional; dimension `kv_dim` has size 2, keys first. The others are, in
    order, `num_blocks, block_size, num_kv_heads, head_dim` for NHD and
    `num_blocks, num_kv_heads, block_size, head_dim` for HND.
    """
    if kv_dim not in (0, 1):
        raise ValueError(f"kv_dim must be 0 or 1, got {kv_dim}")
    _check_dims("kv_cache", kv_cache, 5, "[2, num_blocks, ...] or [num_blocks, 2, ...]")
    if kv_cache.shape[kv_dim] != 2:
        raise ValueError(
            f"kv_cache must have size 2 (keys, values) in dimension kv_dim={kv_dim}, "
            f"got shape {list(kv_cache.shape)}"
        )
    if kv_cache.stride(-1) != 1:
        raise ValueError(
            f"kv_cache must have a contiguous last dimension, got strides {kv_cache.stride()}"
        )
    key_cache, value_cache = kv_cache.unbind(kv_dim)
    if _is_hnd(layout):
        key_cache, value_cache = key_cache.transpose(1, 2), value_cache.transpose(1, 2)
    return key_cache, value_cache


def from_dim_major(cache: Tensor, *, layout: Layout = "HND") -> Tensor:
    """Keys or values `[num_blocks, num_kv_heads, head_dim, block_size]`, copied to our layout."""
    _check_dims("cache", cache, 4, "[num_blocks, num_kv_heads, head_dim, block_size]")
    return _stored_as(cache.permute(0, 3, 1, 2), layout)


def to_dim_major(cache: Tensor) -> Tensor:
    """A contiguous `[num_blocks, num_kv_heads, head_dim, block_size]` copy of a cache of ours."""
    _check_dims("cache", cache, 4, "[num_blocks, block_size, num_kv_heads, head_dim]")
    return _copy(cache.permute(0, 2, 3, 1))


def from_packed(key_cache: Tensor, *, layout: Layout = "HND") -> Tensor:
    """Keys `[num_blocks, num_kv_heads, head_dim // x, block_size, x]`, copied to our layout."""
    words = "[num_blocks, num_kv_heads, head_dim // x, block_size, x]"
    _check_dims("key_cache", key_cache, 5, words)
    return _stored_as(key_cache.permute(0, 3, 1, 2, 4).flatten(3), layout)


def to_packed(key_cache: Tensor, *, pack: int | None = None) -> Tensor:
    """A contiguous `[num_blocks, num_kv_heads, head_dim // x, block_size, x]` copy of our keys.

    x is `pack`, by default the number of elements in 16 bytes; it must divide head_dim.
    """
    _check_dims("key_cache", key_cache, 4, "[num_blocks, block_size, num_kv_heads, head_dim]")
    pack = _PACK_BYTES // key_cache.element_size() if pack is None else pack
    num_blocks, block_size, num_kv_heads, head_dim = key_cache.shape
    if pack < 1 or head_dim % pack != 0:
        raise ValueError(f"pack must divide head_dim = {head_dim}, got {pack}")
    split = key_cache.reshape(num_blocks, block_size, num_kv_heads, head_dim // pack, pack)
    return _copy(split.permute(0, 2, 3, 1, 4))


def _is_hnd(layout: str) -> bool:
    if layout not in ("NHD", "HND"):
        raise ValueError(f"layout must be 'NHD' or 'HND', got {layout!r}")
    return layout == "HND"


def _check_dims(name: str, tensor: Tensor, dims: int, words: str) -> None:
    if tensor.dim() != dims:
        raise ValueError(
            f"{name} must have {dims} dimensions, {words}; got shape {list(tensor.shape)}"
        )


def _copy(view: Tensor) -> Tensor:
    return view.clone(memory_format=torch.contiguous_format)


def _stored_as(view: Tensor, layout: Layout) -> Tensor:
    """Copies a `[num_blocks, block_size, num_kv_heads, head_dim]` view into its own storage."""
    if _is_hnd(layout):
        return _copy(view.transpose(1, 2)).transpose(1, 2)
    return _copy(view)
