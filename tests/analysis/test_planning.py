"""Plans for fleets: as good as a fine grid of all choices, within all budgets, and monotone; the file; the command."""

import json
import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import SGD, MagnitudePruned, Task, compose, onebit_cs, simulate
from gossamer.analysis.planning import PLANNED, Limits, Load, MessageSize, Plan, Problem, Pruning, Target, make, probe
from gossamer.analysis.planning.loads import Loads, PrunedTensor
from gossamer.analysis.planning.plan import digest, figure
from gossamer.analysis.planning.search import golden, shortfalls
from gossamer.analysis.planning.work import operations
from gossamer.analysis.theory import WirelessSetting, gradient_bound
from gossamer.cli import main
from gossamer.cli.plan import ENERGIES
from gossamer.core.errors import ConfigError
from gossamer.core.random import fold, key
from gossamer.core.types import Clock, Flops
from gossamer.fleet.device import Device
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.keys import Span
from gossamer.fleet.radio import Density, Link, outage, rate
from gossamer.parts.channels import Wireless
from gossamer.tasks.objective import Objective
from gossamer.testing import tiny_task
from helpers.narrow import present
from helpers.paths import ROOT

LIMITS = Limits(100, 40_000)
TARGET = Target(samples=1000, gradient=30.0, reconstruction=0.5)
LINK = Link(1.0, 200.0, interference=5e-8)
LOAD = Load("phone", LINK, seconds=0.1, joules=0.1, energy=0.08, deadline=0.2)


# Against all choices.


def brute_force(loads: Sequence[Load], target: Target, limits: Limits, powers: int, counts: int) -> float:
    """The least bound over a grid of measurements, powers and shares, as the problem is stated."""
    shares, totals = np.linspace(0, limits.largest, 201)[:, None], []
    tried = np.unique(np.geomspace(limits.least, limits.most, counts).round())
    links = [[replace(load.link, power=p * load.link.power) for p in np.geomspace(1e-5, 1, powers)] for load in loads]
    grids = [[np.array([f(link) for link in each]) for f in (lambda link: link.power, rate, outage)] for each in links]
    for bits, weights in ((MessageSize().bits(count), target.at(count)) for count in tried):
        total = weights.measuring
        for load, (p, r, q) in zip(loads, grids, strict=True):
            joules, seconds = (1 - shares) * load.joules + p * bits / r, (1 - shares) * load.seconds + bits / r
            value = weights.pruning * shares + weights.outage * q
            total += np.where((joules <= load.energy) & (seconds <= load.deadline), value, np.inf).min()
        totals.append(float(total))
    return min(totals)


CASES = {
    "energy binds, power within": ([replace(LOAD, link=replace(LINK, power=5.0), energy=0.05)], TARGET),
    "deadline binds": ([replace(LOAD, deadline=0.07, energy=1.0)], TARGET),
    "both bind": ([replace(LOAD, link=replace(LINK, power=50.0), energy=0.0615, deadline=0.06)], TARGET),
    "nothing binds": ([replace(LOAD, energy=10.0, deadline=10.0)], TARGET),
    "two that differ": (
        [replace(LOAD, joules=0.0, energy=0.05), replace(LOAD, link=replace(LINK, distance=450.0))],
        TARGET,
    ),
    "pruning is dear": ([replace(LOAD, link=replace(LINK, power=5.0))], replace(TARGET, smoothness=20.0)),
    "pruning is cheap": ([replace(LOAD, link=replace(LINK, power=50.0))], replace(TARGET, smoothness=0.05)),
    "measurements matter": ([LOAD], Target(samples=10, gradient=60.0, reconstruction=0.5)),
    "corrected": ([LOAD], replace(TARGET, corrected=PLANNED)),
    "decoder": ([replace(LOAD, energy=0.04)], Target(1000, corrected=PLANNED, entries=20_000)),
}


@pytest.mark.parametrize("name", CASES)
def test_no_choice_on_a_fine_grid_is_better(name: str) -> None:
    loads, target = CASES[name]
    plan = make(loads, target, LIMITS)
    best = brute_force(loads, target, LIMITS, powers=100, counts=30)
    # The grid goes up by an eighth in power, by a fifth in measurements, and by half a per cent in what is pruned.
    assert plan.bound <= best * (1 + 1e-9)
    assert plan.bound >= 0.8 * best
    for share, load in zip(plan.clients, loads, strict=True):
        assert share.joules <= load.energy
        assert share.seconds <= load.deadline


def test_the_cases_are_as_they_are_called() -> None:
    found = {name: make(*case, LIMITS) for name, case in CASES.items()}
    binding = {name: plan.clients[0].binding for name, plan in found.items()}
    assert binding["energy binds, power within"] == "energy"
    assert binding["deadline binds"] == "deadline + power"
    assert binding["both bind"] == "energy + deadline"
    assert binding["nothing binds"] == "power"
    powers = {
        name: plan.clients[0].power / case[0][0].link.power
        for (name, case), plan in zip(CASES.items(), found.values(), strict=True)
    }
    assert powers["pruning is dear"] < 0.9 < powers["deadline binds"]
    assert LIMITS.least < found["measurements matter"].measurements < LIMITS.most


devices = st.builds(
    lambda power, distance, interference, seconds, joules, energy, deadline, fading: Load(
        "x",
        Link(10.0**power, distance, interference=10.0**interference, fading=fading),
        seconds,
        joules,
        energy,
        deadline,
    ),
    st.floats(-2, 1),
    st.floats(20, 500),
    st.floats(-8, -7),
    st.floats(0, 0.3),
    st.floats(0, 0.3),
    st.floats(0.02, 0.5),
    st.floats(0.02, 0.5),
    st.sampled_from(["power", "none"]),
)


def attempt(loads: Sequence[Load], target: Target) -> Plan | None:
    try:
        return make(loads, target, LIMITS)
    except ConfigError:
        return None


@settings(max_examples=8, deadline=None)
@given(st.lists(devices, min_size=1, max_size=3), st.sampled_from([0.1, 1.0, 10.0]), st.floats(1, 4), st.booleans())
def test_more_room_is_never_worse(loads: list[Load], smoothness: float, more: float, time: bool) -> None:
    target = replace(TARGET, smoothness=smoothness)
    before = attempt(loads, target)
    first = (
        replace(loads[0], deadline=more * loads[0].deadline)
        if time
        else replace(loads[0], energy=more * loads[0].energy)
    )
    after = attempt([first, *loads[1:]], target)
    if before is not None:
        assert after is not None
        assert after.bound <= before.bound * (1 + 1e-4)


@settings(max_examples=8, deadline=None)
@given(st.lists(devices, min_size=1, max_size=3), st.sampled_from([0.1, 10.0]))
def test_a_plan_keeps_to_every_budget_or_names_the_devices_that_cannot(loads: list[Load], smoothness: float) -> None:
    plan = attempt(loads, replace(TARGET, smoothness=smoothness))
    short = shortfalls(Loads(tuple(loads), LIMITS.largest), MessageSize().bits(LIMITS.least))
    assert (plan is None) == bool(short)
    for share, load in zip(plan.clients if plan else (), loads, strict=plan is not None):
        assert plan is not None
        link = replace(load.link, power=share.power)
        assert (share.rate, share.outage) == pytest.approx((rate(link), outage(link)))
        assert share.sending_seconds == pytest.approx(plan.bits / share.rate)
        assert share.sending_joules == pytest.approx(share.power * share.sending_seconds)
        assert share.computing_seconds == pytest.approx((1 - share.ratio) * load.seconds)
        assert share.computing_joules == pytest.approx((1 - share.ratio) * load.joules)
        assert 0 <= share.ratio <= LIMITS.largest
        assert 0 < share.power <= load.link.power
        assert share.joules <= load.energy
        assert share.seconds <= load.deadline


@settings(max_examples=30, deadline=None)
@given(devices, st.floats(-4, 0), st.integers(100, 40_000))
def test_no_smaller_share_keeps_to_the_budgets(load: Load, log: float, count: int) -> None:
    power, bits = 10.0**log * load.link.power, MessageSize().bits(count)
    sending = bits / rate(replace(load.link, power=power))
    (needed,) = Loads((load,), 0.9).ratios(np.array([power]), np.array([sending]))

    def kept(share: float) -> bool:
        joules, seconds = (1 - share) * load.joules + power * sending, (1 - share) * load.seconds + sending
        return joules <= load.energy and seconds <= load.deadline

    if needed <= 1:
        assert kept(needed + 1e-9)
        assert needed == 0 or not kept(needed - 1e-9)
    else:
        assert not kept(1)


def test_equal_devices_get_equal_shares_whatever_they_are_called() -> None:
    loads = [LOAD, replace(LOAD, link=replace(LINK, distance=300.0)), replace(LOAD, name="other phone")]
    first, second, third = make(loads, TARGET, LIMITS).clients
    assert replace(third, name="phone") == first != second
    assert third.name == "other phone"


def test_power_that_is_fixed_stays() -> None:
    dear = replace(TARGET, smoothness=20.0)
    free, fixed = (make([replace(LOAD, link=replace(LINK, power=5.0), fixed=f)], dear, LIMITS) for f in (False, True))
    assert free.power(0) < 5.0 == fixed.power(0)
    assert free.bound < fixed.bound
    assert fixed.clients[0].binding == "energy + power (fixed)"
    safe = replace(LOAD, link=replace(LINK, threshold=0.0), fixed=True, energy=10.0, deadline=10.0)
    assert make([safe], dear, LIMITS).clients[0].binding == "nothing", "nothing is lost at any power"


def test_with_one_number_of_measurements_that_is_taken() -> None:
    assert make([LOAD], TARGET, Limits(777, 777)).measurements == 777


def test_measurements_fill_the_bytes_that_are_sent() -> None:
    plan = make([LOAD], TARGET, LIMITS, MessageSize(each=2, overhead=10))
    assert plan.bits == 8 * (10 + plan.measurements // 4)
    assert plan.measurements % 4 == 0


def test_golden_sections_find_the_valleys() -> None:
    at = np.array([0.2, 3.0, -1.0, 5.0])
    found = golden(lambda x: np.abs(x - at), np.full(4, -1.0), np.full(4, 4.0))
    assert found.tolist() == pytest.approx([0.2, 3.0, -1.0, 4.0], abs=1e-4)


def test_of_two_valleys_the_lower_one_is_found() -> None:
    """A weak link: at first more power only costs energy, as almost nothing arrives either way."""
    load = Load("far", Link(100.0, 500.0, interference=1e-7), 1.0, 0.1, energy=0.1, deadline=100.0)
    for smoothness in (0.5, 1.0, 2.0):
        target, one = replace(TARGET, smoothness=smoothness), Limits(400, 400)
        best = brute_force([load], target, one, powers=500, counts=1)
        assert make([load], target, one).bound <= best * (1 + 1e-9)


# The bound.


@pytest.mark.parametrize("corrected", [(), PLANNED, ("mean", "scale")])
def test_terms_are_those_of_the_theorem(corrected: tuple[str, ...]) -> None:
    target = Target(25, 3.0, 2.0, 1.5, 1.2, 0.3, 0.5, corrected)
    loads = [LOAD, replace(LOAD, link=replace(LINK, distance=400.0))]
    plan = make(loads, target, LIMITS)
    setting = WirelessSetting(
        smoothness=3.0,
        gradient=2.0,
        weights=1.5,
        sizes=(10, 15),
        outages=tuple(share.outage for share in plan.clients),
        ratios=plan.ratios,
        measurements=plan.measurements,
        reconstruction=1.2,
        isometry=0.3,
        coefficient=0.5,
    )
    terms = gradient_bound(setting, 10, 0.1, 1.0, corrected)
    lost = terms["retained signs"] + terms["retained measuring"] + terms.get("stale", 0)
    wanted = {"pruning": terms["pruning"], "outages": lost, "measuring": terms["measuring"]}
    assert plan.terms == pytest.approx(wanted)
    assert plan.bound == pytest.approx(sum(wanted.values()))


@pytest.mark.parametrize("measurements", [2_000, 20_000, 80_000])
def test_with_entries_the_error_is_that_of_the_decoder(measurements: int) -> None:
    target = Target(25, 3.0, 2.0, 1.5, coefficient=0.5, corrected=PLANNED, entries=20_000, devices=7)
    ratio = measurements / 20_000
    error = 1 - 2 / math.pi * ratio if ratio <= 1 else 1 - 1 / (1 + (math.pi / 2 - 1) / ratio)
    wanted = (4 * 4.5**2, 0.25 * 4 * (6 + 2 * error), 7 * 2 * 4 * error)
    assert target.at(measurements) == pytest.approx(wanted)


def test_measurements_are_worth_their_joules_where_their_error_counts() -> None:
    """The constant C of the paper takes the fewest; the error of the decoder as many as cost little."""
    fixed = [replace(LOAD, fixed=True, energy=0.0995, joules=0.1)] * 3
    few = make(fixed, Target(1000), Limits(2_000, 20_000))
    many = make(fixed, Target(1000, corrected=PLANNED, entries=20_000, devices=3), Limits(2_000, 20_000))
    assert few.measurements < 2_100
    assert many.measurements == 20_000
    costly = Target(1000, smoothness=30.0, corrected=PLANNED, entries=20_000, devices=3)
    assert make(fixed, costly, Limits(2_000, 20_000)).measurements < 2_100


# The probe.


def test_constants_of_a_probe_are_the_smallest_that_hold() -> None:
    """At the first model: gradients of clients, of the pruned model, and the norm of pruned weights."""
    task = tiny_task()
    found, objective = probe(task, rounds=1, largest=0.6), Objective(task, "cpu", key(0))
    model = objective.initial()

    def gradients(params: Any) -> list[torch.Tensor]:
        each = [task.data.train.take(task.split.train(client)) for client in range(task.clients)]
        return [torch.cat([g.flatten() for g in objective.gradient(params, s.x, s.y)[1].values()]) for s in each]

    sizes = torch.tensor([len(task.split.train(client)) for client in range(task.clients)])
    assert found.gradient == pytest.approx(max(float(g.norm()) for g in gradients(model)), rel=1e-5)
    smooth, weights = [], []
    for ratio in (0.2, 0.4, 0.6):
        pruned = {name: t * (t.abs() > _threshold(t, ratio)) if t.dim() > 1 else t for name, t in model.items()}
        moved = math.sqrt(sum(float((model[name] - pruned[name]).square().sum()) for name in model))
        both = [(torch.stack(gradients(p)) * (sizes / sizes.sum())[:, None]).sum(0) for p in (model, pruned)]
        smooth.append(float((both[0] - both[1]).norm()) / moved)
        weights.append(moved / math.sqrt(ratio))
    assert (found.smoothness, found.weights) == pytest.approx((max(smooth), max(weights)), rel=1e-4)
    longer = probe(task, rounds=3, largest=0.6)
    assert all(more >= less for more, less in zip(longer, found, strict=True))
    with pytest.raises(ConfigError, match="probe must have at least 1 round, got 0"):
        probe(task, rounds=0)


def _threshold(tensor: torch.Tensor, ratio: float) -> float:
    count = int(ratio * tensor.numel())
    return float(tensor.abs().flatten().sort().values[count - 1]) if count else -1.0


# Devices that cannot keep to budgets.


def test_devices_that_cannot_keep_to_budgets_are_named_with_what_they_need() -> None:
    late, dear = replace(LOAD, name="late", seconds=50.0), replace(LOAD, name="dear", joules=50.0)
    with pytest.raises(ConfigError) as refused:
        make([late, LOAD, dear, dear], TARGET, LIMITS)
    assert list(refused.value.mistakes) == [
        "no plan keeps the budgets, even with 100 measurements and 90% of the weights pruned: "
        "neither budget alone suffices for all: they need a deadline of 5.001 s and an energy of 5.001 J",
        "late (client 0) misses the deadline of 0.2 s at full power by 4.8 s",
        "dear (clients 2-3; 2 of them) misses the energy of 0.08 J at the least power by 4.92 J",
    ]


def test_a_kind_is_reported_once_with_its_best_and_its_worst() -> None:
    loads = [replace(LOAD, seconds=2.0 + 1e-6 * n) for n in (4, 0, 9, 2, 7)]
    loads.insert(2, replace(LOAD, name="other"))
    with pytest.raises(ConfigError) as refused:
        make(loads, TARGET, Limits(100, 100))
    _, line = refused.value.mistakes
    late = [0.1 * load.seconds + MessageSize().bits(100) / rate(LINK) - 0.2 for load in loads]
    assert line == (
        "phone (clients 0-1, 3-5; 5 of them) misses the deadline of 0.2 s at full power "
        f"by {late[3]:.3g} s (client 3) to {late[1]:.3g} s (client 1)"
    )


SHORT = {
    "late": [replace(LOAD, seconds=3.0), LOAD, replace(LOAD, seconds=2.5)],
    "dear": [replace(LOAD, joules=3.0), LOAD],
    "together": [replace(LOAD, energy=0.011, deadline=0.018)],
    "both": [replace(LOAD, seconds=3.0), replace(LOAD, joules=3.0), LOAD],
}


@pytest.mark.parametrize("name", SHORT)
def test_budgets_that_would_do_for_all_do_and_hardly_less_does_not(name: str) -> None:
    loads, limits = SHORT[name], Limits(49_000, 49_000)

    def refused(budgets: dict[str, Any]) -> str | None:
        try:
            make([replace(load, **budgets) for load in loads], TARGET, limits)
        except ConfigError as error:
            return error.mistakes[0]
        return None

    mistake = refused({})
    assert mistake is not None
    words = {"energy": r"an energy of ([\d.]+) J", "deadline": r"a deadline of ([\d.]+) s"}
    found = {budget: float(match[1]) for budget, word in words.items() if (match := re.search(word, mistake))}
    assert found.keys() == {"late": {"deadline"}, "dear": {"energy"}}.get(name, {"energy", "deadline"})
    together = [found] if name == "both" else [{budget: enough} for budget, enough in found.items()]
    for budgets in together:
        assert refused(budgets) is None
        for budget, enough in budgets.items():
            assert refused({**budgets, budget: 0.999 * enough}) is not None


def test_a_window_that_is_next_to_nothing_is_found() -> None:
    """The energy is just what the lowest power in time takes, and no point of a grid is that power."""
    load, one = replace(LOAD, deadline=0.018, energy=1.0), Limits(6000, 6000)
    (power,) = Loads((load,), 0.9).slowest(MessageSize().bits(6000))
    sending = MessageSize().bits(6000) / rate(replace(LINK, power=float(power)))
    tight = replace(load, energy=(0.1 * load.joules + float(power) * sending) * (1 + 2e-12))
    plan = make([tight], TARGET, one)
    assert plan.power(0) == pytest.approx(power)
    assert plan.clients[0].joules <= tight.energy
    assert plan.clients[0].seconds <= tight.deadline


def test_what_it_takes_is_what_it_takes() -> None:
    bits, loads = 50_000, Loads((replace(LOAD, energy=0.011, deadline=0.018),), 0.9)
    (short,) = shortfalls(loads, bits)
    grid = np.geomspace(1e-6, 1, 1000)
    links = [replace(LINK, power=power) for power in grid]
    seconds = np.array([0.01 + bits / rate(link) for link in links])
    joules = np.array([0.01 + link.power * bits / rate(link) for link in links])
    assert short.seconds == pytest.approx(seconds.min())
    assert short.joules == pytest.approx(joules.min())
    assert short.in_time == pytest.approx(joules[seconds <= 0.018].min(), rel=0.01)
    assert short.allowed == pytest.approx(seconds[joules <= 0.011].min(), rel=0.01)
    assert short.misses == pytest.approx({"the energy of 0.011 J within 0.018 s": present(short.in_time) - 0.011})
    assert shortfalls(replace(loads, each=(LOAD,)), bits) == []


# Fleets.

FLEET = Fleet(
    (
        Device("phone", 2, None, 8e9, distance=150.0, interference=5e-8, most_power=0.1),
        Device("node", 1, None, 5e8, frequency=2e8, distance=Span(100.0, 400.0), interference=5e-8),
    )
)
PROBLEM = Problem(FLEET, (1e7, 2e7, 1e7), 5000, 0.01, 0.5, TARGET, Limits(500, 5000))


@cache
def solved() -> Plan:
    return PROBLEM.solve()


def test_loads_are_what_a_run_over_the_channel_takes() -> None:
    cell = Wireless(FLEET).fit(3, key(7))
    for client, load in enumerate(replace(PROBLEM, seed=7).loads()):
        device, clock = FLEET.device(client, 3), Clock(0, 1, client)
        flops = int(PROBLEM.flops[client])
        assert (load.seconds, load.joules) == cell.work(Flops(flops, flops), clock, key(0))
        sent = cell.send(1000, clock, key(0))
        assert 8000 / rate(replace(load.link, power=cast(float, device.power))) == pytest.approx(sent.seconds)
        assert (load.link.power, load.fixed) == ((0.1, False) if device.name == "phone" else (0.01, True))


def test_what_is_drawn_each_round_is_planned_at_its_far_end() -> None:
    roaming = Device("node", 1, None, 5e8, distance=Span(100.0, 400.0), interference=Span(1e-8, 1e-7), draw="round")
    (load,) = replace(PROBLEM, fleet=Fleet((roaming,)), flops=(1e7,)).loads()
    assert (load.link.distance, load.link.interference) == (400.0, 1e-7)


def test_devices_without_a_power_get_the_largest() -> None:
    loads = replace(PROBLEM, most_power=0.02).loads()
    assert {(load.name, load.link.power, load.fixed) for load in loads} == {
        ("phone", 0.1, False),
        ("node", 0.02, False),
    }


def test_power_that_is_drawn_once_stays_and_each_round_must_be_chosen() -> None:
    once = Device("node", 1, None, 5e8, power=Span(0.01, 0.02), distance=100.0)
    problem = replace(PROBLEM, fleet=Fleet((once,)), flops=(1e7,))
    (load,) = problem.loads()
    assert 0.01 < load.link.power < 0.02
    assert load.fixed
    each = replace(once, draw="round")
    with pytest.raises(ConfigError, match="node: its power is drawn in every round: set most_power"):
        replace(problem, fleet=Fleet((each,)))
    (load,) = replace(problem, fleet=Fleet((each,)), most_power=0.05).loads()
    assert (load.link.power, load.fixed) == (0.05, False)


def test_whatever_is_drawn_in_a_round_is_no_worse_than_planned() -> None:
    ranges: dict[str, Any] = {"bandwidth": Span(5e5, 2e6), "threshold": Span(0.5, 1.5), "interference": Span(0.0, 1e-7)}
    for noise in (Span(1e-14, 1e-9), Density(1e-15)):
        device = Device("node", 1, None, 5e8, distance=Span(50.0, 300.0), noise=noise, draw="round", **ranges)
        (load,) = replace(PROBLEM, fleet=Fleet((device,)), flops=(1e7,)).loads()
        drawn = [device.link(fold(key(0), number)) for number in range(200)]
        assert min(map(rate, drawn)) >= rate(load.link)
        assert max(map(outage, drawn)) <= outage(load.link)


def test_other_energies() -> None:
    plans = PROBLEM.at_energies([1e-6, 0.01, 0.1])
    assert plans[0] is None
    assert plans[1] == solved()
    assert plans[2] is not None
    assert plans[2].bound <= solved().bound


def test_a_run_takes_what_its_plan_predicts(tmp_path: Path) -> None:
    fixed = Fleet(tuple(replace(device, most_power=None) for device in FLEET.devices))
    fixed.write(tmp_path / "fleet.toml")
    words = ["plan", "fleet.toml", "--energy", "0.01", "--deadline", "0.2", "--model", "mlp", "--measurements", "6000"]
    out = ["--out", f"{tmp_path}/plan.json", "--picture", f"{tmp_path}/plan.svg"]
    assert main(["plan", f"{tmp_path}/fleet.toml", *words[2:], *out]) == 0
    plan, task = Plan.read(tmp_path / "plan.json"), Task.named("digits", model="mlp", clients=3)
    plan.check(Wireless(fixed), task.clients, seed=0)
    assert min(plan.ratios) < max(plan.ratios)
    method = onebit_cs(ratio=plan.ratios, by="tensor", rows=plan.measurements, retain="nothing")
    (record,) = simulate(method, task, rounds=1, channel=Wireless(fixed)).metrics
    assert sum(record["bytes_up"].values()) == 3 * plan.bits / 8
    spent = record["by_client"]
    assert spent["joules"] == pytest.approx([share.joules for share in plan.clients], rel=5e-6)
    assert spent["seconds"] == pytest.approx([share.seconds for share in plan.clients], rel=5e-6)
    assert max(spent["joules"]) <= 0.01
    assert max(spent["seconds"]) <= 0.2


@pytest.mark.parametrize("model", ["mlp", "logistic"])
def test_no_client_spends_more_than_its_budget(model: str) -> None:
    """Only whole weights are pruned, of each tensor rounded down: budgets are kept to the last digit all the same."""
    task = Task.named("digits", model=model, clients=4)
    objective = Objective(task, "cpu", key(0))
    flops = tuple(operations(objective) * len(task.split.train(client)) for client in range(4))
    device = Device("phone", 4, None, 1e6, distance=Span(50.0, 300.0), most_power=0.1)
    size, whole = objective.layout.size, max(flops) / 1e6
    message, pruning = MessageSize.of(objective.layout), Pruning.of(objective, torch.arange(2))
    work = (Fleet((device,)), flops, size, 0.53 * whole + 0.002, 0.71 * whole + 0.01)
    plan = Problem(*work, Target(1000), Limits(size // 4, size // 4), message, pruning=pruning).solve()
    assert max(plan.ratios) > 0.1
    channel = Wireless(Fleet((device,)), powers=plan.powers).fit(4, key(0))
    view = compose(MagnitudePruned(plan.ratios, "tensor"), SGD()).bind(objective).training.view
    for client, share in enumerate(plan.clients):
        clock, model_ = Clock(0, 1, client), objective.initial()
        keep = dict(present(view.part(model_, clock, key(0)).keep))
        done = objective.flops(model_, torch.from_numpy(task.split.train(client)), keep)
        cost, sent = channel.work(done, clock, key(0)), channel.send(plan.bits // 8, clock, key(0))
        assert cost.joules + sent.joules <= share.joules <= work[3]
        assert cost.seconds + sent.seconds <= share.seconds <= work[4]
        assert cost.joules == pytest.approx(share.computing_joules, rel=1e-5)


tensors = st.lists(st.tuples(st.integers(1, 60), st.floats(0.01, 1.0)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(tensors, st.floats(0.1, 1.0), st.floats(0, 0.95))
def test_the_least_share_that_saves_enough_is_found(
    sizes: list[tuple[int, float]], whole: float, wanted: float
) -> None:
    total = sum(part for _, part in sizes)
    pruning = Pruning(tuple(PrunedTensor(entries, whole * part / total) for entries, part in sizes))
    found = pruning.least(wanted, 0.9)
    # Something changes only where another weight is left out: one of these shares is the least.
    steps = [0.0, *(np.nextafter(k / n, 1) for n, _ in sizes for k in range(1, n + 1) if k / n <= 0.9), 0.9]
    enough = [share for share in sorted(steps) if pruning.saved(share) >= wanted]
    assert found == pytest.approx(enough[0] if enough else 0.9, abs=1e-12)
    assert pruning.saved(found) >= wanted or not enough


def test_what_no_weight_takes_is_never_saved() -> None:
    half = Pruning((PrunedTensor(1000, 0.5),))
    plan = make([replace(LOAD, energy=0.08, joules=0.1)], TARGET, Limits(100, 100), pruning=half)
    free = make([replace(LOAD, energy=0.08, joules=0.1)], TARGET, Limits(100, 100))
    assert plan.ratio(0) == pytest.approx(2 * free.ratio(0), abs=2e-3)
    with pytest.raises(ConfigError, match="no plan keeps"):
        make([replace(LOAD, energy=0.05, joules=0.1)], TARGET, LIMITS, pruning=half)


# The file.


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_plan_comes_back_from_its_file(folder: Path) -> None:
    plan = solved()
    plan.write("plan.json")
    again = Plan.read("plan.json")
    assert again == plan == Plan.of_text("plan.json")
    assert (again.fleet, again.parameters) == (digest(FLEET), 5000)
    assert again.powers == tuple(again.power(client) for client in range(3))
    assert again.ratios == tuple(again.ratio(client) for client in range(3))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda plan: plan.pop("bits"), "bits is missing"),
        (lambda plan: plan.update(measurment=3), "unknown name 'measurment': did you mean measurements"),
        (lambda plan: plan.update(measurements=0), "measurements must be at least 1, got 0"),
        (lambda plan: plan.update(measurements=2.5), "measurements cannot be 2.5"),
        (lambda plan: plan.update(clients=[]), "clients must not be empty"),
        (lambda plan: plan.update(clients=3), "clients cannot be 3"),
        (lambda plan: plan.update(terms={"pruning": "x"}), "terms cannot be"),
        (lambda plan: plan["clients"].__setitem__(1, 5), "client 1: must be an object in braces, got 5"),
        (lambda plan: plan["clients"][2].update(power=-1), "client 2: power must be a positive number, got -1.0"),
        (lambda plan: plan["clients"][0].update(ratio=1), r"client 0: ratio must be in \[0, 1\), got 1.0"),
        (lambda plan: plan["clients"][0].update(outage=True), "client 0: outage cannot be True"),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(folder: Path, change: Callable[[Any], object], reason: str) -> None:
    solved().write("plan.json")
    plain = json.loads(Path("plan.json").read_text())
    change(plain)
    Path("plan.json").write_text(json.dumps(plain))
    with pytest.raises(ConfigError, match=f"plan.json: {reason}"):
        Plan.read("plan.json")


def test_what_is_no_plan_at_all_is_refused(folder: Path) -> None:
    Path("text.json").write_text("no")
    with pytest.raises(ConfigError, match=r"text.json: is not JSON"):
        Plan.read("text.json")
    with pytest.raises(ConfigError, match=r"there.json: cannot be read: No such file"):
        Plan.read("there.json")


def test_a_plan_is_for_its_fleet_clients_and_seed() -> None:
    plan = solved()
    plan.check(Wireless(FLEET), 3, 0)
    other = Fleet((replace(FLEET.devices[0], clients=3), FLEET.devices[1]))
    for channel, clients, seed, reason in (
        (Wireless(other), 3, 0, "the plan is for another fleet: use --fleet"),
        (Wireless(FLEET), 4, 0, "the plan is for 3 clients, not for 4"),
        (Wireless(FLEET), 3, 1, "the plan is for --seed 0, and with 1 devices are elsewhere"),
        (Wireless(FLEET, seed=5), 3, 0, "the plan is for wireless:seed=0, and with 5 devices.*with --channel-seed 5"),
        (Wireless(FLEET, retries=2), 3, 0, "one attempt per message: leave out wireless:retries=2"),
        (Wireless(FLEET, "none"), 3, 0, "the plan is for wireless:fading=power, not for none: .*with --fading none"),
    ):
        with pytest.raises(ConfigError, match=reason):
            plan.check(channel, clients, seed)
    fixed = Fleet((FLEET.devices[0],))
    replace(PROBLEM, fleet=fixed).solve().check(Wireless(fixed, seed=4), 3, 1)
    moved = replace(PROBLEM, channel_seed=5, fading="none")
    moved.solve().check(Wireless(FLEET, "none", 5), 3, 0)
    assert moved.loads()[1].link.distance != PROBLEM.loads()[1].link.distance


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: make([], TARGET, LIMITS), "a plan needs a device"),
        (lambda: replace(LOAD, seconds=-1.0), "Load.seconds must be finite and not negative, got -1.0"),
        (lambda: replace(LOAD, seconds=np.inf), "Load.seconds must be finite and not negative, got inf"),
        (lambda: replace(LOAD, energy=0.0), "Load.energy must be a positive number, got 0.0"),
        (lambda: replace(TARGET, weights=1e200), r"weights must be at most 1e\+20, got 1e\+200"),
        (lambda: Pruning((PrunedTensor(5, 1.5),)), "parts must be 1 at most together"),
        (
            lambda: replace(PROBLEM, most_power=0.001),
            "most_power must be at least the power of node, 0.01 W, got 0.001",
        ),
        (lambda: replace(PROBLEM, energy=np.inf), "energy must be a positive number of joules, got inf"),
        (lambda: Limits(10, 5), "Limits must have 1 <= least <= most, got 10 to 5"),
        (lambda: Limits(1, 5, 1.0), r"pruning ratio must be in \[0, 1\), got 1.0"),
        (lambda: MessageSize(each=0), "MessageSize.each must be at least 1 bit, got 0"),
        (lambda: replace(TARGET, gradient=0.0), "gradient must be a positive number, got 0.0"),
        (lambda: replace(TARGET, corrected=("received",)), "a plan supports mean, .*, not received"),
        (lambda: replace(TARGET, corrected=("men",)), "did you mean mean"),
        (lambda: replace(PROBLEM, flops=()), "one entry for each client"),
        (lambda: replace(PROBLEM, target=replace(TARGET, entries=9)), "Target.devices must be 3, one per client"),
        (
            lambda: replace(PROBLEM, fleet=Fleet((replace(FLEET.devices[0], down_bandwidth=1e6),))),
            "phone: a plan does not count downloads: leave out down_bandwidth",
        ),
        (
            lambda: replace(PROBLEM, fleet=Fleet((replace(FLEET.devices[0], latency=0.1),))),
            "phone: a plan counts neither latency nor half_batch: leave them out",
        ),
        (
            lambda: replace(PROBLEM, fleet=Fleet((replace(FLEET.devices[0], idle_power=0.1),))),
            "phone has idle_power, but a plan is for radio links alone",
        ),
        (lambda: replace(PROBLEM, deadline=0.0), "deadline must be a positive number of seconds, got 0.0"),
        (lambda: solved().power(3), "client must be from 0 to 2, got 3"),
    ],
)
def test_what_makes_no_sense_is_refused(call: Callable[[], object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        call()


# The command.


def test_the_command_writes_table_picture_and_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FLEET.write("fleet.toml")
    numbers = ["--parameters", "5000", "--flops", "1e7", "--samples", "300", "--measurements", "500,5000"]
    assert main(["plan", "fleet.toml", "--energy", "0.01", "--deadline", "0.5", *numbers, "--gradient", "30"]) == 0
    printed, plan = capsys.readouterr().out, Plan.read("plan.json")
    target = Target(samples=900, gradient=30.0, corrected=PLANNED, entries=5000, devices=3)
    assert plan == replace(PROBLEM, flops=(1e7,) * 3, target=target).solve()
    lines = [line.split() for line in printed.splitlines()]
    assert [line[:2] for line in lines[2:4]] == [["phone", "0,"], ["node", "1"]]
    assert f"measurements {plan.measurements:,}," in " ".join(printed.split())
    assert Path("plan.png").read_bytes()[:4] == b"\x89PNG"


def test_the_command_prints_the_run_that_follows_the_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FLEET.write("my fleet.toml")
    Path("tasks.py").write_text("from gossamer.testing import tiny_task\n\n\ndef task():\n    return tiny_task(3)\n")
    words = ["plan", "my fleet.toml", "--energy", "1", "--deadline", "5", "--task", "tasks.py:task", "--probe", "2"]
    links = ["--seed", "4", "--channel-seed", "2", "--fading", "none", "--bits", "2", "--measurements", "40"]
    assert main([*words, *links, "--out", "a plan.json"]) == 0
    printed = capsys.readouterr().out
    assert "G = 1," not in printed
    *_, command = printed.splitlines()
    _, *run = shlex.split(command)
    assert main([*run, "--rounds", "1", "--executor", "one-by-one", "--out", "run"]) == 0
    about = json.loads(Path("run/run.json").read_text())
    assert "rows=40" in about["method"]["codec"]
    assert "retain='signs'" in about["method"]["codec"]


@pytest.mark.parametrize(
    ("words", "reasons"),
    [
        (["fleet.toml", "--adapter", "lora:4"], ["--adapter: a plan saves operations by pruning a whole network"]),
        (["fleet.toml", "--adapter=lora:4", "lora"], ["--adapter: a plan saves", "lora: a plan is for onebit-cs"]),
        (["lora", "fleet.toml"], ["lora: a plan is for onebit-cs, and other methods use only its powers"]),
        (["fleet.toml", "--adaptor", "lora:4"], ["unrecognized arguments: --adaptor lora:4"]),
    ],
)
def test_a_plan_is_for_no_other_method_and_no_adapter(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str], reasons: list[str]
) -> None:
    FLEET.write("fleet.toml")
    assert main(["plan", *words, "--energy", "1", "--deadline", "5"]) == 2
    said = capsys.readouterr().err
    assert all(reason in said for reason in reasons)
    assert not Path("plan.json").exists()


@pytest.mark.slow
def test_the_deadline_may_be_that_of_a_schedule(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FLEET.write("fleet.toml")
    words = ["plan", "fleet.toml", "--energy", "0.01", "--parameters", "5000", "--flops", "1e7", "--samples", "300"]
    words += ["--measurements", "500"]
    assert main([*words, "--deadline", "0.499999998", "--out", "plain.json"]) == 0
    assert "--schedule" not in capsys.readouterr().out
    assert main([*words, "--schedule", "deadline:500ms,over=1.3"]) == 0
    assert Plan.read("plan.json") == Plan.read("plain.json")
    assert capsys.readouterr().out.splitlines()[-1].endswith("--schedule deadline:500ms,over=1.3")
    for wrong, reason in {
        "fedbuff:10": "--schedule fedbuff:10 has no deadline: give --deadline S instead, or deadline:60s",
        "dedline:60s": "unknown schedule 'dedline': did you mean deadline?",
    }.items():
        assert main([*words, "--schedule", wrong]) == 2
        assert reason in capsys.readouterr().err
    for both in (["--deadline", "1", "--schedule", "deadline:1s"], []):
        assert main([*words, *both]) == 2


def test_with_a_constant_the_bound_is_as_printed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FLEET.write("fleet.toml")
    numbers = ["--parameters", "5000", "--flops", "1e7", "--samples", "300", "--measurements", "500,5000"]
    words = ["plan", "fleet.toml", "--energy", "0.01", "--deadline", "0.5", *numbers]
    assert main([*words, "--reconstruction", "0.5"]) == 0
    target = Target(samples=900, reconstruction=0.5)
    assert Plan.read("plan.json") == replace(PROBLEM, flops=(1e7,) * 3, target=target).solve()
    assert "C = 0.5" in capsys.readouterr().out


def test_the_labels_of_the_picture_do_not_overlap() -> None:
    energies = (0.1 * ENERGIES).tolist()
    picture = figure(energies, [solved()] * len(energies), 0.1)
    picture.draw_without_rendering()
    for axes in picture.axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels(which="both") if label.get_text()]
        assert len(boxes) == 7
        assert all(left.x1 < right.x0 for left, right in pairwise(boxes))


def test_sizes_come_from_a_model_and_its_data(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FLEET.write("fleet.toml")
    words = ["plan", "fleet.toml", "--energy", "1", "--deadline", "5", "--model", "mlp", "--batch", "10"]
    assert main([*words, "--picture", "p.svg"]) == 0
    plan = Plan.read("plan.json")
    assert plan.parameters == 55_210
    flops = 10 * 2 * (2 * 64 * 200 + 3 * (200 * 200 + 200 * 10))  # no gradient with respect to the data
    assert plan.clients[0].computing_seconds == pytest.approx(flops / 8e9)


@pytest.mark.parametrize(
    ("more", "reasons"),
    [
        (["--energy", "x"], ["--energy must be a number, got 'x'"]),
        (["--flops", "1e7"], ["--parameters, --samples missing"]),
        (["--flops", "1e7", "--parameters", "9", "--samples", "3", "--model", "mlp"], ["leave out --model"]),
        (["--most-power", "fast"], ['--most-power must be watts such as 0.01, "10 mW" or "10 dBm", got']),
        (["--bits", "3"], ["--bits must be one of 1, 2, got '3'"]),
        (["--measurements", "1,2,3"], ["--measurements must be one number or two, got 3"]),
        (
            ["--picture", "p.gif", "--out", "no/p.json"],
            ["--picture p.gif: must end", "--out no/p.json: there is no writable folder"],
        ),
        (
            ["--energy", "1e-9"],
            ["phone (clients 0, 2; 2 of them) misses the energy of 1e-09 J", "would suffice for all"],
        ),
        (["--energy", "inf"], ["--energy must be a positive number of joules, got inf"]),
        (["--deadline", "nan"], ["--deadline must be a positive number of seconds, got nan"]),
        (["--smoothness", "1e200"], ["--smoothness must be at most 1e+20, got 1e+200"]),
        (["--gradient", "-1"], ["--gradient must be a positive number, got -1.0"]),
        (["--most-power", "1mW"], ["--most-power must be at least the power of node, 0.01 W, got 0.001"]),
        (["--flops", "1e7", "--parameters", "9", "--samples", "3", "--batch", "5"], ["leave out --batch"]),
        (["--flops", "1e7", "--parameters", "9", "--samples", "3", "--probe", "5"], ["leave out --probe"]),
        (["--probe", "0"], ["--probe must have at least 1 round, got 0"]),
        (["--flops", "1e300", "--parameters", "9", "--samples", "3"], ["--flops must be less than 1e+30"]),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(
    folder: Path, capsys: pytest.CaptureFixture[str], more: list[str], reasons: list[str]
) -> None:
    FLEET.write("fleet.toml")
    before = sorted(folder.iterdir())
    assert main(["plan", "fleet.toml", "--energy", "0.01", "--deadline", "0.5", *more]) == 2
    printed = capsys.readouterr().err
    assert [reason for reason in reasons if reason not in printed] == []
    assert sorted(folder.iterdir()) == before


def test_the_page_shows_how_a_fleet_without_a_plan_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    page = (ROOT / "docs/planning.md").read_text().partition("```\n$ ")[2].partition("```")[0]
    command, *lines = page.splitlines()
    assert main([*command.split()[1:], "--out", f"{folder}/p.json", "--picture", f"{folder}/p.png"]) == 2
    assert capsys.readouterr().err.splitlines() == lines


def test_every_flag_is_on_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/planning.md").read_text()
    with pytest.raises(SystemExit):
        main(["plan", "--help"])
    flags = set(re.findall(r"--[a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert len(flags) > 20
    assert [flag for flag in flags if f"`{flag}" not in page and f" {flag} " not in page] == []
