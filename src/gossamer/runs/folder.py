"""A run is a folder.

    run.json               what was asked for: method, task, seed, options, versions, machine
    split.safetensors      which client holds which samples
    executor.json          which executor the run uses, and what was measured if it was chosen
    metrics.jsonl          one line a round, only ever appended to
    clients/N.safetensors  what the clients of round N remember, and some of earlier rounds
    models/N.safetensors   models of clients' own that the server keeps, as round N left them
    checkpoints/N/         the server's state after N rounds, and a manifest with the digest of every file it needs
    report.html            the run as a page, written when it ends
    run.lock               held while a process works here

Nothing that was finished is ever lost. Files are written aside, synced and renamed; a checkpoint counts once its folder
has its name. It records how long ``metrics.jsonl`` was, so a line that a killed process left behind is cut away and
its round done again, to the same bytes. The last two checkpoints are kept: if the newer one is damaged, the older one
is used, and the run says so.
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

FORMAT = 2
"""The form of a run folder; version 0.1 wrote 1, and did not say so."""

KEEP = 2
"""How many checkpoints are kept."""

CHOICE = "executor.json"

SLACK = 2
"""Files hold at most so many times the states that count; before that, some are written once more, and files go."""

STORES = ("clients", "models")
"""What is kept client by client: in the folder of that name, and under that name in a manifest."""


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands: how many rounds are done, and the server's state; what clients remember is read by itself."""

    rounds: int
    server: State


class RunFolder:
    """One run's folder, locked by the process that works in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.warnings: list[str] = []
        self._lock = files.take_lock(path / "run.lock")
        self._homes: dict[str, dict[int, int]] = {store: {} for store in STORES}  # whose state is in which round's file
        self._filed: dict[str, int] = {}  # how many states there are in a file, whether they still count or not
        self._digests: dict[str, str] = {}

    @classmethod
    def create(cls, path: Path, about: dict[str, Any], split: dict[str, Tensor]) -> "RunFolder":
        """A new run; the folder appears only once it is whole."""
        check_vacant(path)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            with files.told(f"no run was started in {path}"):
                for name in ("checkpoints", *STORES):
                    (aside / name).mkdir(parents=True)
                files.write(aside / "run.json", files.to_json({"format": FORMAT, **about}))
                files.write(aside / "split.safetensors", files.to_tensors(split))
                files.write(aside / "metrics.jsonl", b"")
                if path.is_dir():
                    path.rmdir()
                files.rename(aside, path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """An existing run, to go on with it."""
        read_about(path)
        folder = cls(path)
        for leftover in (path / "checkpoints").glob(".*"):
            shutil.rmtree(leftover)
        return folder

    def close(self) -> None:
        """Let others in."""
        os.close(self._lock)

    def keep_choice(self, choice: dict[str, Any]) -> None:
        """Keep what was chosen for the run (its executor), once: a resumed run stays with it."""
        if not (self.path / CHOICE).exists():
            with self._saving(1):
                files.write(self.path / CHOICE, files.to_json(choice))

    def append(self, record: dict[str, Any]) -> None:
        """Add a round's line to the metrics."""
        with self._saving(record["round"]):
            files.append(self.path / "metrics.jsonl", json.dumps(record).encode() + b"\n")

    def save(self, rounds: int, server: State, clients: ClientStore, models: ClientStore) -> None:
        """Make a checkpoint of everything after ``rounds`` rounds; only what changed is written anew."""
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
        """Whose states a round writes: those at home there, and those of files in which most do not count any more.

        A file is kept as long as one state in it counts. Were none written again, files would come to hold several
        times what clients remember.
        """
        counting = Counter(homes.values())
        mine = {client for client, home in homes.items() if home == rounds}
        others = {home: self._filed[_file(store, home)] for home in counting if home != rounds}
        while others and len(mine) + sum(others.values()) > SLACK * len(homes):
            stalest = max(others, key=lambda home: (others[home] - counting[home], -home))
            del others[stalest]
            mine |= {client for client, home in homes.items() if home == stalest}
        return sorted(mine)

    def _write_checkpoint(self, rounds: int, server: State) -> None:
        aside, final = self.path / f"checkpoints/.{rounds}", self.path / f"checkpoints/{rounds}"
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir()
        files.write(aside / "server.safetensors", files.to_tensors(tree.flatten(server)))
        needed = {f"checkpoints/{rounds}/server.safetensors": files.digest(aside / "server.safetensors")}
        for store, homes in self._homes.items():
            needed |= {_file(store, home): self._digests[_file(store, home)] for home in sorted(set(homes.values()))}
        manifest = {
            "rounds": rounds,
            "metrics_bytes": (self.path / "metrics.jsonl").stat().st_size,
            **{store: {str(c): home for c, home in sorted(homes.items())} for store, homes in self._homes.items()},
            "files": needed,
        }
        files.write(aside / "manifest.json", files.to_json(manifest))
        files.rename(aside, final)

    def _tidy(self) -> None:
        rounds = checkpoints(self.path)
        needed = {name for kept in rounds[:KEEP] for name in self._manifest(kept)["files"]}
        for old in rounds[KEEP:]:
            shutil.rmtree(self.path / f"checkpoints/{old}")
        for store in STORES:
            for file in (self.path / store).iterdir():
                if f"{store}/{file.name}" not in needed:
                    file.unlink()

    def restore(self) -> Checkpoint | None:
        """The newest checkpoint that is whole, or ``None`` before the first; the metrics are cut back to it."""
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
            self.warnings.append(f"{problem}; going on from round {found.rounds if found else 0}")
            shutil.rmtree(self.path / f"checkpoints/{rounds}")
        self._cut(self._manifest(found.rounds)["metrics_bytes"] if found else 0)
        self._tidy()  # a process killed at its own tidying leaves the rest to the next
        return found

    def _load(self, rounds: int) -> Checkpoint:
        manifest = self._manifest(rounds)
        for name, wanted in manifest["files"].items():
            if not (self.path / name).exists() or files.digest(self.path / name) != wanted:
                raise RunError(f"checkpoint {rounds} is damaged: {name} is missing or not what was written")
        self._homes = {store: {int(c): home for c, home in manifest.get(store, {}).items()} for store in STORES}
        names = [_file(store, home) for store, homes in self._homes.items() for home in homes.values()]
        self._digests = {name: manifest["files"][name] for name in names}
        server = tree.unflatten(files.from_tensors(self.path / f"checkpoints/{rounds}/server.safetensors"))
        return Checkpoint(rounds, server)

    def recall(self, clients: ClientStore, models: ClientStore) -> None:
        """Read what was kept client by client at the checkpoint that was restored, file by file."""
        for store, states in zip(STORES, (clients, models), strict=True):
            homes = self._homes[store]
            for home in set(homes.values()):
                found = tree.unflatten(files.from_tensors(self.path / _file(store, home)))
                self._filed[_file(store, home)] = len(found)
                for client in found:
                    if homes[int(client)] == home:
                        states.fill(int(client), found[client])

    def _manifest(self, rounds: int) -> dict[str, Any]:
        try:
            return files.from_json(self.path / f"checkpoints/{rounds}/manifest.json")
        except (OSError, ValueError) as error:
            raise RunError(f"checkpoint {rounds} is damaged: its manifest cannot be used ({error})") from error

    def _cut(self, length: int) -> None:
        metrics = self.path / "metrics.jsonl"
        if metrics.stat().st_size < length:
            raise RunError(f"{metrics} is shorter than its checkpoint says ({length} bytes): lines were removed")
        os.truncate(metrics, length)

    @contextmanager
    def _saving(self, rounds: int) -> Iterator[None]:
        safe = f"round {rounds} of {self.path} was not saved, the rounds before it are safe: mend that, then resume"
        with files.told(safe):
            yield


def _file(store: str, rounds: int) -> str:
    """What a round left of a store, by its name in the run's folder."""
    return f"{store}/{rounds}.safetensors"


def check_vacant(path: Path) -> None:
    """Refuse a place for a new run that already holds something."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} is not empty: choose another place, or resume the run that is there")


def checkpoints(path: Path) -> list[int]:
    """The rounds at which there are checkpoints, newest first."""
    names = [p.name for p in (path / "checkpoints").iterdir() if p.name.isdigit()]
    return sorted(map(int, names), reverse=True)


def read_about(path: Path) -> dict[str, Any]:
    """What ``run.json`` says, and which executor was chosen."""
    try:
        choice = files.from_json(path / CHOICE) if (path / CHOICE).exists() else {}
        about = files.from_json(path / "run.json") | choice
    except FileNotFoundError:
        raise RunError(f"{path} is not a run: there is no run.json in it") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}/run.json cannot be used: {error}") from error
    if (found := about.get("format", 1)) != FORMAT:
        raise RunError(
            f"{path} has format {found}, and this release reads format {FORMAT}: use the release that wrote it"
            + (" (0.1), or start the run anew" if found == 1 else "")
        )
    return about


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Every whole line of the metrics, one a round; a line that is still being written is left out."""
    try:
        text = (path / "metrics.jsonl").read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
    except (OSError, ValueError) as error:
        raise RunError(f"{path}/metrics.jsonl cannot be used: {error}") from error


def read_split(path: Path) -> dict[str, Tensor]:
    """The tensors of the run's split."""
    try:
        return files.from_tensors(path / "split.safetensors")
    except (OSError, ValueError) as error:
        raise RunError(f"{path}/split.safetensors cannot be read: {error}") from error


def read_server(path: Path) -> State:
    """The server's state at the newest checkpoint."""
    done = checkpoints(path)
    if not done:
        raise RunError(f"{path} has no finished round yet")
    return tree.unflatten(files.from_tensors(path / f"checkpoints/{done[0]}/server.safetensors"))


def is_busy(path: Path) -> bool:
    """Whether a process is working in the folder right now; asking leaves no trace in it."""
    if not os.access(path / "run.lock", os.R_OK | os.W_OK):
        return False
    try:
        os.close(files.take_lock(path / "run.lock", wait=0))
    except RunError:
        return True
    return False
