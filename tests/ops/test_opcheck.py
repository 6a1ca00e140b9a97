"""torch.library.opcheck: schemas tell what is mutated, fake kernels and autograd are in order."""

from __future__ import annotations

import pytest
import torch

from .arguments import ALL_OPS, to_backend, valid_arguments
from .backends import Backend


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", ALL_OPS)
def test_opcheck(op: str, dtype: torch.dtype, backend: Backend):
    if backend.ops is not torch.ops.pagedattn:
        pytest.skip("only the package's own ops have fake kernels")
    arguments = to_backend(op, valid_arguments(op, dtype), backend.device)
    torch.library.opcheck(getattr(torch.ops.pagedattn, op).default, (), arguments)


@pytest.mark.parametrize("dtype", [None, torch.float16], ids=str)
def test_fake_gather_cache_has_the_shape_and_dtype_of_the_real_one(dtype: torch.dtype | None):
    arguments = valid_arguments("gather_cache")
    for name in ("key_cache", "value_cache"):
        arguments[name] = arguments[name].to(torch.float8_e5m2)
    real = torch.ops.pagedattn.gather_cache(**arguments, dtype=dtype)
    fake = torch.ops.pagedattn.gather_cache(
        **to_backend("gather_cache", arguments, torch.device("meta")), dtype=dtype
    )
    for a, b in zip(real, fake, strict=True):
        assert (a.shape, a.dtype, a.stride()) == (b.shape, b.dtype, b.stride())
