"""Synchronous rounds: the server waits for all clients of a round, however slow they are."""

from dataclasses import dataclass

from gossamer.core.schedule import Schedule


@dataclass(frozen=True)
class Synchronous(Schedule):
    """Waits for all clients of a round."""

    def slots(self, cohort: int) -> int:
        """Return the clients per round."""
        return cohort

    def goal(self, cohort: int) -> int | None:
        """Return none: all clients."""
        return None
