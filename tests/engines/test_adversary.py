"""Attacks in simulated runs: the same bytes with every executor and after an interruption."""

import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import gossamer
from gossamer import ConfigError, Method, Task, centralised, fedavg, heterofl, local, signsgd, simulate
from gossamer.cli import main
from gossamer.core.jobs import Job, own_key
from gossamer.core.random import Key, fold, key
from gossamer.core.types import Params
from gossamer.engines.adversary import AttackWarning, statistics
from gossamer.engines.client import Client, ClientTask
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.parts.attacks import ATTACKS, Attack, Noise
from gossamer.parts.attacks.base import UpdateAttack
from gossamer.runs.records import read_about, read_metrics
from gossamer.testing import tiny_task

ON_UPDATES = ("sign-flip:2", "noise:1", "claim-samples:1000", "alie:1.5", "inner-product:2", "label-flip")


def final(result: Any) -> Params:
    return {name: tensor.clone() for name, tensor in result.model.state_dict().items()}


def equal(one: Params, other: Params) -> bool:
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def images(clients: int = 6) -> Task:
    return Task.named("digits", clients=clients, split="iid")


def quick(**given: Any) -> Method:
    return fedavg(steps=2, **given)


@pytest.mark.parametrize(
    "text", [ON_UPDATES[0], *(pytest.param(text, marks=pytest.mark.slow) for text in ON_UPDATES[1:])]
)
def test_side_by_side_gives_the_same_bytes(text: str) -> None:
    task, attack = tiny_task(6), f"{text},share=0.4"
    alone, beside, honest = (
        final(simulate(fedavg(epochs=1), task, rounds=2, executor=executor, attack=given))
        for executor, given in (("one-by-one", attack), ("side-by-side", attack), ("one-by-one", None))
    )
    assert equal(alone, beside)
    assert not equal(alone, honest)


@pytest.mark.parametrize("text", ON_UPDATES)
def test_stacked_gives_the_same_numbers(text: str) -> None:
    task, attack = tiny_task(6, torch.float64), f"{text},share=0.4"
    alone, stacked = (
        final(simulate(fedavg(epochs=1), task, rounds=2, executor=executor, attack=attack))
        for executor in ("one-by-one", "stacked")
    )
    for name, tensor in alone.items():
        torch.testing.assert_close(stacked[name], tensor, atol=1e-9, rtol=1e-9)


@pytest.mark.parametrize("method", [signsgd(), heterofl()], ids=("signsgd", "heterofl"))
@pytest.mark.parametrize("text", ["scale:-5", "alie:1.5"])
def test_codecs_and_parts_of_models_are_attacked_too(method: Method, text: str) -> None:
    task = tiny_task(6)
    runs = [simulate(method, task, rounds=2, attack=given) for given in (None, f"{text},share=0.4")]
    assert runs[1].summary()["failures"] == 0
    assert not equal(*map(final, runs))


@pytest.mark.parametrize("text", [*ON_UPDATES, "backdoor:2"])
def test_a_run_resumes_with_its_attack(text: str, tmp_path: Path) -> None:
    task, attack = images(), f"{text},share=0.4"
    whole = simulate(quick(), task, rounds=3, attack=attack, out=tmp_path / "whole")

    def stop(record: Any, run: Any) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(quick(), task, rounds=3, attack=attack, out=tmp_path / "cut", callbacks=stop)
    resumed = gossamer.resume(tmp_path / "cut")
    assert equal(final(whole), final(resumed))
    assert read_about(tmp_path / "cut")["hostile"] == whole.about["hostile"]
    assert [record["train_loss"] for record in resumed.metrics] == [record["train_loss"] for record in whole.metrics]
    with pytest.raises(gossamer.RunError, match="attack is the default"):
        simulate(quick(), task, rounds=3, out=tmp_path / "cut", resume=True)


def test_an_honest_run_is_not_changed_by_the_attack_of_another(tmp_path: Path) -> None:
    task = images()
    before = task.data.train.y.clone(), task.data.train.x.clone()
    simulate(quick(), task, rounds=1, attack="backdoor,share=0.4")
    assert torch.equal(task.data.train.y, before[0])
    assert torch.equal(task.data.train.x, before[1])


class Slow(Simulation):
    """A run that keeps the training result of every client, before and after the attack."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen: dict[int, tuple[Job, Params, Params]] = {}
        encode = self.client.encode

        def kept(job: Job, trained: Any) -> Any:
            self.seen[job.clock.client] = job, honest_change(self, job), trained.change
            return encode(job, trained)

        self.client.encode = kept  # type: ignore[method-assign]


def honest_change(run: Simulation, job: Job) -> Params:
    """What the client trains without an attack on its update."""
    honest = Client(run.method, run.objective)
    stage_key = run.method.training.key(run.round_key(job.clock.round))
    training = run.method.training
    sent = training.make_download(run.server, job.clock, stage_key, training.home(job.clock.client), None, None)
    task = ClientTask(job.clock, stage_key, sent.data, {}, run.split.train(job.clock.client))
    return honest.train(task, honest.read_download(task)).change


def seen(attack: Attack, method: Method | None = None) -> tuple[Slow, dict[int, tuple[Job, Params, Params]]]:
    run = Slow(method or fedavg(epochs=1), tiny_task(8), Options(rounds=1, attack=attack))
    run.run(None, lambda record: None)
    assert run.adversary is not None
    return run, run.seen


@pytest.mark.parametrize("name", ["alie", "inner-product"])
def test_colluding_clients_send_what_the_formula_gives_of_their_own_updates(name: str) -> None:
    run, found = seen(Attack.of_text(f"{name}:2,share=0.4"))
    assert run.adversary is not None
    hostile = run.adversary.hostile
    for tensor in run.like:
        own = torch.stack([found[client][1][tensor] for client in hostile])
        mean, std = own.mean(0), own.std(0, correction=0)
        meant = mean - 2 * std if name == "alie" else -2 * mean
        for client in hostile:
            torch.testing.assert_close(found[client][2][tensor], meant, atol=1e-6, rtol=1e-5)
    for client in set(range(8)) - {*hostile}:
        assert equal(found[client][1], found[client][2])


def test_each_client_draws_its_own_noise() -> None:
    run, found = seen(Noise(2.0, share=0.4))
    assert run.adversary is not None
    for client in run.adversary.hostile:
        job, honest, sent = found[client]
        mine = own_key(run.method.training.key(run.round_key(0)), job.clock)
        torch.testing.assert_close(sent, Noise(2.0).update(honest, fold(mine, "attack")))


def test_statistics_count_the_clients_that_hold_an_entry() -> None:
    run, found = seen(Attack.of_text("scale:1,share=0.4"), heterofl())
    updates = [(job, change) for job, change, _ in found.values()]
    mean, std = statistics(updates, run.like)
    for name, like in run.like.items():
        held = torch.stack([job.part.coverage(run.like)[name] for job, _ in updates]).double()
        values = torch.stack([job.part.spread(change, run.like)[name] for job, change in updates]).double()
        count = held.sum(0)
        slow = values.sum(0) / count
        torch.testing.assert_close(mean[name], slow.to(like), atol=1e-6, rtol=1e-5)
        torch.testing.assert_close(std[name].double() ** 2, (values**2).sum(0) / count - slow**2, atol=1e-6, rtol=1e-3)


def test_only_hostile_clients_train_on_changed_samples() -> None:
    task = images()
    run = Simulation(quick(), task, Options(rounds=1, attack=Attack.of_text("label-flip,share=0.4")))
    for client in range(6):
        rows = torch.from_numpy(task.split.train(client))
        mine, honest = run.objective.samples.y[rows], task.data.train.y[rows]
        assert torch.equal(mine, 9 - honest if client in run.about["hostile"] else honest)


def test_the_success_of_a_backdoor_is_recorded_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = simulate(fedavg(epochs=3), images(), rounds=4, attack="backdoor:3,share=0.4", out=tmp_path / "run")
    honest = simulate(fedavg(epochs=3), images(), rounds=4)
    rate = result.metrics[-1]["attack_success"]
    assert rate > 0.5
    assert result.summary()["attack_success"] == rate
    assert "attack_success" not in honest.metrics[-1]
    images_with_patch = ATTACKS["backdoor"]().trigger(images().data.test.x)  # type: ignore[attr-defined]
    others = images().data.test.y != 0
    with torch.no_grad():
        taken = result.model(images_with_patch)[others].argmax(1) == 0
    assert rate == pytest.approx(float(taken.double().mean()))
    assert main(["show", str(tmp_path / "run")]) == 0
    shown = capsys.readouterr().out
    assert "backdoor:factor=3.0,share=0.4 by 2 of 6 clients" in shown
    assert "attack success" in shown


@pytest.mark.parametrize(
    ("attack", "clients", "said"),
    [
        (
            "alie,share=0.25",
            8,
            "2 hostile of 8 .*: the paper's formula gives z = 0; give z, as in alie:1.5",
        ),
        ("alie:0,share=0.4", 8, "3 hostile of 8 clients per round: z is 0; give z, as in alie:1.5"),
        (
            "alie:1.5",
            8,
            "1 hostile of 8 .*: the standard deviation of one update is 0; use a share above",
        ),
    ],
)
def test_an_attack_without_effect_is_told_before_training(attack: str, clients: int, said: str, tmp_path: Path) -> None:
    task = tiny_task(clients)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AttackWarning)
        with pytest.raises(AttackWarning, match=f"attack alie.*: it does nothing with {said}"):
            simulate(fedavg(epochs=1), task, attack=attack, rounds=2, out=tmp_path / "run")
    assert not read_metrics(tmp_path / "run"), "no round was trained"
    with pytest.warns(AttackWarning) as caught:
        simulate(fedavg(epochs=1), task, rounds=2, attack=attack)
    assert len(caught) == 1, "once in all rounds"


def test_attacks_with_an_effect_are_not_warned_of() -> None:
    for attack, hostile, cohort in (("alie", 3, 8), ("alie:1.5", 2, 20), ("inner-product", 1, 8), ("scale", 1, 8)):
        assert Attack.of_text(attack).warning(hostile, cohort) is None


def test_a_share_of_clients_that_fail_do_not_stop_those_that_collude() -> None:
    result = simulate(fedavg(epochs=1), tiny_task(8), rounds=3, attack="alie,share=0.4", failure_rate=0.5)
    assert sum(len(record["failures"]) for record in result.metrics) > 0
    assert len(result.metrics) == 3


@pytest.mark.parametrize(
    ("method", "text", "said"),
    [
        (centralised(), "noise", "a method that pools all samples has no clients that could attack"),
        (local(), "noise", "clients of this method send nothing that could be attacked"),
        (fedavg(), "backdoor", "attack=backdoor: it needs images"),
    ],
)
def test_runs_without_anything_to_attack_are_refused(method: Method, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        simulate(method, tiny_task(), rounds=1, attack=text)


def test_samples_that_honest_clients_share_are_not_changed() -> None:
    data = (torch.randn(20, 3), torch.arange(20) % 2)
    split = [np.arange(10), np.arange(5, 15), np.arange(10, 20)]
    task = Task.of(lambda: torch.nn.Linear(3, 2), data, data, split=split)
    with pytest.raises(ConfigError, match="share samples with others"):
        simulate(fedavg(), task, rounds=1, attack="label-flip,share=0.4")


def test_deployments_refuse_attacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "try", "fedavg", "--attack", "noise"]) != 0
    assert "unknown flag --attack: only gossamer run has it" in capsys.readouterr().err
    assert main(["deploy", "try", "fedavg", "--clients", "5"]) != 0
    assert "unknown flag --clients: a deployment has --nodes;" in capsys.readouterr().err


def test_hostile_clients_are_the_same_in_all_rounds_and_listed() -> None:
    result = simulate(fedavg(epochs=1), tiny_task(10), rounds=2, attack="scale:100,share=0.2", per_round=6, seed=5)
    assert result.about["hostile"] == list(Attack.of_text("scale,share=0.2").hostile(10, key(5)))
    assert result.about["options"]["attack"] == "scale:share=0.2"


@dataclass(frozen=True)
class Zeros(UpdateAttack):
    """An attack without a name on the command line."""

    share: float = 0.4

    def update(self, change: Params, key: Key) -> Params:
        return {name: torch.zeros_like(tensor) for name, tensor in change.items()}


def test_a_run_with_an_attack_of_ones_own_is_resumed_by_its_script(tmp_path: Path) -> None:
    task, run = tiny_task(), tmp_path / "run"
    simulate(fedavg(epochs=1), task, rounds=1, attack=Zeros(), out=run)
    with pytest.raises(ConfigError, match=r"attack of the run, Zeros\(share=0.4\), is an object of your own"):
        gossamer.resume(run, task=task, rounds=2)
    again = simulate(fedavg(epochs=1), task, rounds=1, attack=Zeros(), out=run, resume=True)
    assert len(again.metrics) == 1


def test_metrics_of_a_resumed_backdoor_have_the_success_rate(tmp_path: Path) -> None:
    simulate(quick(), images(), rounds=2, attack="backdoor,share=0.4", out=tmp_path / "run")
    gossamer.resume(tmp_path / "run", rounds=3)
    assert all("attack_success" in record for record in read_metrics(tmp_path / "run"))
