"""Central differential privacy without sampling: noise in a binary tree (DP-FTRL).

Kairouz et al., Practical and Private (Deep) Learning without Sampling or Shuffling, ICML 2021,
https://arxiv.org/abs/2103.00039. The model of round t is computed from the sum of all updates since the start,

    w_t = w_0 + server_lr v_t
    v_t = momentum v_{t-1} + (S_1 + ... + S_t + N_t) / m

with the sums S of clipped updates (``private``), m expected clients per round, and noise N_t. Without momentum, v_t
is the noisy mean of all rounds. With momentum it is the sum of the velocities of SGD (DP-FTRLM).

N_t comes from a binary tree over the rounds. Node i of level l covers the rounds i 2**l + 1 to (i + 1) 2**l, and has
the noise N(0, (z c)^2) per entry. N_t is the sum of the nodes that cover 1 to t exactly: one per 1 in the binary
digits of t. So its variance is that of at most log2(t) + 1 draws, not of t, and a client that takes part in one
round is in at most log2(T) + 1 nodes. The guarantee needs no random sampling, but depends on how often a client takes
part.

**The estimates of Honaker** (Efficient Use of Differentially Private Binary Trees, TPDP 2015; from below, as in Kairouz
et al.). The sum of a node is also that of its two children, which have noise of their own. With ``honaker``, the noise
of a node is replaced by that of the best estimate from all nodes below, in units of (z c)^2:

    E_l = V_l N_l + (1 - V_l) (E of the left child + E of the right child),      V_l = 1 / (2 - 2**-l)

V_l is its variance: 1 for a leaf, 2/3 above two leaves, and almost 1/2 for large nodes. It follows from the weights of
two independent estimates with variances 1 and 2 V_(l-1). Nodes with an odd index count for the guarantee then too
(``parts.privacy.tree``). For a client that takes part once they cost nothing; for one that takes part in every round
the squared sensitivity is a third larger, which is less than what is gained: at the same epsilon, the mean variance of
the rounds is 0.58 of that without Honaker for 1,600 rounds of the first kind, and 0.78 for 1,000 of the second. A node
needs its children no longer, so the estimates are made as rounds end, like a binary counter, and as many are kept as t
has binary ones.

After ``restart_every`` rounds, a new tree starts from the current model, with velocity 0. In a simulation with noise
from the seed, the noise of a node follows from the run's key and its position.

Server state in addition to the model:

    initial     the model w_0 of the current tree
    sum         the sum of clipped updates of the current tree, in float64
    velocity    v_t, with momentum
    tree        the number of the current tree, -1 before the first round
    cohort      m, the expected number of clients in the tree's first round
    nodes       the noise of the nodes that cover 1 to t, or of their estimates, by level and index

``sum`` and ``nodes`` are secret (``secret_state``): with either of them, a reader of a checkpoint has the sum of the
updates without noise. All others follow from noisy sums.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import require, wrong
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.random import fold
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.parts.servers.private import ClippedSum, PrivateServer


def prefix(rounds: int) -> list[tuple[int, int]]:
    """Return level and index of the nodes that cover the first rounds exactly, the largest first.

    >>> prefix(6)
    [(2, 0), (1, 2)]
    """
    return [(level, (rounds >> level) - 1) for level in reversed(range(rounds.bit_length())) if rounds >> level & 1]


def _named(rounds: int) -> dict[str, tuple[int, int]]:
    """Return the nodes of ``prefix`` by their names in the server state."""
    return {f"{level}.{index}": (level, index) for level, index in prefix(rounds)}


def node_variance(level: int) -> float:
    """Return V_l, the variance of Honaker's estimate of a node, divided by that of its own noise.

    >>> node_variance(0), round(node_variance(1), 4)
    (1.0, 0.6667)
    """
    return 1 / (2 - 0.5**level)


@dataclass(frozen=True)
class TreeMean(PrivateServer):
    """Sum of clipped updates since the start with tree noise, which guarantees the privacy of each client.

    Args:
        server_lr: server learning rate, the factor of the mean update
        momentum: server momentum
        restart_every: number of rounds of a tree; none has one tree for the whole run
        honaker: estimate sums from all nodes, so that they have less noise; else from the nodes that cover them
    """

    secret_state: ClassVar[tuple[str, ...]] = ("sum", "nodes")

    server_lr: float = 1.0
    momentum: float = 0.0
    restart_every: int | None = None
    honaker: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        every = self.restart_every
        require(
            (0 < self.server_lr < math.inf, wrong(self, "server_lr", "must be a positive number")),
            (0 <= self.momentum < 1, wrong(self, "momentum", "must be in [0, 1)")),
            (every is None or every >= 1, wrong(self, "restart_every", "must be at least 1")),
        )

    def guarantee(self, participation: Participation) -> Guarantee:
        """Return the guarantee of the tree, given how often a client takes part."""
        self.check_noise()
        from gossamer.parts.privacy.tree import tree as tree_guarantee  # imported here: it needs an optional package

        return tree_guarantee(self.noise_multiplier, participation, self.restart_every, honaker=self.honaker)

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
            "nodes": {},
        }

    def finish(self, state: State, acc: ClippedSum, clock: Clock) -> State:
        """Compute the model from the noisy sum of all updates of the tree. It changes also if no update arrived."""
        if acc.expected == 0:
            return state
        number, before = divmod(clock.round, self.restart_every) if self.restart_every else (0, clock.round)
        if int(state["tree"]) != number:
            state = {**state, **self._planted(state["params"], number, acc.expected)}
        total, nodes = state["sum"] + acc.total, self.nodes(state, number, before + 1)
        drift = (total + sum(nodes.values())) / state["cohort"]
        if self.momentum:
            drift = state["velocity"] * self.momentum + drift
            state = {**state, "velocity": drift}
        spread = self.deviation * math.sqrt(self.variance(before + 1)) / float(state["cohort"])
        acc.figures |= {"norm": acc.clip, "noise": spread, "clients": float(state["cohort"])}
        moved = self._moved(state["initial"], drift * self.server_lr)
        return {**state, "sum": total, "nodes": nodes, "params": moved}

    def variance(self, rounds: int) -> float:
        """Return the variance of the noise of the sum of the first rounds, divided by that of a node."""
        return sum(node_variance(level) if self.honaker else 1.0 for level, _ in prefix(rounds))

    def nodes(self, state: State, number: int, rounds: int) -> dict[str, Tensor]:
        """Return the noise of the nodes that cover the first rounds of a tree, by level and index."""

        def drawn(level: int, index: int) -> Tensor:
            key, total = fold(self.key, "tree", number, level, index), state["sum"]
            return self.noise(key, len(total), self.deviation, total.device)

        found: dict[str, Tensor] = dict(state["nodes"])
        if not self.honaker:
            return {name: found[name] if name in found else drawn(*at) for name, at in _named(rounds).items()}
        done = sum(1 << int(name.partition(".")[0]) for name in found)
        for leaf in range(done, rounds):  # more than one if no client was asked in the rounds before
            level, index, estimate = 0, leaf, drawn(0, leaf)
            while index % 2:  # both children of the parent are complete
                left, level, index = found.pop(f"{level}.{index - 1}"), level + 1, index // 2
                own = node_variance(level)
                estimate = drawn(level, index) * own + (left + estimate) * (1 - own)
            found[f"{level}.{index}"] = estimate
        return found

    def _moved(self, initial: Params, drift: Tensor) -> Params:
        layout = Layout.of(initial)
        moved = layout.unflatten(drift.to(layout.dtype))
        return {name: tensor + moved[name] for name, tensor in initial.items()}
