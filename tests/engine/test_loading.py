"""Where models go when no device is named, and files that are none."""

import struct

import pytest
import torch

from pagedattn.loading import default_device, load
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


GGUF_HEADER = b"GGUF" + struct.pack("<IQQ", 3, 1, 1)  # version, and one tensor and one key to come


@pytest.mark.parametrize(
    "content", [b"", b"<html>", GGUF_HEADER, GGUF_HEADER + struct.pack("<Q", 1000)], ids=len
)
def test_a_gguf_file_cut_short_is_named(tmp_path, monkeypatch, content):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    message = rf"model\.gguf \({len(content)} bytes\) is not a complete GGUF file"
    with pytest.raises(ValueError, match=message):
        load(str(path))
    assert not (tmp_path / "cache").exists()
