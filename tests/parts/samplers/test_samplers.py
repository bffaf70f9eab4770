"""Samplers draw cohorts by their law, in the simulator and among connected nodes."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch.func import functional_call

from gossamer import BySize, ConfigError, Lossy, Mean, Poisson, PowerOfChoice, RoundRobin, Uniform, fedavg, simulate
from gossamer.cli import main
from gossamer.core.random import choice, fold, key
from gossamer.core.types import Clock
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.parts.samplers import SAMPLERS, Pool, Sampler
from gossamer.testing import tiny_task
from helpers.flower_runs import check_parity

DRAWS = 4000


def drawn(sampler: Sampler, pool: Pool, rounds: int = DRAWS) -> Counter[int]:
    found: Counter[int] = Counter()
    for number in range(rounds):
        found.update(sampler.propose(pool, Clock(number, rounds, -1), key(3)))
    return found


def test_uniform_draws_as_ever() -> None:
    """The clients of a round are part of what a seed stands for."""
    pool = Pool(40, dict.fromkeys(range(40), 1), 7)
    for number in range(5):
        wanted = choice(fold(key(3), "cohort", number), 40, 7).tolist()
        assert Uniform().propose(pool, Clock(number, 5, -1), key(3)) == wanted


def test_by_size_draws_one_client_in_proportion_to_its_samples() -> None:
    sizes = {0: 10, 1: 30, 2: 60}
    found = drawn(BySize(), Pool(3, sizes, 1))
    for client, size in sizes.items():
        share = size / 100
        assert abs(found[client] / DRAWS - share) < 4 * (share * (1 - share) / DRAWS) ** 0.5


def test_by_size_draws_two_as_if_one_after_the_other() -> None:
    sizes = {0: 10, 1: 30, 2: 60}
    found = drawn(BySize(), Pool(3, sizes, 2))
    for client, size in sizes.items():
        others = [(n, 100 - n) for c, n in sizes.items() if c != client]
        share = size / 100 + sum(first / 100 * size / rest for first, rest in others)
        assert abs(found[client] / DRAWS - share) < 4 * (share * (1 - share) / DRAWS) ** 0.5


def test_poisson_draws_every_client_independently() -> None:
    """The number of clients has mean and variance of a binomial distribution, and two clients are independent."""
    pool, rate, rounds = Pool(20, dict.fromkeys(range(20), 1), 5), 0.15, 2000
    cohorts = [{*Poisson(rate).propose(pool, Clock(number, rounds, -1), key(3))} for number in range(rounds)]
    sizes = torch.tensor([len(cohort) for cohort in cohorts], dtype=torch.float64)
    assert abs(float(sizes.mean()) - 3.0) < 4 * (20 * 0.15 * 0.85 / rounds) ** 0.5
    assert float(sizes.var()) == pytest.approx(20 * 0.15 * 0.85, rel=0.15)
    assert abs(sum({2, 7} <= cohort for cohort in cohorts) / rounds - rate**2) < 4 * (rate**2 / rounds) ** 0.5
    assert Poisson(1.0).propose(Pool(9, {2: 1, 5: 1}, 1), Clock(0, 1, -1), key(0)) == [2, 5]


def test_round_robin_comes_back_after_its_separation() -> None:
    for clients, count in ((10, 4), (9, 3), (7, 7)):
        pool = Pool(clients, dict.fromkeys(range(clients), 1), count)
        visits = [number for number in range(30) if 0 in RoundRobin().propose(pool, Clock(number, 30, -1), key(0))]
        gaps = [after - before for before, after in pairwise(visits)]
        assert min(gaps) == RoundRobin().separation(clients, count)


def test_round_robin_has_everybody_equally_often() -> None:
    pool = Pool(10, dict.fromkeys(range(10), 1), 4)
    assert RoundRobin().propose(pool, Clock(0, 9, -1), key(0)) == [0, 1, 2, 3]
    assert RoundRobin().propose(pool, Clock(2, 9, -1), key(0)) == [0, 1, 8, 9]
    assert {*drawn(RoundRobin(), pool, 5).values()} == {2}
    some = Pool(10, {1: 1, 5: 1, 6: 1}, 2)
    assert RoundRobin().propose(some, Clock(1, 9, -1), key(0)) == [5, 6]


def test_power_of_choice_takes_the_clients_with_the_largest_losses() -> None:
    task = tiny_task(8, torch.float64)
    run = Simulation(fedavg(steps=2).with_parts(sampler=PowerOfChoice(5)), task, Options(rounds=4, per_round=2))
    before = dict(run.server["params"])
    module = task.model()
    for number in range(4):
        pool = Pool(8, run.available(), 2)
        candidates = PowerOfChoice(5).propose(pool, Clock(number, 4, -1), run.key)
        losses = {}
        for client in candidates:
            rows = torch.from_numpy(task.split.train(client))
            output = functional_call(module, before, (task.data.train.x[rows],))
            losses[client] = float(torch.nn.functional.cross_entropy(output, task.data.train.y[rows]))
        record = run.round(number, None)
        assert record["clients"] == sorted(sorted(losses, key=lambda c: -losses[c])[:2])
        assert record["bytes_up"]["solver.loss"] == 5 * 8
        assert [e["folded"] for e in record["exchanges"]] == [5, 2]
        before = dict(run.server["params"])


def test_a_round_without_a_reply_of_a_candidate_changes_nothing() -> None:
    method = fedavg(steps=2).with_parts(sampler=PowerOfChoice(3))
    run = Simulation(method, tiny_task(), Options(rounds=2, per_round=2, channel=Lossy(1.0)))
    before = dict(run.server["params"])
    result = run.run(None, lambda record: None)
    assert [record["clients"] for record in result.metrics] == [[], []]
    assert all(torch.equal(tensor, before[name]) for name, tensor in run.server["params"].items())


def test_clients_drawn_by_size_have_equal_weights() -> None:
    task = tiny_task()
    by_size = simulate(fedavg(steps=2, weights="samples").with_parts(sampler=BySize()), task, rounds=2, per_round=3)
    assert by_size.about["method"]["sampler"] == "BySize(), weights=uniform"
    alike = simulate(fedavg(steps=2, weights="uniform").with_parts(sampler=BySize()), task, rounds=2, per_round=3)
    for one, other in zip(by_size.model.parameters(), alike.model.parameters(), strict=True):
        assert torch.equal(one, other)
    bound = fedavg().with_parts(sampler=BySize())
    assert isinstance(bound.server, Mean)


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_draw_the_same_clients_among_connected_nodes(name: str, tmp_path: Path) -> None:
    task, options = tiny_task(4), {"rounds": 3, "per_round": 2}
    method = fedavg(steps=2).with_parts(sampler=SAMPLERS[name]())
    check_parity(method, task, tmp_path, **options)


def test_samplers_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    common = ["run", "fedavg", "--rounds", "1", "--clients", "8", "--per-round", "2", "--steps", "1"]
    assert main([*common, "--executor", "one-by-one", "--sampler", "power-of-choice:candidates=4", "--out", "a"]) == 0
    assert main(["show", "a"]) == 0
    shown = capsys.readouterr().out
    assert "PowerOfChoice(candidates=4)" in shown
    assert "solver.loss" in shown
    assert main([*common, "--sampler", "power-of-choices"]) == 2
    assert "did you mean power-of-choice?" in capsys.readouterr().err
    source = (
        "from gossamer.parts.samplers import Sampler\nfrom dataclasses import dataclass\n\n@dataclass(frozen=True)\n"
    )
    source += "class Last(Sampler):\n    def propose(self, pool, clock, key):\n"
    (tmp_path / "mine.py").write_text(source + "        return sorted(pool.available)[-pool.count:]\n")
    assert main([*common, "--executor", "one-by-one", "--sampler", "mine.py:Last", "--out", "b"]) == 0
    assert main([*common, "--sampler", "mine.py:Lost"]) == 2
    assert main([*common, "--solver", "mine.py:Last"]) == 2
    assert "must be a gossamer Solver, got Last" in capsys.readouterr().err


def test_candidates_must_be_some() -> None:
    with pytest.raises(ConfigError, match=r"PowerOfChoice\.candidates must be at least 1"):
        PowerOfChoice(0)
