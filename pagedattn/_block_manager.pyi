"""Types of the C++ extension; docstrings are on the objects themselves (``help(BlockManager)``)."""

import enum
from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias, final

import numpy as np
from _typeshed import structseq
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

# Results are struct sequences, as os.stat's: tuples whose items also have names.

@final
class Allocation(structseq[Any], tuple[list[int], int]):
    __match_args__: Final = ("block_ids", "num_cached_tokens")
    @property
    def block_ids(self) -> list[int]: ...
    @property
    def num_cached_tokens(self) -> int: ...

@final
class AppendResult(structseq[Any], tuple[list[int], list[tuple[int, int]]]):
    __match_args__: Final = ("slots", "copies")
    @property
    def slots(self) -> list[int]: ...
    @property
    def copies(self) -> list[tuple[int, int]]: ...

@final
class BatchResult(structseq[Any], tuple[list[int], list[tuple[int, int]]]):
    __match_args__: Final = ("failed", "copies")
    @property
    def failed(self) -> list[int]: ...
    @property
    def copies(self) -> list[tuple[int, int]]: ...

@final
class AllocateBatchResult(structseq[Any], tuple[list[int], list[int]]):
    __match_args__: Final = ("failed", "num_cached_tokens")
    @property
    def failed(self) -> list[int]: ...
    @property
    def num_cached_tokens(self) -> list[int]: ...

@final
class BlockManagerStats(
    structseq[Any], tuple[int, int, int, int, float, int, int, int, int, int, int]
):
    __match_args__: Final = (
        "num_blocks",
        "num_free",
        "num_hittable_free",
        "num_pinned",
        "usage",
        "num_host_blocks",
        "num_host_free",
        "prefix_queried_tokens",
        "prefix_hit_tokens",
        "num_evictions",
        "num_copies_on_write",
    )
    @property
    def num_blocks(self) -> int: ...
    @property
    def num_free(self) -> int: ...
    @property
    def num_hittable_free(self) -> int: ...
    @property
    def num_pinned(self) -> int: ...
    @property
    def usage(self) -> float: ...
    @property
    def num_host_blocks(self) -> int: ...
    @property
    def num_host_free(self) -> int: ...
    @property
    def prefix_queried_tokens(self) -> int: ...
    @property
    def prefix_hit_tokens(self) -> int: ...
    @property
    def num_evictions(self) -> int: ...
    @property
    def num_copies_on_write(self) -> int: ...

@final
class KvEvent(
    structseq[Any], tuple[str, int | None, int | None, int | None, list[int] | None, str | None]
):
    __match_args__: Final = (
        "kind",
        "prefix_id",
        "parent_id",
        "block_id",
        "token_ids",
        "cache_salt",
    )
    @property
    def kind(self) -> str: ...
    @property
    def prefix_id(self) -> int | None: ...
    @property
    def parent_id(self) -> int | None: ...
    @property
    def block_id(self) -> int | None: ...
    @property
    def token_ids(self) -> list[int] | None: ...
    @property
    def cache_salt(self) -> str | None: ...

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
    # token_ids: the first n of what was pinned, n = what pin_prefix returned.
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
