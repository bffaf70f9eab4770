"""Central differential privacy against slow versions entry by entry, its sensitivity, and what it is combined with."""

import doctest
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import gossamer.parts.servers.private
from gossamer import (
    SGD,
    AdaptiveClip,
    Bernoulli,
    Clock,
    ConfigError,
    Lossy,
    Mean,
    Median,
    Method,
    Part,
    PayloadError,
    PowerOfChoice,
    PrivateMean,
    Robust,
    TreeMean,
    simulate,
)
from gossamer.core.exchange import GLOBAL, Arrival
from gossamer.core.privacy import Participation
from gossamer.core.random import fold, key
from gossamer.core.random.private import gaussian
from gossamer.core.types import State
from gossamer.methods import METHODS, dp_fedavg, fedavg
from gossamer.methods.server_optimizers import ServerOptimizer
from gossamer.parts.samplers import Poisson, Uniform
from gossamer.parts.secure import SecAgg
from gossamer.parts.servers import WeightedMean
from gossamer.parts.servers.private import PrivateServer
from gossamer.testing import check_method, tiny_task
from helpers.tasks import batch_norm_task
from helpers.toy_devices import ToyDevices

Array = npt.NDArray[np.float64]

KEY = key(5)
CLOCK = Clock(4, 9, -1)
SIZE = 7


def server(mean: WeightedMean | None = None, cohort: float | None = None, **fields: Any) -> PrivateMean:
    return PrivateMean(mean or Mean("uniform"), **fields).filled(key=KEY, cohort=cohort, secure_noise=False)


def arrivals(rows: Array, held: Array | None = None) -> list[Arrival]:
    """One arrival per row, of float64."""
    parts = [Part() if held is None else Part(keep={"w": torch.from_numpy(held[k])}) for k in range(len(rows))]
    return [Arrival.of(k, part, {"w": torch.from_numpy(rows[k])}, k + 1.0) for k, part in enumerate(parts)]


def state_of(it: PrivateMean, size: int = SIZE) -> State:
    return it.init({"w": torch.zeros(size, dtype=torch.float64)})


def finished(
    it: PrivateMean, found: Sequence[Arrival], asked: int | None = None, state: State | None = None
) -> tuple[State, dict[str, float]]:
    state = state_of(it) if state is None else state
    acc = it.begin(state, dict.fromkeys(range(len(found) if asked is None else asked), GLOBAL))
    for arrival in found:
        acc = it.fold(acc, arrival)
    new = it.finish(state, acc, CLOCK)
    return new, it.measure(new, acc)["clipping"]


def updates(clients: int, seed: int = 0, size: int = SIZE) -> Array:
    return np.random.default_rng(seed).normal(size=(clients, size))


def slow_sum(rows: Array, clip: float) -> Array:
    total = np.zeros(rows.shape[1])
    for row in rows:
        norm = math.sqrt(sum(x * x for x in row))
        total += [x * min(1.0, clip / norm) for x in row] if norm else 0.0
    return total


def noise_of_round(label: str, size: int) -> Array:
    return gaussian(fold(KEY, "privacy", CLOCK.round, label), size).numpy()


def test_examples_hold() -> None:
    assert doctest.testmod(gossamer.parts.servers.private).failed == 0


@pytest.mark.parametrize("clip", [0.5, 2.5, 100.0])
@pytest.mark.parametrize(("asked", "cohort"), [(6, None), (9, None), (6, 7.5)])
def test_the_mean_is_clipped_summed_noised_and_divided(clip: float, asked: int, cohort: float | None) -> None:
    rows, z = updates(6), 1.3
    new, figures = finished(server(cohort=cohort, clip=clip, noise_multiplier=z), arrivals(rows), asked)
    expected = cohort or asked
    wanted = (slow_sum(rows, clip) + z * clip * noise_of_round("sum", SIZE)) / expected
    assert new["params"]["w"].numpy() == pytest.approx(wanted, rel=1e-12)
    assert figures == {"norm": clip, "noise": pytest.approx(z * clip / expected), "clients": expected}


def test_the_norm_is_that_of_all_tensors_together() -> None:
    it = server(clip=1.0, noise_multiplier=0.0)
    state = it.init({"a": torch.zeros(1, dtype=torch.float64), "b": torch.zeros(2, 1, dtype=torch.float64)})
    change = {"a": torch.tensor([3.0]).double(), "b": torch.tensor([[0.0], [4.0]]).double()}
    new, _ = finished(it, [Arrival.of(0, Part(), change, 1.0)], state=state)
    assert new["params"]["a"].tolist() == pytest.approx([0.6])
    assert new["params"]["b"].flatten().tolist() == pytest.approx([0, 0.8])


def test_parts_of_the_model_count_as_zero_elsewhere() -> None:
    rows, held = updates(5), (np.random.default_rng(1).random((5, SIZE)) < 0.5).astype(float)
    new, _ = finished(server(clip=0.7, noise_multiplier=0.0), arrivals(rows, held))
    assert new["params"]["w"].numpy() == pytest.approx(slow_sum(rows * held, 0.7) / 5)


def test_float32_updates_are_summed_in_float64() -> None:
    it = server(clip=1e9, noise_multiplier=0.0)
    state = it.init({"w": torch.zeros(1)})
    values = (2.0**25, 1.0, 1.0, -(2.0**25))
    new, _ = finished(it, [Arrival.of(0, Part(), {"w": torch.tensor([x])}, 1.0) for x in values], state=state)
    assert new["params"]["w"].tolist() == [0.5]


def test_noise_is_added_without_arrivals_and_not_without_clients() -> None:
    it = server(clip=2.0)
    empty, _ = finished(it, [], asked=4)
    assert empty["params"]["w"].numpy() == pytest.approx(2 * noise_of_round("sum", SIZE) / 4)
    state = state_of(it)
    assert finished(it, [], asked=0, state=state)[0] is state


def test_server_optimizers_get_the_noisy_mean() -> None:
    rows = updates(4)
    momentum = ServerOptimizer("uniform", rule="momentum", server_lr=0.5).filled(trained=("w",))
    new, _ = finished(server(momentum, clip=1.0), arrivals(rows))
    wanted = 0.5 * (slow_sum(rows, 1.0) + noise_of_round("sum", SIZE)) / 4
    assert new["params"]["w"].numpy() == pytest.approx(wanted)
    assert new["first"]["w"].numpy() == pytest.approx(wanted / 0.5)


rows_of_any_size = arrays.arrays(
    np.float64, st.tuples(st.integers(1, 5), st.just(4)), elements=st.floats(-1e6, 1e6, width=32)
)


@settings(deadline=None, derandomize=True, max_examples=30)
@given(rows_of_any_size, st.integers(0, 4), st.floats(1e-3, 1e3))
def test_one_client_more_or_less_changes_the_sum_by_at_most_the_norm(rows: Array, who: int, clip: float) -> None:
    it = server(clip=clip, noise_multiplier=0.0)

    def total(of: Array) -> Array:
        acc = it.begin(state_of(it, 4), {0: GLOBAL})
        for arrival in arrivals(of):
            acc = it.fold(acc, arrival)
        return acc.total.numpy()

    without = np.delete(rows, who % len(rows), 0)
    assert np.linalg.norm(total(rows) - total(without)) <= clip * (1 + 1e-12)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_updates_that_are_not_finite_are_refused_and_leave_the_sum(bad: float) -> None:
    it = server()
    acc = it.begin(state_of(it), {0: GLOBAL})
    with pytest.raises(PayloadError, match="not finite"):
        it.fold(acc, Arrival.of(0, Part(), {"w": torch.full((SIZE,), bad, dtype=torch.float64)}, 1.0))
    assert not acc.total.any()
    assert acc.below == 0


# Adaptive clipping.


def test_the_norm_follows_the_noisy_share() -> None:
    rows, z, noise, clip = updates(10), 0.5, 1.5, 2.6
    it = server(adapt=AdaptiveClip(0.3, 0.4, noise), clip=clip, noise_multiplier=z)
    new, figures = finished(it, arrivals(rows), asked=12)
    norms = np.linalg.norm(rows, axis=1)
    count = sum(0.5 if norm <= clip else -0.5 for norm in norms) + noise * noise_of_round("count", 1)[0]
    share = count / 12 + 0.5
    assert figures["below"] == pytest.approx(share)
    assert float(new["clip"]) == pytest.approx(clip * math.exp(-0.4 * (share - 0.3)))
    raised = (z**-2 - (2 * noise) ** -2) ** -0.5
    wanted = (slow_sum(rows, clip) + raised * clip * noise_of_round("sum", SIZE)) / 12
    assert new["params"]["w"].numpy() == pytest.approx(wanted)
    assert figures["noise"] == pytest.approx(raised * clip / 12)


@pytest.mark.parametrize(("quantile", "start"), [(0.1, 10.0), (0.5, 0.1), (0.9, 0.1)])
def test_the_norm_converges_to_the_quantile(quantile: float, start: float) -> None:
    """As in Figure 1 of the paper: log-normal norms, noise of a count of 100 clients."""
    rng = np.random.default_rng(0)
    it = server(adapt=AdaptiveClip(quantile), clip=start, noise_multiplier=1.0)
    state, path = state_of(it, 1), []
    for number in range(300):
        acc = it.begin(state, dict.fromkeys(range(100), GLOBAL))
        acc.below = float((np.exp(rng.normal(size=100)) <= acc.clip).sum() - 50)  # as if 100 updates were folded
        state = it.finish(state, acc, CLOCK._replace(round=number))
        path.append(math.log(float(state["clip"])))
    target = {0.1: -1.2816, 0.5: 0.0, 0.9: 1.2816}[quantile]
    assert np.mean(path[-100:]) == pytest.approx(target, abs=0.15)
    assert abs(path[0] - target) > 1


@given(st.floats(0.01, 50), st.floats(0.01, 1e4))
def test_update_and_count_together_have_the_noise_multiplier(z: float, cohort: float) -> None:
    adapt = AdaptiveClip()
    raised, count = adapt.multiplier(z, cohort), adapt.deviation(z, cohort)
    assert (raised**-2 + (2 * count) ** -2) ** -0.5 == pytest.approx(z)
    assert z < raised <= z * 1.1548  # 1 / sqrt(1 - 1/4)


def test_too_little_noise_of_the_count_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"AdaptiveClip.count_noise must be above 1, half of noise_multiplier"):
        PrivateMean(adapt=AdaptiveClip(count_noise=1.0), noise_multiplier=2.0)
    PrivateMean(adapt=AdaptiveClip(count_noise=1.01), noise_multiplier=2.0)


# What is refused, and what is not.


@dataclass(frozen=True)
class Sending(SGD):
    sections = METHODS["fednova"]().solver.sections


def method(it: PrivateServer, **parts: Any) -> Method:
    return fedavg().with_parts(server=it, **parts)


WRONG: dict[str, tuple[Any, str]] = {
    "weights": (lambda: PrivateMean(Mean()), r"Mean.weights must be uniform: .* no bound, got 'samples'"),
    "holders": (lambda: PrivateMean(Mean("uniform", "holders")), r"Mean.over must be cohort"),
    "robust": (lambda: PrivateMean(Robust(Median())), "Robust uses the updates in another way"),
    "scaffold": (lambda: PrivateMean(METHODS["scaffold"]().server), "Scaffold uses the updates in another way"),
    "masks": (lambda: PrivateMean(METHODS["fedpm"]().server), "MaskAverage uses the updates in another way"),
    "clip": (lambda: PrivateMean(clip=0.0), "PrivateMean.clip must be a positive number, got 0.0"),
    "noise": (lambda: TreeMean(noise_multiplier=-1.0), "TreeMean.noise_multiplier must be finite and not negative"),
    "quantile": (lambda: AdaptiveClip(1.5), "AdaptiveClip.quantile must be from 0 to 1"),
    "momentum": (lambda: TreeMean(momentum=1.0), r"TreeMean.momentum must be in \[0, 1\)"),
    "restart": (lambda: TreeMean(restart_every=0), "TreeMean.restart_every must be at least 1"),
    "perm": (lambda: METHODS["perm"]().with_parts(server=PrivateMean()), "needs rounds with one exchange"),
}
BINDING: dict[str, tuple[Any, str]] = {
    "sections": (lambda it: method(it, solver=Sending()), "Sending sends values to .* released without noise"),
    "masks": (lambda it: METHODS["fedspa"]().with_parts(server=it), r"PersonalMask .* \(the masks of clients\)"),
    "probe": (
        lambda it: method(it, sampler=PowerOfChoice()),
        r"PowerOfChoice .* \(losses, by which clients are chosen",
    ),
    "model": (lambda it: method(it, send="model"), "clients must send changes of the model: use send=change"),
    "secure": (
        lambda it: Method((replace(fedavg().training, server=it, secure=SecAgg()),), Uniform()),
        "clips each update, which secure aggregation hides",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_configurations_are_refused_with_the_reason(name: str) -> None:
    make, reason = WRONG[name]
    with pytest.raises(ConfigError, match=reason):
        make()


@pytest.mark.parametrize("it", [PrivateMean(), TreeMean()], ids=["mean", "tree"])
@pytest.mark.parametrize("name", BINDING)
def test_parts_that_release_more_are_refused_before_training(name: str, it: PrivateServer) -> None:
    make, reason = BINDING[name]
    with pytest.raises(ConfigError, match=reason):
        simulate(make(it), tiny_task(), rounds=1)


def test_running_statistics_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"running statistics \(1.running_mean, .*use GroupNorm"):
        simulate(dp_fedavg(), batch_norm_task(), rounds=1)


def test_versions_are_not_mixed() -> None:
    with pytest.raises(ConfigError, match="PrivateMean guarantees privacy for one update per client and round"):
        simulate(dp_fedavg(), tiny_task(), rounds=1, schedule="fedasync", channel=ToyDevices())


def test_without_noise_there_is_no_guarantee() -> None:
    for it in (PrivateMean(noise_multiplier=0.0), TreeMean(noise_multiplier=0.0)):
        with pytest.raises(ConfigError, match=r"noise_multiplier must be positive for a guarantee, got 0\.0"):
            it.guarantee(Participation(10, 10, "all", 5))


def test_with_poisson_sampling_the_denominator_is_the_expected_number() -> None:
    found = simulate(dp_fedavg(steps=1).with_parts(sampler=Poisson(0.3)), tiny_task(), rounds=1, per_round=2)
    assert found.metrics[0]["figures"]["clipping"]["clients"] == 1.5


def test_lost_uploads_do_not_change_the_denominator() -> None:
    found = simulate(dp_fedavg(steps=1), tiny_task(), rounds=3, channel=Lossy(0.5))
    assert [record["figures"]["clipping"]["clients"] for record in found.metrics] == [5, 5, 5]
    assert any(record["lost"] for record in found.metrics)


@pytest.mark.parametrize(
    "parts", [{}, {"view": Bernoulli((0.5,))}, {"codec": METHODS["signsgd"]().codec}], ids=["whole", "parts", "signs"]
)
def test_runs_continue_with_the_same_noise_and_norm(parts: dict[str, Any], tmp_path: Any) -> None:
    check_method(dp_fedavg(steps=2, adaptive=True).with_parts(**parts), tmp_path)


def test_secure_noise_is_not_reproducible() -> None:
    runs = [simulate(dp_fedavg(steps=2), tiny_task(), rounds=2, secure_noise=True) for _ in range(2)]
    first, second = (run.model.state_dict()["0.weight"] for run in runs)
    assert not torch.equal(first, second)
