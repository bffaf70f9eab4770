"""Clients that hold narrower networks: which channels, what is computed and averaged, what travels, what it costs."""

import dataclasses
import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from gossamer import Clock, Feedback, Mean, Method, OnWeights, Part, Task, TopK, compose, fedavg, simulate
from gossamer.cli.build import make_method
from gossamer.cli.request import Request
from gossamer.core import wire
from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.exchange import GLOBAL, Arrival
from gossamer.core.jobs import own_key
from gossamer.core.random import Key, fold, key, permutation
from gossamer.core.specs import parse
from gossamer.core.types import Params
from gossamer.engines import Options
from gossamer.engines.client import ClientResult, ClientTask
from gossamer.engines.export import export
from gossamer.engines.metrics import Ledger
from gossamer.engines.simulation import Simulation
from gossamer.fleet.capacity import Room, capacity, held
from gossamer.fleet.fleet import Device, Fleet
from gossamer.methods import METHODS, fedrolex, heterofl, submodel_random, submodel_rolling
from gossamer.parts.channels import CHANNELS
from gossamer.parts.codecs import CODECS
from gossamer.parts.servers import Average
from gossamer.parts.solvers import SGD
from gossamer.parts.views import Bernoulli, WidthSlice, Windows
from gossamer.parts.views.sliced import ORDERS
from gossamer.tasks.nets import build
from gossamer.tasks.nets.images import Scaler, resnet18
from gossamer.tasks.objective import Objective
from gossamer.tasks.widths import ties
from gossamer.testing import check_method, check_view
from helpers.codec_specs import SPECS
from helpers.runs import clock_and_key

FIVE = (1.0, 1 / 2, 1 / 4, 1 / 8, 1 / 16)
HIDDEN = 16
Over = Literal["cohort", "holders"]
OVERS: tuple[Over, ...] = get_args(Over)


def some_task(clients: int = 5, dtype: torch.dtype = torch.float32, split: str = "iid") -> Task:
    """Four classes, of which a client may have some alone, and two hidden layers that are added up."""
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(100, 5, generator=draw, dtype=dtype)
    y = (x[:, 0] > 0).long() + 2 * (x[:, 1] > 0).long()
    return Task.of(lambda: Residual().to(dtype), (x, y), (x, y), clients=clients, split=split)


class Residual(nn.Module):
    """A stream of two layers, and a layer inside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(5, HIDDEN), nn.Linear(HIDDEN, 12)
        self.second, self.out = nn.Linear(12, HIDDEN), nn.Linear(HIDDEN, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x).relu()
        return self.out((h + self.second(self.inner(h).relu())).relu())


def image_task(name: str, clients: int = 3) -> Task:
    """A few images in double precision."""
    draw, side = torch.Generator().manual_seed(4), 16 if name == "cnn4" else 8
    x = torch.randn(18, 1, side, side, generator=draw, dtype=torch.float64)
    y = torch.arange(18) % 3

    def network() -> nn.Module:
        if name == "mlp":
            return build("mlp", (1, side, side), 3).double()
        shape = torch.Size((1, side, side))
        return (build("cnn4", shape, 3) if name == "cnn4" else resnet18(shape, 3, 1 / 16)).double()

    return Task.of(network, (x, y), (x, y), clients=clients)


def method(order: str, capacities: Any = (1 / 2,), over: Over = "cohort", **more: Any) -> Method:
    plain = fedavg(lr=0.2, epochs=1, weights="uniform")
    return plain.with_parts(view=WidthSlice(capacities, order=order, **more), server=Mean("uniform", over))  # type: ignore[arg-type]


def model(made: Method, task: Task, **options: Any) -> dict[str, Tensor]:
    result = simulate(made, task, **{"rounds": 3, "executor": "one-by-one", **options})
    assert not any(record["failures"] for record in result.metrics)
    return dict(result.model.state_dict())


def begun(made: Method, task: Task, rounds: int = 2, **options: Any) -> Simulation:
    return Simulation(made, task, Options(rounds=rounds, executor="one-by-one", **options))


def fitted(order: str, capacities: Any = (1 / 2,), task: Task | None = None, run: int = 0, **more: Any) -> WidthSlice:
    view = begun(method(order, capacities, **more), task or some_task(), seed=run).method.training.view
    assert isinstance(view, WidthSlice)
    return view


def part_of(simulation: Simulation, number: int, client: int) -> Part:
    clock, round_key = clock_and_key(simulation, number, client)
    return simulation.method.training.view.part(simulation.like, clock, fold(own_key(round_key, clock), "view"))


def channels(part: Part, tensor: str, dim: int = 0) -> list[int]:
    found = part.index[tensor][dim]
    assert found is not None
    return found.tolist()


LIKE: Params = {name: p.detach() for name, p in Residual().named_parameters()}


# Which channels.


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("more", [{}, {"drawn": True}, {"streams": False}], ids=str)
def test_it_keeps_the_contract_of_views(order: str, more: dict[str, Any]) -> None:
    for view in (WidthSlice(FIVE[1:], order=order, **more), fitted(order, FIVE[1:], **more)):  # type: ignore[arg-type]
        check_view(view, some_task())


@pytest.mark.parametrize("order", ORDERS)
def test_a_client_holds_its_share_of_every_group_rounded_up(order: str) -> None:
    view = fitted(order, (1.0, 1 / 3, 0.01))
    for client, (stream, inner) in enumerate([(16, 12), (6, 4), (1, 1)]):
        taken = view.part(LIKE, Clock(7, 9, client), key(client)).take(LIKE)
        assert taken["first.weight"].shape == (stream, 5)
        assert taken["inner.weight"].shape == (inner, stream)
        assert taken["second.weight"].shape == (stream, inner)
        assert taken["out.weight"].shape == (4, stream)
        assert taken["out.bias"].shape == (4,)


@given(size=st.integers(1, 600), part=st.integers(1, 64), of=st.integers(1, 64))
def test_what_is_held_is_the_share_rounded_up_however_it_is_written(size: int, part: int, of: int) -> None:
    share = min(Fraction(part, of), Fraction(1))
    assert held(size, float(share)) == math.ceil(size * share)


def test_static_windows_are_the_first_channels() -> None:
    view = fitted("static", (1 / 4,))
    for round_ in range(5):
        part = view.part(LIKE, Clock(round_, 9, 0), key(round_))
        assert channels(part, "first.weight") == channels(part, "out.weight", 1) == [0, 1, 2, 3]
        assert channels(part, "inner.bias") == [0, 1, 2]


@settings(max_examples=30, deadline=None)
@given(round_=st.integers(0, 100), share=st.floats(0.01, 0.9), seed=st.integers(0, 9))
def test_rolling_windows_are_those_of_fedrolex(round_: int, share: float, seed: int) -> None:
    view = ROLLING.filled(capacities=(share,))
    part = view.part(LIKE, Clock(round_, 200, 3), key(seed))
    for tensor, size in (("first.bias", 16), ("inner.bias", 12)):
        count = math.ceil(size * share)
        if count < size:
            assert channels(part, tensor) == sorted((j - round_) % size for j in range(count))


ROLLING = fitted("rolling")


@pytest.mark.parametrize("capacities", [(1 / 2,), (1 / 3,), (1 / 16,)])
def test_after_n_rounds_of_rolling_every_channel_was_held_equally_often(capacities: tuple[float, ...]) -> None:
    view = ROLLING.filled(capacities=capacities)
    for start in (0, 5):
        for tensor, size in (("first.bias", 16), ("inner.bias", 12)):
            seen: Counter[int] = Counter()
            for round_ in range(start, start + size):
                seen.update(channels(view.part(LIKE, Clock(round_, 99, 0), key(0)), tensor))
            assert seen == {channel: held(size, capacities[0]) for channel in range(size)}


def test_an_epoch_of_shuffled_windows_holds_every_channel_equally_often() -> None:
    view = fitted("shuffled", (1 / 3,), offsets=48)  # a multiple of 16 and of 12
    for epoch in range(3):
        for tensor, size in (("first.bias", 16), ("inner.bias", 12)):
            seen: Counter[int] = Counter()
            for round_ in range(48 * epoch, 48 * epoch + 48):
                seen.update(channels(view.part(LIKE, Clock(round_, 999, 0), key(0)), tensor))
            assert seen == {channel: held(size, 1 / 3) * 48 // size for channel in range(size)}


def test_shuffled_windows_start_as_in_algorithm_2() -> None:
    """Offset floor(sigma(r) n / R), with one permutation for all clients, layers and capacities, new in every epoch."""
    view = fitted("shuffled", (1 / 2, 1 / 4), offsets=10, seed=5)
    orders = []
    for epoch in range(4):
        sigma = permutation(fold(key(5), "windows", epoch), 10).tolist()
        orders.append(sigma)
        for number, window in enumerate(sigma):
            for client, narrowing in ((0, 2), (1, 4), (4, 2)):
                part = view.part(LIKE, Clock(10 * epoch + number, 99, client), key(client))
                for tensor, size in (("first.bias", 16), ("inner.bias", 12)):
                    begin = window * size // 10
                    assert channels(part, tensor) == sorted((begin + j) % size for j in range(size // narrowing))
    assert all(sorted(order) == list(range(10)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    other = fitted("shuffled", (1 / 2,), offsets=10, seed=6)
    assert [r for r in range(10) if not same_part(view, other, r)]


def test_the_order_of_windows_follows_from_the_seed_of_the_run() -> None:
    one, two = (fitted("shuffled", (1 / 2,), offsets=10, run=seed) for seed in (1, 2))
    assert [r for r in range(10) if not same_part(one, two, r)]
    assert all(same_part(one, fitted("shuffled", (1 / 2,), offsets=10, seed=1), r) for r in range(10))


def same_part(view: WidthSlice, other: WidthSlice, round_: int) -> bool:
    parts = [v.part(LIKE, Clock(round_, 99, 0), key(0)) for v in (view, other)]
    return channels(parts[0], "first.bias") == channels(parts[1], "first.bias")


def test_random_channels_are_uniform_and_independent_of_clients_rounds_and_groups() -> None:
    """In 3,000 draws of half the channels; five standard deviations of a share of 1/2, or of 1/4 for two at once."""
    simulation = begun(method("random", (1 / 2,)), some_task(), rounds=1500)
    stream, inner = torch.zeros(2, 1500, 16), torch.zeros(2, 1500, 12)
    for client in range(2):
        for round_ in range(1500):
            part = part_of(simulation, round_, client)
            stream[client, round_, channels(part, "first.bias")] = 1
            inner[client, round_, channels(part, "inner.bias")] = 1
    assert (stream.sum(2) == 8).all()
    assert (inner.sum(2) == 6).all()
    assert (stream.mean((0, 1)) - 1 / 2).abs().max() < 5 * (1 / 4 / 3000) ** 0.5
    assert (inner.mean((0, 1)) - 1 / 2).abs().max() < 5 * (1 / 4 / 3000) ** 0.5
    pairs = {
        "clients": stream[0].T @ stream[1] / 1500,
        "rounds": stream[0, :-1].T @ stream[0, 1:] / 1499,
        "groups": stream[0].T @ inner[0] / 1500,
    }
    for together in pairs.values():
        assert (together - 1 / 4).abs().max() < 5 * (3 / 16 / 1500) ** 0.5
    distinct = {tuple(row) for row in stream.view(-1, 16).tolist()}
    assert len(distinct) > 2500  # of 12,870 that there are, 2,676 are expected


def test_a_stream_has_one_draw_and_without_streams_each_layer_its_own() -> None:
    tied, free = fitted("random"), fitted("random", streams=False)
    differ = 0
    for client in range(8):
        part = tied.part(LIKE, Clock(0, 1, client), key(client))
        offsets = [("first.weight", 0), ("second.weight", 0), ("inner.weight", 1), ("out.weight", 1)]
        assert len({tuple(channels(part, *place)) for place in offsets}) == 1
        part = free.part(LIKE, Clock(0, 1, client), key(client))
        assert channels(part, "first.weight") == channels(part, "inner.weight", 1)
        assert channels(part, "second.weight") == channels(part, "second.bias") == channels(part, "out.weight", 1)
        differ += channels(part, "first.weight") != channels(part, "second.weight")
    assert differ == 8


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"capacities": ()}, "capacities must not be empty"),
        ({"capacities": (0.0,)}, r"capacities must be in \(0, 1\], got 0.0"),
        ({"capacities": (0.5, 1.5)}, r"capacities must be in \(0, 1\], got 1.5"),
        ({"order": "sorted"}, "order must be one of static, rolling, shuffled, random, got 'sorted'"),
        ({"offsets": 0}, "offsets must be at least 1, got 0"),
    ],
)
def test_wrong_fields_are_refused(wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        WidthSlice(**wrong)


# What is computed.


def test_with_room_for_everything_all_orders_are_federated_averaging() -> None:
    plain = model(fedavg(lr=0.2, epochs=1, weights="uniform"), some_task())
    for over in OVERS:
        for order, streams in [
            *((order, True) for order in ORDERS),
            ("static", False),
            ("rolling", False),
        ]:
            found = model(method(order, (1.0,), over, streams=streams), some_task())
            assert all(torch.equal(plain[name], tensor) for name, tensor in found.items()), (order, over, streams)


def test_random_channels_without_streams_are_another_network_even_with_room_for_everything() -> None:
    """As in published code: every client adds up a stream with another order of channels in each layer."""
    simulation = begun(method("random", (1.0,), streams=False), some_task(dtype=torch.float64))
    part, whole = part_of(simulation, 0, 0), simulation.model()
    order = channels(part, "first.bias")
    other = channels(part, "second.bias")
    assert sorted(order) == sorted(other) == list(range(16))
    assert order != other != list(range(16))
    assert all((tensor == 1).all() for tensor in part.coverage(whole).values())
    with torch.no_grad():
        x = simulation.objective.samples.x
        found = torch.func.functional_call(Residual().double(), part.take(whole), (x,))
        h = (x @ whole["first.weight"].T + whole["first.bias"]).relu()
        inner = (h @ whole["inner.weight"].T + whole["inner.bias"]).relu()
        second = inner @ whole["second.weight"].T + whole["second.bias"]
        stream = (h[:, order] + second[:, other]).relu()
        torch.testing.assert_close(found, stream @ whole["out.weight"][:, other].T + whole["out.bias"])
    plain = model(fedavg(lr=0.2, epochs=1, weights="uniform"), some_task())
    assert not torch.equal(
        plain["first.bias"], model(method("random", (1.0,), streams=False), some_task())["first.bias"]
    )


def test_with_room_for_everything_all_recipes_are_federated_averaging() -> None:
    shared: dict[str, Any] = {"lr": 0.2, "epochs": 1, "batch": 16, "momentum": 0.0, "weight_decay": 0.0, "clip": None}
    shared |= {"capacities": (1.0,), "labels": "all"}
    plain = model(fedavg(lr=0.2, epochs=1, weights="uniform"), some_task())
    recipes: list[Any] = [submodel_random, submodel_rolling, heterofl, fedrolex]
    for recipe in recipes:
        for by in ("channel", "coordinate"):
            for over in OVERS:
                found = model(recipe(**shared, by=by, over=over), some_task())
                assert all(torch.equal(plain[name], tensor) for name, tensor in found.items()), (recipe, by, over)


def scaled(simulation: Simulation, factor: float) -> None:
    """Scalers of the whole network that do what those of a narrower one do."""
    for part in simulation.objective._module.modules():
        if isinstance(part, Scaler):
            part.forward = lambda x: x * factor  # type: ignore[method-assign]


def expected(simulation: Simulation, number: int, over: Over, present: dict[int, Tensor] | None = None) -> Params:
    """A round on whole tensors, entry by entry: w - lr m (g(m w) + decay m w), then fill in, or divide by holders."""
    solver: Any = simulation.method.training.solver
    before = {name: tensor.clone() for name, tensor in simulation.model().items()}
    total = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    holders = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
    cohort = simulation.cohort(number, Ledger())
    view: Any = simulation.method.training.view
    for client in cohort:
        clock, round_key = clock_and_key(simulation, number, client)
        mine = own_key(round_key, clock)
        mask = part_of(simulation, number, client).coverage(before)
        scaled(simulation, 1 / view.capacities[client % len(view.capacities)])
        labels = None if present is None else present[client]
        w = {name: tensor * mask[name] for name, tensor in before.items()}
        counters = simulation.objective.local()
        samples = simulation.split.train(client)
        for batch in solver.plan(len(samples), fold(mine, "batches")):
            x, y = simulation.objective.batch(torch.from_numpy(samples[batch]), None)
            _, grads, changed = simulation.objective.gradient({**w, **counters}, x, y, labels)
            w |= {name: tensor for name, tensor in changed.items() if name in w}
            counters = {name: changed[name] for name in counters}
            steps = {name: (g + solver.weight_decay * w[name]) * mask[name] for name, g in grads.items()}
            w |= {name: w[name] - solver.lr * step for name, step in steps.items()}
        counts = dict(mask)
        if labels is not None:
            counts["out.weight"] = mask["out.weight"] * labels[:, None]
            counts["out.bias"] = mask["out.bias"] * labels
        for name, tensor in w.items():
            total[name] += (tensor - before[name]) * counts[name]
            holders[name] += counts[name]
    if over == "cohort":
        return {name: before[name] + total[name] / len(cohort) for name in before}
    return {name: before[name] + total[name] / holders[name].clamp(min=1) for name in before}


COMBINED = [(order, over) for order in ORDERS for over in OVERS]


@pytest.mark.parametrize(
    ("name", "order", "over"),
    [("mlp", *some) for some in COMBINED]
    + [(name, *some) for name in ("cnn4", "resnet") for some in COMBINED[1:6:2]]
    + [("cnn4", "random", "cohort"), ("resnet", "random", "cohort")],
)
def test_a_round_follows_the_algorithm(name: str, order: str, over: Over) -> None:
    task, made = image_task(name), method(order, (1 / 4, 1 / 2, 1.0), over, offsets=4)
    made = made.with_parts(solver=SGD(0.02, steps=2, batch=6, weight_decay=0.1))
    slow, fast = begun(made, task), begun(made, task)
    for number in range(2):
        wanted = expected(slow, number, over)
        slow.server = {"params": wanted}
        fast.round(number, None)
        for tensor, value in fast.model().items():
            torch.testing.assert_close(value, wanted[tensor], rtol=0, atol=1e-9, msg=tensor)
    statistics = [tensor for tensor in fast.model() if "running_mean" in tensor]
    assert len(statistics) == (4 if name == "cnn4" else 0)
    assert all(fast.model()[tensor].abs().sum() > 0 for tensor in statistics)


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize("order", ORDERS)
def test_what_nobody_holds_keeps_its_value(order: str, over: Over) -> None:
    simulation = begun(method(order, (1 / 4,), over), some_task(2))
    before = {name: tensor.clone() for name, tensor in simulation.model().items()}
    covers = [part_of(simulation, 0, client).coverage(before) for client in range(2)]
    simulation.round(0, None)
    for name, tensor in simulation.model().items():
        free = covers[0][name] + covers[1][name] == 0
        assert torch.equal(tensor[free], before[name][free])
        assert (tensor[~free] != before[name][~free]).any()
    assert any((covers[0][name] + covers[1][name] == 0).any() for name in before)


# Labels that a client has none of.


def uneven() -> Task:
    return some_task(5, torch.float64, split="labels:2")


def own_labels(simulation: Simulation) -> dict[int, Tensor]:
    """From the samples themselves."""
    y = simulation.task.data.train.y
    found = {}
    for client in range(simulation.task.clients):
        has = set(y[torch.from_numpy(simulation.split.train(client))].tolist())
        found[client] = torch.tensor([float(label in has) for label in range(4)], dtype=torch.float64)
    assert any(labels.sum() < 4 for labels in found.values())
    return found


def test_scores_of_absent_labels_are_0_in_the_loss() -> None:
    objective = begun(method("static"), uneven()).objective
    x, y = objective.samples.x[:6], torch.tensor([0, 0, 2, 2, 0, 2])
    labels = torch.tensor([1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    params = objective.initial()
    loss, grads, _ = objective.gradient(params, x, y, labels)
    scores = torch.func.functional_call(Residual().double(), params, (x,))
    scores[:, [1, 3]] = 0
    torch.testing.assert_close(loss, nn.functional.cross_entropy(scores, y))
    assert (grads["out.weight"][[1, 3]] == 0).all()
    assert (grads["out.weight"][[0, 2]] != 0).any()
    pure = objective.pure_gradient(params, x, y, labels)
    torch.testing.assert_close((pure[0], pure[1]["out.weight"]), (loss, grads["out.weight"]))


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize("order", ["static", "random"])
def test_rows_of_absent_labels_neither_change_nor_count(order: str, over: Over) -> None:
    made = method(order, (1 / 2, 1.0), over).with_parts(labels="own", solver=SGD(0.2, epochs=2, weight_decay=0.1))
    slow, fast = begun(made, uneven()), begun(made, uneven())
    present = own_labels(fast)
    for number in range(2):
        wanted = expected(slow, number, over, present)
        slow.server = {"params": wanted}
        fast.round(number, None)
        for name, tensor in fast.model().items():
            torch.testing.assert_close(tensor, wanted[name], rtol=0, atol=1e-9)


def test_a_row_that_nobody_has_a_label_for_stays_to_the_bit() -> None:
    made = method("rolling", (1 / 2,), "holders").with_parts(labels="own", solver=SGD(0.2, weight_decay=0.1))
    simulation = begun(made, uneven(), per_round=1)
    client = simulation.cohort(0, Ledger())[0]
    absent = own_labels(simulation)[client] == 0
    before = {name: tensor.clone() for name, tensor in simulation.model().items()}
    simulation.round(0, None)
    for name in ("out.weight", "out.bias"):
        assert torch.equal(simulation.model()[name][absent], before[name][absent])
        assert not torch.equal(simulation.model()[name][~absent], before[name][~absent])


def answered(simulation: Simulation, client: int) -> tuple[wire.Message, Clock, Key]:
    clock, round_key = clock_and_key(simulation, 0, client)
    exchange, server = simulation.method.training, simulation.server
    common = exchange.make_common(server, clock, round_key)
    sent = exchange.make_download(server, clock, round_key, GLOBAL, None, common)
    order = ClientTask(clock, round_key, sent.data, {}, simulation.split.train(client))
    result = simulation.client.do(order).result
    assert isinstance(result, ClientResult), result
    return wire.unpack(result.sent.data), clock, round_key


def test_which_labels_a_client_has_is_on_the_wire_and_counted() -> None:
    simulation = begun(method("static").with_parts(labels="own"), uneven())
    for client, labels in own_labels(simulation).items():
        message, _, _ = answered(simulation, client)
        assert message.payload["@labels"].tolist() == [sum(2**label for label in range(4) if labels[label])]
    record = simulation.round(0, None)
    assert record["bytes_up"]["loss.labels"] == 5
    assert "loss.labels" not in record["bytes_down"]
    assert "loss.labels" not in begun(method("static"), uneven()).round(0, None)["bytes_up"]


def test_labels_that_were_tampered_with_are_refused_or_harmless() -> None:
    simulation = begun(method("static").with_parts(labels="own"), uneven())
    message, clock, round_key = answered(simulation, 0)

    def receive(labels: Tensor | None) -> Params:
        kept = {name: tensor for name, tensor in message.payload.items() if name != "@labels"}
        payload = kept if labels is None else {**kept, "@labels": labels}
        exchange, state = simulation.method.training, simulation.server
        data = wire.pack(dataclasses.replace(message, payload=payload))
        arrival, _ = exchange.read_upload(data, state, clock, round_key, GLOBAL, None)
        acc = exchange.server.fold(exchange.server.begin(state, {clock.client: GLOBAL}), arrival)
        return exchange.server.download(exchange.server.finish(state, acc, clock), GLOBAL).models[0]

    sent = message.payload["@labels"]
    wrong = [None, sent[:0], torch.cat([sent, sent]), sent.to(torch.int64), sent.float(), sent | 16, sent | 128]
    for labels in wrong:
        with pytest.raises(PayloadError):
            receive(labels)
    before, honest = simulation.model(), receive(sent)
    for bit in range(4):
        found = receive(sent ^ (1 << bit))
        for name, tensor in found.items():
            assert torch.isfinite(tensor).all()
            rows = torch.arange(len(tensor)) != bit if name.startswith("out.") else slice(None)
            assert torch.equal(tensor[rows], honest[name][rows])
    nothing = receive(sent & 0)
    assert torch.equal(nothing["out.weight"], before["out.weight"])


def test_own_labels_go_without_sub_models_too() -> None:
    """All clients then share one broadcast, and each counts for the rows of its labels."""
    made = fedavg(lr=0.2, epochs=1, weights="uniform").with_parts(labels="own")
    narrow = method("static", (1.0,)).with_parts(labels="own")
    plain, found = model(made, uneven()), model(narrow, uneven())
    assert all(torch.equal(plain[name], tensor) for name, tensor in found.items())
    assert not torch.equal(plain["out.bias"], model(made.with_parts(labels="all"), uneven())["out.bias"])


def own_accuracies(simulation: Simulation, masked: bool) -> list[float]:
    """What clients get right on their own test samples, with scores of labels that they lack at 0 or as they are."""
    data, found = simulation.task.data.test, []
    for client, labels in own_labels(simulation).items():
        mine = torch.from_numpy(simulation.task.split.test(client))
        scores = torch.func.functional_call(Residual().double(), simulation.client_params(client), (data.x[mine],))
        scores = torch.where(labels == 0, 0.0, scores) if masked else scores
        found.append(float((scores.argmax(1) == data.y[mine]).double().mean()))
    return found


@pytest.mark.parametrize(
    "more",
    [{}, {"tune": SGD(0.2, steps=1)}, {"send": "nothing"}],
    ids=["the global model", "tuned", "models of their own"],
)
def test_personal_figures_have_scores_of_absent_labels_at_0_and_global_ones_do_not(
    more: dict[str, Any], tmp_path: Path
) -> None:
    narrow = (fedavg(lr=0.02, steps=1) if more else method("static")).with_parts(labels="own", **more)
    simulation, test = begun(narrow, uneven()), uneven().data.test
    record = simulation.round(0, None)
    found, plain = own_accuracies(simulation, masked=True), own_accuracies(simulation, masked=False)
    assert sum(found) != sum(plain)
    assert record["personal_accuracy"] == pytest.approx(sum(found) / 5)
    assert record["worst_tenth_accuracy"] == pytest.approx(min(found))
    if simulation.method.shared:
        right = simulation.module()(test.x).argmax(1) == test.y
        assert record["accuracy"] == pytest.approx(float(right.double().mean()))
    exported = [export(simulation, tmp_path, client).own_score for client in range(5)]
    assert exported == pytest.approx(found)


def test_own_labels_need_a_layer_with_one_row_a_label() -> None:
    task = some_task()
    summed = dataclasses.replace(task, model=lambda: nn.Sequential(nn.Linear(5, 8), nn.Unflatten(1, (4, 2)), Last()))
    with pytest.raises(ConfigError, match="labels=own: no dimension with one index per label is known"):
        begun(fedavg().with_parts(labels="own"), summed)
    with pytest.raises(ConfigError, match=r"Exchange\.labels must be all or own, got 'some'"):
        fedavg().with_parts(labels="some")


class Last(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([x[:, 0, 0], x[:, 1, 1], x[:, 2, 0], x[:, 3, 1]], 1)


# The scaler, and the ball.


def test_a_scaler_makes_up_for_missing_channels_in_training_alone() -> None:
    scaler, x = Scaler(8), torch.randn(2, 2, 3, 3, generator=torch.Generator().manual_seed(1))
    assert torch.equal(scaler.train()(x), x / (2 / 8))
    assert torch.equal(scaler.eval()(x), x)
    whole = x.repeat(1, 4, 1, 1)
    assert scaler.train()(whole) is whole
    assert scaler.eval()(whole) is whole


def after(server: Mean, start: Params, change: Params) -> Params:
    state = server.init(start)
    acc = server.fold(server.begin(state, {0: GLOBAL}), Arrival.of(0, Part(), change, 2.0))
    return server.download(server.finish(state, acc, Clock(0, 1, -1)), GLOBAL).models[0]


@pytest.mark.parametrize("over", OVERS)
@pytest.mark.parametrize("kind", [Mean, Average])
def test_the_model_is_projected_onto_the_nearest_point_of_the_ball(kind: type[Mean], over: Over) -> None:
    draw = torch.Generator().manual_seed(2)
    start = {"w": torch.randn(4, 3, generator=draw).double(), "b": torch.randn(2, generator=draw).double()}
    change = {name: torch.randn(tensor.shape, generator=draw).double() for name, tensor in start.items()}
    free = after(kind("uniform", over), start, change)
    point = torch.cat([free["w"].view(-1), free["b"]])
    for radius in (0.5, 1.0, float(point.norm()) * 0.999):
        found = after(kind("uniform", over, radius), start, change)
        flat = torch.cat([found["w"].view(-1), found["b"]])
        assert flat.norm().item() == pytest.approx(radius, rel=1e-12)
        others = torch.randn(2000, 14, generator=draw).double()
        others = others / others.norm(dim=1, keepdim=True) * radius
        assert ((others - point).norm(dim=1) >= (flat - point).norm() - 1e-12).all()
        torch.testing.assert_close(flat / radius, point / point.norm())
    for radius in (float(point.norm()) * 1.001, 1e9, math.inf):
        found = after(kind("uniform", over, radius), start, change)
        assert all(torch.equal(found[name], free[name]) for name in free)
    zero = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    assert all((tensor == 0).all() for tensor in after(kind("uniform", over, 1.0), zero, zero).values())


@pytest.mark.parametrize("over", OVERS)
def test_a_run_stays_in_its_ball(over: Over) -> None:
    made = method("random", (1 / 2, 1.0))
    norms = []
    for radius in (None, 1.0):
        found = model(made.with_parts(server=Mean("uniform", over, radius)), some_task())
        norms.append(sum(tensor.double().square().sum().item() for tensor in found.values()) ** 0.5)
    assert norms[0] > 2
    assert 0.9 < norms[1] < 1 + 1e-6


@pytest.mark.parametrize("radius", [0.0, -1.0, math.nan])
def test_a_ball_must_have_a_radius(radius: float) -> None:
    with pytest.raises(ConfigError, match="radius must be positive"):
        Mean(radius=radius)


# What travels, and what it costs.


@pytest.mark.parametrize("order", ORDERS)
def test_messages_hold_what_is_held_and_no_more(order: str) -> None:
    simulation = begun(method(order, FIVE), some_task())
    record = simulation.round(0, None)
    wanted = 0
    for client, share in enumerate(FIVE):
        a, b = math.ceil(16 * share), math.ceil(12 * share)
        entries = (5 * a + a) + (a * b + b) + (b * a + a) + (4 * a + 4)
        assert part_of(simulation, 0, client).layout(simulation.like).size == entries
        wanted += 4 * entries
    assert record["bytes_up"]["codec.values"] == record["bytes_down"]["down.values"] == wanted


def test_operations_fall_with_the_width() -> None:
    full, quarter = (
        begun(method("rolling", (share,)), image_task("cnn4", clients=1)).round(0, None)["flops"]
        for share in (1.0, 0.25)
    )
    assert 0 < quarter <= full / 10


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("spec", SPECS)
def test_every_codec_goes_with_every_order(order: str, spec: str) -> None:
    codec = parse(spec, CODECS, "codec")
    for sent in (codec, OnWeights(codec, per_tensor=True)):
        made = method(order, FIVE).with_parts(codec=sent, labels="own")
        found = model(made, some_task(), rounds=2)
        assert all(torch.isfinite(tensor).all() for tensor in found.values())


@pytest.mark.parametrize("channel", ["perfect", "lossy:0.4"])
@pytest.mark.parametrize(
    "codec", [Feedback(TopK(0.2)), OnWeights(Feedback(TopK(0.2)), per_tensor=True)], ids=["whole", "each"]
)
@pytest.mark.parametrize("order", ["rolling", "random"])
def test_error_feedback_is_kept_per_entry(order: str, codec: Any, channel: str) -> None:
    """Under other channels each round, all that was ever changed is what arrived plus what is owed."""
    made = method(order, (1 / 3,)).with_parts(codec=codec)
    simulation = begun(made, some_task(1, torch.float64), rounds=6, channel=parse(channel, CHANNELS, "channel"))
    start = {name: tensor.clone() for name, tensor in simulation.model().items()}
    changed = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    train = simulation.client.train

    def noted(order: Any, job: Any) -> Any:
        trained = train(order, job)
        for name, tensor in job.part.spread(trained.change, start).items():
            changed[name] += tensor
        return trained

    simulation.client.train = noted  # type: ignore[assignment, method-assign]
    for number in range(6):
        assert not simulation.round(number, None)["failures"]
    owed: Params = {}
    memory = simulation.clients.get(0)["codec"]
    for inner in [memory] if "owed" in memory else memory.values():
        owed |= inner["owed" if "owed" in inner else "lost"]
    assert set(owed) == set(start), "biases too"
    for name in owed:
        assert owed[name].shape == start[name].shape
        torch.testing.assert_close(simulation.model()[name] - start[name] + owed[name], changed[name])


# Every way to run it.


@pytest.mark.parametrize("executor", ["side-by-side", "stacked"])
def test_executors_agree_on_five_capacities_in_one_round(executor: str) -> None:
    made = method("rolling", FIVE, "holders").with_parts(labels="own")
    task = some_task(10, torch.float64, split="labels:2")
    wanted, found = (model(made, task, rounds=2, executor=name) for name in ("one-by-one", executor))
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=0, atol=0 if executor == "side-by-side" else 1e-9)


@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's compiler uses what torch deprecates
@pytest.mark.slow
def test_compiled_it_is_the_same() -> None:
    """Two capacities, with a program for each, which take seconds to compile where none is stored."""
    made = method("rolling", (1.0, 1 / 4), "holders").with_parts(labels="own", solver=SGD(0.2, steps=2, batch=4))
    small = lambda: nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4)).double()  # noqa: E731
    task = dataclasses.replace(some_task(2, torch.float64, split="labels:2"), model=small)
    wanted, found = (model(made, task, rounds=1, executor=name) for name in ("one-by-one", "compiled"))
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize("labels", ["all", "own"])
@pytest.mark.parametrize("order", ORDERS)
def test_deployed_it_is_the_same(order: str, labels: str, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from helpers.flower_runs import deploy, nodes
    from helpers.local_grid import LocalGrid

    task = some_task(4, split="labels:2")
    made = method(order, (1.0, 1 / 2, 1 / 4), "holders", drawn=order == "random")
    made = made.with_parts(codec=Feedback(TopK(0.3)), labels=labels)
    deployed = deploy(made, task, LocalGrid(nodes(made, task, tmp_path)))
    wanted = simulate(made, task, rounds=2)
    found = deployed.module().state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.model.state_dict().items())
    for record, other in zip(deployed.metrics, wanted.metrics, strict=True):
        assert not record["failures"]
        figures = ("personal_accuracy", "worst_tenth_accuracy", "accuracy", "bytes_up", "bytes_down", "flops")
        assert all(record[name] == other[name] for name in figures)
    assert ("loss.labels" in deployed.metrics[0]["bytes_up"]) == (labels == "own")


@pytest.mark.parametrize("order", ["shuffled", "random"])
def test_a_killed_run_resumes_to_the_same_bytes(order: str, tmp_path: Path) -> None:
    made = method(order, FIVE, "holders", drawn=True, offsets=5)
    check_method(made.with_parts(codec=Feedback(TopK(0.3)), labels="own"), tmp_path, some_task())


# Capacities.


def test_drawn_capacities_are_uniform() -> None:
    """Of 5,000 draws each of five is about a thousand: five standard deviations."""
    seen = Counter(
        capacity(FIVE, True, Clock(round_, 1, client), fold(key(round_), client))
        for round_ in range(50)
        for client in range(100)
    )
    assert set(seen) == set(FIVE)
    assert all(abs(count - 1000) < 5 * (5000 * 0.2 * 0.8) ** 0.5 for count in seen.values())


def test_drawn_capacities_change_from_round_to_round_on_both_ends() -> None:
    simulation = begun(method("static", FIVE, drawn=True), some_task(), rounds=8)
    sizes = set()
    for number in range(8):
        assert not simulation.round(number, None)["failures"]
        sizes.add(part_of(simulation, number, 0).layout(simulation.like).size)
    assert len(sizes) > 1


def test_fixed_capacities_repeat_over_clients() -> None:
    view = fitted("static", (1.0, 1 / 2))
    shapes = [view.part(LIKE, Clock(3, 9, client), key(0)).take(LIKE)["first.bias"].numel() for client in range(5)]
    assert shapes == [16, 8, 16, 8, 16]


def needs(share: float) -> int:
    """Bytes that training a share of the network takes, with the solver of ``method``."""
    simulation = begun(method("static", (share,)), some_task())
    params = part_of(simulation, 0, 0).take(simulation.like)
    return simulation.objective.memory(params, simulation.method.training.solver)


def test_room_is_the_largest_share_that_fits() -> None:
    assert needs(1.0) > needs(1 / 2) > needs(1 / 4) > needs(1 / 16)
    rooms = (Room(needs(1.0)), Room(needs(1.0) - 1), Room(needs(1 / 4)), Room(needs(1 / 4) - 1), Room.of_text("8MB"))
    assert fitted("static", (*rooms, 0.3)).capacities == (1.0, 1 / 2, 1 / 4, 1 / 8, 1.0, 0.3)
    with pytest.raises(ConfigError, match=f"training the smallest share, 1/16 of the model, takes {needs(1 / 16):,}"):
        fitted("static", (1.0, Room(needs(1 / 16) - 1)))


def test_room_depends_on_the_batch_and_needs_one() -> None:
    room = Room(needs(1.0))
    larger = method("static", (room,)).with_parts(solver=SGD(batch=24))
    view: Any = begun(larger, some_task()).method.training.view
    assert 1 / 16 <= view.capacities[0] < 1
    with pytest.raises(ConfigError, match="batch"):
        begun(method("static", (room,)).with_parts(solver=SGD(batch=None)), some_task())


def test_a_fleet_gives_each_client_what_fits_its_device() -> None:
    fleet = Fleet((Device("phone", 2, needs(1.0), 1e9), Device("sensor", 3, needs(1 / 8), 1e6)))
    simulation = begun(method("rolling", fleet=fleet), some_task())
    wanted = {"phone": 16, "sensor": 2}
    for client in range(5):
        taken = part_of(simulation, 0, client).take(simulation.like)
        assert taken["first.bias"].numel() == wanted[fleet.device(client, 5).name]
    assert not simulation.round(0, None)["failures"]
    with pytest.raises(ConfigError, match="dust"):
        begun(method("rolling", fleet=Fleet((Device("dust", 1, 10, 1.0),))), some_task())


# Recipes.


@pytest.mark.parametrize(
    ("name", "order", "entries"),
    [
        ("submodel-random", "random", Bernoulli(FIVE)),
        ("submodel-rolling", "shuffled", Windows(FIVE, offsets=64)),
        ("heterofl", "static", Windows(FIVE, offsets=1)),
        ("fedrolex", "rolling", Windows(FIVE, offsets=64, shuffled=False)),
    ],
)
def test_recipes_by_channel_and_by_coordinate(name: str, order: str, entries: Any) -> None:
    assert METHODS[name]().view == WidthSlice(FIVE, order=order)  # type: ignore[arg-type]
    assert METHODS[name](by="coordinate").view == entries
    for by in ("channel", "coordinate"):
        asked = {"by": by, "capacities": "1,1/2,1/4,1/8,1/16", "epochs": "1", "drawn": "true"}
        made = make_method(Request(name, asked))
        assert made.view.capacities == FIVE  # type: ignore[attr-defined]
        assert made.view.drawn  # type: ignore[attr-defined]
        found = model(made, some_task(split="labels:2"), rounds=2)
        assert all(torch.isfinite(tensor).all() for tensor in found.values())


def test_a_room_is_written_with_its_unit() -> None:
    made = make_method(Request("heterofl", {"capacities": "1,8MB,512kB"}))
    assert made.view.capacities == (1.0, Room(8_000_000), Room(512_000))  # type: ignore[attr-defined]


def test_recipes_average_and_mask_as_in_their_papers() -> None:
    for recipe in (submodel_random, submodel_rolling):
        assert (recipe().server, recipe().training.labels) == (Mean("uniform", "cohort"), "all")
    for narrowing in (heterofl, fedrolex):
        assert (narrowing().server, narrowing().training.labels) == (Mean("uniform", "holders"), "own")
    assert submodel_random(streams=False).view == WidthSlice(FIVE, order="random", streams=False)


FLEET = Fleet((Device("phone", 1, 1000, 1e9),))


@pytest.mark.parametrize("name", ["submodel-random", "submodel-rolling", "heterofl", "fedrolex"])
@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"by": "row"}, "by must be channel or coordinate, got 'row'"),
        ({"by": "coordinate", "fleet": FLEET}, "masks take as much memory as the whole model, so fleet has no effect"),
        ({"by": "coordinate", "ties": ties({"h": ["w[0]"]})}, "entries of tensors are not tied, so ties has no effect"),
        ({"by": "coordinate", "capacities": (Room(1000),)}, "masks take as much memory as the whole model"),
        ({"capacities": (0.5, 2.0)}, r"capacities must be in \(0, 1\], got 2.0"),
        ({"by": "coordinate", "capacities": (-1.0,)}, r"capacities must be in \(0, 1\], got -1.0"),
        ({"over": "everybody"}, "over must be cohort or holders"),
        ({"labels": "some"}, "labels must be all or own"),
    ],
)
def test_mistakes_in_recipes_are_named(name: str, wrong: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        METHODS[name](**wrong)


def test_a_rule_by_hand_is_enough_where_none_can_be_derived() -> None:
    """Also where own labels are asked for, as the published recipes do."""

    class Closed(Residual):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.topk(5).values)

    task = dataclasses.replace(some_task(), model=Closed)
    with pytest.raises(ConfigError, match="state it by hand"):
        begun(method("static"), task)
    stream = [
        "first.weight[0]",
        "first.bias[0]",
        "inner.weight[1]",
        "second.weight[0]",
        "second.bias[0]",
        "out.weight[1]",
    ]
    by_hand = ties({"stream": stream, "labels": ["out.weight[0]", "out.bias[0]"]})
    assert not begun(method("static", ties=by_hand), task).round(0, None)["failures"]
    assert not begun(heterofl(epochs=1, ties=by_hand), task).round(0, None)["failures"]


def test_a_server_needs_no_training_samples() -> None:
    task = some_task()
    none = task.data.train.x[:0], task.data.train.y[:0]
    data = dataclasses.replace(task.data, train=type(task.data.train)(*none))
    objective = Objective(dataclasses.replace(task, data=data), "cpu", key(0))
    view = compose(WidthSlice((1 / 2,)), SGD()).bind(objective).training.view
    assert isinstance(view, WidthSlice)
    assert view.widths == fitted("rolling").widths
