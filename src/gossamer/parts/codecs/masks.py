"""Random masks in place of scores: FedPM's, and KLMS, which sends them relative to the mean mask of both sides.

**Sampled mask** (FedPM; Isik et al., ICLR 2023, https://arxiv.org/abs/2209.15328): one bit per score, drawn as 1 with
probability sigmoid(score).

**KLMS**: a mask by importance sampling, relative to the mean mask that client and server already know (Isik et al.,
Adaptive Compression in Federated Learning via Side Information, AISTATS 2024, https://arxiv.org/abs/2306.12625).

A client of FedPM wants to send a mask that is drawn with probabilities q = sigmoid(scores after training). The server
knows p = sigmoid(scores before training), which are close to q. The mask is cut into blocks. For each block, both sides
draw the same K masks with probabilities p. The client chooses one of them, at random with weights

    q(mask) / p(mask)

normalized to sum 1, and sends its number in log2 K bits. The chosen mask has almost the distribution q if log2 K is
above the KL divergence of q from p over the block, in bits. So a mask costs little more than KL(q || p) bits, in place
of one bit per weight. With fewer candidates, the mask is biased towards p.

The length of a block is chosen so that the mean divergence of the blocks is ``rate`` log2 K bits. It is sent as one
number per tensor. In the authors' code, the length varies from block to block, and the clients' boundaries are averaged
by the server and used in several rounds; here each message has its own length, and no boundaries are sent.

Both sides must draw the same masks on every device. A uniform 16-bit number is compared with a threshold: the number of
values k below 65536 with logit((k + 1/2) / 65536) < score. The logits are a table, and comparisons are exact. The
numbers of candidate j are hashed from one random word per weight and j (SplitMix64), so that the server draws only the
masks that were chosen.
"""

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core import bits as packing
from gossamer.core import entropy
from gossamer.core.bits import codes, expect_codes
from gossamer.core.codec import Codec, Coding, each_row, row_by_row, rows_of
from gossamer.core.downlink import Downlink
from gossamer.core.errors import ConfigError, PayloadError, require, wrong
from gossamer.core.exchange import Context
from gossamer.core.random import fold, signed, uniform, words
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Payload
from gossamer.core.wire import expect, finite
from gossamer.parts.codecs.dense import Dense

GRID = 2**16
GAMMA, FIRST, SECOND = signed(0x9E3779B97F4A7C15), signed(0xBF58476D1CE4E5B9), signed(0x94D049BB133111EB)
LEAST = 2.0**-24  # the smallest probability of a mask entry


@dataclass(frozen=True)
class SampledMask(Codec):
    """Sends a random mask in place of scores. Its expectation is the sigmoid of the scores.

    FedPM, https://arxiv.org/abs/2209.15328.

    Args:
        coded: send the entropy code of the mask where it is shorter than one bit per entry
    """

    coded: bool = False

    @property
    def exact(self) -> bool:
        """False: sigmoids differ between devices in the last bit, which may change a draw."""
        return False

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the mask as bits."""
        if self.coded and x.dim() > 1:  # codes differ in length
            return row_by_row(self.encode, x, ctx)
        drawn = uniform(ctx.key, ctx.layout.size, dtype=x.dtype, device=x.device)
        mask = drawn < torch.sigmoid(finite(x, "scores"))
        packed = {"mask": packing.bits(mask)}
        return entropy.shorter(packed, mask, 2) if self.coded else packed

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the mask as zeros and ones."""
        if self.coded and rows_of(payload) is not None:
            return row_by_row(self.decode, payload, ctx)
        if self.coded and entropy.NAME in payload:
            return entropy.expect_symbols(payload, 2, ctx.layout.size, -(-ctx.layout.size // 8)).to(ctx.layout.dtype)
        return packing.numbers(packing.expect_bits(payload, "mask", ctx.layout.size), ctx.layout.dtype)

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return the limit 1: the decoded vector is a mask."""
        return (SumSegment(layout.size, 1),)

    def unreplayable(self) -> str:
        """Return nothing: only the draws depend on the device, not the decoded mask."""
        return ""


@dataclass(frozen=True)
class KLMS(Codec):
    """Sends the numbers of importance-sampled masks, given the scores that the server has sent.

    See https://arxiv.org/abs/2306.12625. Without side information, the probabilities of the server are 1/2.

    Args:
        bits: binary logarithm of the number of candidates per block, from 1 to 8
        rate: mean divergence per block in units of ``bits``; smaller values take more bits, with a smaller bias
        longest: the largest number of weights per block
    """

    bits: int = 6
    rate: float = 0.5
    longest: int = 4096

    def __post_init__(self) -> None:
        require(
            (1 <= self.bits <= 8, wrong(self, "bits", "must be a whole number from 1 to 8")),
            (0 < self.rate < math.inf, wrong(self, "rate", "must be a positive number")),
            (1 <= self.longest < 2**31, wrong(self, "longest", "must be at least 1")),
        )

    @property
    def exact(self) -> bool:
        """False: the weights of candidates are sums of logarithms, which differ between devices in the last bit."""
        return False

    def bind(self, context: Context) -> "KLMS":
        """Refuse a download after which the server does not know the client's scores."""
        down = context.exchange.down
        if down != Dense() and not (isinstance(down, Downlink) and down.known):
            use = "use Dense() or Delta(), --down dense or --down delta"
            raise ConfigError(f"KLMS needs scores that both sides know: {use}, got down={down}")
        return self

    def unreplayable(self) -> str:
        """Return nothing: only the choice of the candidates depends on the device, not the decoded mask."""
        return ""

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return the limit 1: the decoded vector is a mask."""
        return (SumSegment(layout.size, 1),)

    @each_row
    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the number of the chosen candidate of each block, and the length of a block."""
        thresholds = _prior(ctx, x.device)
        gains, divergence = _gains(finite(x, "scores"), thresholds)
        length = self._length(divergence)
        drawn, blocks = words(fold(ctx.key, "candidates"), ctx.layout.size, device=x.device), -(-len(x) // length)
        numbers = torch.arange(2**self.bits, device=x.device)
        logs = torch.stack([_summed(_mask(drawn, number, thresholds), gains, length) for number in numbers])
        ends = (logs - logs.amax(0)).exp().cumsum(0)
        point = uniform(fold(ctx.key, "choice"), blocks, dtype=torch.float64, device=x.device) * ends[-1]
        chosen = (ends <= point).sum(0).clamp(max=2**self.bits - 1)
        block = torch.tensor([length], dtype=torch.int32, device=x.device)
        return {"numbers": codes(chosen, self.bits), "block": block}

    @each_row
    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the chosen masks as zeros and ones."""
        length = int(expect(payload, "block", torch.int32, 1))
        if not 1 <= length <= self.longest:
            raise PayloadError(f"'block' must be from 1 to {self.longest}, got {length}")
        chosen = expect_codes(payload, "numbers", self.bits, -(-ctx.layout.size // length)).long()
        drawn = words(fold(ctx.key, "candidates"), ctx.layout.size, device=chosen.device)
        each = chosen.repeat_interleave(length)[: ctx.layout.size]
        return _mask(drawn, each, _prior(ctx, chosen.device)).to(ctx.layout.dtype)

    def _length(self, divergence: Tensor) -> int:
        """Return the length of a block, given the divergence of each weight in bits."""
        mean = float(divergence.mean()) if len(divergence) else 0.0
        return max(1, min(self.longest, int(self.rate * self.bits / max(mean, 1e-9))))


def _prior(ctx: Coding, device: torch.device) -> Tensor:
    """Return the threshold of each weight: the number of 16-bit numbers that draw a 1."""
    if ctx.start is None:
        return torch.full((ctx.layout.size,), GRID // 2, dtype=torch.int64, device=device)
    return torch.searchsorted(_logits(device), ctx.start.to(device, torch.float64)).clamp(1, GRID - 1)


def _gains(scores: Tensor, thresholds: Tensor) -> tuple[Tensor, Tensor]:
    """Return how much a 1 adds to the logarithm of q(mask) / p(mask), and KL(q || p) in bits, of each weight."""
    q = torch.sigmoid(scores.to(torch.float64)).clamp(LEAST, 1 - LEAST)
    p = thresholds.to(torch.float64) / GRID
    one, zero = (q / p).log(), ((1 - q) / (1 - p)).log()
    return one - zero, (q * one + (1 - q) * zero) / math.log(2)


def _mask(drawn: Tensor, candidate: Tensor, thresholds: Tensor) -> Tensor:
    """Return one candidate, or for each weight the given one: 1 where its 16-bit number is below the threshold."""
    z = drawn + (candidate + 1) * GAMMA
    z = (z ^ _shifted(z, 30)) * FIRST
    z = (z ^ _shifted(z, 27)) * SECOND
    return _shifted(z ^ _shifted(z, 31), 48) < thresholds


def _shifted(z: Tensor, by: int) -> Tensor:
    """Return the words shifted to the right without their sign."""
    return z >> by & (1 << 64 - by) - 1


def _summed(mask: Tensor, gains: Tensor, length: int) -> Tensor:
    """Return the sum of the gains of the ones in each block."""
    kept = torch.where(mask, gains, 0)
    return torch.nn.functional.pad(kept, (0, -len(kept) % length)).view(-1, length).sum(1)


@functools.cache
def _logits(device: torch.device) -> Tensor:
    """Return logit((k + 1/2) / 65536). Multiples of 2**-24 do not depend on the math library."""
    ratios = (math.log((k + 0.5) / (GRID - k - 0.5)) for k in range(GRID))
    return torch.tensor([round(ratio * 2**24) / 2**24 for ratio in ratios], dtype=torch.float64, device=device)
