"""What private codecs learn when they are bound: the size of the model, and whether sums are secure."""

from gossamer.core.codec import Codec, CodecMemory
from gossamer.core.errors import ConfigError
from gossamer.core.exchange import Context
from gossamer.core.privacy import Participation
from gossamer.core.types import Layout


def is_secure(context: Context) -> bool:
    """Return whether the server sees only sums."""
    return context.exchange.secure is not None


def entries(context: Context) -> int:
    """Return the number of entries of an update."""
    return Layout.of(context.network.outline()).size


def check_outermost(codec: Codec, context: Context) -> None:
    """Refuse a codec that encodes a part of the update only: the other part would be sent without noise."""
    if context.exchange.codec != codec:
        name = type(codec).__name__
        raise ConfigError(
            f"{name} must encode the whole update: what {context.exchange.codec} sends beside it has no noise. "
            f"Use {name} as the codec itself"
        )


def check_inside(codec: Codec, owner: str) -> None:
    """Refuse a codec with client state behind noise: it would send again what was lost, on top of a clipped update."""
    if isinstance(codec, CodecMemory) and codec.retains != "nothing":
        raise ConfigError(
            f"{owner} cannot contain {codec}: it sends again what was lost, so a client would count more than once"
        )


def least_cohort(participation: Participation, dropouts: float, name: str) -> int:
    """Return the number of clients that are in the sum of every round."""
    if participation.sampling == "poisson":
        raise ConfigError(
            f"{name} needs rounds with a fixed number of clients: with Poisson sampling, a round can have few clients, "
            "and little noise. Use a sampler with a fixed number"
        )
    return remaining(int(participation.cohort), dropouts)


def with_zeros(participation: Participation) -> Participation:
    """Return who takes part, such that neighbours without sampling are sums with zeros in place of a client.

    A client that is missing altogether would take its noise with it.
    """
    everybody = participation.cohort >= participation.clients
    return participation._replace(sampling="other") if everybody else participation


def remaining(clients: int, dropouts: float) -> int:
    """Return the number of clients that are left if a share of them drops out.

    >>> remaining(100, 0.07), remaining(3, 0.5)
    (93, 2)
    """
    return clients - int(dropouts * clients + 1e-9)
