"""Tables and the plot of the stability study: means over seeds, next to the leading terms of the theorems."""

from typing import TYPE_CHECKING, Any

from reproduce.common import plots, tables
from reproduce.common.store import Facts
from reproduce.submodel.theory_page import BOTH, NAMES, Found, by, errors, slopes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PLOT = "submodel-stability.svg"
RATES = {False: "that of the theorems", True: "fixed"}


def page(found: Found) -> str:
    """Return the generated part of the page."""
    parts = [
        ("Distance and number of samples", points_table(found["points"])),
        ("Distance and held share", shares_table(found["shares"])),
        ("Slopes", slope_table(found)),
    ]
    text = "\n\n".join(f"## {title}\n\n{table}" for title, table in parts)
    return f"{text}\n\n{tables.picture('Distance by number of samples and by held share', PLOT)}"


def points_table(rows: list[Facts]) -> str:
    """Return the distance by N n, next to the leading terms."""
    body = []
    for fixed, rate in RATES.items():
        for masks in BOTH:
            wanted: dict[str, Any] = {"masks": masks, "fixed": fixed}
            for clients, samples in sorted({(row["clients"], row["samples"]) for row in rows}, key=_points):
                one = {**wanted, "clients": clients, "samples": samples}
                body.append([NAMES[masks], rate, f"{clients}", f"{samples}", *_both(rows, "points", one)])
    return tables.markdown(["masks", "rate", "clients", "samples per client", "N n", "distance", "leading terms"], body)


def shares_table(rows: list[Facts]) -> str:
    """Return the distance by held share, next to the leading terms."""
    kinds = [(masks, share) for masks in BOTH for share in sorted({row["share"] for row in rows})]
    body = [[NAMES[masks], *_both(rows, "share", {"masks": masks, "share": share})] for masks, share in kinds]
    return tables.markdown(["masks", "p, or d_m / d", "distance", "leading terms"], body)


def slope_table(found: Found) -> str:
    """Return the slopes of the logarithms, measured and of the leading terms."""
    body = []
    for fixed, rate in RATES.items():
        for masks in BOTH:
            mine = [row for row in found["points"] if (row["masks"], row["fixed"]) == (masks, fixed)]
            body.append([NAMES[masks], "N n", rate, *_slopes(mine, "points"), "-0.50" if not fixed else "-1.00"])
    for masks in BOTH:
        for kind, low, high in (("up to 1/2", 0.0, 0.5), ("from 1/2", 0.5, 1.0)):
            mine = [row for row in found["shares"] if row["masks"] == masks and low <= row["share"] <= high]
            body.append([NAMES[masks], f"held share, {kind}", RATES[False], *_slopes(mine, "share"), ""])
    return tables.markdown(
        ["masks", "against", "rate", "measured slope", "of the leading terms", "of a bound's weight"], body
    )


def _points(pair: tuple[int, int]) -> tuple[int, int]:
    return pair[0] * pair[1], pair[0]


def _both(rows: list[Facts], across: str, wanted: dict[str, Any]) -> list[str]:
    ((point, distance),) = by(rows, across, "distance", **wanted).items()
    (leading,) = by(rows, across, "leading", **wanted).values()
    return [f"{point:g}", str(distance), f"{leading.value:.2e}"]


def _slopes(rows: list[Facts], across: str) -> list[str]:
    means = [slopes(rows, figure, across) for figure in ("distance", "leading")]
    return [f"{mean.value:.2f} ± {mean.half:.2f}" for mean in means]


def draw(found: Found) -> None:
    """Draw the three panels, both axes logarithmic."""

    def fill(figure: "Figure") -> None:
        axes = figure.subplots(1, 3, sharey=True)
        for ax, fixed in zip(axes, RATES, strict=False):
            rows = [row for row in found["points"] if row["fixed"] == fixed]
            _panel(ax, rows, "points", "N n, rate of the theorems" if not fixed else "N n, fixed rate")
        _panel(axes[2], found["shares"], "share", "held share: p, or d_m / d")
        axes[0].set_ylabel("distance of the two models")
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)

    plots.draw(PLOT, (9.6, 4.0), fill)


def _panel(axes: "Axes", rows: list[Facts], across: str, label: str) -> None:
    for masks, colour in zip(BOTH, plots.COLOURS, strict=False):
        means = dict(sorted(by(rows, across, "distance", masks=masks).items()))
        errors(axes, means, colour, f"{NAMES[masks]}, measured")
        leading = dict(sorted(by(rows, across, "leading", masks=masks).items()))
        theorem = "Theorem 6" if masks == "rolling" else "Theorem 5"
        axes.plot(list(leading), [m.value for m in leading.values()], "--", color=colour, linewidth=1, label=theorem)
    axes.set(xscale="log", yscale="log", xlabel=label)
    plots.dress(axes)
