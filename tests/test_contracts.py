"""Each part of the library keeps the contract of its kind.

Registered codecs, samplers, channels, schedules and methods are checked with their defaults: a new one needs its file
and its line in the registry, and none here. Lists below add other configurations, and the parts without a registry.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gossamer
from gossamer import methods
from gossamer.fleet.capacity import Room
from gossamer.fleet.fleet import Device, Fleet, Span
from gossamer.methods import (
    EF21,
    METHODS,
    Clusters,
    FedDyn,
    FedDynSGD,
    FedNova,
    FedNovaSGD,
    MeanOfEstimates,
    Scaffold,
    ScaffoldSGD,
    ServerOptimizer,
    fedavg,
)
from gossamer.parts import codecs, parametrizations, samplers, servers, solvers, views
from gossamer.parts.adapters.lora import LoRA
from gossamer.parts.channels import CHANNELS as ALL_CHANNELS
from gossamer.parts.channels import Channel, FleetLinks, Lossy, Perfect, Wireless
from gossamer.parts.codecs import (
    CODECS,
    KLMS,
    Codec,
    CommonMaskedNoise,
    Dense,
    DenseMaskedNoise,
    DiscreteGaussian,
    Eden,
    Feedback,
    FixedPoint,
    LocalGaussian,
    MaskedNoise,
    NoisySign,
    OnWeights,
    PoissonBinomial,
    Retain,
    SampledMask,
    Seeds,
    Skellam,
    StochasticSign,
    Ternary,
    TopK,
)
from gossamer.parts.parametrizations import Parametrization, Supermask, Weights
from gossamer.parts.samplers import SAMPLERS, PowerOfChoice, Sampler
from gossamer.parts.secure.secagg import SecAgg
from gossamer.parts.servers import (
    AdapterMean,
    AdaptiveClip,
    Average,
    Bucketing,
    CenteredClipping,
    Clip,
    GeometricMedian,
    GradientSimilarity,
    Hiso,
    Krum,
    MajorityAverage,
    MaskAverage,
    Mean,
    Median,
    ModelRotation,
    MultiKrum,
    PrivateMean,
    PrunedAverage,
    Robust,
    SeedSums,
    Server,
    Stacking,
    SumThenDecode,
    TreeMean,
    TrimmedMean,
    WarmUp,
)
from gossamer.parts.servers.mean import Listen
from gossamer.parts.solvers import (
    DPSGD,
    LR_SCHEDULES,
    SGD,
    Adam,
    Ditto,
    GradientProbe,
    KSeed,
    PerFedAvg,
    PFedMe,
    PruningSGD,
    ScaledZerothOrder,
    SnapshotSGD,
    Solver,
    SparseSGD,
    ThresholdSGD,
    ZerothOrder,
)
from gossamer.parts.solvers.probes import LossProbe
from gossamer.parts.views import (
    Bernoulli,
    Full,
    LargestWeights,
    MagnitudePruned,
    PersonalMask,
    Pruned,
    PrunedChannels,
    RankSlice,
    View,
    WidthSlice,
    Windows,
)
from gossamer.testing import (
    check_channel,
    check_codec,
    check_method,
    check_sampler,
    check_server,
    check_solver,
    check_value,
    check_view,
    tiny_task,
)
from helpers.recorder import task as pictures

FLEET = Fleet((Device("phone", 5, None, 1e9),))
LINES = Fleet((Device("phone", 5, None, 1e9, up=1e6, down=Span(1e6, 1e7), latency=0.05, loss=0.5),))
RADIO = Fleet((Device("phone", 5, None, 1e9, down_bandwidth=2e7, receive_power=0.1),))

ALL_CODECS: list[Codec] = [
    *(codec() for codec in CODECS.values()),
    Dense("bfloat16"),
    StochasticSign(0.01),
    NoisySign(0.3, "uniform"),
    Ternary(scale=0.5),
    FixedPoint(5),
    FixedPoint(13, 2.0),
    MaskedNoise(signed=True, noise="bernoulli", coded=True),
    SampledMask(coded=True),
    Eden(2, coded=True),
    KLMS(),
    Seeds(),
    Seeds(4, "gauss", "bfloat16"),
    MaskedNoise(alpha=0.01),
    DenseMaskedNoise(MaskedNoise(alpha=0.01)),
    CommonMaskedNoise(noise="bernoulli"),
    OnWeights(CommonMaskedNoise(True, "uniform", 0.5)),
    OnWeights(MaskedNoise()),
    OnWeights(Feedback(TopK(0.1)), per_tensor=True, min_dim=0),
    Feedback(TopK(0.1)),
    EF21(TopK(0.1)),
    OnWeights(EF21(TopK(0.1)), min_dim=0),
    Retain(Dense(), accumulate=True),
    PoissonBinomial(theta=0.4, trials=5),
    LocalGaussian(clip=100.0, noise_multiplier=0.001, codec=Eden(2)),
]
ADAPTED = tiny_task().adapted(LoRA(4, merges=True))
"""A task with low-rank adapters."""

VIEWS: list[View] = [
    Full(),
    Bernoulli(),
    Bernoulli((1.0, 0.2), drawn=True, min_dim=1),
    Windows(),
    Windows(min_dim=1),
    WidthSlice(),
    WidthSlice((1.0, 0.3), drawn=True, order="random", streams=False),
    WidthSlice((Room(20_000),), order="static"),
    WidthSlice(order="shuffled", offsets=4, seed=3),
    LargestWeights(),
    LargestWeights((0.2, 1.0), drawn=True, by="tensor"),
    RankSlice(),
    RankSlice((0.25, 1.0), drawn=True, down="whole"),
    MagnitudePruned(),
    MagnitudePruned((0.2, 0.8), by="tensor", rise=3),
    PersonalMask(),
    PersonalMask(own_init=True, regrow="random", init="uniform"),
    Pruned(share=0.3, distance=0.0, accuracy=0.0),
    PrunedChannels(share=0.3, distance=0.0, accuracy=0.0, channel_share=0.3, channel_distance=0.0),
]
SOLVERS: list[tuple[Solver, Server]] = [
    (SGD(), Mean()),
    (SGD(momentum=0.9, clip=1.0), Mean()),
    (SGD(steps=3, batch=None, weight_decay=0.1, proximal=0.1), Mean()),
    (Adam(), Mean()),
    (DPSGD(), Mean()),
    (DPSGD(steps=3, batch=None, momentum=0.9, clip=0.1), Mean()),
    (ZerothOrder(), Mean()),
    (ZerothOrder(steps=2, difference="forward", directions="gauss", clip=0.1), Mean()),
    (KSeed(candidates=5), Mean()),
    (ScaledZerothOrder(steps=2), Hiso()),
    (SnapshotSGD(), Mean()),
    (PruningSGD(), Mean()),
    (SparseSGD(), MajorityAverage()),
    (SparseSGD(local=False, momentum=0.9), PrunedAverage()),
    (ThresholdSGD(), Mean()),
    (ThresholdSGD(by="tensor", momentum=0.9), Mean()),
    (Ditto(), Mean()),
    (PerFedAvg(), Mean()),
    (PFedMe(), Mean()),
    (GradientProbe(), Mean()),
    (GradientProbe(batch=4, noise=False), Mean()),
    (LossProbe(), Listen()),
    (FedDynSGD(), FedDyn()),
    (FedNovaSGD(momentum=0.9), FedNova()),
    (ScaffoldSGD(), Scaffold()),
]
SERVERS: list[tuple[Server, Solver]] = [
    (Mean(), SGD()),
    (Mean("batches", radius=1.0), SGD()),
    (Mean("uniform", over="holders", server_lr=0.5), SGD()),
    (AdapterMean(), SGD()),
    (Stacking("uniform"), SGD()),
    (Average(), SGD()),
    (MaskAverage(), SGD()),
    (MeanOfEstimates(), SGD()),
    (MajorityAverage(), SparseSGD()),
    (PrunedAverage(), SparseSGD(local=False)),
    (SumThenDecode(), SGD()),
    (SeedSums(), KSeed(candidates=5)),
    (Hiso(smoothing=0.5), ScaledZerothOrder()),
    (GradientSimilarity(), GradientProbe()),
    (GradientSimilarity(lr=0.0, once=0), GradientProbe()),
    (GradientSimilarity(keep=2, sketch=8), GradientProbe()),
    (ModelRotation(), SGD()),
    (ModelRotation(largest=2.0, radius=1.0), SGD()),
    (WarmUp(), SGD()),
    (WarmUp(rounds=3), SGD()),
    (Listen(), LossProbe()),
    (Clusters(), SGD()),
    (FedDyn(), FedDynSGD()),
    (FedNova(), FedNovaSGD()),
    (Scaffold(), ScaffoldSGD()),
    *((ServerOptimizer(rule=rule), SGD()) for rule in ("momentum", "adagrad", "adam", "yogi")),
    *((Robust(rule), SGD()) for rule in (Clip(), Clip(0.1), Median(), TrimmedMean(0.4), GeometricMedian(), Krum(1))),
    (Robust(CenteredClipping(), Mean(over="holders", server_lr=0.5)), SGD()),
    (Robust(Bucketing(2, MultiKrum(1)), ServerOptimizer()), SGD()),
    (PrivateMean(), SGD()),
    (PrivateMean(ServerOptimizer("uniform"), AdaptiveClip(), clip=0.1, noise_multiplier=2.0), SGD()),
    (TreeMean(), SGD()),
    (TreeMean(honaker=False), SGD()),
    (TreeMean(0.5, 0.9, restart_every=2), SGD()),
]
SUMMED: tuple[Codec, ...] = (DiscreteGaussian(), Skellam())
"""Codecs that need secure aggregation. Entries of 0.05 make vectors that they do not clip."""

PAIRED: dict[Codec, Server] = {codec: MeanOfEstimates() for codec in ALL_CODECS if "EF21" in repr(codec)}
"""Servers of the codecs that need a specific one."""

ALL_SAMPLERS: list[Sampler] = [*(sampler() for sampler in SAMPLERS.values()), PowerOfChoice(candidates=1)]
CHANNELS: list[Channel] = [Perfect(), Lossy(0.3), Wireless(FLEET), Wireless(RADIO, retries=2)]
CHANNELS += [FleetLinks(RADIO), FleetLinks(LINES, retries=1)]
PARAMETRIZATIONS: list[Parametrization] = [Weights(), Supermask()]
SMALLER = {"pfedme": {"steps": 4, "inner_steps": 2}}
"""Arguments that keep the runs of slow methods short."""

INSIDE = {"Models"}
"""Parts that are not configured: base classes, and wrappers that the library adds on its own."""


def parts(kind: type) -> Iterator[type]:
    """All concrete parts of a kind in the library."""
    for package in (codecs, views, solvers, servers, samplers, methods):
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
        (Sampler, ALL_SAMPLERS),
    ],
    ids=["codecs", "views", "solvers", "servers", "samplers"],
)
def test_no_part_is_missing(kind: type, rows: Iterable[Any]) -> None:
    assert {part.__name__ for part in parts(kind)} - INSIDE == {type(part).__name__ for part in rows}


def test_no_channel_and_no_parametrization_is_missing() -> None:
    assert {*ALL_CHANNELS.values()} == {type(channel) for channel in CHANNELS}
    public = {*vars(parametrizations)["__all__"]}
    assert public - {"Parametrization"} == {type(parametrization).__name__ for parametrization in PARAMETRIZATIONS}


@pytest.mark.parametrize("codec", ALL_CODECS, ids=repr)
def test_codecs(codec: Codec) -> None:
    if codec in SUMMED:
        check_codec(codec, size=0.05, server=SumThenDecode("uniform"), secure=SecAgg())
    else:
        check_codec(codec, server=PAIRED.get(codec))


@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_views(view: View) -> None:
    check_view(view, ADAPTED if isinstance(view, RankSlice) else pictures())


@pytest.mark.parametrize(("solver", "server"), SOLVERS, ids=repr)
def test_solvers(solver: Solver, server: Server) -> None:
    check_solver(solver, server, Seeds(solver.span.size) if isinstance(solver, ScaledZerothOrder) else None)


@pytest.mark.parametrize(("server", "solver"), SERVERS, ids=repr)
def test_servers(server: Server, solver: Solver) -> None:
    paired = next((codec for codec, paired in PAIRED.items() if paired == server), None)
    codec = Seeds(solver.span.size) if solver.span else paired
    check_server(server, solver, codec, ADAPTED if isinstance(server, AdapterMean | Stacking) else None)


def test_parts_with_noise_from_the_operating_system() -> None:
    check_solver(DPSGD(batch=4), secure_noise=True)
    for server in (PrivateMean(), TreeMean(), TreeMean(0.5, 0.9, restart_every=2)):
        check_server(server, secure_noise=True)


@pytest.mark.parametrize("sampler", ALL_SAMPLERS, ids=repr)
def test_samplers(sampler: Sampler) -> None:
    check_sampler(sampler)


@pytest.mark.parametrize("channel", CHANNELS, ids=repr)
def test_channels(channel: Channel) -> None:
    check_channel(channel)


@pytest.mark.parametrize("parametrization", PARAMETRIZATIONS, ids=repr)
def test_parametrizations(parametrization: Parametrization) -> None:
    check_value(parametrization)


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str, tmp_path: Path) -> None:
    check_method(METHODS[name](**SMALLER.get(name, {})), tmp_path)


@pytest.mark.parametrize("sampler", [*ALL_SAMPLERS, PowerOfChoice(candidates=4)], ids=repr)
def test_a_method_with_every_sampler(sampler: Sampler, tmp_path: Path) -> None:
    check_method(fedavg(epochs=1).with_parts(sampler=sampler), tmp_path)


@pytest.mark.parametrize("name", LR_SCHEDULES)
def test_schedules(name: str) -> None:
    given: tuple[Any, ...] = {"exponential": (0.9,), "steps": ((2, 4),)}.get(name, ())
    schedule = LR_SCHEDULES[name](*given)
    check_value(schedule)
    assert schedule.factor(0, 10) == 1
    assert all(0 <= schedule.factor(r, 10) <= 1 for r in range(10))
