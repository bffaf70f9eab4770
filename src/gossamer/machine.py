"""What a run ran on: versions and machine, for its run.json."""

import os
import platform
import resource
import sys

import numpy as np
import torch


def machine(device: str) -> dict[str, str | int]:
    """Versions, processor and device."""
    from gossamer import __version__

    return {
        "gossamer": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.platform(),
        "cores": os.cpu_count() or 1,
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.processor() or platform.machine(),
    }


def peak_memory() -> int:
    """The most memory this process has held so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
