"""Fixed point: bits on the wire, rounding, limits of changes and of running statistics."""

import pytest
import torch

from gossamer.core.codec import Coding
from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.random import fold, key, uniform
from gossamer.core.types import Layout
from gossamer.parts.codecs import FixedPoint, OnWeights, StochasticSign

KEY = key(3)


def layout_of(count: int, name: str = "w") -> Layout:
    return Layout.of({name: torch.zeros(count)})


@pytest.mark.parametrize("bits", range(2, 17))
def test_an_entry_takes_its_bits_and_zero_and_the_limits_are_exact(bits: int) -> None:
    codec, layout = FixedPoint(bits, 0.75), layout_of(1000)
    x = torch.tensor([0.0, 0.75, -0.75, 3.0, -3.0]).repeat(200)
    payload = codec.encode(x, Coding(layout, KEY))
    assert sum(array.nbytes for array in payload.values()) == -(-1000 * min(bits, 8) // 8) + 125 * max(0, bits - 8)
    assert torch.equal(codec.decode(payload, Coding(layout, KEY)), x.clamp(-0.75, 0.75))


def test_rounding_is_unbiased_inside_the_limit_and_within_one_step() -> None:
    codec, count = FixedPoint(4, 0.7), 200_000
    layout, step = layout_of(count), 0.7 / 7
    for value in (0.013, -0.333, 0.65):
        x = torch.full((count,), value)
        found = codec.decode(codec.encode(x, Coding(layout, fold(KEY, str(value)))), Coding(layout, KEY))
        assert float((found - x).abs().max()) < step * 1.0001
        assert abs(float(found.double().mean()) - value) < 4 * step / 2 / count**0.5


def test_a_level_above_the_largest_is_refused() -> None:
    codec, layout = FixedPoint(3), layout_of(8)
    payload = {"low": torch.full((3,), 0xFF, dtype=torch.uint8)}  # eight times 7; the largest is 6
    with pytest.raises(PayloadError, match="above 3"):
        codec.decode(payload, Coding(layout, KEY))


def test_running_statistics_have_a_limit_of_their_own_and_variances_are_rounded_up() -> None:
    codec = FixedPoint(16, 1.0, 10.0)
    names = ("norm.running_mean", "norm.running_var", "norm.weight")
    layout = Layout.of({name: torch.zeros(500) for name in names})
    x = layout.flatten({name: uniform(fold(KEY, name), 500) * 8 - 4 for name in names})
    found = layout.unflatten(codec.decode(codec.encode(x, Coding(layout, KEY)), Coding(layout, KEY)))
    wanted, step = layout.unflatten(x), 10 / (2**15 - 1)
    assert torch.allclose(found["norm.weight"], wanted["norm.weight"].clamp(-1, 1), atol=1e-4)
    assert float((found["norm.running_mean"] - wanted["norm.running_mean"]).abs().max()) <= step * 1.01
    over = found["norm.running_var"] - wanted["norm.running_var"]
    assert float(over.min()) >= -1e-6
    assert float(over.max()) <= step * 1.01


def test_a_mean_variance_never_becomes_negative() -> None:
    codec, layout = FixedPoint(8), layout_of(64, "running_var")
    server = uniform(fold(KEY, "server"), 64) * 3
    clients = [uniform(fold(KEY, "client", n), 64) * 1e-6 for n in range(5)]
    sent = [codec.encode(mine - server, Coding(layout, fold(KEY, n))) for n, mine in enumerate(clients)]
    mean = torch.stack([codec.decode(payload, Coding(layout, KEY)) for payload in sent]).mean(0)
    assert float((server + mean).min()) >= -1e-6


def test_clipped_entries_are_counted_and_many_are_warned_about() -> None:
    codec, layout = FixedPoint(limit=0.5), layout_of(100)
    x = torch.zeros(100)
    x[:7] = 0.6
    assert codec.figures(x, Coding(layout, KEY)) == {"beyond_limit": pytest.approx(0.07)}
    assert "7 % of the entries exceed the limits" in (codec.warning({"beyond_limit": 0.07}) or "")
    assert codec.warning({"beyond_limit": 0.001}) is None
    both = OnWeights(StochasticSign(0.1), other=codec)
    whole = Layout.of({"b": torch.zeros(10), "w": torch.zeros(9, 9)})
    assert both.figures(torch.full((91,), 0.6), Coding(whole, KEY)) == {"beyond_limit": 1.0}


@pytest.mark.parametrize(
    ("fields", "text"),
    [({"bits": 1}, "bits must be"), ({"bits": 17}, "bits must be"), ({"limit": 0.0}, "limit must be")],
)
def test_wrong_fields_are_refused(fields: dict[str, float], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        FixedPoint(**fields)  # type: ignore[arg-type]
