"""The command ``pagedattn``."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from .config import DEFAULT_MODEL

if TYPE_CHECKING:
    from .engine import Engine


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="pagedattn", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)

    info = commands.add_parser("info", help="what is installed and what it runs on")
    info.set_defaults(run=_info)

    model_options = argparse.ArgumentParser(add_help=False)
    model_options.add_argument(
        "--model",
        default=DEFAULT_MODEL,
        help="folder, .gguf file or name of a model (default: the packaged SmolLM2-135M-Instruct)",
    )
    model_options.add_argument(
        "--device", help='device to run on (default: "cuda" where it can be used, else "cpu")'
    )
    model_options.add_argument("--max-tokens", type=_positive, default=128, help="per answer")

    generate = commands.add_parser(
        "generate", parents=[model_options], help="answer one prompt, streaming"
    )
    generate.add_argument("prompt")
    generate.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default)")
    generate.add_argument("--top-p", type=float, default=1.0)
    generate.add_argument("--seed", type=int)
    generate.add_argument(
        "--raw", action="store_true", help="continue the prompt as it is, without a chat template"
    )
    generate.set_defaults(run=_generate)

    demo = commands.add_parser(
        "demo",
        parents=[model_options],
        help="answer prompts that share a system prompt; measure",
    )
    demo.set_defaults(run=_demo)

    options = parser.parse_args(arguments)
    try:
        status: int = options.run(options)
    except (ValueError, OSError) as error:
        print(f"pagedattn: {error}", file=sys.stderr)
        return 1
    except ImportError as error:
        # Only the engine imports what the package itself does without: transformers, gguf.
        print(
            f"pagedattn: {error}; the engine needs `pip install 'pagedattn[engine]'`",
            file=sys.stderr,
        )
        return 1
    return status


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _info(_: argparse.Namespace) -> int:
    import torch

    from . import __version__
    from .ops import build_info

    build = build_info()
    if build.cuda_version is None:
        cuda_half = "not built (at build time there was no nvcc, or PAGEDATTN_CUDA=0)"
    else:
        cuda_half = f"built by CUDA {build.cuda_version} for {', '.join(build.cuda_archs)}"
        if build.cuda_version.startswith("13."):
            cuda_half += "; needs a driver >= 580"
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    devices = ["cpu", *(f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(count))]
    rows = {
        "pagedattn": __version__,
        "torch": torch.__version__,
        "CUDA half": cuda_half,
        "CPU kernels": f"{build.cpu_isa}, {torch.get_num_threads()} threads",
        "devices": ", ".join(devices),
    }
    for name, value in rows.items():
        print(f"{name:<12} {value}")
    return 0


def _generate(options: argparse.Namespace) -> int:
    from .chat import chat_prompt
    from .sampling import SamplingParams

    params = SamplingParams(
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
        max_tokens=options.max_tokens,
    )
    engine = _load_engine(options)
    prompt = options.prompt if options.raw else chat_prompt(engine.tokenizer, options.prompt)
    shown = 0
    for output in engine.stream(prompt, params):
        text = output.outputs[0].text
        print(text[shown:], end="", flush=True)
        shown = len(text)
    print()
    return 0


def _demo(options: argparse.Namespace) -> int:
    from .demo import run_demo

    run_demo(_load_engine(options), max_tokens=options.max_tokens)
    return 0


def _load_engine(options: argparse.Namespace) -> Engine:
    if options.model == DEFAULT_MODEL:
        os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when transformers is imported
    from transformers.utils import logging

    from .engine import Engine
    from .loading import default_device

    if not sys.stderr.isatty():
        logging.disable_progress_bar()
    device = options.device or default_device()
    print(f"loading {options.model} on {device} ...", file=sys.stderr, flush=True)
    return Engine.from_pretrained(options.model, device=device)
