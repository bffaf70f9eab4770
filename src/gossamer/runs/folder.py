"""A run is a folder.

    run.json               the request: method, task, seed, options, versions, machine
    split.safetensors      the partition: the samples of each client
    init.safetensors       the initial weights, if they were given
    run.secret             a key that does not follow from the seed: that of a deployment, and of what checkpoints
                           encrypt (``checkpoint``); readable by its owner alone
    executor.json          the executor of the run, and the measurements if it was chosen automatically
    releases.jsonl         the cohorts of a private run, written as they are drawn
    metrics.jsonl          one line per round, only appended to (``records``)
    clients/N.safetensors  client states written in round N; some are of earlier rounds
    models/N.safetensors   personalized models that the server keeps, written in round N
    tensors/D.safetensors  a large tensor of the server state that does not change, named by its digest
    checkpoints/N/         the rest of the server state after N rounds, and a manifest with the digests of all files
    report.html            the report, written when the run ends
    run.lock               held while a process works in the folder

Finished rounds are never lost. Files are written under a temporary name, synced and renamed. A checkpoint is complete
once its folder has its final name. A checkpoint records the length of ``metrics.jsonl`` and the digest of its last
line. A line that a killed process left behind is cut off, and its round is repeated with the same bytes. The last two
checkpoints are kept. If the newer one is damaged, the run warns and continues from the older one.

A folder may come from somebody else. No symbolic link in it is followed (``inside``). Files that the run has not
written are left alone.

A large tensor that equals that of the previous checkpoint moves to a file of its own. Later checkpoints refer to this
file as long as the tensor stays the same, so that a constant state is written twice in all, not in every round.

``releases.jsonl`` says what a private run may have released. Noise and cohorts from the operating system cannot be
drawn again. So a round that is repeated after a crash has another cohort and other noise, and somebody may have seen
what came of the first attempt: it counts a second time. Each line is on disk before the first message of its attempt
leaves the server:

    {"round": 3, "clients": [2, 5, 11]}    an attempt at round 3 (from 1), with its cohort
    {"round": 3, "void": true}             nothing that depends on this cohort has left the server: it does not count

A line that a crash has cut off counts. Runs whose noise follows from the seed repeat the same bytes, and have no file.
"""

import json
import os
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from gossamer.core import files, tree
from gossamer.core.errors import RunError
from gossamer.core.store import ClientStore
from gossamer.core.types import State
from gossamer.runs import inside
from gossamer.runs.checkpoint import Checkpoint, newest, recall
from gossamer.runs.records import (
    ABOUT,
    CHAIN,
    CHOICE,
    FILES,
    FOLDERS,
    FORMAT,
    INIT,
    LOCK,
    MANIFEST,
    METRICS,
    SECRET,
    SERVER,
    SPLIT,
    STORES,
    TENSORS,
    Record,
    check_vacant,
    checkpoints,
    kept_choice,
    line_of,
    linkless,
    read_about,
    read_manifest,
    state_file,
    tensor_file,
)

KEEP = 2
"""The number of checkpoints to keep."""

SLACK = 2
"""Files hold at most this multiple of the current states; beyond it, states are rewritten and old files deleted."""

LARGE = 2**16
"""Bytes from which an unchanged tensor has a file of its own."""

OURS = {TENSORS: r"[0-9a-f]{64}", **dict.fromkeys(STORES, "[1-9][0-9]*")}
"""The names of the files in these folders, without their ending. Others were put there by somebody else."""


class RunFolder:
    """The folder of one run, locked by the process that works in it."""

    def __init__(self, path: Path, start: str) -> None:
        self.path = path
        self.warnings: list[str] = []
        with files.on_failure(f"{path / LOCK} cannot be used"):
            self._lock = files.take_lock(path / LOCK)
        # For each store and client, the round of the file with its state.
        self._homes: dict[str, dict[int, int]] = {store: {} for store in STORES}
        self._filed: dict[str, int] = {}  # file -> number of states in it, current or not
        self._digests: dict[str, str] = {}
        self._latest: dict[str, str] = {}  # digests of the large tensors of the server state at the last checkpoint
        self._chain = start  # digest of the last line of the metrics
        self._choice: dict[str, Any] = {}
        self._needed: dict[int, set[str]] = {}  # files that each checkpoint needs

    @classmethod
    def create(
        cls,
        path: Path,
        about: dict[str, Any],
        split: dict[str, Tensor],
        init: bytes | None = None,
        secret: bytes | None = None,
    ) -> "RunFolder":
        """Create a new run; the folder appears only once it is complete."""
        check_vacant(path)
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        fixed = {SPLIT: files.to_tensors(split), **({} if init is None else {INIT: init})}
        start = files.digest_of(files.to_json(about))
        kept = {CHAIN: start, FILES: {name: files.digest_of(data) for name, data in fixed.items()}}
        try:
            with files.on_failure(f"no run was started in {path}"):
                for name in FOLDERS:
                    (aside / name).mkdir(parents=True)
                files.write(aside / ABOUT, files.to_json({"format": FORMAT, **about, **kept}))
                for name, data in (*fixed.items(), (METRICS, b"")):
                    files.write(aside / name, data)
                if secret is not None:
                    files.write(aside / SECRET, secret, 0o600)
                if path.is_dir():
                    path.rmdir()
                files.rename(aside, path)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        return cls(path, start)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """Open an existing run to continue it."""
        start = str(read_about(path).get(CHAIN, ""))
        inside.refuse_links(path, linkless(path))
        folder = cls(path, start)
        try:
            folder._prepare()
        except BaseException:
            folder.close()
            raise
        return folder

    def _prepare(self) -> None:
        """Make missing folders, and delete what a killed process left of a checkpoint."""
        with files.on_failure(f"{self.path} cannot be continued"):
            for name in FOLDERS:  # an archive may have left out empty ones
                (self.path / name).mkdir(exist_ok=True)
            for name in inside.names(self.path, "checkpoints"):
                if re.fullmatch(r"\.[1-9][0-9]*", name):
                    self._remove_checkpoint(name)

    def close(self) -> None:
        """Release the lock."""
        os.close(self._lock)

    def rewrite(self, entries: dict[str, Any]) -> None:
        """Change entries of ``run.json``."""
        with files.on_failure(f"{self.path} is unchanged"):
            about = inside.read_json(self.path, ABOUT)
            files.write(self.path / ABOUT, files.to_json(about | entries))

    def keep_choice(self, choice: dict[str, Any]) -> None:
        """Save the choice of executor, once; a resumed run keeps it."""
        if not self._choice:
            kept = kept_choice(self.path)
            self._choice = kept or choice
            if not kept:
                with self._saving(1):
                    files.write(self.path / CHOICE, files.to_json(choice))

    def append(self, record: Record) -> None:
        """Append the record of a round to the metrics."""
        line, after = line_of(record, self._chain)
        with self._saving(record["round"]):
            inside.append(self.path, METRICS, line)
        self._chain = after

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
        name, homes = state_file(store, rounds), self._homes[store] | dict.fromkeys(states.changed, rounds)
        # Changed states, and those of files that are mostly outdated: a file is kept as long as one state in it is
        # current, so without rewriting, the files would grow to several times the size of the current states.
        current = Counter(homes.values())
        mine = {client for client, home in homes.items() if home == rounds}
        others = {home: self._filed[state_file(store, home)] for home in current if home != rounds}
        while others and len(mine) + sum(others.values()) > SLACK * len(homes):
            stalest = max(others, key=lambda home: (others[home] - current[home], -home))
            del others[stalest]
            mine |= {client for client, home in homes.items() if home == stalest}
        flat = tree.flatten({str(client): states.get(client) for client in sorted(mine)})
        files.write(self.path / name, files.to_tensors(flat))
        files.sync_folder(self.path / store)
        self._homes[store] = homes | dict.fromkeys(mine, rounds)
        self._digests[name], self._filed[name] = files.digest(self.path / name), len(tree.unflatten(flat))

    def _write_checkpoint(self, rounds: int, server: State) -> None:
        aside, final = self.path / f"checkpoints/.{rounds}", self.path / f"checkpoints/{rounds}"
        self._remove_checkpoint(f".{rounds}")
        aside.mkdir(exist_ok=True)
        flat = tree.flatten(server)
        constant = self._write_constant(flat)
        changed = {name: tensor for name, tensor in flat.items() if name not in constant}
        files.write(aside / SERVER, files.to_tensors(changed))
        needed = {f"checkpoints/{rounds}/{SERVER}": files.digest(aside / SERVER)}
        needed |= {tensor_file(digest): digest for digest in constant.values()}
        for store, homes in self._homes.items():
            names = [state_file(store, home) for home in sorted(set(homes.values()))]
            needed |= {name: self._digests[name] for name in names}
        manifest = {
            "rounds": rounds,
            "metrics_bytes": (self.path / METRICS).stat().st_size,
            "metrics_digest": self._chain,
            "choice": self._choice,
            **{store: {str(c): home for c, home in sorted(homes.items())} for store, homes in self._homes.items()},
            TENSORS: constant,
            FILES: needed,
        }
        files.write(aside / MANIFEST, files.to_json(manifest))
        if final.exists():  # somebody put a file there, which stays
            for name in (SERVER, MANIFEST):
                (aside / name).replace(final / name)
            files.sync_folder(final)
            self._remove_checkpoint(aside.name)
        else:
            files.rename(aside, final)
        self._needed[rounds] = set(needed)

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
        """Delete old checkpoints, and files of ours that no checkpoint needs; other files stay."""
        rounds = checkpoints(self.path)
        for old in rounds[KEEP:]:
            self._remove_checkpoint(str(old))
        needed = {name for kept in rounds[:KEEP] for name in self._needed.get(kept, ())}
        for store, ours in OURS.items():
            found = [name for name in inside.names(self.path, store) if f"{store}/{name}" not in needed]
            # A temporary file is one that a killed process left behind.
            pattern = rf"{ours}\.safetensors|\.{ours}\.safetensors\.part"
            inside.remove(self.path, store, [name for name in found if re.fullmatch(pattern, name)])

    def _remove_checkpoint(self, name: str) -> None:
        """Delete a checkpoint; its folder stays if somebody put another file there."""
        parts = [f".{file}.part" for file in (SERVER, MANIFEST)]
        inside.remove_folder(self.path, f"checkpoints/{name}", (MANIFEST, SERVER, *parts))

    def restore(self) -> Checkpoint | None:
        """Return the newest whole checkpoint, or ``None`` before the first; cut the metrics back to it."""
        found, damaged, lines = newest(self.path)
        done = found.rounds if found else 0
        for rounds, problem in damaged.items():
            self.warnings.append(f"{problem}; continuing from round {done}")
            self._remove_checkpoint(str(rounds))
        if len(lines.records) > done + 1 and not damaged:
            last = len(lines.records)
            self.warnings.append(f"checkpoints of rounds up to {last} are missing; continuing from round {done}")
        if found:
            manifest, large = found.manifest, {name: t for name, t in found.flat.items() if t.nbytes >= LARGE}
            self._homes = {store: {int(client): home for client, home in manifest[store].items()} for store in STORES}
            self._digests = dict(manifest[FILES])
            self._latest = {name: files.digest_of(_tensor_bytes(tensor)) for name, tensor in large.items()}
            if manifest["choice"] and kept_choice(self.path) is None:
                again = f"it was written again from checkpoint {found.rounds}"
                self.warnings.append(f"{CHOICE} was missing or altered; {again}")
                self.keep_choice(manifest["choice"])
        self._cut(found.manifest["metrics_bytes"] if found else 0)
        self._chain = found.manifest["metrics_digest"] if found else lines.digests[0]
        # A damaged manifest of an older checkpoint is of no importance.
        for rounds in checkpoints(self.path)[:KEEP]:
            try:
                self._needed[rounds] = set(read_manifest(self.path, rounds)[FILES])
            except RunError as error:
                self.warnings.append(f"{error}; a newer checkpoint is whole")
        self._tidy()  # the previous process may have been killed before it tidied
        return found

    def recall(self, found: Checkpoint, clients: ClientStore, models: ClientStore) -> None:
        """Read the per-client states of the restored checkpoint."""
        self._filed = recall(self.path, found, clients, models)

    def _cut(self, length: int) -> None:
        """Cut the metrics back, in a new file: the old one may have another name outside the folder."""
        with files.on_failure(f"{self.path / METRICS} is unchanged"), inside.opened(self.path, METRICS) as handle:
            facts = os.fstat(handle)
        if facts.st_size != length or facts.st_nlink > 1:
            with files.on_failure(f"{self.path / METRICS} is unchanged"):
                files.write(self.path / METRICS, inside.read(self.path, METRICS)[:length])

    @contextmanager
    def _saving(self, rounds: int) -> Iterator[None]:
        safe = f"round {rounds} of {self.path} was not saved, earlier rounds are safe: fix the cause, then resume"
        with files.on_failure(safe):
            yield


def _tensor_bytes(tensor: Tensor) -> bytes:
    """Return the content of the file of an unchanged tensor."""
    return files.to_tensors({"tensor": tensor})


RELEASES = "releases.jsonl"


class Releases:
    """The attempts of a run.

    Args:
        path: the run folder; without one, attempts are counted for the life of the process
        stated: the number that the records state, which counts if lines are missing
    """

    def __init__(self, path: Path | None, stated: int = 0) -> None:
        self.path, self.count = path, max(stated, 0 if path is None else released(path))
        if path is not None and not (path / RELEASES).exists():
            (path / RELEASES).touch()

    def begin(self, number: int, cohort: Sequence[int]) -> None:
        """Record an attempt at a round, before anything leaves the server."""
        self._append({"round": number + 1, "clients": list(cohort)})
        self.count += 1

    def void(self, number: int) -> None:
        """Record that nothing of the last attempt has left the server."""
        self._append({"round": number + 1, "void": True})
        self.count -= 1

    def _append(self, entry: dict[str, object]) -> None:
        if self.path is not None:
            with files.on_failure(f"the cohort was not recorded, and the round does not begin, in {self.path}"):
                inside.append(self.path, RELEASES, json.dumps(entry).encode() + b"\n")


def released(path: Path) -> int:
    """Return the number of results that the run in a folder may have released, as far as it has recorded attempts."""
    try:
        lines = inside.read(path, RELEASES).splitlines()
    except FileNotFoundError:
        return 0
    count = 0
    for line in lines:
        try:
            entry = json.loads(line)
        except ValueError:  # cut off by a crash, which counts
            entry = None
        count += -1 if isinstance(entry, dict) and entry.get("void") is True else 1
    return count
