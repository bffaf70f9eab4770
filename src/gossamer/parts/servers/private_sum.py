"""What the servers of central differential privacy share: a sum of clipped updates, and what they refuse.

Each update is decoded, clipped to a norm c over all tensors together, and added to one sum in client order:

    S = sum_k D_k min(1, c / |D_k|)

One client more or less changes S by at most c in norm: c is the sensitivity, whatever a client sends. The noise added
to each entry of S has the standard deviation ``noise_multiplier`` times c. Norm and sum are computed in float64, so
that rounding adds less than 1e-12 of c to the sensitivity.

The sum is divided by the expected number of clients, a number that does not depend on which clients answer: with
Poisson sampling the rate times the number of clients, otherwise the number of clients that were asked. A client that
fails counts as an update of 0. Noise is added also if no update arrives: a round without noise would reveal that
nobody took part in it.

The guarantee covers everything that follows from the noisy sum: the model, and the figures of the server. It does not
cover other values of the server's record, such as the training loss, the bytes and the clients of each round.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import Mistake, PayloadError, Setting, require, wrong
from gossamer.core.exact import norm
from gossamer.core.exchange import Arrival, Assignment, Context
from gossamer.core.privacy import PrivatePart
from gossamer.core.random import Key
from gossamer.core.random.private import gaussian
from gossamer.core.server import MeasuredServer, Server
from gossamer.core.types import Layout, Params, State
from gossamer.core.view import ViewMemory
from gossamer.parts.servers.clipping import shrink, whole_vector


@dataclass
class ClippedSum:
    """Running sum of clipped updates, in float64.

    Args:
        model: the global model
        total: the sum
        clip: the largest norm of an update
        expected: the expected number of clients
        below: the number of norms up to ``clip``, minus half the number of updates
        figures: what the record will say; all of it follows from noisy values
    """

    model: Params
    total: Tensor
    clip: float
    expected: float
    below: float = 0.0
    figures: dict[str, float] = field(default_factory=dict)

    def add(self, arrival: Arrival) -> None:
        """Add an update, clipped. Raises ``PayloadError`` if it is not finite: no factor could bound it."""
        vector = whole_vector(arrival, self.model, Layout.of(self.model)).double()
        size = norm(vector)
        if not bool(size.isfinite()):
            raise PayloadError("the update is not finite")
        self.total.add_(vector * shrink(size, self.clip))
        self.below += 0.5 if float(size) <= self.clip else -0.5


@dataclass(frozen=True, kw_only=True)
class PrivateServer(Server, PrivatePart):
    """A server that adds Gaussian noise to a sum of clipped updates.

    Args:
        clip: largest norm of an update; larger ones are scaled down to it
        noise_multiplier: standard deviation of the noise of the sum, divided by ``clip``; 0 adds none
    """

    clip: float = 1.0
    noise_multiplier: float = 1.0

    def __post_init__(self) -> None:
        require(
            (0 < self.clip < math.inf, wrong(self, "clip", "must be a positive number")),
            (0 <= self.noise_multiplier < math.inf, wrong(self, "noise_multiplier", "must be finite and not negative")),
        )

    def check_noise(self) -> None:
        """Raise ``ConfigError`` if there is no noise, and therefore no guarantee."""
        require((self.noise_multiplier > 0, wrong(self, "noise_multiplier", "must be positive for a guarantee")))

    def check(self, context: Context) -> None:
        """Raise ``ConfigError`` if something would be released without noise, or is not an update that can be clipped.

        Running statistics are refused too: with noise, the variances of BatchNorm become negative.
        """
        exchange, sampler, name = context.exchange, context.sampler, type(self).__name__
        statistics = [each for each in context.network.outline() if each not in context.trained]
        parts = {part: type(getattr(exchange, part)).__name__.removeprefix("Bound") for part in ("solver", "view")}
        unprotected = f"sends values to {name} that are released without noise"
        require(
            (
                not statistics,
                f"{name}: the network has running statistics ({', '.join(statistics[:3])}), and noise makes variances "
                "negative: use GroupNorm, or BatchNorm with track_running_stats=False",
            ),
            (
                exchange.send == "change",
                Mistake(
                    ": clients must send changes of the model: use {}",
                    Setting(name, "clip"),
                    Setting("", "send", "change"),
                ),
            ),
            (not exchange.solver.sections, f"{parts['solver']} {unprotected}: use SGD, for example"),
            (
                not isinstance(exchange.view, ViewMemory),
                f"{parts['view']} {unprotected} (the masks of clients): use Full(), or sub-models",
            ),
            (
                sampler.probe is None,
                f"{type(sampler).__name__} {unprotected} (losses, by which clients are chosen): use Uniform()",
            ),
            (
                exchange.secure is None,
                f"{name} clips each update, which secure aggregation hides: use distributed privacy with it (--dp "
                "distributed), whose noise is added by clients",
            ),
        )


def known(context: Context) -> dict[str, Any]:
    """Return the fields of ``BoundPrivateServer`` that follow from the run."""
    sampler, network = context.sampler, context.network
    expected = sampler.expected(context.clients, 0) if sampler.scheme == "poisson" else None
    return {"key": network.key, "cohort": expected, "secure_noise": network.secure_noise}


@dataclass(frozen=True, kw_only=True)
class BoundPrivateServer(MeasuredServer, PrivateServer):
    """A private server with the run's key.

    Args:
        key: the run's key
        cohort: the expected number of clients with Poisson sampling; none: the number of clients that are asked
        secure_noise: whether noise comes from the operating system, as all that protects anybody does, or from the key
    """

    key: Key
    cohort: float | None
    secure_noise: bool

    def begin(self, state: State, assigned: Mapping[int, Assignment]) -> ClippedSum:
        """Return an empty sum."""
        model: Params = state["params"]
        total = torch.zeros(Layout.of(model).size, dtype=torch.float64, device=tree.device(model))
        return ClippedSum(model, total, self.norm(state), float(self.cohort or len(assigned)))

    @abstractmethod
    def norm(self, state: State) -> float:
        """Return the largest norm of an update in this round."""

    def fold(self, acc: ClippedSum, arrival: Arrival) -> ClippedSum:
        """Add one client's update, clipped."""
        acc.add(arrival)
        return acc

    def noise(self, key: Key, size: int, deviation: float, device: torch.device) -> Tensor:
        """Return Gaussian noise with this standard deviation, in float64."""
        if deviation == 0:
            return torch.zeros(size, dtype=torch.float64, device=device)
        return gaussian(key, size, secure=self.secure_noise, device=device) * deviation

    def measure(self, state: State, acc: ClippedSum) -> dict[str, dict[str, float]]:
        """Return the norm, the noise and the expected number of clients; all of it is covered by the guarantee."""
        return {"clipping": acc.figures}
