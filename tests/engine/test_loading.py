"""Where models go when no device is named."""

import pytest
import torch

from pagedattn.loading import default_device
from pagedattn.ops import BuildInfo


@pytest.mark.parametrize("has_gpu", [True, False])
@pytest.mark.parametrize("cuda_version", ["13.0", None])
def test_default_device_is_cuda_where_torch_and_the_op_library_have_it(
    monkeypatch, has_gpu, cuda_version
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    build = BuildInfo(cuda_version, [], "generic")
    monkeypatch.setattr("pagedattn.loading.build_info", lambda: build)
    expected = "cuda" if has_gpu and cuda_version else "cpu"
    assert default_device() == expected
