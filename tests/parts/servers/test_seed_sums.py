"""FedKSeed: a run against a plain loop, models from sums in both directions, absences, damaged downloads."""

from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer import (
    ConfigError,
    KSeed,
    Method,
    PayloadError,
    Seeds,
    SeedSums,
    SendSums,
    Supermask,
    Task,
    ZerothOrder,
    compose,
    fedkseed,
    simulate,
)
from gossamer.core.codec import Coding
from gossamer.core.exchange import GLOBAL
from gossamer.core.jobs import own_key, round_key
from gossamer.core.random import draws, fold, key, tensor
from gossamer.core.random.directions import direction
from gossamer.core.types import Clock, Layout, Params, Part
from gossamer.parts.views.entries import Full
from gossamer.tasks.objective import Objective
from gossamer.testing import tiny_task

DOUBLE = tiny_task(dtype=torch.float64)


def weights(result: Any) -> Params:
    state: Params = result.model.state_dict()
    return state


def plain(lr: float, steps: int, candidates: int, task: Task, rounds: int, seed: int) -> Params:
    """The algorithm of FedKSeed in a loop over rounds, clients and steps, with all directions in memory."""
    run, first = key(seed), Objective(task, "cpu", key(seed)).initial()
    solver, network, at = KSeed(lr, steps, candidates, batch=8), task.model().double(), tensor(fold(run, "seeds"))
    z = [
        {
            name: direction("rademacher", at, torch.tensor(j), first[name].numel(), i).view(first[name].shape).double()
            for i, name in enumerate(sorted(first))
        }
        for j in range(candidates)
    ]

    def model(sums: Tensor) -> Params:
        return {name: t - lr * sum(sums[j] * z[j][name] for j in range(candidates)) for name, t in first.items()}

    sums = torch.zeros(candidates, dtype=torch.float64)
    for number in range(rounds):
        total, samples = torch.zeros_like(sums), 0
        for client in range(task.clients):
            mine, w = own_key(round_key(run, number), Clock(number, rounds, client)), model(sums)
            rows, own = torch.from_numpy(task.split.train(client)), torch.zeros(candidates)
            for step, batch in enumerate(solver.plan(len(rows), fold(mine, "batches"))):
                x, y = (each[rows[torch.from_numpy(batch)]] for each in (task.data.train.x, task.data.train.y))
                j = int(draws(tensor(fold(mine, "solver")), torch.tensor(step), 1)[0].double() * candidates)
                ends = [
                    torch.nn.functional.cross_entropy(
                        torch.func.functional_call(network, {n: w[n] + mu * z[j][n] for n in w}, (x,)), y
                    )
                    for mu in (1e-3, -1e-3)
                ]
                c = ((ends[0] - ends[1]) / 2e-3).detach()
                w, own[j] = {name: t - lr * c * z[j][name] for name, t in w.items()}, own[j] + c
            total += len(rows) * own.double()
            samples += len(rows)
        sums = sums + total / samples
    return model(sums)


def test_a_run_is_the_loop_of_its_paper() -> None:
    method = fedkseed(lr=0.01, steps=6, candidates=30, batch=8)
    found = weights(simulate(method, DOUBLE, rounds=3, seed=4, executor="one-by-one"))
    for name, expected in plain(0.01, 6, 30, DOUBLE, 3, 4).items():
        assert torch.allclose(found[name], expected, rtol=0, atol=1e-7)


def test_both_ways_take_the_same_few_bytes_for_any_model() -> None:
    record = simulate(fedkseed(steps=3, candidates=64), tiny_task(), rounds=1).metrics[0]
    assert record["bytes_down"]["down.sums"] == 5 * 4 * 64
    assert record["bytes_up"]["codec.scalars"] <= 5 * 4 * 3
    whole = simulate(fedkseed(steps=80, candidates=8), tiny_task(), rounds=1).metrics[0]
    assert whole["bytes_up"]["codec.scalars"] == 5 * 4 * 8


def exchange_of(method: Method) -> Any:
    return method.bind(Objective(tiny_task(), "cpu", key(0))).training


def test_a_client_that_was_away_has_the_bits_of_the_server() -> None:
    server, client = (exchange_of(fedkseed(steps=3, candidates=40)) for _ in range(2))
    state = server.init(server.context.network.initial())
    for number in range(4):
        acc = server.server.begin(state, {})
        scalars = torch.randn(40, generator=torch.Generator().manual_seed(number))
        ctx = Coding(Layout.of(server.outline), key(number))
        arrival = server.arrival(0, Part(), ctx, 10.0, {"scalars": scalars})
        state = server.server.finish(state, server.server.fold(acc, arrival), Clock(number, 4, 0))
    clock = Clock(4, 5, 2)
    sent = server.make_download(state, clock, key(9), GLOBAL, None, server.make_common(state, clock, key(9)))
    job = client.read_download(sent.data, {}, clock, key(9))
    assert all(torch.equal(job.models[0][name], state["params"][name]) for name in state["params"])
    assert not torch.equal(state["params"]["0.weight"], server.server.model.first["0.weight"])


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"sums": torch.zeros(39)}, "expected 40 float32 values named 'sums', got 39"),
        ({"sums": torch.full((40,), torch.nan)}, "not finite"),
        ({"sums": torch.ones(40)}, "the model of the sums is not that of the server"),
        ({"checksum": torch.zeros(2, dtype=torch.int64)}, "expected 1 int64 values named 'checksum'"),
        ({"other": torch.zeros(1)}, "unexpected array 'other'"),
    ],
)
def test_damaged_downloads_are_refused(changed: dict[str, Tensor], text: str) -> None:
    exchange = exchange_of(fedkseed(steps=3, candidates=40))
    state, layout = exchange.init(exchange.context.network.initial()), Layout.of(exchange.outline)
    sent = exchange.down.write(state, Clock(0, 1, 0), -1, [state["params"]], layout, key(0))
    with pytest.raises(PayloadError, match=text):
        exchange.down.read({**sent, **changed}, {}, layout, key(0), Clock(0, 1, 0), {})


@pytest.mark.parametrize("name", ["bitmap", "quotients", "remainders"])
def test_damaged_marks_of_used_directions_are_refused(name: str) -> None:
    codec = exchange_of(fedkseed(steps=3, candidates=40)).codec
    layout = Layout.of(exchange_of(fedkseed()).outline)
    scalars = torch.zeros(40)
    scalars[[3, 17]] = 1.0
    sent = codec.encode_carry({"scalars": scalars}, Coding(layout, key(0)))
    assert torch.equal(codec.to_sum(sent, Coding(layout, key(0))), scalars)
    assert len(sent["scalars"]) == 2
    with pytest.raises(PayloadError):
        codec.to_sum({**sent, name: torch.full((9,), 255, dtype=torch.uint8)}, Coding(layout, key(0)))
    with pytest.raises(PayloadError, match="got 1 float32"):
        codec.to_sum({**sent, "scalars": torch.ones(1)}, Coding(layout, key(0)))


@pytest.mark.parametrize(
    ("method", "text"),
    [
        (compose(Full(), ZerothOrder(), Seeds(10), SeedSums()), "SeedSums needs the scalars of fixed directions"),
        (compose(Full(), KSeed(), server=SeedSums()), "SeedSums needs the scalars of fixed directions"),
        (compose(Full(), KSeed(candidates=10), Seeds(10), down=SendSums()), "SendSums needs the server SeedSums"),
        (fedkseed(steps=1, candidates=10).with_parts(parametrization=Supermask()), "leave out the parametrization"),
    ],
)
def test_what_does_not_fit_is_refused(method: Method, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        simulate(method, tiny_task(), rounds=1)
