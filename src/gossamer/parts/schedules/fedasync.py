"""FedAsync: each update changes the model at once (Xie et al., 2019, https://arxiv.org/abs/1903.03934)."""

from dataclasses import dataclass

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Arrival
from gossamer.core.types import Params
from gossamer.parts.schedules.asynchronous import Asynchronous


@dataclass(frozen=True)
class FedAsync(Asynchronous):
    """Mixes the model v of each client into the global model w: w + a (v - w), with a = mix factor(s).

    The difference is relative to the current model, not to the one that the client received.

    Args:
        mix: weight of a client's model without staleness
    """

    mix: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        require((0 < self.mix <= 1, wrong(self, "mix", "must be in (0, 1]")))

    def goal(self, cohort: int) -> int | None:
        """Return 1: each update is an aggregation."""
        return 1

    def factor(self, staleness: int) -> float | None:
        """Return the weight of a client's model; none above ``max_staleness``."""
        factor = super().factor(staleness)
        return None if factor is None else self.mix * factor

    def adapt(self, arrival: Arrival, model: Params) -> Arrival:
        """Return the arrival relative to the current model, multiplied by its weight."""
        return super().adapt(arrival.from_model(model), model)
