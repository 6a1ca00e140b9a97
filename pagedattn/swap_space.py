"""Host memory that requests' blocks are moved to while others need the device's."""

from __future__ import annotations

from .kv_cache import KVCache, Pairs


class SwapSpace:
    """A second KV cache on the host, of as many blocks as fit into ``num_bytes``.

    Moves are asynchronous on a CUDA device's current stream, so what is launched after them finds
    them done. Raises ValueError if not even one block fits.
    """

    def __init__(self, kv_cache: KVCache, num_bytes: int) -> None:
        self.num_blocks = num_bytes // kv_cache.bytes_per_block
        if self.num_blocks < 1:
            raise ValueError(
                f"swap_space_bytes={num_bytes} holds no block; one takes {kv_cache.bytes_per_block}"
            )
        self._device_cache = kv_cache
        self._host_cache = KVCache(
            kv_cache.num_layers,
            self.num_blocks,
            kv_cache.block_size,
            kv_cache.num_kv_heads,
            kv_cache.head_dim,
            dtype=kv_cache.dtype,
            layout=kv_cache.layout,
            pin_memory=kv_cache.device.type == "cuda",
        )

    def move_out(self, pairs: Pairs) -> None:
        """Copies device blocks to host blocks, as ``BlockManager.swap_out`` names them."""
        self._device_cache.swap_blocks(self._host_cache, pairs)

    def move_in(self, pairs: Pairs) -> None:
        """Copies host blocks to device blocks, as ``BlockManager.swap_in`` names them."""
        self._host_cache.swap_blocks(self._device_cache, pairs)
