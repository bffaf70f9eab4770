"""The task of one machine in a deployment: its samples, and none of other clients."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gossamer import ConfigError, Split, Task
from gossamer.core import wire
from gossamer.core.errors import PayloadError
from helpers.pieces import piece_of

X, Y = torch.arange(12.0).view(6, 2), torch.tensor([0, 2, 1, 0, 1, 1])


def net() -> nn.Module:
    return nn.Linear(2, 3)


def test_all_samples_are_at_one_client() -> None:
    split = Split.alone(2, 4, 6, 3)
    assert split.clients == 4
    assert [split.train(client).tolist() for client in range(4)] == [[], [], [0, 1, 2, 3, 4, 5], []]
    assert [split.test(client).tolist() for client in range(4)] == [[], [], [0, 1, 2], []]
    assert split.unused(6) == 0
    assert Split.from_tensors(split.tensors()) == split, "it can be stored"


def test_the_server_is_no_client_and_its_samples_are_nobodys() -> None:
    split = Split.alone(None, 3, 0, 5)
    assert split.sizes().tolist() == [0, 0, 0]
    assert [len(split.test(client)) for client in range(3)] == [0, 0, 0]
    assert Split.from_tensors(split.tensors()) == split


@pytest.mark.parametrize("client", [0, 3])
def test_a_client_has_only_its_samples(client: int) -> None:
    task = Task.own(net, (X, Y), (X[:2], Y[:2]), client=client, clients=4)
    assert task.clients == 4
    assert torch.equal(task.data.train.x[torch.from_numpy(task.split.train(client))], X)
    assert task.split.test(client).tolist() == [0, 1]
    assert np.count_nonzero(task.split.sizes()) == 1
    assert task.data.classes == 3
    assert task.describe()["split"] == "by client"


def test_a_client_may_do_without_test_samples() -> None:
    task = Task.own(net, (X, Y), client=1, clients=2)
    assert len(task.data.test) == 0
    assert task.data.test.x.shape == (0, 2)


def test_a_server_may_have_nothing_or_test_samples() -> None:
    nothing = Task.own(net, client=None, clients=3)
    assert (len(nothing.data.train), len(nothing.data.test), nothing.data.classes) == (0, 0, 0)
    tests = Task.own(net, test=(X, Y), client=None, clients=3)
    assert (len(tests.data.train), len(tests.data.test), tests.data.classes) == (0, 6, 3)
    assert nothing.describe() != tests.describe()


@pytest.mark.parametrize(
    ("given", "mistakes"),
    [
        ({"client": 3, "clients": 3, "train": (X, Y)}, ["client must be from 0 to 2, got 3"]),
        ({"client": -1, "clients": 3, "train": (X, Y)}, ["client must be from 0 to 2, got -1"]),
        ({"client": None, "clients": 0}, ["clients must be at least 1, got 0"]),
        ({"client": 1, "clients": 3}, ["client 1 needs training samples"]),
        ({"client": 5, "clients": 3}, ["client must be from 0 to 2, got 5", "client 5 needs training samples"]),
        (
            {"client": 0, "clients": 1, "train": (X, Y[:3]), "test": (X * torch.nan, Y)},
            [
                "train: x holds 6 samples and y 3: the numbers must be equal and not 0",
                "test: x holds values that are not finite",
            ],
        ),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], mistakes: list[str]) -> None:
    with pytest.raises(ConfigError) as refused:
        Task.own(net, **given)
    assert list(refused.value.mistakes) == mistakes


def test_kinds_are_read_off_a_message_as_they_were_counted() -> None:
    payload = {"values": torch.ones(5), "places": torch.arange(300, dtype=torch.int16), "none": torch.ones(0)}
    message = wire.Message("up", 1, 2, 3, 4.0, payload)
    frame = wire.Frame.of(wire.pack(message))
    assert wire.read_sizes(frame) == wire.sizes(message) | {"none": 0}
    assert sum(wire.read_sizes(frame).values()) == len(frame)
    assert wire.read_sizes(wire.Frame.of(wire.pack(wire.Message("up", 0, 0, 0, 0.0, {})))) == {"overhead": 47}


@pytest.mark.parametrize(
    "body", [b"\x01a\x08\xff\xff\xff\x7f", b"\x01a\x08\x01", b"\x01a\x08\x01" + bytes(5), b"\x05a"], ids=repr
)
def test_kinds_of_a_table_that_does_not_fit_its_arrays_are_refused(body: bytes) -> None:
    piece = piece_of(body, 1)
    head = wire.Head("up", 0, 0, 0, 1.0)
    for frame in (wire.address(head, piece), wire.address(head, wire.NOTHING, piece)):
        with pytest.raises(PayloadError):
            wire.read_sizes(frame)
        with pytest.raises(PayloadError):
            wire.unpack(frame)
