"""Masked noise: the noise itself, the law of the masks, what a message takes, and folding without decoding."""

import math
import tracemalloc
import zlib
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from gossamer.core import wire
from gossamer.core.bits import bits, unbits
from gossamer.core.codec import Coding
from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.random import fold, halves, key, noise, uniform, words
from gossamer.core.random.noise import Kind
from gossamer.core.types import Layout
from gossamer.parts.codecs import masked_noise
from gossamer.parts.codecs.masked_noise import CommonMaskedNoise, MaskedNoise, clipped, probability
from gossamer.tasks import nets
from gossamer.testing import check_codec

KINDS = noise.KINDS


def fixed(signed: bool = False, noise: Kind = "uniform", alpha: float = 0.01, **more: Any) -> MaskedNoise:
    """Masked noise of one magnitude, as published; gaps are not coded unless asked for."""
    return MaskedNoise(signed, noise, alpha, **{"coded": False, **more})


FIXED = [
    fixed(),
    fixed(signed=True, alpha=0.005),
    fixed(noise="gauss"),
    fixed(signed=True, noise="gauss", alpha=1.0, coded=True),
    fixed(noise="bernoulli", coded=True),
    fixed(signed=True, noise="bernoulli", stochastic=False),
    fixed(stochastic=False, coded=True),
    fixed(alpha=1e-8),
    fixed(noise="gauss", alpha=1e30),
]
AUTO = [
    MaskedNoise(),
    MaskedNoise(signed=True),
    MaskedNoise(noise="gauss", spread=1.0),
    MaskedNoise(signed=True, noise="bernoulli", coded=False),
    MaskedNoise(stochastic=False),
]
CODECS = [*FIXED, *AUTO]
gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def flat(n: int, dtype: torch.dtype = torch.float32) -> Layout:
    return Layout((("w", torch.Size([n])),), dtype)


def change(n: int, size: float = 0.01, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return ((uniform(fold(key(2), n), n, dtype=torch.float64) * 2 - 1) * size).to(dtype)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_the_contract_of_codecs(codec: MaskedNoise) -> None:
    check_codec(codec, size=1.0 if isinstance(codec.alpha, str) else max(1.0, codec.alpha))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"noise": "cauchy"}, "noise must be one of bernoulli, gauss, uniform, got 'cauchy'"),
        ({"alpha": 0.0}, "alpha must be auto or a number from 1e-8 to 1e30, got 0.0"),
        ({"alpha": 1e31}, "alpha must be auto or a number"),
        ({"alpha": math.nan}, "alpha must be auto or a number"),
        ({"alpha": "automatic"}, "alpha must be auto or a number"),
        ({"spread": 0.0}, "spread must be a number from 0.01 to 1000, got 0.0"),
        ({"spread": math.nan}, "spread must be a number"),
    ],
)
def test_wrong_settings_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        MaskedNoise(**fields)


def test_changes_that_are_not_finite_are_refused() -> None:
    for bad in (math.nan, math.inf):
        with pytest.raises(PayloadError, match="'change' holds 1 of 3 values that are not finite"):
            fixed().encode(torch.tensor([0.0, bad, 1.0]), Coding(flat(3), key(1)))


# Noise


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "start"), [(0, 0), (1, 0), (7, 1), (100, 2**40 + 3), (65, 64)])
def test_noise_can_be_entered_anywhere(kind: Kind, n: int, start: int) -> None:
    whole = noise.draw(kind, 0.3, key(1), n + 3, start=start)
    assert whole.dtype == torch.float32
    assert torch.equal(noise.draw(kind, 0.3, key(1), n, start=start + 3), whole[3:])


def test_uniform_and_bernoulli_noise_follow_from_the_uniform_of_the_key() -> None:
    u = uniform(key(1), 1000).numpy()
    alpha = np.float32(0.3)
    assert noise.draw("uniform", 0.3, key(1), 1000).tolist() == ((2 * u - 1) * alpha).tolist()
    assert noise.draw("bernoulli", 0.3, key(1), 1000).tolist() == np.where(u < 0.5, -alpha, alpha).tolist()


def test_gaussian_noise_is_the_inverse_of_its_tail() -> None:
    inverse = NormalDist().inv_cdf
    drawn = halves(words(key(1), 500)).tolist()
    wanted = [math.copysign(inverse((half % 2**31 + 0.5) / 2**32), 2**31 - 0.5 - half) for half in drawn]
    assert noise.draw("gauss", 1.0, key(1), 1000).tolist() == pytest.approx(wanted, abs=2e-6)


def test_the_table_of_the_normal_never_changes() -> None:
    table = noise._table(torch.device("cpu"))
    assert len(table) == 8193
    assert table[0].item() == pytest.approx(6.338, abs=1e-3)
    assert table[-1] == 0
    assert (table.diff() < 0).all()
    assert zlib.crc32(table.numpy().astype("<f8").tobytes()) == 0x4DB64B57


@pytest.mark.parametrize(
    ("kind", "second", "fourth"), [("uniform", 1 / 3, 1 / 5), ("gauss", 1, 3), ("bernoulli", 1, 1)]
)
def test_moments(kind: Kind, second: float, fourth: float) -> None:
    n = 1_000_000
    x = noise.draw(kind, 1.0, fold(key(0), "moments"), n).double()
    eighth = {"uniform": 1 / 9, "gauss": 105, "bernoulli": 1}[kind]
    assert abs(x.mean()) < 4 * math.sqrt(second / n)
    assert abs((x**2).mean() - second) <= 4 * math.sqrt((fourth - second**2) / n)
    assert abs((x**4).mean() - fourth) <= 4 * math.sqrt((eighth - fourth**2) / n)
    assert abs((x[1:] * x[:-1]).mean()) < 4 * second / math.sqrt(n)


def test_gaussian_noise_is_gaussian() -> None:
    n = 1_000_000
    x = noise.draw("gauss", 1.0, fold(key(0), "normal"), n).double().sort().values
    below = 0.5 * torch.erfc(-x / math.sqrt(2))
    steps = torch.arange(n + 1, dtype=torch.float64) / n
    distance = max(float((below - steps[:-1]).max()), float((steps[1:] - below).max()))
    assert distance * math.sqrt(n) < 1.63  # Kolmogorov and Smirnov's bound that one sample in a hundred passes
    for sigmas in (1, 2, 3, 4):
        share = math.erfc(sigmas / math.sqrt(2))
        assert abs(float((x.abs() > sigmas).double().mean()) - share) < 4 * math.sqrt(share / n)


@pytest.mark.parametrize("kind", ["uniform", "gauss"])
def test_noise_keeps_off_zero(kind: Kind) -> None:
    tiny = noise.draw(kind, 1e-7, key(1), 10_000)
    assert tiny.abs().min() == np.float32(1e-8)
    free = noise.draw(kind, 1.0, key(1), 10_000) * float(np.float32(1e-7))
    near = free.abs() < float(np.float32(1e-8))
    assert (tiny[near] == float(np.float32(1e-8))).all()
    assert torch.allclose(tiny[~near], free[~near], rtol=1e-6)


def test_noise_of_a_double_layout_is_the_same_noise() -> None:
    codec = fixed(noise="gauss")
    assert torch.equal(
        codec.draw(Coding(flat(99, torch.float64), key(1))), codec.draw(Coding(flat(99), key(1))).double()
    )


@gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alpha", [1e-7, 0.01])
def test_a_gpu_draws_the_same_noise(kind: Kind, alpha: float) -> None:
    for start in (0, 1, 12_345):
        made = noise.draw(kind, alpha, key(4), 100_003, start=start, device="cuda")
        assert torch.equal(made.cpu(), noise.draw(kind, alpha, key(4), 100_003, start=start))


# Masks


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_masked_noise_is_the_clipped_change_on_average(signed: bool, kind: Kind) -> None:
    n, draws = 300, 4000
    codec, u = CommonMaskedNoise(signed, kind, alpha=0.01, coded=False), change(n, 0.015, torch.float64)
    layout, at = flat(n, torch.float64), key(3)
    noise_of = codec.draw(Coding(layout, at))
    hits = torch.zeros(n, dtype=torch.float64)
    for draw in range(draws):
        sent = codec.encode(u, Coding(layout, at, client=draw))  # the same noise, and other draws of the mask
        hits += codec.to_sum(sent, Coding(layout, at))
    p = probability(u, noise_of, signed)
    deviation = (p * (1 - p) / draws).sqrt()
    assert ((hits / draws - p).abs() <= 4.5 * deviation).all()
    value = (2 * p - 1 if signed else p) * noise_of
    low, high = (-noise_of.abs(), noise_of.abs()) if signed else (noise_of.clamp(max=0), noise_of.clamp(min=0))
    assert torch.allclose(value, u.clamp(low, high), atol=1e-12)
    assert torch.allclose(clipped(u, noise_of, signed), u.clamp(low, high), atol=1e-12)


def test_messages_average_to_the_clipped_change() -> None:
    codec, u, layout = fixed(noise="bernoulli", alpha=0.01, signed=True), change(50), flat(50)
    keys = [fold(key(6), draw) for draw in range(2000)]
    mean = (
        torch.stack([codec.decode(codec.encode(u, Coding(layout, k)), Coding(layout, k)) for k in keys])
        .double()
        .mean(0)
    )
    assert torch.allclose(mean, u.double(), atol=4.5 * 0.01 / math.sqrt(2000))


def test_signed_masks_are_binary_masks_of_twice_the_noise_less_the_noise() -> None:
    layout, at, u = flat(5000), key(8), change(5000, 0.004)  # with this key no noise is held off zero
    signed, binary = fixed(signed=True, alpha=0.005), fixed(alpha=0.01)
    n = signed.draw(Coding(layout, at))
    assert torch.equal(binary.draw(Coding(layout, at)), 2 * n)
    one, other = signed.encode(u, Coding(layout, at)), binary.encode(u + n, Coding(layout, at))
    assert torch.equal(one["mask"], other["mask"])
    assert torch.equal(signed.decode(one, Coding(layout, at)), binary.decode(other, Coding(layout, at)) - n)


@pytest.mark.parametrize("signed", [False, True])
def test_deterministic_masks_are_one_where_change_and_noise_have_the_same_sign(signed: bool) -> None:
    codec, u, layout = fixed(signed, stochastic=False), change(1000, 1e-6), flat(1000)
    mask = unbits(codec.encode(u, Coding(layout, key(1)))["mask"], 1000)
    assert torch.equal(mask, (u > 0) == (codec.draw(Coding(layout, key(1))) > 0))


def test_masks_at_the_ends_are_certain() -> None:
    codec, layout = fixed(), flat(1000)
    n = codec.draw(Coding(layout, key(1)))
    for factor, bit in ((0.0, 0), (-0.5, 0), (1.0, 1), (7.0, 1), (1e30, 1), (-1e30, 0)):
        assert (unbits(codec.encode(factor * n, Coding(layout, key(1)))["mask"], 1000) == bit).all()


# Messages


def up(payload: dict[str, torch.Tensor]) -> int:
    return len(wire.pack(wire.Message("up", 0, 0, 0, 1.0, payload)))


def weights(name: str, shape: tuple[int, ...], classes: int) -> Layout:
    model = nets.build(name, shape, classes)
    return Layout.of({n: p for n, p in model.named_parameters() if p.dim() > 1})


def test_cnn8_takes_147_692_bytes_of_masks_and_nothing_else() -> None:
    layout = weights("cnn8", (3, 32, 32), 10)
    assert layout.size == 1_181_536
    payload = fixed().encode(change(layout.size), Coding(layout, key(1)))
    assert {name: array.numel() for name, array in payload.items()} == {"mask": 147_692}
    assert up(payload) <= 147_692 + 64


@pytest.mark.parametrize("codec", [*CODECS[:5], *AUTO], ids=repr)
def test_cnn4_takes_little_more_than_one_bit_per_weight(codec: MaskedNoise) -> None:
    layout = weights("cnn4", (1, 28, 28), 10)
    assert layout.size == 389_920
    limit = 1.01 + (16 / 256 if codec.alpha == "auto" else 0)
    assert 8 * up(codec.encode(change(layout.size), Coding(layout, key(1)))) <= limit * layout.size


def test_the_mask_is_packed_lowest_bit_first() -> None:
    codec, layout = fixed(noise="bernoulli", alpha=1.0), flat(10)
    n = codec.draw(Coding(layout, key(1)))
    flags = torch.tensor([1, 1, 0, 1, 0, 0, 0, 0, 0, 1], dtype=torch.float32)
    assert codec.encode(n * flags, Coding(layout, key(1)))["mask"].tolist() == [0b1011, 0b10]


@pytest.mark.parametrize("density", [0.0, 0.01, 0.1, 0.3, 0.5, 0.9, 1.0])
def test_gaps_are_sent_where_they_are_shorter_and_mean_the_same(density: float) -> None:
    n = 40_000
    short, plain, layout = fixed(noise="bernoulli", coded=True), fixed(noise="bernoulli"), flat(n)
    u = plain.draw(Coding(layout, key(1))) * density
    sent, bitwise = short.encode(u, Coding(layout, key(1))), plain.encode(u, Coding(layout, key(1)))
    assert ("mask" in sent) == (density == 0.5)
    assert up(sent) <= up(bitwise)
    assert torch.equal(short.decode(sent, Coding(layout, key(1))), plain.decode(bitwise, Coding(layout, key(1))))
    if 0.01 <= density <= 0.3:
        entropy = -density * math.log2(density) - (1 - density) * math.log2(1 - density)
        assert 8 * sum(array.numel() for array in sent.values()) < 1.05 * entropy * n


def test_gaps_that_save_little_are_not_sent() -> None:
    codec, layout = fixed(noise="bernoulli", coded=True), flat(240)  # 30 bytes, of which 32 cannot be saved
    assert set(codec.encode(torch.zeros(240), Coding(layout, key(1)))) == {"mask"}


def test_what_cannot_have_been_sent_is_refused() -> None:
    n = 4001
    plain, short, layout = fixed(), fixed(noise="bernoulli", coded=True), flat(n)
    mask = plain.encode(change(n), Coding(layout, key(1)))["mask"]
    gaps = short.encode(short.draw(Coding(layout, key(1))) * 0.02, Coding(layout, key(1)))
    assert set(gaps) == {"quotients", "remainders"}
    behind = mask.clone()
    behind[-1] |= 2
    bad = [
        (plain, {}),
        (plain, {"mask": mask[:-1]}),
        (plain, {"mask": torch.cat([mask, mask[:1]])}),
        (plain, {"mask": mask.to(torch.int8)}),
        (plain, {"mask": mask.view(1, 1, -1)}),
        (plain, {"mask": behind}),
        (plain, {"mask": mask, "seed": mask[:8]}),
        (plain, gaps),
        (short, {**gaps, "mask": mask}),
        (short, {"quotients": gaps["quotients"]}),
        (short, {**gaps, "quotients": gaps["quotients"].repeat(9)}),
        (short, {**gaps, "quotients": gaps["quotients"][:-1]}),
        (short, {**gaps, "remainders": gaps["remainders"][:-1]}),
        (short, {"quotients": bits(torch.ones(n - 300).bool()), "remainders": gaps["remainders"][:1]}),
    ]
    for codec, payload in bad:
        with pytest.raises(PayloadError):
            codec.decode(payload, Coding(layout, key(1)))
        with pytest.raises(PayloadError):
            codec.fold(torch.zeros(n), payload, Coding(layout, key(1)), 1.0)


# Magnitudes from the update


def layout_of(*sizes: int, dtype: torch.dtype = torch.float32) -> Layout:
    return Layout(tuple((f"t{number}", torch.Size([n])) for number, n in enumerate(sizes)), dtype)


def normal(n: int, label: int = 0) -> Tensor:
    return noise.draw("gauss", 1.0, fold(key(12), label), n)


@pytest.mark.parametrize(("signed", "half"), [(False, 2), (True, 1)])
def test_the_expectation_over_uniform_noise_is_a_parabola(signed: bool, half: int) -> None:
    """E[n m] is u - u^2 / 2 for signed masks over unit noise, and half of it for binary masks."""
    n = noise.draw("uniform", 1.0, key(3), 1_000_000).double()
    for u in (0.1, 0.5, 1.0):
        found = float(clipped(torch.full_like(n, u), n, signed).mean())
        assert found == pytest.approx((u - u * u / 2) / half, abs=4 / 1000)


@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("spread", [0.5, 3.0, 12.0])
@pytest.mark.parametrize("block", [None, 700])
def test_scales_are_as_the_formula_says(signed: bool, spread: float, block: int | None) -> None:
    """By plain sums in float64, for two tensors of very different size; up to the rounding of bfloat16."""
    codec, layout = MaskedNoise(signed, spread=spread, block=block), layout_of(3000, 500, dtype=torch.float64)
    x = torch.cat([1e-4 * normal(3000).double() * torch.linspace(1, 9, 3000), 50 * normal(500, 1).double()])
    scales, n = codec.encode(x, Coding(layout, key(1)))["scales"].double().tolist(), codec.draw(Coding(layout, key(1)))
    wanted = []
    for u, own in zip(x.split([3000, 500]), n.split([3000, 500]), strict=True):
        pieces = list(zip(u.split(block or 3000), own.split(block or 3000), strict=True))
        sizes = [spread * piece.square().sum() / piece.abs().sum() for piece, _ in pieces]
        left = sum((v * clipped(v, m * a, signed)).sum() for (v, m), a in zip(pieces, sizes, strict=True))
        gain = (u.square().sum() / left).clamp(1, 8)
        wanted += [float(a * gain) for a in sizes]
    assert scales == pytest.approx(wanted, rel=2**-8)


def test_blocks_keep_the_noise_of_large_rows_from_small_ones() -> None:
    """Rows of very different size: the error is that of Gaussian entries, whatever their sizes."""
    layout = Layout((("w", torch.Size([64, 256])),))
    x = (normal(64 * 256).view(64, 256) * torch.logspace(0, 2, 64)[:, None]).view(-1)
    errors = []
    for block in (256, None):
        codec = MaskedNoise(True, spread=0.25, block=block)
        found = codec.decode(codec.encode(x, Coding(layout, key(1))), Coding(layout, key(1)))
        errors.append(float((found - x).square().sum() / x.square().sum()))
    assert errors[0] == pytest.approx(0.62, abs=0.05)
    assert errors[1] > 3 * errors[0]


@pytest.mark.parametrize("codec", AUTO, ids=repr)
def test_messages_are_as_long_as_the_update_along_it(codec: MaskedNoise) -> None:
    """Whatever its size: the inner product of message and update is that of the update with itself, on average."""
    layout, sizes = layout_of(20_000, 20_000, 20_000), (1e-20, 1e-3, 1e20)
    x = torch.cat([size * normal(20_000, number) for number, size in enumerate(sizes)])
    for u, found in zip(
        x.split(20_000),
        codec.decode(codec.encode(x, Coding(layout, key(1))), Coding(layout, key(1))).split(20_000),
        strict=True,
    ):
        u = u.double()
        assert float(found.double() @ u / (u @ u)) == pytest.approx(1, abs=0.1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("alpha", ["auto", 0.5])
def test_the_reported_shares_are_those_of_the_noise(kind: Kind, alpha: Any) -> None:
    """Half of the entries did not change: they do not count. One update in 50 entries is measured."""
    n = 1_000_000
    x, layout = normal(n) * (uniform(key(5), n) < 0.5), flat(n)
    codec = MaskedNoise(noise=kind, alpha=alpha)
    found, draw = codec.figures(x, Coding(layout, key(1))), codec.draw(Coding(layout, key(1)))
    a = x.square().sum() / x.abs().sum() if alpha == "auto" else torch.tensor(1.0)  # drawn with alpha already
    size, noise_of = x.abs(), (draw * a).abs()
    assert found["clipped"] == pytest.approx(float((size > noise_of).sum() / size.count_nonzero()), abs=0.01)
    left = (size.double() @ torch.minimum(size, noise_of).double()) / (size.double() @ size.double())
    assert found["clipped_length"] == pytest.approx(1 - float(left), abs=0.02)


def test_zeros_change_no_scale() -> None:
    """Units that do not learn, and entries of no client: the magnitude is that of the other entries."""
    u = normal(1000)
    spread = torch.cat([u, torch.zeros(3000)])
    alone, padded = (MaskedNoise(block=None).encode(x, Coding(flat(len(x)), key(1))) for x in (u, spread))
    assert padded["scales"].item() == pytest.approx(alone["scales"].item(), rel=1e-6)


def test_a_tensor_without_change_has_scale_0_and_stays_as_it_is() -> None:
    for codec in AUTO:
        layout = layout_of(100, 50, 0)
        payload = codec.encode(torch.cat([torch.zeros(100), normal(50)]), Coding(layout, key(1)))
        assert payload["scales"][0] == 0
        assert len(payload["scales"]) == 2
        assert not codec.decode(payload, Coding(layout, key(1)))[:100].any()


def test_a_larger_spread_gives_sparser_masks_and_fewer_bits() -> None:
    x, layout = normal(40_000), flat(40_000)
    bits_of = [
        8 * up(MaskedNoise(spread=spread).encode(x, Coding(layout, key(1)))) / 40_000
        for spread in (1.0, 3.0, 9.0, 27.0)
    ]
    assert bits_of == sorted(bits_of, reverse=True)
    assert bits_of[1] < 0.85
    assert bits_of[3] < 0.35


@given(
    st.lists(st.integers(0, 60), min_size=1, max_size=5),
    st.booleans(),
    st.sampled_from(KINDS),
    st.floats(-30, 12),
    st.lists(st.integers(1, 90), max_size=6),
)
def test_a_sum_in_any_pieces_gets_the_same_bits_with_scales(
    sizes: list[int], signed: bool, kind: Kind, exponent: float, cuts: list[int]
) -> None:
    layout, n = layout_of(*sizes), sum(sizes)
    codec, acc, x = MaskedNoise(signed, kind), change(n, 3.0), normal(n) * 10**exponent
    payload = codec.encode(x, Coding(layout, key(n)))
    wanted = acc + codec.decode(payload, Coding(layout, key(n))) * 0.3
    ends = sorted({min(sum(cuts[: i + 1]), n) for i in range(len(cuts))} | {n})
    borders = [b - a for a, b in zip([0, *ends], ends, strict=False)]
    pieces = [piece.clone() for piece in acc.split(borders)]
    codec.fold_into(payload, Coding(layout, key(n)), 0.3, acc)(pieces)
    assert torch.equal(torch.cat([*pieces, torch.zeros(0)]), wanted)


@given(st.sampled_from([math.nan, math.inf, -math.inf, -1.0, 1.1e30, -1e-30]), st.integers(0, 2))
def test_damaged_scales_are_refused(bad: float, at: int) -> None:
    codec, layout = MaskedNoise(), layout_of(30, 20, 10)
    payload = codec.encode(normal(60), Coding(layout, key(1)))
    scales = payload["scales"].clone()
    scales[at] = bad
    for broken in (
        {**payload, "scales": scales},
        {**payload, "scales": scales[:2]},
        {**payload, "scales": payload["scales"].double()},
        {name: array for name, array in payload.items() if name != "scales"},
    ):
        with pytest.raises(PayloadError, match="scales"):
            codec.decode(broken, Coding(layout, key(1)))
    with pytest.raises(PayloadError):
        fixed().decode(
            {**fixed().encode(normal(60), Coding(layout, key(1))), "scales": payload["scales"]}, Coding(layout, key(1))
        )


def test_a_change_beyond_the_largest_scale_is_refused() -> None:
    with pytest.raises(PayloadError, match="too large for masked noise"):
        MaskedNoise().encode(torch.full((4,), 1e31), Coding(flat(4), key(1)))


# Folding


@pytest.mark.parametrize("codec", [*CODECS[:6], fixed(noise="bernoulli", alpha=0.1, coded=True), *AUTO[:3]], ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_folding_is_decoding_and_adding_bit_for_bit(
    codec: MaskedNoise, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(masked_noise.CHUNK, "cpu", 64)
    for n in (1, 7, 8, 63, 64, 65, 127, 128, 129, 1000):
        layout, acc = flat(n, dtype), change(n, 3.0, dtype)
        wanted = acc.clone()
        for weight in (1.0, 0.3, 17.0):
            payload = codec.encode(change(n, dtype=dtype), Coding(layout, key(n)))
            wanted = wanted + codec.decode(payload, Coding(layout, key(n))) * weight
            codec.fold(acc, payload, Coding(layout, key(n)), weight)
        assert torch.equal(acc, wanted)


@given(st.integers(0, 400), st.integers(1, 12), st.booleans(), st.sampled_from(KINDS))
def test_chunks_leave_no_trace(n: int, chunk: int, signed: bool, kind: Kind) -> None:
    codec, layout = fixed(signed, kind), flat(n)
    payload = codec.encode(change(n), Coding(layout, key(n)))
    whole = codec.decode(payload, Coding(layout, key(n)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(masked_noise.CHUNK, "cpu", 8 * chunk)
        assert torch.equal(codec.decode(payload, Coding(layout, key(n))), whole)


@given(st.lists(st.integers(0, 90), max_size=6), st.booleans(), st.sampled_from(KINDS))
def test_a_sum_in_pieces_gets_the_same_bits(sizes: list[int], signed: bool, kind: Kind) -> None:
    n = sum(sizes)
    codec, layout, acc = fixed(signed, kind), flat(n), change(n, 3.0)
    payload, pieces = codec.encode(change(n), Coding(layout, key(n))), [piece.clone() for piece in acc.split(sizes)]
    codec.fold(acc, payload, Coding(layout, key(n)), 0.3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(masked_noise.CHUNK, "cpu", 16)
        codec.fold_into(payload, Coding(layout, key(n)), 0.3, acc)(pieces)
    assert torch.equal(torch.cat([*pieces, torch.zeros(0)]), acc)


@pytest.mark.parametrize("acc", [torch.zeros(9), torch.zeros(7), torch.zeros(2, 4), torch.zeros(16)[::2]])
def test_sums_of_another_shape_are_refused(acc: torch.Tensor) -> None:
    payload = fixed().encode(torch.zeros(8), Coding(flat(8), key(1)))
    with pytest.raises(ConfigError, match="acc must be a contiguous vector of 8 entries"):
        fixed().fold(acc, payload, Coding(flat(8), key(1)), 1.0)


def test_folding_takes_memory_for_a_chunk_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """tracemalloc sees the arrays of NumPy; every other tensor of a fold has the length of the chunk too."""
    monkeypatch.setitem(masked_noise.CHUNK, "cpu", 1 << 12)
    codec, layout = fixed(), flat(1 << 20)
    payload, acc = {"mask": torch.zeros(1 << 17, dtype=torch.uint8)}, torch.zeros(1 << 20)
    longest = 0
    made = MaskedNoise._values

    def watched(*given: Any) -> Iterator[tuple[Any, Tensor]]:
        nonlocal longest
        for start, values in made(*given):
            longest = max(longest, len(values))
            yield start, values

    monkeypatch.setattr(MaskedNoise, "_values", watched)
    tracemalloc.start()
    codec.fold(acc, payload, Coding(layout, key(1)), 1.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert longest == 1 << 12
    assert peak < 20 * (1 << 12)  # a whole message would be 4 MiB of words alone


@gpu
@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gpu_sends_and_folds_the_same_bits(codec: MaskedNoise, dtype: torch.dtype) -> None:
    for n in (1, 7, 8, 2047, 2048, 2049, 100_003):
        layout, u = flat(n, dtype), change(n, dtype=dtype)
        here, there = codec.encode(u, Coding(layout, key(n))), codec.encode(u.cuda(), Coding(layout, key(n)))
        assert {name: array.tolist() for name, array in here.items()} == {k: v.tolist() for k, v in there.items()}
        assert torch.equal(
            codec.decode(there, Coding(layout, key(n))).cpu(), codec.decode(here, Coding(layout, key(n)))
        )
        sums = [change(n, 3.0, dtype), change(n, 3.0, dtype).cuda()]
        for weight in (1.0, 0.3, 17.0):
            codec.fold(sums[0], here, Coding(layout, key(n)), weight)
            codec.fold(sums[1], there, Coding(layout, key(n)), weight)
        assert torch.equal(sums[0], sums[1].cpu())


@gpu
@pytest.mark.parametrize("codec", CODECS, ids=repr)
@pytest.mark.parametrize("tensors", [(4114,), (3, 2048, 2063), (7, 1, 4000, 106)])
def test_a_gpu_adds_to_the_pieces_of_a_sum(codec: MaskedNoise, tensors: tuple[int, ...]) -> None:
    sizes = [3, 0, 2048, 5, 8, 2049, 1]
    n = sum(sizes)
    layout, acc = layout_of(*tensors), change(n, 3.0)
    payload, pieces = codec.encode(change(n), Coding(layout, key(n))), [piece.cuda() for piece in acc.split(sizes)]
    codec.fold(acc, payload, Coding(layout, key(n)), 0.3)
    codec.fold_into({k: v.cuda() for k, v in payload.items()}, Coding(layout, key(n)), 0.3, pieces[0])(pieces)
    assert torch.equal(torch.cat(pieces).cpu(), acc)
