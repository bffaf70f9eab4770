"""The settings of torch that concern TF32, in both of its interfaces."""

from collections.abc import Callable
from typing import Any

import torch


def _read(setting: Callable[[], Any]) -> Any:
    """A setting, or that it cannot be read: the two interfaces contradict each other."""
    try:
        return setting()
    except RuntimeError:
        return "contradiction"


def settings() -> dict[str, Any]:
    """All settings by name."""
    backends: Any = torch.backends
    return {
        "matmul": backends.cuda.matmul.fp32_precision,
        "conv": backends.cudnn.conv.fp32_precision,
        "rnn": backends.cudnn.rnn.fp32_precision,
        "all of a GPU": backends.cudnn.fp32_precision,
        "all": backends.fp32_precision,
        "oneDNN": backends.mkldnn.matmul.fp32_precision,
        "older matmul": _read(lambda: backends.cuda.matmul.allow_tf32),
        "older cuDNN": _read(lambda: backends.cudnn.allow_tf32),
        "older precision": _read(torch.get_float32_matmul_precision),
    }
