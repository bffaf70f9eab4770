"""Quality of the decoders of one-bit measurements, by number of measurements and by sparsity.

    make reproduce WHAT=sensing-quality

Ten devices have gradients of 1,000 entries: a common part, and 0.7 times an individual part. Both follow Student's t
with 3 degrees of freedom. All devices keep the same entries, or each keeps its own. The quality is the cosine with the
true mean gradient, averaged over four draws. Thick lines are Hadamard measurements, thin lines Gaussian ones. The plot
goes to docs/reproduction/sensing-quality.svg.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from gossamer.core.random import Key, fold, key, permutation
from gossamer.core.random.noise import draw
from gossamer.parts.codecs.reconstruction import amp, back_projection, biht, least_squares, niht
from gossamer.parts.codecs.sensing import KINDS, Kind, Matrix, Sensing
from reproduce.common import plots

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLOT = "sensing-quality.svg"
ENTRIES, DEVICES, OWN, DRAWS = 1000, 10, 0.7, 4
RATIOS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
PANELS = {
    "5 % kept, shared masks": (0.05, True),
    "30 % kept, shared masks": (0.3, True),
    "all kept": (1.0, True),
    "5 % kept, separate masks": (0.05, False),
}


class Received(NamedTuple):
    """What the server has.

    Args:
        phi: the measurement matrix
        signs: the signs of each device
        norms: the gradient norm of each device
        held: which entries each device keeps
        small: matrix and mean signs of measurements of the kept entries only, for shared masks
    """

    phi: Matrix
    signs: Tensor
    norms: Tensor
    held: Tensor
    small: tuple[Matrix, Tensor] | None

    @property
    def mean(self) -> Tensor:
        return self.signs.mean(0)

    @property
    def k(self) -> int:
        return int(self.held.any(0).sum())

    def each(self, decode: Callable[[Matrix, Tensor, Tensor], Tensor]) -> Tensor:
        """Decode each device's signs, scale by its norm, and return the sum."""
        found = [decode(self.phi, y, mask) for y, mask in zip(self.signs, self.held, strict=True)]
        return self.norms @ torch.stack(found)


def compressed(given: Received) -> Tensor:
    """Return least squares for measurements of the kept entries only."""
    assert given.small is not None
    phi, y = given.small
    found = torch.zeros(ENTRIES)
    found[given.held[0]] = least_squares(phi, y)
    return found


JOINT: dict[str, Callable[[Received], Tensor]] = {
    "back-projection": lambda given: back_projection(given.phi, given.mean),
    "back-projection, top-k": lambda given: back_projection(given.phi, given.mean, keep=given.k),
    "NIHT": lambda given: niht(given.phi, given.mean, given.k),
    "message passing": lambda given: amp(given.phi, given.mean, given.k),
    "back-projection, known mask": lambda given: back_projection(given.phi, given.mean, support=given.held.any(0)),
    "least squares, known mask": lambda given: least_squares(given.phi, given.mean, support=given.held.any(0)),
}
SHARED = {**JOINT, "least squares, kept entries measured": compressed}
EACH: dict[str, Callable[[Received], Tensor]] = {
    "BIHT, device by device": lambda given: given.each(lambda phi, y, mask: biht(phi, y, int(mask.sum()), steps=20)),
}
OWN_MASKS = {
    **JOINT,
    **EACH,
    "least squares, device by device": lambda given: given.each(lambda p, y, mask: least_squares(p, y, support=mask)),
}


def decoders(shared: bool) -> dict[str, Callable[[Received], Tensor]]:
    return {**SHARED, **EACH} if shared else OWN_MASKS


NAMES = list(dict.fromkeys([*decoders(True), *decoders(False)]))
COLOURS = dict(zip(NAMES, (*plots.COLOURS, "#000000"), strict=True))
MASKED = {"back-projection, known mask", "least squares, kept entries measured"}


def student(at: Key, *shape: int) -> Tensor:
    """Draw from Student's t with 3 degrees of freedom."""
    z = draw("gauss", 1.0, at, 4 * math.prod(shape)).view(4, *shape)
    return z[0] / (z[1:].square().sum(0) / 3).sqrt()


def gradients(share: float, shared: bool, at: Key) -> tuple[Tensor, Tensor]:
    whole = student(fold(at, "common"), ENTRIES) + OWN * student(fold(at, "own"), DEVICES, ENTRIES)
    held = torch.zeros(DEVICES, ENTRIES, dtype=torch.bool)
    for device in range(DEVICES):
        indices = permutation(fold(at, "mask", 0 if shared else device), ENTRIES)[: round(share * ENTRIES)]
        held[device, torch.from_numpy(indices)] = True
    return whole * held, held


def signs(phi: Matrix, rows: Tensor) -> Tensor:
    return torch.stack([torch.where(phi.signs(row), 1.0, -1.0) for row in rows])


def received(kind: Kind, rows: int, each: Tensor, held: Tensor, shared: bool, at: Key) -> Received:
    phi, small = Sensing(kind, rows=rows).matrix(ENTRIES, at), None
    if shared:
        matrix = Sensing(kind, rows=rows).matrix(int(held[0].sum()), at)
        small = matrix, signs(matrix, each[:, held[0]]).mean(0)
    return Received(phi, signs(phi, each), each.norm(dim=1), held, small)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


def quality(kind: Kind, ratio: float, share: float, shared: bool, names: Sequence[str]) -> dict[str, float]:
    """Return the mean cosine by decoder."""
    found: dict[str, float] = dict.fromkeys(names, 0.0)
    for number in range(DRAWS):
        at = fold(key(3), number)
        each, held = gradients(share, shared, at)
        given = received(kind, round(ratio * ENTRIES), each, held, shared, fold(at, "phi"))
        for name in names:
            found[name] += cosine(decoders(shared)[name](given), each.mean(0)) / DRAWS
    return found


# The plot.


def panel(axes: "Axes", title: str, share: float, shared: bool) -> None:
    for kind in KINDS:
        names = [name for name in decoders(shared) if kind == "hadamard" or name not in EACH]
        if share == 1:  # without a mask, decoders with a known mask coincide
            names = [name for name in names if name not in MASKED]
        columns = [quality(kind, ratio, share, shared, names) for ratio in RATIOS]
        for name in names:
            width, style = (1.6, "o-") if kind == "hadamard" else (0.7, "--")
            axes.plot(RATIOS, [c[name] for c in columns], style, color=COLOURS[name], linewidth=width, markersize=3)
    axes.set(xscale="log", title=title, ylim=(0, 1))
    axes.set_xticks(RATIOS, [f"{ratio:g}" for ratio in RATIOS], minor=False)
    axes.minorticks_off()
    plots.dress(axes)


def fill(figure: "Figure") -> None:
    grid = figure.subplots(2, 2, sharex=True, sharey=True)
    for axes, (title, (share, shared)) in zip(grid.flat, PANELS.items(), strict=True):
        panel(axes, title, share, shared)
    for name, colour in COLOURS.items():
        grid[0, 0].plot([], [], "o-", color=colour, label=name, linewidth=1.6, markersize=3)
    for axes in grid[1]:
        axes.set_xlabel("measurements per entry, S / N")
    figure.supylabel("cosine with the true mean gradient")
    figure.legend(loc="outside lower center", ncols=2, frameon=False)


def main(argv: Sequence[str] | None = None) -> None:
    """Measure the quality and draw the plot."""
    argparse.ArgumentParser(description="Compare the decoders of one-bit measurements.").parse_args(argv)
    torch.set_num_threads(1)
    plots.draw(PLOT, (7.6, 7.0), fill)


if __name__ == "__main__":
    main()
