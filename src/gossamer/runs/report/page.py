"""A run as one page: ``report.html``, which is self-contained.

The page is the template ``templates/page.html``. Charts are inline SVG. Nothing is loaded from elsewhere, and there are
no scripts. Every text is escaped, except for the HTML that reports return.

The partition is a figure: samples of each client by class, and the number of samples as bars above. With more than
``COLUMNS`` clients, neighbours share a column, which shows their mean.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gossamer.core import files
from gossamer.runs.records import Record, read_about, read_metrics
from gossamer.runs.report import plots, tables, virtual_time
from gossamer.runs.report.base import Folder, reports_of
from gossamer.runs.report.plots import Series, chart
from gossamer.runs.report.scores import Score, scores_of
from gossamer.runs.report.summary import anomaly_rows, reasons, summarise, totals
from gossamer.runs.report.targets import Target
from gossamer.runs.report.text import count, duration, number, percent, seconds, size, time_unit
from gossamer.tasks.data.splits import strata

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from gossamer.tasks.data.partition import Split
    from gossamer.tasks.data.samples import Data


NONE: Mapping[str, str] = MappingProxyType({})
LOSSES = (("test set", "loss"), ("in training", "train_loss"))
SETTINGS = (("Method", "method"), ("Task", "task"), ("Options", "options"), ("Machine", "machine"))
HEADLINE = ("clients", "rounds", "server", "schedule")
"""Facts below the title, after the task; the server if it is not that of the recipe, the schedule if there is one."""

NAMED = 8
"""The number of clients listed with a reason for failures."""


def write(folder: Folder, file: Path | None = None, targets: Sequence[Target] = ()) -> Path:
    """Write the page of a run to a file, by default in its folder; if the data is known, the partition is by class.

    The page shows what was spent until each of the ``targets`` was reached.
    """
    about, metrics = read_about(folder.path), read_metrics(folder.path)
    page = file or folder.path / "report.html"
    drawn = {report.heading: report.picture(folder, metrics) for report in reports_of(metrics)}
    pictures = {title: picture for title, picture in drawn.items() if picture}
    with files.on_failure(f"{page} was not written"):
        name = folder.path.resolve().name
        files.write(page, render(name, about, metrics, folder.split, folder.data, pictures, targets).encode())
    return page


def render(
    name: str,
    about: dict[str, Any],
    metrics: Sequence[Record],
    split: "Split",
    data: "Data | None",
    pictures: Mapping[str, str] = NONE,
    targets: Sequence[Target] = (),
) -> str:
    """Return the page as text.

    Args:
        name: the name of the run
        about: the contents of ``run.json``
        metrics: the records of all rounds
        split: the partition
        data: the data set, if it is known
        pictures: HTML of reports by title; each gets a section
        targets: targets whose costs are shown
    """
    summary = summarise(about, metrics)
    facts = dict(tables.facts(summary))
    group = "class" if data is None or data.classes else "quantile of the target"
    caption = "Samples by client" + (f" and {group}; the bars are samples by client" if data else "")
    lost = f"Lost messages: {text}." if (text := tables.lost_messages(summary)) else "No message was lost."
    if summary["empty_rounds"]:
        lost += f" In {count(summary['empty_rounds'], 'round')} nothing arrived, and the model did not change."
    return plots.render(
        "page.html",
        name=name,
        method=tables.method(summary),
        headline=" · ".join([facts["task"], *(f"{name}: {facts[name]}" for name in HEADLINE if name in facts)]),
        cards=[{"name": name, "value": value, "note": note} for name, value, note in _cards(summary)],
        charts=[drawn for drawn in _charts(metrics, scores_of(about["task"])) if drawn],
        virtual_time=virtual_time.section(about, metrics, targets),
        costs=[
            {"title": "Seconds by phase", "bars": _bars(totals(metrics, "seconds"), duration)},
            {"title": "Upload by kind", "bars": _bars(totals(metrics, "bytes_up"), size)},
            {"title": "Download by kind", "bars": _bars(totals(metrics, "bytes_down"), size)},
        ],
        failures=[_failure(reason, where) for reason, where in reasons(metrics)],
        lost=lost,
        anomalies=anomaly_rows(summary["anomalies"]),
        holdings=plots.framed(caption, holdings(split, data)),
        pictures=[{"title": title, "html": picture} for title, picture in pictures.items()],
        settings=[{"title": title, "facts": _facts(about[part])} for title, part in SETTINGS],
        version=about["machine"]["gossamer"],
    )


def _cards(summary: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Return the main numbers: name, value and note."""
    at = f"test set, round {summary['evaluated_round']}" if summary["evaluated_round"] else "not evaluated yet"
    score, *others = tables.scores(summary)
    shown = [
        (score.words, score.write(summary[score.name]), at),
        (f"personal {score.words}", score.write(summary[score.over_clients]), "mean over clients"),
        ("worst tenth", score.write(summary[score.worst_tenth]), "of clients, personal"),
        ("loss", number(summary["loss"]), at),
        *((other.words, other.write(summary[other.name]), at) for other in others),
        ("uploads", size(summary["bytes_up"]), "sent by clients"),
        ("downloads", size(summary["bytes_down"]), "sent to clients"),
        ("operations", tables.operations(summary), "training"),
        ("time", duration(summary["seconds"]), f"peak memory {size(summary['memory_bytes'])}"),
    ]
    if summary["joules"]:
        computing = f"{number(summary['energy']['computing'])} J of it for computing"
        used = computing if summary["energy"]["computing"] else "spent on sending"
        shown.append(("energy", f"{number(summary['joules'])} J", used))
    if summary["time"] is not None:
        idle = "" if summary["idle_share"] is None else f"{percent(summary['idle_share'])} of slots idle"
        shown.append(("virtual time", seconds(summary["time"]), idle))
    elif summary["delay"]:
        shown.append(("delay", duration(summary["delay"]), "computing and sending"))
    return shown


def _charts(metrics: Sequence[Record], scores: Sequence[Score]) -> list[str]:
    score, *others = scores
    by_round = [record["round"] for record in metrics]
    sent = list(accumulate(sum(record["bytes_up"].values()) for record in metrics))
    unit, scale = next(((u, s) for u, s in (("GB", 1e9), ("MB", 1e6)) if sent and sent[-1] >= s), ("kB", 1e3))
    charts = [chart(score.title + score.unit, "round", _values(metrics, by_round, score))]
    if sent and sent[-1]:
        uploaded = [total / scale for total in sent]
        title = f"{score.title}{score.unit} by upload"
        charts.append(chart(title, f"uploaded bytes ({unit})", _values(metrics, uploaded, score)))
    # What a channel or a schedule counts: its name, the label of its axis, and its sum after each round.
    joules, delay = (list(accumulate(record[name] for record in metrics)) for name in ("joules", "delay"))
    spent = [("energy", "spent by clients so far (J)", joules)] if joules and joules[-1] else []
    if delay and delay[-1] and "time" in metrics[-1]:
        unit, scale = time_unit(delay[-1])
        spent.append(("virtual time", f"virtual time so far ({unit})", [time / scale for time in delay]))
    elif delay and delay[-1]:
        spent.append(("time", "computing and sending so far (s)", delay))
    for cost, across, so_far in spent:
        charts.append(chart(f"{score.title}{score.unit} by {cost}", across, _values(metrics, so_far, score)))
    charts.append(chart("Loss", "round", [_series(metrics, by_round, *names) for names in LOSSES]))
    charts += [chart(other.title + other.unit, "round", _values(metrics, by_round, other)) for other in others]
    return charts + [drawn for report in reports_of(metrics) for drawn in report.charts(metrics)]


def _values(metrics: Sequence[Record], across: Sequence[float], score: Score) -> list[Series]:
    names = zip(("test set", "personal", "worst tenth"), score.entries, strict=True)
    return [_series(metrics, across, *each, score.scale) for each in names]


def _series(metrics: Sequence[Record], across: Sequence[float], name: str, field: str, times: float = 1) -> Series:
    found = [(x, record.get(field)) for x, record in zip(across, metrics, strict=True)]
    return Series(name, [(x, times * y) for x, y in found if y is not None])


def _bars(total: Counter[str], write: Callable[[float], str]) -> list[dict[str, str]]:
    most = max(total.values(), default=0)
    return [{"kind": kind, "width": f"{100 * n / most:.1f}", "value": write(n)} for kind, n in total.most_common() if n]


def _failure(reason: str, where: Sequence[tuple[int, int]]) -> dict[str, str]:
    clients = sorted({client for _, client in where})
    named = ", ".join(map(str, clients[:NAMED])) + (" and others" if len(clients) > NAMED else "")
    rounds = sorted({round_ for round_, _ in where})
    when = f"round {rounds[0]}" if len(rounds) == 1 else f"rounds {rounds[0]} to {rounds[-1]}"
    return {"times": count(len(where), "time"), "reason": reason, "where": f"clients {named}; {when}"}


def _facts(facts: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name.replace("_", " "), "none" if value is None else str(value)) for name, value in facts.items()]


WIDTH = 11.2
LEFT, RIGHT, BOTTOM = 0.5, 0.1, 0.45
BARS, GAP = 0.7, 0.1
COLUMNS = 200
SHAPES = 2000
"""Up to this many cells are shapes; beyond it, they are a bitmap."""

TITLE = "samples by client and class"
Floats = npt.NDArray[np.float64]


def holdings(split: "Split", data: "Data | None") -> str:
    """Return the partition as inline SVG; without the data, only the number of samples of each client."""
    return plots.inline(holdings_figure(split, data), TITLE)


def holdings_figure(split: "Split", data: "Data | None") -> "Figure":
    """Return the partition as a matplotlib figure: bars, and below them a heat map of classes."""
    counts = split.sizes()[:, None]
    if data is not None and data.classes != 1:
        groups = strata(data)
        counts = split.counts(groups.train, groups.number)
    each = -(-len(counts) // COLUMNS)  # clients per column, which shows their mean
    first = np.arange(0, len(counts), each)
    members = np.diff(np.append(first, len(counts)))
    shown = np.add.reduceat(counts.astype(np.float64), first, axis=0) / members[:, None]  # [columns, classes]
    classes = shown.shape[1] if shown.shape[1] > 1 else 0
    rows = classes * float(np.clip(2.6 / max(classes, 1), 0.02, 0.24))
    high = BOTTOM + rows + GAP * bool(classes) + BARS + 0.1
    wide = (WIDTH - LEFT - RIGHT) / WIDTH
    with plots.style():
        from matplotlib.figure import Figure
        from matplotlib.ticker import MaxNLocator

        drawn = Figure(figsize=(WIDTH, high))
        bars = drawn.add_axes((LEFT / WIDTH, 1 - (BARS + 0.1) / high, wide, BARS / high))
        bars.bar(np.arange(len(shown)), shown.sum(axis=1), width=0.8, color=plots.COLOURS[0], gid="bars")
        bars.set(xlim=(-0.5, len(shown) - 0.5), ylim=(0, max(float(shown.sum(axis=1).max()), 1.0)))
        bars.yaxis.set_major_locator(MaxNLocator(2, integer=True))
        bars.xaxis.set_major_locator(MaxNLocator(20, integer=True))
        bars.tick_params("x", labelbottom=not classes)
        plots.plain(bars)
        last = bars
        if classes:
            last = drawn.add_axes((LEFT / WIDTH, BOTTOM / high, wide, rows / high), sharex=bars)
            cells = np.ma.masked_equal(shown.T, 0)
            edges = (np.arange(len(shown) + 1) - 0.5, np.arange(classes + 1) - 0.5)
            last.pcolormesh(*edges, cells, cmap=plots.shades(), vmin=0, gid="cells", rasterized=cells.size > SHAPES)
            last.yaxis.set_major_locator(MaxNLocator(10, integer=True))
            plots.plain(last)
        last.xaxis.set_major_formatter(lambda column, _: f"{column * each:.0f}")
        last.set_xlabel("client" if each == 1 else f"client (one column is the mean of {each})")
    return drawn
