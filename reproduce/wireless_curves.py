"""Accuracy against what the devices spent: joules for sending, joules in all, and seconds; a line for each row."""

import io

import wireless_page as page
from cells import PAGES
from wireless_studies import TARGET

from gossamer.runs.report.curves import COLOURS

NAME = "wireless-compare.svg"
AXES = {"sending": "sending (J)", "computing": "computing (J)", "total": "both (J)", "delays": "time (s)"}
FLOOR = 50.0
"""What is below is not drawn."""


def draw() -> None:
    """Draw the picture anew, if there is a cell."""
    if kept := page.chosen():
        (PAGES / NAME).write_text(picture(kept))


def picture(kept: dict[str, page.Kept]) -> str:
    """All axes side by side, logarithmic: rows are orders of magnitude apart."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wireless", "font.size": 9}):
        figure = Figure(figsize=(9.6, 6.4), layout="constrained")
        for axes, (axis, name) in zip(figure.subplots(2, 2, sharey=True).flat, AXES.items(), strict=True):
            for (row, found), colour in zip(kept.items(), COLOURS, strict=False):
                axes.plot(page.spent(found, axis), found["accuracy"], color=colour, linewidth=1.3, label=row)
            axes.axhline(TARGET, color="#6b6b6b", linewidth=0.8, linestyle=":")
            axes.set(xscale="log", xlabel=name, ylim=(FLOOR, 85))
            axes.grid(color="#e3e6ea", linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)
        figure.supylabel("test accuracy (%)")
        figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n"
