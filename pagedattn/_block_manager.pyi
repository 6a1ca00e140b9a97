"""Types of the C++ extension; docstrings are on the objects themselves (``help(BlockManager)``)."""

import enum
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from torch import Tensor

class _Array(Protocol):
    """Any array with DLPack."""

    def __dlpack__(self, *, stream: Any = ...) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...

# One-dimensional arrays of int32 or int64 in host memory.
_Ints: TypeAlias = Sequence[int] | np.ndarray[Any, Any] | memoryview | Tensor | _Array
_Output: TypeAlias = np.ndarray[Any, Any] | memoryview | Tensor | _Array

class OutOfBlocks(MemoryError):
    needed: int
    free: int
    total: int
    request_id: str

class AllocationStatus(enum.Enum):
    OK = 1
    LATER = 2
    NEVER = 3

class Allocation(NamedTuple):
    block_ids: list[int]
    num_cached_tokens: int

class AppendResult(NamedTuple):
    slots: list[int]
    copies: list[tuple[int, int]]

class BatchResult(NamedTuple):
    failed: list[int]
    copies: list[tuple[int, int]]

class AllocateBatchResult(NamedTuple):
    failed: list[int]
    num_cached_tokens: list[int]

class BlockManagerStats(NamedTuple):
    num_blocks: int
    num_free: int
    num_hittable_free: int
    num_pinned: int
    usage: float
    num_host_blocks: int
    num_host_free: int
    prefix_queried_tokens: int
    prefix_hit_tokens: int
    num_evictions: int
    num_copies_on_write: int

class KvEvent(NamedTuple):
    kind: str
    prefix_id: int | None
    parent_id: int | None
    block_id: int | None
    token_ids: list[int] | None
    cache_salt: str | None

class BlockManager:
    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        enable_prefix_caching: bool = True,
        num_host_blocks: int = 0,
        watermark: float = 0.0,
        window: int | None = None,
        enable_kv_events: bool = False,
    ) -> None: ...
    @property
    def num_blocks(self) -> int: ...
    @property
    def block_size(self) -> int: ...
    @property
    def num_free_blocks(self) -> int: ...
    @property
    def num_host_free_blocks(self) -> int: ...
    def allocate(
        self, request_id: str, token_ids: _Ints, *, cache_salt: str | None = None
    ) -> Allocation: ...
    def allocate_batch(
        self,
        request_ids: Sequence[str],
        token_ids: _Ints,
        counts: _Ints,
        *,
        cache_salt: str | None = None,
        slot_mapping: _Output | None = None,
        block_tables: _Output | None = None,
        seq_lens: _Output | None = None,
    ) -> AllocateBatchResult: ...
    def lookup(self, token_ids: _Ints, *, cache_salt: str | None = None) -> int: ...
    def can_allocate(self, num_tokens: int) -> AllocationStatus: ...
    def append(self, request_id: str, token_ids: _Ints) -> AppendResult: ...
    def append_batch(
        self,
        request_ids: Sequence[str],
        token_ids: _Ints,
        counts: _Ints | None = None,
        *,
        slot_mapping: _Output | None = None,
        block_tables: _Output | None = None,
        seq_lens: _Output | None = None,
    ) -> BatchResult: ...
    def fill_batch(
        self, request_ids: Sequence[str], block_tables: _Output, seq_lens: _Output
    ) -> None: ...
    def fork(self, parent_id: str, child_id: str) -> None: ...
    def truncate(self, request_id: str, num_tokens: int) -> None: ...
    def free(self, request_id: str, *, num_computed: int | None = None) -> list[str]: ...
    def common_prefix_blocks(self, request_ids: Sequence[str]) -> int: ...
    def pin_prefix(self, token_ids: _Ints, *, cache_salt: str | None = None) -> int: ...
    def unpin_prefix(self, token_ids: _Ints, *, cache_salt: str | None = None) -> int: ...
    def swap_out(self, request_id: str) -> list[tuple[int, int]]: ...
    def swap_in(self, request_id: str) -> list[tuple[int, int]]: ...
    def block_table(self, request_id: str) -> list[int]: ...
    def num_tokens(self, request_id: str) -> int: ...
    def __contains__(self, request_id: str) -> bool: ...
    def ref_count(self, block_id: int) -> int: ...
    def stats(self) -> BlockManagerStats: ...
    def reset_prefix_cache(self) -> bool: ...
    def take_kv_events(self) -> list[KvEvent]: ...
    def check_invariants(self) -> None: ...
