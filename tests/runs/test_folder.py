"""The run folder: nothing that was finished is lost, whatever happens to the process or the disk."""

import errno
import json
import multiprocessing
import os
import random
import signal
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import RunError, fedavg, local, simulate
from gossamer.core import files, tree
from gossamer.core.files import from_tensors
from gossamer.core.method import Method
from gossamer.core.store import ClientStore
from gossamer.runs.checkpoint import read_server
from gossamer.runs.folder import LARGE, RunFolder
from gossamer.runs.records import check_vacant, is_busy, read_about, read_metrics
from gossamer.testing import tiny_task

ROUNDS = 4
FORK = multiprocessing.get_context("forkserver")
# torch._dynamo is what torch's own operation counter takes a second to import.
FORK.set_forkserver_preload(["gossamer.testing", "safetensors.torch", "torch._dynamo"])


def still(handle: int) -> None:
    """What a killed process wrote outlives it without being synced, so these tests need not wait for the disk."""


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", still)


def go(method: Method, out: Path | None, resume: bool = False, **more: Any) -> Any:
    return simulate(method, tiny_task(), out=out, resume=resume, rounds=ROUNDS, per_round=2, seed=5, **more)


def stop_after(rounds: int) -> Callable[[dict[str, Any], Any], None]:
    def watch(record: dict[str, Any], run: Any) -> None:
        if record["round"] == rounds:
            raise KeyboardInterrupt

    return watch


def interrupted(method: Method, out: Path, rounds: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        go(method, out, callbacks=[stop_after(rounds)])


def contents(path: Path) -> dict[str, Any]:
    """Everything a folder ends with that must not depend on interruptions: all but the clock and the memory."""
    files = {
        str(file.relative_to(path)): file.read_bytes()
        for file in path.rglob("*")
        if file.is_file() and file.name not in ("metrics.jsonl", "manifest.json", "run.lock")
    }
    metrics = [{k: v for k, v in r.items() if k not in ("seconds", "memory_bytes")} for r in read_metrics(path)]
    return {"files": files, "metrics": metrics}


def child(out: str, alone: bool, at: int) -> None:
    """Run, or resume, and die by SIGKILL at the ``at``-th time something is made durable or given its name."""
    calls = 0

    def dying(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        return call

    os.fsync = dying(still)
    for name in ("rename", "replace", "unlink", "rmdir"):
        setattr(os, name, dying(getattr(os, name)))
    path = Path(out)
    go(local() if alone else fedavg(), path, resume=(path / "run.json").exists())


def killed(out: Path, alone: bool, at: int) -> int | None:
    process = FORK.Process(target=child, args=(str(out), alone, at))
    process.start()
    process.join()
    return process.exitcode


@pytest.mark.parametrize("apart", [13, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_at_every_moment_it_ends_with_the_same_bytes(apart: int, tmp_path: Path) -> None:
    """Every step towards the disk is a moment to die at: a new run is killed at each, then resumed to the end.

    Clients that stay alone have all of these moments: the server's checkpoints, and files of what they remember. Of
    these every fifth is tried, or all of them (``make slow-test``).
    """
    method = local()
    go(method, tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    moments = 1 - apart
    while True:
        moments += apart
        out = tmp_path / f"killed-{moments}"
        code = killed(out, True, moments)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        go(method, out, resume=(out / "run.json").exists())
        assert contents(out) == expected, f"killed at moment {moments}"
    assert moments > 8 * ROUNDS, "each round has several moments"
    assert contents(out) == expected


def test_killed_again_and_again_it_still_gets_there(tmp_path: Path) -> None:
    go(fedavg(), tmp_path / "whole")
    out = tmp_path / "run"
    deaths = 0
    while killed(out, False, 30) != 0:
        deaths += 1
        assert deaths < 50
    assert deaths >= 2
    assert contents(out) == contents(tmp_path / "whole")


def test_nothing_is_left_of_a_run_that_died_before_it_was_whole(tmp_path: Path) -> None:
    assert killed(tmp_path / "run", False, 1) == -signal.SIGKILL
    assert not (tmp_path / "run").exists()


def test_a_finished_run_resumes_to_itself(tmp_path: Path) -> None:
    go(fedavg(), tmp_path / "run")
    before = contents(tmp_path / "run")
    result = go(fedavg(), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before
    assert len(result.metrics) == ROUNDS
    assert torch.equal(result.model.state_dict()["0.bias"], read_server(tmp_path / "run")["params"]["0.bias"])


def test_the_last_two_checkpoints_are_kept_and_no_more(tmp_path: Path) -> None:
    go(local(), tmp_path / "run")
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == ["3", "4"]
    manifests = [json.loads((tmp_path / f"run/checkpoints/{n}/manifest.json").read_text()) for n in (3, 4)]
    needed = {name for m in manifests for name in m["files"] if name.startswith("clients/")}
    assert {f"clients/{p.name}" for p in (tmp_path / "run/clients").iterdir()} == needed


def test_files_hold_at_most_twice_what_clients_remember(tmp_path: Path) -> None:
    """Forty clients, four a round: without writing some again, files would hold more than three times as much."""
    draw = random.Random(0)
    folder, clients, models = RunFolder.create(tmp_path / "run", {}, {}), ClientStore(), ClientStore()
    for done in range(1, 121):
        if done % 30 == 0:  # as after a break
            folder.close()
            folder, clients, models = RunFolder.open(tmp_path / "run"), ClientStore(), ClientStore()
            before = folder.restore()
            assert before
            folder.recall(before, clients, models)
        for client in draw.sample(range(40), 4):
            clients.put(client, {"mask": torch.full((3,), float(done))})
        folder.save(done, {}, clients, models)
        manifest = json.loads((tmp_path / f"run/checkpoints/{done}/manifest.json").read_text())
        held = {name: from_tensors(tmp_path / "run" / name) for name in manifest["files"] if "clients/" in name}
        assert sum(map(len, held.values())) <= 2 * len(manifest["clients"])
        assert list(map(int, manifest["clients"])) == clients.known()
        for client, home in manifest["clients"].items():
            found = held[f"clients/{home}.safetensors"][f"{client}/mask"]
            assert torch.equal(found, clients.get(int(client))["mask"])
    folder.close()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("name", ["checkpoints/3/server.safetensors", "checkpoints/3/manifest.json"])
@pytest.mark.parametrize("damage", [flip, Path.unlink, empty])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(tmp_path: Path, name: str, damage: Any) -> None:
    go(fedavg(), tmp_path / "whole")
    interrupted(fedavg(), tmp_path / "run", 3)
    damage(tmp_path / "run" / name)
    folder = RunFolder.open(tmp_path / "run")
    found = folder.restore()
    folder.close()
    assert found is not None
    assert found.rounds == 2
    assert any("checkpoint 3 is damaged" in w and "continuing from round 2" in w for w in folder.warnings)
    assert not (tmp_path / "run/checkpoints/3").exists()
    go(fedavg(), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def large(value: float) -> torch.Tensor:
    return torch.full((LARGE // 4,), value)


def state(rounds: int) -> dict[str, Any]:
    """A server state with a tensor that changes in every round, one that changes at round 6, and a small one."""
    return {"moving": large(rounds), "nest": {"still": large(-1 if rounds < 6 else -2)}, "small": torch.ones(3)}


def saved(path: Path, rounds: range) -> RunFolder:
    """A folder with checkpoints of some rounds, continued if it exists."""
    folder = RunFolder.open(path) if path.exists() else RunFolder.create(path, {}, {})
    if rounds.start > 1:
        folder.restore()
    for number in rounds:
        folder.save(number, state(number), ClientStore(), ClientStore())
    return folder


def equal(a: dict[str, Any], b: dict[str, Any]) -> bool:
    flat, other = tree.flatten(a), tree.flatten(b)
    return flat.keys() == other.keys() and all(torch.equal(flat[name], other[name]) for name in flat)


def test_a_tensor_that_stays_the_same_is_not_written_again(tmp_path: Path) -> None:
    path = tmp_path / "run"
    for number in range(1, 9):
        saved(path, range(number, number + 1)).close()
        names = from_tensors(path / f"checkpoints/{number}/server.safetensors").keys()
        constant = number not in (1, 6)
        assert names == {"moving", "small"} if constant else {"moving", "nest/still", "small"}
        assert equal(read_server(path), state(number))
    (kept,) = (path / "tensors").iterdir()
    assert torch.equal(from_tensors(kept)["tensor"], large(-2)), "the old value was deleted"


def test_a_reopened_folder_writes_the_same_files(tmp_path: Path) -> None:
    saved(tmp_path / "whole", range(1, 8)).close()
    for number in range(1, 8):
        saved(tmp_path / "broken", range(number, number + 1)).close()
    written = [
        {str(file.relative_to(tmp_path / name)): file.read_bytes() for file in (tmp_path / name).rglob("*.safetensors")}
        for name in ("whole", "broken")
    ]
    assert written[0] == written[1]
    assert any(name.startswith("tensors/") for name in written[0])


@pytest.mark.parametrize("damage", [flip, Path.unlink, empty])
def test_a_damaged_constant_tensor_is_noticed(tmp_path: Path, damage: Any) -> None:
    saved(tmp_path / "run", range(1, 3)).close()
    (file,) = (tmp_path / "run/tensors").iterdir()
    damage(file)
    folder = RunFolder.open(tmp_path / "run")
    found = folder.restore()
    folder.close()
    assert found is not None
    assert found.rounds == 1, "whose checkpoint has the tensor itself"
    assert equal(found.server, state(1))
    assert any("tensors/" in warning and "continuing from round 1" in warning for warning in folder.warnings)


@pytest.mark.parametrize("rounds", [2, 3, 6, 7])
@pytest.mark.parametrize("step", range(4))
def test_killed_between_any_two_files_the_last_checkpoint_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rounds: int, step: int
) -> None:
    folder = saved(tmp_path / "run", range(1, rounds))
    done, replace_file, rename_folder = [0], Path.replace, Path.rename

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*given: Any) -> Any:
            done[0] += 1
            if done[0] > step:
                raise KeyboardInterrupt
            return act(*given)

        return wrapped

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", counted(replace_file))
        patch.setattr(Path, "rename", counted(rename_folder))
        try:
            folder.save(rounds, state(rounds), ClientStore(), ClientStore())
            finished = rounds
        except KeyboardInterrupt:
            finished = rounds - 1
    folder.close()
    again = saved(tmp_path / "run", range(finished + 1, finished + 1)) if finished else RunFolder.open(tmp_path / "run")
    found = again.restore()
    assert found is not None
    assert found.rounds == finished
    assert equal(found.server, state(finished))
    again.save(finished + 1, state(finished + 1), ClientStore(), ClientStore())
    again.close()
    assert equal(read_server(tmp_path / "run"), state(finished + 1))


def test_a_damaged_client_file_is_noticed(tmp_path: Path) -> None:
    interrupted(local(), tmp_path / "run", 3)
    flip(tmp_path / "run/clients/3.safetensors")
    folder = RunFolder.open(tmp_path / "run")
    found = folder.restore()
    folder.close()
    assert found is not None
    assert found.rounds == 2


def test_when_both_checkpoints_are_damaged_nothing_is_touched(tmp_path: Path) -> None:
    interrupted(fedavg(), tmp_path / "run", 3)
    for rounds in (2, 3):
        flip(tmp_path / f"run/checkpoints/{rounds}/server.safetensors")
    before = contents(tmp_path / "run")
    with pytest.raises(
        RunError, match=r"no checkpoint .* can be used: checkpoint 3 is damaged.*checkpoint 2 is damaged"
    ):
        go(fedavg(), tmp_path / "run", resume=True)
    assert contents(tmp_path / "run") == before
    assert not is_busy(tmp_path / "run")


def test_a_half_written_line_is_not_read(tmp_path: Path) -> None:
    interrupted(fedavg(), tmp_path / "run", 2)
    with (tmp_path / "run/metrics.jsonl").open("a") as file:
        file.write('{"round": 3, "accur')
    assert [r["round"] for r in read_metrics(tmp_path / "run")] == [1, 2]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    interrupted(fedavg(), tmp_path / "run", 2)
    folder = RunFolder.open(tmp_path / "run")
    assert is_busy(tmp_path / "run")
    with pytest.raises(RunError, match="another process is working in"):
        go(fedavg(), tmp_path / "run", resume=True)
    folder.close()
    assert not is_busy(tmp_path / "run")
    go(fedavg(), tmp_path / "run", resume=True)


@pytest.mark.parametrize("calls", [0, 1, 4, 7])
def test_a_full_disk_loses_nothing_that_was_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int
) -> None:
    interrupted(fedavg(), tmp_path / "run", 2)
    left = calls

    def full(handle: int) -> None:
        nonlocal left
        left -= 1
        if left < 0 and not stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match=r"the disk is full: round \d of .* was not saved, earlier rounds are safe"):
        go(fedavg(), tmp_path / "run", resume=True)
    monkeypatch.setattr(os, "fsync", still)
    go(fedavg(), tmp_path / "run", resume=True)
    go(fedavg(), tmp_path / "whole")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


def test_a_full_disk_at_the_start_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="the disk is full: no run was started"):
        go(fedavg(), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"method": local()}, "another method: "),
        ({"seed": 6}, "other options: seed is 6, was 5: resume it as it was started, or start a new run$"),
        ({"rounds": 9}, r'other options: rounds is 9, was \d+: use gossamer.resume\(".*run", task=task, rounds=9\)$'),
        ({"rounds": 9, "until": "loss<1", "seed": 6}, "rounds is 9, was .*: resume it as it was started, or start"),
        ({"task": tiny_task(clients=6)}, "another task: clients is 6, was 5, the data changed, the split changed: "),
    ],
)
def test_resuming_with_something_else_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    interrupted(fedavg(), tmp_path / "run", 2)
    asked: dict[str, Any] = {"method": fedavg(), "task": tiny_task(), "rounds": ROUNDS, "per_round": 2, "seed": 5}
    with pytest.raises(RunError, match=said):
        simulate(**(asked | change), out=tmp_path / "run", resume=True)


def test_an_altered_run_json_is_refused(tmp_path: Path) -> None:
    interrupted(fedavg(), tmp_path / "run", 2)
    about = tmp_path / "run/run.json"
    about.write_text(about.read_text().replace('"seed": 5', '"seed": 6'))
    with pytest.raises(RunError, match="altered"):
        read_about(tmp_path / "run")


def test_a_folder_of_version_0_1_is_refused_by_its_format(tmp_path: Path) -> None:
    go(fedavg(steps=1), tmp_path / "run")
    about = {name: said for name, said in files.from_json(tmp_path / "run/run.json").items() if name != "format"}
    files.write(tmp_path / "run/run.json", files.to_json(about))
    for look in (read_about, RunFolder.open):
        with pytest.raises(RunError, match=r"has format 1, and this release reads format 4: .* \(0\.1\)"):
            look(tmp_path / "run")


def test_a_place_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    check_vacant(tmp_path / "run")
    (tmp_path / "run/file").write_text("mine")
    for place in (tmp_path / "run", tmp_path / "run/file"):
        with pytest.raises(RunError, match="not empty"):
            go(fedavg(), place)
    assert (tmp_path / "run/file").read_text() == "mine"
    with pytest.raises(RunError, match="not a run"):
        RunFolder.open(tmp_path / "run")


def test_an_empty_folder_is_a_place_for_a_run(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    go(fedavg(), tmp_path / "run")
    assert len(read_metrics(tmp_path / "run")) == ROUNDS


def test_clients_without_anything_to_remember_are_not_stored(tmp_path: Path) -> None:
    clients = ClientStore()
    clients.put(3, {"solver": {}, "codec": {}})
    assert clients.known() == []
    clients.put(3, {"own": {"w": torch.ones(1)}})
    assert clients.changed == {3}
    go(fedavg(), tmp_path / "run")
    assert list((tmp_path / "run/clients").iterdir()) == []
