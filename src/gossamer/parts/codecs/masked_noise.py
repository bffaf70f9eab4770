"""Masked random noise (FedMRN): a mask over noise that sender and receiver share. One bit per entry.

Li et al., ACM Multimedia 2024, https://arxiv.org/abs/2408.03220. The update is approximated by ``n m``, with noise
``n`` and a mask ``m``, entry by entry. The mask is 0 or 1, or with ``signed`` -1 or 1. It is drawn at random (equations
6 and 7, the latter with corrected brackets):

    binary    m = 1 with probability clip(x / n, 0, 1), else 0
    signed    m = 1 with probability clip((x / n + 1) / 2, 0, 1), else -1

So ``E[n m]`` is the update, clipped to the range of the noise: 0 to n, or -n to n (``clipped``). It is unbiased where
the update is within this range. Without ``stochastic``, the mask is 1 where update and noise have the same sign: the
paper's deterministic masking.

The paper has one magnitude ``alpha`` for all tensors and rounds. It bounds what a round can change: a binary mask over
uniform noise moves a weight by at most alpha / 4 on average. With ``alpha="auto"``, each block of each update has a
magnitude of its own, measured from the update (``masked_noise_scale``), and a scale per block is sent with the mask.

Only the mask is sent, and the scales. The paper also sends a seed. Here, sender and receiver have the key of the round
and the client, from which the noise (label "noise") and the sender's draws (label "mask") follow. The array ``mask``
has one bit per entry, the first in the lowest bit of the first byte. With ``coded``, a mask whose density is far from
one half is sent as ``quotients`` and ``remainders`` (``gossamer.core.indices``) where this is shorter.

With ``learn_masks``, the mask is learned during training (the paper's progressive stochastic masking), by a
straight-through estimator. With a fixed magnitude this is needed: what exceeds the noise is lost, and training makes up
for it. With ``alpha="auto"`` little is lost, and masks in training only slow it down. So by default, masks are learned
with a fixed magnitude only. In step t of S, the forward pass uses for each entry of the update u

    with probability t / S    n m, with m drawn anew as above
    otherwise                 u clipped to the range of the noise

The gradient there is used as the gradient at u, and u itself is not clipped. One uniform number per entry makes both
decisions: below t / S the entry is masked, and below t / S times the mask's probability the mask is 1. In the last step
all entries are masked. Without ``progressive``, all entries are masked in every step. Without ``learn_masks``, training
does not use the mask, and only the final update is masked.

The server does not need the decoded vector: ``MaskedNoise.fold`` adds a message to a running sum in one pass.
``MaskedNoise.fold_into`` does the same for a sum in several pieces, such as the tensors of a model.

**Common noise** is one noise vector n per round, drawn from the key of the round instead of the client's. With a fixed
magnitude, the mean of K updates ``n m_k`` of equal weight is

    n c / K        with c = sum_k m_k, the number of clients whose mask has a 1, for masks of 0 and 1
    n (2 c / K - 1)                                                                 for masks of -1 and 1

So the server needs only the counts c, which take log2(K + 1) bits per entry or less. Each client still draws its mask
with random numbers of its own: the key is folded with the client's number. The server ``SumThenDecode`` sums the masks,
and multiplies their mean with the noise once.

The noise does not average out over clients. With masks of 0 and 1, an entry whose noise has the wrong sign does not
move in this round, at any client. With masks of -1 and 1 over Bernoulli noise nothing is lost: the values are -alpha
and alpha, whatever the noise.

**Dense masked noise.** FedMRN freezes the weights w of the round's start and trains an update u, of which only a mask
is sent. In the authors' code for Table 3 (Shakespeare) the base weights are trainable too. They get the gradient of u
in every step, so they move by u as well. The network is evaluated at ``w + u + n m``, and ``u + n m`` is sent as
floats. This is FedAvg with twice the step and noise, at 32 bits per weight. It is here to compare with that table.
"""

import functools
import importlib
import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from gossamer.core import bits as packing
from gossamer.core import indices, random
from gossamer.core.codec import Codec, Coding, FoldInto, row_by_row, rows_of
from gossamer.core.errors import PayloadError, listed, require, wrong
from gossamer.core.random import Key, Keys
from gossamer.core.random.noise import KINDS, LEAST, Kind, draw, single
from gossamer.core.secure import SumSegment
from gossamer.core.types import Layout, Params, Payload, State
from gossamer.core.wire import finite
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.codecs.masked_noise_scale import (
    Rows,
    Scale,
    Slice,
    by_tensor,
    clipping,
    expect_scales,
    kernel_length,
    rescaled,
    rescaled_exactly,
    scales_of,
    sent,
    small_blocks,
    together,
)

CHUNK = {"cpu": 1 << 17, "cuda": 1 << 22}
"""Entries that are decoded at a time: they fit a CPU's cache, or keep a GPU busy. Multiples of 8."""
GAPS = {"quotients", "remainders"}
WORTH = 32
"""Bytes that coded gaps must save, because two arrays have a longer table than one."""
COMMON = "must be a number, such as 0.1: with auto, every client has scales of its own, and masks do not add up"
LIMITING = 0.8
"""The share of the updates' squared norm that is clipped, from which a run warns."""


def probability(u: Tensor, n: Tensor, signed: bool) -> Tensor:
    """Return the probability that the mask of each entry is 1, for update ``u`` and noise ``n``."""
    ratio = u / n
    return ((ratio + 1) / 2 if signed else ratio).clamp(0, 1)


def clipped(u: Tensor, n: Tensor, signed: bool) -> Tensor:
    """Return the update clipped to the range of the noise: the expectation of the masked noise."""
    return (u / n).clamp(-1 if signed else 0, 1) * n


@dataclass(frozen=True)
class NoiseMask(Codec):
    """Base of codecs that send a mask over noise from a shared key. ``MaskedNoise`` describes its fields."""

    signed: bool = False
    noise: Kind = "bernoulli"
    alpha: Literal["auto"] | float = "auto"
    stochastic: bool = True
    progressive: bool = True
    learn_masks: bool | None = None
    coded: bool = True
    spread: float = 1.0
    block: int | None = 256

    def __post_init__(self) -> None:
        fits = self.alpha == "auto" if isinstance(self.alpha, str) else 1e-8 <= self.alpha <= 1e30
        require(
            (self.noise in KINDS, wrong(self, "noise", f"must be one of {listed(KINDS)}")),
            (fits, wrong(self, "alpha", "must be auto or a number from 1e-8 to 1e30")),
            (not (self.common and self.alpha == "auto"), wrong(self, "alpha", COMMON)),
            (0.01 <= self.spread <= 1000, wrong(self, "spread", "must be a number from 0.01 to 1000")),
            (self.block is None or self.block > 0, wrong(self, "block", "must be at least 1, or none")),
            (
                self.progressive or self.learns,
                wrong(self, "progressive", "has an effect on learned masks only: set learn_masks (--learn-masks)"),
            ),
        )

    @property
    @abstractmethod
    def common(self) -> bool:
        """Whether all clients of a round use the same noise."""

    @property
    def learns(self) -> bool:
        """Whether masks are learned during training."""
        return self.alpha != "auto" if self.learn_masks is None else self.learn_masks

    @property
    def _alpha(self) -> float:
        """The magnitude of the drawn noise: with auto, unit noise is drawn and scaled later."""
        return 1.0 if isinstance(self.alpha, str) else self.alpha

    def draw(self, ctx: Coding, device: torch.device | str = "cpu") -> Tensor:
        """Return the noise of a message, in the type of the layout; of magnitude 1 if ``alpha`` is auto."""
        return self._noise(ctx.key, 0, ctx.layout.size, device).to(ctx.layout.dtype)

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the mask, as bits or as coded gaps, and the scales if ``alpha`` is auto."""
        mask, scales = self._drawn(finite(x, "change"), ctx)
        if self.coded and x.dim() > 1:  # forms and lengths differ
            each = [{name: array[row] for name, array in scales.items()} for row in range(len(x))]
            return [own | self._sent(one) for own, one in zip(each, mask, strict=True)]  # type: ignore[return-value]
        return scales | self._sent(mask)

    def _sent(self, mask: Tensor) -> Payload:
        gaps = indices.pack(mask) if self.coded else {}
        return gaps if _worth(gaps, mask.shape[-1]) else {"mask": packing.bits(mask)}

    def _drawn(self, x: Tensor, ctx: Coding) -> tuple[Tensor, Payload]:
        """Return the mask of an update as booleans, and the scales; on a GPU by one kernel where possible."""
        own = random.fold(self._own(ctx), "mask")
        fusible = self.alpha == "auto" and x.dim() == 1 and _fusible(x, self.noise)
        length = kernel_length(ctx.layout.counts, self.block) if fusible else None
        if length is None or (kernels := _kernels()) is None:
            n, scales = self.draw(ctx, x.device), Payload()
            if self.alpha == "auto":
                x, scales = rescaled_exactly(x, n, ctx.layout, self.spread, self.block, self._expected)
            if not self.stochastic:
                return x / n > 0, scales
            draws = random.uniform(own, ctx.layout.size, dtype=x.dtype, device=x.device)
            return draws < probability(x, n, self.signed), scales
        noise, bernoulli = random.fold(ctx.key, "noise"), self.noise == "bernoulli"
        by = kernels.Draws(noise, own, self.signed, bernoulli, self.stochastic, LEAST)
        mask, columns = kernels.encode(x, tuple(ctx.layout.counts), length, self.spread, by)
        counts = [-(-entries // length) for entries in ctx.layout.counts]
        return mask, sent(scales_of(columns, counts), x.device)

    def _expected(self, u: Tensor, n: Tensor) -> Tensor:
        """Return the expectation of the masked noise over the draws of the mask."""
        return clipped(u, n, self.signed) if self.stochastic else self._values_of(u / n > 0, n)

    def _values_of(self, one: Tensor, n: Tensor) -> Tensor:
        return torch.where(one, n, -n if self.signed else torch.zeros_like(n))

    @property
    def figure_names(self) -> tuple[str, ...]:
        """What clipping touches, and what it takes."""
        return ("clipped", "clipped_length")

    def figures(self, x: Tensor, ctx: Coding) -> dict[str, float]:
        """Return the share of the changed entries that exceed their noise, and the share of the length so clipped.

        Both are expectations over the noise, so that none is drawn. Of a long update, some entries are measured.
        """
        alpha = None if isinstance(self.alpha, str) else self.alpha
        return clipping([u for _, u in ctx.layout.cut(x)], self.noise, alpha, self.spread, self.block)

    def warning(self, figures: Mapping[str, float]) -> str | None:
        """Warn if a fixed magnitude clips nearly all of the updates, or if blocks are so small that scales dominate."""
        if self.alpha == "auto":
            return small_blocks(self.block)
        share = figures["clipped_length"]
        if share < LIMITING:
            return None
        return (
            f"the noise magnitude alpha={self.alpha:g} is small: {100 * share:.0f} % of the updates' length exceeds "
            "their noise and is clipped, which may limit the speed of training. Use alpha=auto (--alpha auto with "
            "fedmrn), or a larger magnitude"
        )

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return noise times mask, times the scale of the block if ``alpha`` is auto."""
        if self.coded and rows_of(payload) is not None:
            return row_by_row(self.decode, payload, ctx)
        packed, scales = self._read(payload, ctx.layout)
        out = torch.empty(*packed.shape[:-1], ctx.layout.size, dtype=ctx.layout.dtype, device=packed.device)
        for piece in by_tensor([out], scales):
            for chunk, values in self._values(packed, piece, ctx.key):
                chunk.copy_(values)
        return out

    def fold(self, acc: Tensor, payload: Payload, ctx: Coding, weight: float) -> None:
        """Add ``weight`` times the decoded message to ``acc``, with one chunk of it in memory at a time.

        ``acc`` is a contiguous vector of the layout's size. The weight is rounded to the type of ``acc``, then the
        product, then the sum. So the bits are those of ``acc + weight * decode(...)`` on every device.
        """
        fits = acc.shape == (ctx.layout.size,) and acc.is_contiguous()
        require((fits, f"MaskedNoise.fold: acc must be a contiguous vector of {ctx.layout.size:,} entries"))
        self.fold_into(payload, ctx, weight, acc)([acc])

    def fold_into(self, payload: Payload, ctx: Coding, weight: float, like: Tensor) -> FoldInto:
        """Return a function that adds like ``fold`` to pieces, on a GPU with one kernel per piece where possible."""
        packed, scales = self._read(payload, ctx.layout)
        packed = packed.to(like.device)
        scales = [scale._replace(values=scale.values.to(like.device)) for scale in scales]

        def add(pieces: Sequence[Tensor]) -> None:
            for piece in by_tensor(pieces, scales):
                self._add(piece, packed, ctx.key, weight)

        return add

    def _add(self, piece: Slice, packed: Tensor, key: Key | Keys, weight: float) -> None:
        """Add the message's entries to a piece of the sum."""
        acc = piece.values
        if _fusible(acc, self.noise) and (kernels := _kernels()):
            where, magnitudes = random.fold(key, "noise"), (single(self._alpha), LEAST)
            kernels.fold(piece, packed, where, *magnitudes, single(weight), self.signed, self.noise == "bernoulli")
            return
        for chunk, values in self._values(packed, piece, key):
            chunk.add_(values.to(acc.dtype).mul_(weight))

    def surrogate_context(self, ctx: Coding, steps: int, device: torch.device) -> State:
        """Return the noise, a key for the draws, and the number of steps. Empty if masks are not learned."""
        if not self.learns:
            return {}
        noise = ctx.layout.unflatten(self.draw(ctx, device), fill=self._alpha)
        total = torch.tensor(steps, dtype=ctx.layout.dtype, device=device)
        return {"noise": noise, "key": random.tensor(random.fold(self._own(ctx), "rehearse"), device), "steps": total}

    def surrogate(self, change: Params, context: State, step_index: Tensor) -> Params:
        """Return masked noise for a random share of the entries, and the clipped update for the others."""
        share = (step_index + 1) / context["steps"] if self.progressive else torch.ones_like(context["steps"])
        noise: Params = context["noise"]
        drawn = random.draws_like(context["key"], step_index, noise)
        names = [name for name in noise if name in change]
        if self.alpha != "auto":
            return {name: self._masked(change[name], noise[name], drawn[name], share) for name in names}
        found: Params = {}
        for rows, alike in together({name: noise[name].numel() for name in names}, self.block).items():
            u, numbers = (rows.join(one[name].reshape(-1) for name in alike) for one in (change, drawn))
            n = rows.join((noise[name].reshape(-1) for name in alike), 1.0)
            values = rows.part(self._masked_in_scale(u, n, numbers, share, rows))
            found |= {name: value.view(noise[name].shape) for name, value in zip(alike, values, strict=True)}
        return found

    def _masked(self, u: Tensor, n: Tensor, drawn: Tensor, share: Tensor) -> Tensor:
        one = drawn < share * probability(u, n, self.signed) if self.stochastic else u / n > 0
        return torch.where(drawn < share, self._values_of(one, n), clipped(u, n, self.signed))

    def _masked_in_scale(self, u: Tensor, n: Tensor, drawn: Tensor, share: Tensor, rows: Rows) -> Tensor:
        units, scale = rescaled(u, n, rows, self.spread, self._expected)
        return self._masked(units, n, drawn, share) * scale

    def _read(self, payload: Payload, layout: Layout) -> tuple[Tensor, Sequence[Scale]]:
        """Return the mask as packed bits, from either form, and the scales of each tensor."""
        if self.alpha != "auto":
            return self._packed(payload, layout.size), [Scale(layout.size, torch.ones(1), max(1, layout.size))]
        rest = {name: array for name, array in payload.items() if name != "scales"}
        return self._packed(rest, layout.size), expect_scales(payload, layout, self.block)

    def _packed(self, payload: Payload, size: int) -> Tensor:
        """Return the mask as packed bits, from either form."""
        if self.coded and _worth(payload, size):
            return packing.bits(indices.unpack(payload, size))
        packed = packing.expect_packed(payload, "mask", size)
        if len(payload) > 1:
            raise PayloadError(f"expected only 'mask', got {listed(payload)}")
        return packed

    def _values(self, packed: Tensor, piece: Slice, key: Key | Keys) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield chunks of a piece of the message's vector, each with its masked noise."""
        first, start = piece.first, piece.start
        rows = math.prod(piece.values.shape[:-1])
        size = max(8, CHUNK["cuda" if packed.is_cuda else "cpu"] // rows // 8 * 8)
        for chunk in torch.split(piece.values, size, -1):
            count = chunk.shape[-1]
            skip, end = first % 8, first + count
            flags = packing.unbits(packed[..., first // 8 : -(-end // 8)], skip + count)[..., skip:]
            mask = (packing.plus_minus if self.signed else packing.numbers)(flags, torch.float32)
            noise = self._noise(key, first, count, packed.device)
            if self.alpha == "auto":
                noise.mul_(piece.scale.of(start, count))
            yield chunk, noise * mask if noise.dim() < mask.dim() else noise.mul_(mask)
            first, start = end, start + count

    def _own(self, ctx: Coding) -> Key | Keys:
        """Return the key of the sender's draws. That of the noise is the sender's own too, unless it is common."""
        return ctx.own if self.common else ctx.key

    def _noise(self, key: Key | Keys, start: int, count: int, device: torch.device | str) -> Tensor:
        return draw(self.noise, self._alpha, random.fold(key, "noise"), count, start=start, device=device)


@dataclass(frozen=True)
class MaskedNoise(NoiseMask):
    """Sends a mask over noise that sender and receiver draw from a shared key: at most one bit per entry.

    FedMRN, https://arxiv.org/abs/2408.03220.

    Args:
        signed: use masks of -1 and 1 instead of 0 and 1
        noise: bernoulli (-alpha or alpha), uniform (from -alpha to alpha; the paper's) or gauss (standard deviation
            alpha)
        alpha: the magnitude of the noise; auto measures it from each update, per block
        stochastic: draw masks at random, unbiased within the range of the noise; else by sign
        progressive: in training, mask a growing share of the entries; else all entries in every step
        learn_masks: learn the masks during training, by a straight-through estimator, or mask only the final update;
            none learns them if alpha is a number
        coded: send sparse or dense masks in a shorter form
        spread: with alpha auto, the magnitude of the noise in units of the update's own; more clips less and gives
            binary masks fewer bits, with a larger error
        block: with alpha auto, the number of entries of a tensor with one magnitude and one scale of 16 bits; none is
            the whole tensor
    """

    @property
    def common(self) -> bool:
        """False: each client has noise of its own."""
        return False


@dataclass(frozen=True)
class CommonMaskedNoise(NoiseMask):
    """``MaskedNoise`` with noise that all clients of a round share, and a fixed magnitude.

    Args:
        alpha: the magnitude of the noise
    """

    alpha: Literal["auto"] | float = 0.01

    @property
    def common(self) -> bool:
        """True: all clients of a round use the same noise."""
        return True

    def sum_segments(self, layout: Layout) -> tuple[SumSegment, ...]:
        """Return the limit 1: a mask has zeros and ones."""
        return (SumSegment(layout.size, 1),)

    def to_sum(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the mask as zeros and ones, also for masks of -1 and 1."""
        if self.coded and rows_of(payload) is not None:
            return row_by_row(self.to_sum, payload, ctx)
        packed, _ = self._read(payload, ctx.layout)
        return packing.numbers(packing.unbits(packed, ctx.layout.size), ctx.layout.dtype)

    def from_sum(self, mean: Tensor, ctx: Coding) -> Tensor:
        """Return the noise times the mean of the masks."""
        return self.draw(ctx, mean.device) * (mean * 2 - 1 if self.signed else mean)


@dataclass(frozen=True)
class DenseMaskedNoise(Codec):
    """Sends the update plus its masked noise as floats. No compression: the artefact of FedMRN's Table 3.

    Args:
        masks: the masked noise that is added
    """

    masks: NoiseMask = MaskedNoise()

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the sum of update and masked noise."""
        noise = self.masks.decode(self.masks.encode(x, ctx), ctx)
        return Dense().encode(x + noise, ctx)

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the values."""
        return Dense().decode(payload, ctx)

    def surrogate_context(self, ctx: Coding, steps: int, device: torch.device) -> State:
        """Return the context of the masked noise."""
        return self.masks.surrogate_context(ctx, steps, device)

    def surrogate(self, change: Params, context: State, step_index: Tensor) -> Params:
        """Return the change plus its masked noise."""
        masked = self.masks.surrogate(change, context, step_index)
        return {name: change[name] + value for name, value in masked.items()}


def _worth(payload: Payload, size: int) -> bool:
    """Return whether a payload is a mask as coded gaps that save enough bytes."""
    return set(payload) == GAPS and sum(array.numel() for array in payload.values()) + WORTH <= -(-size // 8)


def _fusible(vector: Tensor, noise: Kind) -> bool:
    """Return whether there are kernels for a vector and this noise."""
    return vector.is_cuda and vector.dtype == torch.float32 and noise != "gauss" and vector.is_contiguous()


@functools.cache
def _kernels() -> Any:
    """Return the module of GPU kernels, or ``None`` without Triton, which only CUDA builds of torch have."""
    try:
        return importlib.import_module("gossamer.parts.codecs.masked_noise_triton")
    except ImportError:
        return None
