"""What private codecs learn when they are bound: the size of the model, and whether sums are secure."""

from gossamer.core.codec import Codec, CodecMemory
from gossamer.core.errors import ConfigError, Mistake, wrong
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


def least_cohort(participation: Participation, name: str) -> int:
    """Return the number of clients that are asked in every round."""
    if participation.sampling == "poisson":
        raise ConfigError(
            f"{name} needs rounds with a fixed number of clients: with Poisson sampling, a round can have few clients, "
            "and little noise. Use a sampler with a fixed number"
        )
    return int(participation.cohort)


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
    return clients - of_share(clients, dropouts)


def of_share(clients: int, share: float) -> int:
    """Return the largest number of clients that is no more than a share of them.

    >>> of_share(100, 0.07), of_share(9, 0.1)
    (7, 0)
    """
    return int(share * clients + 1e-9)


def honest(clients: int, dropouts: float, colluding: float) -> int:
    """Return the number of clients that are left and whose noise the server does not know.

    In the worst case, all clients that drop out are honest.

    >>> honest(100, 0.1, 0.1)
    80
    """
    return remaining(clients, dropouts) - of_share(clients, colluding)


def shares(codec: object, dropouts: float, colluding: float) -> list[tuple[bool, Mistake]]:
    """Return the checks of both shares."""
    return [
        (0 <= dropouts < 1, wrong(codec, "dropouts", "must be at least 0 and below 1")),
        (0 <= colluding < 1, wrong(codec, "colluding", "must be at least 0 and below 1")),
        (
            dropouts + colluding < 1 or not (0 <= dropouts < 1 and 0 <= colluding < 1),
            wrong(codec, "colluding", f"and dropouts, {dropouts:g}, must be below 1 together"),
        ),
    ]


def helped(clients: int, colluding: float) -> str:
    """Return in words how many clients of a round may help the server."""
    count = of_share(clients, colluding)
    if not count:
        return "if no client helps it"
    return f"also with the help of {count} of the {clients} clients of a round, whose noise it knows"
