"""IFCA: several global models; each client trains the one with the smallest loss.

Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020, https://arxiv.org/abs/2006.04088.

The server sends all models. Each client trains the model with the smallest loss on its training samples, and sends its
choice with the update. The server averages the updates of each model over the clients that chose it. A model without
updates stays unchanged. There is no single global model: a client deploys the model with the smallest loss on its
samples. All models have the same architecture and are initialized from different seeds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self, Unpack

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Arrival, Assignment, Context, Download
from gossamer.core.method import Method
from gossamer.core.types import Clock, Params, State
from gossamer.methods.averaging import fedavg
from gossamer.methods.recipes import Averaging, recipe
from gossamer.parts.servers.mean import Sum, WeightedMean

__all__ = ["Clusters", "ifca"]


@dataclass
class Chosen:
    """Accumulator of a round: the sum of updates and the number of clients for each model."""

    sums: list[Sum]
    counts: list[int]


@dataclass(frozen=True)
class Clusters(WeightedMean):
    """Weighted mean of client updates for several models, each over the clients that chose it.

    Args:
        clusters: number of models
        models: the initial models
    """

    clusters: int = 2
    models: tuple[Params, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.clusters >= 2, wrong(self, "clusters", "must be at least 2")))

    def bind(self, context: Context) -> Self:
        """Return the server with the initial models. Refuse a task whose initial weights are always the same."""
        models = tuple(context.network.initial(number) for number in range(self.clusters))
        if all(bool((models[0][name] == models[1][name]).all()) for name in context.trained):
            raise ConfigError(
                "Clusters needs different initial models, but the task always builds the same weights: "
                "build a new module with random weights in Task.model"
            )
        return super().bind(context).filled(models=models)

    def init(self, params: Params) -> State:
        """Return all models. The first is the initial model of the run."""
        others = {str(number): model for number, model in enumerate(self.models) if number}
        return {"params": params, "others": others}

    def _models(self, state: State) -> list[Params]:
        return [state["params"], *(state["others"][str(number)] for number in range(1, self.clusters))]

    def download(self, state: State, assignment: Assignment) -> Download:
        """Return all models, from which the client chooses."""
        return Download(tuple(self._models(state)))

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Chosen:
        """Return one empty sum per model."""
        return Chosen([self.empty(model) for model in self._models(state)], [0] * self.clusters)

    def fold(self, acc: Chosen, arrival: Arrival) -> Chosen:
        """Add one client's update to the sum of the model that it chose."""
        acc.sums[arrival.choice].add(arrival, self.weigh(arrival))
        acc.counts[arrival.choice] += 1
        return acc

    def finish(self, state: State, acc: Chosen, clock: Clock) -> State:
        """Update each model by its mean update."""
        models = self._models(state)
        moved = [self.moved({"params": m}, total)["params"] for m, total in zip(models, acc.sums, strict=True)]
        others = {str(number): model for number, model in enumerate(moved) if number}
        return {**state, "params": moved[0], "others": others}

    def measure(self, state: State, acc: Chosen) -> dict[str, Any]:
        """Return the number of clients that chose each model."""
        return {"clusters": {f"model {number}": count for number, count in enumerate(acc.counts)}}


@recipe
def ifca(*, clusters: int = 2, **fields: Unpack[Averaging]) -> Method:
    """Several global models; each client trains the one with the smallest loss.

    Ghosh et al., An Efficient Framework for Clustered Federated Learning, NeurIPS 2020,
    https://arxiv.org/abs/2006.04088

    Args:
        clusters: number of models
    """
    return fedavg(**fields).with_parts(server=Clusters(fields["weights"], clusters=clusters))
