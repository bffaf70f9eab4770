"""How near to the mean gradient each decoder of one-bit measurements gets, by measurements and by sparsity.

    make reproduce WHAT=sensing-quality

Ten devices with gradients of 1,000 entries, a common part and 0.7 times one of their own, both of Student's t with 3
degrees of freedom, of which all keep the same entries or each keeps others. The cosine with the true mean gradient is
the mean over four draws; Hadamard measurements, and Gaussian ones where lines are thin. The picture goes to
docs/reproduction/sensing-quality.svg.
"""

import io
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import cells
import torch
from torch import Tensor

from gossamer.core.random import Key, fold, key, permutation
from gossamer.core.random.noise import draw
from gossamer.parts.codecs.sensing import KINDS, Kind, Matrix, Sensing, amp, back_projection, biht, least_squares, niht
from gossamer.runs.report.curves import COLOURS

ENTRIES, DEVICES, OWN, DRAWS = 1000, 10, 0.7, 4
RATIOS = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
PANELS = {
    "5 % kept, shared masks": (0.05, True),
    "30 % kept, shared masks": (0.3, True),
    "all kept": (1.0, True),
    "5 % kept, masks of their own": (0.05, False),
}


class Heard(NamedTuple):
    """What the server has: the matrix, each device's signs and norm, where entries are kept, and what is compressed."""

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
        """The mean of what devices' own signs are decoded to, times their norms."""
        found = [decode(self.phi, y, mask) for y, mask in zip(self.signs, self.held, strict=True)]
        return self.norms @ torch.stack(found)


def compressed(heard: Heard) -> Tensor:
    """Least squares where only kept entries are measured."""
    assert heard.small is not None
    phi, y = heard.small
    found = torch.zeros(ENTRIES)
    found[heard.held[0]] = least_squares(phi, y)
    return found


JOINT: dict[str, Callable[[Heard], Tensor]] = {
    "back-projection": lambda heard: back_projection(heard.phi, heard.mean),
    "the same, top-k": lambda heard: back_projection(heard.phi, heard.mean, keep=heard.k),
    "NIHT": lambda heard: niht(heard.phi, heard.mean, heard.k),
    "message passing": lambda heard: amp(heard.phi, heard.mean, heard.k),
    "back-projection, known mask": lambda heard: back_projection(heard.phi, heard.mean, support=heard.held.any(0)),
    "least squares, known mask": lambda heard: least_squares(heard.phi, heard.mean, support=heard.held.any(0)),
}
SHARED = {**JOINT, "the same, mask taken out first": compressed}
EACH: dict[str, Callable[[Heard], Tensor]] = {
    "BIHT, device by device": lambda heard: heard.each(lambda phi, y, mask: biht(phi, y, int(mask.sum()), steps=20)),
}
OWN_MASKS = {
    **JOINT,
    **EACH,
    "least squares, device by device": lambda heard: heard.each(lambda p, y, mask: least_squares(p, y, support=mask)),
}


def decoders(shared: bool) -> dict[str, Callable[[Heard], Tensor]]:
    return {**SHARED, **EACH} if shared else OWN_MASKS


NAMES = list(dict.fromkeys([*decoders(True), *decoders(False)]))


def student(at: Key, *shape: int) -> Tensor:
    """Student's t with 3 degrees of freedom."""
    z = draw("gauss", 1.0, at, 4 * math.prod(shape)).view(4, *shape)
    return z[0] / (z[1:].square().sum(0) / 3).sqrt()


def gradients(share: float, shared: bool, at: Key) -> tuple[Tensor, Tensor]:
    whole = student(fold(at, "common"), ENTRIES) + OWN * student(fold(at, "own"), DEVICES, ENTRIES)
    held = torch.zeros(DEVICES, ENTRIES, dtype=torch.bool)
    for device in range(DEVICES):
        places = permutation(fold(at, "mask", 0 if shared else device), ENTRIES)[: round(share * ENTRIES)]
        held[device, torch.from_numpy(places)] = True
    return whole * held, held


def signs(phi: Matrix, rows: Tensor) -> Tensor:
    return torch.stack([torch.where(phi.signs(row), 1.0, -1.0) for row in rows])


def heard(kind: Kind, rows: int, each: Tensor, held: Tensor, shared: bool, at: Key) -> Heard:
    phi, small = Sensing(kind, rows=rows).matrix(ENTRIES, at), None
    if shared:
        matrix = Sensing(kind, rows=rows).matrix(int(held[0].sum()), at)
        small = matrix, signs(matrix, each[:, held[0]]).mean(0)
    return Heard(phi, signs(phi, each), each.norm(dim=1), held, small)


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


def quality(kind: Kind, ratio: float, share: float, shared: bool, names: Sequence[str]) -> dict[str, float]:
    """The mean cosine by each decoder."""
    found: dict[str, float] = dict.fromkeys(names, 0.0)
    for number in range(DRAWS):
        at = fold(key(3), number)
        each, held = gradients(share, shared, at)
        told = heard(kind, round(ratio * ENTRIES), each, held, shared, fold(at, "phi"))
        for name in names:
            found[name] += cosine(decoders(shared)[name](told), each.mean(0)) / DRAWS
    return found


# The picture.


def panel(axes: Any, title: str, share: float, shared: bool) -> None:
    for kind in KINDS:
        names = [name for name in decoders(shared) if kind == "hadamard" or name not in EACH]
        if share == 1:  # where there is no mask, to know it makes no difference
            names = [name for name in names if "mask" not in name or name == "least squares, known mask"]
        columns = [quality(kind, ratio, share, shared, names) for ratio in RATIOS]
        for name in names:
            width, style = (1.6, "o-") if kind == "hadamard" else (0.7, "--")
            colour = (*COLOURS, "#000000")[NAMES.index(name)]
            axes.plot(RATIOS, [c[name] for c in columns], style, color=colour, linewidth=width, markersize=3)
    axes.set(xscale="log", title=title, ylim=(0, 1))
    axes.set_xticks(RATIOS, [f"{ratio:g}" for ratio in RATIOS], minor=False)
    axes.minorticks_off()
    axes.grid(color="#e3e6ea", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)


def main() -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "sensing", "font.size": 9}):
        figure = Figure(figsize=(7.6, 7.0), layout="constrained")
        grid = figure.subplots(2, 2, sharex=True, sharey=True)
        for axes, (title, (share, shared)) in zip(grid.flat, PANELS.items(), strict=True):
            panel(axes, title, share, shared)
        for name, colour in zip(NAMES, (*COLOURS, "#000000"), strict=True):
            grid[0, 0].plot([], [], "o-", color=colour, label=name, linewidth=1.6, markersize=3)
        for axes in grid[1]:
            axes.set_xlabel("measurements for each entry, S / N")
        figure.supylabel("cosine with the true mean gradient")
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = "\n".join(line.rstrip() for line in drawn.getvalue().splitlines())
    (cells.PAGES / "sensing-quality.svg").write_text(text + "\n")


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
