"""One table of all parts: each keeps the contract of its kind. Whoever adds a part adds a row, or this fails."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gossamer
from gossamer import codecs, forms, methods, samplers, servers, solvers, views
from gossamer.capacity import Room
from gossamer.channels import CHANNELS as ALL_CHANNELS
from gossamer.channels import Channel, Lossy, Perfect, Wireless
from gossamer.codecs import (
    CODECS,
    Codec,
    Dense,
    Feedback,
    Lift,
    MaskedNoise,
    Retain,
    SampledMask,
    StochasticSign,
    TopK,
)
from gossamer.fleet import Device, Fleet
from gossamer.forms import Form, Supermask, Weights
from gossamer.methods import (
    METHODS,
    Clusters,
    FedDyn,
    FedDynSGD,
    FedNova,
    FedNovaSGD,
    Scaffold,
    ScaffoldSGD,
    ServerOptimizer,
    fedavg,
)
from gossamer.samplers import BySize, PowerOfChoice, RoundRobin, Sampler, Uniform
from gossamer.servers import Average, CodedMean, Compare, MaskAverage, Mean, Server, Shuffle, WarmUp
from gossamer.servers.listen import Listen
from gossamer.solvers import (
    SCHEDULES,
    SGD,
    Adam,
    Ditto,
    NotingSGD,
    PerFedAvg,
    PFedMe,
    Probe,
    PruningSGD,
    Solver,
)
from gossamer.solvers.loss_probe import LossProbe
from gossamer.testing import (
    check_channel,
    check_codec,
    check_method,
    check_sampler,
    check_server,
    check_solver,
    check_value,
    check_view,
)
from gossamer.views import Bernoulli, Channels, Full, Magnitude, Personal, Pruned, PrunedChannels, View, Windows
from recorder import task as pictures

FLEET = Fleet((Device("phone", 5, None, 1e9),))

ALL_CODECS: list[Codec] = [
    *(codec() for codec in CODECS.values()),
    Dense("bfloat16"),
    StochasticSign(0.01),
    MaskedNoise(signed=True, noise="bernoulli", coded=True),
    SampledMask(),
    Lift(MaskedNoise()),
    Lift(Feedback(TopK(0.1)), each=True, least=0),
    Feedback(TopK(0.1)),
    Retain(Dense(), accumulate=True),
]
VIEWS: list[View] = [
    Full(),
    Bernoulli(),
    Bernoulli((1.0, 0.2), drawn=True, least=1),
    Windows(),
    Windows(least=1),
    Channels(),
    Channels((1.0, 0.3), drawn=True, order="random", streams=False),
    Channels((Room(20_000),), order="static"),
    Channels(order="shuffled", places=4, seed=3),
    Magnitude(),
    Magnitude((0.2, 0.8), by="tensor", rise=3),
    Personal(),
    Personal(own_init=True, regrow="random", init="uniform"),
    Pruned(share=0.3, distance=0.0, accuracy=0.0),
    PrunedChannels(share=0.3, distance=0.0, accuracy=0.0, channel_share=0.3, channel_distance=0.0),
]
SOLVERS: list[tuple[Solver, Server]] = [
    (SGD(), Mean()),
    (SGD(momentum=0.9, clip=1.0), Mean()),
    (SGD(steps=3, batch=None, weight_decay=0.1, proximal=0.1), Mean()),
    (Adam(), Mean()),
    (NotingSGD(), Mean()),
    (PruningSGD(), Mean()),
    (Ditto(), Mean()),
    (PerFedAvg(), Mean()),
    (PFedMe(), Mean()),
    (Probe(), Mean()),
    (Probe(batch=4, noise=False), Mean()),
    (LossProbe(), Listen()),
    (FedDynSGD(), FedDyn()),
    (FedNovaSGD(momentum=0.9), FedNova()),
    (ScaffoldSGD(), Scaffold()),
]
SERVERS: list[tuple[Server, Solver]] = [
    (Mean(), SGD()),
    (Mean("batches", radius=1.0), SGD()),
    (Mean("uniform", over="holders", step=0.5), SGD()),
    (Average(), SGD()),
    (MaskAverage(), SGD()),
    (CodedMean(), SGD()),
    (Compare(), Probe()),
    (Compare(lr=0.0, once=0), Probe()),
    (Compare(keep=2, sketch=8), Probe()),
    (Shuffle(), SGD()),
    (Shuffle(largest=2.0, radius=1.0), SGD()),
    (WarmUp(), SGD()),
    (WarmUp(rounds=3), SGD()),
    (Listen(), LossProbe()),
    (Clusters(), SGD()),
    (FedDyn(), FedDynSGD()),
    (FedNova(), FedNovaSGD()),
    (Scaffold(), ScaffoldSGD()),
    *((ServerOptimizer(rule=rule), SGD()) for rule in ("momentum", "adagrad", "adam", "yogi")),
]
SAMPLERS: list[Sampler] = [Uniform(), BySize(), RoundRobin(), PowerOfChoice(), PowerOfChoice(candidates=1)]
CHANNELS: list[Channel] = [Perfect(), Lossy(0.3), Wireless(FLEET)]
FORMS: list[Form] = [Weights(), Supermask()]
SMALLER = {"pfedme": {"steps": 4, "inner_steps": 2}}
"""What keeps a method's runs short that would take long."""

INSIDE = {"Around", "Plain", "Forgetful", "Models", "OwnModels"}
"""Parts that nobody configures: what others extend, or the library puts around another."""


def parts(kind: type) -> Iterator[type]:
    """All parts of a kind that the library has and that one can configure."""
    for package in (codecs, views, solvers, servers, samplers, methods, forms):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("_triton"):
                importlib.import_module(module.name)
    waiting = [kind]
    while waiting:
        found = waiting.pop()
        waiting += found.__subclasses__()
        bound = found.__name__.startswith("Bound")
        if found.__module__.startswith(f"{gossamer.__name__}.") and not inspect.isabstract(found) and not bound:
            yield found


@pytest.mark.parametrize(
    ("kind", "rows"),
    [
        (Codec, ALL_CODECS),
        (View, VIEWS),
        (Solver, [solver for solver, _ in SOLVERS]),
        (Server, [server for server, _ in SERVERS]),
        (Sampler, SAMPLERS),
    ],
    ids=["codecs", "views", "solvers", "servers", "samplers"],
)
def test_no_part_is_missing(kind: type, rows: Iterable[Any]) -> None:
    assert {part.__name__ for part in parts(kind)} - INSIDE == {type(part).__name__ for part in rows}


def test_no_channel_and_no_form_is_missing() -> None:
    assert {*ALL_CHANNELS.values()} == {type(channel) for channel in CHANNELS}
    assert {*forms.__all__} - {"Form"} == {type(form).__name__ for form in FORMS}


@pytest.mark.parametrize("codec", ALL_CODECS, ids=repr)
def test_codecs(codec: Codec) -> None:
    check_codec(codec)


@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_views(view: View) -> None:
    check_view(view, pictures())


@pytest.mark.parametrize(("solver", "server"), SOLVERS, ids=repr)
def test_solvers(solver: Solver, server: Server) -> None:
    check_solver(solver, server)


@pytest.mark.parametrize(("server", "solver"), SERVERS, ids=repr)
def test_servers(server: Server, solver: Solver) -> None:
    check_server(server, solver)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=repr)
def test_samplers(sampler: Sampler) -> None:
    check_sampler(sampler)


@pytest.mark.parametrize("channel", CHANNELS, ids=repr)
def test_channels(channel: Channel) -> None:
    check_channel(channel)


@pytest.mark.parametrize("form", FORMS, ids=repr)
def test_forms(form: Form) -> None:
    check_value(form)


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str, tmp_path: Path) -> None:
    check_method(METHODS[name](**SMALLER.get(name, {})), tmp_path)


@pytest.mark.parametrize("sampler", [BySize(), RoundRobin(), PowerOfChoice(candidates=4)], ids=repr)
def test_methods_with_other_samplers(sampler: Sampler, tmp_path: Path) -> None:
    check_method(fedavg(epochs=1).with_parts(sampler=sampler), tmp_path)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str) -> None:
    given = {"exponential": (0.9,), "steps": ((2, 4),)}.get(name, ())
    schedule = SCHEDULES[name](*given)
    check_value(schedule)
    assert schedule.factor(0, 10) == 1
    assert all(0 <= schedule.factor(r, 10) <= 1 for r in range(10))
