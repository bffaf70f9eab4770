"""Attacks on what must not follow from the seed: noise, private cohorts, and the keys of other clients.

Each attacker is a node of a deployment that follows the protocol, keeps every message that it gets, and tries all keys
that these messages hold, and the keys of the seeds that people choose. Against version 0.2 (commit 86513a0), whose
messages held the seed of the run, the first two attacks succeed: the clipped sum of a round is recovered up to 1e-6 of
its norm, and every cohort is known before it is asked. See ``tests/attacks/README.md`` for how they were run there.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import MessageType
from torch import Tensor

from gossamer import ConfigError, Poisson, dp_fedavg, fedavg, private, resume, simulate
from gossamer.core.codec import Coding
from gossamer.core.errors import RunError
from gossamer.core.random import Key, fold, key, uniform
from gossamer.core.random.private import gaussian
from gossamer.core.sampler import Pool
from gossamer.core.types import Clock, Layout
from gossamer.engines.flower.messages import WORDS, read_keys
from gossamer.parts.samplers.draws import Uniform
from gossamer.parts.servers.private import PrivateMean
from gossamer.runs.folder import RELEASES, Releases, RunFolder
from gossamer.runs.records import read_metrics
from gossamer.tasks.objective import Objective
from gossamer.testing import tiny_task
from helpers.flower_runs import NUMBERS, deploy, flower_run, ignore, nodes
from helpers.local_grid import LocalGrid

TASK, ROUNDS = tiny_task(4), 3
GUESSES = 1000
"""Seeds that an attacker tries."""


def heard(grid: LocalGrid, client: int) -> list[dict[str, Any]]:
    """The named values of all messages that a node got."""
    mine = [message for message in grid.sent if message.metadata.dst_node_id == NUMBERS[client]]
    return [dict(message.content.config_records[WORDS]) for message in mine]


def candidates(grid: LocalGrid, client: int) -> Iterator[Key]:
    """What a node may take for the key of the run: all whole numbers that it heard, all its keys, and usual seeds."""
    seeds = set(range(GUESSES))
    for words in heard(grid, client):
        yield from read_keys(words["keys"]).values()
        seeds |= {int(value) for value in words.values() if str(value).isdecimal()}
    yield from map(key, sorted(seeds))


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Tensor, Tensor, float]]:
    """Per round: the clipped sum, the noisy sum, and the deviation of the noise."""
    found: list[tuple[Tensor, Tensor, float]] = []
    draw = PrivateMean.noise

    def noise(self: Any, at: Key, size: int, deviation: float, device: Any) -> Tensor:
        drawn = draw(self, at, size, deviation, device)
        found.append((torch.zeros(size, dtype=torch.float64), drawn, deviation))
        return drawn

    monkeypatch.setattr(PrivateMean, "noise", noise)
    return found


def test_a_node_cannot_recompute_the_noise_of_a_round(sums: list[tuple[Tensor, Tensor, float]], tmp_path: Path) -> None:
    method = dp_fedavg(steps=1, noise_multiplier=1.0)
    grid = LocalGrid(nodes(method, TASK, tmp_path))
    deploy(method, TASK, grid, rounds=ROUNDS, delta=1e-3, deadline=5.0, rehearsal=False)
    assert len(sums) == ROUNDS
    for number, (_, drawn, deviation) in enumerate(sums):
        for guess in candidates(grid, 0):
            known = gaussian(fold(guess, "privacy", number, "sum"), len(drawn)) * deviation
            assert (drawn - known).norm() > 0.5 * drawn.norm()


def test_the_noise_of_a_rehearsal_does_not_follow_from_its_seed(
    sums: list[tuple[Tensor, Tensor, float]], tmp_path: Path
) -> None:
    method = dp_fedavg(steps=1, noise_multiplier=1.0)
    deploy(method, TASK, LocalGrid(nodes(method, TASK, tmp_path)), rounds=1, delta=1e-3, deadline=5.0, seed=5)
    ((_, drawn, deviation),) = sums
    known = gaussian(fold(key(5), "privacy", 0, "sum"), len(drawn)) * deviation
    assert (drawn - known).norm() > 0.5 * drawn.norm()


@pytest.mark.parametrize("mode", ["local", "distributed"])
def test_the_noise_of_a_node_does_not_follow_from_its_keys(mode: Any, tmp_path: Path) -> None:
    """The server makes a node's keys, so noise that followed from them would protect nobody from the server.

    Two nodes with the same keys, samples and messages train the same, and send other noise.
    """
    method = private(fedavg(steps=1), mode, noise_multiplier=1.0, task=TASK, per_round=TASK.clients)
    codec = method.bind(Objective(TASK, "cpu", key(0), secure_noise=True)).training.codec
    layout = Layout(tuple((name, tensor.shape) for name, tensor in Objective(TASK, "cpu", key(0)).initial().items()))
    payloads = [codec.encode(torch.zeros(layout.size), Coding(layout, key(1))) for _ in range(2)]
    assert any(not torch.equal(array, payloads[1][name]) for name, array in payloads[0].items())
    codec = method.bind(Objective(TASK, "cpu", key(0))).training.codec
    payloads = [codec.encode(torch.zeros(layout.size), Coding(layout, key(1))) for _ in range(2)]
    assert all(torch.equal(array, payloads[1][name]) for name, array in payloads[0].items()), "a control"
    grid = LocalGrid(nodes(method, TASK, tmp_path))
    run = deploy(method, TASK, grid, rounds=1, delta=1e-3, deadline=5.0)
    assert run.metrics[0]["figures"]["privacy"]["noise"] == "operating system"


def test_a_node_cannot_predict_private_cohorts(tmp_path: Path) -> None:
    method = dp_fedavg(steps=1).with_parts(sampler=Poisson(0.5))
    grid = LocalGrid(nodes(method, TASK, tmp_path))
    run = deploy(method, TASK, grid, rounds=8, delta=1e-3, deadline=5.0)
    cohorts = [record["clients"] for record in run.metrics]
    for guess in candidates(grid, 0):
        draws = [uniform(fold(guess, "poisson", number), TASK.clients, dtype=torch.float64) for number in range(8)]
        assert [torch.nonzero(draw < 0.5).flatten().tolist() for draw in draws] != cohorts


def test_secret_cohorts_have_the_rate_and_the_size_of_their_sampler() -> None:
    pool, clock = Pool(200, dict.fromkeys(range(200), 1), 50, secret=True), Clock(0, 1, -1)
    sizes = [len(Poisson(0.25).propose(pool, clock, key(0))) for _ in range(200)]
    assert len(set(sizes)) > 5
    assert abs(sum(sizes) / 200 - 50) < 3  # seven standard deviations
    drawn = {tuple(Uniform().propose(pool, clock, key(0))) for _ in range(50)}
    assert len(drawn) == 50
    assert all(len(set(cohort)) == 50 and set(cohort) <= set(range(200)) for cohort in drawn)


def test_the_keys_of_one_client_say_nothing_about_another(tmp_path: Path) -> None:
    method = fedavg(steps=1)
    grid = LocalGrid(nodes(method, TASK, tmp_path))
    run = deploy(method, TASK, grid, rounds=ROUNDS, deadline=5.0, rehearsal=False)
    mine, theirs = (
        {purpose: at for words in heard(grid, client) for purpose, at in read_keys(words["keys"]).items()}
        for client in (0, 1)
    )
    assert not any("seed" in words for words in heard(grid, 0))
    shared = {("model",), ("form",), ("settle",), *((("round", number, "down")) for number in range(ROUNDS + 1))}
    own = {("round", number, "client", 0) for number in range(ROUNDS + 1)}
    assert set(mine) <= shared | own
    secret = {at for purpose, at in theirs.items() if "client" in purpose}
    assert secret
    labels = [label for purpose in theirs for label in purpose]
    derived = {fold(at, *more) for at in mine.values() for more in [(), *((label,) for label in labels)]}
    assert not secret & derived
    assert run.key not in derived | {key(seed) for seed in range(GUESSES)}


def test_two_deployments_with_one_seed_have_nothing_in_common(tmp_path: Path) -> None:
    models = []
    for name in ("a", "b"):
        grid = LocalGrid(nodes(fedavg(steps=1), TASK, tmp_path / name))
        models.append(deploy(fedavg(steps=1), TASK, grid, rounds=1, rehearsal=False).like)
    assert not any(torch.equal(one, models[1][name]) for name, one in models[0].items() if one.unique().numel() > 1)


# A crash between the draw of the noise and the record of the round.


class Crash(BaseException):
    """What ``kill -9`` does, as far as one process can show it: nothing is cleaned up."""


def test_noise_that_is_drawn_again_after_a_crash_counts_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    method, place = dp_fedavg(steps=1), tmp_path / "run"
    options: dict[str, Any] = {"rounds": 4, "delta": 1e-3, "secure_noise": True, "out": place}

    def crash(*_: Any, **__: Any) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", crash)
        with pytest.raises(Crash):
            simulate(method, TASK, **options)
    (place / "metrics.jsonl").write_bytes(b"")  # the record was not on disk yet
    resume(place, method=method, task=TASK)
    found = [record["figures"]["privacy"] for record in read_metrics(place)]
    plain = simulate(method, TASK, rounds=5, delta=1e-3).metrics
    assert [each["releases"] for each in found] == [2, 3, 4, 5]
    assert [each["epsilon"] for each in found] == [record["figures"]["privacy"]["epsilon"] for record in plain[1:]]
    lines = [json.loads(line) for line in (place / RELEASES).read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 1, 2, 3, 4]


def test_repeated_rounds_use_up_the_budget(tmp_path: Path) -> None:
    method, place = dp_fedavg(steps=1), tmp_path / "run"
    spent = simulate(method, TASK, rounds=2, delta=1e-3).metrics[-1]["figures"]["privacy"]["epsilon"]
    simulate(method, TASK, rounds=1, delta=1e-3, epsilon=spent, secure_noise=True, out=place)
    killed = Releases(place)
    killed.begin(1, [0])
    killed.begin(1, [1])  # two attempts at the second round, for which the budget had room once
    with pytest.raises(ConfigError, match="the privacy budget of the run is spent"):
        resume(place, method=method, task=TASK, rounds=2)
    assert len(read_metrics(place)) == 1


def test_void_attempts_do_not_exceed_the_budget(tmp_path: Path) -> None:
    """Under local privacy, an attempt that does not count has noisy uploads all the same."""
    method = private(fedavg(steps=1), "local", noise_multiplier=1.0, task=TASK)
    there = nodes(method, TASK, tmp_path)
    honest, answered = there[NUMBERS[3]], list[Any]()

    def flaky(message: Any) -> Any:
        if message.metadata.message_type == MessageType.TRAIN and len(answered) < 2:
            answered.append(message)
            return None
        return honest(message)

    there[NUMBERS[3]] = flaky
    given: dict[str, Any] = {"rounds": 3, "delta": 1e-3, "deadline": 0.2, "min_replies": 1.0}
    spent = flower_run(method, TASK, LocalGrid({}), **given).privacy
    assert spent is not None
    run = flower_run(method, TASK, LocalGrid(there), **given, epsilon=spent.spent(1) * 1.001)
    with pytest.raises(RunError, match="the privacy budget of the run is spent: 1 round began a second time"):
        run.run(None, lambda record: None)
    assert len(answered) == 1


def test_missing_lines_do_not_make_a_run_more_private(tmp_path: Path) -> None:
    method, place = dp_fedavg(steps=1), tmp_path / "run"
    simulate(method, TASK, rounds=1, delta=1e-3, secure_noise=True, out=place)
    killed = Releases(place)
    for number in (1, 1, 1):
        killed.begin(number, [0])
    resume(place, method=method, task=TASK, rounds=2)
    assert read_metrics(place)[-1]["figures"]["privacy"]["releases"] == 5
    (place / RELEASES).unlink()
    resume(place, method=method, task=TASK, rounds=3)
    assert read_metrics(place)[-1]["figures"]["privacy"]["releases"] == 6


def test_a_line_that_a_crash_cut_off_counts(tmp_path: Path) -> None:
    made = Releases(tmp_path)
    made.begin(0, [1, 2])
    made.begin(1, [3])
    made.void(1)
    made.begin(1, [0])
    with (tmp_path / RELEASES).open("ab") as file:
        file.write(b'{"round": 3, "cli')
    assert Releases(tmp_path).count == 3


def test_a_run_whose_key_is_missing_is_refused(tmp_path: Path) -> None:
    from gossamer.engines.kept_run import kept_key

    run = flower_run(fedavg(steps=1), TASK, LocalGrid({}), rehearsal=False)
    run.create(tmp_path / "run").close()
    assert kept_key(tmp_path / "run") == run.key
    assert (tmp_path / "run/run.secret").stat().st_mode & 0o777 == 0o600
    assert run.key.a.to_bytes(8, "little").hex() not in (tmp_path / "run/run.json").read_text()
    (tmp_path / "run/run.secret").unlink()
    with pytest.raises(RunError, match="restore it from the machine of the run"):
        kept_key(tmp_path / "run")
    ignore({})
