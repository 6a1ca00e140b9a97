"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch

from pagedattn.ops import build_info


def describe(device: str) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "cpu_isa": build_info().cpu_isa,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "commit": commit(),
        "transparent_hugepages": hugepages(),
    }
    return facts | gpu() if device == "cuda" else facts


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def commit() -> str:
    """The commit of the sources, with a + if they differ from it; empty outside a repository."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        head = subprocess.run(
            [*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True
        )
        changed = subprocess.run([*git, "status", "--porcelain"], capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return head.stdout.strip() + ("+" if changed.stdout.strip() else "")


def hugepages() -> str:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return path.read_text().split("[")[-1].split("]")[0] if path.exists() else ""


def gpu() -> dict[str, Any]:
    """The current device, and what it may draw and reach."""
    properties = torch.cuda.get_device_properties(torch.cuda.current_device())
    return {
        "gpu": properties.name,
        "gpu_memory_bytes": properties.total_memory,
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "cuda": torch.version.cuda,
        **nvidia_smi("driver_version", "power.limit", "clocks.max.sm", "clocks.max.mem"),
    }


def clocks() -> dict[str, str]:
    """What the current device runs at now."""
    return nvidia_smi("clocks.sm", "clocks.mem", "temperature.gpu", "power.draw")


def nvidia_smi(*names: str) -> dict[str, str]:
    """What the driver says of the current device; "unknown" where nothing can be asked."""
    # Not by number: CUDA_VISIBLE_DEVICES renumbers torch's devices and not nvidia-smi's.
    uuid = torch.cuda.get_device_properties(torch.cuda.current_device()).uuid
    query = [f"--id=GPU-{uuid}", f"--query-gpu={','.join(names)}", "--format=csv,noheader"]
    try:
        reply = subprocess.run(
            ["nvidia-smi", *query], capture_output=True, text=True, check=True, timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return dict.fromkeys(names, "unknown")
    values = [value.strip() for value in reply.stdout.split(",")]
    return dict(zip(names, values, strict=True))
