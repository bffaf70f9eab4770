"""QSGD and integer codecs: levels of a scale per block, with the error of the theory and the bytes of the formula."""

import math

import pytest
import torch
from hypothesis import settings
from torch import Tensor

from gossamer import OnWeights, fedavg, simulate
from gossamer.core.bits import bits
from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.random import Key, fold, key, uniform
from gossamer.core.types import Layout, Payload
from gossamer.parts.codecs.quantized import QSGD, Int4, Int8
from gossamer.testing import check_codec, tiny_task

KEY = key(31)
steady = settings(deadline=None, derandomize=True)
CODECS: list[Codec] = [
    QSGD(1),
    QSGD(3, 16, "max"),
    Int8("nearest", None),
    Int4("stochastic", 5),
]
"""Other settings than the defaults, which all tests of contracts cover."""


def layout(x: Tensor) -> Layout:
    return Layout.of({"x": x})


def through(codec: Codec, x: Tensor, k: Key = KEY) -> Tensor:
    return codec.decode(codec.encode(x, Coding(layout(x), k)), Coding(layout(x), k))


def vector(n: int) -> Tensor:
    return uniform(fold(KEY, "vector"), n, dtype=torch.float64) * 2 - 1


def nbytes(payload: Payload) -> int:
    return sum(array.nbytes for array in payload.values())


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_each_keeps_the_contract(codec: Codec) -> None:
    check_codec(codec)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_zero_and_nothing_stay_so(codec: Codec) -> None:
    assert not through(codec, torch.zeros(300)).any()
    assert through(codec, torch.zeros(0)).shape == (0,)


# QSGD


def slow_qsgd(x: list[float], levels: int, bucket: int, noise: list[float]) -> list[float]:
    """Section 3.1 of the paper, entry by entry."""
    found = []
    for number, value in enumerate(x):
        group = x[number - number % bucket :][:bucket]
        length = math.sqrt(math.fsum(v * v for v in group))
        exact = levels * value / length
        level = math.floor(exact) + (noise[number] < exact - math.floor(exact))
        found.append(length * level / levels)
    return found


@pytest.mark.parametrize(("levels", "bucket"), [(1, 7), (4, 16), (127, 100)])
def test_qsgd_is_the_formula_of_the_paper(levels: int, bucket: int) -> None:
    x = vector(100)
    full = -(-len(x) // bucket) * bucket
    noise = uniform(fold(KEY, "qsgd"), full, dtype=torch.float64)
    wanted = slow_qsgd(x.tolist(), levels, bucket, noise.tolist())
    assert through(QSGD(levels, bucket), x).tolist() == pytest.approx(wanted, rel=1e-12, abs=1e-15)


@pytest.mark.parametrize(("levels", "bucket"), [(1, 64), (2, 512), (16, 64)])
def test_the_error_of_qsgd_is_within_the_bound_of_the_paper(levels: int, bucket: int) -> None:
    x, codec = vector(bucket), QSGD(levels, bucket)
    errors = [(through(codec, x, fold(KEY, draw)) - x).square().sum() / x.square().sum() for draw in range(60)]
    mean = float(torch.stack(errors).mean())
    bound = min(bucket / levels**2, math.sqrt(bucket) / levels)  # Lemma 3.1 (ii)
    assert 0.1 * bound < mean <= bound


def test_the_expected_number_of_nonzero_levels_is_within_the_bound_of_the_paper() -> None:
    x, codec = vector(4096), QSGD(4, None)
    nonzero = [int(through(codec, x, fold(KEY, draw)).count_nonzero()) for draw in range(20)]
    assert sum(nonzero) / 20 <= 4 * (4 + math.sqrt(4096))  # Lemma 3.1 (iii)


def test_elias_code_takes_fewer_bits_than_a_fixed_width() -> None:
    x = vector(50_000)
    short = QSGD(7, 512).encode(x, Coding(layout(x), KEY))
    fixed = QSGD(7, 512, "max").encode(x, Coding(layout(x), KEY))
    assert "signs" in short
    assert set(fixed) == {"levels", "scales"}
    assert 8 * nbytes(short) / len(x) < 2.1  # of which 0.13 bits are norms in float64
    assert len(fixed["levels"]) == 25_000


def test_gamma_code_has_the_length_of_its_formula() -> None:
    x = vector(20_000)
    codec = QSGD(127, 2048)
    payload = codec.encode(x, Coding(layout(x), KEY))
    levels = codec._unpacked(payload, len(x))
    sizes = levels[levels != 0].abs()
    gamma = sum(2 * (int(size).bit_length() - 1) + 1 for size in sizes)
    assert "digits" in payload
    assert gamma / 8 <= len(payload["lengths"]) + len(payload["digits"]) < gamma / 8 + 2


@pytest.mark.parametrize(
    ("name", "array"),
    [
        ("lengths", bits(torch.tensor([True] * 3))),
        ("lengths", torch.zeros(1, dtype=torch.uint8)),
        ("lengths", torch.cat([torch.zeros(9, dtype=torch.uint8), bits(torch.tensor([True] * 2))])),
        ("signs", torch.zeros(0, dtype=torch.uint8)),
        ("digits", torch.full((1,), 255, dtype=torch.uint8)),
    ],
)
def test_damaged_elias_code_is_refused(name: str, array: Tensor) -> None:
    x = torch.zeros(64)
    x[:2] = torch.tensor([3.0, -1.0])
    codec = QSGD(7, None, "max")
    payload = codec.encode(x, Coding(layout(x), KEY))
    with pytest.raises(PayloadError):
        codec.decode({**payload, name: array}, Coding(layout(x), KEY))


def test_a_level_above_the_largest_is_refused() -> None:
    x = torch.zeros(64)
    x[:2] = torch.tensor([3.0, -3.0])
    codec = QSGD(5, None, "max")
    payload = codec.encode(x, Coding(layout(x), KEY))
    assert set(payload) == {"quotients", "remainders", "signs", "lengths", "digits", "scales"}
    with pytest.raises(PayloadError, match="a level is above 5"):
        codec.decode({**payload, "digits": bits(torch.tensor([True] * 4))}, Coding(layout(x), KEY))


GOLDEN: dict[Codec, dict[str, str]] = {
    QSGD(3, None, "max"): {
        "quotients": "47",
        "remainders": "0103",
        "signs": "09",
        "lengths": "1b",
        "digits": "01",
        "scales": "00000040",
    },
    Int8(block=16): {
        "levels": "1fc100107ff80000000000e0" + 20 * "00",
        "scales": "0000004000000000",
    },
    Int4("nearest", None): {"levels": "39877e77775777777777777777777777", "scales": "00000040"},
}


def test_the_bytes_of_a_message_are_fixed() -> None:
    x = torch.tensor([0.5, -1.0, 0.0, 0.25, 2.0, -0.125, 0.0, 0.0, 0.0, 0.0, 0.0, -0.5] + [0.0] * 20)
    found = {
        codec: {
            name: array.numpy().tobytes().hex() for name, array in codec.encode(x, Coding(layout(x), key(1))).items()
        }
        for codec in GOLDEN
    }
    assert found == GOLDEN


# Integers


@pytest.mark.parametrize(("codec", "top"), [(Int8("nearest", 10), 127), (Int4("nearest", 10), 7)])
def test_the_nearest_level_is_within_half_a_step(codec: Codec, top: int) -> None:
    x = vector(95) * torch.logspace(-3, 3, 95, dtype=torch.float64)
    error = (through(codec, x) - x).abs()
    for start in range(0, 95, 10):
        step = x[start : start + 10].abs().max() / top
        assert error[start : start + 10].max() <= step / 2 * (1 + 1e-9)


def test_the_largest_entry_of_each_block_is_exact() -> None:
    x = torch.tensor([1.0, -3.0, 2.0, 0.0, 1e-8, -1e-9])
    decoded = through(Int8(block=3), x)
    assert decoded[1] == -3
    assert decoded[4] == x[4]


def test_a_block_does_not_see_the_others() -> None:
    quiet = vector(64) * 1e-6
    loud = torch.cat([quiet, torch.full((64,), 1e6, dtype=torch.float64)])
    assert torch.equal(through(Int8("nearest", 64), loud)[:64], through(Int8("nearest", 64), quiet))


def test_minus_128_is_refused() -> None:
    x = torch.ones(4)
    payload = Int8().encode(x, Coding(layout(x), KEY))
    with pytest.raises(PayloadError, match="a level is above 127"):
        Int8().decode({**payload, "levels": torch.full((4,), -128, dtype=torch.int8)}, Coding(layout(x), KEY))


def test_both_links_can_be_quantized() -> None:
    method = fedavg(epochs=1).with_parts(codec=OnWeights(Int8()), down=OnWeights(Int8()))
    dense, small = (simulate(each, tiny_task(), rounds=2).metrics[-1] for each in (fedavg(epochs=1), method))
    assert sum(small["bytes_down"].values()) < 0.6 * sum(dense["bytes_down"].values())
    assert small["accuracy"] == pytest.approx(dense["accuracy"], abs=0.2)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: QSGD(0), "QSGD.levels must be a whole number from 1 to 127, got 0"),
        (lambda: QSGD(bucket=0), "QSGD.bucket must be at least 1, or none, got 0"),
        (lambda: QSGD(norm="l1"), "QSGD.norm must be"),  # type: ignore[arg-type]
        (lambda: Int8(block=0), "Int8.block must be at least 1, or none, got 0"),
        (lambda: Int4("up"), "Int4.rounding must be"),  # type: ignore[arg-type]
    ],
)
def test_wrong_settings_are_refused(make: type, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make()
