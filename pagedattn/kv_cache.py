"""The paged KV cache of a whole model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from .huge_pages import advise_huge_pages
from .sizing import SCALE_BYTES, KVShape, is_quantized

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
    block's scales lie behind its codes and go wherever the block goes::

        | codes, block_size * num_kv_heads rows of head_dim | a scale for each row |

    A block id means the same block in every layer; tables and block ids come from
    :class:`pagedattn.BlockManager`. Memory is not initialised: what no one wrote is never read.

    Raises ValueError for sizes below 1, an unknown layout or an unsupported dtype, and for a
    head_dim that is no multiple of 8 with an 8-bit dtype.
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
        if is_quantized(dtype) and head_dim % 8:
            raise ValueError(f"head_dim must be a multiple of 8 with dtype {dtype}, got {head_dim}")
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
        num_rows = num_kv_heads * block_size
        code_bytes = num_rows * head_dim * dtype.itemsize
        scale_bytes = num_rows * SCALE_BYTES if is_quantized(dtype) else 0

        def new_blocks() -> Tensor:
            """The bytes of whole blocks, in the four dimensions that the ops take.

            In memory of their own: torch.compile copies caches that share theirs with another
            argument that an op writes to.
            """
            size = (num_blocks, 1, 1, code_bytes + scale_bytes)
            blocks = torch.empty(size, dtype=torch.uint8, device=device, pin_memory=pin_memory)
            if not pin_memory:
                advise_huge_pages(blocks)
            return blocks

        def codes(blocks: Tensor) -> Tensor:
            codes = blocks[:, 0, 0, :code_bytes].view(dtype).unflatten(-1, (*rows, head_dim))
            return codes.transpose(1, 2) if layout == "HND" else codes

        def scales(blocks: Tensor) -> Tensor:
            scales = blocks[:, 0, 0, code_bytes:].view(torch.float32).unflatten(-1, rows)
            return scales.transpose(1, 2) if layout == "HND" else scales

        self._key_blocks = [new_blocks() for _ in range(num_layers)]
        self._value_blocks = [new_blocks() for _ in range(num_layers)]
        self.key_caches: list[Tensor] = [codes(blocks) for blocks in self._key_blocks]
        self.value_caches: list[Tensor] = [codes(blocks) for blocks in self._value_blocks]
        self._scales: list[tuple[Tensor, Tensor]] | None = None
        if scale_bytes:
            halves = zip(self._key_blocks, self._value_blocks, strict=True)
            self._scales = [(scales(keys), scales(values)) for keys, values in halves]

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
        if self._scales is None:
            return {"k_scale": None, "v_scale": None}
        k_scale, v_scale = self._scales[index]
        return {"k_scale": k_scale, "v_scale": v_scale}

    def copy_blocks(self, pairs: Pairs) -> None:
        """Copies block ``src`` over block ``dst`` in every layer, for each (src, dst) in order.

        Runs in one launch, or in more where a pair builds on another. Raises RuntimeError (from
        the op) for block ids out of range on the CPU.
        """
        for independent in _independent_runs(pairs):
            mapping = torch.tensor(independent, dtype=torch.int64, device=self.device)
            _ops.copy_blocks(self._key_blocks, self._value_blocks, mapping)

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
            _ops.swap_blocks(self._key_blocks, target._key_blocks, mapping)
            _ops.swap_blocks(self._value_blocks, target._value_blocks, mapping)

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
