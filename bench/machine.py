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
    if device == "cuda":
        facts["gpu"] = gpu()
    return facts


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
    """Name, memory and clocks as the driver reports them; nothing is set."""
    properties = torch.cuda.get_device_properties(0)
    facts: dict[str, Any] = {
        "name": properties.name,
        "memory_bytes": properties.total_memory,
        "sms": properties.multi_processor_count,
        "cuda": torch.version.cuda,
    }
    query = "clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,driver_version"
    try:
        reply = subprocess.run(
            ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader", "--id=0"],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return facts
    values = [value.strip() for value in reply.stdout.split(",")]
    return facts | dict(zip(query.split(","), values, strict=True))
