"""The mean over the cohort and over the holders, against an entry-by-entry version."""

from dataclasses import replace
from typing import Literal

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gossamer import Clock, ConfigError, Mean, Part
from gossamer.core.exchange import GLOBAL, Arrival
from gossamer.core.types import Params

CLOCK = Clock(0, 1, -1)


def arrivals(seed: int, clients: int, full: bool) -> list[Arrival]:
    torch.manual_seed(seed)
    found = []
    for client in range(clients):
        keep = torch.ones(4, 3) if full else (torch.rand(4, 3) < 0.5).float()
        change = {"w": torch.randn(4, 3) * keep, "b": torch.randn(2)}
        found.append(Arrival.of(client, Part(keep={"w": keep}), change, float(torch.randint(1, 9, ()))))
    return found


def run(server: Mean, params: Params, found: list[Arrival]) -> Params:
    state = server.init(params)
    acc = server.begin(state, dict.fromkeys(range(len(found)), GLOBAL))
    for arrival in found:
        acc = server.fold(acc, arrival)
    (model,) = server.download(server.finish(state, acc, CLOCK), GLOBAL).models
    return model


@given(seed=st.integers(0, 1000), clients=st.integers(1, 5), over=st.sampled_from(["cohort", "holders"]))
def test_entry_by_entry(seed: int, clients: int, over: Literal["cohort", "holders"]) -> None:
    params = {"w": torch.arange(12.0).view(4, 3), "b": torch.tensor([1.0, 2.0])}
    found = arrivals(seed, clients, full=False)
    moved = run(Mean(over=over), params, found)["w"]
    for i in range(4):
        for j in range(3):
            held = [a for a in found if a.part.keep["w"][i, j] or over == "cohort"]
            total = sum(a.samples * float(a.change(torch.device("cpu"))["w"][i, j]) for a in held)
            wanted = float(params["w"][i, j]) + (total / sum(a.samples for a in held) if held else 0)
            assert moved[i, j].item() == pytest.approx(wanted, rel=1e-5, abs=1e-5)


@given(seed=st.integers(0, 1000), clients=st.integers(1, 5), over=st.sampled_from(["cohort", "holders"]))
def test_masked_updates_added_at_once_are_those_added_tensor_by_tensor(
    seed: int, clients: int, over: Literal["cohort", "holders"]
) -> None:
    """To the bit. A vector of the held entries is expanded at once; a whole update is masked tensor by tensor."""
    params, cpu = {"w": torch.randn(4, 3), "b": torch.randn(2)}, torch.device("cpu")
    whole = arrivals(seed, clients, full=False)
    sent = []
    for arrival in whole:
        layout = arrival.part.layout(params)
        vector = layout.flatten(arrival.change(cpu))
        sent.append(Arrival.laid(arrival.client, arrival.part, layout, vector, arrival.samples))
    one, other = (run(Mean(over=over), params, found) for found in (whole, sent))
    assert all(torch.equal(one[name], other[name]) for name in params)


@given(seed=st.integers(0, 1000), clients=st.integers(1, 5))
def test_both_agree_when_everybody_holds_everything(seed: int, clients: int) -> None:
    params = {"w": torch.randn(4, 3), "b": torch.randn(2)}
    found = arrivals(seed, clients, full=True)
    a, b = (run(Mean(over=over), params, found) for over in ("cohort", "holders"))
    torch.testing.assert_close(a, b)


def test_an_entry_without_holders_keeps_its_value_to_the_bit() -> None:
    params = {"w": torch.tensor([0.1, 0.2])}
    part = Part(keep={"w": torch.tensor([1.0, 0.0])})
    for over in ("cohort", "holders"):
        moved = run(Mean(over=over), params, [Arrival.of(0, part, {"w": torch.tensor([1.0, 0.0])}, 3.0)])
        assert moved["w"][1].item() == params["w"][1].item()
        assert moved["w"][0].item() == pytest.approx(1.1)


def test_weights() -> None:
    arrival = replace(Arrival.of(0, Part(), {"w": torch.ones(1)}, 70.0), batches=3.0)
    assert Mean("samples").weigh(arrival) == 70
    assert Mean("batches").weigh(arrival) == 3
    assert Mean("uniform").weigh(arrival) == 1


def test_wrong_fields_are_refused() -> None:
    with pytest.raises(ConfigError) as refused:
        Mean("sample", "everyone")  # type: ignore[arg-type]
    assert len(refused.value.mistakes) == 2
