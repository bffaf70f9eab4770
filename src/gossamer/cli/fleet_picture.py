"""A fleet as text and as a picture: its kinds, histograms, and the share of clients that are available by hour."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gossamer.core import files
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.summary import Bin, FleetSummary, histogram
from gossamer.runs.report import text
from gossamer.runs.report.plots import COLOURS, GRID, plain, saved, style

WIDTH = 40
"""Characters of the longest bar."""


class Panel(NamedTuple):
    """A histogram.

    Args:
        field: the field of the summary
        title: the title
        written: returns a value as text
    """

    field: str
    title: str
    written: Callable[[float], str]


PANELS = (
    Panel("flops", "speed", lambda x: f"{text.amount(x)}FLOPS"),
    Panel("memory", "memory for training", text.size),
    Panel("up", "upload rate", lambda x: f"{text.amount(x)}bit/s"),
    Panel("down", "download rate", lambda x: f"{text.amount(x)}bit/s"),
)


def shown(fleet: Fleet, summary: FleetSummary) -> str:
    """Return tables and histograms of a fleet."""
    head = ("device", "clients", "memory", "speed", "up", "down", "availability")
    blocks = [text.table(head, [_row(kind) for kind in summary.kinds])]
    for panel in PANELS:
        if values := getattr(summary, panel.field):
            bars = histogram(values)
            most = max(bar.clients for bar in bars)
            rows = [(_label(bar, panel.written), _bar(bar.clients / most), f"{bar.clients:,}") for bar in bars]
            blocks.append(_chart(f"{panel.title}, clients", rows))
    hours = [(f"{hour:02}:00", _bar(share), text.percent(share)) for hour, share in enumerate(summary.available)]
    blocks.append(_chart("share of clients that are available, by hour (UTC)", hours))
    return "\n\n".join(blocks)


def _row(kind: dict[str, object]) -> tuple[str, ...]:
    memory, flops = kind["memory"], kind["flops"]
    assert isinstance(flops, float)
    size = text.size(memory) if isinstance(memory, int) else text.BLANK
    return (
        str(kind["name"]),
        str(kind["clients"]),
        size,
        f"{text.amount(flops)}FLOPS",
        *(str(kind[name]) for name in ("up", "down", "availability")),
    )


def _label(bar: Bin, written: Callable[[float], str]) -> str:
    return written(bar.low) if bar.low == bar.high else f"{written(bar.low)} to {written(bar.high)}"


def _bar(share: float) -> str:
    return "█" * round(WIDTH * share) or ("▏" if share else "")


def _chart(title: str, rows: list[tuple[str, str, str]]) -> str:
    label, number = (max(len(row[place]) for row in rows) for place in (0, 2))
    lines = [f"  {name:>{label}}  {count:>{number}}  {bar}".rstrip() for name, bar, count in rows]
    return "\n".join([title, *lines])


def draw(summary: FleetSummary, path: Path) -> None:
    """Draw histograms and the share of available clients to a file."""
    with style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter, LogLocator

        panels = [panel for panel in PANELS if getattr(summary, panel.field)]
        figure = Figure(figsize=(9, 5), layout="constrained")
        axes = figure.subplots(2, 3).flat
        for panel, axis in zip(panels, axes, strict=False):
            bars = histogram(getattr(summary, panel.field), 12)
            widths = [bar.high - bar.low or bar.low for bar in bars]
            lows, counts = [bar.low for bar in bars], [bar.clients for bar in bars]
            axis.bar(lows, counts, widths, align="edge", color=COLOURS[0], edgecolor="white")
            axis.set(xscale="log", xlabel=_axis(panel), ylabel="clients")
            axis.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
            axis.minorticks_off()
        shares = [100 * share for share in summary.available]
        axes[len(panels)].bar(range(24), shares, 1.0, align="edge", color=COLOURS[1], edgecolor="white")
        axes[len(panels)].set(xlim=(0, 24), ylim=(0, 100), xlabel="hour of the day, UTC", ylabel="available, %")
        for number, axis in enumerate(axes):
            axis.grid(axis="y", color=GRID)
            plain(axis)
            axis.set_visible(number <= len(panels))
    files.write(path, saved(figure, path.suffix[1:].lower(), dpi=150))


def _axis(panel: Panel) -> str:
    unit = panel.written(0.0).split()[-1]
    return f"{panel.title} ({unit})"
