"""QUIC-FL: every entry is unbiased, with the error of the tables in closed form, and few large entries."""

import math
from statistics import NormalDist

import pytest
import torch
from torch import Tensor

from gossamer.core.codec import Coding
from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.random import fold, key
from gossamer.core.random.noise import draw
from gossamer.core.types import Layout, Payload
from gossamer.parts.codecs.quic_fl import QuicFL, Table, _shared, _table
from gossamer.parts.codecs.rotated import Eden

KEY = key(91)
CPU = torch.device("cpu")
BITS = (1, 2, 3, 4)
ERRORS = {1: 1.4654, 2: 0.21353, 3: 0.042638, 4: 0.0095131}
PUBLISHED = {1: 1.46701, 2: 0.21491, 3: 0.04312}
"""The errors of the tables in the authors' repository, by the same integral."""
LIMIT = NormalDist().inv_cdf(1 - 1 / 1024)


def table(bits: int) -> Table:
    return _table(bits, torch.float64, CPU)


def moments(of: Table, z: Tensor) -> tuple[Tensor, Tensor]:
    """The mean and the mean square of what is decoded for each z, by the definition: over all h and the random step."""
    found = []
    for value in z.tolist():
        step = min(max(int((of.means < value).sum()), 1), len(of.steps)) - 1
        low, high = of.means[step], of.means[step + 1]
        sent = torch.tensor([int((of.steps[:step] == h).sum()) for h in range(len(of.values))])
        rows = torch.arange(len(sent))
        up = torch.where(rows == of.steps[step], (value - low) / (high - low), 0)
        lower, upper = of.values[rows, sent], of.values[rows, (sent + 1).clamp(max=of.values.shape[1] - 1)]
        found.append([float(((1 - up) * lower**n + up * upper**n).mean()) for n in (1, 2)])
    first, second = torch.tensor(found, dtype=torch.float64).T
    return first, second


@pytest.mark.parametrize("bits", BITS)
def test_tables_are_symmetric_ordered_and_cover_the_support(bits: int) -> None:
    found = table(bits)
    assert found.values.shape == (2 ** {1: 6, 2: 5, 3: 4, 4: 4}[bits], 2**bits)
    assert torch.equal(found.values, -found.values.flip(0, 1))
    assert (found.values.diff(dim=1) > 0).all()
    assert (found.means.diff() > 0).all()
    assert float(found.means[-1]) == pytest.approx(LIMIT, abs=1e-6)


@pytest.mark.parametrize("bits", BITS)
def test_every_value_is_unbiased(bits: int) -> None:
    z = torch.linspace(-3.0972, 3.0972, 23, dtype=torch.float64)
    assert torch.allclose(moments(table(bits), z)[0], z, rtol=0, atol=1e-9)


@pytest.mark.parametrize("bits", BITS)
def test_the_error_for_the_normal_distribution_is_below_that_of_the_published_tables(bits: int) -> None:
    z = torch.linspace(-LIMIT, LIMIT, 241, dtype=torch.float64)
    errors = (moments(table(bits), z)[1] - z * z) * torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)
    total = float(torch.trapezoid(errors, z))
    assert total == pytest.approx(ERRORS[bits], rel=2e-3)
    assert ERRORS[bits] < PUBLISHED.get(bits, math.inf)


def layout(x: Tensor) -> Layout:
    return Layout.of({"x": x})


def through(codec: QuicFL | Eden, x: Tensor, at: int = 0) -> Tensor:
    k = fold(KEY, at)
    return codec.decode(codec.encode(x, Coding(layout(x), k)), Coding(layout(x), k))


def heavy(n: int) -> Tensor:
    return draw("gauss", 1.0, KEY, n) ** 5


@pytest.mark.parametrize("bits", BITS)
def test_the_error_of_a_vector_is_that_of_the_table(bits: int) -> None:
    x = heavy(100_000)
    error = float((through(QuicFL(bits), x) - x).double().square().sum() / x.double().square().sum())
    assert error == pytest.approx(ERRORS[bits], rel=0.05)


@pytest.mark.parametrize("bits", [1, 3])
def test_the_sender_follows_the_moments_of_the_table(bits: int) -> None:
    found, z = table(bits), 0.731
    codec, many = QuicFL(bits), torch.full((40_000,), z, dtype=torch.float64)
    messages = codec._messages(many, KEY, found)
    decoded = found.values[_shared(KEY, found, len(many), CPU), messages]
    first, second = (float(moment) for moment in moments(found, many[:1]))
    deviation = math.sqrt((second - first**2) / len(many))
    assert float(decoded.mean()) == pytest.approx(z, abs=4 * deviation)
    assert float(decoded.square().mean()) == pytest.approx(second, rel=0.05)


def test_a_short_vector_is_unbiased_too() -> None:
    x = torch.tensor([5.0, -1.0, 0.25], dtype=torch.float64)
    decoded = torch.stack([through(QuicFL(2), x, at) for at in range(500)])
    scatter = decoded.std(0) / math.sqrt(len(decoded))
    assert ((decoded.mean(0) - x).abs() < 4 * scatter + 1e-9).all()


def nbytes(payload: Payload) -> int:
    return sum(array.nbytes for array in payload.values())


def test_one_entry_in_512_is_sent_as_it_is() -> None:
    x = heavy(200_000)
    payload = QuicFL(2).encode(x, Coding(layout(x), KEY))
    assert len(payload["large"]) == pytest.approx(200_000 / 512, rel=0.15)
    assert 8 * nbytes(payload) / len(x) == pytest.approx(2 + (32 + 10.5) / 512, abs=0.02)


def test_a_large_entry_out_of_range_is_refused() -> None:
    x = torch.zeros(8)
    x[3] = 1.0
    payload = QuicFL(1).encode(x, Coding(layout(x), KEY))
    assert not len(payload["large"])  # a rotated unit vector of 8 entries has entries of variance 1
    large = {"large": torch.tensor([1e9]), "bitmap": torch.tensor([4], dtype=torch.uint8)}
    with pytest.raises(PayloadError, match=r"'large' has a value outside of 3.097 to 91.510"):
        QuicFL(1).decode({**payload, **large}, Coding(layout(x), KEY))


def test_eden_has_a_smaller_error_of_one_vector() -> None:
    x = heavy(50_000)
    for bits in (1, 2):
        quic, eden = (float((through(codec, x) - x).norm()) for codec in (QuicFL(bits), Eden(bits)))
        assert eden < quic


def test_the_bytes_of_a_message_are_fixed() -> None:
    x = torch.tensor([0.5, -1.0, 0.0, 0.25, 2.0, -0.125, 40.0, -0.5])
    payload = QuicFL(3).encode(x, Coding(layout(x), key(1)))
    found = {name: array.numpy().tobytes().hex() for name, array in payload.items()}
    assert found == {"messages": "59c92c", "scales": "13ab6241", "large": "", "bitmap": "00"}


@pytest.mark.parametrize("bits", [0, 5])
def test_other_numbers_of_bits_are_refused(bits: int) -> None:
    with pytest.raises(ConfigError, match=r"QuicFL.bits must be a whole number from 1 to 4"):
        QuicFL(bits)
