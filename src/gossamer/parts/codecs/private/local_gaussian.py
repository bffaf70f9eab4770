"""Local differential privacy: Gaussian noise on each update, before any other codec.

The client clips its update to the norm ``clip`` and adds Gaussian noise with standard deviation ``noise_multiplier
clip`` to each entry. Another codec encodes the result. Differential privacy holds for everything that is computed from
it, so the codec may be any, also signs: the noise comes before the bit. The guarantee holds against the server too. The
noise of n clients averages out only as 1 / sqrt(n), so local privacy costs far more accuracy than distributed privacy
with the same epsilon.

Noise is added in float64 and rounded to the type of the model afterwards.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from gossamer.core.codec import Codec, of_client
from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context
from gossamer.core.privacy import Guarantee, Participation, PrivatePart
from gossamer.core.random import Key, fold
from gossamer.core.random.private import gaussian
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import finite
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.codecs.private.bound import check_inside, check_outermost
from gossamer.parts.codecs.private.rounding import clipped
from gossamer.parts.codecs.wrapper import CodecWrapper


@dataclass(frozen=True)
class LocalGaussian(CodecWrapper, PrivatePart):
    """Clips the update and adds Gaussian noise at the client, then uses another codec.

    Args:
        clip: the largest norm of an update; longer ones are scaled down
        noise_multiplier: the standard deviation of the noise of each entry, divided by ``clip``
        codec: the codec of the noisy update
    """

    clip: float = 1.0
    noise_multiplier: float = 0.5
    codec: Codec = Dense()

    def __post_init__(self) -> None:
        require(
            (1e-30 <= self.clip <= 1e30, wrong(self, "clip", "must be from 1e-30 to 1e30")),
            (0 < self.noise_multiplier <= 1e6, wrong(self, "noise_multiplier", "must be above 0 and at most 1e6")),
        )
        check_inside(self.codec, "LocalGaussian")

    @property
    def exact(self) -> bool:
        """Whether noise follows from the key, and the other codec is exact."""
        return self.codec.exact and not self._secure()

    def bind(self, context: Context) -> "BoundLocalGaussian":
        """Bind the other codec, and learn where noise comes from."""
        check_outermost(self, context)
        return self._with(codec=self.codec.bind(context), secure_noise=context.network.secure_noise)

    def of_client(self, client: int) -> "BoundLocalGaussian":
        """Return the codec with the draws of a client, also if all clients of a round have the same key."""
        return self._with(codec=of_client(self.codec, client), client=client)

    def _with(self, **known: Any) -> "BoundLocalGaussian":
        return BoundLocalGaussian(**{**vars(self), **known})

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """Return the payload of the clipped and noisy update."""
        noise = gaussian(fold(self._own(key), "local-gaussian"), layout.size, secure=self._secure(), device=x.device)
        noisy = clipped(finite(x, "change"), self.clip) + noise * (self.noise_multiplier * self.clip)
        return self.codec.encode(noisy.to(layout.dtype), layout, key)

    def _own(self, key: Key) -> Key:
        return key

    def _secure(self) -> bool:
        return False

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


@dataclass(frozen=True)
class BoundLocalGaussian(LocalGaussian):
    """``LocalGaussian`` in one run, and at one client.

    Args:
        client: the client's number; none at the server
        secure_noise: whether noise comes from the operating system, as all that protects anybody does, or from the key
    """

    client: int | None = field(default=None, kw_only=True)
    secure_noise: bool = field(default=False, kw_only=True)

    def _own(self, key: Key) -> Key:
        return key if self.client is None else fold(key, "client", self.client)

    def _secure(self) -> bool:
        return self.secure_noise
