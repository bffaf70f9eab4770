"""One bit an entry: which entries of some noise, known to both ends, come nearest to the change (FedMRN).

Noise ``n`` and a mask ``m`` stand for the change: ``n m``, entry by entry. The mask is 0 or 1, or, if ``signed``, -1
or 1. It is drawn so that the noise it leaves is right on average wherever the noise is large enough (Li et al., MM
2024, equations 6 and 7, the latter with its brackets mended):

    binary    m = 1 with probability clip(x / n, 0, 1), else 0
    signed    m = 1 with probability clip((x / n + 1) / 2, 0, 1), else -1

so that ``E[n m]`` is the change clipped to what the noise spans, from 0 to n or from -n to n: ``clipped``. Without
``stochastic`` the mask is 1 where change and noise have the same sign: the paper's deterministic masking.

Only the mask is sent. The paper sends a seed with it; here both ends have the key of the round and client, from which
the noise follows (label "noise"), and so do the sender's draws (label "mask"). The array is called ``mask``: one bit an
entry, the first in the lowest bit of the first byte. With ``coded``, a mask far from half ones goes as ``quotients``
and ``remainders`` instead, where that is shorter: the gaps of ``gossamer.core.indices``.

If ``rehearsed``, the mask is learned while training (the paper's progressive stochastic masking). In step t of S the
forward pass uses, in place of the change u, for each entry

    with probability t / S    n m, with m drawn afresh as above
    otherwise                 u clipped to what the noise spans

and takes the gradient there for the gradient at u, which itself is never clipped. One uniform number an entry decides
both: below t / S it masks, and below t / S times the mask's probability the mask is 1. In the last step all entries are
masked. Without ``progressive`` they are in every step; without ``rehearsed`` only what training arrived at is masked.

The server need not decode: ``MaskedNoise.fold`` adds a message to a running sum in one pass, noise and all, and
``MaskedNoise.adding`` to one that lies in pieces, as the masked tensors of a model do.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.core import bits as packing
from gossamer.core import indices as positions
from gossamer.core import random
from gossamer.core.codec import FoldInto, StraightThrough
from gossamer.core.errors import PayloadError, listed, require, wrong
from gossamer.core.random import Key
from gossamer.core.random.noise import KINDS, LEAST, Kind, draw, single
from gossamer.core.types import Layout, Params, Payload, State
from gossamer.core.wire import expect, finite

CHUNK = {"cpu": 1 << 17, "cuda": 1 << 22}
"""How many entries are unmasked at a time: as many as a cache holds, or a GPU needs to be busy. Multiples of 8."""
GAPS = {"quotients", "remainders"}
WORTH = 32
"""Bytes that gaps must save to be sent: two arrays have a longer table than one."""


def probability(u: Tensor, n: Tensor, signed: bool) -> Tensor:
    """The probability that the mask of each entry is 1, for change ``u`` and noise ``n``."""
    ratio = u / n
    return ((ratio + 1) / 2 if signed else ratio).clamp(0, 1)


def clipped(u: Tensor, n: Tensor, signed: bool) -> Tensor:
    """The change as far as the noise spans it: what masked noise is on average."""
    return (u / n).clamp(-1 if signed else 0, 1) * n


@dataclass(frozen=True)
class MaskedNoise(StraightThrough):
    """A mask over noise that both ends draw from the key they share: one bit an entry, and nothing else.

    Args:
        signed: masks are -1 and 1 rather than 0 and 1
        noise: uniform from -alpha to alpha, gauss with deviation alpha, or bernoulli, which is -alpha or alpha
        alpha: magnitude of the noise
        stochastic: draw masks at random, right on average; else by sign alone
        progressive: in training, mask more entries step by step; else all of them in every step
        rehearsed: learn masks while training; else mask what training arrived at
        coded: send masks far from half ones in a shorter form
    """

    signed: bool = False
    noise: Kind = "uniform"
    alpha: float = 0.01
    stochastic: bool = True
    progressive: bool = True
    rehearsed: bool = True
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
        """The noise of a message, in the type of the layout."""
        return self._noise(key, 0, layout.size, device).to(layout.dtype)

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """The mask, as bits or in the shorter form."""
        n = self.draw(layout, key, x.device)
        mask = self._mask(finite(x, "change"), n, random.fold(key, "mask"))
        gaps = positions.pack(mask) if self.coded else {}
        return gaps if _worth(gaps, layout.size) else {"mask": packing.bits(mask)}

    def _mask(self, x: Tensor, n: Tensor, key: Key) -> Tensor:
        if not self.stochastic:
            return x / n > 0
        draws = random.uniform(key, len(x), dtype=x.dtype, device=x.device)
        return draws < probability(x, n, self.signed)

    def decode(self, payload: Payload, layout: Layout, key: Key) -> Tensor:
        """Noise times mask."""
        packed = self._packed(payload, layout.size)
        out = torch.empty(layout.size, dtype=layout.dtype, device=packed.device)
        for place, values in self._values(packed, 0, out, key):
            place.copy_(values)
        return out

    def fold(self, acc: Tensor, payload: Payload, layout: Layout, key: Key, weight: float) -> None:
        """Add ``weight`` times the decoded message to ``acc``, with no more than a chunk of it in memory at a time.

        ``acc`` is a contiguous vector of the layout's size. The weight is rounded to the type of ``acc``, then the
        product, then the sum: the bits are those of ``acc + weight * decode(...)`` on every device.
        """
        fits = acc.shape == (layout.size,) and acc.is_contiguous()
        require((fits, f"MaskedNoise.fold: the sum must be a contiguous vector of {layout.size:,} entries"))
        self.fold_into(payload, layout, key, weight, acc)([acc])

    def fold_into(self, payload: Payload, layout: Layout, key: Key, weight: float, like: Tensor) -> FoldInto:
        """As ``fold``, into pieces; with uniform noise, float32 and a GPU by one kernel for each."""
        packed = self._packed(payload, layout.size).to(like.device)

        def add(pieces: Sequence[Tensor]) -> None:
            start = 0
            for piece in pieces:
                self._add(piece, packed, start, key, weight)
                start += len(piece)

        return add

    def _add(self, piece: Tensor, packed: Tensor, first: int, key: Key, weight: float) -> None:
        """Add a message's entries from ``first`` on, as many as the piece has."""
        fused = piece.is_cuda and piece.dtype == torch.float32 and self.noise == "uniform" and piece.is_contiguous()
        if fused and (kernel := _kernel()):
            where = random.fold(key, "noise")
            kernel(piece, packed, where, single(self.alpha), LEAST, single(weight), self.signed, first)
            return
        for place, values in self._values(packed, first, piece, key):
            place.add_(values.to(piece.dtype).mul_(weight))

    def surrogate_context(self, layout: Layout, steps: int, key: Key, device: torch.device) -> State:
        """The noise, a key for the draws, and how many steps there will be."""
        if not self.rehearsed:
            return {}
        noise = layout.unflatten(self.draw(layout, key, device), fill=self.alpha)
        of = torch.tensor(steps, dtype=layout.dtype, device=device)
        return {"noise": noise, "key": random.tensor(random.fold(key, "rehearse"), device), "steps": of}

    def surrogate(self, change: Params, context: State, step_index: Tensor) -> Params:
        """Masked noise where the draws say so, elsewhere the change clipped to what the noise spans."""
        share = (step_index + 1) / context["steps"] if self.progressive else torch.ones_like(context["steps"])
        noise: Params = context["noise"]
        drawn = random.draws_like(context["key"], step_index, noise)
        return {name: self._felt(change[name], n, drawn[name], share) for name, n in noise.items() if name in change}

    def _felt(self, u: Tensor, n: Tensor, drawn: Tensor, share: Tensor) -> Tensor:
        one = drawn < share * probability(u, n, self.signed) if self.stochastic else u / n > 0
        masked = torch.where(one, n, -n if self.signed else torch.zeros_like(n))
        return torch.where(drawn < share, masked, clipped(u, n, self.signed))

    def _packed(self, payload: Payload, size: int) -> Tensor:
        """The mask as bits, eight to a byte, from either form."""
        if self.coded and _worth(payload, size):
            return packing.bits(positions.unpack(payload, size))
        packed = expect(payload, "mask", torch.uint8, -(-size // 8))
        if len(payload) > 1 or (size % 8 and bool(packed[-1] >> (size % 8))):
            raise PayloadError(f"'mask' is not alone, or has ones behind its {size:,} bits")
        return packed

    def _values(self, packed: Tensor, first: int, into: Tensor, key: Key) -> Iterator[tuple[Tensor, Tensor]]:
        """Chunk by chunk a place in ``into``, whose entries are those from ``first`` on, and its masked noise."""
        for place in torch.split(into, CHUNK["cuda" if packed.is_cuda else "cpu"]):
            skip, end = first % 8, first + len(place)
            flags = packing.unbits(packed[first // 8 : -(-end // 8)], skip + len(place))[skip:]
            mask = (packing.plus_minus if self.signed else packing.numbers)(flags, torch.float32)
            noise = self._noise(key, first, len(place), packed.device)
            yield place, noise.mul_(mask)
            first = end

    def _noise(self, key: Key, start: int, count: int, device: torch.device | str) -> Tensor:
        return draw(self.noise, self.alpha, random.fold(key, "noise"), count, start=start, device=device)


def _worth(payload: Payload, size: int) -> bool:
    """Whether this is a mask as gaps, and these are enough shorter than its bits."""
    return set(payload) == GAPS and sum(array.numel() for array in payload.values()) + WORTH <= -(-size // 8)


@functools.cache
def _kernel() -> Callable[..., None] | None:
    """The fused fold for GPUs, where there is Triton, which comes with CUDA builds of torch alone."""
    try:
        from gossamer.parts.codecs import masked_noise_triton
    except ImportError:
        return None
    return masked_noise_triton.fold
