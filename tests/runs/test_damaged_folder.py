"""Run folders that are damaged, edited, or from somebody else: refused by name, or continued from what is whole."""

import json
import os
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gossamer import RunError, fedavg, local, perm, simulate
from gossamer.cli import main
from gossamer.core import files
from gossamer.engines.export import stand
from gossamer.engines.kept_run import DamagedRunWarning
from gossamer.runs import inside
from gossamer.runs.checkpoint import read_init, read_server, read_split
from gossamer.runs.folder import RunFolder
from gossamer.runs.records import check_about, line_of, read_about, read_lines, read_manifest, read_metrics
from gossamer.testing import tiny_task
from helpers.records import write_records

ROUNDS, DONE = 4, 3
LASTING = ("seconds", "memory_bytes")
UNTIMED = ("metrics.jsonl", "manifest.json", "run.lock")


def go(out: Path, resume: bool = False, rounds: int = ROUNDS, stop: int | None = None) -> Any:
    def watch(record: dict[str, Any], run: Any) -> None:
        if record["round"] == stop:
            raise KeyboardInterrupt

    given: dict[str, Any] = {"rounds": rounds, "per_round": 2, "seed": 5}
    return simulate(local(steps=2), tiny_task(), out=out, resume=resume, callbacks=[watch], **given)


def resumed(run: Path) -> Any:
    return go(run, resume=True)


def looked_at(run: Path) -> Any:
    return stand(run, local(steps=2), tiny_task())


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interrupted run, ``run``, and the same run at its end, ``whole``. Its clients have a state."""
    home = tmp_path_factory.mktemp("kept")
    go(home / "whole")
    with pytest.raises(KeyboardInterrupt):
        go(home / "run", stop=DONE)
    return home


@pytest.fixture
def run(kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    shutil.copytree(kept / "run", tmp_path / "run")
    return tmp_path / "run"


def contents(path: Path, strays: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a run ends with, without times and stray files."""
    found = {str(file.relative_to(path)): file for file in path.rglob("*") if file.is_file()}
    data = {name: f.read_bytes() for name, f in found.items() if f.name not in UNTIMED and name not in strays}
    return {"files": data, "records": [{k: v for k, v in r.items() if k not in LASTING} for r in read_metrics(path)]}


def snapshot(path: Path) -> dict[str, Any]:
    """Everything in a folder, and when it was written."""
    return {
        str(file.relative_to(path)): (file.lstat().st_mtime_ns, file.read_bytes() if file.is_file() else b"")
        for file in path.rglob("*")
    }


def flip(file: Path, at: int | None = None) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2 if at is None else at] ^= 1
    file.write_bytes(bytes(data))


# The metrics.


def edited(run: Path, line: int) -> None:
    """Give a round another accuracy, as with an editor."""
    lines = (run / "metrics.jsonl").read_text().splitlines()
    record = json.loads(lines[line - 1])
    lines[line - 1] = json.dumps(record | {"accuracy": 0.99})
    (run / "metrics.jsonl").write_text("\n".join(lines) + "\n")


def test_lines_continue_each_other() -> None:
    first, digest = line_of({"round": 1, "loss": 0.5}, "start")
    second, last = line_of({"round": 2, "loss": None}, digest)
    found = read_lines(first + second + b'{"round": 3, "lo', "start")
    assert found.records == [{"round": 1, "loss": 0.5}, {"round": 2, "loss": None}]
    assert (found.digests, found.problem) == (["start", digest, last], None)
    assert found.digest_at(len(first)) == digest
    assert found.digest_at(len(first) + 1) is None
    assert json.loads(second)["digest"] == last, "a line is plain JSON, also for other programs"
    assert read_lines(first, "another start").problem == "line 1 was altered"
    assert read_lines(first + first, "start").problem == "line 2 was altered"
    assert read_lines(second, digest).problem == "line 1 is not the record of round 1"


@pytest.mark.parametrize("rest", [b"null", b"{}", b"\0\0", b"[" * 9, b'{"round": 2', b'{"digest": 3}'])
def test_a_last_line_without_end_must_be_the_beginning_of_a_record(rest: bytes) -> None:
    first, _ = line_of({"round": 1, "loss": 0.5}, "start")
    assert read_lines(rest, "start").problem == "line 1 is not the record of round 1"
    after = read_lines(first + rest, "start")
    assert len(after.records) == 1
    assert after.problem == (None if b"round" in rest else "line 2 is not the record of round 2")


def test_no_flipped_bit_of_the_metrics_is_shown(run: Path) -> None:
    honest, data, draw = read_metrics(run), (run / "metrics.jsonl").read_bytes(), random.Random(1)
    for at in range(0, len(data), 11):
        flipped = bytearray(data)
        flipped[at] ^= 1 << draw.randrange(8)
        (run / "metrics.jsonl").write_bytes(bytes(flipped))
        with pytest.raises(RunError, match=r"metrics.jsonl cannot be used: .*: restore it from a copy"):
            read_metrics(run)
    (run / "metrics.jsonl").write_bytes(data)
    assert read_metrics(run) == honest


def test_an_edited_last_round_is_repeated(run: Path, kept: Path) -> None:
    edited(run, DONE)
    advice = "line 3 was altered: restore it from a copy, or resume the run, which continues from round 2$"
    with pytest.raises(RunError, match=advice):
        read_metrics(run)
    with pytest.warns(DamagedRunWarning, match=r"metrics.jsonl: line 3 was altered; continuing from round 2"):
        go(run, resume=True)
    assert contents(run) == contents(kept / "whole")


def test_an_edited_earlier_round_is_refused_and_nothing_changes(run: Path) -> None:
    edited(run, 1)
    before = snapshot(run)
    for read in (read_metrics, looked_at, resumed):
        with pytest.raises(
            RunError, match=r"metrics.jsonl cannot be used: line 1 was altered: restore it from a copy$"
        ):
            read(run)
    assert snapshot(run).items() - before.items() == set()


def test_metrics_that_end_before_both_checkpoints_are_refused(run: Path) -> None:
    (run / "metrics.jsonl").write_bytes((run / "metrics.jsonl").read_bytes().splitlines(keepends=True)[0])
    before = snapshot(run)
    for read in (read_metrics, looked_at, resumed):
        with pytest.raises(RunError, match=r"it ends with round 1, and .* round [23]: restore it from a copy$"):
            read(run)
    assert snapshot(run).items() - before.items() == set()


def test_a_removed_last_line_is_missed_and_its_round_repeated(run: Path, kept: Path) -> None:
    lines = (run / "metrics.jsonl").read_bytes().splitlines(keepends=True)
    (run / "metrics.jsonl").write_bytes(b"".join(lines[:-1]))
    with pytest.raises(RunError, match="it ends with round 2, and there is a checkpoint of round 3"):
        read_metrics(run)
    with pytest.warns(DamagedRunWarning, match="continuing from round 2"):
        go(run, resume=True)
    assert contents(run) == contents(kept / "whole")


def test_the_metrics_of_another_run_do_not_fit(run: Path, tmp_path: Path) -> None:
    simulate(fedavg(steps=1), tiny_task(), rounds=3, per_round=2, seed=5, out=tmp_path / "other")
    shutil.copy(tmp_path / "other/metrics.jsonl", run / "metrics.jsonl")
    with pytest.raises(RunError, match="line 1 was altered"):
        read_metrics(run)


def test_records_with_computed_digests_are_noticed_when_the_run_is_resumed(run: Path) -> None:
    forged = [record | {"accuracy": 0.99} for record in read_metrics(run)]
    write_records(run, forged)
    assert read_metrics(run) == forged, "a digest is no signature"
    with pytest.raises(RunError, match="it is not the one that checkpoint 3 was written with"):
        go(run, resume=True)


# Forged files: valid digests, and contents that no run writes.


@pytest.mark.parametrize("name", ["bytes_up", "clients", "flops", "seconds", "energy", "exchanges", "lost", "delay"])
def test_a_record_without_an_entry_is_refused_by_its_name(run: Path, name: str) -> None:
    records = read_metrics(run)
    for wrong in ({}, {name: "text"}):
        write_records(run, [{k: v for k, v in r.items() if k != name} | wrong for r in records])
        with pytest.raises(RunError, match=f"round 1: {name} is missing, or of another type"):
            read_metrics(run)


@pytest.mark.parametrize("part", ["method", "task", "options", "machine", "parameters", "tensors"])
def test_a_run_json_without_an_entry_is_refused_by_its_name(run: Path, part: str) -> None:
    about = files.from_json(run / "run.json")
    for wrong in list[dict[str, Any]]([{}, {part: []}]):
        files.write(run / "run.json", files.to_json({k: v for k, v in about.items() if k != part} | wrong))
        with pytest.raises(RunError, match=f"run.json cannot be used: {part} is missing, or of another type"):
            check_about(run, read_about(run))


@pytest.mark.parametrize(("entry", "name"), [("request", "method"), ("recipe", "given")])
def test_a_recorded_call_of_another_form_is_refused_by_its_name(run: Path, entry: str, name: str) -> None:
    about = files.from_json(run / "run.json")
    call = {"name": "fedavg", "method": "fedavg", "given": {}} | (about[entry] or {})
    files.write(run / "run.json", files.to_json(about | {entry: call | {name: 3}}))
    with pytest.raises(RunError, match=f"run.json cannot be used: {name} is missing, or of another type"):
        check_about(run, read_about(run))


def test_a_setting_of_another_form_is_another_setting(run: Path) -> None:
    about = files.from_json(run / "run.json")
    files.write(run / "run.json", files.to_json(about | {"task": about["task"] | {"statistics": [None]}}))
    with pytest.raises(RunError, match=r"another task: statistics is .*, was None"):
        go(run, resume=True)


@pytest.mark.parametrize("value", [None, 3, {"x": 1}])
def test_a_part_of_the_method_that_is_no_text_is_refused_by_its_name(run: Path, value: Any) -> None:
    about = files.from_json(run / "run.json")
    files.write(run / "run.json", files.to_json(about | {"method": about["method"] | {"codec": value}}))
    with pytest.raises(RunError, match=r"run.json cannot be used: codec is missing, or of another type"):
        check_about(run, read_about(run))


@pytest.mark.parametrize(
    "wrong",
    [{"rounds": 2}, {"files": {}}, {"clients": {"x": 1}}, {"clients": {"1": "2"}}, {"tensors": 3}, {"choice": None}],
)
def test_a_manifest_that_no_run_writes_is_refused(run: Path, wrong: dict[str, Any]) -> None:
    name = run / f"checkpoints/{DONE}/manifest.json"
    files.write(name, files.to_json(files.from_json(name) | wrong))
    with pytest.raises(RunError, match=r"checkpoint 3 is damaged: checkpoints/3/manifest.json cannot be used"):
        read_manifest(run, DONE)


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "clients/../../secret"])
def test_a_name_outside_the_folder_is_refused(run: Path, name: str) -> None:
    with pytest.raises(RunError, match="which is not inside it"):
        inside.read(run, name)


@pytest.mark.parametrize(
    ("file", "read"),
    [
        ("run.json", read_about),
        ("metrics.jsonl", read_metrics),
        ("checkpoints/3/manifest.json", lambda run: read_manifest(run, DONE)),
    ],
)
def test_a_hundred_thousand_brackets_are_refused(run: Path, file: str, read: Callable[[Path], Any]) -> None:
    (run / file).write_bytes(b"[" * 100_000 + b"\n")
    with pytest.raises(RunError, match=file):
        read(run)


def test_an_altered_split_or_start_is_refused_by_name(run: Path, tmp_path: Path) -> None:
    flip(run / "split.safetensors", -1)
    with pytest.raises(RunError, match=r"split.safetensors cannot be used: it was altered since the run was started"):
        read_split(run)
    result = simulate(fedavg(steps=1), tiny_task(), rounds=1, out=tmp_path / "first")
    simulate(fedavg(steps=1), tiny_task(), rounds=1, out=tmp_path / "warm", init=result.model)
    flip(tmp_path / "warm/init.safetensors", -1)
    with pytest.raises(RunError, match=r"init.safetensors cannot be used: it was altered"):
        read_init(tmp_path / "warm")


# Checkpoints.


def test_a_damaged_older_manifest_is_of_no_importance(run: Path, kept: Path) -> None:
    flip(run / f"checkpoints/{DONE - 1}/manifest.json")
    with pytest.warns(DamagedRunWarning, match=r"checkpoint 2 is damaged: .*; a newer checkpoint is whole"):
        go(run, resume=True)
    assert contents(run) == contents(kept / "whole")


def forged(content: dict[str, Any]) -> Callable[[Path], None]:
    return lambda file: files.write(file, files.to_json(content))


FORGED = [
    forged({"executor": {"x": 1}}),
    forged({"rates": {}}),
    forged({"executor": "stacked", "rates": {"stacked": "fast"}}),
]


@pytest.mark.parametrize("damage", [flip, Path.unlink, *FORGED])
def test_a_damaged_choice_of_executor_is_in_the_checkpoint(run: Path, kept: Path, damage: Callable[..., None]) -> None:
    before = read_about(run)
    damage(run / "executor.json")
    assert read_about(run) == before
    with pytest.warns(DamagedRunWarning, match=r"executor.json was missing or altered; it was written again"):
        go(run, resume=True)
    assert contents(run) == contents(kept / "whole")


def test_a_choice_of_executor_replaces_nothing_else_of_the_run(run: Path) -> None:
    before = read_about(run)
    forged({"executor": before["executor"], "method": {}})(run / "executor.json")
    assert read_about(run)["method"] == before["method"]


def test_a_damaged_run_json_is_named_and_so_is_what_to_do(run: Path) -> None:
    flip(run / "run.json")
    with pytest.raises(RunError, match=r"run/run.json cannot be used: .*: restore it from a copy"):
        read_about(run)


def test_a_run_whose_checkpoints_are_gone_does_not_start_over_silently(run: Path) -> None:
    shutil.rmtree(run / "checkpoints")
    before = (run / "metrics.jsonl").read_bytes()
    with pytest.raises(RunError, match=r"it has 3 rounds, and there is no checkpoint: restore both"):
        go(run, resume=True)
    assert (run / "metrics.jsonl").read_bytes() == before


def test_a_missing_newest_checkpoint_is_made_again(run: Path, kept: Path) -> None:
    shutil.rmtree(run / f"checkpoints/{DONE}")
    go(run, resume=True)
    assert contents(run) == contents(kept / "whole")


def test_empty_folders_that_an_archive_left_out_are_made_again(run: Path, kept: Path) -> None:
    for name in ("models", "tensors"):
        (run / name).rmdir()
    go(run, resume=True)
    assert contents(run) == contents(kept / "whole")


def test_stray_files_are_left_alone(run: Path, kept: Path) -> None:
    strays = (
        *("checkpoints/.DS_Store", "checkpoints/3/.DS_Store", "checkpoints/2/notes.txt", "clients/mine.txt"),
        *("clients/.DS_Store", "tensors/x.safetensors", "models/3.safetensors.bak", "notes.txt", "checkpoints/9"),
    )
    for name in strays:
        (run / name).write_text("mine")
    (run / "checkpoints/old").mkdir()
    go(run, resume=True)
    for name in strays:
        assert (run / name).read_text() == "mine"
    assert (run / "checkpoints/old").is_dir()
    assert contents(run, strays) == contents(kept / "whole")


def test_a_stray_file_in_a_damaged_checkpoint_stays_and_does_not_block_it(run: Path, kept: Path) -> None:
    (run / "checkpoints/3/.DS_Store").write_text("mine")
    flip(run / "checkpoints/3/server.safetensors", -1)
    with pytest.warns(DamagedRunWarning, match="continuing from round 2"):
        go(run, resume=True)
    assert (run / "checkpoints/3/.DS_Store").read_text() == "mine"
    assert contents(run, ("checkpoints/3/.DS_Store",)) == contents(kept / "whole")


# Links.


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    """Somebody's files."""
    for name in ("1.safetensors", "7.safetensors", ".5/server.safetensors", "3/manifest.json", "precious"):
        file = tmp_path / "outside" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("precious")
    return tmp_path / "outside"


@pytest.mark.parametrize("name", ["clients", "models", "tensors", "checkpoints", "checkpoints/3", "deploy"])
def test_a_linked_folder_is_not_followed(run: Path, outside: Path, name: str) -> None:
    before = snapshot(outside)
    if (run / name).exists():
        shutil.rmtree(run / name)
    (run / name).symlink_to(outside)
    with pytest.raises(RunError, match=f"{name} is a symbolic link"):
        RunFolder.open(run)
    with pytest.raises(RunError):
        go(run, resume=True)
    assert snapshot(outside) == before


@pytest.mark.parametrize("name", ["clients", "models", "tensors", "deploy", "init.safetensors", "checkpoints/3"])
def test_a_link_that_is_not_needed_is_named(
    run: Path, outside: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if (run / name).exists():
        shutil.rmtree(run / name)
    (run / name).symlink_to(outside)
    before = snapshot(run.parent)
    assert main(["show", str(run)]) == 0
    said = capsys.readouterr()
    assert f"gossamer: {run / name} is a symbolic link; a run folder may not hold one there" in said.err
    assert "accuracy" in said.out
    assert snapshot(run.parent) == before


def test_a_link_of_another_name_is_left_alone(run: Path, outside: Path, kept: Path) -> None:
    (run / "checkpoints/latest").symlink_to(outside)
    before = snapshot(outside)
    go(run, resume=True)
    assert (run / "checkpoints/latest").readlink() == outside
    (run / "checkpoints/latest").unlink()
    assert contents(run) == contents(kept / "whole")
    assert snapshot(outside) == before


@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "run.lock", "split.safetensors"])
def test_a_linked_file_is_not_followed(run: Path, tmp_path: Path, name: str) -> None:
    (run / name).rename(tmp_path / "apart")
    before = (tmp_path / "apart").read_bytes()
    (run / name).symlink_to(tmp_path / "apart")
    with pytest.raises(RunError, match=f"{name}.* is a symbolic link"):
        go(run, resume=True)
    assert (tmp_path / "apart").read_bytes() == before


def test_a_linked_file_of_a_checkpoint_counts_as_damage(run: Path, outside: Path, kept: Path) -> None:
    (run / "checkpoints/3/server.safetensors").rename(outside / "apart")
    (run / "checkpoints/3/server.safetensors").symlink_to(outside / "apart")
    with pytest.raises(RunError, match=r"server.safetensors is a symbolic link"):
        read_server(run)
    with pytest.warns(DamagedRunWarning, match="is a symbolic link.*continuing from round 2"):
        go(run, resume=True)
    assert contents(run) == contents(kept / "whole")


@pytest.mark.parametrize("name", [".metrics.jsonl.part", "clients/4.safetensors", "clients/.4.safetensors.part"])
def test_a_link_where_the_run_writes_a_file_is_not_followed(run: Path, outside: Path, kept: Path, name: str) -> None:
    before = snapshot(outside)
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b"{")  # so that the file is written again
    (run / name).symlink_to(outside / "precious")
    go(run, resume=True)
    assert snapshot(outside) == before
    assert contents(run) == contents(kept / "whole")


def test_a_link_where_the_run_writes_a_checkpoint_is_refused(run: Path, outside: Path) -> None:
    before = snapshot(outside)
    (run / "checkpoints/.4").symlink_to(outside)
    with pytest.raises(RunError, match=r"checkpoints/.4 is a symbolic link"):
        go(run, resume=True)
    assert snapshot(outside) == before


def test_another_name_of_the_metrics_outside_is_not_written_to(run: Path, tmp_path: Path) -> None:
    (tmp_path / "backup").hardlink_to(run / "metrics.jsonl")
    before = (tmp_path / "backup").read_bytes()
    go(run, resume=True)
    assert (tmp_path / "backup").read_bytes() == before
    assert len(read_metrics(run)) == ROUNDS


def test_a_folder_in_place_of_a_file_is_named(run: Path) -> None:
    file = run / "checkpoints/3/server.safetensors"
    file.unlink()
    file.mkdir()
    with pytest.raises(RunError, match=f"{re.escape(str(file))} is a folder, where a run has a file: move it"):
        go(run, resume=True)
    assert file.is_dir()


def test_a_pipe_in_place_of_a_file_does_not_wait(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    os.mkfifo(run / "metrics.jsonl")
    with pytest.raises(RunError, match="is not a plain file"):
        read_metrics(run)


# Looking changes nothing.


def test_a_run_that_is_looked_at_stays_as_it_is(run: Path) -> None:
    (run / "checkpoints/.4").mkdir()
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 4, "accur')
    before = snapshot(run)
    assert len(looked_at(run).metrics) == DONE
    assert snapshot(run) == before


def test_a_damaged_newest_checkpoint_is_told_and_the_one_before_is_used(run: Path) -> None:
    flip(run / "checkpoints/3/server.safetensors", -1)
    before = snapshot(run)
    with pytest.warns(DamagedRunWarning, match=r"checkpoint 3 is damaged: .* this is the run after round 2"):
        found = looked_at(run)
    assert len(found.metrics) == DONE - 1
    assert snapshot(run) == before


@pytest.mark.parametrize("linked", [False, True])
def test_a_round_without_a_checkpoint_is_told_when_the_one_before_is_used(
    run: Path, outside: Path, linked: bool
) -> None:
    shutil.rmtree(run / "checkpoints/3")
    if linked:
        (run / "checkpoints/3").symlink_to(outside)
    with pytest.warns(DamagedRunWarning, match="there is no checkpoint of round 3; this is the run after round 2"):
        assert len(looked_at(run).metrics) == DONE - 1


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("checkpoints/3/server.safetensors", "checkpoint 3 is damaged: "),
        ("checkpoints/2/manifest.json", "checkpoint 2 is damaged: "),
        ("clients/3.safetensors", "checkpoint 3 is damaged: "),
        ("split.safetensors", ""),
    ],
)
def test_show_names_a_damaged_file_that_it_does_not_need(
    run: Path, name: str, of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(run)]) == 0
    whole = capsys.readouterr()
    assert whole.err == ""
    flip(run / name, -1)
    before = snapshot(run)
    assert main(["show", str(run)]) == 0
    said = capsys.readouterr()
    assert said.out == whole.out
    (line,) = said.err.splitlines()
    assert line.startswith(f"gossamer: {run}: {of}{name} ")
    assert snapshot(run) == before


def test_the_checkpoints_of_a_run_in_progress_are_not_judged(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(run / "checkpoints/2/server.safetensors", -1)
    folder = RunFolder.open(run)
    try:
        assert main(["show", str(run)]) == 0
    finally:
        folder.close()
    assert capsys.readouterr().err == ""


def test_a_run_folder_that_nobody_may_write_to_can_be_looked_at(run: Path) -> None:
    (run / "run.lock").unlink()
    before = snapshot(run)
    assert len(looked_at(run).metrics) == DONE
    assert snapshot(run) == before, "not even a lock was made"


def test_groups_of_clients_are_those_of_the_last_round_or_unknown(tmp_path: Path) -> None:
    from gossamer.runs.report import mixing

    simulate(perm(warmup=0, steps=1), tiny_task(), rounds=2, out=tmp_path / "run")
    mixing.read_mixing(tmp_path / "run")
    shutil.rmtree(tmp_path / "run/checkpoints/2")
    with pytest.raises(RunError, match="there is no checkpoint of round 2"):
        mixing.read_mixing(tmp_path / "run")
