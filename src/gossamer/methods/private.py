"""Make a method differentially private: choose the noise for a budget, and replace the part that adds it.

    central       the server clips updates and adds noise to their sum (DP-FedAvg, https://arxiv.org/abs/1710.06963)
    distributed   clients add noise that is enough for their sum, which is all that secure aggregation reveals
                  (https://arxiv.org/abs/2102.06387)
    local         each client adds noise that is enough for its own message; signs are drawn at random
                  (https://arxiv.org/abs/2207.09916)
    example       clients train by DP-SGD, which protects each sample (https://arxiv.org/abs/1607.00133)

The unit is the client in the first three modes, and one sample in the last one. What stays at a client is not noised:
the personal model of Ditto and pFedMe never leaves it. What a client sends besides its update is not covered by the
noise on the update. So methods are refused that send masks (FedSpa, Sub-FedAvg), gradients of a probe (PERM, whose
mixing weights follow from them), control variates (SCAFFOLD), or models that move from client to client.

Where the noise comes from is not part of a method: ``simulate(..., secure_noise=True)``, and always in a deployment.
"""

from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from gossamer.core.errors import ConfigError, require, wrong_argument
from gossamer.core.method import Method
from gossamer.core.parametrization import Weights
from gossamer.core.privacy import Guarantee
from gossamer.core.random import key
from gossamer.core.specs import unknown
from gossamer.core.view import CHANGE
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.codecs.signs import NoisySign, StochasticSign
from gossamer.parts.privacy.budget import calibrate, guaranteed, participation, parts_of, usual_delta
from gossamer.parts.samplers.draws import Poisson, Uniform
from gossamer.parts.servers.mean import WeightedMean
from gossamer.parts.solvers.sgd import SGD
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task

if TYPE_CHECKING:
    from gossamer.parts.codecs.poisson_binomial import PoissonBinomial

Mode = Literal["central", "distributed", "local", "example"]
Clip = float | Literal["auto"]

FIRST_CLIP = 1.0
"""The first clipping norm if it is adapted. Longer runs may start lower (https://arxiv.org/abs/1905.03871)."""

USUAL_CLIP = 1.0
"""The clipping norm of modes that do not adapt it, if none is given."""

SPREAD = 4.0
"""Range of rotated entries in the Poisson binomial mechanism, in standard deviations."""


class Terms(NamedTuple):
    """The settings of a private method.

    Args:
        noise_multiplier: standard deviation of the noise divided by the clipping norm
        clip: the clipping norm, or auto
        clients: the number of clients
        per_round: clients per round
        size: the number of entries of the model; 0 if it is not known
        own_sampler: whether the sampler of the method stays
        colluding: the share of a round's clients that may help the server; none is that of secure aggregation
    """

    noise_multiplier: float
    clip: Clip = "auto"
    clients: int = 0
    per_round: int = 0
    size: int = 0
    own_sampler: bool = False
    colluding: float | None = None

    @property
    def fixed_clip(self) -> float:
        """The clipping norm of a mode that does not adapt it."""
        return USUAL_CLIP if self.clip == "auto" else self.clip


class Budget(NamedTuple):
    """The privacy budget of a run.

    Args:
        epsilon: epsilon of all rounds
        delta: the probability with which it may be exceeded
        rounds: the number of rounds
    """

    epsilon: float | None
    delta: float
    rounds: int


def private(
    method: Method,
    mode: Mode,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    clients: int | None = None,
    per_round: int | None = None,
    rounds: int = 30,
    clip: Clip = "auto",
    noise_multiplier: float | None = None,
    task: Task | None = None,
    own_sampler: bool = False,
    colluding: float | None = None,
) -> Method:
    """Return a method with differential privacy, whose noise is the smallest that meets a budget.

    Args:
        method: the method
        mode: central, distributed, local or example
        epsilon: the budget of all rounds; or give ``noise_multiplier``
        delta: the probability with which epsilon may be exceeded; by default clients to the power of -1.1
        clients: the number of clients; by default that of the task
        per_round: clients per round; none means all of them
        rounds: the number of rounds
        clip: the largest norm of an update, or of a sample's gradient. auto: a norm that follows the updates in central
            mode, and 1 in the others
        noise_multiplier: standard deviation of the noise divided by the clipping norm, instead of a budget
        task: the task, whose network and samples the noise of distributed, local and example privacy depends on
        own_sampler: keep the sampler of the method; by default, central privacy uses Poisson sampling
        colluding: the share of a round's clients that may help the server, in distributed mode: noise that they know
            protects nobody, so all clients add more. None is the share for which secure aggregation is configured
    """
    check_method(method, mode)
    count = task.clients if task is not None and clients is None else clients
    if count is None:
        raise ConfigError("clients: give their number, or a task")
    objective = Objective(task.adapted(method.adapter), "cpu", key(0)) if task is not None else None
    size = objective.layout.size if objective else 0
    who = count, per_round or count, size, own_sampler, colluding
    terms = Terms(noise_multiplier or 1.0, clip, *who)
    if noise_multiplier is None:
        budget = Budget(epsilon, delta or usual_delta(units_of(mode, count, task)), rounds)
        terms = terms._replace(noise_multiplier=noise_for(budget, method, mode, terms, objective))
    return with_noise(method, mode, terms)


def units_of(mode: str, clients: int, task: Task | None) -> int:
    """Return the number of units that a mode protects: clients, or the samples of all clients."""
    return int(task.split.sizes().sum()) if mode == "example" and task is not None else clients


def noise_for(
    budget: Budget, method: Method, mode: str, terms: Terms, objective: Objective | None = None, *, steady: bool = True
) -> float:
    """Return the smallest noise multiplier with which a private method meets a budget.

    Args:
        budget: the budget
        method: the method without noise
        mode: the mode of privacy
        terms: its settings; their noise is not used
        objective: the network and the samples of clients, if they are known
        steady: whether all clients are available in every round
    """
    wrong = wrong_argument("epsilon", budget.epsilon, "must be given, or noise_multiplier")
    require((budget.epsilon is not None, wrong))
    target = partial(_guarantee, method, mode, terms, budget.rounds, objective, steady)
    return calibrate(target, budget.epsilon or 0.0, budget.delta, budget.rounds)


def with_noise(method: Method, mode: str, terms: Terms) -> Method:
    """Return a method with a given amount of noise."""
    check_method(method, mode)
    alone = wrong_argument("colluding", terms.colluding, "is for distributed mode, where clients share the noise")
    require((terms.colluding is None or mode == "distributed", alone))
    return MODES[mode](method, terms)


def noise_of(method: Method) -> float | None:
    """Return the noise multiplier of a private method; ``None`` if no part of it has one."""
    found = [part for exchange in method.exchanges for part in parts_of(exchange)]
    noise = [getattr(part, "noise_multiplier", None) for part in found]
    return next((each for each in noise if each is not None), None)


def _guarantee(
    method: Method, mode: str, terms: Terms, rounds: int, objective: Objective | None, steady: bool, noise: float
) -> Guarantee:
    """Return the guarantee of a method with some noise: of its bound parts if the network is known."""
    made = with_noise(method, mode, terms._replace(noise_multiplier=noise))
    found = parts_of(made.bind(objective).training if objective else made.training)
    sizes = [int(size) for size in objective.task.split.sizes() if size > 0] if objective else []
    who = (made.sampler, terms.clients, terms.per_round, rounds, min(sizes, default=0))
    taking = participation(*who, steady=steady, central=mode == "central")
    return guaranteed(found[0], taking)


def check_method(method: Method, mode: str) -> None:
    """Refuse a method that sends values which the noise does not cover, with the reason."""
    if mode not in MODES:
        raise ConfigError(unknown("mode of differential privacy", mode, MODES))
    exchange, before = method.training, [type(each.solver).__name__ for each in method.exchanges[:-1]]
    sections = ", ".join(section.name for section in exchange.solver.sections)
    solver, view = type(exchange.solver).__name__, type(exchange.view).__name__
    require(
        (
            exchange.send == "change",
            f"{mode} privacy needs clients that send changes of the model, not {exchange.send}",
        ),
        (
            not before,
            f"{mode} privacy covers the update, and {', '.join(before)} sends gradients of each client in an exchange "
            "before it, from which the weights of clients follow: use a method with one exchange",
        ),
        (
            exchange.view.section != CHANGE,
            f"{mode} privacy covers the update, and {view} also sends changes of each client's mask, which follow from "
            "its data: use a method without personal masks",
        ),
        (not sections, f"{mode} privacy covers the update, and {solver} also sends {sections} of each client"),
        (
            method.parametrization == Weights() or mode not in ("central", "local"),
            f"{mode} privacy needs updates of weights, and this method sends masks",
        ),
    )


def _central(method: Method, terms: Terms) -> Method:
    """Clip and add noise at the server; clients are sampled independently unless all take part."""
    from gossamer.parts.servers.private import AdaptiveClip, PrivateMean

    mean, auto = method.server, terms.clip == "auto"
    made = PrivateMean(
        mean=replace(mean, weights="uniform") if isinstance(mean, WeightedMean) else mean,
        clip=FIRST_CLIP if auto else terms.fixed_clip,
        adapt=AdaptiveClip() if auto else None,
        noise_multiplier=terms.noise_multiplier,
    )
    sampled = terms.per_round < terms.clients and not terms.own_sampler and method.sampler == Uniform()
    sampler = Poisson(terms.per_round / terms.clients) if sampled else method.sampler
    return method.with_parts(server=made, sampler=sampler)


def _distributed(method: Method, terms: Terms) -> Method:
    """Let clients add shares of the noise, and let the server see only sums. Signs are replaced by random bits."""
    from gossamer.methods.secure import secured
    from gossamer.parts.codecs.distributed_noise import DiscreteGaussian, DistributedNoise
    from gossamer.parts.codecs.private import remaining
    from gossamer.parts.secure import SecAgg

    own, bad = method.training.secure, terms.colluding
    protocol = own if isinstance(own, SecAgg) else SecAgg()
    if bad is not None:  # secrets and noise hold against the same clients
        protocol = replace(protocol, colluding=bad)
    # Clients reveal no sum of fewer than share the noise, whatever the server says.
    fewest = remaining(terms.per_round, protocol.dropouts)
    protocol = replace(protocol, min_clients=max(protocol.min_clients, fewest))
    if _sends_signs(method):
        codec = _bits(terms, terms.per_round, protocol.dropouts, protocol.colluding)
        return secured(method.with_parts(codec=codec), protocol)
    chosen = method.codec if isinstance(method.codec, DistributedNoise) else DiscreteGaussian()
    noisy = replace(
        chosen,
        clip=terms.fixed_clip,
        noise_multiplier=terms.noise_multiplier,
        clients=terms.per_round,
        dropouts=chosen.dropouts or protocol.dropouts,
        colluding=protocol.colluding if bad is not None else chosen.colluding or protocol.colluding,
    )
    return secured(method.with_parts(codec=noisy), protocol)


def _local(method: Method, terms: Terms) -> Method:
    """Add noise to each update before it is encoded; signs are replaced by random bits."""
    from gossamer.parts.codecs.private import LocalGaussian

    method = _equal(method)
    if _sends_signs(method):
        return method.with_parts(codec=_bits(terms))
    given = (terms.fixed_clip, terms.noise_multiplier, method.codec)
    return method.with_parts(codec=LocalGaussian(*given))


def _equal(method: Method) -> Method:
    """Return the method with equal weights: numbers of samples would enter the model without noise."""
    mean = method.server
    return method.with_parts(server=replace(mean, weights="uniform")) if isinstance(mean, WeightedMean) else method


def _sends_signs(method: Method) -> bool:
    codec = method.codec.codec if isinstance(method.codec, OnWeights) else method.codec
    return isinstance(codec, (StochasticSign, NoisySign))


def _bits(terms: Terms, clients: int = 1, dropouts: float = 0.0, colluding: float = 0.0) -> "PoissonBinomial":
    """Return one random bit per entry, with the noise of a sum of this number of clients."""
    from gossamer.parts.codecs.poisson_binomial import PoissonBinomial

    require((terms.size > 0, "the privacy of signs depends on the number of parameters: give a task"))
    theta = min(0.25, SPREAD * clients**0.5 / (2 * terms.noise_multiplier * terms.size**0.5))
    return PoissonBinomial(clip=terms.fixed_clip, theta=theta, spread=SPREAD, dropouts=dropouts, colluding=colluding)


def _example(method: Method, terms: Terms) -> Method:
    """Train by DP-SGD with the settings of the method's SGD."""
    from gossamer.parts.solvers.private import DPSGD

    solver = method.solver
    name = type(solver).__name__
    require((type(solver) is SGD, f"privacy of examples needs a method whose clients train by SGD, not {name}"))
    kept = {field.name: getattr(solver, field.name) for field in fields(SGD) if field.name != "clip"}
    made = DPSGD(**kept, clip=terms.fixed_clip, noise_multiplier=terms.noise_multiplier)
    return _equal(method).with_parts(solver=made)


MODES: dict[str, Callable[[Method, Terms], Method]] = {
    "central": _central,
    "distributed": _distributed,
    "local": _local,
    "example": _example,
}
"""What each mode of differential privacy does with a method."""
