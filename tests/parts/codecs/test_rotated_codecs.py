"""Rotation, DRIVE and EDEN: orthogonal, with the error of the theory, unbiased, and about one bit per entry."""

import itertools
import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gossamer.core.bits import unbits
from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.exact import CACHED, norm
from gossamer.core.random import fold, key, uniform
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import Message, pack
from gossamer.parts.codecs.rotated import Drive, Eden, nearest
from gossamer.parts.codecs.rotation import BLOCK, Rotation, hadamard_
from gossamer.testing import check_codec

KEY = key(8)
SIZES = (1, 2, 3, 7, 64, 500, 1000, 8191, 8192, 8193, 20_000)
CNN4 = 389_920
DISTORTION = {1: 1 - 2 / math.pi, 2: 0.1175, 3: 0.03454, 4: 0.009497}  # of Lloyd and Max, as published
NORMAL = NormalDist()
steady = settings(deadline=None, derandomize=True)


def gauss(n: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Standard normal entries, by Box and Muller."""
    u, v = uniform(fold(KEY, "gauss", n), 2 * n, dtype=torch.float64).view(2, n)
    return ((-2 * torch.log1p(-u)).sqrt() * (2 * math.pi * v).cos()).to(dtype)


def heavy(n: int) -> Tensor:
    """Entries with tails far above the normal: a few of them hold most of the norm."""
    return gauss(n) ** 5


def sparse(n: int) -> Tensor:
    """Three entries, one of which outweighs the others."""
    x = torch.zeros(n)
    x[torch.tensor([1, n // 2, n - 1])] = torch.tensor([5.0, 3.0, 1.0])
    return x


VECTORS = {"gauss": gauss, "heavy": heavy, "sparse": sparse}


def layout(n: int, dtype: torch.dtype = torch.float32) -> Layout:
    return Layout((("x", torch.Size([n])),), dtype)


def through(codec: Codec, x: Tensor, draw: int = 0) -> Tensor:
    k, shape = fold(KEY, draw), layout(len(x), x.dtype)
    return codec.decode(codec.encode(x, Coding(shape, k)), Coding(shape, k))


def error(codec: Codec, x: Tensor, draws: int = 4) -> float:
    """The squared error of what is decoded, as a share of the squared norm: the mean of a few keys."""
    missed = sum(float((through(codec, x, draw) - x).double().square().sum()) for draw in range(draws))
    return missed / draws / float(x.double().square().sum())


def nbytes(payload: Payload) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in payload.values())


# The rotation


def sylvester(d: int) -> Tensor:
    """The Hadamard matrix from its recursion."""
    if d == 1:
        return torch.ones(1, 1, dtype=torch.float64)
    half = sylvester(d // 2)
    return torch.cat((torch.cat((half, half), 1), torch.cat((half, -half), 1)))


@pytest.mark.parametrize("d", [1, 2, 4, 64, 512])
def test_the_transform_is_the_hadamard_matrix(d: int) -> None:
    x = gauss(3 * d, torch.float64).view(3, d)
    wanted = x @ sylvester(d)
    assert torch.allclose(hadamard_(x.clone()), wanted, rtol=1e-12, atol=1e-12)
    assert torch.allclose(hadamard_(x.T.contiguous(), 0), wanted.T, rtol=1e-12, atol=1e-12)


def stages(x: Tensor) -> Tensor:
    """The transform of each row, stage by stage: entries i and i + 2**s become their sum and difference."""
    places = torch.arange(x.shape[1])
    for stage in range(x.shape[1].bit_length() - 1):
        other = x[:, places ^ (1 << stage)]
        x = torch.where(places >> stage & 1 == 0, x + other, other - x)
    return x


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((40, BLOCK), -1),  # more rows than a CPU takes at a time
        ((4096, 70), 0),
        ((3, 2048, 100), 1),
        ((2, CACHED + 5), 0),
        ((8, CACHED + 5), 0),
        ((2, 2, 3), 1),
        ((5, 1), -1),
    ],
)
def test_bits_are_those_of_the_stages_wherever_memory_is_cut(
    shape: tuple[int, ...], dim: int, dtype: torch.dtype
) -> None:
    x = gauss(math.prod(shape), dtype).view(shape)
    last = x.movedim(dim, -1)
    wanted = stages(last.reshape(-1, shape[dim])).view(last.shape).movedim(-1, dim)
    found = x.clone()
    assert hadamard_(found, dim) is found
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("n", SIZES)
def test_the_rotation_keeps_the_norm_and_is_undone(n: int) -> None:
    x, rotation = gauss(n), Rotation(n, KEY)
    y = rotation.forward(x)
    assert abs(norm(y) / norm(x) - 1) < 1e-6
    before = y.clone()
    assert norm(rotation.inverse(y) - x) < 1e-6 * norm(x)
    assert torch.equal(y, before)
    assert not torch.equal(y, Rotation(n, fold(KEY, 1)).forward(x)) or n == 1


@pytest.mark.parametrize("n", [1, 5, 12, 33])
def test_the_rotation_is_orthogonal(n: int) -> None:
    rotation = Rotation(n, KEY)
    matrix = torch.stack([rotation.forward(e) for e in torch.eye(n, dtype=torch.float64)])
    assert torch.allclose(matrix @ matrix.T, torch.eye(n, dtype=torch.float64), atol=1e-14)


@pytest.mark.parametrize("n", [500, 8192, 8193, 20_000])
@pytest.mark.parametrize("at", [0, 0.5, 1])
def test_a_spike_is_spread_over_its_block(n: int, at: float) -> None:
    spike = torch.zeros(n)
    spike[int(at * (n - 1))] = 1
    rotation = Rotation(n, KEY)
    y = rotation.forward(spike)
    assert y.abs().max() < 6 / math.sqrt(rotation.block)
    assert (y != 0).sum() > rotation.block // 2


@steady
@given(st.integers(0, 100_000))
def test_segments_cover_the_vector_without_padding(n: int) -> None:
    rotation = Rotation(n, KEY)
    pieces = rotation.cut(torch.arange(n))
    assert torch.equal(torch.cat([piece.reshape(-1) for piece in pieces]), torch.arange(n))
    assert rotation.segments == sum(len(piece) for piece in pieces) <= max(2, -(-n // BLOCK))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "levels", [*(Eden(bits).levels() for bits in range(1, 9)), (-1.0, 1.0), (-9.0, 0.0, 0.001, 5.0)]
)
def test_the_nearest_level_is_found_by_cells_as_by_search(levels: tuple[float, ...], dtype: torch.dtype) -> None:
    values = torch.tensor(levels, dtype=dtype)
    middles = (values[1:] + values[:-1]) * 0.5
    close = [torch.nextafter(middles, torch.full_like(middles, end)) for end in (-math.inf, math.inf)]
    z = torch.cat((gauss(3000, dtype) * 2, values, middles, *close, torch.tensor([-90.0, 90.0], dtype=dtype)))
    assert torch.equal(nearest(z, levels).int(), torch.bucketize(z, middles, right=True).int())


# Error and bias


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("n", [2**12, 10_001, 2**15])
def test_the_errors_of_drive_are_those_of_the_paper(n: int, name: str) -> None:
    x = VECTORS[name](n)
    assert error(Drive(), x) == pytest.approx(math.pi / 2 - 1, rel=0.05)
    assert error(Drive("least-squares"), x) == pytest.approx(1 - 2 / math.pi, rel=0.05)


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("bits", DISTORTION)
def test_the_errors_of_eden_follow_from_lloyd_and_max(bits: int, name: str) -> None:
    wanted = 1 / (1 - DISTORTION[bits]) - 1
    assert error(Eden(bits), VECTORS[name](2**14)) == pytest.approx(wanted, rel=0.05)


def test_the_error_of_eden_falls_to_a_third_or_less_with_each_bit() -> None:
    errors = [error(Eden(bits), gauss(2**14), draws=1) for bits in range(1, 9)]
    assert all(less < more / 3 for more, less in itertools.pairwise(errors))


@pytest.mark.parametrize("name", ["gauss", "sparse"])
@pytest.mark.parametrize("codec", [Drive(), Eden(3)], ids=repr)
@pytest.mark.parametrize("n", [16, 256])
def test_decoding_is_unbiased(n: int, codec: Codec, name: str) -> None:
    """The mean of K draws has the squared error of one draw over K; half as much again is allowed."""
    assert codec.unbiased
    x, draws = VECTORS[name](n), 150
    decoded = torch.stack([through(codec, x, draw) for draw in range(draws)]).double()
    spread = (decoded - x).square().sum(1).mean() / draws
    assert (decoded.mean(0) - x).square().sum() < 1.5 * spread


def test_least_squares_is_too_short_by_two_over_pi() -> None:
    codec, x = Drive("least-squares"), gauss(2**13)
    assert not codec.unbiased
    assert float(through(codec, x) @ x / (x @ x)) == pytest.approx(2 / math.pi, rel=0.02)


@pytest.mark.parametrize("name", VECTORS)
@pytest.mark.parametrize("n", [1, 7, 500, 8193, 20_000])
def test_eden_of_one_bit_is_unbiased_drive(n: int, name: str) -> None:
    x, shape = VECTORS[name](max(n, 3))[:n], layout(n)
    drive, eden = Drive().encode(x, Coding(shape, KEY)), Eden(1).encode(x, Coding(shape, KEY))
    assert torch.equal(drive["codes"], eden["codes"])
    one, other = Drive().decode(drive, Coding(shape, KEY)), Eden(1).decode(eden, Coding(shape, KEY))
    assert norm(one - other) <= 1e-6 * norm(one)


@pytest.mark.parametrize("scale", ["unbiased", "least-squares"])
def test_drive_sends_signs_and_the_scales_of_the_paper(scale: str) -> None:
    n = 20_000
    codec, x, rotation = Drive(scale), gauss(n), Rotation(n, KEY)  # type: ignore[arg-type]
    payload = codec.encode(x, Coding(layout(n), KEY))
    y = rotation.forward(x).double()
    assert torch.equal(unbits(payload["codes"], n), y >= 0)
    rows = [row for piece in rotation.cut(y) for row in piece]
    unbiased = [float(row @ row / row.abs().sum()) for row in rows]
    wanted = unbiased if scale == "unbiased" else [float(row.abs().mean()) for row in rows]
    assert payload["scales"].tolist() == pytest.approx(wanted, rel=1e-5)


def test_eden_sends_the_nearest_level_lowest_bit_first() -> None:
    n, width = 1000, 3
    payload = Eden(width).encode(gauss(n), Coding(layout(n), KEY))
    flags = unbits(payload["codes"], n * width).view(n, width).tolist()
    found = [sum(flag << bit for bit, flag in enumerate(row)) for row in flags]
    rotation, levels = Rotation(n, KEY), torch.tensor(Eden(width).levels())
    rows = [row for piece in rotation.cut(rotation.forward(gauss(n))) for row in piece]
    z = torch.cat([row * math.sqrt(len(row)) / norm(row) for row in rows])
    nearest = (z.view(-1, 1) - levels).abs().argmin(1)
    assert found == nearest.tolist()


@pytest.mark.parametrize("bits", range(1, 9))
def test_each_level_is_the_mean_of_its_cell(bits: int) -> None:
    """Of all sets of levels that ascend, only the best for the normal distribution has this property."""
    levels = Eden(bits).levels()
    assert len(levels) == 2**bits
    assert list(levels) == sorted(levels) == [-level for level in reversed(levels)]
    edges = [-math.inf, *((a + b) / 2 for a, b in itertools.pairwise(levels)), math.inf]
    for level, (low, high) in zip(levels, itertools.pairwise(edges), strict=True):
        low, high = sorted((abs(low), abs(high))) if low * high > 0 else (low, high)  # the right tail is more exact
        mass = (math.erfc(low / math.sqrt(2)) - math.erfc(high / math.sqrt(2))) / 2
        assert abs(level) == pytest.approx(abs(NORMAL.pdf(low) - NORMAL.pdf(high)) / mass, abs=2e-9)


# What it costs


def awkward_sizes() -> list[int]:
    powers = [2**p + step for p in range(9, 19) for step in (-1, 0, 1)]
    return [500, 501, 769, *powers, *range(777, 400_000, 30_011), CNN4, 400_000]


def test_messages_stay_near_one_bit_per_entry() -> None:
    for n in awkward_sizes():
        payload = Drive().encode(torch.ones(n), Coding(layout(n), KEY))
        rotation = Rotation(n, KEY)
        assert nbytes(payload) == -(-n // 8) + 4 * rotation.segments
        assert 8 * nbytes(payload) <= (1.15 if n < 2000 else 1.04) * n
        message = pack(Message("up", 0, 0, 0, 1.0, payload))
        assert 8 * len(message) <= 1.35 * n or n < 2000


def test_cnn4_takes_little_more_than_its_bits() -> None:
    payload = Drive().encode(torch.ones(CNN4), Coding(layout(CNN4), KEY))
    message = pack(Message("up", 0, 0, 0, 1.0, payload))
    assert 8 * len(message) / CNN4 < 1.006
    assert sorted(payload) == ["codes", "scales"]


@pytest.mark.parametrize("bits", range(1, 9))
def test_eden_takes_its_bits_densely(bits: int) -> None:
    payload = Eden(bits).encode(gauss(1001), Coding(layout(1001), KEY))
    assert len(payload["codes"]) == -(-1001 * bits // 8)


# The contract, and what is refused


@pytest.mark.parametrize("codec", [Drive("least-squares"), Eden(5)], ids=repr)
def test_codecs_keep_their_contract(codec: Codec) -> None:
    check_codec(codec)
    assert codec.exact


@pytest.mark.parametrize("codec", [Drive(), Drive("least-squares"), Eden(4)], ids=repr)
@pytest.mark.parametrize("scale", [2.0**-100, 2.0**100])
def test_powers_of_two_change_the_scales_alone(codec: Codec, scale: float) -> None:
    x, shape = gauss(1000), layout(1000)
    payload, scaled = codec.encode(x, Coding(shape, KEY)), codec.encode(x * scale, Coding(shape, KEY))
    assert torch.equal(payload["codes"], scaled["codes"])
    assert torch.equal(payload["scales"] * scale, scaled["scales"])
    assert torch.equal(codec.decode(payload, Coding(shape, KEY)) * scale, codec.decode(scaled, Coding(shape, KEY)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("codec", [Drive(), Eden(8)], ids=repr)
def test_the_ends_of_the_range_stay_finite(codec: Codec, dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    for value in (info.max, info.smallest_normal * info.eps):
        decoded = through(codec, torch.full((1000,), value, dtype=dtype))
        assert torch.isfinite(decoded).all()
        assert decoded.any()


@pytest.mark.parametrize("codec", [Drive(), Drive("least-squares"), Eden(2)], ids=repr)
def test_zeros_stay_zeros(codec: Codec) -> None:
    x = gauss(3 * BLOCK + 5)
    x[5 + BLOCK : 5 + 2 * BLOCK] = 0
    decoded = through(codec, x)
    assert not decoded[5 + BLOCK : 5 + 2 * BLOCK].any()
    assert decoded.ne(0).sum() > 2 * BLOCK - 100
    assert not through(codec, torch.zeros(1000)).any()
    assert through(codec, torch.zeros(0)).shape == (0,)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_change_that_is_not_finite_is_refused(value: float) -> None:
    x = gauss(1000)
    x[17] = value
    with pytest.raises(PayloadError, match="'change' holds 1 of 1,000 values that are not finite"):
        Drive().encode(x, Coding(layout(1000), KEY))


def altered(name: str, at: int, value: float) -> Payload:
    payload = Eden(3).encode(gauss(1001), Coding(layout(1001), KEY))
    payload[name][at] = value
    return payload


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (altered("scales", 1, math.nan), "'scales' holds 1 of 2 values that are not finite"),
        (altered("scales", 0, math.inf), "'scales' holds 1 of 2"),
        (altered("scales", 0, -1.0), "'scales' holds a negative value"),
        (altered("scales", 1, -0.0), "'scales' holds a negative value"),
        (altered("codes", -1, 0x80), "'codes' has ones after its 3,003 bits"),
    ],
)
def test_altered_payloads_are_refused(payload: Payload, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        Eden(3).decode(payload, Coding(layout(1001), KEY))


@pytest.mark.parametrize("name", ["codes", "scales"])
@pytest.mark.parametrize("count", [-1, 1])
def test_wrong_counts_are_refused(name: str, count: int) -> None:
    payload = Drive().encode(gauss(1000), Coding(layout(1000), KEY))
    longer = torch.cat((payload[name], payload[name]))
    payload[name] = longer[: len(payload[name]) + count]
    with pytest.raises(PayloadError, match=f"values named '{name}', got"):
        Drive().decode(payload, Coding(layout(1000), KEY))


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Drive\.scale must be one of least-squares, unbiased, got 'best'"):
        Drive("best")  # type: ignore[arg-type]
    for bits in (0, 9, 1.5):
        with pytest.raises(ConfigError, match=r"Eden\.bits must be a whole number"):
            Eden(bits)  # type: ignore[arg-type]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("codec", [Drive(), Drive("least-squares"), Eden(1), Eden(3), Eden(8)], ids=repr)
@pytest.mark.parametrize("n", [0, 1, 7, 1000, 8192, 100_003])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_gpu_gives_the_same_bytes(dtype: torch.dtype, n: int, codec: Codec) -> None:
    for scale in (1.0, 1e-40, 1e30):
        x, shape = gauss(n, dtype) * scale, layout(n, dtype)
        here, there = codec.encode(x, Coding(shape, KEY)), codec.encode(x.cuda(), Coding(shape, KEY))
        assert all(torch.equal(here[name], there[name].cpu()) for name in here)
        assert torch.equal(codec.decode(here, Coding(shape, KEY)), codec.decode(there, Coding(shape, KEY)).cpu())
