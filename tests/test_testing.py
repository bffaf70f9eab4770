"""The contracts can fail: each is shown a part that breaks it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer import SGD, AnyDevice, Clock, Codec, Dense, Full, Layout, Mean, Params, Part, Payload, Receipt, fedavg
from gossamer.random import Key
from gossamer.servers import Arrival, Sum
from gossamer.solvers import Gradient, Now
from gossamer.testing import (
    check_channel,
    check_codec,
    check_method,
    check_server,
    check_solver,
    check_value,
    check_view,
)
from gossamer.types import State
from gossamer.wire import expect

LIKE = {"w": torch.arange(6.0).view(2, 3), "b": torch.ones(2)}


class NoValue(Dense):
    """Compares by identity."""

    __eq__ = object.__eq__
    __hash__ = object.__hash__


@dataclass(frozen=True)
class Writes(Dense):
    """Scribbles on its input."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        x += 1
        return {"values": x.clone()}


@dataclass(frozen=True)
class Trusting(Codec):
    """Believes whatever comes."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        return {"values": x, "scale": torch.ones(1)}

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        return expect(payload, "values", layout.dtype, layout.size)


@dataclass(frozen=True)
class Moody(Dense):
    """Draws from torch's own generator."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        return {"values": x + torch.rand_like(x)}


@dataclass(frozen=True)
class Crashing(Dense):
    """Trips over a payload that is not its own."""

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        return payload["values"].view(layout.size)


@dataclass(frozen=True)
class Overflowing(Dense):
    """Makes an infinity of a large value."""

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        return {"values": (x.half()).to(x.dtype)}


@pytest.mark.parametrize(
    ("codec", "said"),
    [
        (NoValue(), "not equal to its own copy"),
        (Writes(), "changed its input"),
        (Trusting(), "without 'scale'"),
        (Moody(), "another payload for the same key"),
        (Overflowing(), "not finite"),
    ],
)
def test_a_codec_that_breaks_the_contract_is_told_how(codec: Codec, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_codec(codec)


def test_a_codec_that_crashes_on_a_strange_payload_is_found() -> None:
    with pytest.raises((KeyError, RuntimeError)):
        check_codec(Crashing())


@dataclass(frozen=True)
class Restless:
    """Takes another half each time it is asked."""

    def part(self, like: Params, clock: Clock, key: Key) -> Part:
        return Part(keep={"w": (torch.rand(2, 3) < 0.5).float()})


@dataclass(frozen=True)
class Partly:
    """Covers entries by half."""

    def part(self, like: Params, clock: Clock, key: Key) -> Part:
        return Part(keep={"w": torch.full((2, 3), 0.5)})


@pytest.mark.parametrize(("view", "said"), [(Restless(), "another part"), (Partly(), "in part")])
def test_a_view_that_breaks_the_contract_is_told_how(view: Any, said: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match=said):
        check_view(view, LIKE)


@dataclass(frozen=True)
class InPlace(SGD):
    """Steps in place, on the model that others hold too."""

    def begin(self, start: Params, state: State, steps: int) -> State:
        return {"params": start}

    def step(self, gradient: Gradient, start: Params, carry: State, now: Now) -> State:
        for name, g in gradient(carry["params"])[0].items():
            carry["params"][name] -= 0.1 * g
        return carry


def test_a_solver_that_writes_on_its_start_is_found() -> None:
    with pytest.raises(AssertionError, match=r"elsewhere the second time|changed the model"):
        check_solver(InPlace())


@dataclass(frozen=True)
class Drifting(Mean):
    """Moves though nothing arrived."""

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        return {"params": {name: tensor + 1 for name, tensor in state["params"].items()}}


@dataclass(frozen=True)
class Hasty(Mean):
    """Moves the model while folding."""

    def fold(self, acc: Sum, arrival: Arrival) -> Sum:
        acc.like["w"].add_(1)
        return super().fold(acc, arrival)


@pytest.mark.parametrize(("server", "said"), [(Drifting(), "nothing arrived"), (Hasty(), "must only read")])
def test_a_server_that_breaks_the_contract_is_told_how(server: Mean, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_server(server, {name: tensor.clone() for name, tensor in LIKE.items()})


@dataclass(frozen=True)
class Whimsical(AnyDevice):
    """Tosses a coin of its own."""

    def send(self, nbytes: int, clock: Clock, key: Key) -> Receipt:
        return Receipt(bool(torch.rand(()) < 0.5))


def test_a_channel_with_a_will_of_its_own_is_found() -> None:
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match="otherwise the second time"):
        check_channel(Whimsical())


def test_a_method_that_does_not_repeat_is_found(tmp_path: Path) -> None:
    torch.manual_seed(0)
    with pytest.raises(AssertionError, match="elsewhere with the same seed"):
        check_method(fedavg().with_parts(codec=Moody()), tmp_path)


def test_a_part_that_is_no_dataclass_is_found() -> None:
    class Plain(Full):
        __repr__: Callable[..., str] = object.__repr__

    with pytest.raises((AssertionError, AttributeError)):
        check_value(Plain())
