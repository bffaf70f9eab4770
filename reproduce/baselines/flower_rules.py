"""Flower's robust aggregation as a server of Gossamer: its functions see the same updates as Gossamer's rules.

    gossamer run fedavg --server reproduce/baselines/flower_rules.py:FlowerRule --set server.rule=krum --set server.f=2

The functions are those that Flower's strategies FedMedian, FedTrimmedAvg, Krum, MultiKrum and Bulyan call. They hold
the decoded updates of the whole cohort in memory.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from flwr.server.strategy import aggregate as flower

from gossamer import Params, State
from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Arrival, Assignment
from gossamer.core.tree import device
from gossamer.core.types import Clock
from gossamer.parts.servers import WeightedMean

Results = list[tuple[list[Any], int]]
"""Arrays and number of samples of each client, as Flower has them."""


@dataclass(frozen=True)
class FlowerRule(WeightedMean):
    """Aggregate updates with a function of Flower.

    Args:
        rule: median, trimmed-mean, krum, multi-krum or bulyan
        f: the number of hostile clients that the rule expects
    """

    rule: Literal["median", "trimmed-mean", "krum", "multi-krum", "bulyan"] = "median"
    f: int = 2

    def __post_init__(self) -> None:
        require((self.f >= 0, wrong(self, "f", "must not be negative")))

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Any:
        """Return an empty list; refuse a cohort that is too small for Bulyan."""
        if self.rule == "bulyan" and len(assigned) < 4 * self.f + 3:
            raise ConfigError(wrong(self, "f", f"must satisfy 4 f + 3 <= {len(assigned)}, the cohort, for bulyan"))
        return []

    def fold(self, acc: Any, arrival: Arrival) -> Any:
        """Add the decoded update of one client."""
        change = arrival.change(torch.device("cpu"))
        acc.append(([change[name].numpy() for name in sorted(change)], int(arrival.samples)))
        return acc

    def finish(self, state: State, acc: Any, clock: Clock) -> State:
        """Add what Flower's function returns to the model."""
        if not acc:
            return state
        params: Params = state["params"]
        found = dict(zip(sorted(params), self.combine(acc), strict=True))
        at = device(params)
        moved = {name: tensor + torch.as_tensor(found[name]).to(at, tensor.dtype) for name, tensor in params.items()}
        return {**state, "params": moved}

    def combine(self, results: Results) -> list[Any]:
        """Call the function of the rule."""
        n, f = len(results), self.f
        rules: dict[str, Callable[[], list[Any]]] = {
            "median": lambda: flower.aggregate_median(results),
            "trimmed-mean": lambda: flower.aggregate_trimmed_avg(results, f / n),
            "krum": lambda: flower.aggregate_krum(results, f, 0),
            "multi-krum": lambda: flower.aggregate_krum(results, f, max(1, n - f)),
            "bulyan": lambda: flower.aggregate_bulyan(results, f, flower.aggregate_krum, to_keep=0),
        }
        return rules[self.rule]()
