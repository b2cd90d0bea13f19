"""Versions and hardware of this process, as plain JSON."""

import functools
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

import numpy
import torch

import camri


def describe_environment(device: torch.device) -> dict[str, Any]:
    """Versions, processor and device, stored with every outcome."""
    facts: dict[str, Any] = {
        "camri": camri.__version__,
        "commit": commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "device": str(device),
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
        facts["cuda"] = torch.version.cuda
        facts["cudnn"] = torch.backends.cudnn.version()
    return facts


@functools.cache
def commit() -> str | None:
    """The commit of the source tree, with a + for uncommitted changes; None for an installed package.

    CAMRI_COMMIT names it for a tree that was copied without its history.
    """
    if "CAMRI_COMMIT" in os.environ:
        return os.environ["CAMRI_COMMIT"]
    package = Path(camri.__file__).parent
    if not (package.parent / ".git").exists():
        return None

    def ask(*words: str) -> str:
        return subprocess.run(
            ["git", "-C", str(package), *words], capture_output=True, text=True, check=True, timeout=10
        ).stdout.strip()

    try:
        return ask("rev-parse", "--short", "HEAD") + ("+" if ask("status", "--porcelain", "--", ".") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
