"""Open files of tensors without reading all of them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal


@contextmanager
def opened(file: Path, framework: Literal["pt", "numpy"]) -> Iterator[Any]:
    """Open a safetensors file; raise ``ValueError`` if it is damaged. With ``numpy``, torch is not needed."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework) as tensors:
            yield tensors
    except SafetensorError as error:
        raise ValueError(f"{file.name}: {error}") from error
