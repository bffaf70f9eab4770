"""IFCA: several models, of which each client trains the one that fits its samples best (Ghosh et al., 2020).

https://arxiv.org/abs/2006.04088

All models go down. Each client takes the one with the smallest loss on its training samples, trains that, and tells
which it was; the server averages the changes of each model over those who chose it. A model that nobody chose stays.
There is no global model: a client deploys whichever of the models has the smallest loss on its samples. The models are
built like the network, each from a seed of its own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Unpack

from gossamer.core.errors import ConfigError, require, wrong
from gossamer.core.exchange import Arrival, Assignment, Context, Download
from gossamer.core.method import Method
from gossamer.core.server import MeasuredServer
from gossamer.core.types import Clock, Params, State
from gossamer.methods.averaging import fedavg
from gossamer.methods.recipes import Averaging, recipe
from gossamer.parts.servers.mean import Mean, Sum

__all__ = ["Clusters", "ifca"]


@dataclass
class Chosen:
    """The sum of each model's changes, and how many clients chose it."""

    sums: list[Sum]
    counts: list[int]


@dataclass(frozen=True)
class Clusters(Mean):
    """Averages the changes of several models, each over those who chose it.

    Args:
        clusters: how many models there are
    """

    clusters: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        require((self.clusters >= 2, wrong(self, "clusters", "must be at least 2")))

    def bind(self, context: Context) -> "BoundClusters":
        """With the models to start with; refuses a network that is built with the same tensors every time."""
        models = tuple(context.network.initial(number) for number in range(self.clusters))
        if all(bool((models[0][name] == models[1][name]).all()) for name in context.trained):
            raise ConfigError("Clusters needs models that differ at first, and the task builds the same every time")
        return BoundClusters(**vars(super().bind(context)), models=models)


@dataclass(frozen=True)
class BoundClusters(Clusters, MeasuredServer):
    """The same with the models to start with."""

    models: tuple[Params, ...] = field(kw_only=True, repr=False, compare=False)

    def init(self, params: Params) -> State:
        """All models; the first is that of any other method."""
        others = {str(number): model for number, model in enumerate(self.models) if number}
        return {"params": params, "others": others}

    def _models(self, state: State) -> list[Params]:
        return [state["params"], *(state["others"][str(number)] for number in range(1, self.clusters))]

    def download(self, state: State, assignment: Assignment) -> Download:
        """All models."""
        return Download(tuple(self._models(state)))

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> Chosen:  # type: ignore[override]
        """Nobody has chosen yet."""
        return Chosen([self.empty(model) for model in self._models(state)], [0] * self.clusters)

    def fold(self, acc: Chosen, arrival: Arrival) -> Chosen:  # type: ignore[override]
        """Add one client's change to those of the model that it chose."""
        self.add(acc.sums[arrival.choice], arrival, self.weigh(arrival))
        acc.counts[arrival.choice] += 1
        return acc

    def finish(self, state: State, acc: Chosen, clock: Clock) -> State:  # type: ignore[override]
        """Move each model that somebody chose."""
        models = self._models(state)
        moved = [
            Mean.finish(self, {"params": m}, total, clock)["params"] for m, total in zip(models, acc.sums, strict=True)
        ]
        others = {str(number): model for number, model in enumerate(moved) if number}
        return {**state, "params": moved[0], "others": others}

    def measure(self, state: State, acc: Chosen) -> dict[str, Any]:
        """How many clients chose each model."""
        return {"clusters": {f"model {number}": count for number, count in enumerate(acc.counts)}}


@recipe
def ifca(*, clusters: int = 2, **fields: Unpack[Averaging]) -> Method:
    """Several models, of which each client trains the one that fits it best (Ghosh et al., 2020, https://arxiv.org/abs/2006.04088)."""
    return fedavg(**fields).with_parts(server=Clusters(fields["weights"], clusters=clusters))
