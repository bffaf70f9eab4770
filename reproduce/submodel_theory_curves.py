"""The pictures of reproduce/submodel_theory.py, both axes logarithmic."""

import io
from collections.abc import Callable
from typing import Any

import cells
from submodel_theory_figures import BOTH, NAMES, Found, Mean, Row, by, predicted, stationarity
from submodel_theory_problem import posed

from gossamer.analysis.theory import residual
from gossamer.runs.report.curves import COLOURS


def draw(found: Found) -> None:
    """Draw all pictures anew."""
    _picture("distance", lambda axes: _distance(axes, found["distances"]))
    _picture("residual", lambda axes: _residual(axes, found["residuals"]))
    _picture("gradient", lambda axes: _gradient(axes, found["gradients"]))


def _picture(name: str, fill: Callable[[Any], None]) -> None:
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.size": 9}):
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        fill(axes)
        axes.set(xscale="log", yscale="log")
        axes.grid(color="#e3e6ea", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right center", frameon=False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    text = "\n".join(line.rstrip() for line in drawn.getvalue().splitlines())
    (cells.PAGES / f"submodel-theory-{name}.svg").write_text(text + "\n")


def _distance(axes: Any, rows: list[Row]) -> None:
    kinds = [(masks, noisy) for noisy in (False, True) for masks in BOTH]
    for (masks, noisy), colour in zip(kinds, COLOURS, strict=False):
        found = by(rows, "rounds", "late", masks=masks, noisy=noisy)
        label = f"{NAMES[masks]}, {'noisy' if noisy else 'full'} gradients"
        _means(axes, found, colour, label)
        if not noisy:
            at = posed(0.5, masks == "rolling")
            for style, name in (("--", "masks" if masks == "random" else "order"), (":", "drift")):
                ys = [predicted(at, int(rounds))[name] for rounds in found]
                theorem = "Theorem 3" if at.rolling else "repaired" if name == "masks" else "Theorem 1"
                axes.plot(list(found), ys, style, color=colour, linewidth=1, label=f"{theorem}, {name}")
    axes.set(xlabel="rounds", ylabel="squared distance to the masked optimum")


def _residual(axes: Any, rows: list[Row]) -> None:
    for masks, colour in zip(BOTH, COLOURS, strict=False):
        found = {1 - s: mean for s, mean in by(rows, "share", "output", masks=masks).items() if s < 1}
        _means(axes, found, colour, f"{NAMES[masks]}: excess risk")
        problems = [posed(1 - missing, masks == "rolling") for missing in found]
        exact = [at.excess(at.optimum) for at in problems]
        axes.plot(list(found), exact, ":", color=colour, linewidth=1.2, label="at the masked optimum")
    terms = [residual(at.setting) for at in problems]
    axes.plot(list(found), terms, "--", color="#6b6b6b", linewidth=1, label="residual term")
    axes.set(xlabel="share that is not held, 1 - p", ylabel="F - F*")


def _gradient(axes: Any, rows: list[Row]) -> None:
    for masks, colour in zip(BOTH, COLOURS, strict=False):
        found = by(rows, "rounds", "gradient", masks=masks)
        _means(axes, found, colour, NAMES[masks])
        sums = [sum(stationarity(posed(0.5, masks == "rolling"), int(r)).values()) for r in found]
        axes.plot(list(found), sums, "--", color=colour, linewidth=1, label=f"Theorem {4 if masks == 'rolling' else 2}")
    axes.set(xlabel="rounds", ylabel="mean squared gradient of the masked objective")


def _means(axes: Any, found: dict[float, Mean], colour: str, label: str) -> None:
    # An interval that reaches below zero is cut off where a logarithmic scale would lose it.
    low = [min(mean.half, 0.9 * mean.value) for mean in found.values()]
    bars = [low, [mean.half for mean in found.values()]]
    means = [mean.value for mean in found.values()]
    axes.errorbar(list(found), means, bars, fmt="o-", color=colour, markersize=4, linewidth=1.6, capsize=3, label=label)
