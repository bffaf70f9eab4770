"""Sub-FedAvg's hybrid pruning: whole channels and single fully connected weights, each with its thresholds."""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gossamer import SGD, Clock, ConfigError, Lossy, Options, PrunedChannels, Task, compose, sub_fedavg
from gossamer.core import tree
from gossamer.core.bits import bits
from gossamer.core.errors import PayloadError
from gossamer.core.exchange import Context
from gossamer.core.random import fold, key, uniform
from gossamer.core.specs import parse
from gossamer.core.types import Params, State
from gossamer.engines.client import TrainingInfo
from gossamer.engines.simulation import Simulation
from gossamer.parts.codecs import CODECS, OnWeights
from gossamer.parts.samplers import Uniform
from gossamer.parts.views import masks
from gossamer.tasks.nets import build
from gossamer.tasks.objective import Objective
from gossamer.tasks.widths import ties
from gossamer.testing import check_method, check_view
from helpers.codec_specs import SPECS
from helpers.compare import same
from helpers.mask_training import FakeTraining, filled, masked_sgd, noise
from helpers.runs import view_of, view_state

CLIENTS, SHAPE, LABELS = 4, (1, 20, 20), 3


# Networks, and by hand which entries are a channel.


class Residual(nn.Module):
    """A stream of 6 channels, to which a block of 5 is added; batch norms with running statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm0 = nn.Conv2d(1, 6, 3, bias=False), nn.BatchNorm2d(6)
        self.conv1, self.norm1 = nn.Conv2d(6, 5, 3, padding=1), nn.BatchNorm2d(5)
        self.conv2, self.norm2 = nn.Conv2d(5, 6, 3, padding=1, bias=False), nn.BatchNorm2d(6)
        self.fc1, self.fc2 = nn.Linear(24, 7), nn.Linear(7, LABELS)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm0(self.stem(F.max_pool2d(x, 4))))
        x = F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))
        return self.fc2(F.relu(self.fc1(F.adaptive_max_pool2d(x, 2).flatten(1))))


def grouped() -> nn.Module:
    """A norm of 3 groups of 2 channels: of each group the first goes, or the second."""
    return nn.Sequential(
        nn.Conv2d(1, 6, 5, stride=5), nn.GroupNorm(3, 6), nn.ReLU(), nn.Flatten(), nn.Linear(96, LABELS)
    )


@dataclass(frozen=True)
class Ground:
    """A network, each group of channels as (tensor, dimension, entries per channel), and the scales of norms."""

    network: Callable[[], nn.Module]
    sizes: dict[str, int]
    places: dict[str, list[tuple[str, int, int]]]
    scales: dict[str, list[str]]
    weights: tuple[str, ...]

    def entries(self, group: str, channel: int, like: Params) -> Iterator[tuple[str, Tensor]]:
        """All that belongs to a channel: 1 at its entries."""
        for name, dim, each in self.places[group]:
            found = torch.zeros(like[name].shape, dtype=torch.bool)
            for index in range(like[name].shape[dim]):
                if index // each % self.sizes[group] == channel:
                    found.select(dim, index).fill_(True)
            yield name, found

    def matters(self, group: str, channel: int, values: Params) -> float:
        """The sum of scales, or where there are none of squares."""
        if self.scales.get(group):
            own = [(n, e) for n, e in self.entries(group, channel, values) if n in self.scales[group]]
            return sum(float(values[name][at].double().abs().sum()) for name, at in own)
        own = [(name, at) for name, at in self.entries(group, channel, values) if values[name].dim() > 1]
        return sum(float(values[name][at].double().square().sum()) for name, at in own)

    def channels(self, held: dict[str, Tensor], like: Params) -> dict[str, list[int]]:
        """Which channels are held; each must be held in all its tensors or in none."""
        found: dict[str, list[int]] = {}
        for group, size in self.sizes.items():
            found[group] = []
            for channel in range(size):
                parts = [held[n][at] for n, at in self.entries(group, channel, like) if n not in self.weights]
                if any(bool(part.any()) for part in parts):
                    found[group].append(channel)
                    assert all(bool(part.any()) for part in parts), (group, channel)
        for name, mask in held.items():
            inside = torch.ones_like(mask)
            for group, size in self.sizes.items():
                for channel in sorted(set(range(size)) - set(found[group])):
                    for other, at in self.entries(group, channel, like):
                        inside &= ~at if other == name else torch.ones_like(mask)
            assert torch.equal(mask & inside, mask), f"{name} has entries of channels that are gone"
            assert name in self.weights or torch.equal(mask, inside), f"{name} lacks entries of channels that are held"
        return found


def norm(name: str) -> list[tuple[str, int, int]]:
    return [(f"{name}.{kind}", 0, 1) for kind in ("weight", "bias", "running_mean", "running_var")]


GROUNDS = {
    "lenet5": Ground(
        lambda: build("lenet5", SHAPE, LABELS),
        {"0": 20, "3": 50},
        {
            "0": [("0.weight", 0, 1), ("0.bias", 0, 1), ("3.weight", 1, 1)],
            "3": [("3.weight", 0, 1), ("3.bias", 0, 1), ("7.weight", 1, 4)],
        },
        {},
        ("7.weight", "9.weight"),
    ),
    "residual": Ground(
        Residual,
        {"stem": 6, "conv1": 5},
        {
            "stem": [
                *(("stem.weight", 0, 1), ("conv1.weight", 1, 1), ("conv2.weight", 0, 1), ("fc1.weight", 1, 4)),
                *norm("norm0"),
                *norm("norm2"),
            ],
            "conv1": [("conv1.weight", 0, 1), ("conv1.bias", 0, 1), ("conv2.weight", 1, 1), *norm("norm1")],
        },
        {"stem": ["norm0.weight", "norm2.weight"], "conv1": ["norm1.weight"]},
        ("fc1.weight", "fc2.weight"),
    ),
    "grouped": Ground(
        grouped,
        {"0": 2},
        {"0": [("0.weight", 0, 1), ("0.bias", 0, 1), ("1.weight", 0, 1), ("1.bias", 0, 1), ("4.weight", 1, 16)]},
        {"0": ["1.weight"]},
        ("4.weight",),
    ),
}


def some_task(name: str, dtype: torch.dtype = torch.float32) -> Task:
    def samples(n: int, label: str) -> tuple[Tensor, Tensor]:
        y = (uniform(fold(key(3), label, "y"), n) * LABELS).long()
        x = uniform(fold(key(3), label, "x"), n * math.prod(SHAPE), dtype=torch.float64).view(n, *SHAPE)
        for row, of in enumerate(y.tolist()):
            x[row, 0, 6 * of : 6 * of + 6] += 0.4
        return (x - 0.7).to(dtype), y

    given = samples(24 * CLIENTS, "train"), samples(30, "test")
    return Task.of(lambda: GROUNDS[name].network().to(dtype), *given, clients=CLIENTS, split="dirichlet:1")


def opened(state: State, like: Params) -> dict[str, Tensor]:
    """The masks of a state, laid out."""
    flat = {n: np.unpackbits(m.numpy(), bitorder="little")[: like[n].numel()] for n, m in state["mask"].items()}
    return {name: torch.from_numpy(mask).bool().view(like[name].shape) for name, mask in flat.items()}


def fitted(name: str, **fields: Any) -> tuple[PrunedChannels, Params]:
    """The view bound to a network, and the network's tensors."""
    network, view = objective(name), PrunedChannels(**fields)
    return view.bind(Context(network, compose(view, SGD()).training, Uniform())), network.initial()


@cache
def objective(name: str) -> Objective:
    return Objective(some_task(name), "cpu", key(0))


TASKS = {name: some_task(name) for name in GROUNDS}
SMALL = ("residual", "grouped")
EAGER: dict[str, Any] = {"share": 0.2, "channel_share": 0.2, "channel_distance": 0.0, "distance": 0.0, "target": 0.1}
METHOD = sub_fedavg(0.1, 2, batch=8, accuracy=0.0, prune="hybrid", **EAGER)


# The contract.


@pytest.mark.parametrize("name", SMALL)
def test_it_keeps_the_contract_of_views(name: str) -> None:
    check_view(PrunedChannels(**EAGER), TASKS[name])


def test_its_method_keeps_the_contract_of_methods(tmp_path: Path) -> None:
    check_method(METHOD, tmp_path, TASKS["residual"])


def test_without_hybrid_it_is_as_before() -> None:
    assert repr(sub_fedavg().view) == "Pruned(target=0.5, share=0.05, distance=0.0001, accuracy=0.5)"
    view = sub_fedavg(target=0.3, share=0.1, prune="hybrid", channel_target=0.4).view
    assert view == PrunedChannels(0.3, 0.1, 1e-4, 0.5, 0.4, 0.45, 0.01)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: PrunedChannels(channel_target=0.0), "PrunedChannels.channel_target must be in"),
        (lambda: PrunedChannels(channel_target=1.1), "channel_target must be in"),
        (lambda: PrunedChannels(channel_share=0.0), "channel_share must be above"),
        (lambda: PrunedChannels(channel_share=1.0), "channel_share must be above"),
        (lambda: PrunedChannels(channel_distance=-1.0), "channel_distance must not be negative"),
        (lambda: PrunedChannels(share=1.0), "PrunedChannels.share must be above"),
        (lambda: sub_fedavg(prune="all"), "prune must be weights or hybrid"),  # type: ignore[arg-type]
        (lambda: sub_fedavg(ties=ties({"a": ["0.weight[0]"]})), "so ties has no effect"),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make()


def test_a_network_without_convolutions_is_refused() -> None:
    x, y = torch.zeros(4, 6), torch.zeros(4, dtype=torch.int64)
    task = Task.of(lambda: nn.Sequential(nn.Linear(6, 5), nn.Linear(5, 2)), (x, y), (x, y), clients=2)
    with pytest.raises(ConfigError, match="no convolution channels"):
        Simulation(METHOD, task, Options())


# What is a channel.


@pytest.mark.parametrize("name", GROUNDS)
def test_masked_is_what_channels_are_in_and_fully_connected_weights(name: str) -> None:
    """Not the biases of fully connected layers, nor what has channels of the input or labels alone."""
    view, like = fitted(name)
    ground = GROUNDS[name]
    wanted = {tensor for group in ground.places.values() for tensor, _, _ in group} | set(ground.weights)
    assert set(view.first(0)["mask"]) == wanted
    assert all(bool(mask.all()) for mask in opened(view.first(0), like).values())
    assert dict(view.widths.sizes) == ground.sizes


def test_a_width_rule_by_hand_defines_the_tied_dimensions() -> None:
    given = {"0": ["0.weight[0]", "0.bias[0]", "3.weight[1]"]}
    view, like = fitted("lenet5", ties=ties(given), **EAGER)
    mine = view.first(0)
    then, _ = view.revise(mine, local_training(like, 1), Clock(0, 5, 0), key(0))
    held = opened(then, like)
    assert not (held["0.weight"].any() and held["0.weight"].all())
    assert set(held) == {"0.weight", "0.bias", "3.weight", "7.weight", "9.weight"}


# How it is pruned: slow and obvious.


def local_training(like: Params, number: int, right: float = 1.0, at: State | None = None) -> FakeTraining:
    """Random weights after the first epoch and after the last, zero where nothing is held."""
    kept = {} if at is None else opened(at, like)
    early, late = (noise(like, name, number) for name in ("early", "late"))
    return FakeTraining(
        {name: t * kept[name] if name in kept else t for name, t in late.items()},
        {},
        {name: t * kept[name] if name in kept else t for name, t in early.items()},
        right,
    )


def sorted_pruned(held: Tensor, weight: Tensor, share: float) -> Tensor:
    """A mask without the smallest weights of a share of its entries."""
    order = torch.sort(torch.where(held, weight.abs(), torch.inf).view(-1), stable=True).indices
    found = held.clone()
    found.view(-1)[order[: int(share * int(held.sum()))]] = False
    return found


def rank(ground: Ground, group: str, values: Params, channel: int) -> tuple[float, int]:
    return ground.matters(group, channel, values), channel


def slowly_fewer(ground: Ground, channels: dict[str, list[int]], values: Params, view: PrunedChannels) -> Any:
    found = {}
    for group, held in channels.items():
        order = sorted(held, key=partial(rank, ground, group, values))
        least = max(1, math.ceil(round(view.channel_target * ground.sizes[group], 9)))
        going = math.ceil(round(view.channel_share * len(held), 9))
        found[group] = sorted(order[max(0, min(going, len(held) - least)) :])
    return found


def slowly_revised(
    ground: Ground, view: PrunedChannels, held: dict[str, Tensor], seen: Any, right: Callable[[Params], float]
) -> dict[str, Tensor]:
    """Weights first, then channels, each if its thresholds are passed."""

    def tried(masks: dict[str, Tensor]) -> Params:
        return {name: w * masks[name] if name in masks else w for name, w in seen.weights.items()}

    early, late = (
        {n: sorted_pruned(held[n], v[n], view.share) for n in ground.weights} for v in (seen.early, seen.weights)
    )
    size = sum(held[n].numel() for n in ground.weights)
    dense = sum(int(held[n].sum()) for n in ground.weights) / size > view.target
    apart = sum(int((early[n] != late[n]).sum()) for n in ground.weights) / size > view.distance
    if dense and apart and right(tried({**held, **late})) > view.accuracy:
        held = {**held, **late}
    channels = ground.channels(held, seen.weights)
    first, last = (slowly_fewer(ground, channels, values, view) for values in (seen.early, seen.weights))
    differs = sum(len(set(first[group]) ^ set(last[group])) for group in channels)
    if differs / sum(ground.sizes.values()) <= view.channel_distance:
        return held
    kept = {name: mask.clone() for name, mask in held.items()}
    for group in channels:
        for channel in set(channels[group]) - set(last[group]):
            for name, at in ground.entries(group, channel, seen.weights):
                kept[name] &= ~at
    return kept if right(tried(kept)) > view.accuracy else held


@pytest.mark.parametrize("name", GROUNDS)
@pytest.mark.parametrize(
    "fields", [EAGER, {}, {"share": 0.3, "channel_share": 0.1, "channel_target": 0.1}], ids=["eager", "default", "slow"]
)
def test_it_prunes_as_by_hand(name: str, fields: dict[str, float]) -> None:
    view, like = fitted(name, **fields)
    ground, mine = GROUNDS[name], view.first(0)
    moved = 0
    for number in range(5):
        seen = local_training(like, number, at=mine)
        wanted = slowly_revised(ground, view, opened(mine, like), seen, lambda params: 1.0)
        then, section = view.revise(mine, seen, Clock(number, 5, 0), key(0))
        found = opened(then, like)
        assert found.keys() == wanted.keys()
        assert all(torch.equal(found[n], wanted[n]) for n in found)
        assert same(view.follow(mine, section, like), then)
        assert (then is mine) == (not section) == same(then, mine)
        moved += then is not mine
        mine = then
    assert moved > 0
    ground.channels(opened(mine, like), like)


@pytest.mark.slow
def test_a_round_on_lenet5_follows_the_paper() -> None:
    """SGD on what is held, both prunings, then each entry's mean over its holders."""
    rounds, task, ground = 3, some_task("lenet5", torch.float64), GROUNDS["lenet5"]
    fields = {"share": 0.2, "channel_share": 0.45, "channel_target": 0.3, "channel_distance": 0.02, "accuracy": 0.6}
    run = Simulation(sub_fedavg(0.2, 2, batch=8, prune="hybrid", **fields), task, Options(rounds=rounds))  # type: ignore[arg-type]
    view = view_of(run)
    held = {client: opened(view.first(client), run.like) for client in range(CLIENTS)}
    w, few, outcomes = {name: t.clone() for name, t in run.like.items()}, 0, set()
    for number in range(rounds):
        total, holders = ({name: torch.zeros_like(t) for name, t in w.items()} for _ in range(2))
        for client in range(CLIENTS):
            mask = filled(w, held[client])
            first, v = masked_sgd(run, number, client, w, mask)
            for name in w:
                total[name] += v[name]
                holders[name] += mask[name]
            rows = torch.from_numpy(task.split.train(client))

            def right(params: Params, rows: Tensor = rows) -> float:
                answers = run.objective.build(params).eval()(task.data.train.x[rows]).argmax(1)
                return float((answers == task.data.train.y[rows]).double().mean())

            before = held[client]
            held[client] = slowly_revised(ground, view, before, FakeTraining(v, {}, first), right)
            outcomes.add(tuple(not torch.equal(before[n], held[client][n]) for n in ("9.weight", "0.weight")))
        run.round(number, None)
        few += int((holders["0.bias"] < CLIENTS).sum())
        w = {name: torch.where(holders[name] > 0, total[name] / holders[name].clamp(min=1), w[name]) for name in w}
        for name in w:
            torch.testing.assert_close(run.model()[name], w[name])
        for client in range(CLIENTS):
            found = opened(view_state(run, client) or view.first(client), run.like)
            assert all(torch.equal(found[name], held[client][name]) for name in found)
    assert {(True, True), (False, False)} <= outcomes, "some prunings must take place, and some must not"
    assert few > 0, "a channel must have lost a holder"


# The thresholds.


def pruned(view: PrunedChannels, like: Params, right: float | list[float] = 1.0) -> tuple[bool, bool]:
    """Whether the first round prunes weights, and whether it prunes channels."""
    answers = right if isinstance(right, list) else [right, right]
    seen = local_training(like, 1)
    tried: list[Params] = []

    def accuracy(params: Params) -> float:
        tried.append(params)
        return answers[len(tried) - 1]

    seen.accuracy = accuracy  # type: ignore[method-assign]
    held = opened(view.revise(view.first(0), seen, Clock(0, 5, 0), key(0))[0], like)
    return not bool(held["9.weight"].all()), not bool(held["0.weight"].all())


def test_each_threshold_controls_its_pruning() -> None:
    plain = {"distance": 0.0, "channel_distance": 0.0, "share": 0.2}
    for fields, wanted in (
        ({}, (True, True)),
        ({"target": 1.0}, (False, True)),
        ({"channel_target": 1.0}, (True, False)),
        ({"distance": 1.0}, (False, True)),
        ({"channel_distance": 1.0}, (True, False)),
        ({"distance": 1.0, "channel_distance": 1.0}, (False, False)),
        ({"accuracy": 1.0}, (False, False)),
    ):
        assert pruned(*fitted("lenet5", **{**plain, **fields})) == wanted, fields


def test_a_pruning_that_makes_the_model_too_bad_does_not_hold_the_other_back() -> None:
    view, like = fitted("lenet5", **EAGER)
    assert pruned(view, like, [0.9, 0.4]) == (True, False)
    assert pruned(view, like, [0.4, 0.9]) == (False, True)
    assert pruned(view, like, [0.5, 0.5]) == (False, False), "more than the threshold is asked for"


def test_channels_are_tried_on_what_pruning_weights_left() -> None:
    view, like = fitted("lenet5", **EAGER)
    seen = local_training(like, 1)
    held = opened(view.revise(view.first(0), seen, Clock(0, 5, 0), key(0))[0], like)
    assert seen.tried is not None
    for name, tensor in seen.tried.items():
        assert torch.equal(tensor, seen.weights[name] * held[name] if name in held else seen.weights[name]), name


def test_a_mean_difference_of_candidates_is_over_all_channels() -> None:
    """Of 70 channels 4 and 10 go; the candidates of the two epochs differ in some of these."""
    view, like = fitted("lenet5", **EAGER)
    seen = local_training(like, 1)
    channels = {group: list(range(size)) for group, size in GROUNDS["lenet5"].sizes.items()}
    first, last = (slowly_fewer(GROUNDS["lenet5"], channels, values, view) for values in (seen.early, seen.weights))
    apart = sum(len(set(first[group]) ^ set(last[group])) for group in channels) / 70
    assert apart > 0
    for distance, wanted in ((apart - 1e-9, True), (apart, False)):
        assert pruned(*fitted("lenet5", **{**EAGER, "channel_distance": distance}))[1] == wanted


# Numbers of pruned entries.


def counts(name: str, rounds: int, **fields: float) -> list[list[int]]:
    view, like = fitted(name, **{**EAGER, **fields})
    mine, found = view.first(0), []
    for number in range(rounds):
        mine, _ = view.revise(mine, local_training(like, number, at=mine), Clock(number, rounds, 0), key(0))
        found.append([len(held) for held in GROUNDS[name].channels(opened(mine, like), like).values()])
    return found


def test_the_number_of_channels_falls_by_the_share_to_the_target() -> None:
    assert counts("lenet5", 5, channel_share=0.2, channel_target=0.5) == [[16, 40], [12, 32], [10, 25]] + [[10, 25]] * 2
    assert counts("lenet5", 2, channel_share=0.45) == [[11, 27], [10, 25]]


def test_a_layer_is_never_left_without_a_channel() -> None:
    assert counts("residual", 4, channel_share=0.9, channel_target=0.01) == [[1, 1]] * 4
    assert counts("grouped", 3, channel_share=0.9, channel_target=0.01)[-1] == [1]
    assert counts("lenet5", 5, channel_share=0.7, channel_target=0.001)[-1] == [1, 1]


def test_fully_connected_weights_fall_as_without_channels() -> None:
    """While no channel goes, the masks are those of the other pruning."""
    view, like = fitted("lenet5", channel_distance=1.0, share=0.2)
    mine = view.first(0)
    held, counts = opened(mine, like), []
    for number in range(5):
        seen = local_training(like, number, at=mine)
        if sum(int(held[n].sum()) for n in ("7.weight", "9.weight")) > 0.5 * (200 + LABELS) * 500:
            held = {
                n: sorted_pruned(m, seen.weights[n], 0.2) if n in ("7.weight", "9.weight") else m
                for n, m in held.items()
            }
        mine, _ = view.revise(mine, seen, Clock(number, 5, 0), key(0))
        assert all(torch.equal(opened(mine, like)[n], held[n]) for n in held)
        counts.append(masks.count(mine["mask"]["9.weight"]))
    assert counts == [1200, 960, 768, 615, 615]


# Runs.


@pytest.mark.parametrize("name", SMALL)
def test_in_a_run_a_channel_that_is_gone_is_gone_everywhere(name: str) -> None:
    run, ground, count = Simulation(METHOD, TASKS[name], Options(rounds=3)), GROUNDS[name], 0
    for number in range(3):
        assert not run.round(number, None)["failures"]
    for client in range(CLIENTS):
        state = view_state(run, client) or view_of(run).first(client)
        deployed = run.client_params(client)
        for group, held in ground.channels(opened(state, run.like), run.like).items():
            for channel in set(range(ground.sizes[group])) - set(held):
                assert all(not bool(deployed[n][at].any()) for n, at in ground.entries(group, channel, run.like))
                count += 1
    assert count > 0


@pytest.mark.parametrize("spec", SPECS)
def test_every_codec_goes_with_channels_that_are_pruned(spec: str) -> None:
    codec = parse(spec, CODECS, "codec")
    for sent in (codec, OnWeights(codec, per_tensor=True)):
        run = Simulation(METHOD.with_parts(codec=sent), TASKS["grouped"], Options(rounds=2, channel=Lossy(0.3)))
        assert not any(run.round(number, None)["failures"] for number in range(2))
        assert all(torch.isfinite(tensor).all() for tensor in run.model().values())


def test_useful_operations_are_those_of_held_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """A multiplication and addition for each weight and output position, forward, and twice backward but to the input.

    The test of a mask is a forward pass over all samples.
    """
    judged, judge = [], TrainingInfo.accuracy

    def noted(info: TrainingInfo, params: Params) -> float:
        judged.append(len(info.job.samples))  # type: ignore[arg-type]
        return judge(info, params)

    monkeypatch.setattr(TrainingInfo, "accuracy", noted)
    per = {
        "0.weight": 4 * 25 * 20 * 256,
        "3.weight": 6 * 500 * 50 * 16,
        "7.weight": 6 * 200 * 500,
        "9.weight": 6 * 1500,
    }
    run, task, fell = Simulation(METHOD, TASKS["lenet5"], Options(rounds=2)), TASKS["lenet5"], False
    for number in range(2):
        done = useful = 0.0
        for client in range(CLIENTS):
            held = opened(view_state(run, client) or view_of(run).first(client), run.like)
            samples = 2 * len(task.split.train(client))
            done += samples * sum(per.values())
            useful += samples * sum(float(held[n].double().mean()) * cost for n, cost in per.items())
        judged.clear()
        record = run.round(number, None)
        forward = sum(judged) * (per["0.weight"] / 2 + sum(cost for n, cost in per.items() if n != "0.weight") / 3)
        assert record["flops"] == done + forward
        assert record["useful_flops"] == pytest.approx(useful + forward, rel=1e-9, abs=100)
        fell |= useful < 0.9 * done
        assert judged
    assert fell


def test_deployed_it_is_the_same(flower: Any, tmp_path: Path) -> None:
    """Model, masks, messages and figures."""
    task, options = TASKS["residual"], {"rounds": 3, "per_round": 2, "seed": 1}
    grid = flower.LocalGrid(flower.nodes(METHOD, task, tmp_path))
    run, deployed = flower.simulated(METHOD, task, **options), flower.deploy(METHOD, task, grid, **options)
    flower.agree(deployed, run, tmp_path)
    assert flower.messages(grid) == run.messages
    for ours, theirs in zip(deployed.metrics, run.metrics, strict=True):
        assert ours["failures"] == []
        for figure in ("bytes_up", "bytes_down", "flops", "accuracy", "personal_accuracy", "figures"):
            assert ours[figure] == theirs[figure]
    assert any(view_state(deployed, client) is not None for client in range(CLIENTS))
    assert all(same(view_state(deployed, client), view_state(run, client)) for client in range(CLIENTS))


@pytest.mark.parametrize("stop", [1, 3])
def test_a_run_that_is_cut_off_goes_on_as_if_it_were_not(stop: int, tmp_path: Path) -> None:
    options = Options(rounds=4, per_round=3, channel=Lossy(0.2), failure_rate=0.2)
    whole = Simulation(METHOD, TASKS["residual"], options)
    whole.run(None, lambda record: None)

    def cut(record: dict[str, Any]) -> None:
        if record["round"] == stop:
            raise KeyboardInterrupt

    first = Simulation(METHOD, TASKS["residual"], options)
    folder = first.create(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        first.run(folder, cut)
    folder.close()
    second = Simulation(METHOD, TASKS["residual"], options)
    folder = second.restore(tmp_path / "run")
    second.run(folder, lambda record: None)
    folder.close()
    assert same(second.server, whole.server)
    assert whole.clients.known()
    assert all(same(second.clients.get(client), whole.clients.get(client)) for client in range(CLIENTS))


# Refused mask sections.


def changed_masks(old: State, like: Params, change: Callable[[dict[str, Tensor]], None]) -> tuple[State, Any]:
    """Masks that were changed by hand, and their section."""
    held = opened(old, like)
    change(held)
    new = {name: bits(mask.view(-1)) for name, mask in held.items()}
    return {"mask": new}, masks.difference(old["mask"], new)


def gone(ground: Ground, group: str, like: Params, *channels: int) -> Callable[[dict[str, Tensor]], None]:
    def change(held: dict[str, Tensor]) -> None:
        for channel in channels:
            for name, at in ground.entries(group, channel, like):
                held[name] &= ~at

    return change


@pytest.mark.parametrize("name", GROUNDS)
def test_a_channel_that_is_cut_in_part_is_refused(name: str) -> None:
    view, like = fitted(name)
    ground, mine = GROUNDS[name], view.first(0)
    group = next(iter(ground.sizes))
    then, section = changed_masks(mine, like, gone(ground, group, like, 1))
    assert same(view.follow(mine, section, like), then), "a whole channel may go"
    before = tree.clone(mine)
    for left, at in ground.entries(group, 1, like):

        def but_one(held: dict[str, Tensor], left: str = left, at: Tensor = at) -> None:
            gone(ground, group, like, 1)(held)
            held[left] |= at

        with pytest.raises(PayloadError, match=r"prunes only part of a channel in "):
            view.follow(mine, changed_masks(mine, like, but_one)[1], like)

        def one_entry(held: dict[str, Tensor], left: str = left) -> None:
            held[left].view(-1)[3] = False

        section = changed_masks(mine, like, one_entry)[1]
        if left in ground.weights:
            view.follow(mine, section, like)
        else:
            with pytest.raises(PayloadError, match=r"prunes only part of a channel in "):
                view.follow(mine, section, like)
    with pytest.raises(PayloadError, match=f"prunes all channels of {group}"):
        view.follow(mine, changed_masks(mine, like, gone(ground, group, like, *range(ground.sizes[group])))[1], like)
    with pytest.raises(PayloadError, match="adds pruned entries"):
        view.follow(then, masks.difference(then["mask"], mine["mask"]), like)
    assert same(mine, before)


@given(
    flips=st.lists(
        st.tuples(st.sampled_from([name for name, _, _ in GROUNDS["grouped"].places["0"]]), st.integers(0, 287)),
        max_size=4,
    ),
    channels=st.sets(st.integers(0, 1)),
)
@settings(max_examples=100)
def test_what_is_not_refused_holds_channels_whole(flips: list[tuple[str, int]], channels: set[int]) -> None:
    (view, like), ground = fitted("grouped"), GROUNDS["grouped"]
    mine = view.first(0)

    def change(held: dict[str, Tensor]) -> None:
        gone(ground, "0", like, *channels)(held)
        for name, index in flips:
            flat = held[name].view(-1)
            flat[index % len(flat)] ^= True

    then, section = changed_masks(mine, like, change)
    try:
        followed = view.follow(mine, section, like)
    except PayloadError:
        return
    assert same(followed, then)
    assert len(ground.channels(opened(followed, like), like)["0"]) >= 1


def test_the_change_of_a_mask_is_at_most_one_bit_per_entry() -> None:
    run = Simulation(METHOD, TASKS["lenet5"], Options(rounds=2))
    record = run.round(0, None)
    entries = sum(int(np.ceil(run.like[n].numel() / 8)) for n, _ in view_of(run).sizes)
    sent = record["bytes_up"]["view.mask"]
    assert 0 < sent <= CLIENTS * entries
