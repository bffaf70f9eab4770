"""The view of ordinary federated averaging: every client holds the whole model."""

from dataclasses import dataclass
from typing import ClassVar

from gossamer.core.random import Key
from gossamer.core.types import Clock, Params, Part, State
from gossamer.core.view import NestedView


@dataclass(frozen=True)
class Full(NestedView):
    """The whole model, for every client in every round."""

    common: ClassVar[bool] = True
    predictable: ClassVar[bool] = True
    whole: ClassVar[bool] = True

    @property
    def nested(self) -> bool:
        """True: all parts are the same."""
        return True

    def part(self, like: Params, clock: Clock, key: Key, memory: State | None = None) -> Part:
        """Return the whole model."""
        return Part()
