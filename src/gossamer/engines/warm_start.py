"""Warm start: the weights of a network before the first round, from a file, a run, a module or tensors.

The tensors must have the names and shapes of the network's ``state_dict``. Two kinds of tensors may be missing: integer
buffers, which count batches, and tensors that share their memory with a given one (tied weights). There is no partial
loading: to load a part of a network, do it in the function that builds the network.

A run folder keeps the tensors in ``init.safetensors``, so that a resumed run does not need their source.
"""

import copy
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Union
from zipfile import is_zipfile

import torch
from torch import Tensor, nn

from gossamer.core import files, sparse
from gossamer.core.errors import ConfigError, Mistake, RunError, Setting, gather
from gossamer.core.types import State
from gossamer.runs.checkpoint import read_client, read_init, read_server
from gossamer.runs.records import INIT, read_about
from gossamer.tasks.task import Task

Source = Union[str, Path, Mapping[str, Tensor], nn.Module, "Init"]

EXPORTED = "model.safetensors"
"""The file of an export, in a folder that is given as the source."""

ABOUT = Setting("", "init")
"""What mistakes in initial weights are about."""

NAMED = 20
"""The number of tensors that a message lists by name."""


@dataclass(frozen=True, eq=False)
class Init:
    """Initial weights.

    Args:
        tensors: tensors by the names of the network's ``state_dict``
        source: where they come from
    """

    tensors: Mapping[str, Tensor]
    source: str

    @classmethod
    def of(cls, source: Source) -> "Init":
        """Read initial weights from a file, a run folder, a module or a mapping of tensors."""
        if isinstance(source, Init):
            return source
        if isinstance(source, nn.Module):
            return cls(_plain(source.state_dict()), type(source).__name__)
        if isinstance(source, Mapping):
            return cls(_checked(source), "tensors")
        if not isinstance(source, str | Path):
            what = "a file, a run folder, a module or a mapping of tensors"
            hint = ": write init=result.model" if hasattr(type(source), "model") else ""
            raise ConfigError(Mistake(f"must be {what}, got a {type(source).__name__}{hint}", ABOUT))
        return cls(_read(Path(source)), str(Path(source).absolute()))

    @classmethod
    def kept(cls, path: Path) -> "Init | None":
        """Return the initial weights that a run folder keeps; none if the run started from the network's own."""
        about = read_about(path).get("init")
        if about is None:
            return None
        init = cls(read_init(path), about["from"])
        if init.digest != about["digest"]:
            raise RunError(f"{path / INIT} was altered since the run was started: restore it")
        return init

    @cached_property
    def data(self) -> bytes:
        """The tensors as a safetensors file."""
        return files.to_tensors(self.tensors)

    @cached_property
    def digest(self) -> str:
        """The SHA-256 of that file."""
        return hashlib.sha256(self.data).hexdigest()

    def describe(self) -> dict[str, str]:
        """Return source and digest for the run folder."""
        return {"from": self.source, "digest": self.digest}

    def applied(self, task: Task) -> Task:
        """Return the task whose network starts with these weights; refuse a network that they do not fit."""
        gather([Mistake(f"{self.source}: {mistake}", ABOUT) for mistake in _mismatches(task.model(), self.tensors)])

        def model() -> nn.Module:
            module = copy.deepcopy(task.model())  # some tasks return the same module at every call
            module.load_state_dict(self.tensors, strict=False)
            return module

        return replace(task, model=model)


def _mismatches(module: nn.Module, found: Mapping[str, Tensor]) -> Iterator[str]:
    """Yield every difference between given tensors and those of a network: names, shapes, values."""
    wanted, buffers = module.state_dict(), dict(module.named_buffers())
    given = {tensor.data_ptr() for name, tensor in wanted.items() if name in found}
    optional = {
        name
        for name, tensor in wanted.items()
        if tensor.data_ptr() in given or (name in buffers and not tensor.is_floating_point())
    }
    if missing := [name for name in wanted if name not in found and name not in optional]:
        yield f"the network has tensors that it lacks: {listed_tensors(missing)}"
    if strange := [name for name in found if name not in wanted and name not in buffers]:
        yield f"it has tensors that the network lacks: {listed_tensors(strange)}"
    both = [name for name in wanted if name in found]
    sizes = [f"{name} {list(found[name].shape)}, not {list(wanted[name].shape)}" for name in both]
    if other := [text for name, text in zip(both, sizes, strict=True) if found[name].shape != wanted[name].shape]:
        yield f"shapes differ: {listed_tensors(other)}"
    if bad := [name for name in both if not bool(torch.isfinite(found[name]).all())]:
        yield f"values that are not finite: {listed_tensors(bad)}"


def listed_tensors(names: Sequence[str]) -> str:
    """Return names of tensors for a message, at most ``NAMED`` of them."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def _read(path: Path) -> Mapping[str, Tensor]:
    if (path / "run.json").is_file():
        return _model_of(path)
    if path.is_dir():
        path = path / EXPORTED
    if not path.is_file():
        raise ConfigError(Mistake(f": there is no file or run {path}", ABOUT))
    try:
        safe = path.suffix == ".safetensors"
        found = sparse.read(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        what = "pickled objects, such as a whole module" if is_zipfile(path) else "no tensors that can be read"
        raise ConfigError(Mistake(f"{path}: it holds {what}: save model.state_dict()", ABOUT)) from error
    except Exception as error:  # a damaged file raises errors of many types
        raise ConfigError(Mistake(f"{path}: it holds no tensors that can be read: {_short(error)}", ABOUT)) from error
    return _checked(found, path)


def _short(error: Exception) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _checked(found: Any, source: str | Path = "") -> Mapping[str, Tensor]:
    """Return a mapping of tensors; refuse anything else."""
    if not isinstance(found, Mapping) or not all(isinstance(value, Tensor) for value in found.values()):
        wanted = "it must be a mapping of names to tensors: save model.state_dict()"
        raise ConfigError(Mistake(f"{source}: {wanted}", ABOUT))
    return _plain(found)


def _plain(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach().cpu().clone() for name, tensor in found.items()}


def _model_of(path: Path) -> Mapping[str, Tensor]:
    """Return the global model of a run folder, or the model of centralized training."""
    method = read_about(path)["method"]
    if method["pooled"] == "True":
        found: State = {"params": read_client(path, 0).get("own", {})}
    else:
        found = {} if method["send"] == "'nothing'" else read_server(path)
    weights = method["parametrization"] == "Weights()" and "adapter" not in method
    if not weights or not found.get("params"):
        advice = f"use gossamer export {path}, with --client N for the model of a client, and give the folder it writes"
        raise ConfigError(Mistake(f"{path}: the run has no global model that is stored as weights: {advice}", ABOUT))
    return dict(found["params"])
