"""The interfaces of attacks: what hostile clients change, and what they know.

A share of all clients is hostile, for the whole run. An attack has one or more of four abilities:

UpdateAttack  each hostile client changes its trained update, and may claim another number of samples
Collusion     the hostile clients of a round send one update, made from the updates that they have trained honestly
DataAttack    hostile clients train on changed samples
Triggered     the attack has a goal of its own, whose success is measured

Changed updates are encoded and sent like any other, so that an attack works with every codec, view and executor.

A complete attack that sends nothing but zeros:

    @dataclass(frozen=True)
    class Zeros(UpdateAttack):
        share: float = 0.1

        def update(self, change, key):
            return {name: torch.zeros_like(tensor) for name, tensor in change.items()}
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.fields import CheckedFields
from gossamer.core.random import Key, choice, fold
from gossamer.core.specs import parse
from gossamer.core.types import Params
from gossamer.parts.attacks import ATTACKS

if TYPE_CHECKING:
    from gossamer.tasks.data.samples import Data


class Scene(NamedTuple):
    """What colluding clients know in a round.

    They know the updates that they have trained themselves, before the attack, and no update of an honest client.

    Args:
        mean: the mean of their updates
        std: the standard deviation of their updates, entry by entry
        hostile: the number of hostile clients that trained in this round
        cohort: the number of clients of this round
    """

    mean: Params
    std: Params
    hostile: int
    cohort: int


class Attack(CheckedFields, ABC):
    """What hostile clients do. Every attack has the field ``share``: the share of all clients that are hostile."""

    share: float

    def __post_init__(self) -> None:
        require((0 < self.share < 1, wrong(self, "share", "must be above 0 and below 1")), *self.checks())

    def checks(self) -> Sequence[tuple[bool, str]]:
        """Return the checks of the other fields, with the message of each."""
        return ()

    def warning(self, hostile: int, cohort: int) -> str | None:
        """Return that the attack has no effect in a typical round, and what to do; by default none."""
        return None

    @classmethod
    def of_text(cls, text: str) -> "Attack":
        """Read an attack: ``sign-flip``, ``scale:-50`` or ``sign-flip,share=0.3``."""
        name, comma, rest = text.partition(",")
        plain = f"{name}:{rest}" if comma and ":" not in name else text
        return parse(plain, ATTACKS, "attack", typed=text)

    def hostile(self, clients: int, key: Key) -> tuple[int, ...]:
        """Return the hostile clients of a run, in client order: at least one. ``key`` is the run's key."""
        count = max(1, math.floor(self.share * clients + 0.5))
        all_of_them = (
            f"makes {count} of {clients} clients hostile: one must be honest, so lower it, or use more clients"
        )
        require((count < clients, wrong(self, "share", all_of_them)))
        return tuple(choice(fold(key, "hostile"), clients, count).tolist())


class UpdateAttack(Attack):
    """An attack in which each hostile client changes its own update."""

    @abstractmethod
    def update(self, change: Params, key: Key) -> Params:
        """Return the update to send instead of ``change``. ``key`` differs for each client and round."""

    def update_of(self, client: int, change: Params, key: Key) -> Params:
        """Return the update that one client sends; by default ``update``, which is the same for all clients."""
        return self.update(change, key)

    def claim(self, samples: int) -> int:
        """Return the number of samples that the client claims to have; by default the true one."""
        return samples


class Collusion(Attack):
    """An attack in which all hostile clients of a round send the same update."""

    @abstractmethod
    def craft(self, scene: Scene) -> Params:
        """Return the update that all of them send."""


class DataAttack(Attack):
    """An attack in which hostile clients train on changed samples."""

    @abstractmethod
    def check_data(self, data: "Data") -> None:
        """Raise ``ConfigError`` if the attack cannot change samples of this kind."""

    @abstractmethod
    def poison(self, x: Tensor, y: Tensor, classes: int, key: Key) -> tuple[Tensor, Tensor]:
        """Return the changed samples of one client. Arguments are not modified."""


class Triggered(Attack):
    """An attack on inputs with a trigger. Its success rate is measured beside the accuracy of the model."""

    target: int

    @abstractmethod
    def trigger(self, x: Tensor) -> Tensor:
        """Return inputs with the trigger. The argument is not modified."""
