"""Each attack against its formula, and what it refuses."""

from statistics import NormalDist
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer import ConfigError, Options, Task
from gossamer.core.random import key
from gossamer.core.specs import spec
from gossamer.core.types import Params
from gossamer.core.untrusted import MOST_SAMPLES
from gossamer.parts.attacks import (
    ATTACKS,
    Attack,
    Backdoor,
    ClaimSamples,
    InnerProduct,
    LabelFlip,
    LittleIsEnough,
    Noise,
    Scale,
    Scene,
    SignFlip,
)
from gossamer.parts.attacks.on_updates import UNBOUNDED, supported
from gossamer.testing import check_value, tiny_task

KEY = key(3)
CHANGE = {"a": torch.tensor([[1.0, -2.0], [0.5, 0.0]]), "b": torch.tensor([3.0])}


def vector(params: Params) -> torch.Tensor:
    return torch.cat([params[name].reshape(-1) for name in sorted(params)])


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_a_value_that_its_text_gives_back(name: str) -> None:
    kind: Any = ATTACKS[name]
    made = kind(share=0.25)
    check_value(made)
    assert Attack.of_text(spec(made, ATTACKS)) == made
    assert Attack.of_text(f"{name},share=0.25") == made == Options.of({"attack": f"{name},share=0.25"}, ()).attack


@pytest.mark.parametrize(
    ("attack", "factor"),
    [(SignFlip(), -1), (SignFlip(3), -3), (Scale(-50), -50), (ClaimSamples(), -1), (Backdoor(5), 5)],
)
def test_updates_are_multiplied(attack: Any, factor: float) -> None:
    torch.testing.assert_close(vector(attack.update(CHANGE, KEY)), factor * vector(CHANGE))


def test_noise_has_the_stated_size_and_depends_on_the_key() -> None:
    change = {"w": torch.full((200, 100), 0.02)}
    noise = [(Noise(5.0).update(change, key(seed))["w"] - change["w"]) for seed in (0, 0, 1)]
    assert torch.equal(noise[0], noise[1])
    assert not torch.equal(noise[0], noise[2])
    assert abs(float(noise[0].std()) / (5 * 0.02) - 1) < 0.02
    assert abs(float(noise[0].mean())) < 0.003


def test_a_claim_replaces_the_number_of_samples() -> None:
    assert ClaimSamples().claim(7) == 2**40 == MOST_SAMPLES, "the most that is not refused"
    assert ClaimSamples(1000).claim(7) == 1000
    assert Scale().claim(7) == 7


def test_alie_sends_the_mean_minus_z_standard_deviations() -> None:
    updates = torch.tensor([[1.0, 2.0], [3.0, 2.0], [5.0, 8.0]])
    mean, std = updates.mean(0), updates.std(0, correction=0)
    scene = Scene({"w": mean}, {"w": std}, hostile=3, cohort=10)
    torch.testing.assert_close(LittleIsEnough(1.5).craft(scene)["w"], mean - 1.5 * std)
    torch.testing.assert_close(LittleIsEnough().craft(scene)["w"], mean - supported(10, 3) * std)
    torch.testing.assert_close(InnerProduct(0.5).craft(scene)["w"], -0.5 * mean)


@given(st.integers(5, 200), st.data())
def test_z_is_what_a_majority_supports(cohort: int, data: st.DataObject) -> None:
    """With m of n clients hostile, s = floor(n / 2 + 1) - m honest ones must be further away than z."""
    hostile = data.draw(st.integers(1, cohort // 2))
    z, s = supported(cohort, hostile), cohort // 2 + 1 - hostile
    beyond = (cohort - hostile) * (1 - NormalDist().cdf(z))
    assert z == UNBOUNDED or z == 0 or abs(beyond - s) < 1e-6
    assert z > 0 or s >= (cohort - hostile) / 2


def test_labels_are_mirrored() -> None:
    x, y = torch.zeros(6, 2), torch.tensor([0, 1, 2, 9, 5, 4])
    same, flipped = LabelFlip().poison(x, y, 10, KEY)
    assert same is x
    assert flipped.tolist() == [9, 8, 7, 0, 4, 5]
    assert int((LabelFlip(0.5).poison(x, y, 10, KEY)[1] != y).sum()) == 3
    assert y.tolist() == [0, 1, 2, 9, 5, 4]


def test_a_backdoor_is_a_patch_with_the_target_label() -> None:
    x, y = torch.zeros(10, 1, 8, 8), torch.arange(10)
    attack = Backdoor(target=3, poisoned=0.4, size=2, value=7.0)
    patched, labels = attack.poison(x, y, 10, KEY)
    rows = patched.flatten(1).sum(1) > 0
    assert int(rows.sum()) == 4
    assert (labels[rows] == 3).all()
    assert torch.equal(labels[~rows], y[~rows])
    assert (patched[rows][..., -2:, -2:] == 7).all()
    assert float(patched[rows].sum()) == 4 * 4 * 7
    assert float(x.sum()) == 0


@pytest.mark.parametrize(("share", "clients", "count"), [(0.1, 20, 2), (0.1, 3, 1), (0.25, 30, 8), (0.3, 50, 15)])
def test_the_hostile_clients_are_a_share_drawn_from_the_key(share: float, clients: int, count: int) -> None:
    mine = [SignFlip(share=share).hostile(clients, key(seed)) for seed in range(6)]
    assert all(len(set(found)) == count and max(found) < clients for found in mine)
    assert mine[0] == Noise(share=share).hostile(clients, key(0))
    assert len(set(mine)) > 1


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sing-flip", "unknown attack 'sing-flip': did you mean sign-flip?"),
        ("scale:x", "factor must be a number, got 'x'"),
        ("scale:inf", "factor must be a finite number, got inf"),
        ("sign-flip,share=1.5", "share must be above 0 and below 1, got 1.5"),
        ("sign-flip,part=0.5", "'part=0.5' does not fit: write it as sign-flip[:strength=1.0,share=0.1]"),
        ("noise:-1", "strength must be a positive number"),
        ("label-flip:2", "flipped must be above 0 and at most 1"),
        ("backdoor:1,-1", "target must not be negative"),
        ("claim-samples:0", "samples must be at least 1"),
        ("alie:inf", "z must be a finite number or none"),
    ],
)
def test_bad_texts_are_refused(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Options.of({"attack": text}, ())
    assert said in str(refused.value)


def test_data_that_an_attack_cannot_change_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs images"):
        Backdoor().check_data(tiny_task().data)
    numbers = Task.of(
        lambda: torch.nn.Linear(1, 1), *[(torch.zeros(4, 1), torch.zeros(4, 1))] * 2, clients=2, split="iid", loss="mse"
    )
    with pytest.raises(ConfigError, match="needs targets that are classes"):
        LabelFlip().check_data(numbers.data)
    with pytest.raises(ConfigError, match=r"target must be below 10"):
        Backdoor(target=10).check_data(Task.named("digits").data)
    with pytest.raises(ConfigError, match="at most half an image, which has 8 x 8 pixels"):
        Backdoor(size=5).check_data(Task.named("digits").data)
    with pytest.raises(ConfigError, match="makes 1 of 1 clients hostile: one must be honest"):
        SignFlip().hostile(1, KEY)
