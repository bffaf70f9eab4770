"""Central differential privacy without sampling: noise in a binary tree (DP-FTRL).

Kairouz et al., Practical and Private (Deep) Learning without Sampling or Shuffling, ICML 2021,
https://arxiv.org/abs/2103.00039. The model of round t is computed from the sum of all updates since the start,

    w_t = w_0 + server_lr v_t
    v_t = momentum v_{t-1} + (S_1 + ... + S_t + N_t) / m

with the sums S of clipped updates (``private_sum``), m expected clients per round, and noise N_t. Without momentum, v_t
is the noisy mean of all rounds. With momentum it is the sum of the velocities of SGD (DP-FTRLM).

N_t comes from a binary tree over the rounds. Node i of level l covers the rounds i 2**l + 1 to (i + 1) 2**l, and has
the noise N(0, (z c)^2) per entry. N_t is the sum of the nodes that cover 1 to t exactly: one per 1 in the binary
digits of t. So its variance is that of at most log2(t) + 1 draws, not of t, and a client that takes part in one
round is in at most log2(T) + 1 nodes. The guarantee needs no random sampling, but depends on how often a client takes
part.

After ``restart_every`` rounds, a new tree starts from the current model, with velocity 0. The noise of a node follows
from the run's key and its position. Noise of the operating system cannot be drawn again, so the nodes in use are then
kept in the server state.

Server state in addition to the model:

    initial     the model w_0 of the current tree
    sum         the sum of clipped updates of the current tree, in float64
    velocity    v_t, with momentum
    tree        the number of the current tree, -1 before the first round
    cohort      m, the expected number of clients in the tree's first round
    nodes       with noise of the operating system: that of the nodes in use, by level and index
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.random import fold
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.parts.servers.private_sum import BoundPrivateServer, ClippedSum, PrivateServer, known


def prefix(rounds: int) -> list[tuple[int, int]]:
    """Return level and index of the nodes that cover the first rounds exactly, the largest first.

    >>> prefix(6)
    [(2, 0), (1, 2)]
    """
    return [(level, (rounds >> level) - 1) for level in reversed(range(rounds.bit_length())) if rounds >> level & 1]


@dataclass(frozen=True)
class TreeMean(PrivateServer):
    """Sum of clipped updates since the start with tree noise, which guarantees the privacy of each client.

    Args:
        server_lr: server learning rate, the factor of the mean update
        momentum: server momentum
        restart_every: number of rounds of a tree; none has one tree for the whole run
    """

    server_lr: float = 1.0
    momentum: float = 0.0
    restart_every: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        every = self.restart_every
        require(
            (0 < self.server_lr < math.inf, wrong(self, "server_lr", "must be a positive number")),
            (0 <= self.momentum < 1, wrong(self, "momentum", "must be in [0, 1)")),
            (every is None or every >= 1, wrong(self, "restart_every", "must be at least 1")),
        )

    def bind(self, context: Context) -> "BoundTreeMean":
        """Return the server for one network and its clients."""
        self.check(context)
        return BoundTreeMean(**vars(self), **known(context))

    def guarantee(self, participation: Participation) -> Guarantee:
        """Return the guarantee of the tree, given how often a client takes part."""
        self.check_noise()
        from gossamer.parts.privacy.tree import tree as tree_guarantee  # imported here: it needs an optional package

        return tree_guarantee(self.noise_multiplier, participation, self.restart_every)


@dataclass(frozen=True)
class BoundTreeMean(BoundPrivateServer, TreeMean):
    """``TreeMean`` with the run's key."""

    def bind(self, context: Context) -> "BoundTreeMean":
        """Return the server itself."""
        return self

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise of a node."""
        return self.noise_multiplier * self.clip

    def norm(self, state: State) -> float:
        """Return the clipping norm, which is fixed."""
        return self.clip

    def init(self, params: Params) -> State:
        """Return the state before the first tree."""
        return {"params": params, **self._planted(params, -1, 0.0)}

    def _planted(self, params: Params, number: int, cohort: float) -> State:
        """Return the state of a new tree, which starts from a model."""
        device = tree.device(params)
        zeros = torch.zeros(Layout.of(params).size, dtype=torch.float64, device=device)
        return {
            "initial": params,
            "sum": zeros,
            **({"velocity": zeros} if self.momentum else {}),
            "tree": torch.tensor(number, device=device),
            "cohort": torch.tensor(cohort, dtype=torch.float64, device=device),
            **({"nodes": {}} if self.secure_noise else {}),
        }

    def finish(self, state: State, acc: ClippedSum, clock: Clock) -> State:
        """Compute the model from the noisy sum of all updates of the tree. It changes also if no update arrived."""
        if acc.expected == 0:
            return state
        number, before = divmod(clock.round, self.restart_every) if self.restart_every else (0, clock.round)
        if int(state["tree"]) != number:
            state = {**state, **self._planted(state["params"], number, acc.expected)}
        total, nodes = state["sum"] + acc.total, self._nodes(state, number, before + 1)
        drift = (total + sum(nodes.values())) / state["cohort"]
        if self.momentum:
            drift = state["velocity"] * self.momentum + drift
            state = {**state, "velocity": drift}
        if self.secure_noise:
            state = {**state, "nodes": nodes}
        spread = self.deviation * math.sqrt(len(nodes)) / float(state["cohort"])
        acc.figures |= {"norm": acc.clip, "noise": spread, "clients": float(state["cohort"])}
        return {**state, "sum": total, "params": self._moved(state["initial"], drift * self.server_lr)}

    def _nodes(self, state: State, number: int, rounds: int) -> dict[str, Tensor]:
        """Return the noise of the nodes that cover the first rounds of a tree, by level and index."""
        old, total = state.get("nodes", {}), state["sum"]
        found = {}
        for level, index in prefix(rounds):
            name = f"{level}.{index}"
            key = fold(self.key, "tree", number, level, index)
            found[name] = old[name] if name in old else self.noise(key, len(total), self.deviation, total.device)
        return found

    def _moved(self, initial: Params, drift: Tensor) -> Params:
        layout = Layout.of(initial)
        moved = layout.unflatten(drift.to(layout.dtype))
        return {name: tensor + moved[name] for name, tensor in initial.items()}
