"""Clients that never leave."""

from dataclasses import dataclass

from gossamer.core.availability import ALWAYS, Availability
from gossamer.core.random import Key
from gossamer.fleet.availability.base import AvailabilityModel


@dataclass(frozen=True)
class AlwaysAvailable(AvailabilityModel):
    """Clients that are always available."""

    def of_client(self, client: int, key: Key) -> Availability:
        """Return an interval without an end."""
        return ALWAYS

    def to_text(self) -> str:
        """Return ``always``."""
        return "always"
