"""Open the tensor files of a checkpoint without loading all of their tensors; their digests are checked first."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from gossamer.core.errors import RunError
from gossamer.runs import inside
from gossamer.runs.records import FILES, SERVER, TENSORS, read_manifest, tensor_file


@contextmanager
def opened(path: Path, name: str, wanted: str, framework: Literal["pt", "numpy"]) -> Iterator[Any]:
    """Open a safetensors file of a run folder, given its digest. With ``numpy``, torch is not needed."""
    from safetensors import SafetensorError, safe_open

    try:
        if inside.digest(path, name) != wanted:
            raise ValueError("it was altered since it was written")
        with safe_open(path / name, framework) as tensors:
            yield tensors
    except (OSError, ValueError, SafetensorError) as error:
        raise RunError(f"{path / name} cannot be used: {error}: gossamer resume goes back to what is whole") from error


def server_arrays(path: Path, rounds: int, wanted: Callable[[str], bool]) -> dict[str, Any]:
    """Return some tensors of the server state at a checkpoint as arrays, by their flat names."""
    manifest, server = read_manifest(path, rounds), f"checkpoints/{rounds}/{SERVER}"
    constant = {name: digest for name, digest in manifest[TENSORS].items() if wanted(name)}
    with opened(path, server, manifest[FILES].get(server, ""), "numpy") as tensors:
        found = {name: tensors.get_tensor(name) for name in tensors.keys() if wanted(name)}  # noqa: SIM118
    for name, digest in constant.items():
        with opened(path, tensor_file(digest), digest, "numpy") as tensors:
            found[name] = tensors.get_tensor("tensor")
    return found
