"""pagedattn: an LLM's KV cache managed like virtual memory.

Importing the package loads the ops `torch.ops.pagedattn.*` (see `pagedattn.ops`).
"""

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pagedattn import ops as ops
from pagedattn.block_manager import AllocationStatus, BlockManager, OutOfBlocks
from pagedattn.cascade import cascade_attention
from pagedattn.kv_cache import KVCache

if TYPE_CHECKING:
    from pagedattn.engine import Engine
    from pagedattn.outputs import CompletionOutput, RequestOutput
    from pagedattn.sampling import SamplingParams

__all__ = [
    "AllocationStatus",
    "BlockManager",
    "CompletionOutput",
    "Engine",
    "KVCache",
    "OutOfBlocks",
    "RequestOutput",
    "SamplingParams",
    "cascade_attention",
]
__version__ = version("pagedattn")

# The engine needs transformers, which the ops, the cache and the block manager do without.
_ENGINE_MODULES = {
    "CompletionOutput": "pagedattn.outputs",
    "Engine": "pagedattn.engine",
    "RequestOutput": "pagedattn.outputs",
    "SamplingParams": "pagedattn.sampling",
}


def __getattr__(name: str) -> Any:
    if name not in _ENGINE_MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_ENGINE_MODULES[name]), name)
    except ModuleNotFoundError as error:
        raise ImportError(
            f"pagedattn.{name} needs {error.name}; install it with pip install 'pagedattn[engine]'"
        ) from error
