"""Memory management of a paged KV cache; the work is done in C++ (``csrc/block_manager``).

See ``docs/block_manager.md`` for the life of a block and for what sharing means.
"""

from pagedattn._block_manager import (
    AllocateBatchResult,
    Allocation,
    AllocationStatus,
    AppendResult,
    BatchResult,
    BlockManager,
    BlockManagerStats,
    KvEvent,
    OutOfBlocks,
)

__all__ = [
    "AllocateBatchResult",
    "Allocation",
    "AllocationStatus",
    "AppendResult",
    "BatchResult",
    "BlockManager",
    "BlockManagerStats",
    "KvEvent",
    "OutOfBlocks",
]
