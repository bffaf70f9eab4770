"""Masked noise that all clients of a round share: their masks add up to small whole numbers.

FedMRN (https://arxiv.org/abs/2408.03220) with one noise vector n per round, drawn from the key of the round instead of
the client's. With a fixed magnitude, the mean of K updates ``n m_k`` of equal weight is

    n c / K        with c = sum_k m_k, the number of clients whose mask has a 1, for masks of 0 and 1
    n (2 c / K - 1)                                                                 for masks of -1 and 1

So the server needs only the counts c, which take log2(K + 1) bits per entry or less. Each client still draws its mask
with random numbers of its own: the key is folded with the client's number. The server ``SumThenDecode`` sums the masks,
and multiplies their mean with the noise once.

The noise does not average out over clients. With masks of 0 and 1, an entry whose noise has the wrong sign does not
move in this round, at any client. With masks of -1 and 1 over Bernoulli noise nothing is lost: the values are -alpha
and alpha, whatever the noise.
"""

from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from gossamer.core import bits as packing
from gossamer.core import random
from gossamer.core.codec import IntegerSums, OwnDraws
from gossamer.core.errors import require, wrong
from gossamer.core.random import Key
from gossamer.core.types import Layout, Payload
from gossamer.parts.codecs.masked_noise import MaskedNoise


@dataclass(frozen=True)
class CommonMaskedNoise(MaskedNoise, IntegerSums, OwnDraws):
    """``MaskedNoise`` with noise that all clients of a round share, and a fixed magnitude.

    Args:
        alpha: the magnitude of the noise
    """

    alpha: Literal["auto"] | float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        rule = "must be a number, such as 0.1: with auto, every client has scales of its own, and masks do not add up"
        require((self.alpha != "auto", wrong(self, "alpha", rule)))

    @property
    def common(self) -> bool:
        """True: all clients of a round use the same noise."""
        return True

    def of_client(self, client: int) -> "BoundCommonMaskedNoise":
        """Return the codec with the draws of a client."""
        return BoundCommonMaskedNoise(**vars(self), client=client)

    def sum_limit(self, layout: Layout) -> int:
        """Return 1: a mask has zeros and ones."""
        return 1

    def to_sum(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Return the mask as zeros and ones, also for masks of -1 and 1."""
        packed, _ = self._read(payload, layout)
        return packing.numbers(packing.unbits(packed, layout.size), layout.dtype)

    def from_sum(self, mean: Tensor, layout: Layout, key: Key) -> Tensor:
        """Return the noise times the mean of the masks."""
        return self.draw(layout, key, mean.device) * (mean * 2 - 1 if self.signed else mean)


@dataclass(frozen=True)
class BoundCommonMaskedNoise(CommonMaskedNoise):
    """``CommonMaskedNoise`` at one client."""

    client: int = field(kw_only=True)

    def _own(self, key: Key) -> Key:
        return random.fold(key, "client", self.client)
