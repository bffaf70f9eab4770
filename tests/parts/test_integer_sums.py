"""Sums of whole numbers: codecs whose payloads add up, and servers that need only the sum."""

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.bound import BoundExchange, received
from gossamer.core.codec import Codec, Coding, centred
from gossamer.core.exchange import Arrival
from gossamer.core.random import fold, key, uniform
from gossamer.core.secure import SumSegment
from gossamer.core.types import Clock, Layout, Params, Part, Payload, State
from gossamer.methods import Clusters, FedDyn, FedNova, MeanOfEstimates, Scaffold, ServerOptimizer, compose
from gossamer.parts.codecs import (
    KLMS,
    QSGD,
    CommonMaskedNoise,
    Dense,
    Drive,
    Eden,
    Feedback,
    FixedPoint,
    Int8,
    MaskedNoise,
    NoisySign,
    OneBit,
    OnWeights,
    Retain,
    SampledMask,
    Sparse,
    StochasticSign,
    Subsample,
    Ternary,
    TopK,
)
from gossamer.parts.servers import (
    Average,
    GradientSimilarity,
    MajorityAverage,
    MaskAverage,
    Mean,
    Median,
    ModelRotation,
    PrunedAverage,
    Robust,
    Server,
    SumThenDecode,
    WarmUp,
)
from gossamer.parts.servers.mean import Listen, Sum, WeightedMean
from gossamer.parts.solvers import SGD
from gossamer.parts.views import Full
from gossamer.testing import bound

KEY, CLIENTS = key(11), 7
MODEL: Params = {"fc.bias": torch.zeros(5), "fc.weight": torch.zeros(5, 13), "out.weight": torch.zeros(3, 5)}
LAYOUT = Layout.of(MODEL)

SUMMABLE: list[Codec] = [
    StochasticSign(0.3),
    NoisySign(0.2),
    NoisySign(0.2, "uniform"),
    Ternary(True, 0.3),
    Ternary(False, 0.3),
    OneBit(0.5, length=2.0),
    OneBit(length=2.0, retain="change", scaling="linear"),
    CommonMaskedNoise(alpha=0.3),
    CommonMaskedNoise(True, "uniform", 0.3, coded=False),
    SampledMask(),
    SampledMask(coded=True),
    KLMS(),
    FixedPoint(),
    FixedPoint(2, 0.3),
    FixedPoint(8),
    FixedPoint(11),
    Feedback(StochasticSign(0.3)),
    Retain(Ternary(scale=0.3)),
    OnWeights(StochasticSign(0.3), True, other=FixedPoint()),
    OnWeights(Feedback(Ternary(scale=0.3)), other=FixedPoint(8)),
    OnWeights(CommonMaskedNoise(alpha=0.3), other=FixedPoint()),
    OnWeights(OneBit(0.5, length=2.0, retain="change"), other=FixedPoint()),
]
LINEAR = [codec for codec in SUMMABLE if "OneBit" not in repr(codec)]

UNSUMMABLE: list[tuple[Codec, str]] = [
    (Dense(), "Dense sends floats"),
    (Sparse(), "Sparse sends floats"),
    (TopK(), "TopK sends floats"),
    (Subsample(), "Subsample sends floats"),
    (StochasticSign(), "StochasticSign(scale='max') measures a scale"),
    (StochasticSign("norm"), "StochasticSign(scale='norm') measures a scale"),
    (Ternary(), "Ternary() measures a scale"),
    (QSGD(), "QSGD sends floats"),
    (Int8(), "Int8 sends floats"),
    (Drive(), "Drive sends floats"),
    (Eden(), "Eden sends floats"),
    (MaskedNoise(), "MaskedNoise sends floats"),
    (OneBit(), "OneBit() sends the norm"),
    (OneBit(length=1.0, retain="signs", fresh=False), "OneBit(retain='signs') can send two signs"),
    (Feedback(TopK()), "TopK sends floats"),
    (OnWeights(StochasticSign(0.3)), "biases, norms and statistics: Dense sends floats"),
    (OnWeights(TopK(), other=FixedPoint()), "TopK sends floats"),
]


def vectors(dtype: torch.dtype = torch.float32, count: int = CLIENTS) -> list[Tensor]:
    return [(uniform(fold(KEY, "x", n), LAYOUT.size, dtype=torch.float64) * 0.8 - 0.4).to(dtype) for n in range(count)]


def encoded(codec: Codec, count: int = CLIENTS, layout: Layout = LAYOUT) -> list[Payload]:
    """Return the payloads of several clients, with their own draws."""
    sent = []
    for client, x in enumerate(vectors(layout.dtype, count)):
        sent.append(codec.encode(x, Coding(layout, at(codec, client), client=client)))
    return sent


def at(codec: Codec, client: int) -> Any:
    return fold(KEY, "round") if codec.common else fold(KEY, "client", client)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("codec", SUMMABLE, ids=repr)
def test_vectors_of_clients_are_whole_numbers_within_the_limits(codec: Codec, dtype: torch.dtype) -> None:
    layout = Layout(LAYOUT.shapes, dtype)
    assert codec.unsummable() == ""
    segments = codec.sum_segments(layout)
    assert sum(segment.size for segment in segments) == codec.sum_size(layout)
    assert min(segment.limit for segment in segments) > 0
    limits = torch.cat([torch.full((segment.size,), segment.limit) for segment in segments])
    for client, payload in enumerate(encoded(codec, layout=layout)):
        found = codec.to_sum(payload, Coding(layout, at(codec, client)))
        assert found.dtype == dtype
        assert found.shape == limits.shape
        assert torch.equal(found, found.round())
        assert bool((found >= 0).all())
        assert bool((found <= limits).all())


@pytest.mark.parametrize("codec", SUMMABLE, ids=repr)
def test_a_decoded_vector_is_that_of_its_own_sum(codec: Codec) -> None:
    for client, payload in enumerate(encoded(codec)):
        own = at(codec, client)
        found = codec.from_sum(codec.to_sum(payload, Coding(LAYOUT, own)).double(), Coding(LAYOUT, own))
        torch.testing.assert_close(found.float(), codec.decode(payload, Coding(LAYOUT, own)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("codec", LINEAR, ids=repr)
def test_the_decoded_mean_of_sums_is_the_mean_of_decoded_vectors(codec: Codec) -> None:
    sent = [(payload, at(codec, client)) for client, payload in enumerate(encoded(codec))]
    total = sum(codec.to_sum(payload, Coding(LAYOUT, own)).long() for payload, own in sent)
    wanted = torch.stack([codec.decode(payload, Coding(LAYOUT, own)) for payload, own in sent]).double().mean(0)
    assert isinstance(total, Tensor)
    for _, own in sent:  # with the key of any client
        found = codec.from_sum(total.double() / CLIENTS, Coding(LAYOUT, own)).double()
        assert torch.allclose(found, wanted, rtol=1e-6, atol=1e-6)


def test_weights_and_biases_have_segments_of_their_own() -> None:
    codec = OnWeights(StochasticSign(0.3), per_tensor=True, other=FixedPoint(8))
    assert codec.sum_segments(LAYOUT) == (SumSegment(80, 1), SumSegment(5, 254))  # two matrices, then the bias
    assert OnWeights(StochasticSign(0.3)).sum_segments(LAYOUT) == ()
    assert OnWeights(StochasticSign(0.3)).sum_segments(LAYOUT.only(["fc.weight"])) == (SumSegment(65, 1),)


@pytest.mark.parametrize(("codec", "reason"), UNSUMMABLE, ids=repr)
def test_other_codecs_say_why_they_do_not_add_up(codec: Codec, reason: str) -> None:
    assert codec.sum_segments(LAYOUT) == ()
    assert codec.unsummable().startswith(reason)
    assert "use " in codec.unsummable()


def test_signs_with_a_measured_scale_are_still_averaged_as_decoded_vectors() -> None:
    for codec in (StochasticSign(), Ternary()):
        payload = codec.encode(vectors()[0], Coding(LAYOUT, KEY))
        assert torch.equal(codec.to_sum(payload, Coding(LAYOUT, KEY)), codec.decode(payload, Coding(LAYOUT, KEY)))
        assert torch.equal(codec.from_sum(vectors()[1], Coding(LAYOUT, KEY)), vectors()[1])


def test_a_fixed_scale_of_trits_is_not_sent_and_clips() -> None:
    codec, x = Ternary(False, 0.1), torch.full((LAYOUT.size,), 5.0)
    payload = codec.encode(x, Coding(LAYOUT, KEY))
    assert payload.keys() == {"trits"}
    assert not codec.unbiased
    assert torch.equal(codec.decode(payload, Coding(LAYOUT, KEY)), torch.full_like(x, 0.1))
    small = torch.full((40_000,), 0.03)
    long = Layout.of({"w": small})
    mean = codec.decode(codec.encode(small, Coding(long, KEY)), Coding(long, KEY)).mean()
    assert abs(float(mean) - 0.03) < 4 * 0.1 * (0.3 * 0.7 / 40_000) ** 0.5


def test_opposite_updates_are_opposite_when_they_are_compared() -> None:
    codec = OnWeights(StochasticSign(1e-6), other=FixedPoint())
    x = vectors()[0]
    one, other = (codec.to_sum(codec.encode(sign * x, Coding(LAYOUT, KEY)), Coding(LAYOUT, KEY)) for sign in (1, -1))
    both = [centred(vector, codec.sum_segments(LAYOUT)) for vector in (one, other)]
    assert torch.allclose(both[0], -both[1], atol=1e-4)
    assert float(both[0].abs().max()) == 1
    assert centred(x, Dense().sum_segments(LAYOUT)) is x


# Servers.

SUM_SERVERS: list[Server] = [
    Mean("uniform", server_lr=0.5),
    Mean("uniform", over="holders"),
    Average("uniform"),
    MaskAverage("uniform"),
    SumThenDecode("uniform"),
    ServerOptimizer("uniform", rule="adam"),
    ServerOptimizer("uniform", rule="momentum"),
]
OTHER_SERVERS: list[Server] = [
    Clusters(),
    FedDyn(),
    FedNova(),
    Scaffold(),
    MeanOfEstimates(),
    WarmUp(),
    PrunedAverage(),
    MajorityAverage(),
    ModelRotation(),
    GradientSimilarity(),
    Robust(Median()),
    Listen(),
]


@dataclass(frozen=True)
class Undeclared(WeightedMean):
    """A mean that declares nothing."""

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        return self.moved(state, acc)


def exchange(server: Server, codec: Codec) -> BoundExchange:
    """Return an exchange with a small network. Clients send models to servers that average them."""
    send: Any = "model" if isinstance(server, Average) else "change"
    return bound(compose(Full(), SGD(), codec, server, send=send).training)


def arrivals(found: BoundExchange, part: Part) -> list[Arrival]:
    """Return the uploads of several clients with the same part."""
    outline, device = found.context.network.initial(), torch.device("cpu")
    layout, clock = part.layout(outline), Clock(3, 4, 0)
    sent = []
    for client in range(CLIENTS):
        x = uniform(fold(KEY, "x", client), layout.size, device=device) * 0.8 - 0.4
        up = found.codec_key(clock._replace(client=client), KEY)
        ctx = received(layout, up, part, outline)
        sent.append(found.arrival(client, part, ctx, 10.0, found.codec.encode(x, replace(ctx, client=client))))
    return sent


def masked(found: BoundExchange) -> Part:
    """Return a part with half of the weights."""
    outline = found.context.network.initial()
    return Part(keep={name: (torch.arange(t.numel()).view(t.shape) % 2).to(t) for name, t in outline.items()})


def after(found: BoundExchange, sent: list[Arrival], at_once: bool) -> Params:
    """Return the next model, from each upload or from their sum."""
    server: Any = found.server
    state = server.init(found.context.network.initial())
    acc = server.begin(state, {})
    if at_once:
        total = sum(arrival.to_sum().long() for arrival in sent if arrival.to_sum is not None)
        acc = server.fold_sum(acc, sent[0], total, len(sent))
    else:
        for arrival in sent:
            acc = server.fold(acc, arrival)
    model: Params = server.finish(state, acc, Clock(3, 4, -1))["params"]
    return model


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize("codec", [OnWeights(StochasticSign(0.3), other=FixedPoint()), FixedPoint(8)], ids=repr)
@pytest.mark.parametrize("server", SUM_SERVERS, ids=repr)
def test_the_fold_of_a_sum_is_that_of_each_update(server: Server, codec: Codec, half: bool) -> None:
    found = exchange(server, codec)
    sent = arrivals(found, masked(found) if half else Part())
    once, each = (tree.flatten(after(found, sent, at_once)) for at_once in (True, False))
    for name, tensor in each.items():
        torch.testing.assert_close(once[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    ("server", "codec"),
    [
        (MaskAverage("uniform"), SampledMask()),
        (MaskAverage("uniform"), KLMS()),
        (SumThenDecode("uniform"), CommonMaskedNoise(alpha=0.3)),
        (SumThenDecode("uniform"), OneBit(length=1.0)),
        (SumThenDecode("uniform"), StochasticSign(0.3)),
        (SumThenDecode("uniform"), OnWeights(Ternary(scale=0.3), other=FixedPoint(8))),
    ],
    ids=repr,
)
def test_summing_servers_have_the_same_bits(server: Server, codec: Codec, half: bool) -> None:
    found = exchange(server, codec)
    assert found.server.unsummable(exact=True) == ""
    sent = arrivals(found, masked(found) if half else Part())
    once, each = (tree.flatten(after(found, sent, at_once)) for at_once in (True, False))
    assert all(torch.equal(once[name], tensor) for name, tensor in each.items())


@pytest.mark.parametrize("server", SUM_SERVERS, ids=repr)
def test_sum_servers_say_so_before_and_after_binding(server: Server) -> None:
    found = exchange(server, FixedPoint()).server
    assert server.unsummable() == found.unsummable() == ""
    unequal: Any = replace(server, weights="samples")  # type: ignore[type-var]
    assert "weights='uniform'" in unequal.unsummable()


@pytest.mark.parametrize("server", [*OTHER_SERVERS, Undeclared("uniform")], ids=repr)
def test_servers_that_use_each_update_do_not_take_sums(server: Server) -> None:
    assert f"{type(server).__name__} needs every update" in server.unsummable()


def test_only_some_servers_keep_bits() -> None:
    exact = {type(server) for server in SUM_SERVERS if not server.unsummable(exact=True)}
    assert exact == {MaskAverage, SumThenDecode}


def test_updates_are_compared_as_decoded_vectors_unless_the_server_sums_codes() -> None:
    found = exchange(Mean("uniform"), StochasticSign(0.3))
    (arrival, *_) = arrivals(found, Part())
    update = found.update(arrival)
    assert update is not None
    assert torch.equal(update.abs(), torch.full_like(update, 0.3))
    found = exchange(SumThenDecode("uniform"), StochasticSign(0.3))
    (arrival, *_) = arrivals(found, Part())
    signs = found.update(arrival)
    assert signs is not None
    assert torch.equal(signs * 0.3, update)
