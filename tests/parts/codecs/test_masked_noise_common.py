"""Masked noise that all clients of a round share: the noise is common, the masks are drawn by each client."""

import pytest
import torch
from torch import Tensor

from gossamer import ConfigError, Feedback, OnWeights, fedmrn, fedmrns
from gossamer.core.codec import Coding
from gossamer.core.random import key, uniform
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout
from gossamer.parts.codecs import CommonMaskedNoise, Dense, MaskedNoise
from gossamer.parts.servers import SumThenDecode
from helpers.compare import same

KEY = key(71)
SIZE = 900
LAYOUT = Layout.of({"w": torch.zeros(SIZE)})
CODECS = [
    CommonMaskedNoise(False, "uniform", 0.5),
    CommonMaskedNoise(False, "bernoulli", 0.5, coded=False),
    CommonMaskedNoise(True, "bernoulli", 0.5),
]


def change(client: int) -> Tensor:
    return (uniform(key(client), SIZE) - 0.5) / 4


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_the_sum_of_masks_determines_the_mean_of_the_updates(codec: CommonMaskedNoise) -> None:
    payloads = [codec.encode(change(client), Coding(LAYOUT, KEY, client=client)) for client in range(7)]
    masks = torch.stack([codec.to_sum(payload, Coding(LAYOUT, KEY)) for payload in payloads])
    assert set(masks.unique().tolist()) == {0.0, 1.0}
    assert codec.sum_segments(LAYOUT) == (SumSegment(SIZE, 1),)
    decoded = torch.stack([codec.decode(payload, Coding(LAYOUT, KEY)) for payload in payloads])
    assert torch.allclose(codec.from_sum(masks.mean(0), Coding(LAYOUT, KEY)), decoded.mean(0), atol=1e-6)


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_clients_share_the_noise_and_draw_their_own_masks(codec: CommonMaskedNoise) -> None:
    x, first, second = change(0), Coding(LAYOUT, KEY, client=1), Coding(LAYOUT, KEY, client=2)
    assert torch.equal(codec.draw(first), codec.draw(second))
    assert torch.equal(codec.draw(first), MaskedNoise(noise=codec.noise, alpha=0.5).draw(Coding(LAYOUT, KEY)))
    one, other = (codec.to_sum(codec.encode(x, mine), Coding(LAYOUT, KEY)) for mine in (first, second))
    assert not torch.equal(one, other)
    contexts = [codec.surrogate_context(mine, 3, x.device) for mine in (first, second)]
    assert same(contexts[0]["noise"], contexts[1]["noise"])
    assert not torch.equal(contexts[0]["key"], contexts[1]["key"])


def test_the_mean_over_clients_is_the_clipped_update() -> None:
    """Masks of -1 and 1 over Bernoulli noise are unbiased; of masks of 0 and 1, those of the right sign are."""
    x, clients = change(0), 600
    for codec in CODECS[1:]:
        sent = [codec.encode(x, Coding(LAYOUT, KEY, client=client)) for client in range(clients)]
        mean = torch.stack([codec.to_sum(payload, Coding(LAYOUT, KEY)) for payload in sent]).mean(0)
        found, noise = codec.from_sum(mean, Coding(LAYOUT, KEY)), codec.draw(Coding(LAYOUT, KEY))
        wanted = x if codec.signed else torch.where(x / noise > 0, x, 0)
        assert (found - wanted).abs().max() < 5 * 0.5 / clients**0.5
        assert (found - wanted).mean().abs() < 5 * 0.5 / (clients * SIZE) ** 0.5


def test_wrappers_pass_the_sender_and_the_sums_on() -> None:
    model = Layout.of({"w": torch.zeros(30, 30), "b": torch.zeros(4)})
    vector = torch.cat((torch.zeros(4), change(0)))
    codec = OnWeights(Feedback(CODECS[0]))
    one, other = (codec.encode(vector, Coding(model, KEY, client=client)) for client in (1, 2))
    assert not same(one, other)
    assert codec.sum_segments(model) == ()  # biases are floats
    assert codec.sum_segments(model.only(["w"])) == (SumSegment(900, 1),)
    assert OnWeights(Dense()).sum_segments(model) == ()
    mine, anybody = Coding(model, KEY, client=3), Coding(model, KEY)
    assert same(OnWeights(MaskedNoise()).encode(vector, mine), OnWeights(MaskedNoise()).encode(vector, anybody))


def test_the_recipe_sums_masks() -> None:
    assert fedmrn(alpha=0.05, common_noise=True).server == SumThenDecode("samples")
    codec = fedmrns(alpha=0.05, noise="bernoulli", common_noise=True, weights="uniform").codec
    assert codec == OnWeights(CommonMaskedNoise(True, "bernoulli", 0.05))
    with pytest.raises(
        ConfigError, match=r"alpha must be a number, such as 0\.1: with auto, every client has scales of its own"
    ):
        fedmrn(alpha="auto", common_noise=True)
    with pytest.raises(ConfigError, match="common_noise must be False with train_base"):
        fedmrn(alpha=0.05, train_base=True, common_noise=True)
