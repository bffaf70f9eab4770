"""Codecs over whole models, and what they owe."""

from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from gossamer import (
    Dense,
    Eden,
    Feedback,
    MaskedNoise,
    OnWeights,
    PayloadError,
    StochasticSign,
    Ternary,
    TopK,
    fedavg,
    simulate,
)
from gossamer.cli.settings import assign
from gossamer.core.codec import Coding
from gossamer.core.random import fold, key, uniform
from gossamer.core.types import Layout, Params
from gossamer.core.wire import Message, pack, sizes
from gossamer.methods import eden
from gossamer.parts.codecs import Codec, OneBit, Retain, masked_noise
from gossamer.tasks.nets import build
from gossamer.testing import check_codec, tiny_task

KEY = key(5)
CHANGE = {
    "conv.weight": torch.tensor([[0.4, -0.2], [0.1, 0.8], [-0.9, 0.3]]),
    "embedding.weight": torch.tensor([[3.0, 4.0]]),
    "norm.bias": torch.tensor([0.5, -1.0]),
}
LAYOUT = Layout.of(CHANGE)


@pytest.mark.parametrize(
    "codec",
    [
        OnWeights(MaskedNoise()),
        OnWeights(Ternary(), per_tensor=True),
        OnWeights(Feedback(TopK(0.1)), per_tensor=True, min_dim=0),
        OnWeights(Eden(2), other=Dense("bfloat16")),
        Feedback(StochasticSign()),
        Feedback(OnWeights(TopK(0.2))),
        Retain(Dense(), 0.5),
        Retain(Ternary(), accumulate=True),
        OnWeights(OneBit(retain="change"), exclude=("embedding.*",)),
    ],
    ids=repr,
)
def test_they_keep_the_contract_of_codecs(codec: Codec) -> None:
    check_codec(codec)


def decoded(codec: Codec) -> Params:
    return LAYOUT.unflatten(
        codec.decode(codec.encode(LAYOUT.flatten(CHANGE), Coding(LAYOUT, KEY)), Coding(LAYOUT, KEY))
    )


def test_small_tensors_and_those_left_out_go_dense() -> None:
    found = decoded(OnWeights(StochasticSign(1.0), exclude=("embedding.*",)))
    assert torch.equal(found["norm.bias"], CHANGE["norm.bias"])
    assert torch.equal(found["embedding.weight"], CHANGE["embedding.weight"])
    assert set(found["conv.weight"].abs().flatten().tolist()) == {1.0}


def test_per_tensor_each_tensor_has_its_scale() -> None:
    together, apart = decoded(OnWeights(StochasticSign())), decoded(OnWeights(StochasticSign(), per_tensor=True))
    assert together["conv.weight"].abs().unique().tolist() == [4.0]
    assert apart["conv.weight"].abs().unique().tolist() == pytest.approx([0.9])
    assert apart["embedding.weight"].abs().unique().tolist() == [4.0]


def test_per_tensor_each_tensor_has_its_draws() -> None:
    same = {"a": torch.full((20, 20), 0.1), "b": torch.full((20, 20), 0.1), "c": torch.ones(1)}
    layout, codec = Layout.of(same), OnWeights(StochasticSign(1.0), per_tensor=True)
    found = layout.unflatten(codec.decode(codec.encode(layout.flatten(same), Coding(layout, KEY)), Coding(layout, KEY)))
    assert not torch.equal(found["a"], found["b"])


def test_an_array_that_is_nobodys_is_refused() -> None:
    codec = OnWeights(Ternary(), per_tensor=True)
    payload = codec.encode(LAYOUT.flatten(CHANGE), Coding(LAYOUT, KEY))
    with pytest.raises(PayloadError, match=r"unexpected array 'x'"):
        codec.decode({**payload, "x": torch.zeros(1)}, Coding(LAYOUT, KEY))


def test_a_refused_piece_leaves_the_sum_as_it_was() -> None:
    codec = OnWeights(Ternary(), per_tensor=True)
    payload = codec.encode(LAYOUT.flatten(CHANGE), Coding(LAYOUT, KEY))
    acc = torch.zeros(LAYOUT.size)
    with pytest.raises(PayloadError):
        codec.fold(acc, {**payload, "0.scale": torch.tensor([torch.nan])}, Coding(LAYOUT, KEY), 1.0)
    assert not acc.any()


class Made(TorchDispatchMode):
    """The length of the longest tensor that is not a piece of the sum or of a payload."""

    def __init__(self, *known: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch exempts the class, not its constructor
        self.known, self.longest = {tensor.untyped_storage().data_ptr() for tensor in known}, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else [out]:
            if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().data_ptr() not in self.known:
                self.longest = max(self.longest, tensor.numel())
        return out


MODEL = {"a.weight": (50, 61), "b.bias": (5,), "c.weight": (3, 7), "d.running": (9,), "e.weight": (40, 50)}
"""Weights that are not adjacent in the vector, nor on whole bytes of a mask."""


MASKS = [MaskedNoise(alpha=0.01), MaskedNoise(True, "gauss"), MaskedNoise()]


@pytest.mark.parametrize(
    "inner",
    [*(replace(m, coded=False, block=64) for m in MASKS), Feedback(MaskedNoise(True, coded=False, block=64))],
    ids=repr,
)
@pytest.mark.parametrize("each", [False, True])
def test_masked_noise_is_added_in_place(inner: Codec, each: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks, without another vector of the model's size, and with the bits of decoding and adding."""
    monkeypatch.setitem(masked_noise.CHUNK, "cpu", 64)
    codec = OnWeights(inner, per_tensor=each)
    layout = Layout(tuple((name, torch.Size(shape)) for name, shape in MODEL.items()))
    change, acc = (uniform(fold(KEY, label), layout.size) - 0.5 for label in ("change", "sum"))
    payload = codec.encode(change * 0.01, Coding(layout, KEY))
    wanted = layout.unflatten(acc + codec.decode(payload, Coding(layout, KEY)) * 0.3)
    with Made(acc, *payload.values()) as made:
        codec.fold(acc, payload, Coding(layout, KEY), 0.3)
    found = layout.unflatten(acc)
    assert all(torch.equal(found[name], wanted[name]) for name in MODEL if name.endswith("weight"))
    assert all(torch.allclose(found[name], wanted[name], rtol=0, atol=1e-7) for name in MODEL)
    assert made.longest <= 128  # 64 entries of masked noise, their words, and the scales of two blocks


@pytest.mark.parametrize("bad", ["2.mask", "1.scales", "0.mask", "rest.values", "stray"])
def test_a_refused_piece_of_masked_noise_leaves_the_sum_as_it_was(bad: str) -> None:
    codec = OnWeights(MaskedNoise(), per_tensor=True)
    layout = Layout(tuple((name, torch.Size(shape)) for name, shape in MODEL.items()))
    payload = codec.encode(torch.zeros(layout.size), Coding(layout, KEY))
    acc = torch.zeros(layout.size)
    with pytest.raises(PayloadError):
        codec.fold(acc, {**payload, bad: torch.full((1,), -1.0)}, Coding(layout, KEY), 1.0)
    assert not acc.any()


# Training through a codec for the remaining tensors


@pytest.mark.parametrize("per_tensor", [False, True])
def test_training_uses_the_codec_of_the_remaining_tensors(per_tensor: bool) -> None:
    """It is the same as with the codec directly, but for the key of the group."""
    inner = OnWeights(MaskedNoise(learn_masks=True), per_tensor=per_tensor, exclude=("embedding.*",))
    codec = OnWeights(Dense(), exclude=("conv.*",), other=inner)
    context = codec.surrogate_context(Coding(LAYOUT, KEY), 4, torch.device("cpu"))
    found = codec.surrogate(CHANGE, context, torch.tensor(3))
    assert set(found) == {"conv.weight"}
    rest = LAYOUT.only(["conv.weight", "norm.bias"])
    alone = inner.surrogate_context(Coding(rest, fold(KEY, "piece", "rest.")), 4, torch.device("cpu"))
    wanted = inner.surrogate({name: CHANGE[name] for name, _ in rest.shapes}, alone, torch.tensor(3))
    assert torch.equal(found["conv.weight"], wanted["conv.weight"])
    assert not torch.equal(found["conv.weight"], CHANGE["conv.weight"])


def test_a_nested_codec_trains_as_it_encodes() -> None:
    """FedMRN for the remaining tensors: learned masks differ from masks after training."""
    losses = []
    for learn_masks in (True, False):
        inner = OnWeights(MaskedNoise(learn_masks=learn_masks))
        method = fedavg(lr=0.5).with_parts(codec=OnWeights(Dense(), min_dim=9, other=inner))
        losses.append(simulate(method, tiny_task(), rounds=2).metrics[-1]["train_loss"])
    assert losses[0] != losses[1]


def test_metrics_are_means_over_the_entries_of_all_groups() -> None:
    masked = MaskedNoise(noise="uniform", alpha=0.5)
    codec = OnWeights(masked, per_tensor=True)
    assert codec.figure_names == ("clipped", "clipped_length")
    shares = []
    for number, name in enumerate(("conv.weight", "embedding.weight")):
        own, at = LAYOUT.only([name]), fold(KEY, "piece", f"{number}.")
        share = masked.figures(own.flatten(CHANGE), Coding(own, at))["clipped"]
        assert share == pytest.approx(float((own.flatten(CHANGE).abs() / 0.5).clamp(max=1).mean()))
        shares.append(share)
    found = codec.figures(LAYOUT.flatten(CHANGE), Coding(LAYOUT, KEY))
    assert found["clipped"] == pytest.approx((6 * shares[0] + 2 * shares[1]) / 8)
    assert OnWeights(Dense()).figures(LAYOUT.flatten(CHANGE), Coding(LAYOUT, KEY)) == {}
    assert OnWeights(Dense()).warning({}) is None


def test_feedback_owes_what_did_not_arrive() -> None:
    """What arrived plus what is owed is all that was ever changed, whatever was lost."""
    codec, layout = Feedback(TopK(0.25)), Layout.of({"x": torch.zeros(16)})
    state, arrived, changed = codec.init(layout), torch.zeros(16), torch.zeros(16)
    for number in range(12):
        x = uniform(fold(KEY, number), 16) - 0.5
        payload, state = codec.encode_with(x, state, Coding(layout, KEY))
        delivered = number % 3 > 0
        arrived += codec.decode(payload, Coding(layout, KEY)) if delivered else 0
        state, changed = codec.settle(state, delivered), changed + x
    assert torch.allclose(arrived + state["owed"]["x"], changed, atol=1e-6)
    assert state["owed"]["x"].any()


def sent(codec: Codec, changes: list[Params], arrived: list[bool]) -> list[Params]:
    """What the server decodes of a client's messages, those that arrive and those that do not."""
    layout, found = Layout.of(changes[0]), []
    state = codec.init(layout)
    for number, (change, came) in enumerate(zip(changes, arrived, strict=True)):
        payload, after = codec.encode_with(layout.flatten(change), state, Coding(layout, fold(KEY, number)))
        found.append(layout.unflatten(codec.decode(payload, Coding(layout, fold(KEY, number)))))
        state = codec.settle(after, came)
    return found


LOSING: dict[str, tuple[Codec, float, bool]] = {
    "nothing": (OneBit(), 0.0, False),
    "change": (OneBit(retain="change", coefficient=0.5), 0.5, False),
    "accumulate": (OneBit(retain="change", coefficient=0.5, accumulate=True), 0.5, True),
    "signs": (OneBit(retain="signs", fresh=False, coefficient=0.5), 0.5, False),
    "feedback": (Feedback(TopK(0.5)), 1.0, True),
}


@pytest.mark.parametrize("name", LOSING)
def test_what_goes_dense_is_retained_as_the_codec_retains(name: str) -> None:
    """Biases that are lost twice. Running statistics are values and not changes, so they are never added up."""
    codec, coefficient, accumulate = LOSING[name]
    changes = [
        {"w": torch.full((2, 3), n), "norm.bias": torch.tensor([n, -n]), "norm.running_var": torch.tensor([n])}
        for n in (1.0, 10.0, 100.0)
    ]
    found = sent(OnWeights(codec), changes, [False, False, True])
    x, y, z = (change["norm.bias"] for change in changes)
    second = y + coefficient * x
    wanted = [x, second, z + coefficient * (second if accumulate else y)]
    for mine, biases, change in zip(found, wanted, changes, strict=True):
        assert torch.equal(mine["norm.bias"], biases)
        assert torch.equal(mine["norm.running_var"], change["norm.running_var"])


def test_a_codec_with_its_own_state_for_other_tensors_is_not_wrapped() -> None:
    for codec in (OneBit(retain="change"), Feedback(TopK(0.5))):
        assert OnWeights(codec, other=Feedback(TopK(0.1))).others == Feedback(TopK(0.1))
    assert OnWeights(OneBit()).others == Dense()


def test_the_uplink_of_cnn8_is_one_bit_a_weight() -> None:
    """1,181,536 masked weights: 147,692 bytes of masks, the norms, and 71 bytes."""
    module = build("cnn8", (3, 32, 32), 10)
    params = {n: t.detach() for n, t in module.state_dict().items() if t.is_floating_point()}
    layout, codec = Layout.of(params), OnWeights(MaskedNoise(alpha=0.01, coded=False))
    payload = codec.encode(torch.zeros(layout.size), Coding(layout, KEY))
    message = Message("up", 1, 2, 3, 600.0, payload)
    bytes_of = sizes(message)
    assert bytes_of["mask"] == 1_181_536 // 8 == 147_692
    assert bytes_of["rest.values"] == 4 * (1_920 + 1_920)
    assert bytes_of["overhead"] <= 71
    assert len(pack(message)) == sum(bytes_of.values())


def test_the_uplink_of_cnn4_is_at_most_1_01_bits_a_weight() -> None:
    weights = {n: t for n, t in build("cnn4", (1, 28, 28), 10).named_parameters() if t.dim() > 1}
    layout = Layout.of(weights)
    assert layout.size == 389_920
    message = pack(Message("up", 1, 2, 3, 600.0, MaskedNoise().encode(torch.zeros(layout.size), Coding(layout, KEY))))
    assert 8 * len(message) / layout.size <= 1.01


@given(st.text("ab.*", max_size=6), st.text("ab.", max_size=8))
def test_a_star_stands_for_anything(pattern: str, name: str) -> None:
    assert OnWeights(Dense(), exclude=(pattern,)).chosen(name, 2) is not fnmatchcase(name, pattern)


def test_the_remaining_tensors_are_sent_in_half_precision_by_option() -> None:
    whole, half = eden().codec, assign(eden(), "codec.other=dense:float16").codec
    assert half == OnWeights(Eden(1), other=Dense("float16"))
    change = {"w": torch.ones(9, 9), "norm.weight": torch.tensor([0.1, -3.0]), "norm.running_var": torch.tensor([6e4])}
    layout = Layout.of(change)
    sent = [codec.encode(layout.flatten(change), Coding(layout, KEY)) for codec in (whole, half)]
    assert [payload["rest.values"].nbytes for payload in sent] == [12, 6]
    found = layout.unflatten(half.decode(sent[1], Coding(layout, KEY)))
    assert torch.allclose(found["norm.weight"], change["norm.weight"], rtol=2**-11)
    change["norm.running_var"] = torch.tensor([7e4])
    with pytest.raises(PayloadError, match="the magnitude 70000, above the maximum 65504 of float16: use Dense"):
        half.encode(layout.flatten(change), Coding(layout, KEY))
