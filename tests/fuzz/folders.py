"""Damaged run folders: flipped bits, lost, swapped, foreign and linked files, under every command that takes a run.

    python tests/fuzz/folders.py [--full] [--seconds S] [--seed N]

A run that was interrupted is copied and damaged once or twice. Then a command looks at it, exports its model, or
resumes it. The command ends as with the undamaged run, with what it has gone back to and said so, or with an error of
Gossamer. No file outside the folder changes, and no file inside it, except by ``resume``.
"""

import io
import json
import os
import random
import re
import shutil
import stat
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from fuzz import campaign
from gossamer.cli import main, trust
from gossamer.core import files, tree
from gossamer.core.errors import RunError
from gossamer.engines.simulation import Simulation
from gossamer.runs import folder
from gossamer.runs.checkpoint import load, newest, read_split
from gossamer.runs.records import checkpoints, read_metrics
from helpers.records import write_records

EACH = 10
"""Folders per group."""
ROUNDS, DONE = 5, 3
FORGED = 0.1
"""The share of folders whose files are forged: their digests are right, and their contents are not."""
TIMED = ("seconds", "memory_bytes")

COMMON = "--data two-populations --clients 4 --executor one-by-one"
RUNS = {
    "fedavg": f"fedavg --epochs 1 {COMMON}",
    "fedspa": f"fedspa --epochs 1 {COMMON}",
    "perm": f"perm --warmup 1 --epochs 1 {COMMON}",
    "ditto": f"ditto --epochs 1 --per-round 2 {COMMON}",
}
PAGE = ("report.html", ".report.html.part")
LOOKING = ("show RUN", "show RUN --json", "compare RUN", "show RUN --config", "show RUN --html")


class Said(NamedTuple):
    """What a command returns and prints."""

    status: int
    out: str
    err: str


class Base(NamedTuple):
    """An interrupted run, and what commands make of it.

    Args:
        path: its folder
        shown: what each looking command prints
        models: the exported model of a client after each round
        ended: the content of the folder once the run was resumed
    """

    path: Path
    shown: dict[str, str]
    models: dict[int, bytes]
    ended: dict[str, Any]


@cache
def home() -> Path:
    """A folder for everything, deleted at the end."""
    holder = tempfile.TemporaryDirectory(prefix="gossamer-fuzz-")
    home.holder = holder  # type: ignore[attr-defined]
    return Path(holder.name).resolve()


@contextmanager
def quick(stop: int | None = None) -> Iterator[None]:
    """Nothing waits for the disk, small tensors count as large, trust is kept apart; or a round is interrupted."""
    real = Simulation.round

    def round_(run: Simulation, number: int, *rest: Any) -> Any:
        if number == stop:
            raise KeyboardInterrupt
        return real(run, number, *rest)

    with (
        mock.patch.object(os, "fsync"),
        mock.patch.object(folder, "LARGE", 64),
        mock.patch.object(Simulation, "round", round_),
        mock.patch.dict(os.environ, {trust.VARIABLE: str(home() / "config")}),
    ):
        yield


def gossamer(line: str) -> Said:
    """Run a command in this process; an error that is not Gossamer's is raised."""
    with (
        redirect_stdout(io.StringIO()) as out,
        redirect_stderr(io.StringIO()) as err,
        warnings.catch_warnings(record=True, action="always") as warned,
    ):
        status = main(line.split())
    return Said(status, out.getvalue(), "\n".join((err.getvalue(), *(str(each.message) for each in warned))))


def exported(run: Path, out: Path) -> tuple[Said, bytes]:
    """Export the model of client 1."""
    shutil.rmtree(out, ignore_errors=True)
    said = gossamer(f"export {run} --client 1 --format safetensors --out {out}")
    file = out / "model.safetensors"
    return said, file.read_bytes() if file.exists() else b""


def snapshot(path: Path) -> dict[str, tuple[int, bytes | str]]:
    """Everything in a folder, without following links."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for at, folders, others in os.walk(path):
        for name in (*folders, *others):
            file = Path(at, name)
            mode, linked = file.lstat().st_mode, file.is_symlink()
            content = file.read_bytes() if stat.S_ISREG(mode) else str(file.readlink()) if linked else ""
            found[str(file.relative_to(path))] = mode, content
    return found


def contents(path: Path) -> dict[str, Any]:
    """How a run has ended: records without the clock, and all states by client."""
    found, _, _ = newest(path)
    assert found
    held = {}
    for store in ("clients", "models"):
        for client, at in found.manifest[store].items():
            states = files.from_tensors(path / f"{store}/{at}.safetensors")
            flat = {name: tensor for name, tensor in states.items() if tree.names(name)[0] == client}
            held[store, client] = files.to_tensors(flat)
    records = [{name: value for name, value in r.items() if name not in TIMED} for r in read_metrics(path)]
    return {"server": files.to_tensors(found.flat), "held": held, "records": records}


@cache
def base(name: str) -> Base:
    """Run a method, interrupt it, and note what commands make of the folder."""
    kept, run, out = home() / f"kept-{name}", home() / "run", home() / "out"
    models = {}
    for rounds in (DONE - 1, DONE):
        shutil.rmtree(run, ignore_errors=True)
        with quick(rounds):
            assert gossamer(f"run {RUNS[name]} --rounds {ROUNDS} --out {run}").status == 130
        with quick():
            said, models[rounds] = exported(run, out)
        assert said.status == 0, said.err
    shutil.copytree(run, kept, symlinks=True)
    with quick():
        shown = {line: gossamer(line.replace("RUN", str(run))).out for line in LOOKING}
        assert gossamer(f"resume {run}").status == 0
    return Base(kept, shown, models, contents(run))


# Damage. Each function returns what it did.

Damage = Callable[[random.Random, Path, Path], str]


def some_file(rng: random.Random, run: Path) -> Path:
    """A file of the run; those that hold its results are as likely as all others together."""
    found = sorted(file for file in run.rglob("*") if file.is_file() and not file.is_symlink())
    best = [file for file in found if file.suffix in (".jsonl", ".json")]
    return rng.choice(best if best and rng.random() < 0.5 else found)


def flip(rng: random.Random, run: Path, outside: Path) -> str:
    file = some_file(rng, run)
    data = bytearray(file.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 5)) if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)
    return f"bits of {file.relative_to(run)} flipped"


def cut(rng: random.Random, run: Path, outside: Path) -> str:
    file = some_file(rng, run)
    data = file.read_bytes()
    file.write_bytes(data[: rng.choice((0, rng.randrange(len(data) + 1), max(0, len(data) - 1)))])
    return f"{file.relative_to(run)} cut"


def overwrite(rng: random.Random, run: Path, outside: Path) -> str:
    file = some_file(rng, run)
    nonsense = (rng.randbytes(rng.randrange(200)), b"[" * 100_000, b"{}", b"null", b"\n" * 7, b'{"digest": 3}')
    file.write_bytes(rng.choice(nonsense))
    return f"{file.relative_to(run)} overwritten"


def lengthen(rng: random.Random, run: Path, outside: Path) -> str:
    file = some_file(rng, run)
    with file.open("ab") as end:
        end.write(rng.choice((b"\n", b"{}\n", rng.randbytes(20), b'{"round": 4}\n')))
    return f"{file.relative_to(run)} lengthened"


def delete(rng: random.Random, run: Path, outside: Path) -> str:
    file = some_file(rng, run)
    file.unlink()
    return f"{file.relative_to(run)} deleted"


def delete_folder(rng: random.Random, run: Path, outside: Path) -> str:
    path = rng.choice(sorted(path for path in run.rglob("*") if path.is_dir() and not path.is_symlink()))
    shutil.rmtree(path)
    return f"{path.relative_to(run)}/ deleted"


def swap(rng: random.Random, run: Path, outside: Path) -> str:
    one, other = some_file(rng, run), some_file(rng, run)
    data = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(data)
    return f"{one.relative_to(run)} and {other.relative_to(run)} swapped"


def edit_metrics(rng: random.Random, run: Path, outside: Path) -> str:
    file = run / "metrics.jsonl"
    if not file.is_file():
        return "nothing"
    lines = file.read_bytes().splitlines(keepends=True)
    what = rng.choice(("edited", "doubled", "removed", "moved"))
    at = rng.randrange(len(lines)) if lines else 0
    if lines and what == "edited":
        record = json.loads(lines[at]) if lines[at].startswith(b"{") else {}
        record = record if isinstance(record, dict) else {}
        record["accuracy"] = 0.99
        lines[at] = json.dumps(record).encode() + b"\n"
    elif lines and what == "doubled":
        lines.insert(at, lines[at])
    elif lines and what == "removed":
        del lines[at]
    else:
        lines.reverse()
    file.write_bytes(b"".join(lines))
    return f"line {at + 1} of the metrics {what}"


def link(rng: random.Random, run: Path, outside: Path) -> str:
    """Replace a file or a folder by a link to something outside."""
    path = rng.choice(sorted(path for path in run.rglob("*") if not path.is_symlink()))
    was_folder = path.is_dir()
    shutil.rmtree(path) if was_folder else path.unlink()
    path.symlink_to(outside / rng.choice(("folder", "missing", *(() if was_folder else ("7.safetensors",)))))
    return f"{path.relative_to(run)} linked to {path.readlink().name}"


def temporary_link(rng: random.Random, run: Path, outside: Path) -> str:
    """A link where a temporary file is written."""
    name = rng.choice(("run.json", "metrics.jsonl", "executor.json", "report.html", "clients/4.safetensors"))
    path = run / Path(name).with_name(f".{Path(name).name}.part")
    if path.parent.is_dir() and not path.exists():
        path.symlink_to(outside / "7.safetensors")
    return f"{path.relative_to(run)} is a link"


def stray(rng: random.Random, run: Path, outside: Path) -> str:
    """A file that the run has not written."""
    folders = [path for path in run.rglob("*") if path.is_dir() and not path.is_symlink()]
    name = rng.choice((".DS_Store", "notes.txt", "9.bak", "._7", ".3x", "٣", "7.safetensors.txt"))
    path = rng.choice(sorted([run, *folders])) / name
    path.write_text("stray")
    return f"{path.relative_to(run)} is stray"


def stray_folder(rng: random.Random, run: Path, outside: Path) -> str:
    path = rng.choice((run / "clients", run / "checkpoints", run)) / rng.choice(("0", "7", ".9x", "old", ".hidden"))
    if path.parent.is_dir() and not path.exists():
        path.mkdir()
        (path / "stray").write_text("stray")
    return f"{path.relative_to(run)}/ is stray"


def other_kind(rng: random.Random, run: Path, outside: Path) -> str:
    """A folder or a pipe in place of a file, or a file in place of a folder."""
    if rng.random() < 0.3:
        path = rng.choice(sorted(path for path in run.rglob("*") if path.is_dir() and not path.is_symlink()))
        shutil.rmtree(path)
        path.write_text("stray")
    else:
        path = some_file(rng, run)
        path.unlink()
        path.mkdir() if rng.random() < 0.5 else os.mkfifo(path)
    return f"{path.relative_to(run)} is of another kind"


def other_checkpoint(rng: random.Random, run: Path, outside: Path) -> str:
    found = sorted(path for path in (run / "checkpoints").glob("[0-9]*") if path.is_dir())
    if not found:
        return "nothing"
    path, to = rng.choice(found), run / f"checkpoints/{rng.choice((1, 4, 7))}"
    if not to.exists():
        path.rename(to)
    return f"checkpoint {path.name} renamed to {to.name}"


DAMAGE: tuple[Damage, ...] = (
    *(flip, flip, flip, cut, overwrite, lengthen, delete, delete_folder, swap, edit_metrics, link, temporary_link),
    *(stray, stray_folder, other_kind, other_checkpoint),
)


def forge(rng: random.Random, run: Path, outside: Path) -> str:
    """Change an entry of a JSON file, and compute its digest anew."""
    name = rng.choice(("run.json", "run.json", "executor.json", "metrics.jsonl", f"checkpoints/{DONE}/manifest.json"))
    if name == "metrics.jsonl":
        records = read_metrics(run)
        what = _changed(rng, records[rng.randrange(len(records))])
        write_records(run, records)
    else:
        value = files.from_json(run / name)
        what = _changed(rng, value)
        (run / name).write_bytes(files.to_json(value))
    return f"{name}: {what} forged"


def _changed(rng: random.Random, value: dict[str, Any]) -> str:
    """Remove or replace an entry at a random depth."""
    name = rng.choice(sorted(value))
    inner = value[name]
    if isinstance(inner, dict) and inner and rng.random() < 0.6:
        return f"{name}.{_changed(rng, inner)}"
    if rng.random() < 0.3:
        del value[name]
    else:
        value[name] = rng.choice((None, -1, 10**30, 0.5, "", "../x", [], {}, [None], {"x": 1}, True))
    return name


# What must hold.


def remembered(run: Path) -> int:
    """The number of records, if no later checkpoint is there: nothing says then that more rounds were finished."""
    metrics, saved = run / "metrics.jsonl", [int(path.name) for path in (run / "checkpoints").glob("[0-9]/")]
    found = metrics.read_bytes().count(b"\n") if metrics.is_file() else DONE
    return found if found >= max(saved, default=0) else DONE


def damaged(run: Path) -> Iterator[str]:
    """What cannot be loaded: the partition, and checkpoints."""
    for number in checkpoints(run):
        try:
            load(run, number)
        except RunError:
            yield f"checkpoint {number} is damaged"
    try:
        read_split(run)
    except RunError:
        yield "split.safetensors"


def look(made: Base, run: Path, line: str) -> str:
    said = gossamer(line.replace("RUN", str(run)))
    if said.status:
        return refused(said)
    if line.startswith("show"):
        for what in damaged(run):
            assert what in said.err, f"{what}, and it is not named: {said.err}"
    if said.out == made.shown[line]:
        return "looks the same"
    if (rounds := remembered(run)) < DONE:
        assert re.search(rf"\b{rounds}\b", said.out), f"another round is shown: {said.out}"
        return "looks as after an earlier round"
    if "--json" in line:
        found, honest = json.loads(said.out), json.loads(made.shown[line])
        groups, wanted = (each["figures"].get("mixing", {}).pop("groups", None) for each in (found, honest))
        assert groups in (None, wanted), "groups differ silently"
        assert found == honest, "figures differ silently"
    else:
        assert "are unknown: " in said.out, f"the text differs silently: {said.out}"
    return "says what is unknown"


def export(made: Base, run: Path) -> str:
    said, model = exported(run, home() / "out")
    if said.status:
        return refused(said)
    if model == made.models[DONE]:
        return "exports the same model"
    assert model == made.models[DONE - 1], "another model was exported"
    told = f"after round {DONE - 1}" in said.err
    assert told or remembered(run) < DONE, f"an earlier model was exported silently: {said}"
    assert f"after {DONE - 1} rounds" in said.out
    return "exports the model of the checkpoint before"


def resume(made: Base, run: Path) -> str:
    said = gossamer(f"resume {run}")
    if said.status:
        return refused(said)
    assert contents(run) == made.ended, f"the run ended otherwise: {said.err}"
    return "resumes to the same end"


def refused(said: Said) -> str:
    assert said.status in (1, 2)
    assert said.err.startswith("gossamer: ") or "\ngossamer: " in said.err, said.err
    assert str(home() / "run") in said.err or "checkpoint" in said.err, f"no file is named: {said.err}"
    return "refused"


def strays(path: Path) -> set[str]:
    """The stray files of a folder."""
    found = snapshot(path).items()
    return {name for name, (_, content) in found if content in (b"stray", "stray")}


def tried(rng: random.Random, name: str) -> str:
    """Damage a copy of a run, and try one command on it."""
    made, run, outside = base(name), home() / "run", home() / "outside"
    for path in (run, outside):
        shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(made.path, run, symlinks=True)
    (outside / "folder/3").mkdir(parents=True)
    for file in ("7.safetensors", "folder/7.safetensors", "folder/3/manifest.json", "folder/.9", "folder/mine"):
        (outside / file).write_text("precious")
    forged = rng.random() < FORGED
    many = 1 if forged else rng.choice((1, 1, 1, 2))
    done = [(forge if forged else rng.choice(DAMAGE))(rng, run, outside) for _ in range(many)]
    before, apart, own = snapshot(run), snapshot(outside), strays(run)
    action = rng.choice(("resume", "resume", "export", *LOOKING))
    try:
        with quick():
            if forged:  # whatever it is now, it is no traceback
                gossamer(action.replace("RUN", str(run)) if "RUN" in action else f"{action} {run}")
                found = "forged"
            elif action == "resume":
                found = resume(made, run)
                assert strays(run) >= own, "a stray file was deleted"
            else:
                found = export(made, run) if action == "export" else look(made, run, action)
                after = snapshot(run)
                for name_ in PAGE if action.endswith("--html") else ():
                    before.pop(name_, None)
                    after.pop(name_, None)
                assert after == before, "the folder was changed by looking at it"
        assert snapshot(outside) == apart, "a file outside the folder was changed"
    except BaseException as error:
        error.add_note(f"{name}, {action}: {'; '.join(done)}")
        raise
    return found


def group(number: int) -> campaign.Case:
    """Some damaged folders of one run."""
    name = sorted(RUNS)[number % len(RUNS)]

    def attack(rng: random.Random, counts: Counter[str]) -> None:
        for _ in range(EACH):
            counts[tried(rng, name)] += 1

    return attack


if __name__ == "__main__":
    campaign.main("folders", group, 5_000, room=400.0)
