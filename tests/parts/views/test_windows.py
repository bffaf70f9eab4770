"""Clients that hold some entries of the model: masks, windows, messages, and entries without holders."""

from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache

from gossamer import (
    SGD,
    Bernoulli,
    Clock,
    Dense,
    Feedback,
    Layout,
    Mean,
    Method,
    OnWeights,
    Part,
    Task,
    TopK,
    Windows,
    compose,
    fedavg,
    fedmrn,
    simulate,
)
from gossamer.core.errors import ConfigError
from gossamer.core.exchange import GLOBAL
from gossamer.core.jobs import own_key
from gossamer.core.random import fold, key
from gossamer.core.specs import parse
from gossamer.core.types import Params
from gossamer.core.wire import unpack
from gossamer.engines import Options
from gossamer.engines.executors import EXECUTORS
from gossamer.engines.simulation import Simulation
from gossamer.parts.channels import CHANNELS
from gossamer.parts.codecs import CODECS
from gossamer.parts.views import View
from gossamer.testing import bound
from helpers.runs import clock_and_key

VIEWS = [
    Bernoulli((0.5,)),
    Bernoulli((1.0, 0.3), min_dim=1),
    Windows((0.25,), offsets=4),
    Windows((1.0, 0.5), drawn=True, min_dim=1),
]
LIKE: Params = {"a.weight": torch.ones(6, 5), "a.bias": torch.ones(6), "b.weight": torch.ones(2, 6)}
FORMS = ["dense", "dense:float16", "sparse", "topk:0.2", "subsample:0.3", "sign", "ternary", "drive", "eden:2"]


def some_task(clients: int = 4, dtype: torch.dtype = torch.float32) -> Task:
    draw = torch.Generator().manual_seed(3)
    x = torch.randn(80, 5, generator=draw, dtype=dtype)
    y = (x[:, 0] + x[:, 1] > 0).long()

    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 2)).to(dtype)

    return Task.of(network, (x, y), (x, y), clients=clients)


def model(method: Method, task: Task, **options: Any) -> dict[str, Tensor]:
    result = simulate(method, task, **{"rounds": 3, **options})
    assert not any(record["failures"] for record in result.metrics)
    return result.model.state_dict()


def fitted(view: Bernoulli | Windows) -> View:
    return bound(compose(view, SGD()).training).view


# What a part is.


def test_a_layout_has_only_what_is_held() -> None:
    params = {"w": torch.tensor([[1.0, 2.0], [3.0, 4.0]]), "b": torch.tensor([5.0])}
    layout = Layout.of(params, {"w": torch.tensor([[1.0, 0.0], [0.0, 1.0]])})
    vector = layout.flatten(params)
    assert vector.tolist() == [5, 1, 4]
    assert layout.size == 3
    assert layout.unflatten(vector)["w"].tolist() == [[1, 0], [0, 4]]
    assert layout.unflatten(vector, fill=9.0)["w"].tolist() == [[1, 9], [9, 4]]
    assert layout.only(["w"]).size == 2


def test_what_is_put_back_replaces_what_is_held() -> None:
    whole = {"w": torch.zeros(3, 3)}
    part = Part(index={"w": (torch.tensor([0, 2]), None)}, keep={"w": torch.tensor([[1.0, 0, 1], [0, 1, 0]])})
    put = part.put(whole, {"w": torch.arange(1.0, 7).view(2, 3)})
    assert put["w"].tolist() == [[1, 0, 3], [0, 0, 0], [0, 5, 0]]
    assert whole["w"].sum() == 0


# Which entries.


def test_each_entry_is_held_with_the_clients_chance() -> None:
    like = {"w": torch.ones(400, 500)}
    for client, share in ((0, 0.2), (1, 0.7), (2, 0.2)):
        part = fitted(Bernoulli((0.2, 0.7))).part(like, Clock(0, 1, client), key(client))
        assert part.keep["w"].mean().item() == pytest.approx(share, abs=5 * (share * (1 - share) / 200_000) ** 0.5)


def test_an_epoch_of_windows_holds_every_entry_equally_often() -> None:
    view, size = fitted(Windows((0.25,), offsets=21, min_dim=1)), 21
    like = {"v": torch.ones(14), "w": torch.ones(7)}
    for epoch in range(3):
        held = torch.zeros(size)
        for round_ in range(epoch * 21, epoch * 21 + 21):
            keep = view.part(like, Clock(round_, 99, 0), key(round_)).keep
            held += torch.cat([keep["v"], keep["w"]])
        assert held.tolist() == [6] * size  # a quarter of 21, rounded up


def test_windows_are_neighbouring_entries_that_rotate() -> None:
    view = fitted(Windows((0.5,), offsets=4, shuffled=False, min_dim=1))
    rows = [view.part({"w": torch.ones(8)}, Clock(r, 8, 0), key(0)).keep["w"].tolist() for r in range(5)]
    assert rows[0] == rows[4] == [1, 1, 1, 1, 0, 0, 0, 0]
    assert rows[1] == [0, 0, 1, 1, 1, 1, 0, 0]
    assert rows[3] == [1, 1, 0, 0, 0, 0, 1, 1]


def test_the_order_of_windows_is_one_for_all_clients_and_new_in_every_epoch() -> None:
    view = fitted(Windows((0.5,), offsets=16))
    assert isinstance(view, Windows)
    first, second = ([view.offset_index(r) for r in range(16 * e, 16 * e + 16)] for e in range(2))
    assert sorted(first) == sorted(second) == list(range(16))
    assert first != second
    part, other = (view.part(LIKE, Clock(3, 9, client), key(client)) for client in (0, 1))
    assert all(torch.equal(part.keep[name], other.keep[name]) for name in part.keep)


def test_small_tensors_are_held_whole() -> None:
    for view in (Bernoulli((0.1,)), Windows((0.1,))):
        assert set(fitted(view).part(LIKE, Clock(0, 1, 0), key(0)).keep) == {"a.weight", "b.weight"}


@pytest.mark.parametrize("capacities", [(), (0.0,), (0.5, 1.5), (-1.0,)])
def test_a_capacity_that_cannot_be_is_refused(capacities: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="capacities"):
        Bernoulli(capacities)
    with pytest.raises(ConfigError, match="capacities"):
        Windows(capacities)


# What is computed.


def test_with_room_for_everything_all_views_are_federated_averaging() -> None:
    plain = model(fedavg(epochs=1), some_task())
    for view in (Bernoulli((1.0,)), Windows((1.0,))):
        for over in ("cohort", "holders"):
            method = fedavg(epochs=1).with_parts(view=view, server=Mean(over=over))
            assert all(torch.equal(plain[name], tensor) for name, tensor in model(method, some_task()).items())


@pytest.mark.parametrize("over", ["cohort", "holders"])
@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_a_round_follows_the_algorithm(view: Bernoulli | Windows, over: Literal["cohort", "holders"]) -> None:
    """Against a loop on whole tensors: step w - lr m g(m w), then fill in what was not held, or divide by holders."""
    task = some_task(dtype=torch.float64)
    method = fedavg(lr=0.3, steps=2, batch=8).with_parts(view=view, server=Mean("uniform", over))
    simulation = Simulation(method, task, Options(rounds=2))
    for number in range(2):
        before = {name: tensor.clone() for name, tensor in simulation.model().items()}
        total = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
        holders = {name: torch.zeros_like(tensor) for name, tensor in before.items()}
        for client in range(4):
            clock, round_key = clock_and_key(simulation, number, client)
            mine = own_key(round_key, clock)
            keep = simulation.method.training.view.part(before, clock, fold(mine, "view")).keep
            mask = {name: keep.get(name, torch.ones_like(tensor)) for name, tensor in before.items()}
            w = {name: tensor * mask[name] for name, tensor in before.items()}
            for batch in method.solver.plan(len(task.split.train(client)), fold(mine, "batches")):
                rows = torch.from_numpy(task.split.train(client)[batch])
                x, y = simulation.objective.batch(rows, None)
                _, grads, _ = simulation.objective.gradient(w, x, y)
                w = {name: tensor - 0.3 * mask[name] * grads[name] for name, tensor in w.items()}
            for name, tensor in w.items():
                total[name] += tensor - before[name] * mask[name]
                holders[name] += mask[name]
        simulation.round(number, None)
        for name, tensor in simulation.model().items():
            divisor = torch.full_like(tensor, 4) if over == "cohort" else holders[name].clamp(min=1)
            torch.testing.assert_close(tensor, before[name] + total[name] / divisor)


def test_what_nobody_holds_keeps_its_value() -> None:
    view = Windows((0.25,), offsets=4, min_dim=1)
    simulation = Simulation(fedavg(epochs=1).with_parts(view=view), some_task(), Options(rounds=1))
    before = simulation.model()
    keep = simulation.method.training.view.part(before, Clock(0, 1, 0), key(0)).keep
    simulation.round(0, None)
    for name, tensor in simulation.model().items():
        assert torch.equal(tensor[keep[name] == 0], before[name][keep[name] == 0])
    assert any(not torch.equal(tensor, before[name]) for name, tensor in simulation.model().items())


# What travels.


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_messages_hold_what_is_held_and_no_more(view: Bernoulli | Windows) -> None:
    simulation = Simulation(fedavg(epochs=1).with_parts(view=view), some_task(), Options(rounds=2))
    record, exchange, entries = simulation.round(0, None), simulation.method.training, 0
    for client in range(4):
        clock, round_key = clock_and_key(simulation, 0, client)
        part = exchange.view.part(simulation.like, clock, fold(own_key(round_key, clock), "view"))
        entries += sum(int(part.keep.get(n, torch.ones_like(t)).sum()) for n, t in simulation.like.items())
    assert record["bytes_up"]["codec.values"] == record["bytes_down"]["down.values"] == 4 * entries
    clock, round_key = clock_and_key(simulation, 1, 1)
    common = exchange.make_common(simulation.server, clock, round_key)
    message = unpack(exchange.make_download(simulation.server, clock, round_key, GLOBAL, None, common).data)
    assert message.payload["values"].numel() <= simulation.objective.layout.size


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("spec", FORMS)
def test_every_codec_goes_with_every_view(view: Bernoulli | Windows, spec: str) -> None:
    codec = parse(spec, CODECS, "codec")
    for lifted in (codec, OnWeights(codec), OnWeights(codec, per_tensor=True)):
        found = model(fedavg(epochs=1).with_parts(view=view, codec=lifted), some_task())
        assert all(torch.isfinite(tensor).all() for tensor in found.values())


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_masked_noise_trains_through_the_entries_that_are_held(view: Bernoulli | Windows) -> None:
    found = model(fedmrn(epochs=1).with_parts(view=view), some_task())
    assert all(torch.isfinite(tensor).all() for tensor in found.values())


@pytest.mark.parametrize("channel", ["perfect", "lossy:0.4"])
@pytest.mark.parametrize(
    "codec", [Feedback(TopK(0.2)), OnWeights(Feedback(TopK(0.2)), per_tensor=True)], ids=["whole", "each"]
)
def test_error_feedback_is_kept_per_entry(codec: Dense, channel: str) -> None:
    """Under another mask each round, all that was ever changed is what arrived plus what is owed, entry by entry."""
    view = Bernoulli((0.4,), min_dim=1)
    method = fedavg(lr=0.1, epochs=1).with_parts(view=view, codec=codec, server=Mean("uniform"))
    options = Options(rounds=6, channel=parse(channel, CHANNELS, "channel"))
    simulation = Simulation(method, some_task(1, torch.float64), options)
    start = simulation.model()
    changed = {name: torch.zeros_like(tensor) for name, tensor in start.items()}
    train = simulation.client.train

    def noted(order, job):  # type: ignore[no-untyped-def]
        trained = train(order, job)
        for name, tensor in trained.change.items():
            changed[name] += tensor
        return trained

    simulation.client.train = noted  # type: ignore[method-assign]
    for number in range(6):
        simulation.round(number, None)
    owed: Params = {}
    memory = simulation.clients.get(0)["codec"]
    for inner in [memory] if "owed" in memory else memory.values():
        owed |= inner["owed" if "owed" in inner else "lost"]
    assert set(owed) == set(start), "biases too"
    for name in owed:
        torch.testing.assert_close(simulation.model()[name] - start[name] + owed[name], changed[name])


def test_useful_operations_are_those_of_held_weights() -> None:
    """Two linear layers: forward, gradient by weight and, for the second, by input; 2 a weight and sample."""
    view = Windows((0.5,), offsets=1)
    simulation = Simulation(fedavg(steps=1, batch=8).with_parts(view=view), some_task(1), Options(rounds=1))
    record = simulation.round(0, None)
    keep = simulation.method.training.view.part(simulation.like, Clock(0, 1, 0), key(0)).keep
    held = {name: int(mask.sum()) for name, mask in keep.items()}
    assert record["flops"] == 8 * 2 * (2 * 35 + 3 * 14)
    assert record["useful_flops"] == 8 * 2 * (2 * held["0.weight"] + 3 * held["2.weight"])


# Every way to run it.


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*script_method:DeprecationWarning")  # torch's compiler uses what torch deprecates
@pytest.mark.parametrize("executor", ["side-by-side", "stacked", pytest.param("compiled", marks=pytest.mark.slow)])
def test_executors_agree(executor: str) -> None:
    method = fedavg(epochs=1).with_parts(view=Bernoulli((1.0, 0.5)))
    task = some_task(dtype=torch.float64)
    assert executor in EXECUTORS
    wanted = model(method, task)
    with fresh_cache():  # or a program that is stored would hide what compiling it takes
        found = model(method, task, executor=executor)
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_deployed_it_is_the_same(view: Bernoulli | Windows, tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from helpers.flower_runs import deploy, nodes
    from helpers.local_grid import LocalGrid

    method, task = fedavg(epochs=1).with_parts(view=view, codec=Feedback(TopK(0.3))), some_task()
    deployed = deploy(method, task, LocalGrid(nodes(method, task, tmp_path)))
    wanted = simulate(method, task, rounds=2)
    found = deployed.module().state_dict()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.model.state_dict().items())
    for record, other in zip(deployed.metrics, wanted.metrics, strict=True):
        assert all(record[name] == other[name] for name in ("personal_accuracy", "bytes_up", "bytes_down", "flops"))
