"""The paged KV cache of a whole model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from .huge_pages import advise_huge_pages
from .sizing import KVShape, is_quantized

_ops = torch.ops.pagedattn

Layout = Literal["HND", "NHD"]
Pairs = Sequence[tuple[int, int]]

SUPPORTED_DTYPES = (
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
)


class KVCache:
    """Keys and values of all layers, in blocks of ``block_size`` tokens.

    Each layer's key and value cache has the logical shape ``[num_blocks, block_size,
    num_kv_heads, head_dim]``, whatever the storage:

    ====== ================================================= =====================================
    layout storage of one cache                              good for
    ====== ================================================= =====================================
    HND    ``[num_blocks, num_kv_heads, block_size, dim]``   attention: a head's tokens lie together
    NHD    ``[num_blocks, block_size, num_kv_heads, dim]``   moving tokens: a token is one run
    ====== ================================================= =====================================

    With an 8-bit dtype every token and head has an fp32 scale (see :meth:`scales`), which
    ``reshape_and_cache`` computes as it writes: nothing has to be calibrated, nothing saturates. A
    block's scales go wherever the block goes.

    A block id means the same block in every layer; tables and block ids come from
    :class:`pagedattn.BlockManager`. Memory is not initialised: what no one wrote is never read.

    Raises ValueError for sizes below 1, an unknown layout or an unsupported dtype.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        layout: Layout = "HND",
        pin_memory: bool = False,
    ) -> None:
        sizes = {
            "num_layers": num_layers,
            "num_blocks": num_blocks,
            "block_size": block_size,
            "num_kv_heads": num_kv_heads,
            "head_dim": head_dim,
        }
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"{name} must be at least 1, got {size}")
        if dtype not in SUPPORTED_DTYPES:
            raise ValueError(
                f"dtype {dtype} is not supported; expected one of {list(SUPPORTED_DTYPES)}"
            )
        if layout not in ("HND", "NHD"):
            raise ValueError(f'layout must be "HND" or "NHD", got {layout!r}')
        self.shape = KVShape(num_layers, num_kv_heads, head_dim, dtype)
        self.num_layers = num_layers
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.dtype = dtype
        self.device = torch.device(device)
        self.layout: Layout = layout

        rows = (num_kv_heads, block_size) if layout == "HND" else (block_size, num_kv_heads)

        def new_cache(dtype: torch.dtype, row_size: int) -> Tensor:
            """In memory of its own: torch.compile copies caches that share theirs."""
            shape = (num_blocks, *rows, row_size)
            cache = torch.empty(shape, dtype=dtype, device=device, pin_memory=pin_memory)
            if not pin_memory:
                advise_huge_pages(cache)
            return cache.transpose(1, 2) if layout == "HND" else cache

        self.key_caches = [new_cache(dtype, head_dim) for _ in range(num_layers)]
        self.value_caches = [new_cache(dtype, head_dim) for _ in range(num_layers)]
        num_scaled = num_layers if is_quantized(dtype) else 0
        self._key_scales = [new_cache(torch.float32, 1) for _ in range(num_scaled)]
        self._value_scales = [new_cache(torch.float32, 1) for _ in range(num_scaled)]

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes in all layers: keys, values and their scales."""
        return self.shape.bytes_per_token

    @property
    def bytes_per_block(self) -> int:
        """Bytes that one block takes in all layers."""
        return self.bytes_per_token * self.block_size

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole cache."""
        return self.bytes_per_block * self.num_blocks

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """(key_cache, value_cache) of one layer, each ``[num_blocks, block_size, heads, dim]``."""
        return self.key_caches[index], self.value_caches[index]

    def scales(self, index: int) -> dict[str, Any]:
        """``k_scale`` and ``v_scale`` of one layer, by those names, for the ops.

        fp32 ``[num_blocks, block_size, num_kv_heads]``: value = code * scale. None unless the dtype
        is an 8-bit one.
        """
        if not is_quantized(self.dtype):
            return {"k_scale": None, "v_scale": None}
        return {
            "k_scale": self._key_scales[index].squeeze(-1),
            "v_scale": self._value_scales[index].squeeze(-1),
        }

    def copy_blocks(self, pairs: Pairs) -> None:
        """Copies block ``src`` over block ``dst`` in every layer, for each (src, dst) in order.

        Runs in one launch, or in more where a pair builds on another. Raises RuntimeError (from
        the op) for block ids out of range on the CPU.
        """
        for independent in _independent_runs(pairs):
            mapping = torch.tensor(independent, dtype=torch.int64, device=self.device)
            _ops.copy_blocks(
                self.key_caches + self._key_scales,
                self.value_caches + self._value_scales,
                mapping,
            )

    def swap_blocks(self, target: KVCache, pairs: Pairs) -> None:
        """Copies block ``src`` of this cache over block ``dst`` of ``target``, in every layer.

        The two may lie on different devices; between a device and pinned host memory the copy is
        asynchronous on the current stream. Raises ValueError if their blocks differ in shape,
        dtype or layout.
        """
        if self._block_spec() != target._block_spec():
            raise ValueError(
                f"target holds blocks of {target._block_spec()}, this cache {self._block_spec()}"
            )
        if pairs:
            mapping = torch.tensor(list(pairs), dtype=torch.int64)
            _ops.swap_blocks(self._tensors(), target._tensors(), mapping)

    def gather(
        self,
        layer: int,
        block_tables: Tensor,
        cu_seq_lens: Tensor,
        num_tokens: int,
        dtype: torch.dtype | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Contiguous (key, value) of some sequences, ``[num_tokens, num_kv_heads, head_dim]``.

        block_tables int32 ``[num_seqs, max_blocks_per_seq]``, cu_seq_lens int32 ``[num_seqs + 1]``,
        num_tokens the host's value of ``cu_seq_lens[-1]``. dtype None keeps the cache's, another
        one dequantises.
        """
        key_cache, value_cache = self.layer(layer)
        return _ops.gather_cache(
            key_cache,
            value_cache,
            block_tables,
            cu_seq_lens,
            num_tokens,
            **self.scales(layer),
            dtype=dtype,
        )

    def _tensors(self) -> list[Tensor]:
        return self.key_caches + self.value_caches + self._key_scales + self._value_scales

    def _block_spec(self) -> tuple[object, ...]:
        return self.shape, self.block_size, self.layout


def _independent_runs(pairs: Pairs) -> Iterator[list[tuple[int, int]]]:
    """Cuts copies that run in order into runs whose copies may run at once."""
    run: list[tuple[int, int]] = []
    sources: set[int] = set()
    targets: set[int] = set()
    for src, dst in pairs:
        if dst in targets or dst in sources or src in targets:
            yield run
            run, sources, targets = [], set(), set()
        run.append((src, dst))
        sources.add(src)
        targets.add(dst)
    if run:
        yield run
