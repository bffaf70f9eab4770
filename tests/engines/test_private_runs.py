"""Runs with differential privacy: what records state, when the budget ends a run, and what is refused."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from gossamer import (
    DPSGD,
    BySize,
    ConfigError,
    Dense,
    Method,
    OnWeights,
    Poisson,
    PowerOfChoice,
    RunError,
    Uniform,
    dp_fedavg,
    dp_ftrl,
    fedavg,
    fedspa,
    perm,
    private,
    resume,
    scaffold,
    simulate,
)
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.random import key
from gossamer.methods.private import MODES
from gossamer.parts.privacy.accounting import gaussian
from gossamer.parts.privacy.renyi import from_renyi
from gossamer.runs.records import read_about, read_metrics
from gossamer.runs.report.base import cells_of, reports_of, rows_of, summaries_of
from gossamer.testing import tiny_task
from helpers.noisy import NoisyMean

TASK = tiny_task()
PRIVATE = fedavg(epochs=1, batch=8).with_parts(server=NoisyMean(), sampler=Poisson(0.3))


def figures(path: Path) -> list[dict[str, Any]]:
    return [record["figures"]["privacy"] for record in read_metrics(path)]


def test_every_record_states_what_was_spent() -> None:
    result = simulate(PRIVATE, TASK, rounds=4, delta=1e-3)
    made = gaussian(1.0, Participation(TASK.clients, 0.3 * TASK.clients, "poisson", 4))
    found = [record["figures"]["privacy"] for record in result.metrics]
    assert [each["epsilon"] for each in found] == [made.epsilon(rounds, 1e-3) for rounds in (1, 2, 3, 4)]
    assert {each["unit"] for each in found} == {"client"}
    known = gaussian(1.0, Participation(TASK.clients, 0.3 * TASK.clients, "other", 4))
    assert [each["epsilon_if_cohorts_known"] for each in found] == [known.epsilon(r, 1e-3) for r in (1, 2, 3, 4)]
    assert found[0] | {"epsilon": 0, "epsilon_if_cohorts_known": 0} == {
        "epsilon": 0,
        "epsilon_if_cohorts_known": 0,
        "delta": 1e-3,
        "unit": "client",
        "relation": "add-remove",
        "mechanism": "Gaussian noise, 1 times the clipping norm",
        "sampling": "Poisson sampling with rate 0.3, by PLD",
        "protects_from": "nobody: the noise follows from the seed of the simulation",
        "noise": "seed",
    }


def test_noise_of_the_operating_system_protects_somebody() -> None:
    task, method = tiny_task(), dp_fedavg(steps=1)
    found = simulate(method, task, rounds=1, delta=1e-3, secure_noise=True).metrics[0]["figures"]["privacy"]
    assert found["noise"] == "operating system"
    assert found["protects_from"] == "everybody who sees the models, except the server"
    with pytest.raises(ConfigError, match="secure_noise needs a method that adds noise"):
        simulate(fedavg(), task, rounds=1, secure_noise=True)


def test_every_private_part_learns_where_its_noise_comes_from(tmp_path: Path) -> None:
    """Two runs with the same seed differ if, and only if, their noise comes from the operating system."""
    task = tiny_task()
    for mode in MODES:
        method = private(fedavg(steps=1), mode, noise_multiplier=1.0, task=task)  # type: ignore[arg-type]
        for secure_noise in (False, True):
            given: dict[str, Any] = {"rounds": 1, "secure_noise": secure_noise}
            first, second = (simulate(method, task, **given).model.state_dict()["0.weight"] for _ in range(2))
            assert torch.equal(first, second) != secure_noise, mode


def test_a_deployment_has_no_other_noise_than_that_of_the_operating_system(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from gossamer.engines.flower import client_app
    from gossamer.engines.flower.node import Member
    from helpers.flower_runs import config, flower_run, ignore
    from helpers.local_grid import LocalGrid, node

    method = dp_fedavg(steps=1)
    app = client_app(method, TASK)
    grid = LocalGrid({90 + c: node(app, config(c, tmp_path / f"{c}")) for c in range(TASK.clients)})
    run = flower_run(method, TASK, grid, rounds=1, deadline=5.0, delta=1e-3)
    run.run(None, ignore)
    found = run.metrics[0]["figures"]["privacy"]
    assert found["noise"] == "operating system"
    assert found["protects_from"] == "everybody who sees the models, except the server"
    assert run.method.training.context.network.secure_noise
    own = private(fedavg(steps=1), "example", noise_multiplier=1.0, task=TASK)
    solver = Member(own, TASK, 0, {("model",): key(0), ("form",): key(1)}, "cpu").bound.training.solver
    assert isinstance(solver, DPSGD)
    assert solver.secure_noise


def test_a_run_keeps_the_source_of_its_noise(tmp_path: Path) -> None:
    method = dp_ftrl(steps=1)
    simulate(method, TASK, rounds=1, out=tmp_path / "a", secure_noise=True)
    assert read_about(tmp_path / "a")["options"]["secure_noise"] is True
    with pytest.raises(RunError, match="secure_noise is the default, was True"):
        simulate(method, TASK, rounds=2, out=tmp_path / "a", resume=True)
    resume(tmp_path / "a", method=method, task=TASK, rounds=3)
    assert {each["noise"] for each in figures(tmp_path / "a")} == {"operating system"}


def test_an_empty_round_counts_and_changes_nothing() -> None:
    result = simulate(PRIVATE.with_parts(sampler=Poisson(1e-9)), TASK, rounds=2)
    assert [record["clients"] for record in result.metrics] == [[], []]
    assert not any(sum(record["bytes_up"].values()) for record in result.metrics)
    assert result.metrics[0]["accuracy"] == result.metrics[1]["accuracy"]


def test_a_run_ends_before_it_exceeds_its_budget(tmp_path: Path) -> None:
    made = gaussian(1.0, Participation(TASK.clients, 0.3 * TASK.clients, "poisson", 9))
    budget = made.epsilon(3, 1e-3)
    simulate(PRIVATE, TASK, rounds=9, epsilon=budget, delta=1e-3, out=tmp_path / "a")
    spent = figures(tmp_path / "a")
    assert len(spent) == 3
    assert spent[-1]["epsilon"] == budget
    assert "would exceed epsilon" in read_metrics(tmp_path / "a")[-1]["stopped"]
    options = read_about(tmp_path / "a")["options"]
    assert (options["epsilon"], options["delta"]) == (budget, 1e-3)
    with pytest.raises(ConfigError, match="privacy budget of the run is spent"):
        resume(tmp_path / "a", method=PRIVATE, task=TASK, rounds=20)


def test_more_rounds_than_the_budget_allows_are_refused(tmp_path: Path) -> None:
    made = gaussian(1.0, Participation(TASK.clients, 0.3 * TASK.clients, "poisson", 2))
    simulate(PRIVATE, TASK, rounds=2, epsilon=made.epsilon(5, 1e-3), delta=1e-3, out=tmp_path / "a")
    with pytest.raises(ConfigError, match=r"8 rounds would exceed epsilon .* allows 5 rounds"):
        resume(tmp_path / "a", method=PRIVATE, task=TASK, rounds=8)
    assert len(figures(tmp_path / "a")) == 2
    resume(tmp_path / "a", method=PRIVATE, task=TASK, rounds=5)
    assert len(figures(tmp_path / "a")) == 5


def test_records_are_the_same_after_a_resumed_run(tmp_path: Path) -> None:
    def interrupt(record: dict[str, Any], run: object) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    simulate(PRIVATE, TASK, rounds=4, delta=1e-3, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        simulate(PRIVATE, TASK, rounds=4, delta=1e-3, out=tmp_path / "parts", callbacks=interrupt)
    simulate(PRIVATE, TASK, rounds=4, delta=1e-3, out=tmp_path / "parts", resume=True)
    assert figures(tmp_path / "parts") == figures(tmp_path / "whole")


def test_a_part_without_noise_states_nothing() -> None:
    silent = PRIVATE.with_parts(server=NoisyMean(noise_multiplier=0.0))
    assert "figures" not in simulate(silent, TASK, rounds=1).metrics[0]
    with pytest.raises(ConfigError, match="epsilon needs a method that adds noise"):
        simulate(silent, TASK, rounds=1, epsilon=1.0)


def test_delta_defaults_to_less_than_one_client() -> None:
    result = simulate(PRIVATE, TASK, rounds=1)
    assert result.metrics[0]["figures"]["privacy"]["delta"] == TASK.clients**-1.1


@pytest.mark.parametrize(
    ("sampler", "relation", "words"),
    [
        (Uniform(), "replace-one", "2 of 5 clients without replacement"),
        (BySize(), "zero-out", "no amplification"),
    ],
)
def test_the_sampler_decides_which_statement_holds(sampler: Any, relation: str, words: str) -> None:
    result = simulate(PRIVATE.with_parts(sampler=sampler), TASK, rounds=1, per_round=2)
    found = result.metrics[0]["figures"]["privacy"]
    assert found["relation"] == relation
    assert words in found["sampling"]


@dataclass(frozen=True)
class NoisyDense(Dense):
    """A codec that claims to add noise."""

    @property
    def private(self) -> bool:
        return True

    def guarantee(self, participation: Participation) -> Guarantee:
        return from_renyi(lambda order: order, participation, "noise of clients", "everybody")


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (fedavg(), {"epsilon": 1.0}, "epsilon needs a method that adds noise"),
        (fedavg(), {"delta": 1e-5}, "delta needs a method that adds noise"),
        (PRIVATE, {"epsilon": 1e-3, "delta": 1e-6}, "the first round alone takes"),
        (PRIVATE, {"exclude_after": 1}, "exclude_after must be none with differential privacy"),
        (PRIVATE, {"schedule": "fedasync"}, "schedule .* several versions"),
        (PRIVATE.with_parts(sampler=PowerOfChoice(2)), {"per_round": 2}, "PowerOfChoice chooses clients by losses"),
        (fedavg().with_parts(codec=OnWeights(NoisyDense())), {}, "OnWeights sends some tensors by a codec without"),
        (PRIVATE.with_parts(codec=NoisyDense(), server=NoisyMean(weights="uniform")), {}, "several parts add noise"),
        (fedavg().with_parts(codec=NoisyDense()), {}, "weighted by numbers of samples, which have no noise"),
        (scaffold().with_parts(codec=NoisyDense()), {}, "sends control_change without noise"),
        (fedspa().with_parts(codec=NoisyDense()), {}, "sends the masks of clients without noise"),
        (perm().with_parts(codec=NoisyDense()), {}, "GradientProbe sends values without noise, in exchange 1"),
    ],
)
def test_a_run_without_a_statement_is_refused(method: Method, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        simulate(method, TASK, rounds=2, **options)


def test_private_codecs_are_found_in_wrappers() -> None:
    whole = OnWeights(NoisyDense(), min_dim=0)
    result = simulate(fedavg(epochs=1).with_parts(codec=whole), TASK, rounds=1)
    assert result.metrics[0]["figures"]["privacy"]["mechanism"] == "noise of clients"
    both = OnWeights(NoisyDense(), other=NoisyDense())
    twice = simulate(fedavg(epochs=1).with_parts(codec=both), TASK, rounds=1)
    assert twice.metrics[0]["figures"]["privacy"]["mechanism"] == "noise of clients and noise of clients"
    with pytest.raises(ConfigError, match=r"OnWeights\.per_tensor must be false with a private codec"):
        OnWeights(NoisyDense(), per_tensor=True)


def test_reports_show_the_statement() -> None:
    records = simulate(PRIVATE, TASK, rounds=3, delta=1e-3).metrics
    summaries = summaries_of(records, TASK.clients)
    rows = dict(rows_of(summaries))
    spent = records[-1]["figures"]["privacy"]["epsilon"]
    assert rows["privacy"] == f"epsilon {spent:.4g}, delta 0.001 for each client (add-remove: one more or less)"
    assert cells_of(summaries)["privacy"] == f"epsilon {spent:.4g}, delta 0.001, client, noise from the seed"
    assert rows["noise"] == "from the seed: epsilon is that of a run whose noise is secret"
    assert rows["protects from"].startswith("nobody")
    charts = [chart for report in reports_of(records) if report.name == "privacy" for chart in report.charts(records)]
    assert len(charts) == 1
    assert "Privacy: epsilon spent" in charts[0]
