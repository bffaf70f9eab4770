"""Where nobody knows which entries are zero, and measurements are few: approximate message passing.

The measurements, sent back, are each entry of the vector plus noise that looks normal: r = d + tau N(0, 1), because all
other entries add to it. Whoever knows how entries are distributed can take the best guess at each from r, measure that,
send back what is left, and has less noise the next time (Donoho, Maleki and Montanari, 2009). So that the noise stays
normal, what the guess has already used must not come back. For independent entries that is done by adding to what is
left a share of what was left before. For rows of a rotation it is done by taking out of the guess what is merely
proportional to r (orthogonal message passing, Ma and Ping, 2017).

How entries are distributed is learned on the way: a mixture of zeros and of normal variables on a ladder of variances,
whose shares are fitted to r in each step. So nothing need be known of the tails, and hardly anything of k: it is where
the fit starts from.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from gossamer.parts.codecs.sensing.decode import linear
from gossamer.parts.codecs.sensing.matrix import Matrix

LADDER = tuple(4.0**step for step in range(-2, 4))
"""Variances of entries that are not zero, over their mean square."""
MOST = 0.99  # the largest share of entries that are not zero, to start from
STEEPEST = 0.95  # the largest slope of a guess, which is taken out of it by division
SAMPLE, SWEEPS = 2**14, 4  # how many entries shares are fitted to at most, and how often in each step
CHUNK = 2**15  # how many entries are guessed at a time: few enough to stay in a cache


def amp(phi: Matrix, y: Tensor, k: int, *, steps: int = 12) -> Tensor:
    """The mean direction from a mean of signs, if about ``k`` of its entries are not zero."""
    wanted = linear(phi, y)
    energy = float(wanted @ wanted)
    x = torch.zeros(phi.size, dtype=y.dtype, device=y.device)
    if energy == 0:
        return x
    mixture = GaussianMixture.start(energy / phi.size, min(MOST, max(1, k) / phi.size), x)
    guess, left, least = x, wanted, math.inf
    for _ in range(steps):
        noise = _noise(phi, left, energy)
        if noise > 1.1 * least:
            break  # what comes back is no longer normal noise, and guesses would get worse and worse
        r, least = x + phi.back(left), min(least, noise)
        guess, slope, mixture = mixture.guess(r, noise)
        if phi.independent:
            x, left = guess, wanted - phi.measure(guess) + slope * phi.size / phi.rows * left
        else:
            x = (guess - slope * r) / (1 - slope)
            left = wanted - phi.measure(x)
    return guess


def _noise(phi: Matrix, left: Tensor, energy: float) -> float:
    """The variance of the noise in each entry: that of the signs, and what the other entries add."""
    size = float(left @ left)
    own = min((1 - 2 / math.pi) * energy, size)  # as for one device
    return phi.overlap * (size - own) / phi.size + own / phi.rows


@dataclass(frozen=True, eq=False)
class GaussianMixture:
    """How entries are distributed: zeros, and normal variables of some variances.

    Args:
        variances: of each kind of entry, the first of them 0
        shares: how many entries are of each kind
    """

    variances: Tensor
    shares: Tensor

    @classmethod
    def start(cls, square: float, share: float, like: Tensor) -> "GaussianMixture":
        """For entries of that mean square, of which a share is not zero; each step of the ladder adds as much to it."""
        total = sum(1 / step for step in LADDER)
        variances = [0.0, *(square / share * step for step in LADDER)]
        shares = [1 - share, *(share / step / total for step in LADDER)]
        return cls(like.new_tensor(variances), like.new_tensor(shares))

    def guess(self, r: Tensor, noise: float) -> tuple[Tensor, float, "GaussianMixture"]:
        """The mean of each entry given r, how fast it grows with r on average, and the mixture fitted to r."""
        fitted = self._fitted(r[:: -(-len(r) // SAMPLE)], noise)
        pieces = [fitted._guess(piece, noise) for piece in torch.split(r, CHUNK)]
        guesses, slopes = zip(*pieces, strict=True)
        slope = min(STEEPEST, float(torch.stack(slopes).sum()) / len(r))
        return torch.cat(guesses), slope, fitted

    def _fitted(self, r: Tensor, noise: float) -> "GaussianMixture":
        """The mixture with shares under which r is likelier."""
        found = self
        for _ in range(SWEEPS):
            found = GaussianMixture(self.variances, found._chances(r, noise).mean(1))
        return found

    def _chances(self, r: Tensor, noise: float) -> Tensor:
        """Of each kind, as rows, for each entry."""
        spread = (self.variances + noise).view(-1, 1)
        prior = self.shares.clamp(min=torch.finfo(r.dtype).tiny).log().view(-1, 1) - 0.5 * spread.log()
        return torch.softmax(prior - r.square() * (0.5 / spread), 0)

    def _guess(self, r: Tensor, noise: float) -> tuple[Tensor, Tensor]:
        """The guesses for a piece of r, and the sum of their slopes."""
        chances, part = self._chances(r, noise), self.variances / (self.variances + noise)
        gain = part @ chances
        # The derivative of a posterior mean is the posterior variance over that of the noise.
        slope = gain + r.square() / noise * (part.square() @ chances - gain.square())
        return gain * r, slope.sum()
