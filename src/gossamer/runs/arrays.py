"""Open files of tensors without reading all of them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from gossamer.runs.records import TENSORS, read_manifest, tensor_file


@contextmanager
def opened(file: Path, framework: Literal["pt", "numpy"]) -> Iterator[Any]:
    """Open a safetensors file; raise ``ValueError`` if it is damaged. With ``numpy``, torch is not needed."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(file, framework) as tensors:
            yield tensors
    except SafetensorError as error:
        raise ValueError(f"{file.name}: {error}") from error


def server_arrays(path: Path, rounds: int, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return some tensors of the server state at a checkpoint as arrays, by their flat names."""
    constant = {name: digest for name, digest in read_manifest(path, rounds)[TENSORS].items() if wanted(name)}
    with opened(path / f"checkpoints/{rounds}/server.safetensors", "numpy") as tensors:
        found = {name: tensors.get_tensor(name) for name in tensors.keys() if wanted(name)}  # noqa: SIM118
    for name, digest in constant.items():
        with opened(path / tensor_file(digest), "numpy") as tensors:
            found[name] = tensors.get_tensor("tensor")
    return found
