"""Masked random noise (FedMRN): a mask over noise that sender and receiver share. One bit per entry.

Li et al., ACM Multimedia 2024, https://arxiv.org/abs/2408.03220. The update is approximated by ``n m``, with noise
``n`` and a mask ``m``, entry by entry. The mask is 0 or 1, or with ``signed`` -1 or 1. It is drawn at random (equations
6 and 7, the latter with corrected brackets):

    binary    m = 1 with probability clip(x / n, 0, 1), else 0
    signed    m = 1 with probability clip((x / n + 1) / 2, 0, 1), else -1

So ``E[n m]`` is the update, clipped to the range of the noise: 0 to n, or -n to n (``clipped``). It is unbiased where
the update is within this range. Without ``stochastic``, the mask is 1 where update and noise have the same sign: the
paper's deterministic masking.

Only the mask is sent. The paper also sends a seed. Here, sender and receiver have the key of the round and the client,
from which the noise (label "noise") and the sender's draws (label "mask") follow. The array ``mask`` has one bit per
entry, the first in the lowest bit of the first byte. With ``coded``, a mask whose density is far from one half is sent
as ``quotients`` and ``remainders`` (``gossamer.core.indices``) where this is shorter.

With ``learn_masks``, the mask is learned during training (the paper's progressive stochastic masking), by a
straight-through estimator. In step t of S, the forward pass uses for each entry of the update u

    with probability t / S    n m, with m drawn anew as above
    otherwise                 u clipped to the range of the noise

The gradient there is used as the gradient at u, and u itself is not clipped. One uniform number per entry makes both
decisions: below t / S the entry is masked, and below t / S times the mask's probability the mask is 1. In the last step
all entries are masked. Without ``progressive``, all entries are masked in every step. Without ``learn_masks``, training
does not use the mask, and only the final update is masked.

The server does not need the decoded vector: ``MaskedNoise.fold`` adds a message to a running sum in one pass.
``MaskedNoise.fold_into`` does the same for a sum in several pieces, such as the tensors of a model.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core import bits as packing
from gossamer.core import indices, random
from gossamer.core.codec import FoldInto, StraightThrough
from gossamer.core.errors import PayloadError, listed, require, wrong
from gossamer.core.random import Key
from gossamer.core.random.noise import KINDS, LEAST, Kind, draw, single
from gossamer.core.types import Layout, Params, Payload, State
from gossamer.core.wire import expect, finite

CHUNK = {"cpu": 1 << 17, "cuda": 1 << 22}
"""Entries that are decoded at a time: they fit a CPU's cache, or keep a GPU busy. Multiples of 8."""
GAPS = {"quotients", "remainders"}
WORTH = 32
"""Bytes that coded gaps must save, because two arrays have a longer table than one."""


def probability(u: Tensor, n: Tensor, signed: bool) -> Tensor:
    """Return the probability that the mask of each entry is 1, for update ``u`` and noise ``n``."""
    ratio = u / n
    return ((ratio + 1) / 2 if signed else ratio).clamp(0, 1)


def clipped(u: Tensor, n: Tensor, signed: bool) -> Tensor:
    """Return the update clipped to the range of the noise: the expectation of the masked noise."""
    return (u / n).clamp(-1 if signed else 0, 1) * n


@dataclass(frozen=True)
class MaskedNoise(StraightThrough):
    """Sends a mask over noise that sender and receiver draw from a shared key: one bit per entry.

    FedMRN, https://arxiv.org/abs/2408.03220.

    Args:
        signed: use masks of -1 and 1 instead of 0 and 1
        noise: uniform (from -alpha to alpha), gauss (standard deviation alpha) or bernoulli (-alpha or alpha)
        alpha: the magnitude of the noise
        stochastic: draw masks at random, unbiased within the range of the noise; else by sign
        progressive: in training, mask a growing share of the entries; else all entries in every step
        learn_masks: learn the masks during training, by a straight-through estimator; else mask only the final update
        coded: send sparse or dense masks in a shorter form
    """

    signed: bool = False
    noise: Kind = "uniform"
    alpha: float = 0.01
    stochastic: bool = True
    progressive: bool = True
    learn_masks: bool = True
    coded: bool = False

    def __post_init__(self) -> None:
        require(
            (self.noise in KINDS, wrong(self, "noise", f"must be one of {listed(KINDS)}")),
            (
                math.isfinite(self.alpha) and 1e-8 <= self.alpha <= 1e30,
                wrong(self, "alpha", "must be a number from 1e-8 to 1e30"),
            ),
        )

    def draw(self, layout: Layout, key: Key, device: torch.device | str = "cpu") -> Tensor:
        """Return the noise of a message, in the type of the layout."""
        return self._noise(key, 0, layout.size, device).to(layout.dtype)

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """Return the mask, as bits or as coded gaps."""
        n = self.draw(layout, key, x.device)
        mask = self._mask(finite(x, "change"), n, random.fold(key, "mask"))
        gaps = indices.pack(mask) if self.coded else {}
        return gaps if _worth(gaps, layout.size) else {"mask": packing.bits(mask)}

    def _mask(self, x: Tensor, n: Tensor, key: Key) -> Tensor:
        if not self.stochastic:
            return x / n > 0
        draws = random.uniform(key, len(x), dtype=x.dtype, device=x.device)
        return draws < probability(x, n, self.signed)

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Return noise times mask."""
        packed = self._packed(payload, layout.size)
        out = torch.empty(layout.size, dtype=layout.dtype, device=packed.device)
        for chunk, values in self._values(packed, 0, out, key):
            chunk.copy_(values)
        return out

    def fold(self, acc: Tensor, payload: Payload, layout: Layout, key: Key, weight: float) -> None:
        """Add ``weight`` times the decoded message to ``acc``, with one chunk of it in memory at a time.

        ``acc`` is a contiguous vector of the layout's size. The weight is rounded to the type of ``acc``, then the
        product, then the sum. So the bits are those of ``acc + weight * decode(...)`` on every device.
        """
        fits = acc.shape == (layout.size,) and acc.is_contiguous()
        require((fits, f"MaskedNoise.fold: acc must be a contiguous vector of {layout.size:,} entries"))
        self.fold_into(payload, layout, key, weight, acc)([acc])

    def fold_into(self, payload: Payload, layout: Layout, key: Key, weight: float, like: Tensor) -> FoldInto:
        """Return a function that adds like ``fold`` to pieces, on a GPU with one kernel per piece where possible."""
        packed = self._packed(payload, layout.size).to(like.device)

        def add(pieces: Sequence[Tensor]) -> None:
            start = 0
            for piece in pieces:
                self._add(piece, packed, start, key, weight)
                start += len(piece)

        return add

    def _add(self, piece: Tensor, packed: Tensor, first: int, key: Key, weight: float) -> None:
        """Add the message's entries to a piece of the sum that starts at entry ``first``."""
        fused = piece.is_cuda and piece.dtype == torch.float32 and self.noise == "uniform" and piece.is_contiguous()
        if fused and (kernel := _kernel()):
            where = random.fold(key, "noise")
            kernel(piece, packed, where, single(self.alpha), LEAST, single(weight), self.signed, first)
            return
        for chunk, values in self._values(packed, first, piece, key):
            chunk.add_(values.to(piece.dtype).mul_(weight))

    def surrogate_context(self, layout: Layout, steps: int, key: Key, device: torch.device) -> State:
        """Return the noise, a key for the draws, and the number of steps. Empty without ``learn_masks``."""
        if not self.learn_masks:
            return {}
        noise = layout.unflatten(self.draw(layout, key, device), fill=self.alpha)
        total = torch.tensor(steps, dtype=layout.dtype, device=device)
        return {"noise": noise, "key": random.tensor(random.fold(key, "rehearse"), device), "steps": total}

    def surrogate(self, change: Params, context: State, step_index: Tensor) -> Params:
        """Return masked noise for a random share of the entries, and the clipped update for the others."""
        share = (step_index + 1) / context["steps"] if self.progressive else torch.ones_like(context["steps"])
        noise: Params = context["noise"]
        drawn = random.draws_like(context["key"], step_index, noise)
        return {name: self._masked(change[name], n, drawn[name], share) for name, n in noise.items() if name in change}

    def _masked(self, u: Tensor, n: Tensor, drawn: Tensor, share: Tensor) -> Tensor:
        one = drawn < share * probability(u, n, self.signed) if self.stochastic else u / n > 0
        masked = torch.where(one, n, -n if self.signed else torch.zeros_like(n))
        return torch.where(drawn < share, masked, clipped(u, n, self.signed))

    def _packed(self, payload: Payload, size: int) -> Tensor:
        """Return the mask as packed bits, from either form."""
        if self.coded and _worth(payload, size):
            return packing.bits(indices.unpack(payload, size))
        packed = expect(payload, "mask", torch.uint8, -(-size // 8))
        if len(payload) > 1:
            raise PayloadError(f"expected only 'mask', got {listed(payload)}")
        if size % 8 and bool(packed[-1] >> (size % 8)):
            raise PayloadError(f"'mask' has ones after its {size:,} bits")
        return packed

    def _values(self, packed: Tensor, first: int, into: Tensor, key: Key) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield chunks of ``into``, which starts at entry ``first`` of the message, each with its masked noise."""
        for chunk in torch.split(into, CHUNK["cuda" if packed.is_cuda else "cpu"]):
            skip, end = first % 8, first + len(chunk)
            flags = packing.unbits(packed[first // 8 : -(-end // 8)], skip + len(chunk))[skip:]
            mask = (packing.plus_minus if self.signed else packing.numbers)(flags, torch.float32)
            noise = self._noise(key, first, len(chunk), packed.device)
            yield chunk, noise.mul_(mask)
            first = end

    def _noise(self, key: Key, start: int, count: int, device: torch.device | str) -> Tensor:
        return draw(self.noise, self.alpha, random.fold(key, "noise"), count, start=start, device=device)


def _worth(payload: Payload, size: int) -> bool:
    """Return whether a payload is a mask as coded gaps that save enough bytes."""
    return set(payload) == GAPS and sum(array.numel() for array in payload.values()) + WORTH <= -(-size // 8)


@functools.cache
def _kernel() -> Callable[..., None] | None:
    """Return the fused GPU kernel, or ``None`` without Triton, which only CUDA builds of torch have."""
    try:
        from gossamer.parts.codecs import masked_noise_triton
    except ImportError:
        return None
    return masked_noise_triton.fold
