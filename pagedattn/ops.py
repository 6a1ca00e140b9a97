"""Loads the op library and adds what only Python can: fake kernels, and an error for gradients.

The ops are called as `torch.ops.pagedattn.<name>`. `docs/ops.md` gives shapes, dtypes and
errors of each; `pagedattn.reference` states the same in plain torch.
"""

import ctypes
import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 10):
    raise ImportError(f"pagedattn needs torch >= 2.10 (its stable ABI); found {torch.__version__}")

_spec = importlib.util.find_spec("pagedattn._C")
if _spec is None or _spec.origin is None:
    raise ImportError(
        "pagedattn's op library is not built; install the package with "
        "`pip install --no-build-isolation .` or build it in place with `make build`"
    )
torch.ops.load_library(_spec.origin)
_library = ctypes.CDLL(_spec.origin)


class BuildInfo(NamedTuple):
    """What the op library was built with and what it chose on this machine."""

    cuda_version: str | None
    """Version of the CUDA toolkit that compiled the CUDA half; None: built without it."""
    cuda_archs: list[str]
    """GPU architectures of the CUDA half, e.g. `["sm_80", "sm_90", "compute_120"]`."""
    cpu_isa: str
    """Instruction set of the CPU kernels in use: `generic`, `avx2`, `avx512`, `avx512_bf16`, ..."""


def build_info() -> BuildInfo:
    """Describes the op library that is loaded.

    Raises ValueError where PAGEDATTN_CPU_ISA names an instruction set that cannot be had.
    """
    archs, version, isa = map(_library_text, ("cuda_archs", "cuda_version", "cpu_isa"))
    if isa.startswith("error: "):
        raise ValueError(isa.removeprefix("error: "))
    return BuildInfo(
        cuda_version=version or None,
        cuda_archs=archs.split(",") if archs else [],
        cpu_isa=isa,
    )


def _library_text(name: str) -> str:
    function = getattr(_library, f"pagedattn_{name}")
    function.restype = ctypes.c_char_p
    text: bytes = function()
    return text.decode()


_OUT_OPS = (
    "paged_attention_v1",
    "paged_attention_v2",
    "paged_attention_varlen",
    "merge_attention_states",
    "reshape_and_cache",
    "copy_blocks",
    "swap_blocks",
)


def _needs_grad(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.requires_grad
    return isinstance(value, (list, tuple)) and any(map(_needs_grad, value))


def _refuse_gradients(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raises where a silent zero gradient would result; the compiled ops do the same."""
    if torch.is_grad_enabled() and (
        any(map(_needs_grad, args)) or any(map(_needs_grad, kwargs.values()))
    ):
        raise RuntimeError(
            f"pagedattn::{name} has no backward, but an input requires grad; call it under "
            "torch.no_grad() or torch.inference_mode()"
        )


def _register_fake(name: str, fake: Callable[..., Any]) -> None:
    def checked(*args: Any, **kwargs: Any) -> Any:
        _refuse_gradients(name, args, kwargs)
        return fake(*args, **kwargs)

    torch.library.register_fake(f"pagedattn::{name}", checked)


def _register_autograd(name: str) -> None:
    """Gives op `name` an Autograd kernel, which costs 7 us a call, that refuses gradients."""
    op = getattr(torch.ops.pagedattn, name).default

    def kernel(*args: Any, **kwargs: Any) -> Any:
        _refuse_gradients(name, args, kwargs)
        with torch._C._AutoDispatchBelowAutograd():
            return op(*args, **kwargs)

    _autograd.impl(name, kernel)


def _fake_paged_attention(query: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return query.new_empty(query.shape)


def _fake_gather_cache(
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    cu_seq_lens: Tensor,
    num_tokens: int,
    *,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    dtype: torch.dtype | None = None,
) -> tuple[Tensor, Tensor]:
    shape = (num_tokens, *key_cache.shape[2:])
    dtype = dtype or key_cache.dtype
    return key_cache.new_empty(shape, dtype=dtype), value_cache.new_empty(shape, dtype=dtype)


for _name in _OUT_OPS:
    _register_fake(_name, lambda *args, **kwargs: None)  # they only write into their arguments
_register_fake("paged_attention", _fake_paged_attention)
_register_fake("gather_cache", _fake_gather_cache)

_library.pagedattn_can_ask_for_gradients.restype = ctypes.c_bool
if not _library.pagedattn_can_ask_for_gradients():
    _autograd = torch.library.Library("pagedattn", "IMPL", "Autograd")
    for _name in (*_OUT_OPS, "paged_attention", "gather_cache"):
        _register_autograd(_name)
