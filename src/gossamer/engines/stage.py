"""One exchange of one round: which client trains which model, and what has become of it."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gossamer.core.bound import BoundExchange
from gossamer.core.exchange import GLOBAL, Assignment, Outcome
from gossamer.core.secure import SecureRound
from gossamer.core.types import State
from gossamer.engines.anomalies import AnomalyWatch


@dataclass(frozen=True)
class Stage:
    """One exchange of one round.

    Args:
        exchange: the bound exchange
        number: index of the round
        assigned: the assignment of each client: which model it trains
        outcomes: outcomes so far, in client order
        most: the number of samples above which a client's claim does not count
        limited: clients that claimed more than that, so far
        watch: what is compared between the clients; none if nothing is
        server: the server state from which the downloads are made; none is the current one
        staleness: the number of aggregations since that state
        secure: the server's side of secure aggregation; none without it
    """

    exchange: BoundExchange
    number: int
    assigned: Mapping[int, Assignment]
    outcomes: list[Outcome] = field(default_factory=list)
    most: float = math.inf
    limited: list[int] = field(default_factory=list)
    watch: AnomalyWatch | None = None
    server: State | None = None
    staleness: int = 0
    secure: SecureRound | None = None

    @property
    def active(self) -> list[int]:
        """The clients that train in this exchange, in client order."""
        return sorted(client for client, to in self.assigned.items() if to.loss_scale != 0)

    def only(self, clients: Iterable[int]) -> "Stage":
        """Return the stage of some of the clients; outcomes are those of the whole stage."""
        return replace(self, assigned={client: self.assigned[client] for client in clients})

    def protected(self, secure: SecureRound, clients: Iterable[int]) -> "Stage":
        """Return the stage of some of the clients, whose uploads are protected by secure aggregation."""
        return replace(self.only(clients), secure=secure)

    def earlier(self, version: int, server: State, clients: Iterable[int]) -> "Stage":
        """Return the stage in which clients started from an earlier version; outcomes are those of this stage."""
        assigned = {client: self.assigned.get(client, GLOBAL) for client in clients}
        return replace(self, number=version, assigned=assigned, server=server, staleness=self.number - version)

    @property
    def failed(self) -> dict[int, str]:
        """Failed clients and clients with a refused upload, with the reasons."""
        return {outcome.client: outcome.reason for outcome in self.outcomes if outcome.reason}
