"""Values that the two sides of an exchange work with: messages, jobs, and results of local training."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.core.exchange import NONE, Sections
from gossamer.core.random import Key, Purpose, fold
from gossamer.core.types import Clock, Flops, Layout, Params, Part, Payload, State
from gossamer.core.wire import Frame


class Outgoing(NamedTuple):
    """A message to send.

    Args:
        data: the message
        kinds: its number of bytes by part and section
        figures: metrics of its codec
    """

    data: Frame
    kinds: dict[str, int]
    figures: Mapping[str, float] = {}


SILENT = Outgoing(Frame(b""), {})


class Broadcast(NamedTuple):
    """The decoded common piece of a round's downloads. Clients in the same process decode it once.

    Args:
        key: the key of the exchange
        common: the bytes of the piece
        checksum: the checksum of the bytes
        models: the decoded models
        sections: the values of the common sections
        base: the version of the model that a client must hold to read the piece; negative if it needs none
    """

    key: Key
    common: bytes | memoryview
    checksum: int
    models: tuple[Params, ...]
    sections: Sections
    base: int = -1

    def fits(self, frame: Frame, key: Key) -> bool:
        """Return whether a message of the exchange with this key has the same common piece."""
        mine, other = self.common, frame.common
        return self.key == key and (mine is other or (len(mine) == len(other) and bytes(mine) == bytes(other)))

    def sharing(self, others: Iterable["Broadcast"]) -> "Broadcast":
        """Return the broadcast with the models of another one if they are equal, so that one copy is kept.

        The others are of the same round, so that their sections are equal too.
        """
        equal = next((other for other in others if all(map(_equal, other.models, self.models))), self)
        return self._replace(models=equal.models, sections=equal.sections)


class Job(NamedTuple):
    """The local training of one client in one exchange.

    The fields ``choice``, ``part``, ``start`` and ``layout`` are set when the client has chosen one of the models.

    Args:
        clock: the round and the client
        key: the client's random key
        codec_key: the random key of the uplink codec
        state: the client state
        models: the received models
        sent: the part of the model that was received
        sections: the values of the server's sections
        owner: the client whose model is trained; none is the global model
        scale: the factor of the loss; none is 1
        version: the version of the model
        broadcast: the common piece of the download, decoded
        choice: the number of the chosen model
        part: the entries that the client holds
        start: the tensors that the client starts from
        layout: names and shapes of the tensors behind the vector of the update
        labels: 1 for each label with a local sample, where the exchange needs it
        samples: the indices of the client's samples
        spent: the FLOPs of the choice
        request: the request of secure aggregation for the upload; none without secure aggregation
    """

    clock: Clock
    key: Key
    codec_key: Key
    state: State
    models: tuple[Params, ...]
    sent: Part
    sections: Sections = NONE
    owner: int | None = None
    scale: float | None = None
    version: int = 0
    broadcast: Broadcast | None = None
    choice: int = 0
    part: Part = Part()
    start: Params = Params()
    layout: Layout = Layout(())
    labels: Tensor | None = None
    samples: np.ndarray | None = None
    spent: int = 0
    request: Payload | None = None


class Folding(NamedTuple):
    """The accumulator of an exchange.

    Args:
        total: the accumulator of the server
        notes: what the downlink keeps of the arrivals
    """

    total: Any
    notes: Any


class Trained(NamedTuple):
    """The result of local training.

    Args:
        change: the change of every tensor that is sent
        carry: the solver's carry after the last step
        loss: the mean training loss
        flops: the FLOPs
        samples: the number of training samples
        gradient: the gradient after training, if the executor has computed it; see ``View.screens``. Its FLOPs
            are among ``flops``
    """

    change: Params
    carry: State
    loss: float
    flops: Flops
    samples: int
    gradient: Params | None = None


def each(
    apply: Callable[..., Params], model: Mapping[str, Any], nest: Mapping[str, Any], *others: Mapping[str, Any]
) -> State:
    """Apply a function of a model's tensors to every dictionary in a nest that has names of the model's tensors.

    Other tensors are taken from the last of ``others``, or kept.
    """
    if nest and nest.keys() <= model.keys() and all(isinstance(value, Tensor) for value in nest.values()):
        return apply(nest, *others)
    return {
        name: each(apply, model, value, *(other[name] for other in others))
        if isinstance(value, Mapping)
        else (others[-1][name] if others else value)
        for name, value in nest.items()
    }


def _equal(one: Params, other: Params) -> bool:
    """Return whether two models have the same tensors."""
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def round_purpose(number: int) -> Purpose:
    """Return the purpose of a round's key."""
    return "round", number


def round_key(key: Key, number: int) -> Key:
    """Return the key of a round, given the run's key."""
    return fold(key, *round_purpose(number))


def own_key(key: Key, clock: Clock) -> Key:
    """Return the client's key, given the key of the exchange."""
    return fold(key, "client", clock.client)


def moved(arrays: Payload, device: torch.device) -> Payload:
    """Return the arrays on another device."""
    return {name: array.to(device) for name, array in arrays.items()}


def model_keys(down: Key, models: int) -> list[Key]:
    """Return the downlink keys of several models, given that of the first."""
    return [fold(down, "model", number) if number else down for number in range(models)]
