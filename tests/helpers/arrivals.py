"""The updates that a simulated server folds."""

from typing import Any

import pytest

from gossamer.core.exchange import Arrival
from gossamer.engines.simulation import Simulation


def noted_arrivals(run: Simulation, patch: pytest.MonkeyPatch) -> list[Arrival]:
    """Return a list that grows by each update that the run's server folds from now on."""
    exchange, found = run.method.training, list[Arrival]()
    fold = exchange.fold

    def noted(acc: Any, arrival: Arrival) -> Any:
        found.append(arrival)
        return fold(acc, arrival)

    patch.setattr(exchange, "fold", noted)
    return found
