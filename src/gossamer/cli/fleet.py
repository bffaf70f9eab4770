"""The command ``fleet``: sample, convert and show fleets, as text and as a picture."""

import argparse
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from gossamer.cli.common import Parser, check_folder, check_picture
from gossamer.cli.flags import value
from gossamer.core import files
from gossamer.core.errors import ConfigError, Mistakes, require
from gossamer.core.specs import unknown
from gossamer.fleet.converters import SAMPLE_FLOPS, read_fedscale, read_fedscale_capacity, read_flash
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.presets import PRESETS
from gossamer.fleet.summary import FleetSummary, histogram, summarise
from gossamer.fleet.units import read_speed
from gossamer.runs.report import text
from gossamer.runs.report.plots import COLOURS, GRID, plain, saved, style

TRACES = {"fedscale": read_fedscale, "flash": read_flash}
CAPACITY = "fedscale-capacity"

FORCE = "replace a file that exists"


def fleet(words: list[str]) -> int:
    """``gossamer fleet sample``, ``gossamer fleet show`` and ``gossamer fleet convert``."""
    parser = Parser(prog="gossamer fleet", description="Sample a fleet of devices, show one, or convert traces.")
    names = parser.add_subparsers(metavar="sample|show|convert", required=True)
    sample = names.add_parser("sample", help="write a fleet of plausible devices")
    sample.add_argument("preset", metavar="PRESET", help=f"kind of devices: {', '.join(PRESETS)}")
    sample.add_argument("--clients", metavar="N", required=True, help="number of clients")
    sample.add_argument("--out", metavar="FILE", required=True, help="file of the fleet, such as fleet.toml")
    sample.add_argument("--seed", metavar="S", default="0", help="seed of the devices (default: 0)")
    sample.add_argument("--force", action="store_true", help=FORCE)
    sample.set_defaults(do=_sample)
    show = names.add_parser("show", help="show the devices of a fleet: kinds, histograms, availability")
    show.add_argument("fleet", metavar="FLEET", help="file of a fleet")
    show.add_argument("--clients", metavar="N", help="number of clients (default: that of the fleet)")
    show.add_argument("--seed", metavar="S", default="0", help="seed of ranges and availability (default: 0)")
    show.add_argument("--json", action="store_true", help="print one JSON object")
    show.add_argument("--out", metavar="FILE", help="also draw a picture: a .png, .pdf or .svg file")
    show.set_defaults(do=_show)
    convert = names.add_parser("convert", help="convert traces of FedScale and FLASH")
    convert.add_argument("file", metavar="FILE", help="the trace")
    convert.add_argument(
        "--format", metavar="NAME", required=True, help=f"{', '.join(TRACES)}: availability; {CAPACITY}: devices"
    )
    convert.add_argument("--out", metavar="FILE", required=True, help="file to write: a .csv trace, or a .toml fleet")
    convert.add_argument(
        "--sample-flops",
        metavar="X",
        help=f"for {CAPACITY}: operations per sample of the measured model's forward pass "
        f"(default: {SAMPLE_FLOPS:g}, MobileNetV2)",
    )
    convert.add_argument("--force", action="store_true", help=FORCE)
    convert.set_defaults(do=_convert)
    arguments = parser.parse_args(words)
    status: int = arguments.do(arguments)
    return status


def _sample(arguments: argparse.Namespace) -> int:
    out, mistakes = Path(arguments.out), Mistakes()
    clients = mistakes.attempt(value, "--clients", arguments.clients, int)
    seed = mistakes.attempt(value, "--seed", arguments.seed, int)
    mistakes.attempt(check_new, out, arguments.force)
    if arguments.preset not in PRESETS:
        mistakes.note(unknown("fleet", arguments.preset, PRESETS))
    elif clients is not None and seed is not None:
        made = mistakes.attempt(Fleet.sample, arguments.preset, clients, seed)
    mistakes.settle()
    assert made is not None  # or there were mistakes
    command = f"gossamer fleet sample {arguments.preset} --clients {clients or 0} --seed {seed or 0} --out FILE"
    made.write(
        out,
        f"A fleet of plausible {arguments.preset}, made by: {command}\n"
        "docs/fleet.md has the keys, and the sources of the figures. Measure your own devices where they matter.",
    )
    kinds = text.count(len(made.devices), "kind")
    print(f"{text.count(made.clients, 'device')} of {kinds} in {out}; to look at them:")
    print(shlex.join(["gossamer", "fleet", "show", str(out)]))
    return 0


def _show(arguments: argparse.Namespace) -> int:
    mistakes = Mistakes()
    found = mistakes.attempt(Fleet.of_text, arguments.fleet)
    clients = mistakes.attempt(value, "--clients", arguments.clients, int | None) if arguments.clients else None
    seed = mistakes.attempt(value, "--seed", arguments.seed, int)
    if arguments.out:
        mistakes.attempt(check_picture, Path(arguments.out))
    mistakes.settle()
    assert found is not None  # or there were mistakes
    summary = summarise(found, clients, seed or 0)
    print(json.dumps(summary.plain(), indent=1) if arguments.json else shown(found, summary))
    if arguments.out:
        draw(summary, Path(arguments.out))
    if arguments.out and not arguments.json:
        print(f"\npicture in {arguments.out}")
    return 0


def _convert(arguments: argparse.Namespace) -> int:
    out, mistakes, known = Path(arguments.out), Mistakes(), (*TRACES, CAPACITY)
    mistakes.attempt(check_new, out, arguments.force)
    if arguments.format not in known:
        mistakes.note(unknown("format", arguments.format, known))
    if arguments.sample_flops is not None and arguments.format != CAPACITY:
        mistakes.note(f"--sample-flops has no effect here: it belongs to --format {CAPACITY}")
    flops = mistakes.attempt(_flops, arguments.sample_flops)
    mistakes.settle()
    if arguments.format == CAPACITY:
        made = read_fedscale_capacity(arguments.file, flops or SAMPLE_FLOPS)
        command = f"gossamer fleet convert --format {CAPACITY} --sample-flops {flops:g}"
        made.write(out, f"Devices of FedScale, made by: {command}")
        print(f"{text.count(made.clients, 'device')} of {text.count(len(made.devices), 'kind')} in {out}")
        return 0
    trace = TRACES[arguments.format](arguments.file)
    files.write(out, trace.csv().encode())
    lines = sum(len(times) for times, _ in trace.clients.values())
    rows = [("clients", f"{len(trace.clients):,}"), ("intervals", f"{lines:,}")]
    rows += [("available", f"{text.percent(trace.share)} of the time")]
    rows += [("left out", f"{text.count(count, 'client')} {reason}") for reason, count in trace.left_out.items()]
    rows += [("ignored", f"{name}, {text.count(count, 'time')}") for name, count in trace.notes.most_common(5)]
    print(f"{text.pairs(rows)}\n\ntrace in {out}; in a fleet file:\navailability = {json.dumps(f'trace:{out.name}')}")
    return 0


def _flops(given: str | None) -> float:
    try:
        return SAMPLE_FLOPS if given is None else read_speed(given)
    except ValueError:
        raise ConfigError(f"--sample-flops must be a positive number such as 6e8, got {given!r}") from None


def check_new(out: Path, force: bool) -> None:
    """Refuse to write over a file, and to write where there is no folder."""
    check_folder(out)
    require((force or not out.exists(), f"--out {out}: the file exists: choose another name, or add --force"))


WIDTH = 40
"""Characters of the longest bar."""


class Panel(NamedTuple):
    """A histogram."""

    field: str  # the field of the summary
    title: str  # the title
    written: Callable[[float], str]  # returns a value as text


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
            rows = []
            for bar in bars:
                low, high = panel.written(bar.low), panel.written(bar.high)
                label = low if bar.low == bar.high else f"{low} to {high}"
                rows.append((label, _bar(bar.clients / most), f"{bar.clients:,}"))
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
            unit = panel.written(0.0).split()[-1]
            axis.set(xscale="log", xlabel=f"{panel.title} ({unit})", ylabel="clients")
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
