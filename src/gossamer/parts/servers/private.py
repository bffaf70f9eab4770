"""Central differential privacy: a sum of clipped updates, with Gaussian noise.

**Sensitivity.** Each update is decoded, clipped to a norm c over all tensors together, and added to one sum in client
order:

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

**PrivateMean** (DP-FedAvg). McMahan et al., Learning Differentially Private Recurrent Language Models, ICLR 2018,
https://arxiv.org/abs/1710.06963. With the noise multiplier z and m expected clients, the mean update of a round is

    (S + N(0, (z c)^2 I)) / m

and takes the place of the mean in another server, with that server's learning rate, projection or optimizer. All
clients have the weight 1: with weights by samples, one client could change the sum by more than c. A client with a part
of the model counts as an update of 0 elsewhere, which keeps the norm. A mean over the holders of each entry is refused:
its denominators depend on single clients. ``TreeMean`` (``private_tree``) is the other private server.

**AdaptiveClip** lets the norm follow a quantile of the update norms. Andrew et al., Differentially Private Learning
with Adaptive Clipping, NeurIPS 2021, https://arxiv.org/abs/1905.03871. Each client also contributes the bit b_k,
whether its norm is at most c:

    b = (sum_k (b_k - 1/2) + N(0, s^2)) / m + 1/2        the noisy share of norms up to c
    c <- c exp(-lr (b - quantile))                       the norm of the next round

The bits are centered, so that a client that does not answer changes nothing, and one client changes their sum by at
most 1/2. Update and bit are one mechanism with the noise multiplier z if the noise multiplier of the updates is

    z_updates = (z^-2 - (2 s)^-2)^(-1/2)

(Theorem 1), which is slightly above z. So adaptive clipping costs no epsilon.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from gossamer.core import tree
from gossamer.core.errors import Mistake, PayloadError, Setting, require, wrong
from gossamer.core.exact import norm
from gossamer.core.exchange import Arrival, Assignment, Context, Download
from gossamer.core.fields import CheckedFields
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.random import Key, fold
from gossamer.core.random.private import gaussian
from gossamer.core.server import Server
from gossamer.core.types import Clock, Layout, Params, State
from gossamer.core.view import CHANGE
from gossamer.parts.servers.mean import Mean, Sum, WeightedMean, shrink, whole_vector

SHARE = 20
"""By default, the noise of the count is the expected number of clients divided by this number, as in the paper."""

NORM = "clip"
"""The entry of the server state with the clipping norm of the next round, if it is adapted."""


@dataclass(frozen=True)
class AdaptiveClip(CheckedFields):
    """The clipping norm follows a quantile of the update norms.

    Args:
        quantile: the share of updates that are not clipped
        lr: learning rate of the logarithm of the norm
        count_noise: standard deviation of the noise of the number of norms up to the clipping norm; none is the
            expected number of clients divided by 20, and at least the noise multiplier
    """

    quantile: float = 0.5
    lr: float = 0.2
    count_noise: float | None = None

    def __post_init__(self) -> None:
        noise = self.count_noise
        require(
            (0 <= self.quantile <= 1, wrong(self, "quantile", "must be from 0 to 1")),
            (0 < self.lr < math.inf, wrong(self, "lr", "must be a positive number")),
            (noise is None or 0 < noise < math.inf, wrong(self, "count_noise", "must be a positive number")),
        )

    def check(self, multiplier: float) -> None:
        """Raise ``ConfigError`` if the bits alone would take more than the guarantee of the noise multiplier."""
        least = multiplier / 2
        text = f"must be above {least:g}, half of {{}}, got {self.count_noise}: use a larger one, or none"
        about, other = Setting("AdaptiveClip", "count_noise"), Setting("", "noise_multiplier")
        require((self.count_noise is None or self.count_noise > least, Mistake(text, about, other)))

    def deviation(self, multiplier: float, cohort: float) -> float:
        """Return the standard deviation of the noise of the count."""
        return max(cohort / SHARE, multiplier) if self.count_noise is None else self.count_noise

    def multiplier(self, multiplier: float, cohort: float) -> float:
        """Return the noise multiplier of the updates. With the noisy count, the guarantee is that of ``multiplier``.

        >>> round(AdaptiveClip(count_noise=5.0).multiplier(1.0, 100), 4)
        1.005
        """
        if multiplier == 0:
            return 0.0
        return 1 / math.sqrt(multiplier**-2 - (2 * self.deviation(multiplier, cohort)) ** -2)

    def follow(self, norm: float, below: float) -> float:
        """Return the next norm, given the noisy share of norms up to the current one."""
        return norm * math.exp(-self.lr * (below - self.quantile))


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
class PrivateServer(Server):
    """Base of servers that add Gaussian noise to a sum of clipped updates.

    Args:
        clip: largest norm of an update; larger ones are scaled down to it
        noise_multiplier: standard deviation of the noise of the sum, divided by ``clip``; 0 adds none
        key: the run's key
        cohort: the expected number of clients with Poisson sampling; none: the number of clients that are asked
        secure_noise: whether noise comes from the operating system, as all that protects anybody does, or from the key
    """

    private: ClassVar[bool] = True

    clip: float = 1.0
    noise_multiplier: float = 1.0
    key: Key = field(default=Key(0, 0), init=False, repr=False, compare=False)
    cohort: float | None = field(default=None, init=False, repr=False, compare=False)
    secure_noise: bool = field(default=True, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        require(
            (0 < self.clip < math.inf, wrong(self, "clip", "must be a positive number")),
            (0 <= self.noise_multiplier < math.inf, wrong(self, "noise_multiplier", "must be finite and not negative")),
        )

    def bind(self, context: Context) -> Self:
        """Return the server with the run's key, and the number of clients that it expects."""
        self.check(context)
        sampler, network = context.sampler, context.network
        expected = sampler.expected(context.clients, 0) if sampler.scheme == "poisson" else None
        return self.filled(key=network.key, cohort=expected, secure_noise=network.secure_noise)

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
                exchange.view.section != CHANGE,
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

    def bind(self, context: Context) -> Self:
        """Return the server for one network and its clients."""
        return super().bind(context).filled(mean=self.mean.bind(context))

    def guarantee(self, participation: Participation) -> Guarantee:
        """Return the guarantee of the Gaussian mechanism, composed over the rounds."""
        self.check_noise()
        from gossamer.parts.privacy import accounting  # imported here: it needs an optional package

        return accounting.gaussian(self.noise_multiplier, participation)

    @property
    def inner(self) -> WeightedMean:
        """The server whose mean is replaced."""
        assert isinstance(self.mean, WeightedMean)
        return self.mean

    def init(self, params: Params) -> State:
        """Return the state of the mean, and the first clipping norm if it is adapted."""
        state = self.inner.init(params)
        return state if self.adapt is None else {**state, NORM: _scalar(self.clip, params)}

    def assign(self, state: State, cohort: Sequence[int], clock: Clock, key: Key) -> Mapping[int, Assignment] | None:
        """Return the assignments of the mean."""
        return self.inner.assign(state, cohort, clock, key)

    def download(self, state: State, assignment: Assignment) -> Download:
        """Return the download of the mean."""
        return self.inner.download(state, assignment)

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
        mean = (noisy / noisy.new_tensor(acc.expected)).to(layout.dtype)
        new = self.inner.finish(state, Sum(layout, mean, weight=1.0), clock)
        if adapt is None:
            return new
        return {**new, NORM: _scalar(self._followed(adapt, acc, fold(key, "count")), acc.model)}

    def _followed(self, adapt: AdaptiveClip, acc: ClippedSum, key: Key) -> float:
        """Return the norm of the next round."""
        deviation = adapt.deviation(self.noise_multiplier, acc.expected)
        noise = float(self.noise(key, 1, deviation, torch.device("cpu")))
        acc.figures["below"] = (acc.below + noise) / acc.expected + 0.5
        return adapt.follow(acc.clip, acc.figures["below"])


def _rules(mean: Server) -> list[tuple[bool, str]]:
    """Return the conditions for the server whose mean is replaced."""
    name = type(mean).__name__
    other = (
        f"PrivateMean takes the place of a plain mean of updates, and {name} uses the updates in another way: use "
        "fedavg, or another method whose server is Mean or a server optimizer"
    )
    if not (isinstance(mean, WeightedMean) and mean.takes_any_mean):
        return [(False, other)]
    unequal = "must be uniform: with other weights, the influence of one client has no bound"
    holders = "must be cohort: the number of holders of an entry depends on single clients"
    return [
        (mean.equal_weights, Mistake(f"{unequal}, got {mean.weights!r}", Setting(name, "weights"))),
        (mean.over == "cohort", Mistake(f"{holders}, got {mean.over!r}", Setting(name, "over"))),
    ]


def _scalar(value: float, like: Params) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64, device=tree.device(like))
