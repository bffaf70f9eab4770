"""EF21-PP: the server knows the mean of the clients' estimates, and compression is exact in the limit."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from gossamer import (
    EF21,
    SGD,
    Bernoulli,
    Dense,
    Full,
    Lossy,
    Mean,
    MeanOfEstimates,
    OnWeights,
    Options,
    Params,
    TopK,
    compose,
    ef21,
    simulate,
)
from gossamer.core import tree
from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import ConfigError
from gossamer.core.exchange import Arrival
from gossamer.core.method import Method
from gossamer.core.random import choice, fold, key, uniform
from gossamer.core.server import Server
from gossamer.core.types import Clock, Layout, Part, State
from gossamer.engines.simulation import Simulation
from gossamer.testing import tiny_task
from helpers.recorder import task as pictures

KEY = key(77)
CLIENTS, SIZE = 6, 8
Gradient = Callable[[int, Tensor], Tensor]


def quadratic() -> tuple[Gradient, Tensor]:
    """Clients with f_i(x) = |A_i (x - b_i)|^2 / 2 and different optima, and the optimum of their mean."""
    noise = uniform(KEY, CLIENTS * SIZE * SIZE, dtype=torch.float64).view(CLIENTS, SIZE, SIZE)
    hessians = noise.transpose(1, 2) @ noise / SIZE + torch.eye(SIZE, dtype=torch.float64)
    centres = 10 * uniform(fold(KEY, "b"), CLIENTS * SIZE, dtype=torch.float64).view(CLIENTS, SIZE) - 5
    best = torch.linalg.solve(hessians.mean(0), (hessians @ centres.unsqueeze(2)).mean(0)).squeeze(1)
    return lambda client, x: hessians[client] @ (x - centres[client]), best


def cohorts(rounds: int, size: int) -> list[list[int]]:
    return [choice(fold(KEY, "cohort", number), CLIENTS, size).tolist() for number in range(rounds)]


def run(codec: Codec, server: Server, lr: float, groups: list[list[int]], lost: float = 0.0) -> list[Tensor]:
    """The models after each round, with messages that are lost at random."""
    gradient, _ = quadratic()
    params: Params = {"w": torch.zeros(SIZE, 1, dtype=torch.float64)}
    layout = Layout.of(params)
    state, states, found = server.init(params), [codec.init(layout) for _ in range(CLIENTS)], []
    for number, cohort in enumerate(groups):
        acc, fates = server.begin(state, {}), uniform(fold(KEY, "fate", number), CLIENTS)
        for client in sorted(cohort):
            update = -lr * gradient(client, state["params"]["w"].view(-1))
            at = fold(KEY, number, client)
            payload, after = codec.encode_with(update, states[client], Coding(layout, at))
            delivered = bool(fates[client] >= lost)
            states[client] = codec.settle(after, delivered)
            if delivered:
                change = layout.unflatten(codec.decode(payload, Coding(layout, at)))
                acc = server.fold(acc, Arrival.of(client, Part(), change, 1.0))
        state = server.finish(state, acc, Clock(number, len(groups), 0))
        found.append(state["params"]["w"].view(-1))
    return found


def estimates(lr: float = 1.0) -> MeanOfEstimates:
    return MeanOfEstimates(server_lr=lr).filled(clients=CLIENTS)


def top(x: Tensor, k: int) -> Tensor:
    """The k largest entries, and zeros elsewhere."""
    kept = torch.zeros_like(x)
    at = x.abs().topk(k).indices
    kept[at] = x[at]
    return kept


def slow_ef21(lr: float, groups: list[list[int]], k: int) -> list[Tensor]:
    """Algorithm EF21-PP of the paper, with all g_i and their mean."""
    gradient, _ = quadratic()
    x, g = torch.zeros(SIZE, dtype=torch.float64), torch.zeros(CLIENTS, SIZE, dtype=torch.float64)
    found = []
    for cohort in groups:
        for client in cohort:
            g[client] = g[client] + top(gradient(client, x) - g[client], k)
        x = x - lr * g.mean(0)
        found.append(x)
    return found


@pytest.mark.parametrize("size", [CLIENTS, 2])
def test_it_is_the_algorithm_of_the_paper(size: int) -> None:
    groups = cohorts(30, size)
    wanted = slow_ef21(0.1, groups, 2)
    for new, old in zip(run(EF21(TopK(0.25)), estimates(), 0.1, groups), wanted, strict=True):
        assert torch.allclose(new, old, rtol=1e-9, atol=1e-12)


def test_it_converges_where_top_k_alone_stalls() -> None:
    _, best = quadratic()
    distance = float(best.norm())
    everyone, few = cohorts(100, CLIENTS), cohorts(250, 2)

    def left(models: list[Tensor]) -> float:
        return float((models[-1] - best).norm()) / distance

    assert left(run(TopK(0.125), Mean("uniform"), 0.3, everyone)) > 0.05
    assert left(run(EF21(TopK(0.125)), estimates(), 0.15, everyone)) < 1e-6
    assert left(run(EF21(TopK(0.125)), estimates(), 0.05, few)) < 1e-4
    assert left(run(EF21(TopK(0.125)), estimates(), 0.05, few, lost=0.3)) < 1e-3


def test_with_a_lossless_codec_it_is_gradient_descent() -> None:
    groups = cohorts(10, CLIENTS)
    for new, old in zip(
        run(EF21(Dense()), estimates(), 0.1, groups), run(Dense(), Mean("uniform"), 0.1, groups), strict=True
    ):
        assert torch.allclose(new, old, rtol=1e-9, atol=1e-12)


def simulated(method: Method, channel: Lossy) -> tuple[State, list[State]]:
    """The server's state and all clients' states after some rounds."""
    run = Simulation(method, pictures(), Options(rounds=4, per_round=3, seed=3, channel=channel))
    run.run(None, lambda record: None)
    return run.server, [run.clients.get(client) for client in range(5)]


def test_the_server_knows_the_mean_of_all_estimates() -> None:
    server, clients = simulated(ef21(share=0.2), Lossy(0.4))
    total = {name: torch.zeros_like(tensor) for name, tensor in server["estimate"].items()}
    for client in clients:
        for group in client.get("codec", {}).values():
            total = {n: t + group["estimate"][n] if n in group["estimate"] else t for n, t in total.items()}
    assert tree.norm(total) > 0
    for name, tensor in server["estimate"].items():
        assert torch.allclose(tensor, total[name] / 5, atol=1e-6), name
    assert not any(server["estimate"][name].any() for name in server["estimate"] if "running" in name)
    assert server["params"]["1.running_var"].std() > 0


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: compose(Full(), SGD(), TopK(), MeanOfEstimates()), "needs clients that send differences"),
        (lambda: compose(Bernoulli(), SGD(), OnWeights(EF21(TopK())), MeanOfEstimates()), "hold the whole model"),
        (lambda: compose(Full(), SGD(), EF21(TopK()), Mean()), "EF21 needs the server MeanOfEstimates"),
        (lambda: compose(Full(), SGD(), OnWeights(EF21(TopK())), Mean()), "EF21 needs the server MeanOfEstimates"),
        (lambda: MeanOfEstimates("samples"), "MeanOfEstimates.weights must be uniform"),
        (lambda: MeanOfEstimates(over="holders"), "MeanOfEstimates.over must be cohort"),
    ],
)
def test_codec_and_server_need_each_other(make: Callable[[], Method], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        simulate(make(), tiny_task(), rounds=1)
