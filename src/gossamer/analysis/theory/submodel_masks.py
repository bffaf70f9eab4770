"""Distributions of 0/1 masks over model entries, for each client: random masks, windows, and masks of views.

For the theory of sub-model training (https://arxiv.org/abs/2511.06132). The paper's windows "j to (j + s_i) mod d" are
read as s_i entries that wrap around at the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from gossamer.core.errors import require
from gossamer.core.random import Key, fold, uniform
from gossamer.core.random import key as make_key
from gossamer.core.types import Clock, Layout, Params
from gossamer.core.view import View
from gossamer.parts.views.entries import Windows

MOST = 16
"""Maximum number of entries for an enumeration of all masks: 65,536 masks."""


@dataclass(frozen=True, eq=False)
class Masks:
    """The possible masks of each client, with their probabilities.

    Args:
        held: 0/1, [clients, masks, entries]
        chances: probability of each mask, [clients, masks]; the sum over a client's masks is 1
    """

    held: Tensor
    chances: Tensor

    def __post_init__(self) -> None:
        held, chances = self.held, self.chances
        require(
            (
                held.dim() == 3 and held.shape[:2] == chances.shape,
                f"Masks.held must be [clients, masks, entries] and Masks.chances [clients, masks], "
                f"got {list(held.shape)} and {list(chances.shape)}",
            ),
            (bool(((held == 0) | (held == 1)).all()), "Masks.held must hold only zeros and ones"),
            (
                bool((chances >= 0).all()) and torch.allclose(chances.sum(-1), chances.new_ones(())),
                "Masks.chances of a client must not be negative and must sum to 1",
            ),
        )

    @classmethod
    def full(cls, clients: int, entries: int) -> "Masks":
        """Return one full mask per client: the objective is then F."""
        return cls._even(torch.ones(clients, 1, entries, dtype=torch.float64))

    @classmethod
    def bernoulli(cls, shares: Sequence[float], entries: int) -> "Masks":
        """Return all masks, where client i holds each entry with probability ``shares[i]``."""
        _check_shares(shares)
        require((entries <= MOST, f"Masks.bernoulli: {entries} entries have too many masks: draw some, Masks.drawn"))
        every = (torch.arange(2**entries)[:, None] >> torch.arange(entries)) & 1
        held, ones = every.double(), every.sum(-1)
        chances = torch.stack([share**ones * (1 - share) ** (entries - ones) for share in map(_exact, shares)])
        return cls(held.expand(len(shares), -1, -1), chances)

    @classmethod
    def drawn(cls, shares: Sequence[float], entries: int, draws: int, key: Key) -> "Masks":
        """Draw ``draws`` random masks per client, with equal probabilities."""
        _check_shares(shares)
        require((draws >= 1, f"Masks.drawn: draws must be at least 1, got {draws}"))
        noise = (uniform(fold(key, "masks", i), draws * entries, dtype=torch.float64) for i in range(len(shares)))
        held = [(draw < share).view(draws, entries) for draw, share in zip(noise, shares, strict=True)]
        return cls._even(torch.stack(held).double())

    @classmethod
    def windows(cls, sizes: Sequence[int], entries: int, offsets: int) -> "Masks":
        """Return ``offsets`` windows of ``sizes[i]`` neighbouring entries, with evenly spaced starts."""
        require(
            (offsets >= 1, f"Masks.windows: offsets must be at least 1, got {offsets}"),
            *((1 <= s <= entries, f"Masks.windows: sizes must be from 1 to {entries}, got {s}") for s in sizes),
        )
        starts = torch.arange(offsets) * entries // offsets
        ahead = (torch.arange(entries) - starts[:, None]) % entries
        return cls._even(torch.stack([ahead < size for size in sizes]).double())

    @classmethod
    def of_view(cls, view: View, like: Params, clients: int, draws: int = 1, key: Key | None = None) -> "Masks":
        """Return the masks of a view for each client, over tensors in name order: all windows, or ``draws`` draws."""
        at, rounds = key or make_key(0), draws
        if isinstance(view, Windows):
            require((not view.drawn, "Masks.of_view: windows of drawn capacities are not the same in every epoch"))
            view, rounds = replace(view, shuffled=False).filled(at=at), view.offsets
        masked = view

        def mask(client: int, number: int) -> Tensor:
            part = masked.part(like, Clock(number, rounds, client), fold(at, "view", client, number))
            return Layout.of(like).flatten(part.coverage(like)).double()

        return cls._even(torch.stack([torch.stack([mask(c, r) for r in range(rounds)]) for c in range(clients)]))

    @classmethod
    def _even(cls, held: Tensor) -> "Masks":
        return cls(held, torch.full(held.shape[:2], 1 / held.shape[1], dtype=torch.float64))

    @property
    def coverage(self) -> Tensor:
        """Mean over clients of the probability that each entry is held: p, or s / d, if equal for all entries."""
        return (self.chances[..., None] * self.held).sum(1).mean(0)

    @property
    def dropped(self) -> float:
        """Mean over clients of E|m - 1|^2, the number of entries not held: d (1 - p), or d - s."""
        return float((1 - self.coverage).sum())

    @property
    def largest(self) -> int:
        """d_m, the number of entries of the largest mask (Theorem 6)."""
        return int(self._possible.sum(-1).max())

    @property
    def farthest(self) -> int:
        """D_max, the maximum number of entries in which two masks of any clients differ (Theorem 6)."""
        masks = self._possible
        sizes = masks.sum(-1)
        return int((sizes[:, None] + sizes - 2 * masks @ masks.T).max())

    @property
    def _possible(self) -> Tensor:
        found: Tensor = torch.unique(self.held[self.chances > 0], dim=0)
        return found


def _check_shares(shares: Sequence[float]) -> None:
    require(*((0 < share <= 1, f"Masks: a share must be in (0, 1], got {share}") for share in shares))


def _exact(share: float) -> Tensor:
    return torch.tensor(share, dtype=torch.float64)
