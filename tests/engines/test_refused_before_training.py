"""What cannot be trained is refused before training, with what to do; and a run that diverges says so."""

import warnings
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from gossamer import METHODS, Method, Task, compose, simulate
from gossamer.core.errors import ConfigError
from gossamer.core.exchange import Context
from gossamer.engines.divergence import GROWN, DivergenceWarning, divergence
from gossamer.parts.servers import GradientSimilarity
from gossamer.parts.servers.gradient_similarity import MOST_PAIRS
from gossamer.parts.solvers import SGD
from gossamer.parts.views import Full, WidthSlice
from gossamer.runs.records import DIVERGES
from gossamer.runs.report.scores import ACCURACY
from gossamer.runs.report.summary import summarise
from gossamer.runs.report.tables import facts
from gossamer.testing import bound, tiny_task

CHOOSING = ["fedspa", "sub-fedavg", "fiarse", "fedpm", "klms"]
"""Methods that choose among the entries of each tensor."""

X, Y = torch.linspace(-1, 1, 240).view(60, 4), torch.arange(60) % 3


def task(model: Callable[[], nn.Module], y: Tensor = Y, x: Tensor = X) -> Task:
    return Task.of(model, (x, y), (x[:20], y[:20]), clients=3)


def run(method: Method, given: Task) -> None:
    simulate(method, given, rounds=1, executor="one-by-one")


@pytest.mark.parametrize(
    "model",
    [lambda: nn.LazyLinear(3), lambda: nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d(), nn.Linear(4, 3))],
)
def test_lazy_layers_are_refused(model: Callable[[], nn.Module]) -> None:
    with pytest.raises(ConfigError, match="has no size yet: write the sizes of its layers"):
        run(METHODS["fedavg"](), task(model))


class Hollow(nn.Module):
    """A network with a tensor without entries."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.none = nn.Linear(4, 3), nn.Parameter(torch.zeros(0, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.none.sum()


@pytest.mark.parametrize("name", CHOOSING)
def test_empty_tensors_are_refused_where_entries_are_chosen(name: str) -> None:
    with pytest.raises(ConfigError, match=r"the model's none has the shape \[0, 4\]: remove it"):
        run(METHODS[name](), task(Hollow))


@pytest.mark.parametrize("name", sorted(set(METHODS) - {*CHOOSING}))
def test_empty_tensors_are_trained_elsewhere(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(METHODS[name](), task(Hollow))


def test_labels_beyond_the_outputs_are_refused() -> None:
    with pytest.raises(ConfigError, match="the largest label is 2, but the model has 2 outputs"):
        run(METHODS["fedavg"](), task(lambda: nn.Linear(4, 2)))


class Tokens(nn.Module):
    """Scores of 5 tokens for each of 4 numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.table(x)


def test_labels_of_tokens_beyond_the_outputs_are_refused() -> None:
    x = torch.arange(240).view(60, 4) % 9
    run(METHODS["fedavg"](), Task.of(Tokens, (x, x % 5), (x, x % 5), clients=3, loss="cross_entropy"))
    y = x % 5
    y[-1, -1] = 7
    with pytest.raises(ConfigError, match="the largest label is 7, but the model has 5 outputs"):
        run(METHODS["fedavg"](), Task.of(Tokens, (x, y), (x, y), clients=3, loss="cross_entropy"))


class Many:
    """A network with so many clients."""

    def __init__(self, context: Context, clients: int) -> None:
        self._network, self.clients = context.network, clients

    def __getattr__(self, name: str) -> object:
        return getattr(self._network, name)


def test_a_weight_for_each_pair_of_too_many_clients_is_refused() -> None:
    """100,000 clients would take 80 GB."""
    exchange = bound(compose(Full(), SGD()).training)
    wide = WidthSlice((1.0, 0.5), order="static").bind(exchange.context)
    for server in (GradientSimilarity(complexity=1.0), GradientSimilarity(solve=3)):
        for clients, refused in ((MOST_PAIRS, False), (100_000, True)):
            context = Context(Many(exchange.context, clients), exchange.exchange, exchange.context.sampler)  # type: ignore[arg-type]
            unequal = Context(context.network, replace(exchange.exchange, view=wide), context.sampler)
            if refused:
                with pytest.raises(ConfigError, match="all pairs of 100,000 clients take 80 GB: give clusters=50"):
                    server.bind(unequal)
            else:
                assert server.bind(unequal).clusters is None


def test_by_default_so_many_clients_are_in_clusters() -> None:
    exchange = bound(compose(Full(), SGD()).training)
    context = Context(Many(exchange.context, 100_000), exchange.context.exchange, exchange.context.sampler)  # type: ignore[arg-type]
    assert GradientSimilarity().bind(context).clusters == 50


# Divergence.


def records(*values: float | None) -> list[dict[str, object]]:
    return [{"round": at + 1, **({} if value is None else {"accuracy": value})} for at, value in enumerate(values)]


def sized(value: float) -> dict[str, Tensor]:
    return {"w": torch.tensor([0.0, -value])}


@pytest.mark.parametrize(
    ("values", "size", "diverges"),
    [
        ((0.1, 0.1), 2 * GROWN, True),
        ((0.1, None, 0.05), 2 * GROWN, True),
        ((0.1, 0.2), 2 * GROWN, False),
        ((0.1, 0.1), GROWN, False),
        ((0.1,), 1e9, False),
        ((0.1, 0.5, 0.1), 1e9, True),
    ],
)
def test_a_run_diverges_if_weights_explode_and_nothing_is_learned(
    values: tuple[float | None, ...], size: float, diverges: bool
) -> None:
    found = divergence(records(*values), ACCURACY, [sized(0.5), sized(size)])
    assert (found is not None) == diverges
    if found:
        assert "training diverges" in found
        assert "use a smaller learning rate" in found


@pytest.mark.parametrize(
    ("losses", "diverges"),
    [((2.0, 0.5), False), ((2.0, 2.0), True), ((2.0, 3e11), True), ((2.0, None), True), ((None, None), False)],
)
def test_a_run_that_begins_below_chance_diverges_if_its_loss_grows(
    losses: tuple[float | None, float | None], diverges: bool
) -> None:
    first, later = {"accuracy": 0.01, "loss": losses[0]}, {"accuracy": 0.1, "loss": losses[1]}
    assert (divergence([first, later], ACCURACY, [sized(0.5), sized(1e9)]) is not None) == diverges


def test_a_run_with_a_huge_learning_rate_says_so_once() -> None:
    with pytest.warns(DivergenceWarning, match="training diverges") as caught:
        result = simulate(METHODS["fedavg"](lr=1e4, steps=5), tiny_task(4), rounds=4, executor="one-by-one")
    assert len([each for each in caught if each.category is DivergenceWarning]) == 1
    (text,) = [record[DIVERGES] for record in result.metrics if DIVERGES in record]
    assert ("warning", text) in facts(summarise(result.about, result.metrics))
