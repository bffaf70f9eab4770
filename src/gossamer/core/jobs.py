"""What is handed from one half of an exchange to the other: messages, jobs, and what came of them."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from gossamer.core.exchange import NONE, Sections
from gossamer.core.random import Key, fold
from gossamer.core.types import Clock, Flops, Layout, Params, Part, Payload, State
from gossamer.core.wire import Frame


class Outgoing(NamedTuple):
    """A message on its way, and its bytes by kind."""

    data: Frame
    kinds: dict[str, int]


SILENT = Outgoing(Frame(b""), {})


class Broadcast(NamedTuple):
    """What is common to the messages of a round, once it was read: whoever gets it again need not check it again."""

    key: Key
    common: bytes
    checksum: int
    models: tuple[Params, ...]
    sections: Sections

    def fits(self, frame: Frame, key: Key) -> bool:
        """Whether a message of the exchange with this key has the same common piece."""
        return self.key == key and self.common == frame.common


class Job(NamedTuple):
    """What one client is to do in one exchange; ``key`` is its own.

    ``models`` are those that came down, ``sent`` is the part of them that did. Once one is chosen, ``start`` is what
    the client holds of it, ``part`` which part that is, and ``layout`` how it lies in a vector. ``labels`` has 1 for
    each label that the client has a sample of, where that matters; ``samples`` are the numbers of its own; ``scale`` is
    what its loss is multiplied by, where the server says so; ``codec_key`` is what its change is encoded by;
    ``spent`` are the operations that choosing took.
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


class Trained(NamedTuple):
    """What came of a job: the change of every tensor that travels, what the last step carried, and how it went."""

    change: Params
    carry: State
    loss: float
    flops: Flops
    samples: int


def each(
    apply: Callable[..., Params], model: Mapping[str, Any], nest: Mapping[str, Any], *others: Mapping[str, Any]
) -> State:
    """A function of a model's tensors, applied wherever a nest has such: tensors that are called as the model's."""
    if nest and nest.keys() <= model.keys() and all(isinstance(value, Tensor) for value in nest.values()):
        return apply(nest, *others)
    return {
        name: each(apply, model, value, *(other[name] for other in others))
        if isinstance(value, Mapping)
        else (others[-1][name] if others else value)
        for name, value in nest.items()
    }


def own_key(key: Key, clock: Clock) -> Key:
    """A client's own key, of that of the exchange."""
    return fold(key, "client", clock.client)


def moved(arrays: Payload, device: torch.device) -> Payload:
    """Arrays on another device."""
    return {name: array.to(device) for name, array in arrays.items()}


def model_keys(down: Key, models: int) -> list[Key]:
    """The keys of the models that go down."""
    return [fold(down, "model", number) if number else down for number in range(models)]
