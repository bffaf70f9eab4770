"""The interface of availability models."""

from abc import ABC, abstractmethod

import torch

from gossamer.core.availability import Availability
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key, uniform


class AvailabilityModel(CheckedFields, ABC):
    """When the clients with a device are available."""

    @abstractmethod
    def of_client(self, client: int, key: Key) -> Availability:
        """Return the availability of a client. ``key`` is the client's own."""

    @abstractmethod
    def to_text(self) -> str:
        """Return the model as a fleet file has it."""


BLOCK = 32


class Numbers:
    """The uniform numbers of a key, in [0, 1). A block of them is kept, because drawing single ones is slow.

    Args:
        key: the key
    """

    def __init__(self, key: Key) -> None:
        self._key, self._block, self._kept = key, -1, [0.0]

    def __getitem__(self, index: int) -> float:
        block, place = divmod(index, BLOCK)
        if block != self._block:
            drawn = uniform(self._key, BLOCK, dtype=torch.float64, start=block * BLOCK)
            self._block, self._kept = block, drawn.tolist()
        return self._kept[place]
