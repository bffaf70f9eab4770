"""Tree noise: its nodes, its variance, and the models that follow from it."""

import doctest
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import gossamer.parts.servers.private_tree
from gossamer import Clock, Part, PrivateMean, TreeMean, simulate
from gossamer.core.exchange import GLOBAL, Arrival
from gossamer.core.random import fold, key
from gossamer.core.random.private import gaussian
from gossamer.core.types import State
from gossamer.methods import ServerOptimizer, dp_ftrl, fedavg
from gossamer.parts.servers.private_tree import prefix
from gossamer.testing import check_method, tiny_task

KEY = key(6)
SIZE = 3
COHORT = 4


def server(secure_noise: bool = False, honaker: bool = False, **fields: Any) -> TreeMean:
    return TreeMean(honaker=honaker, **fields).filled(key=KEY, secure_noise=secure_noise)


def rounds_of(it: TreeMean, updates: Sequence[float], state: State | None = None, start: int = 0) -> list[State]:
    """The states after rounds in which one of four clients answers, with the same value in each entry."""
    state = it.init({"w": torch.full((SIZE,), 10.0, dtype=torch.float64)}) if state is None else state
    found = []
    for number, value in enumerate(updates, start):
        acc = it.begin(state, dict.fromkeys(range(COHORT), GLOBAL))
        change = {"w": torch.full((SIZE,), value, dtype=torch.float64)}
        acc = it.fold(acc, Arrival.of(0, Part(), change, 1.0))
        state = it.finish(state, acc, Clock(number, 99, -1))
        found.append(state)
    return found


def test_examples_hold() -> None:
    assert doctest.testmod(gossamer.parts.servers.private_tree).failed == 0


@given(st.integers(1, 10_000))
def test_a_prefix_is_covered_exactly_by_one_node_per_binary_one(rounds: int) -> None:
    covered = [t for level, index in prefix(rounds) for t in range(index << level, (index + 1) << level)]
    assert covered == list(range(rounds))
    assert len(prefix(rounds)) == rounds.bit_count()


def test_a_round_is_in_at_most_one_node_of_each_level() -> None:
    nodes = {node for rounds in range(1, 65) for node in prefix(rounds)}
    for t in range(64):
        levels = [level for level, index in nodes if index << level <= t < (index + 1) << level]
        assert len(levels) == len({*levels}) <= 7


def test_models_are_the_noisy_sums_of_nodes() -> None:
    values, clip, z, lr = [0.1, 0.2, -0.1, 0.3, 0.0, 0.2, 0.1], 1.0, 0.7, 0.5
    states = rounds_of(server(server_lr=lr, clip=clip, noise_multiplier=z), values)
    for t, state in enumerate(states, 1):
        noise = sum(gaussian(fold(KEY, "tree", 0, level, index), SIZE).numpy() for level, index in prefix(t))
        wanted = 10 + lr * (sum(values[:t]) + z * clip * noise) / COHORT
        assert state["params"]["w"].numpy() == pytest.approx(wanted)


def test_the_variance_of_a_prefix_is_its_number_of_nodes() -> None:
    """Per complete node: 1, or 1 / (2 - 2^-level) with the estimates of Honaker, in units of that of a node."""
    for honaker in (False, True):
        it = TreeMean(clip=2.0, noise_multiplier=1.5, honaker=honaker)
        it = it.filled(key=KEY, cohort=1.0, secure_noise=False)
        state = it.init({"w": torch.zeros(20_000, dtype=torch.float64)})
        for t in range(1, 10):
            acc = it.begin(state, {})
            state = it.finish(state, acc, Clock(t - 1, 10, -1))
            noise, variance = state["params"]["w"], float(t.bit_count())
            if honaker:
                variance = sum(1 / (2 - 2.0**-level) for level in range(5) if t >> level & 1)
            assert float(noise.var()) == pytest.approx(9 * variance, rel=0.06)
            assert abs(float(noise.mean())) < 4 * 3 * (variance / 20_000) ** 0.5
            assert it.measure(state, acc)["clipping"]["noise"] == pytest.approx(3 * variance**0.5)


@pytest.mark.parametrize("rounds", range(1, 18))
def test_the_estimates_of_honaker_are_the_best_ones_from_all_nodes(rounds: int) -> None:
    """Least squares on all complete nodes gives the same noise of the sum, and the same variance.

    Only nodes within the dyadic pieces of the prefix tell something about their sums.
    """
    nodes = [(level, i) for level in range(5) for i in range(rounds >> level)]
    covers = np.array([[float(i << level <= t < (i + 1) << level) for t in range(rounds)] for level, i in nodes])
    noise = np.stack([gaussian(fold(KEY, "tree", 0, *node), SIZE).numpy() for node in nodes])
    best = np.linalg.lstsq(covers, noise, rcond=None)[0].sum(0)
    variance = np.ones(rounds) @ np.linalg.inv(covers.T @ covers) @ np.ones(rounds)
    it = server(honaker=True)
    state = rounds_of(it, [0.0] * rounds)[-1]
    assert (state["params"]["w"].numpy() - 10) * COHORT == pytest.approx(best)
    assert it.variance(rounds) == pytest.approx(variance)
    assert [*state["nodes"]] == [f"{level}.{index}" for level, index in prefix(rounds)]


def test_a_round_without_clients_is_not_missing_in_the_estimates() -> None:
    it = server(honaker=True)
    before = rounds_of(it, [0.0] * 2)[-1]
    after = rounds_of(it, [0.0], before, start=3)[-1]  # nobody was asked in the third round
    whole = rounds_of(it, [0.0] * 4)[-1]
    assert torch.equal(after["params"]["w"], whole["params"]["w"])


def test_a_new_tree_starts_from_the_current_model() -> None:
    values = [0.1, 0.2, -0.1, 0.3, 0.2]
    states = rounds_of(server(restart_every=2, noise_multiplier=0.5), values)
    start = states[1]["params"]["w"].numpy()
    for t, state in enumerate(states[2:4], 1):
        noise = sum(gaussian(fold(KEY, "tree", 1, level, index), SIZE).numpy() for level, index in prefix(t))
        assert state["params"]["w"].numpy() == pytest.approx(start + (sum(values[2 : 2 + t]) + 0.5 * noise) / COHORT)


def test_a_restart_is_not_missed_if_its_round_had_no_clients() -> None:
    it = server(restart_every=2, noise_multiplier=0.0)
    before = rounds_of(it, [0.1, 0.2])[-1]
    idle = it.finish(before, it.begin(before, {}), Clock(2, 9, -1))
    assert idle is before
    after = rounds_of(it, [0.4], before, start=3)[-1]
    assert torch.equal(after["initial"]["w"], before["params"]["w"])


def test_secure_nodes_are_kept_while_they_are_in_use() -> None:
    for t, state in enumerate(rounds_of(server(secure_noise=True, honaker=True), [0.0] * 8), 1):
        assert [*state["nodes"]] == [f"{level}.{index}" for level, index in prefix(t)]
    states = rounds_of(server(secure_noise=True), [0.0] * 8)
    for t, state in enumerate(states, 1):
        assert [*state["nodes"]] == [f"{level}.{index}" for level, index in prefix(t)]
    for t in (5, 6, 7):  # the node of rounds 1 to 4
        assert torch.equal(states[t - 1]["nodes"]["2.0"], states[3]["nodes"]["2.0"])
    drift = (states[6]["params"]["w"] - 10) * COHORT
    assert drift.numpy() == pytest.approx(sum(node.numpy() for node in states[6]["nodes"].values()))


@pytest.mark.parametrize(("momentum", "every"), [(0.0, None), (0.0, 2), (0.8, None)])
def test_without_noise_it_is_fedavg_or_fedavgm_with_clipped_updates(momentum: float, every: int | None) -> None:
    tree = TreeMean(0.7, momentum, every, clip=0.3, noise_multiplier=0.0)
    mean = PrivateMean(
        ServerOptimizer("uniform", rule="momentum", server_lr=0.7, beta1=momentum), clip=0.3, noise_multiplier=0.0
    )
    task = tiny_task(dtype=torch.float64)
    first, second = (simulate(fedavg(steps=3).with_parts(server=it), task, rounds=5).model for it in (tree, mean))
    for name, tensor in first.state_dict().items():
        assert tensor.numpy() == pytest.approx(second.state_dict()[name].numpy(), abs=1e-12)


def test_the_noise_of_a_tree_grows_more_slowly_than_that_of_rounds() -> None:
    """The reason for a tree: after 31 rounds of independent noise, the variance is 31, here it is 5; after 32, 1."""
    assert [rounds.bit_count() for rounds in (31, 32)] == [len(prefix(31)), len(prefix(32))] == [5, 1]
    assert np.mean([len(prefix(t)) for t in range(1, 1025)]) < 6


@pytest.mark.parametrize("given", [{"restart_every": 2}, {"momentum": 0.9}])
def test_runs_continue_with_the_same_tree(given: dict[str, Any], tmp_path: Any) -> None:
    check_method(dp_ftrl(steps=2, **given), tmp_path, rounds=4)
