"""Central differential privacy: the mean of clipped updates, with Gaussian noise (DP-FedAvg).

McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018, https://arxiv.org/abs/1710.06963.
With the clipping norm c, the noise multiplier z and m expected clients, the mean update of a round is

    (sum_k D_k min(1, c / |D_k|) + N(0, (z c)^2 I)) / m

and takes the place of the mean in another server, with that server's learning rate, projection or optimizer. See
``private_sum`` for the sensitivity, and ``adaptive_clip`` for a norm that follows the updates. All clients have the
weight 1: with weights by samples, one client could change the sum by more than c.

A client with a part of the model counts as an update of 0 elsewhere, which keeps the norm. A mean over the holders of
each entry is refused: its denominators depend on single clients.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from gossamer.core import tree
from gossamer.core.errors import Mistake, Setting, require
from gossamer.core.exchange import Assignment, Context, Download
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.random import Key, fold
from gossamer.core.server import Server
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.parts.servers.adaptive_clip import AdaptiveClip
from gossamer.parts.servers.mean import Mean, Sum
from gossamer.parts.servers.private_sum import BoundPrivateServer, ClippedSum, PrivateServer, known

NORM = "clip"
"""The entry of the server state with the clipping norm of the next round, if it is adapted."""


@dataclass(frozen=True)
class PrivateMean(PrivateServer):
    """Mean of clipped updates with Gaussian noise, which guarantees the privacy of each client.

    Args:
        mean: the server whose mean it replaces, with equal weights: ``Mean`` or a server optimizer
        adapt: how the clipping norm changes, starting from ``clip``; none keeps it
    """

    mean: Server = Mean("uniform")
    adapt: AdaptiveClip | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        require(*_rules(self.mean))
        if self.adapt is not None:
            self.adapt.check(self.noise_multiplier)

    def bind(self, context: Context) -> "BoundPrivateMean":
        """Return the server for one network and its clients."""
        self.check(context)
        fields = {**vars(self), "mean": self.mean.bind(context)}
        return BoundPrivateMean(**fields, **known(context))

    def guarantee(self, participation: Participation) -> Guarantee:
        """Return the guarantee of the Gaussian mechanism, composed over the rounds."""
        self.check_noise()
        from gossamer.parts.privacy.accounting import gaussian  # imported here: it needs an optional package

        return gaussian(self.noise_multiplier, participation)


def _rules(mean: Server) -> list[tuple[bool, str]]:
    """Return the conditions for the server whose mean is replaced."""
    name = type(mean).__name__
    plain = isinstance(mean, Mean) and mean.takes_any_mean()
    other = (
        f"PrivateMean takes the place of a plain mean of updates, and {name} uses the updates in another way: use "
        "fedavg, or another method whose server is Mean or a server optimizer"
    )
    if not (isinstance(mean, Mean) and plain):
        return [(False, other)]
    unequal = "must be uniform: with other weights, the influence of one client has no bound"
    holders = "must be cohort: the number of holders of an entry depends on single clients"
    return [
        (mean.equal_weights, Mistake(f"{unequal}, got {mean.weights!r}", Setting(name, "weights"))),
        (mean.over == "cohort", Mistake(f"{holders}, got {mean.over!r}", Setting(name, "over"))),
    ]


@dataclass(frozen=True)
class BoundPrivateMean(BoundPrivateServer, PrivateMean):
    """``PrivateMean`` with a bound mean and the run's key."""

    def __post_init__(self) -> None:
        """Leave the checks to ``PrivateMean``: the mean is bound now."""

    def bind(self, context: Context) -> "BoundPrivateMean":
        """Return the server itself."""
        return self

    @property
    def bound_mean(self) -> Mean:
        """The bound server whose mean is replaced."""
        assert isinstance(self.mean, Mean)
        return self.mean

    def init(self, params: Params) -> State:
        """Return the state of the mean, and the first clipping norm if it is adapted."""
        state = self.bound_mean.init(params)
        return state if self.adapt is None else {**state, NORM: _scalar(self.clip, params)}

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """Return the assignments of the mean."""
        return self.bound_mean.assign(state, cohort, clock, key)

    def download(self, state: State, assignment: Assignment) -> Download:
        """Return the download of the mean."""
        return self.bound_mean.download(state, assignment)

    def norm(self, state: State) -> float:
        """Return the clipping norm of the round."""
        return self.clip if self.adapt is None else float(state[NORM])

    def finish(self, state: State, acc: ClippedSum, clock: Clock) -> State:
        """Add noise, and update the model by the noisy mean. The state changes also if no update arrived."""
        if acc.expected == 0:  # no client was asked, which is known without any client's data
            return state
        key, adapt = fold(self.key, "privacy", clock.round), self.adapt
        multiplier = adapt.multiplier(self.noise_multiplier, acc.expected) if adapt else self.noise_multiplier
        deviation = multiplier * acc.clip
        noisy = acc.total + self.noise(fold(key, "sum"), len(acc.total), deviation, acc.total.device)
        acc.figures |= {"norm": acc.clip, "noise": deviation / acc.expected, "clients": acc.expected}
        layout = Layout.of(acc.model)
        vector = (noisy / noisy.new_tensor(acc.expected)).to(layout.dtype)
        new = self.bound_mean.finish(state, Sum(acc.model, vector, layout.unflatten(vector), None, 1.0), clock)
        if adapt is None:
            return new
        return {**new, NORM: _scalar(self._followed(adapt, acc, fold(key, "count")), acc.model)}

    def _followed(self, adapt: AdaptiveClip, acc: ClippedSum, key: Key) -> float:
        """Return the norm of the next round."""
        deviation = adapt.deviation(self.noise_multiplier, acc.expected)
        noise = float(self.noise(key, 1, deviation, torch.device("cpu")))
        acc.figures["below"] = (acc.below + noise) / acc.expected + 0.5
        return adapt.follow(acc.clip, acc.figures["below"])


def _scalar(value: float, like: Params) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64, device=tree.device(like))
