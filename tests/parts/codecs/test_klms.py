"""KLMS: an importance-sampled mask has nearly the distribution of the client, in few bits."""

import math

import pytest
import torch
from torch import Tensor

from gossamer import Dense, OnWeights, Task, fedpm, klms, simulate
from gossamer.core.bits import codes
from gossamer.core.codec import Coding
from gossamer.core.errors import ConfigError, PayloadError
from gossamer.core.random import Key, fold, key, uniform
from gossamer.core.types import Layout
from gossamer.parts.codecs.masks import GRID, KLMS, _logits, _mask, _prior
from gossamer.testing import tiny_task

KEY = key(55)


def scores(n: int, *labels: str | int) -> Tensor:
    return 4 * uniform(fold(KEY, "scores", *labels), n) - 2


def knowing(before: Tensor, at: Key = KEY) -> Coding:
    """What both sides know after a download of scores."""
    return Coding(Layout.of({"w": before}), at, lambda: before)


def pair(n: int, far: float) -> tuple[KLMS, Tensor, Tensor]:
    """A codec, scores of a client, and those of the server at some distance."""
    before = scores(n)
    return KLMS(6, 0.5), before + far * scores(n, "after"), before


def divergence(q: Tensor, p: Tensor) -> float:
    """KL(q || p) of independent draws in bits."""
    return float((q * (q / p).log2() + (1 - q) * ((1 - q) / (1 - p)).log2()).sum())


def slow_choice(x: Tensor, before: Tensor, candidates: list[list[Tensor]], point: list[float]) -> list[int]:
    """The number of the chosen candidate of each block, by the weights q(mask) / p(mask) of the paper."""
    q, p = torch.sigmoid(x.double()), (torch.searchsorted(_logits(x.device), before.double())).double() / GRID
    chosen, start = [], 0
    for block, masks in enumerate(candidates):
        end = start + len(masks[0])
        weights = []
        for mask in masks:
            of_q = torch.where(mask, q[start:end], 1 - q[start:end]).prod()
            of_p = torch.where(mask, p[start:end], 1 - p[start:end]).prod()
            weights.append(float(of_q / of_p))
        level, number = point[block] * sum(weights), 0
        while number < len(weights) - 1 and sum(weights[: number + 1]) <= level:
            number += 1
        chosen.append(number)
        start = end
    return chosen


def test_the_choice_is_that_of_the_paper() -> None:
    codec, x, before = pair(300, 0.5)
    payload = codec.encode(x, knowing(before))
    length = int(payload["block"])
    wide = torch.arange(64).view(-1, 1)
    drawn = [
        codec.decode({**payload, "numbers": codes(row.expand(-(-300 // length)), 6)}, knowing(before)) for row in wide
    ]
    candidates = [list(blocks) for blocks in zip(*(mask.bool().split(length) for mask in drawn), strict=True)]
    point = uniform(fold(KEY, "choice"), len(candidates), dtype=torch.float64).tolist()
    wanted = slow_choice(x, before, candidates, point)
    assert torch.equal(payload["numbers"], codes(torch.tensor(wanted), 6))


def test_candidates_have_the_probabilities_of_the_server() -> None:
    before = torch.tensor([-4.0, -1.0, 0.0, 2.0])
    thresholds = _prior(knowing(before), before.device)
    drawn = (uniform(KEY, 4 * 4000, dtype=torch.float64) * 2**53).long().view(4000, 4)
    found = torch.stack([_mask(row, torch.tensor(number % 256), thresholds) for number, row in enumerate(drawn)])
    wanted = torch.sigmoid(before)
    assert torch.allclose(thresholds / GRID, wanted, atol=2 / GRID)
    assert ((found.double().mean(0) - wanted).abs() < 4 * (wanted * (1 - wanted) / 4000).sqrt()).all()


def test_the_sampled_masks_have_nearly_the_probabilities_of_the_client() -> None:
    codec, x, before = pair(2000, 0.5)
    each = [knowing(before, key(number)) for number in range(60)]
    mean = torch.stack([codec.decode(codec.encode(x, ctx), ctx) for ctx in each]).mean(0)
    p, q = torch.sigmoid(before), torch.sigmoid(x)
    slope = float((mean - p) @ (q - p) / (q - p).square().sum())
    assert 0.75 < slope < 1.05  # a share of the way from p to q: importance sampling with few candidates is biased to p
    assert abs(float(mean.mean() - q.mean())) < 0.01


@pytest.mark.parametrize("far", [0.1, 0.5, 1.5])
def test_a_mask_takes_about_twice_the_divergence(far: float) -> None:
    codec, x, before = pair(50_000, far)
    bits = 8 * sum(array.nbytes for array in codec.encode(x, knowing(before)).values())
    wanted = divergence(torch.sigmoid(x.double()), torch.sigmoid(before.double()))
    assert bits == pytest.approx(wanted / 0.5, rel=0.1, abs=8 * 4 + 8 + 6)  # lengths and bytes are whole numbers


def test_the_same_scores_take_almost_nothing() -> None:
    codec, x, before = pair(50_000, 0.0)
    payload = codec.encode(x, knowing(before))
    assert int(payload["block"]) == 4096
    assert len(payload["numbers"]) == math.ceil(13 * 6 / 8)


@pytest.mark.parametrize("length", [0, -3, 5000])
def test_a_block_of_a_wrong_length_is_refused(length: int) -> None:
    codec, x, before = pair(100, 0.5)
    payload = {**codec.encode(x, knowing(before)), "block": torch.tensor([length], dtype=torch.int32)}
    with pytest.raises(PayloadError, match="'block' must be from 1 to 4096"):
        codec.decode(payload, knowing(before))


def test_the_bytes_of_a_message_are_fixed() -> None:
    before = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.0, 0.5, 1.0, 2.0])
    codec, ctx = KLMS(4, 0.5), knowing(before, key(1))
    payload = codec.encode(before.flip(0), ctx)
    found = {name: array.numpy().tobytes().hex() for name, array in payload.items()}
    assert found == {"numbers": "51b4", "block": "02000000"}
    assert codec.decode(payload, ctx).int().tolist() == [1, 1, 0, 1, 1, 0, 1, 0]


def test_a_run_learns_with_less_than_fedpm_sends() -> None:
    task: Task = tiny_task(clients=4)
    found = [simulate(make(epochs=2), task, rounds=4, per_round=4).metrics[-1] for make in (fedpm, klms)]
    numbers = sum(count for kind, count in found[1]["bytes_up"].items() if kind.endswith("numbers"))
    assert numbers < found[0]["bytes_up"]["codec.mask"]
    assert found[1]["accuracy"] > 0.3


def test_a_lossy_download_is_refused() -> None:
    with pytest.raises(ConfigError, match="KLMS needs scores that both sides know"):
        simulate(klms().with_parts(down=OnWeights(Dense("float16"))), tiny_task(), rounds=1)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"bits": 9}, "KLMS.bits must be"),
        ({"rate": 0.0}, "KLMS.rate must be"),
        ({"longest": 0}, "KLMS.longest must be"),
    ],
)
def test_wrong_settings_are_refused(given: dict[str, int], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        KLMS(**given)
