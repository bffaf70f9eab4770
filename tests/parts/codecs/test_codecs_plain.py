"""Codecs that send entries one by one, or not at all: what each promises, in closed form and in bytes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.random import Key, fold, key, uniform
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import Message, expect, pack
from gossamer.methods import z_signfedavg
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.codecs.masks import SampledMask
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.codecs.rotated import Eden
from gossamer.parts.codecs.signs import NoisySign, StochasticSign, Ternary
from gossamer.parts.codecs.sparse import Sparse, Subsample, TopK, top
from gossamer.parts.servers.mean import Mean
from gossamer.testing import check_codec

KEY = key(11)
CNN4 = 389_920  # weights of the network for Fashion-MNIST
steady = settings(deadline=None, derandomize=True)
numbers = st.floats(-(2.0**100), 2.0**100, width=32)
vectors = st.lists(st.one_of(st.just(0.0), numbers), min_size=1, max_size=60).map(torch.tensor)
Half = Literal["float16", "bfloat16"]


def layout(x: Tensor) -> Layout:
    return Layout.of({"x": x})


def through(codec: Codec, x: Tensor, k: Key = KEY) -> Tensor:
    return codec.decode(codec.encode(x, Coding(layout(x), k)), Coding(layout(x), k))


def noise(n: int, *labels: str | int) -> Tensor:
    return uniform(fold(KEY, "vector", *labels), n) * 2 - 1


def message_bytes(payload: Payload) -> int:
    return len(pack(Message("up", 0, 0, 0, 1.0, payload)))


def fewest_bytes(n: int, k: int) -> float:
    """k float32 values, and the logarithm of the number of choices of their indices."""
    return 4 * k + (math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)) / math.log(2) / 8


# All of them


GIVEN = [StochasticSign(0.01), StochasticSign(1e30)]
TAKE_ANYTHING: list[Codec] = [
    Dense(),
    Sparse(),
    TopK(),
    TopK(0.5),
    TopK(1.0),
    Subsample(rescale=False),
    Subsample(1.0),
    StochasticSign(),
    *GIVEN,
    Ternary(),
    Ternary(coded=False),
]
TAKE_LESS = {
    Dense("float16"): 65504,
    Dense("bfloat16"): 3.3e38,
    Subsample(): 1e37,
    Subsample(0.3): 1e38,
    StochasticSign("norm"): 1e37,
}
ALL = [*TAKE_ANYTHING, *TAKE_LESS]


@pytest.mark.parametrize("codec", ALL, ids=repr)
def test_each_keeps_the_contract(codec: Codec) -> None:
    check_codec(codec, largest=TAKE_LESS.get(codec, math.inf), size=1e30 if codec == StochasticSign(1e30) else 1.0)


@pytest.mark.parametrize("codec", ALL, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_empty_vector_is_a_vector(codec: Codec, dtype: torch.dtype) -> None:
    assert through(codec, torch.zeros(0, dtype=dtype)).shape == (0,)


@pytest.mark.parametrize("codec", ALL, ids=repr)
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(codec: Codec, bad: float) -> None:
    x = torch.tensor([1.0, bad, 0.0])
    with pytest.raises(PayloadError, match="'change' holds 1 of 3 values that are not finite"):
        codec.encode(x, Coding(layout(x), KEY))


@pytest.mark.parametrize("codec", [c for c in ALL if c not in GIVEN], ids=repr)
def test_zero_stays_zero(codec: Codec) -> None:
    assert not through(codec, torch.zeros(20)).any()


@pytest.mark.parametrize("codec", [StochasticSign(), StochasticSign("norm"), Ternary(), TopK(), Sparse()], ids=repr)
def test_the_smallest_numbers_are_numbers(codec: Codec) -> None:
    x = torch.full((9,), 2.0**-149)
    decoded = through(codec, x)
    assert decoded.any()
    assert decoded.abs().max() <= 3 * x[0]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Dense(cast(Any, "float8")), "Dense.dtype must be one of model, float16, bfloat16, got 'float8'"),
        (lambda: TopK(0), "TopK.share must be above 0 and at most 1, got 0"),
        (lambda: TopK(math.nan), "TopK.share must be above 0 and at most 1, got nan"),
        (lambda: Subsample(1.5), "Subsample.share must be above 0 and at most 1, got 1.5"),
        (
            lambda: StochasticSign(cast(Any, "mean")),
            "StochasticSign.scale must be max, norm or .*, got 'mean'",
        ),
        (
            lambda: NoisySign(0.0, cast(Any, "rain")),
            r"NoisySign.noise",
        ),
        (lambda: StochasticSign(0.0), "StochasticSign.scale must be .*, got 0.0"),
        (lambda: StochasticSign(math.inf), "StochasticSign.scale must be .*, got inf"),
    ],
)
def test_wrong_values_are_refused(make: Callable[[], object], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        make()


# Dense


@steady
@given(vectors)
def test_dense_loses_nothing(x: Tensor) -> None:
    assert torch.equal(through(Dense(), x), x)


@pytest.mark.parametrize(("dtype", "digits"), [("float16", 11), ("bfloat16", 8)])
def test_half_precision_takes_half_the_bytes_and_rounds_to_nearest(dtype: Half, digits: int) -> None:
    x = noise(1000) + 2
    payload = Dense(dtype).encode(x, Coding(layout(x), KEY))
    assert payload["values"].nbytes == 2000
    assert ((through(Dense(dtype), x) - x).abs() <= x * 2.0**-digits).all()


def test_float64_is_rounded_to_half_by_way_of_float32() -> None:
    x = torch.tensor([1 + 2.0**-11 + 2.0**-40], dtype=torch.float64)  # float32 rounds it to halfway, then it is a tie
    assert through(Dense("float16"), x).item() == 1
    assert through(Dense("float16"), x).dtype == torch.float64


@pytest.mark.parametrize(
    ("dtype", "value", "reason"),
    [
        (
            "float16",
            65536.0,
            r"magnitude 65536, above the maximum 65504 of float16: use Dense\('bfloat16'\) or Dense\(\)",
        ),
        ("float16", -1e9, r"magnitude 1e\+09, above the maximum 65504 of float16"),
        ("bfloat16", 3.4e38, r"magnitude 3.4e\+38, above the maximum 3.38953e\+38 of bfloat16: use Dense\(\), or clip"),
    ],
)
def test_half_precision_refuses_what_it_cannot_hold(dtype: Half, value: float, reason: str) -> None:
    x = torch.tensor([1.0, value])
    with pytest.raises(PayloadError, match=reason):
        Dense(dtype).encode(x, Coding(layout(x), KEY))
    fits = torch.tensor([65504.0, -65504.0])
    assert torch.equal(through(Dense("float16"), fits), fits)


def test_dense_refuses_an_infinity_that_arrives() -> None:
    with pytest.raises(PayloadError, match="'values' holds 1 of 2 values that are not finite"):
        Dense().decode({"values": torch.tensor([1.0, math.inf])}, Coding(layout(torch.zeros(2)), KEY))


# Sparse


@steady
@given(vectors)
def test_sparse_loses_nothing(x: Tensor) -> None:
    assert torch.equal(through(Sparse(), x), x)
    assert torch.equal(through(Sparse(), x.double()), x.double())


@pytest.mark.parametrize("density", [1e-4, 1e-3, 0.01, 0.03, 0.1, 0.2, 0.37, 0.5, 0.62, 0.8, 0.9])
def test_sparse_is_within_5_percent_of_the_best(density: float) -> None:
    x = torch.where(uniform(fold(KEY, "zeros"), CNN4) < density, noise(CNN4), 0)
    payload = Sparse().encode(x, Coding(layout(x), KEY))
    assert torch.equal(Sparse().decode(payload, Coding(layout(x), KEY)), x)
    best = fewest_bytes(CNN4, len(payload["values"]))
    assert sum(array.nbytes for array in payload.values()) <= 1.01 * best + 1
    assert message_bytes(payload) <= 1.01 * best + 90  # header and table


def test_sparse_without_zeros_costs_a_byte_more_than_dense() -> None:
    x = noise(1000) + 2
    payload = Sparse().encode(x, Coding(layout(x), KEY))
    assert sum(array.nbytes for array in payload.values()) == 4001


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ([1.0], "expected 2 float32 values named 'values', got 1"),
        ([1.0, 2.0, 3.0], "got 3"),
        ([1.0, 0.0], "'values' must not contain zeros"),
        ([1.0, math.nan], "not finite"),
    ],
)
def test_sparse_refuses_values_it_did_not_send(values: list[float], reason: str) -> None:
    x = torch.tensor([0.0, 5.0, 0.0, 0.0, 6.0])
    payload = Sparse().encode(x, Coding(layout(x), KEY))
    with pytest.raises(PayloadError, match=reason):
        Sparse().decode({**payload, "values": torch.tensor(values)}, Coding(layout(x), KEY))


# Top-k


def slow_top(x: list[float], k: int) -> set[int]:
    return set(sorted(range(len(x)), key=lambda i: (-abs(x[i]), i))[:k])


@steady
@given(st.lists(st.one_of(st.integers(-3, 3), numbers), min_size=1, max_size=40), st.floats(0.01, 1))
def test_top_k_keeps_the_largest_and_of_equal_ones_the_first(entries: list[float], share: float) -> None:
    x = torch.tensor(entries, dtype=torch.float32)
    kept = slow_top(x.tolist(), TopK(share).kept(len(x)))
    assert through(TopK(share), x).tolist() == [v if i in kept else 0 for i, v in enumerate(x.tolist())]


@pytest.mark.parametrize(
    ("share", "n", "kept"), [(0.03, 100, 3), (0.07, 100, 7), (0.03, 101, 4), (0.03, 1, 1), (1.0, 7, 7), (1e-9, 5, 1)]
)
def test_the_number_kept_is_rounded_up(share: float, n: int, kept: int) -> None:
    assert TopK(share).kept(n) == kept
    assert int((through(TopK(share), noise(n)) != 0).sum()) == kept


@pytest.mark.parametrize("share", [1e-3, 0.03, 0.2, 0.5])
def test_top_k_is_within_5_percent_of_the_best(share: float) -> None:
    x = noise(CNN4)
    payload = TopK(share).encode(x, Coding(layout(x), KEY))
    best = fewest_bytes(CNN4, TopK(share).kept(CNN4))
    assert sum(array.nbytes for array in payload.values()) <= 1.01 * best
    assert message_bytes(payload) <= 1.05 * best


def test_both_ways_to_the_threshold_agree() -> None:
    x = (noise(5000) * 50).round().abs()  # many ties
    for k in (1, 17, 2500, 5000):
        assert int(top(x, k).sum()) == k
        assert x[top(x, k)].min() == x.topk(k, sorted=False).values.min()


def test_top_k_refuses_another_number_of_positions() -> None:
    x = noise(100)
    payload = TopK(0.04).encode(x, Coding(layout(x), KEY))
    with pytest.raises(PayloadError, match="expected indices of 3 entries, got 4"):
        TopK(0.03).decode(payload, Coding(layout(x), KEY))


# Subsample


def test_the_choice_depends_on_the_key_alone() -> None:
    chosen = through(Subsample(0.2), torch.ones(1000)) != 0
    assert torch.equal(chosen, through(Subsample(0.2, rescale=False), noise(1000) + 2) != 0)
    assert not torch.equal(chosen, through(Subsample(0.2), torch.ones(1000), key(12)) != 0)


@pytest.mark.parametrize("share", [0.03125, 0.3, 1.0])
def test_chosen_entries_are_sent_as_they_are_or_rescaled(share: float) -> None:
    x = noise(1000)
    plain, scaled = through(Subsample(share, rescale=False), x), through(Subsample(share), x)
    chosen = plain != 0
    assert torch.equal(plain[chosen], x[chosen])
    assert torch.equal(scaled != 0, chosen)
    assert torch.allclose(scaled[chosen], x[chosen] / share, rtol=1e-6)


def test_each_entry_has_the_same_chance() -> None:
    sent = through(Subsample(), torch.ones(CNN4)) != 0
    assert abs(int(sent.sum()) - CNN4 / 32) < 4 * (CNN4 / 32) ** 0.5
    times = torch.stack([through(Subsample(0.3), torch.ones(10), fold(KEY, i)) != 0 for i in range(500)]).sum(0)
    assert (times - 150).abs().max() < 4 * (500 * 0.3 * 0.7) ** 0.5


def test_a_chance_finer_than_the_noise_is_rounded_and_rescaled_to_match() -> None:
    assert through(Subsample(1e-9), torch.ones(1), KEY).item() in (0, 2.0**24)
    assert Subsample(1e-9)._chance == 2.0**-24


def test_subsampling_sends_no_positions() -> None:
    x = noise(CNN4)
    payload = Subsample().encode(x, Coding(layout(x), KEY))
    assert list(payload) == ["values"]
    assert 8 * message_bytes(payload) / CNN4 < 1.03


def test_what_overflows_when_rescaled_is_refused() -> None:
    x = torch.full((1000,), 3e38)
    with pytest.raises(PayloadError, match=r"'rescaled change' holds .* values that are not finite"):
        Subsample(0.1).encode(x, Coding(layout(x), KEY))


def test_subsample_refuses_another_number_of_values() -> None:
    x = noise(1000)
    with pytest.raises(PayloadError, match=r"expected .* float32 values named 'values', got 999"):
        Subsample(0.5).decode({"values": x[:999]}, Coding(layout(x), KEY))


# Stochastic sign and ternary


U = torch.tensor([1.0, -0.6, 0.3, -0.05, 0.0])
DRAWS = 10_000


def moments(codec: Codec) -> tuple[Tensor, Tensor]:
    """Mean and mean square of what U is decoded to, when it is repeated in one long vector."""
    decoded = through(codec, U.repeat(DRAWS)).double().view(DRAWS, -1)
    return decoded.mean(0), decoded.square().mean(0)


def near(mean: Tensor, wanted: Tensor, variance: Tensor) -> bool:
    """Within four standard errors."""
    return bool(((mean - wanted).abs() <= 4 * (variance.clamp(min=0) / DRAWS).sqrt() + 1e-6).all())


@pytest.mark.parametrize(
    ("codec", "scale"),
    [
        (StochasticSign(), 1.0),
        (StochasticSign("norm"), U.double().norm().item() * DRAWS**0.5),
        (StochasticSign(2.0), 2.0),
    ],
)
def test_a_sign_is_unbiased_and_always_of_the_same_size(codec: Codec, scale: float) -> None:
    mean, square = moments(codec)
    assert torch.allclose(square, torch.full((5,), scale**2, dtype=torch.float64))
    assert near(mean, U, scale**2 - U.double().square())


def test_a_sign_of_given_size_is_unbiased_once_clipped() -> None:
    mean, _ = moments(StochasticSign(0.5))
    clipped = U.clamp(-0.5, 0.5).double()
    assert near(mean, clipped, 0.25 - clipped.square())


@pytest.mark.parametrize("sigma", [0.2, 1.0, 5.0])
def test_a_noisy_sign_has_the_mean_of_its_noise(sigma: float) -> None:
    """Gaussian: eta sigma erf(u / (sqrt(2) sigma)), which tends to u. Uniform: u, clipped to sigma."""
    eta = math.sqrt(math.pi / 2)
    means = {
        "gauss": eta * sigma * torch.erf(U.double() / (math.sqrt(2) * sigma)),
        "uniform": U.clamp(-sigma, sigma).double(),
    }
    for kind, wanted in means.items():
        mean, square = moments(NoisySign(sigma, cast(Any, kind)))
        assert torch.allclose(square, square[0])
        assert near(mean, wanted, square - wanted.square())
    assert float((means["gauss"] - U).abs().max()) <= float(U.abs().max()) ** 3 / (6 * sigma**2)


def test_a_method_of_noisy_signs_has_the_noise_of_its_gradients() -> None:
    """Twice the learning rate makes twice the update, and the same signs."""
    for lr in (0.1, 0.2):
        assert z_signfedavg(lr=lr, sigma=0.5).codec == OnWeights(NoisySign(0.5 * lr))
    assert z_signfedavg(server_lr=2.0).server == Mean("samples", server_lr=2.0)


def test_ternary_is_unbiased_with_the_variance_of_the_paper() -> None:
    mean, square = moments(Ternary())
    u = U.abs().double()
    assert near(mean, U, u - u.square())  # s |u| - u^2 with s = 1
    assert near(square, u, u - u.square())  # as an entry is 1, 0 or -1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1e-30, 1.0, 1e15, 3e38])
def test_decoded_entries_are_exactly_the_scale(dtype: torch.dtype, size: float) -> None:
    x = (noise(500).double() * size).to(dtype)
    scale = x.abs().max().item()
    assert set(through(StochasticSign(), x).tolist()) == {scale, -scale}
    assert set(through(Ternary(), x).tolist()) == {scale, 0, -scale}
    largest = x.abs().argmax()
    for codec in (StochasticSign(), Ternary()):
        assert through(codec, x)[largest] == x[largest], "the largest entry is certain"


def test_one_entry_comes_back_whole() -> None:
    for value in (3.7, -1e-30, 2e38):
        x = torch.tensor([value])
        for codec in (StochasticSign(), StochasticSign("norm"), Ternary()):
            assert torch.equal(through(codec, x), x)


def test_a_norm_without_a_form_is_refused() -> None:
    x = torch.full((100,), 3e38)
    with pytest.raises(PayloadError, match="'norm of the change' holds 1 of 1 values that are not finite"):
        StochasticSign("norm").encode(x, Coding(layout(x), KEY))


@pytest.mark.parametrize(
    ("codec", "most"),
    [(StochasticSign(), 1.002), (StochasticSign(0.01), 1.002), (Ternary(coded=False), 1.602)],
    ids=repr,
)
def test_bits_per_entry(codec: Codec, most: float) -> None:
    x = noise(CNN4)
    assert 8 * message_bytes(codec.encode(x, Coding(layout(x), KEY))) / CNN4 <= most


def test_a_size_known_to_both_ends_is_not_sent() -> None:
    assert list(StochasticSign(0.01).encode(U, Coding(layout(U), KEY))) == ["bits"]
    assert sorted(StochasticSign().encode(U, Coding(layout(U), KEY))) == ["bits", "scale"]


@pytest.mark.parametrize("codec", [StochasticSign(), Ternary()], ids=repr)
@pytest.mark.parametrize(
    ("scale", "reason"),
    [(-1.0, "'scale' must be at least 0, got -1"), (math.nan, "'scale' holds 1 of 1 values that are not finite")],
)
def test_a_scale_never_sent_is_refused(codec: Codec, scale: float, reason: str) -> None:
    payload = codec.encode(U, Coding(layout(U), KEY))
    with pytest.raises(PayloadError, match=reason):
        codec.decode({**payload, "scale": torch.tensor([scale])}, Coding(layout(U), KEY))


@pytest.mark.parametrize(
    ("plain", "coded", "saved"),
    [
        (Ternary(coded=False), Ternary(), 0.64),
        (Eden(1), Eden(1, coded=True), 0.0),
        (Eden(2), Eden(2, coded=True), 0.039),
        (Eden(3), Eden(3, coded=True), 0.049),
        (Eden(4), Eden(4, coded=True), 0.05),
        (SampledMask(), SampledMask(coded=True), 0.155),
    ],
    ids=repr,
)
def test_an_entropy_code_is_shorter_and_decodes_to_the_same(plain: Codec, coded: Codec, saved: float) -> None:
    x = noise(100_000) ** 9 + isinstance(plain, SampledMask)  # trits are mostly zeros, masks mostly ones
    here, there = (codec.encode(x, Coding(layout(x), KEY)) for codec in (plain, coded))
    assert torch.equal(plain.decode(here, Coding(layout(x), KEY)), coded.decode(there, Coding(layout(x), KEY)))
    assert message_bytes(there) / message_bytes(here) == pytest.approx(1 - saved, abs=0.01)
    assert ("coded" in there) == (saved > 0)
    if saved:
        with pytest.raises(PayloadError, match=r"values named '(trits|codes|mask)', got 'coded'"):
            plain.decode(there, Coding(layout(x), KEY))


def test_payloads_never_change() -> None:
    x = (torch.arange(12.0) - 5) / 4
    made = {
        repr(codec): {name: array.tolist() for name, array in codec.encode(x, Coding(layout(x), key(1))).items()}
        for codec in (StochasticSign(), Ternary(), Subsample(0.25), TopK(0.25))
    }
    assert made == {
        "StochasticSign(scale='max')": {"bits": [4, 15], "scale": [1.5]},
        "Ternary(coded=True)": {"scale": [1.5], "trits": [62, 27, 4]},
        "Subsample(share=0.25, rescale=True)": {"values": [4.0]},
        "TopK(share=0.25)": {"bitmap": [1, 12], "values": [-1.25, 1.25, 1.5]},
    }


# What the contract finds


@dataclass(frozen=True)
class Boastful(TopK):
    """Claims to be unbiased."""

    @property
    def unbiased(self) -> bool:
        return True


@dataclass(frozen=True)
class Shrinking(StochasticSign):
    """Two thirds of what it should be."""

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        return super().decode(payload, ctx) * 0.66


@dataclass(frozen=True)
class Contiguous(Dense):
    """Reads the storage of the vector, not its entries."""

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        return {"values": torch.as_strided(x, (ctx.layout.size,), (1,)).clone()}


@dataclass(frozen=True)
class Timid(Dense):
    """Takes nothing above 1,000."""

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        if x.abs().max() > 1000:
            raise PayloadError("too large")
        return super().encode(x, ctx)


@dataclass(frozen=True)
class Believing(Dense):
    """Takes an infinity for a number."""

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        return expect(payload, "values", ctx.layout.dtype, ctx.layout.size)


@dataclass(frozen=True)
class Heavy(Dense):
    """Folds without the weight."""

    def fold(self, acc: Tensor, payload: Payload, ctx: Coding, weight: float) -> None:
        acc.add_(self.decode(payload, ctx))


@pytest.mark.parametrize(
    ("codec", "reason"),
    [
        (Boastful(), "declares itself unbiased, but its bias is"),
        (Shrinking(), "declares itself unbiased, but its bias is"),
        (Contiguous(), "encodes a strided vector differently"),
        (Timid(), "refuses a vector that it must encode: too large"),
        (Believing(), "non-finite values from an altered payload"),
        (Heavy(), "does not add the decoded vector times the weight"),
    ],
)
def test_a_broken_promise_is_found(codec: Codec, reason: str) -> None:
    with pytest.raises(AssertionError, match=reason):
        check_codec(codec)


def test_a_codec_may_refuse_vectors_above_its_declared_limit() -> None:
    check_codec(Timid(), largest=1000)
