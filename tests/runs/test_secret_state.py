"""Secret entries of the server state: encrypted in checkpoints, readable with ``run.secret`` alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import RunError, dp_fedavg, dp_ftrl, resume, simulate
from gossamer.core import files
from gossamer.core.random import fold, key
from gossamer.core.types import State
from gossamer.engines.export import stand
from gossamer.engines.kept_run import kept_key
from gossamer.runs.checkpoint import ENTRY, decrypted, encrypted, read_server, without
from gossamer.runs.records import SECRET, checkpoints, read_metrics
from gossamer.testing import tiny_task
from helpers.compare import same

TASK, KEY, NAMES = tiny_task(), key(3), ("sum", "nodes")
METHOD = dp_ftrl(steps=1, momentum=0.5)
SECURE: dict[str, Any] = {"rounds": 3, "delta": 1e-3, "secure_noise": True}
STATE: State = {
    "params": {"w": torch.arange(5.0)},
    "sum": torch.arange(9, dtype=torch.float64) / 7,
    "nodes": {"1.0": torch.tensor([3.5]), "0.2": torch.tensor([1, 2, 3], dtype=torch.int16)},
}


def test_what_is_encrypted_is_decrypted() -> None:
    sent = encrypted(STATE, NAMES, KEY)
    assert sent.keys() == {"params", ENTRY}
    assert same(decrypted(sent, KEY), STATE)
    assert same(without(sent), {"params": STATE["params"]})
    assert decrypted(STATE, KEY) is STATE


def test_equal_states_look_different_each_time() -> None:
    one, two = (encrypted(STATE, NAMES, KEY)[ENTRY] for _ in range(2))
    equal = (one == two).double().mean()
    assert equal < 0.05
    assert STATE["sum"].numpy().tobytes() not in one.numpy().tobytes()
    assert b"sum" not in one.numpy().tobytes()  # not even the names


@pytest.mark.parametrize("at", [0, 31, 32, 47, 48, -1])
def test_a_changed_bit_is_found(at: int) -> None:
    sent = encrypted(STATE, NAMES, KEY)
    sent[ENTRY][at] ^= 1
    with pytest.raises(RunError, match="cannot be decrypted"):
        decrypted(sent, KEY)


@pytest.mark.parametrize("size", [0, 40, -1])
def test_a_shorter_entry_is_found(size: int) -> None:
    sent = encrypted(STATE, NAMES, KEY)
    with pytest.raises(RunError, match="cannot be decrypted"):
        decrypted({**sent, ENTRY: sent[ENTRY][:size]}, KEY)


@pytest.mark.parametrize("other", [key(4), fold(KEY, "seal"), key(0)])
def test_another_key_is_refused(other: Any) -> None:
    with pytest.raises(RunError, match=r"run\.secret is not the one that the run was started with"):
        decrypted(encrypted(STATE, NAMES, KEY), other)


def killed(path: Path, after: int, **options: Any) -> None:
    def stop(record: dict[str, Any], run: Any) -> None:
        if record["round"] == after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(METHOD, TASK, out=path, callbacks=[stop], **options)


def test_a_killed_run_goes_on_with_its_sum_and_its_noise(tmp_path: Path) -> None:
    killed(tmp_path / "run", 2, **SECURE)
    assert (tmp_path / "run" / SECRET).stat().st_mode & 0o777 == 0o600
    assert (
        kept_key(tmp_path / "run") is None
    )  # random numbers, such as those of the initial model, follow from the seed
    secret = key_of(tmp_path / "run")
    before = decrypted(read_server(tmp_path / "run"), secret)
    resume(tmp_path / "run", method=METHOD, task=TASK)
    after = decrypted(read_server(tmp_path / "run"), secret)
    assert len(read_metrics(tmp_path / "run")) == 3
    assert set(before["nodes"]) == {"1.0"}
    assert set(after["nodes"]) == {"1.0", "0.2"}
    assert torch.equal(after["nodes"]["1.0"], before["nodes"]["1.0"])
    drift = (after["sum"] + sum(after["nodes"].values())) / after["cohort"]
    assert torch.equal(after["velocity"], before["velocity"] * 0.5 + drift)
    assert all(file.read_bytes().find(secret_bytes(tmp_path / "run")) < 0 for file in others(tmp_path / "run"))


def key_of(path: Path) -> Any:
    a, b = (int.from_bytes(part, "little") for part in (secret_bytes(path)[:8], secret_bytes(path)[8:]))
    return type(KEY)(a, b)


def secret_bytes(path: Path) -> bytes:
    return (path / SECRET).read_bytes()


def others(path: Path) -> list[Path]:
    return [file for file in path.rglob("*") if file.is_file() and file.name != SECRET]


def test_a_run_is_not_resumed_without_its_secret(tmp_path: Path) -> None:
    simulate(METHOD, TASK, out=tmp_path / "run", **SECURE)
    kept = secret_bytes(tmp_path / "run")
    for data, message in (
        (bytes(16), r"run\.secret is not the one"),
        (b"short", r"run\.secret cannot be read"),
        (None, "restore it from the machine of the run"),
    ):
        (tmp_path / "run" / SECRET).unlink()
        if data is not None:
            (tmp_path / "run" / SECRET).write_bytes(data)
        with pytest.raises(RunError, match=message):
            resume(tmp_path / "run", method=METHOD, task=TASK, rounds=4)
    (tmp_path / "run" / SECRET).write_bytes(kept)
    resume(tmp_path / "run", method=METHOD, task=TASK, rounds=4)
    assert checkpoints(tmp_path / "run")[0] == 4


def test_whoever_has_no_secret_can_look_at_the_model(tmp_path: Path) -> None:
    result = simulate(METHOD, TASK, out=tmp_path / "run", **SECURE)
    (tmp_path / "run" / SECRET).unlink()
    run = stand(tmp_path / "run", METHOD, TASK)
    assert same(dict(run.module().state_dict()), dict(result.model.state_dict()))
    assert not {"sum", "nodes", ENTRY} & run.server.keys()


def test_nothing_is_encrypted_if_the_noise_follows_from_the_seed(tmp_path: Path) -> None:
    for name in ("a", "b"):
        simulate(METHOD, TASK, out=tmp_path / name, rounds=3, delta=1e-3)
        assert not (tmp_path / name / SECRET).exists()
        assert {"sum", "nodes"} <= read_server(tmp_path / name).keys()
    one, two = (files.digest(tmp_path / name / "checkpoints/3/server.safetensors") for name in ("a", "b"))
    assert one == two


def test_a_run_without_secret_entries_has_no_secret(tmp_path: Path) -> None:
    simulate(dp_fedavg(steps=1), TASK, out=tmp_path / "run", **SECURE)
    assert not (tmp_path / "run" / SECRET).exists()
    assert ENTRY not in read_server(tmp_path / "run")


def test_a_rehearsal_of_a_deployment_has_a_secret_for_its_checkpoints(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from gossamer.engines.flower import serve
    from helpers.flower_runs import flower_run, nodes
    from helpers.local_grid import LocalGrid

    task, given = tiny_task(4), {"deadline": 5.0, "delta": 1e-3, "out": str(tmp_path / "run")}
    grid = LocalGrid(nodes(METHOD, task, tmp_path / "nodes"))
    serve(flower_run(METHOD, task, grid, rounds=1, **given))
    assert kept_key(tmp_path / "run") is None
    assert not {"sum", "nodes"} & read_server(tmp_path / "run").keys()
    run = flower_run(METHOD, task, grid, rounds=1, resume=True, **given)
    run.reopen(tmp_path / "run", rounds=2).close()
    assert {"sum", "nodes"} <= run.server.keys()
