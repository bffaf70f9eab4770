"""Differential privacy at the client: what private codecs share, and Gaussian noise before any other codec.

A private codec clips an update and adds noise before it is sent. Three kinds differ in what the server may see:

    LocalGaussian                  each message: noise before any other codec (this file)
    DiscreteGaussian, Skellam      only sums: whole-number noise of all clients adds up (``distributed_noise``)
    PoissonBinomial                either: random bits whose probabilities follow the update (``poisson_binomial``)

``renyi`` has the Rényi divergences, ``noise_tables`` the exact draws of whole numbers.

**Local privacy.** The client clips its update to the norm ``clip`` and adds Gaussian noise with standard deviation
``noise_multiplier clip`` to each entry. Another codec encodes the result. Differential privacy holds for everything
that is computed from it, so the codec may be any, also signs: the noise comes before the bit. The guarantee holds
against the server too. The noise of n clients averages out only as 1 / sqrt(n), so local privacy costs far more
accuracy than distributed privacy with the same epsilon. Noise is added in float64 and rounded to the type of the model
afterwards.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer.core.codec import Codec, Coding
from gossamer.core.errors import ConfigError, Mistake, require, wrong
from gossamer.core.exact import norm
from gossamer.core.exchange import Context
from gossamer.core.privacy import Guarantee, Participation
from gossamer.core.random import fold
from gossamer.core.random.private import gaussian
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import finite
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.codecs.wrappers import CodecWrapper


@dataclass(frozen=True)
class LocalGaussian(CodecWrapper):
    """Clips the update and adds Gaussian noise at the client, then uses another codec.

    Args:
        clip: the largest norm of an update; longer ones are scaled down
        noise_multiplier: the standard deviation of the noise of each entry, divided by ``clip``
        codec: the codec of the noisy update
    """

    clip: float = 1.0
    noise_multiplier: float = 0.5
    codec: Codec = Dense()
    secure_noise: bool = field(default=False, init=False, repr=False, compare=False)
    """Whether noise comes from the operating system, as all that protects anybody does, or from the key."""

    def __post_init__(self) -> None:
        require(
            (1e-30 <= self.clip <= 1e30, wrong(self, "clip", "must be from 1e-30 to 1e30")),
            (0 < self.noise_multiplier <= 1e6, wrong(self, "noise_multiplier", "must be above 0 and at most 1e6")),
        )
        check_inside(self.codec, "LocalGaussian")

    def bind(self, context: Context) -> "LocalGaussian":
        """Bind the other codec, and learn where noise comes from."""
        check_outermost(self, context)
        return self.filled(codec=self.codec.bind(context), secure_noise=context.network.secure_noise)

    @property
    def exact(self) -> bool:
        """Whether noise follows from the key, and the other codec is exact."""
        return self.codec.exact and not self.secure_noise

    @property
    def private(self) -> bool:
        """True: each message has noise."""
        return True

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the payload of the clipped and noisy update."""
        at = fold(ctx.own, "local-gaussian")
        noise = gaussian(at, ctx.layout.size, secure=self.secure_noise, device=x.device)
        noisy = clipped(finite(x, "change"), self.clip) + noise * (self.noise_multiplier * self.clip)
        return self.codec.encode(noisy.to(ctx.layout.dtype), ctx)

    def guarantee(self, participation: Participation) -> Guarantee:
        """Return the guarantee of each client's messages. Who takes part is known, so sampling does not amplify it."""
        from gossamer.parts.privacy.accounting import gaussian as gaussian_guarantee  # it needs an optional package

        return gaussian_guarantee(
            self.noise_multiplier,
            participation._replace(sampling="other"),
            "client",
            mechanism=f"Gaussian noise at the client, {self.noise_multiplier:g} times the clipping norm",
            protects_from="everybody, also the server, which sees each message",
        )


def clipped(x: Tensor, clip: float) -> Tensor:
    """Return a vector in float64, scaled down to the norm ``clip`` if it is longer.

    >>> clipped(torch.tensor([3.0, 4.0]), 1.0)
    tensor([0.6000, 0.8000], dtype=torch.float64)
    """
    wide = x.double()
    length = norm(wide).unsqueeze(-1)
    # Just below the norm, so that the rounding of products does not exceed it.
    factor = torch.full_like(length, clip * (1 - 1e-12)) / torch.where(length > 0, length, 1)
    return wide * factor.clamp(max=1)


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
    if codec.retains != "nothing":
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
