"""Codecs with differential privacy: their sums, their noise, what they refuse, and their guarantees."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer import ConfigError, Feedback, OnWeights, PayloadError
from gossamer.core.codec import Codec, Coding
from gossamer.core.privacy import Participation
from gossamer.core.random import Key, fold, key, uniform
from gossamer.core.types import Layout
from gossamer.methods import EF21
from gossamer.parts.codecs import (
    DiscreteGaussian,
    LocalGaussian,
    NoisySign,
    PoissonBinomial,
    Retain,
    Skellam,
    TopK,
)
from gossamer.parts.codecs.distributed_noise import DistributedNoise, pack, unpack
from gossamer.parts.codecs.noise_tables import reach
from gossamer.parts.codecs.rotation import Rotation
from gossamer.testing import check_codec

KEY = key(31)
DISTRIBUTED = [DiscreteGaussian, Skellam]
EVERYBODY = Participation(clients=100, cohort=100, sampling="all", rounds=10)
PRIVATE: list[Codec] = [DiscreteGaussian(), Skellam(), PoissonBinomial(), LocalGaussian()]


def layout(size: int) -> Layout:
    return Layout.of({"w": torch.zeros(size)})


def updates(clients: int, size: int, norm: float = 1.0) -> Tensor:
    x = uniform(fold(KEY, "updates"), clients * size, dtype=torch.float64).view(clients, size) - 0.4
    return (norm * x / x.norm(dim=1, keepdim=True)).float()


def mean_of(codec: Codec, x: Tensor, at: Key = KEY) -> tuple[Tensor, Tensor]:
    """The decoded mean of updates, and the sum of the values."""
    here = layout(x.shape[1])
    sent = [codec.encode(row, Coding(here, at, client=client)) for client, row in enumerate(x)]
    values = [codec.to_sum(payload, Coding(here, at)).long() for payload in sent]
    total = torch.stack(values).sum(0)
    (segment,) = codec.sum_segments(here)
    assert int(torch.stack(values).max()) <= segment.limit
    assert len(total) == codec.sum_size(here)
    return codec.from_sum(total.double() / len(x), Coding(here, at)), total


@pytest.mark.parametrize("kind", DISTRIBUTED)
@pytest.mark.parametrize("rotate", [True, False])
def test_sums_decode_to_the_mean_with_the_noise_that_was_asked_for(kind: Any, rotate: bool) -> None:
    clients, size, clip, z = 40, 3000, 2.0, 0.8
    codec = kind(clip=clip, noise_multiplier=z, clients=clients, rotate=rotate)
    x = updates(clients, size, norm=1.5)
    found, _ = mean_of(codec, x)
    error = (found - x.mean(0)).double() * clients
    deviation = z * clip
    assert float(error.std()) == pytest.approx(deviation, rel=6 / math.sqrt(2 * size))
    assert abs(float(error.mean())) < 5 * deviation / math.sqrt(size)
    assert abs(float(error @ x.sum(0).double())) < 5 * deviation * float(x.sum(0).norm())


@pytest.mark.parametrize("kind", DISTRIBUTED)
def test_dropouts_leave_the_noise_of_the_guarantee(kind: Any) -> None:
    codec = kind(clients=40, dropouts=0.25)
    found, _ = mean_of(codec, torch.zeros(30, 4000))
    assert float(found.double().std() * 30) == pytest.approx(1, rel=6 / math.sqrt(8000))


@pytest.mark.parametrize("kind", DISTRIBUTED)
@pytest.mark.parametrize("bits", [8, 12, 16])
def test_values_fill_the_range_and_never_leave_it(kind: Any, bits: int) -> None:
    """Noise ends before the range does, also for an update that is one large entry, which is never rotated here."""
    codec = kind(bits=bits, clients=10, rotate=False)
    grid = codec.grid(64)
    assert grid.inner + reach(grid.variance) == grid.top == 2 ** (bits - 1) - 1
    assert grid.inner >= grid.clip
    x = torch.zeros(64)
    x[5] = 100.0
    values = unpack(codec.encode(x, Coding(layout(64), KEY)), bits, 64, 2 * grid.top) - grid.top
    assert abs(int(values[5]) - grid.clip) < 6 * math.sqrt(grid.variance) + 1


def test_rotated_entries_are_far_inside_the_range() -> None:
    for size in (100, 8192, 20_000):
        codec = DiscreteGaussian(clients=1000)
        grid, x = codec.grid(size), torch.zeros(size)
        x[size // 2] = 1.0
        y = Rotation(size, KEY).forward(x.double())
        assert float(y.abs().max()) / grid.step < 0.75 * grid.inner


def test_clients_share_the_rotation_and_draw_their_own_noise() -> None:
    x, here = updates(1, 500)[0], layout(500)
    for codec in (DiscreteGaussian(), Skellam(), PoissonBinomial(), LocalGaussian()):
        one, other = (codec.encode(x, Coding(here, KEY, client=client)) for client in (1, 2))
        assert any(not torch.equal(one[name], other[name]) for name in one)
        again = codec.encode(x, Coding(here, KEY, client=1))
        assert all(torch.equal(one[name], again[name]) for name in one)
        secure = codec.bind(context(codec, "a protocol", 500, secure_noise=True))
        first, second = (secure.encode(x, Coding(here, KEY, client=1)) for _ in range(2))
        assert any(not torch.equal(first[name], second[name]) for name in first)
        assert not secure.exact
        assert codec.bind(context(codec, "a protocol", 500)).exact


def test_poisson_binomial_is_unbiased_inside_the_clip() -> None:
    clients, size = 100, 9000
    codec = PoissonBinomial(clip=1.0, theta=0.45)
    x = updates(1, size, norm=0.9).expand(clients, size)
    found, total = mean_of(codec, x)
    assert int(total.max()) <= clients
    deviation = codec.spread / math.sqrt(size) / codec.theta / 2 / math.sqrt(clients)
    error = (found - x[0]).double()
    assert float(error.std()) == pytest.approx(deviation, rel=0.05)
    assert abs(float(error @ x[0].double())) < 5 * deviation * 0.9 + 1e-3


def test_poisson_binomial_with_more_bits_has_less_noise() -> None:
    x = updates(30, 900, norm=0.9)
    errors = [
        float((mean_of(PoissonBinomial(theta=0.4, trials=trials), x)[0] - x.mean(0)).norm()) for trials in (1, 4, 16)
    ]
    assert errors[0] / errors[1] == pytest.approx(2, rel=0.2)
    assert errors[1] / errors[2] == pytest.approx(2, rel=0.2)


def test_layers_of_different_scale_are_not_clipped_by_the_entry() -> None:
    """One layer has almost all of the norm: interleaving spreads it over all blocks of the rotation."""
    size = 30_000
    x = torch.full((size,), 1e-5)
    x[:9000] = 1.0
    codec, ctx = PoissonBinomial(), Coding(layout(size), KEY)
    y = codec._rotated((x / x.norm()).double(), ctx)
    assert float((y.abs() > codec._range(layout(size))).double().mean()) < 3e-4
    assert torch.allclose(codec._rotated_back(y, ctx), (x / x.norm()).double(), atol=1e-9)


def test_local_noise_is_added_before_any_codec() -> None:
    x, here = updates(1, 20_000, norm=50)[0], layout(20_000)
    codec = LocalGaussian(clip=2.0, noise_multiplier=0.1)
    error = codec.decode(codec.encode(x, Coding(here, KEY)), Coding(here, KEY)) - 2 * x / x.norm()
    assert float(error.std()) == pytest.approx(0.2, rel=0.03)
    signs = replace(codec, codec=NoisySign(0.01)).encode(x, Coding(here, KEY))
    assert signs.keys() == {"bits"}
    assert replace(codec, codec=DiscreteGaussian()).common


def test_packed_numbers_are_checked() -> None:
    values = torch.tensor([0, 1, 4000, 77, 2**12 - 2])
    for width in (12, 16, 18):
        assert torch.equal(unpack(pack(values, width), width, 5, 2**12 - 2), values)
        assert pack(values, width)["values"].numel() == 5 + -(-5 * min(8, width - 8) // 8) + (width == 18) * 2
    with pytest.raises(PayloadError, match="has the number 4,094, above the largest one, 4,093"):
        unpack(pack(values, 12), 12, 5, 2**12 - 3)
    codec, here = PoissonBinomial(trials=4), layout(6)
    with pytest.raises(PayloadError, match="number above 4"):
        codec.decode({"codes": torch.tensor([0b101, 0, 0], dtype=torch.uint8)}, Coding(here, KEY))


@pytest.mark.parametrize("codec", PRIVATE, ids=repr)
def test_what_would_undo_the_noise_is_refused(codec: Codec) -> None:
    name = type(codec).__name__
    for wrap in (Feedback, Retain, EF21):
        with pytest.raises(ConfigError, match=f"{wrap.__name__} cannot contain {name}: what is lost to clipping and"):
            wrap(codec)
    with pytest.raises(ConfigError, match=f"{name} must encode the whole update"):
        check_codec(OnWeights(codec))


def test_memory_behind_the_noise_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"LocalGaussian cannot contain Feedback.*count more than once"):
        LocalGaussian(codec=Feedback(TopK(0.1)))


def context(codec: Codec, secure: object, size: int = 5000, secure_noise: bool = False) -> Any:
    network = SimpleNamespace(outline=lambda: {"w": torch.zeros(size)}, secure_noise=secure_noise)
    return SimpleNamespace(exchange=SimpleNamespace(codec=codec, secure=secure), network=network)


@pytest.mark.parametrize("kind", DISTRIBUTED)
def test_distributed_noise_needs_secure_aggregation(kind: Any) -> None:
    codec = kind()
    with pytest.raises(ConfigError, match="needs secure aggregation: the noise of one client alone is too small"):
        codec.bind(context(codec, None))
    assert codec.bind(context(codec, "a protocol")).size == 5000


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: Skellam(clip=0.0), "Skellam.clip must be from"),
        (lambda: Skellam(noise_multiplier=0.0), "noise_multiplier must be from"),
        (lambda: DiscreteGaussian(bits=4), "bits must be from 8 to 18"),
        (lambda: DiscreteGaussian(clients=0, dropouts=1.0), "dropouts must be at least 0 and below 1"),
        (lambda: PoissonBinomial(theta=0.5), "theta must be from 1e-6 to below 0.5"),
        (lambda: PoissonBinomial(trials=0, spread=0.1), "spread must be from 1 to 100"),
        (lambda: LocalGaussian(noise_multiplier=0.0), "noise_multiplier must be above 0"),
        (lambda: Skellam().guarantee(EVERYBODY), "must be bound to a network"),
        (lambda: PoissonBinomial().guarantee(EVERYBODY), "must be bound to a network"),
    ],
)
def test_wrong_settings_are_refused(made: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        made()


# Guarantees.


def bound(codec: DistributedNoise, size: int) -> DistributedNoise:
    return codec.bind(context(codec, "a protocol", size))


@pytest.mark.parametrize("kind", DISTRIBUTED)
def test_the_divergence_is_that_of_a_gaussian_up_to_rounding(kind: Any) -> None:
    for size, most in ((100, 1.001), (10**6, 1.002)):
        codec = bound(kind(noise_multiplier=0.7), size)
        for order in (2, 10):
            assert 1 <= codec.divergence(order) / (order / (2 * 0.7**2)) < most
            assert codec.divergence(order, replaced=True) == pytest.approx(4 * codec.divergence(order), rel=0.01)
    coarse = bound(kind(bits=10), 10**6).divergence(2)
    assert coarse > 1.5  # rounding makes vectors longer, which counts


@pytest.mark.slow
def test_epsilons() -> None:
    accounting = pytest.importorskip("gossamer.parts.privacy.accounting")
    central = accounting.gaussian(0.7, EVERYBODY).epsilon(10, 1e-5)
    for kind in DISTRIBUTED:
        found = bound(kind(noise_multiplier=0.7), 10**5).guarantee(EVERYBODY)
        assert central <= found.epsilon(10, 1e-5) < 1.1 * central  # by Rényi divergences
        assert "also the server, which sees sums" in found.protects_from
        assert found.relation == "zero-out"  # a missing client would take its noise with it
        sampled = bound(kind(noise_multiplier=3.0), 10**5).guarantee(Participation(10_000, 100, "fixed", 10))
        assert sampled.relation == "replace-one"
    local = LocalGaussian(noise_multiplier=0.7).guarantee(EVERYBODY._replace(sampling="poisson", cohort=5))
    assert local.epsilon(10, 1e-5) == pytest.approx(central)
    assert local.relation == "zero-out"
    theta = 4.0 / (2 * 0.7 * math.sqrt(10**5))
    alone = PoissonBinomial(theta=theta)
    found = alone.bind(context(alone, None, 10**5)).guarantee(EVERYBODY)
    assert central <= found.epsilon(10, 1e-5) < 1.12 * central
    summed = replace(alone, theta=theta * 10, dropouts=0.0)
    found = summed.bind(context(summed, "a protocol", 10**5)).guarantee(EVERYBODY)
    assert central <= found.epsilon(10, 1e-5) < 1.25 * central


@pytest.mark.parametrize("kind", DISTRIBUTED)
def test_rounds_with_too_little_noise_have_no_guarantee(kind: Any) -> None:
    pytest.importorskip("gossamer.parts.privacy.renyi")
    codec = bound(kind(clients=50, dropouts=0.1), 1000)
    with pytest.raises(ConfigError, match=f"{kind.__name__}.clients=50 share the noise, a round has 40 clients"):
        codec.guarantee(EVERYBODY._replace(cohort=40))
    with pytest.raises(ConfigError, match="needs rounds with a fixed number of clients"):
        codec.guarantee(EVERYBODY._replace(sampling="poisson"))


@pytest.mark.parametrize("colluding", [0.0, 0.1, 0.3])
def test_epsilon_is_that_of_the_noise_without_that_of_colluding_clients(colluding: float) -> None:
    """By an independent computation: Skellam noise of all clients, less that of the lost and of those that help."""
    dp = pytest.importorskip("dp_accounting.rdp")
    clients, dropouts, size, rounds, delta = 50, 0.1, 1000, 10, 1e-5
    given: dict[str, Any] = {"clients": clients, "dropouts": dropouts, "noise_multiplier": 2.0}
    codec = bound(Skellam(**given, colluding=colluding), size)
    grid = codec.grid(size)
    total = grid.variance * clients
    left = total * (1 - dropouts - colluding)
    assert math.sqrt(left) * grid.step == pytest.approx(2.0)  # the noise multiplier is that of the honest clients
    orders = list(range(2, 200))
    found = codec.guarantee(EVERYBODY._replace(clients=clients, cohort=clients))
    norm2 = min(grid.clip + math.sqrt(size), math.sqrt(grid.clip**2 + size / 4 + grid.clip + math.sqrt(size) / 2)) ** 2
    norm1 = math.sqrt(norm2) * min(math.sqrt(size), math.sqrt(norm2))
    curve = [
        rounds
        * (a * norm2 / (2 * left) + min(((2 * a - 1) * norm2 + 6 * norm1) / (4 * left**2), 3 * norm1 / (2 * left)))
        for a in orders
    ]
    assert found.epsilon(rounds, delta) == pytest.approx(dp.compute_epsilon(orders, curve, delta)[0], rel=2e-3)
    naive = bound(Skellam(**given), size)
    assert codec.fewest(clients) == naive.fewest(clients) == 45
    assert (codec.grid(size).variance * grid.step**2 > naive.grid(size).variance * naive.grid(size).step ** 2) == (
        colluding > 0
    )


def test_colluding_clients_of_a_larger_round_count_too() -> None:
    """Shares are rounded down: ten clients may have one that helps, nine have none."""
    pytest.importorskip("gossamer.parts.privacy.renyi")
    codec = bound(Skellam(clients=9, colluding=0.1, dropouts=0.1), 1000)
    assert codec.fewest(9) == 9
    assert codec.fewest(10) == 10
    with pytest.raises(ConfigError, match="a round has 10 clients and too little noise"):
        codec.guarantee(EVERYBODY._replace(cohort=10))
    with pytest.raises(ConfigError, match=r"colluding and dropouts, 0\.5, must be below 1 together, got 0\.5"):
        Skellam(dropouts=0.5, colluding=0.5)
