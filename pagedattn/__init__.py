"""pagedattn: an LLM's KV cache managed like virtual memory.

Importing the package loads the ops `torch.ops.pagedattn.*` (see `pagedattn.ops`).
"""

from importlib.metadata import version

from pagedattn import ops as ops

__version__ = version("pagedattn")
