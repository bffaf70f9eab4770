"""Read the JSON files of a run folder, and compare its files with their digests.

This module needs no torch, so that ``gossamer runs`` and ``gossamer show`` start quickly. ``folder`` describes the
layout of a run folder and writes it, and ``checkpoint`` reads the files that hold tensors. Nothing here writes.

``metrics.jsonl`` has one line per round, each with a digest that continues the digest of the line before:

    {"round": 1, "accuracy": 0.81, ..., "digest": "5d1e..."}

The digest is the SHA-256 of the digest before it and of the record as it is written. So a line that was altered,
removed or moved is noticed, and appending a line reads nothing. The first line continues ``chain`` of ``run.json``, so
that the lines of another run do not fit. A digest is no signature: it finds damage and edits, not a forger who computes
it anew.
"""

import fcntl
import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gossamer.core import files
from gossamer.core.errors import RunError
from gossamer.runs import inside

Record = dict[str, Any]
METRICS = "metrics.jsonl"
MARK = b', "digest": "'
END = b'"}'


class Lines(NamedTuple):
    """The whole lines of a file, up to the first that was altered.

    Args:
        records: the record of each line
        digests: the digest before the first line, and after each line
        ends: the number of bytes before the first line, and up to the end of each line
        problem: what is wrong with the line after them; none if nothing is
    """

    records: list[Record]
    digests: list[str]
    ends: list[int]
    problem: str | None

    def digest_at(self, size: int) -> str | None:
        """Return the digest after this number of bytes; none if no whole line ends there."""
        return self.digests[self.ends.index(size)] if size in self.ends else None


def line_of(record: Record, before: str) -> tuple[bytes, str]:
    """Return the line of a record and its digest, given the digest of the line before."""
    body = json.dumps(record).encode()
    after = _digest(before, body)
    return body[:-1] + MARK + after.encode() + END + b"\n", after


def read_lines(data: bytes, start: str) -> Lines:
    """Read the content of the file. The last line is left out if it has no end: it is being written, or was cut."""
    found, (*lines, rest) = Lines([], [start], [0], None), data.split(b"\n")
    for number, line in enumerate(lines, 1):
        body, _, end = line.rpartition(MARK)
        body += b"}"
        after = _digest(found.digests[-1], body)
        if end != after.encode() + END:
            return found._replace(problem=f"line {number} was altered")
        try:
            record = files.parse_json(body)
        except ValueError:
            record = None
        if not isinstance(record, dict) or record.get("round") != number:
            return found._replace(problem=f"line {number} is not the record of round {number}")
        found.records.append(record)
        found.digests.append(after)
        found.ends.append(found.ends[-1] + len(line) + 1)
    number = len(lines) + 1
    begun = b'{"round": %d' % number  # what the rest begins with, or what it is the beginning of
    whole = rest.startswith(begun) or begun.startswith(rest)
    return found if whole else found._replace(problem=f"line {number} is not the record of round {number}")


def _digest(before: str, body: bytes) -> str:
    return hashlib.sha256(before.encode() + body).hexdigest()


FORMAT = 4
"""The format of run folders. Version 0.1 wrote format 1 and did not record it. Format 2 had no folder ``tensors``, and
format 3 no digests in ``metrics.jsonl``."""

ABOUT = "run.json"
CHOICE = "executor.json"
LOCK = "run.lock"
SPLIT = "split.safetensors"
INIT = "init.safetensors"
SECRET = "run.secret"
SERVER = "server.safetensors"
MANIFEST = "manifest.json"
TENSORS = "tensors"
"""Unchanged tensors of the server state: a folder of a run, and a key of a checkpoint's manifest."""

STORES = ("clients", "models")
"""Per-client stores: each is a folder, and a key of the manifest."""

FOLDERS = ("checkpoints", TENSORS, *STORES)
"""The folders of every run."""

OWN_FILES = (ABOUT, METRICS, CHOICE, LOCK, SPLIT, INIT, SECRET)
LINKLESS = (*FOLDERS, *OWN_FILES, "releases.jsonl", "trackers.json", "tensorboard", "deploy")
"""What every run writes to or reads in its folder, and what may thus be no symbolic link."""

CHAIN = "chain"
"""The entry of ``run.json`` that the digest of the first line of metrics continues."""

FILES = "files"
"""The digests of the files that are written once: an entry of ``run.json``, and of a manifest."""

STOPPED = "stopped"
"""The entry of the last record of a run that ended before its last round: the reason."""

EXTENDED = "extended"
"""The entry of ``run.json`` with the options of a run before it was given more rounds, and after which round."""

ATTACK_SUCCESS = "attack_success"
"""The entry of a record with the success rate of an attack that has a goal of its own."""

ANOMALIES = "anomalies"
"""The entry of a record with the clients whose upload was far from the cohort's; absent if there is none."""

EXCLUDED = "excluded"
"""The entry of a record with the clients that are not sampled any more; absent if there is none."""

DIVERGES = "diverges"
"""The entry of a record with the warning that training diverges; one record of a run has it at most."""

SUMS = ("bytes_up", "bytes_down", "seconds")
"""Entries of a record that hold one number per kind; reports use their sum."""

COUNTS = ("clients", "failures", "lost")
"""Entries of a record that are lists; reports use their length."""

NUMBER = (int, float)

RECORD = {
    **dict.fromkeys(("flops", "useful_flops", "joules", "delay", "memory_bytes"), NUMBER),
    **dict.fromkeys((*SUMS, "energy"), dict),
    **dict.fromkeys((*COUNTS, "exchanges"), list),
}
"""Entries that every record has, and their types."""

RUN = {**dict.fromkeys(("method", "task", "options", "machine", TENSORS, FILES), dict), "parameters": int, CHAIN: str}
RUN_TASK = {**dict.fromkeys(("data", "model", "split"), str), "clients": int}
RUN_OPTIONS = {"rounds": int, "seed": int, "executor": str, "channel": str}
"""Entries of ``run.json`` of every run, and of its task and options."""

OPTIONAL: dict[str, dict[str, type]] = {
    "request": {"method": str},
    "recipe": {"name": str, "given": dict},
    "init": {"from": str, "digest": str},
}
"""Entries of ``run.json`` that some runs have, and what is in them."""

CLUSTER = "cluster"
"""The entry of a record, and of the choice of an executor, with the nodes and actors of a Ray cluster."""

CHOSEN = {"executor": str, "rates": dict, "left_out": dict, CLUSTER: dict}
"""Entries of the choice of an executor. Only the first is always there."""

CHECKPOINT = {
    **dict.fromkeys((*STORES, TENSORS, FILES, "choice"), dict),
    **dict.fromkeys(("rounds", "metrics_bytes"), int),
    "metrics_digest": str,
}
"""Entries of every manifest."""


def check_vacant(path: Path) -> None:
    """Refuse a path for a new run that already holds something."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise RunError(f"{path} is not empty: choose another folder, or resume the run that is there")


def linkless(path: Path) -> Iterator[str]:
    """Yield what may be no symbolic link in a run folder: first what every run has, then its checkpoints."""
    yield from LINKLESS
    found = inside.names(path, "checkpoints")
    yield from (f"checkpoints/{name}" for name in found if re.fullmatch(r"\.?[1-9][0-9]*", name))


def checkpoints(path: Path) -> list[int]:
    """Return the rounds that have a checkpoint, newest first; anything else in the folder is ignored."""
    found = []
    for name in inside.names(path, "checkpoints"):
        if re.fullmatch(r"[1-9][0-9]{0,17}", name):
            with suppress(RunError, OSError):
                if {SERVER, MANIFEST} & set(inside.names(path, f"checkpoints/{name}")):
                    found.append(int(name))
    return sorted(found, reverse=True)


def tensor_file(digest: str) -> str:
    """Return the file of an unchanged tensor, relative to the run folder."""
    return f"{TENSORS}/{digest}.safetensors"


def state_file(store: str, rounds: int) -> str:
    """Return the file of a store and a round, relative to the run folder."""
    return f"{store}/{rounds}.safetensors"


def read_manifest(path: Path, rounds: int) -> dict[str, Any]:
    """Return the manifest of a checkpoint."""
    name = f"checkpoints/{rounds}/{MANIFEST}"
    try:
        manifest = inside.read_json(path, name)
        _expect(manifest, CHECKPOINT)
        manifest["choice"] = _choice_of(manifest["choice"])
        homes = [entry for store in STORES for entry in manifest[store].items()]
        needed = [state_file(store, home) for store in STORES for home in manifest[store].values()]
        if manifest["rounds"] != rounds or not all(re.fullmatch("[0-9]+", c) and type(h) is int for c, h in homes):
            raise ValueError("it is not the manifest of this round")
        if missing := [each for each in needed if each not in manifest[FILES]]:
            raise ValueError(f"it has no digest of {missing[0]}")
    except (OSError, ValueError, RunError) as error:
        raise RunError(f"checkpoint {rounds} is damaged: {name} cannot be used ({error})") from error
    return manifest


def _expect(found: Any, wanted: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if an entry is missing or has another type."""
    for name, kind in wanted.items():
        if not isinstance(found, dict) or not isinstance(found.get(name), kind):
            raise ValueError(f"{name} is missing, or of another type")


def read_about(path: Path) -> dict[str, Any]:
    """Return the contents of ``run.json`` and the choice of the executor."""
    about = _read_run(path)
    if (found := about.get("format", 1)) != FORMAT:
        raise RunError(
            f"{path} has format {found}, and this release reads format {FORMAT}: use the release that wrote it"
            + (" (0.1), or start the run anew" if found == 1 else "")
        )
    return about | read_choice(path)


def _read_run(path: Path) -> dict[str, Any]:
    try:
        return inside.read_json(path, ABOUT)
    except (FileNotFoundError, NotADirectoryError):
        why = "there is no run.json in it" if path.exists() else "it does not exist"
        raise RunError(f"{path} is not a run: {why}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{path}/{ABOUT} cannot be used: {error}: restore it from a copy") from error


def check_about(path: Path, about: Mapping[str, Any]) -> None:
    """Refuse a ``run.json`` that lacks what every run records."""
    try:
        _expect(about, RUN)
        _expect(about["method"], dict.fromkeys(about["method"], str))
        _expect(about["task"], RUN_TASK)
        _expect(about["options"], RUN_OPTIONS)
        _expect(about["machine"], {"gossamer": str})
        if not isinstance(about.get("request", ""), dict | None):
            raise ValueError("request is missing, or of another type")
        for name, entries in OPTIONAL.items():
            if about.get(name):
                _expect(about[name], entries)
        for each in about.get(EXTENDED, ()):
            _expect(each, {"after": int, "options": dict})
    except ValueError as error:
        raise RunError(f"{path}/{ABOUT} cannot be used: {error}") from None


def read_choice(path: Path) -> dict[str, Any]:
    """Return the choice of the executor: from its file or, if that is missing or damaged, from a checkpoint."""
    choice = kept_choice(path)
    for rounds in checkpoints(path) if choice is None else ():
        with suppress(RunError):
            return dict(read_manifest(path, rounds)["choice"])
    return choice or {}


def kept_choice(path: Path) -> dict[str, Any] | None:
    """Return the content of ``executor.json``; none if it is missing or damaged."""
    try:
        return _choice_of(inside.read_json(path, CHOICE))
    except (OSError, ValueError, RunError):
        return None


def _choice_of(found: dict[str, Any]) -> dict[str, Any]:
    """Return a recorded choice of an executor, without other entries; raise ``ValueError`` for one of another form."""
    wanted = {name: kind for name, kind in CHOSEN.items() if name in found or (found and name == "executor")}
    _expect(found, wanted)
    for name, kind in (("rates", NUMBER), ("left_out", str)):
        _expect(inner := found.get(name, {}), dict.fromkeys(inner, kind))
    return {name: found[name] for name in wanted}


def read_metrics(path: Path) -> list[Record]:
    """Return the records of all finished rounds; a line that is still being written is left out."""
    saved = checkpoints(path)  # before the metrics: a running process appends to these first
    found = metrics_lines(path)
    whole = len(found.records)
    if problem := found.problem or (_cut(whole, saved[0]) if saved and whole < saved[0] else None):
        # resume continues from a checkpoint all of whose lines are whole
        kept = next((rounds for rounds in saved if rounds <= whole), None)
        way_out = f", or resume the run, which continues from round {kept}" if kept else ""
        raise _unusable(path, problem, way_out)
    try:
        for record in found.records:
            _expect(record, RECORD)
    except ValueError as error:
        raise _unusable(path, f"round {record['round']}: {error}") from None
    return found.records


def check_lines(path: Path, found: Lines, oldest: int) -> None:
    """Refuse metrics of which a line is missing or altered that even the oldest checkpoint needs."""
    if (whole := len(found.records)) < oldest:
        raise _unusable(path, found.problem or _cut(whole, oldest))


def _cut(whole: int, rounds: int) -> str:
    return f"it ends with round {whole}, and there is a checkpoint of round {rounds}"


def _unusable(path: Path, why: str, otherwise: str = "") -> RunError:
    return RunError(f"{path}/{METRICS} cannot be used: {why}: restore it from a copy{otherwise}")


def last_checkpoint(path: Path) -> int:
    """Return the round of the newest checkpoint, to look at; refuse one that is not of the last record."""
    saved, lines = next(iter(checkpoints(path)), 0), metrics_lines(path)
    if not saved:
        raise RunError(f"{path} has no finished round yet")
    if len(lines.records) > saved:
        raise RunError(f"there is no checkpoint of round {len(lines.records)}: resume the run, which repeats the round")
    return saved


def metrics_lines(path: Path) -> Lines:
    """Return the whole lines of the metrics."""
    start = str(_read_run(path).get(CHAIN, ""))
    try:
        return read_lines(inside.read(path, METRICS), start)
    except FileNotFoundError as error:
        raise _unusable(path, "it is missing") from error
    except OSError as error:
        raise _unusable(path, str(error)) from error


def stop_reason(about: Mapping[str, Any], metrics: Sequence[Record]) -> str | None:
    """Return why a run ended before its last round; none if it did not, or was given more rounds since."""
    went_on = any(each["after"] == len(metrics) for each in about.get(EXTENDED, ()))
    reason: str | None = metrics[-1].get(STOPPED) if metrics and not went_on else None
    return reason


def is_busy(path: Path) -> bool:
    """Return whether a process holds the lock of the folder; the folder stays unchanged."""
    try:
        with inside.opened(path, LOCK) as handle:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (OSError, RunError):
        return False
    return False


def refuse_busy(path: Path) -> None:
    """Refuse to read states that another process replaces."""
    if is_busy(path):
        raise RunError(f"another process is working in {path}: wait for it, or stop it first")


def altered(path: Path, digests: Mapping[str, str]) -> Iterator[str]:
    """Yield what is wrong with files of a run, one text for each that is missing or has another digest."""
    for name, wanted in digests.items():
        try:
            same = inside.digest(path, name) == wanted
        except FileNotFoundError:
            same = False
        except (OSError, RunError) as error:
            yield str(error)
            continue
        if not same:
            yield f"{name} is missing or was altered"


def check_files(path: Path, rounds: int, manifest: Mapping[str, Any]) -> None:
    """Refuse a checkpoint one of whose files is missing or was altered."""
    for problem in altered(path, manifest[FILES]):
        raise RunError(f"checkpoint {rounds} is damaged: {problem}")


def damage(path: Path, about: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the files of a run that are written once, and with its checkpoints, newest first.

    Checkpoints that a process replaces are not judged.
    """
    yield from (f"{path}: {problem}" for problem in altered(path, about[FILES]))
    for rounds in checkpoints(path) if not is_busy(path) else ():
        try:
            check_files(path, rounds, read_manifest(path, rounds))
        except RunError as error:
            yield f"{path}: {error}"


@contextmanager
def open_tensors(path: Path, name: str, wanted: str, framework: Literal["pt", "numpy"]) -> Iterator[Any]:
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
    with open_tensors(path, server, manifest[FILES].get(server, ""), "numpy") as tensors:
        found = {name: tensors.get_tensor(name) for name in tensors.keys() if wanted(name)}  # noqa: SIM118
    for name, digest in constant.items():
        with open_tensors(path, tensor_file(digest), digest, "numpy") as tensors:
            found[name] = tensors.get_tensor("tensor")
    return found
