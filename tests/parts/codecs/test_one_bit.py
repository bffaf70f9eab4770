"""Signs of random measurements: the codec, what it keeps of what was lost, and the method made of it."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer import ConfigError, Lossy, Method, simulate
from gossamer.core.codec import Coding
from gossamer.core.errors import PayloadError
from gossamer.core.random import fold, key, uniform
from gossamer.core.types import Layout, State
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.methods import onebit_cs, onebit_cs_paper
from gossamer.parts.codecs import OneBit, OnWeights
from gossamer.parts.servers import Mean, SumThenDecode
from gossamer.testing import check_codec, check_method, tiny_task
from helpers.compare import cosine

KEY = key(5)


def vector(count: int = 400, name: str = "x") -> Tensor:
    return uniform(fold(KEY, name), count, dtype=torch.float64) - 0.5


def layout_of(x: Tensor) -> Layout:
    return Layout.of({"w": x})


# The codec.


@pytest.mark.slow
@pytest.mark.parametrize(
    "codec",
    [
        OneBit(2.0, decoder="back-projection", length=2.0),
        OneBit(rows=9, fresh=False, retain="signs"),
        OneBit(retain="change", coefficient=0.5, accumulate=True),
    ],
    ids=repr,
)
def test_it_keeps_the_contract(codec: OneBit) -> None:
    check_codec(codec)


@pytest.mark.parametrize("decoder", ["least-squares", "amp", "niht", "biht", "back-projection"])
@pytest.mark.parametrize("matrix", ["hadamard", "gaussian"])
def test_a_sparse_vector_comes_back(decoder: Any, matrix: Any) -> None:
    """With its norm, and nearly with its direction: 40 of 400 entries, by 1,600 signs."""
    x = vector() * (torch.arange(400) % 10 == 0)
    codec = OneBit(4.0, matrix=matrix, decoder=decoder, share=0.1)
    found = codec.decode(codec.encode(x, Coding(layout_of(x), KEY)), Coding(layout_of(x), KEY))
    assert float(found.norm()) == pytest.approx(float(x.norm()), rel=1e-6)
    assert cosine(found, x) > (0.97 if decoder in ("amp", "niht", "biht") else 0.8)


def test_a_message_has_one_bit_per_measurement_and_the_norm() -> None:
    x = vector().float()
    sent = OneBit(0.5).encode(x, Coding(layout_of(x), KEY))
    assert {name: array.nbytes for name, array in sent.items()} == {"signs": 25, "scale": 4}
    assert float(sent["scale"]) == pytest.approx(float(x.norm()))
    assert list(OneBit(rows=100, length=1.0).encode(x, Coding(layout_of(x), KEY))) == ["signs"]


def test_a_matrix_is_fresh_or_stays() -> None:
    x = vector()
    for fresh in (True, False):
        codec = OneBit(fresh=fresh)
        one, other = (codec.encode(x, Coding(layout_of(x), fold(KEY, number)))["signs"] for number in range(2))
        assert torch.equal(one, other) != fresh


def test_the_mean_of_codes_is_decoded_as_one() -> None:
    """Ten clients with different changes: the mean of their codes gives the mean change, better than one code."""
    layout, common = layout_of(vector()), vector()
    changes = [common + 0.5 * vector(name=str(number)) for number in range(10)]
    codec = OneBit(1.0)
    codes = torch.stack([codec.to_sum(codec.encode(x, Coding(layout, KEY)), Coding(layout, KEY)) for x in changes])
    assert codes.shape == (10, codec.sum_size(layout))
    mean = torch.stack(changes).mean(0)
    together, alone = codec.from_sum(codes.mean(0), Coding(layout, KEY)), codec.from_sum(codes[0], Coding(layout, KEY))
    assert cosine(together, mean) > cosine(alone, mean) + 0.1
    assert float(together.norm()) == pytest.approx(sum(float(x.norm()) for x in changes) / 10)


@pytest.mark.parametrize("decoder", ["least-squares", "back-projection", "amp", "niht"])
def test_linear_scaling_makes_opposite_updates_cancel_and_norms_do_not(decoder: Any) -> None:
    """Two clients that pull in opposite directions: their mean is zero, up to the signs of zero measurements."""
    x, layout = vector(), layout_of(vector())
    for scaling, left in (("linear", 0.05), ("norms", 1.0)):
        codec = OneBit(1.0, decoder=decoder, scaling=scaling)  # type: ignore[arg-type]
        codes = [codec.to_sum(codec.encode(s * x, Coding(layout, KEY)), Coding(layout, KEY)) for s in (1.0, -0.99)]
        found = codec.from_sum((codes[0] + codes[1]) / 2, Coding(layout, KEY))
        assert float(found.norm() / x.norm()) <= left
        assert (float(found.norm() / x.norm()) > 0.9) == (scaling == "norms")


def test_linear_back_projection_is_unbiased() -> None:
    x, layout = vector(20), layout_of(vector(20))
    codec = OneBit(2.0, matrix="gaussian", decoder="back-projection", scaling="linear")
    found = [
        codec.decode(codec.encode(x, Coding(layout, at)), Coding(layout, at))
        for at in (fold(KEY, n) for n in range(600))
    ]
    error = (torch.stack(found).mean(0) - x).norm() / x.norm()
    assert float(error) < 3 * math.sqrt(math.pi / 2 * 20 / 40 / 600)


def test_zero_stays_zero() -> None:
    x = torch.zeros(50)
    found = OneBit().decode(OneBit().encode(x, Coding(layout_of(x), KEY)), Coding(layout_of(x), KEY))
    assert torch.equal(found, x)


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"signs": torch.zeros(13, dtype=torch.uint8)},
        {"signs": torch.zeros(12, dtype=torch.uint8), "scale": torch.ones(1)},
        {"signs": torch.zeros(13, dtype=torch.uint8), "scale": -torch.ones(1)},
        {"signs": torch.zeros(26, dtype=torch.uint8), "scale": torch.ones(1)},
    ],
)
def test_what_cannot_be_one_is_refused(payload: dict[str, Tensor]) -> None:
    """Of 400 entries, 100 signs."""
    with pytest.raises(PayloadError):
        OneBit().decode(payload, Coding(layout_of(vector().float()), KEY))


# What was lost.


def payloads(codec: OneBit, changes: list[Tensor], arrived: list[bool]) -> tuple[list[dict[str, Tensor]], State]:
    """The messages of a client whose changes these are, and what it remembers in the end."""
    layout, sent = layout_of(changes[0]), []
    state = codec.init(layout)
    for number, (x, came) in enumerate(zip(changes, arrived, strict=True)):
        payload, after = codec.encode_with(x, state, Coding(layout, fold(KEY, number)))
        sent.append(payload)
        state = codec.settle(after, came)
    return sent, state


def test_lost_signs_are_sent_with_the_next() -> None:
    codec, layout = OneBit(fresh=False, retain="signs", coefficient=0.5), layout_of(vector())
    x, y, z = vector(name="x"), vector(name="y"), vector(name="z")
    sent, state = payloads(codec, [x, y, z], [False, True, True])
    assert [payload["signs"].nbytes for payload in sent] == [13, 25, 13]
    assert list(sent[1]) == ["signs", "scale", "lost"]
    alone = [codec.to_sum(codec.encode(one, Coding(layout, KEY)), Coding(layout, KEY)) for one in (x, y)]
    assert torch.allclose(codec.to_sum(sent[1], Coding(layout, KEY)), alone[1] + 0.5 * alone[0])
    assert not bool(state["lost"]["w"].any())


def test_what_was_lost_twice_is_forgotten() -> None:
    codec, layout = OneBit(fresh=False, retain="signs"), layout_of(vector())
    x, y, z = vector(name="x"), vector(name="y"), vector(name="z")
    sent, _ = payloads(codec, [x, y, z], [False, False, True])
    codes = [codec.to_sum(codec.encode(one, Coding(layout, KEY)), Coding(layout, KEY)) for one in (y, z)]
    assert torch.allclose(codec.to_sum(sent[2], Coding(layout, KEY)), codes[0] + codes[1])


@pytest.mark.parametrize("accumulate", [True, False])
def test_a_lost_change_is_added_to_the_next(accumulate: bool) -> None:
    codec = OneBit(retain="change", coefficient=0.5, accumulate=accumulate)
    x, y, z = vector(name="x"), vector(name="y"), vector(name="z")
    sent, _ = payloads(codec, [x, y, z], [False, False, True])
    whole = [x, y + 0.5 * x, z + 0.5 * (y + 0.5 * x if accumulate else y)]
    for number, (payload, wanted) in enumerate(zip(sent, whole, strict=True)):
        plain = OneBit().encode(wanted, Coding(layout_of(x), fold(KEY, number)))
        assert all(torch.equal(payload[name], array) for name, array in plain.items())
        assert payload["signs"].nbytes == 13, "one bit a measurement, as ever"


# The method.


def task() -> Any:
    return tiny_task(4)


def last(method: Method, **options: Any) -> dict[str, Tensor]:
    run = Simulation(method, task(), Options(rounds=4, **{"executor": "one-by-one", **options}))
    run.run(None, lambda record: None)
    return run.model()


def test_where_nothing_is_lost_nothing_is_retained() -> None:
    plain = last(onebit_cs(retain="nothing", fresh=False))
    for retain in ("signs", "change"):
        kept = last(onebit_cs(retain=retain, fresh=False))
        assert all(torch.equal(kept[name], tensor) for name, tensor in plain.items())


def test_where_all_is_lost_the_model_stays_and_the_run_reports_it() -> None:
    result = simulate(onebit_cs(), task(), rounds=3, channel=Lossy(1.0))
    assert [record["lost"] for record in result.metrics] == [[0, 1, 2, 3]] * 3
    assert len({record["loss"] for record in result.metrics}) == 1


def test_under_losses_what_is_retained_matters_and_is_sent() -> None:
    for retain, more in (("signs", True), ("change", False)):
        kept, plain = (
            simulate(onebit_cs(retain=r, fresh=False), task(), rounds=6, channel=Lossy(0.5))  # type: ignore[arg-type]
            for r in (retain, "nothing")
        )
        assert kept.metrics[-1]["loss"] != plain.metrics[-1]["loss"]
        sent = [sum(record["bytes_up"]["codec.signs"] for record in run.metrics) for run in (kept, plain)]
        assert (sent[0] > sent[1]) == more


def test_a_mask_that_moves_brings_back_nothing_older_than_a_round() -> None:
    """Messages with lost signs in them are those that follow a lost one, whether masks move or not."""
    for ratio in (0.0, 0.3):
        run = Simulation(
            onebit_cs(lr=2.0, fresh=False, retain="signs", ratio=(ratio,), rows=80),
            task(),
            Options(rounds=12, channel=Lossy(0.5), executor="one-by-one"),
        )
        run.run(None, lambda record: None)
        after = [0, *(len(record["lost"]) for record in run.metrics[:-1])]
        twice = [record["bytes_up"]["codec.signs"] // 10 - 4 for record in run.metrics]
        assert twice == after


def test_masks_that_all_share_are_decoded_once_and_own_ones_each() -> None:
    """Codes are averaged before decoding, which is not the same as averaging what is decoded."""
    method = onebit_cs(ratio=(0.5,))
    coded, decoded = last(method), last(method.with_parts(server=Mean()))
    assert not all(torch.allclose(coded[name], tensor) for name, tensor in decoded.items())
    method = onebit_cs(ratio=(0.1, 0.3, 0.5, 0.7))
    coded, decoded = last(method), last(method.with_parts(server=Mean()))
    assert all(torch.allclose(coded[name], tensor, atol=1e-5) for name, tensor in decoded.items())


def test_a_fixed_length_is_that_of_a_gradient_and_the_step_is_its_lr_times() -> None:
    """One client, all of its entries: the first update of the weights has the norm lr times length."""
    for lr, length in ((0.5, 2.0), (0.25, 2.0), (0.25, 4.0)):
        run = Simulation(onebit_cs(lr=lr, length=length, ratio=(0.0,)), tiny_task(1), Options(rounds=1))
        before = run.model()
        run.round(0, None)
        moved = [(run.model()[name] - tensor).flatten() for name, tensor in before.items() if tensor.dim() > 1]
        assert float(torch.cat(moved).norm()) == pytest.approx(lr * length, rel=1e-5)


def test_the_papers_setting_is_one_gaussian_matrix_signs_retained_and_no_norms() -> None:
    codec = onebit_cs_paper(lr=0.3).codec
    assert codec == OnWeights(
        OneBit(matrix="gaussian", fresh=False, length=0.3, retain="signs", scaling="linear", coefficient=1.0)
    )
    assert onebit_cs_paper() == replace(
        onebit_cs(matrix="gaussian", fresh=False, length=1.0, retain="signs", scaling="linear"),
        recipe=onebit_cs_paper().recipe,
    )
    result = simulate(onebit_cs_paper(measurements=1.0, ratio=(0.2,)), task(), rounds=2, channel=Lossy(0.5))
    assert {name for record in result.metrics for name in record["bytes_up"]} >= {"codec.signs", "codec.rest.values"}
    assert not any("scale" in name or "lost" in name for r in result.metrics for name in r["bytes_up"])


def test_it_learns() -> None:
    result = simulate(onebit_cs(measurements=1.0), task(), rounds=60)
    assert result.metrics[-1]["accuracy"] > result.metrics[0]["accuracy"] + 0.2
    assert result.metrics[-1]["accuracy"] > 0.75


METHODS = {
    "change": onebit_cs(),
    "signs": onebit_cs(fresh=False, retain="signs", ratio=(0.2, 0.6)),
    "accumulate": onebit_cs(accumulate=True, matrix="gaussian", decoder="amp"),
}


@pytest.mark.parametrize("name", METHODS)
def test_an_interrupted_run_ends_with_the_same_bytes(name: str, tmp_path: Path) -> None:
    check_method(METHODS[name], tmp_path, task(), rounds=4)


@pytest.mark.parametrize("name", METHODS)
def test_deployed_it_is_the_same_also_where_replies_are_lost(name: str, tmp_path: Path) -> None:
    """Two replies come too late: nodes learn that by the next order, and retain what they would in the simulator."""
    pytest.importorskip("flwr")
    from flwr.app import MessageType

    from helpers.flower_runs import NUMBERS, agree, altered, deploy, nodes, simulated
    from helpers.local_grid import LocalGrid

    method, on = METHODS[name], task()
    handles = nodes(method, on, tmp_path)
    for client in (1, 2):
        handles[NUMBERS[client]] = altered(handles[NUMBERS[client]], lambda reply: None, MessageType.TRAIN, [1])
    deployed = deploy(method, on, LocalGrid(handles), rounds=4, min_replies=0.5)
    agree(deployed, simulated(method, on, rounds=4, lost=[(1, 1), (1, 2)]), tmp_path)


# Mistakes.


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"measurements": 0, "share": 0}, "OneBit.measurements must be(.|\n)*OneBit.share must be"),
        ({"rows": 0}, "rows must be"),
        ({"scaling": "linear", "decoder": "biht"}, "scaling=linear needs a decoder that keeps norms"),
        ({"matrix": "other"}, "OneBit.matrix must be"),
        ({"decoder": "guess"}, "decoder must be one of"),
        ({"share": 0}, "share must be"),
        ({"length": 0}, "length must be"),
        ({"retain": "all"}, "retain"),
        ({"retain": "signs"}, "one matrix for all rounds"),
        ({"retain": "signs", "fresh": False, "accumulate": True}, "signs of one round"),
        ({"coefficient": math.inf}, "coefficient must be"),
    ],
)
def test_mistakes_are_reported(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        OneBit(**given)


def test_the_recipe_is_made_of_its_parts() -> None:
    assert onebit_cs().codec == OnWeights(OneBit(retain="change"))
    assert onebit_cs().server == SumThenDecode()
