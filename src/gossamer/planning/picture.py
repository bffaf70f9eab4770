"""The trade-off as a picture: how the bound, outages and pruning change with the energy that clients may spend."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gossamer import files
from gossamer.planning.plan import Plan
from gossamer.report.curves import COLOURS, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw(energies: Sequence[float], plans: Sequence[Plan | None], chosen: float, path: Path) -> None:
    """Draw to a picture file, in the format of its ending; ``chosen`` is the budget that is marked."""
    drawn = io.BytesIO()
    figure(energies, plans, chosen).savefig(drawn, dpi=150, format=path.suffix[1:].lower())
    files.write(path, drawn.getvalue())


def figure(energies: Sequence[float], plans: Sequence[Plan | None], chosen: float) -> "Figure":
    """The bound on the left, means over clients on the right; where there is no plan, nothing."""
    from matplotlib.figure import Figure  # here, so that the core needs torch and numpy alone; no global state

    found = [(energy, plan) for energy, plan in zip(energies, plans, strict=True) if plan is not None]
    at = [energy for energy, _ in found]
    picture = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = picture.subplots(1, 2)
    left.plot(at, [plan.bound for _, plan in found], color=COLOURS[0], marker="o", markersize=4)
    left.set(ylabel="bound: what the plan adds to it")
    outages = [100 * sum(share.outage for share in plan.clients) / len(plan.clients) for _, plan in found]
    ratios = [100 * sum(plan.ratios) / len(plan.ratios) for _, plan in found]
    right.plot(at, outages, color=COLOURS[1], marker="o", markersize=4, label="lost messages")
    right.plot(at, ratios, color=COLOURS[2], marker="o", markersize=4, label="pruned weights")
    right.set(ylabel="mean over clients (%)", ylim=(0, None))
    right.legend(frameon=False, labelcolor=INK)
    for axes in (left, right):
        _dress(axes, energies, at, chosen)
    return picture


def _dress(axes: "Axes", energies: Sequence[float], at: Sequence[float], chosen: float) -> None:
    axes.set(xscale="log", xlabel="energy a client may spend in a round (J)", xlim=(min(energies), max(energies)))
    axes.axvline(chosen, color="#9aa5b1", linewidth=1, linestyle=(0, (4, 3)))
    if at[:1] != list(energies[:1]):
        axes.axvspan(min(energies), at[0] if at else max(energies), color="#eef1f5")
        axes.text(0.02, 0.03, "no plan", transform=axes.transAxes, color=INK)
    axes.grid(color="#e3e6ea", linewidth=0.8)
    axes.tick_params(color=INK, labelcolor=INK)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#9aa5b1")
