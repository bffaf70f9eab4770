"""The parts of a method that add noise, and who takes part, as far as it is known."""

from gossamer.core.bound import BoundExchange
from gossamer.core.codec import Codec
from gossamer.core.errors import ConfigError, require
from gossamer.core.method import Exchange
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.sampler import Sampler
from gossamer.core.server import Server
from gossamer.core.solver import Solver


def parts_of(exchange: BoundExchange | Exchange) -> list[Server | Codec | Solver]:
    """Return the parts of an exchange that add noise; not those whose noise is set to 0."""
    plain: list[Server | Solver] = [part for part in (exchange.server, exchange.solver) if part.private]
    return [part for part in (*plain, *_inside(exchange.codec)) if getattr(part, "noise_multiplier", None) != 0]


def guaranteed(part: Server | Codec | Solver, taking: Participation) -> Guarantee:
    """Return the guarantee of a part that adds noise."""
    found = part.guarantee(taking)
    if found is None:
        raise ConfigError(f"{type(part).__name__} is private, but its method guarantee returns none")
    return found


def _inside(codec: Codec) -> list[Codec]:
    """Return the codecs that add noise; refuse a codec that sends some tensors without."""
    if codec.private:
        return [codec]
    inner = [_inside(each) for each in codec.wrapped]
    name = type(codec).__name__
    require(
        (
            not any(inner) or all(inner),
            f"{name} sends some tensors by a codec without noise: apply the private codec to all, without {name}",
        )
    )
    return [part for parts in inner for part in parts]


def participation(
    sampler: Sampler,
    clients: int,
    cohort: int,
    rounds: int,
    samples: int = 0,
    *,
    steady: bool = True,
    central: bool = True,
) -> Participation:
    """Return who takes part in a run.

    Args:
        sampler: the sampler
        clients: the number of clients
        cohort: clients per round
        rounds: the planned number of rounds
        samples: the smallest number of samples of a client; 0 if it is not known
        steady: whether all clients are available in every round. If not, a fixed number of clients is drawn from a
            number that varies, and does not amplify
        central: whether the server adds the noise. If clients do, the guarantee holds against the server too, and it
            knows the cohorts of a deployment, whose clients are not ``steady``
    """
    scheme = sampler.scheme
    if not steady and (scheme == "fixed" or not central):
        scheme = "other"
    if scheme != "poisson" and cohort >= clients:
        scheme = "all"
    separation = sampler.separation(clients, cohort) if steady else 1
    return Participation(clients, sampler.expected(clients, cohort), scheme, rounds, samples, separation)


def usual_delta(units: int) -> float:
    """Return the delta of a run that is given none, as McMahan et al., 2018 (https://arxiv.org/abs/1710.06963).

    ``units`` is the number of clients, or of all samples if the unit is an example.

    >>> round(usual_delta(10_000), 8)
    3.981e-05
    """
    return float(max(units, 2) ** -1.1)
