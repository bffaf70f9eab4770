"""A run is a folder.

    run.json               the request: method, task, seed, options, versions, machine
    split.safetensors      the partition: the samples of each client
    init.safetensors       the initial weights, if they were given
    executor.json          the executor of the run, and the measurements if it was chosen automatically
    metrics.jsonl          one line per round, only appended to
    clients/N.safetensors  client states written in round N; some are of earlier rounds
    models/N.safetensors   personalized models that the server keeps, written in round N
    tensors/D.safetensors  a large tensor of the server state that does not change, named by its digest
    checkpoints/N/         the rest of the server state after N rounds, and a manifest with the digests of all files
    report.html            the report, written when the run ends
    run.lock               held while a process works in the folder

Finished rounds are never lost. Files are written under a temporary name, synced and renamed. A checkpoint is complete
once its folder has its final name. A checkpoint records the length of ``metrics.jsonl``. A line that a killed process
left behind is cut off, and its round is repeated with the same bytes. The last two checkpoints are kept. If the newer
one is damaged, the run warns and continues from the older one.

A large tensor that equals that of the previous checkpoint moves to a file of its own. Later checkpoints refer to this
file as long as the tensor stays the same, so that a constant state is written twice in all, not in every round.
"""

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from gossamer.core import files, tree
from gossamer.core.errors import RunError
from gossamer.core.store import ClientStore
from gossamer.core.types import State
from gossamer.runs.records import (
    CHOICE,
    FORMAT,
    TENSORS,
    check_vacant,
    checkpoints,
    read_about,
    read_manifest,
    tensor_file,
)

KEEP = 2
"""The number of checkpoints to keep."""

SLACK = 2
"""Files hold at most this multiple of the current states; beyond it, states are rewritten and old files deleted."""

INIT = "init.safetensors"

STORES = ("clients", "models")
"""Per-client stores: each is a folder, and a key of the manifest."""

LARGE = 2**16
"""Bytes from which an unchanged tensor has a file of its own."""


@dataclass(frozen=True)
class Checkpoint:
    """A position in a run; client states are read separately, by ``RunFolder.recall``.

    Args:
        rounds: the number of finished rounds
        server: the server state after them
    """

    rounds: int
    server: State


class RunFolder:
    """The folder of one run, locked by the process that works in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._lock = files.take_lock(path / "run.lock")
        # For each store and client, the round of the file with its state.
        self._homes: dict[str, dict[int, int]] = {store: {} for store in STORES}
        self._filed: dict[str, int] = {}  # file -> number of states in it, current or not
        self._digests: dict[str, str] = {}
        self._latest: dict[str, str] = {}  # digests of the large tensors of the server state at the last checkpoint

    @classmethod
    def create(
        cls, path: Path, about: dict[str, Any], split: dict[str, Tensor], init: bytes | None = None
    ) -> "RunFolder":
        """Create a new run; the folder appears only once it is complete."""
        check_vacant(path)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with files.on_failure(f"no run was started in {path}"):
                for name in ("checkpoints", TENSORS, *STORES):
                    (aside / name).mkdir(parents=True)
                files.write(aside / "run.json", files.to_json({"format": FORMAT, **about}))
                files.write(aside / "split.safetensors", files.to_tensors(split))
                files.write(aside / "metrics.jsonl", b"")
                if init is not None:
                    files.write(aside / INIT, init)
                if path.is_dir():
                    path.rmdir()
                files.rename(aside, path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open an existing run to continue it."""
        read_about(path)
        folder = cls(path)
        for leftover in (path / "checkpoints").glob(".*"):
            shutil.rmtree(leftover)
        return folder

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def rewrite(self, entries: dict[str, Any]) -> None:
        """Change entries of ``run.json``."""
        with files.on_failure(f"{self.path} is unchanged"):
            about = files.from_json(self.path / "run.json")
            files.write(self.path / "run.json", files.to_json(about | entries))

    def keep_choice(self, choice: dict[str, Any]) -> None:
        """Save the choice of executor, once; a resumed run keeps it."""
        if not (self.path / CHOICE).exists():
            with self._saving(1):
                files.write(self.path / CHOICE, files.to_json(choice))

    def append(self, record: dict[str, Any]) -> None:
        """Append the record of a round to the metrics."""
        with self._saving(record["round"]):
            files.append(self.path / "metrics.jsonl", json.dumps(record).encode() + b"\n")

    def save(self, rounds: int, server: State, clients: ClientStore, models: ClientStore) -> None:
        """Write a checkpoint after ``rounds`` rounds; only changed client states are written."""
        with self._saving(rounds):
            for store, states in zip(STORES, (clients, models), strict=True):
                if states.changed:
                    self._write_states(rounds, store, states)
            self._write_checkpoint(rounds, server)
        clients.changed.clear()
        models.changed.clear()
        self._tidy()

    def _write_states(self, rounds: int, store: str, states: ClientStore) -> None:
        name, homes = _file(store, rounds), self._homes[store] | dict.fromkeys(states.changed, rounds)
        mine = self._gathered(store, homes, rounds)
        flat = tree.flatten({str(client): states.get(client) for client in mine})
        files.write(self.path / name, files.to_tensors(flat))
        files.sync_folder(self.path / store)
        self._homes[store] = homes | dict.fromkeys(mine, rounds)
        self._digests[name], self._filed[name] = files.digest(self.path / name), len(tree.unflatten(flat))

    def _gathered(self, store: str, homes: dict[int, int], rounds: int) -> list[int]:
        """Return the clients whose states a round writes: changed ones, and those of files that are mostly outdated.

        A file is kept as long as one state in it is current. Without rewriting, the files would grow to several
        times the size of the current states.
        """
        current = Counter(homes.values())
        mine = {client for client, home in homes.items() if home == rounds}
        others = {home: self._filed[_file(store, home)] for home in current if home != rounds}
        while others and len(mine) + sum(others.values()) > SLACK * len(homes):
            stalest = max(others, key=lambda home: (others[home] - current[home], -home))
            del others[stalest]
            mine |= {client for client, home in homes.items() if home == stalest}
        return sorted(mine)

    def _write_checkpoint(self, rounds: int, server: State) -> None:
        aside, final = self.path / f"checkpoints/.{rounds}", self.path / f"checkpoints/{rounds}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        flat = tree.flatten(server)
        constant = self._write_constant(flat)
        changed = {name: tensor for name, tensor in flat.items() if name not in constant}
        files.write(aside / "server.safetensors", files.to_tensors(changed))
        needed = {f"checkpoints/{rounds}/server.safetensors": files.digest(aside / "server.safetensors")}
        needed |= {tensor_file(digest): digest for digest in constant.values()}
        for store, homes in self._homes.items():
            needed |= {_file(store, home): self._digests[_file(store, home)] for home in sorted(set(homes.values()))}
        manifest = {
            "rounds": rounds,
            "metrics_bytes": (self.path / "metrics.jsonl").stat().st_size,
            **{store: {str(c): home for c, home in sorted(homes.items())} for store, homes in self._homes.items()},
            TENSORS: constant,
            "files": needed,
        }
        files.write(aside / "manifest.json", files.to_json(manifest))
        files.rename(aside, final)

    def _write_constant(self, flat: dict[str, Tensor]) -> dict[str, str]:
        """Write large tensors that did not change since the last checkpoint, unless they are there. Return digests."""
        before, self._latest = self._latest, {}
        for name, tensor in flat.items():
            if tensor.nbytes < LARGE:
                continue
            data = _tensor_bytes(tensor)
            self._latest[name] = digest = files.digest_of(data)
            if before.get(name) == digest and not (self.path / tensor_file(digest)).exists():
                files.write(self.path / tensor_file(digest), data)
        files.sync_folder(self.path / TENSORS)
        return {name: digest for name, digest in self._latest.items() if before.get(name) == digest}

    def _tidy(self) -> None:
        rounds = checkpoints(self.path)
        needed = {name for kept in rounds[:KEEP] for name in self._manifest(kept)["files"]}
        for old in rounds[KEEP:]:
            shutil.rmtree(self.path / f"checkpoints/{old}")
        for store in (TENSORS, *STORES):
            for file in (self.path / store).iterdir():
                if f"{store}/{file.name}" not in needed:
                    file.unlink()

    def restore(self) -> Checkpoint | None:
        """Return the newest intact checkpoint, or ``None`` before the first; cut the metrics back to it."""
        damaged: dict[int, str] = {}
        found = None
        for rounds in checkpoints(self.path):
            try:
                found = found or self._load(rounds)
            except RunError as error:
                damaged[rounds] = str(error)
        if damaged and found is None:
            raise RunError(f"no checkpoint of {self.path} can be used: " + "; ".join(damaged.values()))
        for rounds, problem in damaged.items():
            self.warnings.append(f"{problem}; continuing from round {found.rounds if found else 0}")
            shutil.rmtree(self.path / f"checkpoints/{rounds}")
        self._cut(self._manifest(found.rounds)["metrics_bytes"] if found else 0)
        self._tidy()  # the previous process may have been killed before it tidied
        return found

    def _load(self, rounds: int) -> Checkpoint:
        manifest = self._manifest(rounds)
        for name, wanted in manifest["files"].items():
            if not (self.path / name).exists() or files.digest(self.path / name) != wanted:
                raise RunError(f"checkpoint {rounds} is damaged: {name} is missing or was altered")
        self._homes = {store: {int(c): home for c, home in manifest.get(store, {}).items()} for store in STORES}
        names = [_file(store, home) for store, homes in self._homes.items() for home in homes.values()]
        self._digests = {name: manifest["files"][name] for name in names}
        flat = _read_flat(self.path, rounds, manifest[TENSORS])
        large = {name: tensor for name, tensor in flat.items() if tensor.nbytes >= LARGE}
        self._latest = {name: files.digest_of(_tensor_bytes(tensor)) for name, tensor in large.items()}
        return Checkpoint(rounds, tree.unflatten(flat))

    def recall(self, clients: ClientStore, models: ClientStore) -> None:
        """Read the per-client states of the restored checkpoint, file by file."""
        for store, states in zip(STORES, (clients, models), strict=True):
            homes = self._homes[store]
            for home in set(homes.values()):
                found = tree.unflatten(files.from_tensors(self.path / _file(store, home)))
                self._filed[_file(store, home)] = len(found)
                for client in found:
                    if homes[int(client)] == home:
                        states.fill(int(client), found[client])

    def _manifest(self, rounds: int) -> dict[str, Any]:
        return read_manifest(self.path, rounds)

    def _cut(self, length: int) -> None:
        metrics = self.path / "metrics.jsonl"
        if metrics.stat().st_size < length:
            raise RunError(f"{metrics} is shorter than its checkpoint records ({length} bytes): lines were removed")
        os.truncate(metrics, length)

    @contextmanager
    def _saving(self, rounds: int) -> Iterator[None]:
        safe = f"round {rounds} of {self.path} was not saved, earlier rounds are safe: fix the cause, then resume"
        with files.on_failure(safe):
            yield


def _file(store: str, rounds: int) -> str:
    """Return the file of a store and a round, relative to the run folder."""
    return f"{store}/{rounds}.safetensors"


def _tensor_bytes(tensor: Tensor) -> bytes:
    """Return the content of the file of an unchanged tensor."""
    return files.to_tensors({"tensor": tensor})


def _read_flat(path: Path, rounds: int, constant: dict[str, str]) -> dict[str, Tensor]:
    """Return the flat server state of a checkpoint. ``constant`` has the digests of the tensors in other files."""
    flat = files.from_tensors(path / f"checkpoints/{rounds}/server.safetensors")
    return flat | {name: files.from_tensors(path / tensor_file(digest))["tensor"] for name, digest in constant.items()}


def read_split(path: Path) -> dict[str, Tensor]:
    """Return the tensors of the run's partition."""
    try:
        return files.from_tensors(path / "split.safetensors")
    except (OSError, ValueError) as error:
        raise RunError(f"{path}/split.safetensors cannot be read: {error}") from error


def read_server(path: Path) -> State:
    """Return the server state at the newest checkpoint."""
    done = checkpoints(path)
    if not done:
        raise RunError(f"{path} has no finished round yet")
    return tree.unflatten(_read_flat(path, done[0], read_manifest(path, done[0])[TENSORS]))
