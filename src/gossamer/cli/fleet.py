"""The command ``fleet``: sample, show and convert fleets."""

import argparse
import json
import shlex
from pathlib import Path

from gossamer.cli.common import check_folder, check_picture
from gossamer.cli.flags import value
from gossamer.cli.fleet_picture import draw, shown
from gossamer.cli.parser import Parser
from gossamer.core import files
from gossamer.core.errors import ConfigError, Mistakes, require
from gossamer.core.specs import unknown
from gossamer.fleet.converters import SAMPLE_FLOPS, ConvertedTrace, read_fedscale, read_fedscale_capacity, read_flash
from gossamer.fleet.fleet import Fleet
from gossamer.fleet.presets import PRESETS
from gossamer.fleet.summary import summarise
from gossamer.fleet.units import read_speed
from gossamer.runs.report import text

TRACES = {"fedscale": read_fedscale, "flash": read_flash}
CAPACITY = "fedscale-capacity"
FORCE = "replace a file that exists"


def fleet(words: list[str]) -> int:
    """``gossamer fleet sample``, ``gossamer fleet show`` and ``gossamer fleet convert``."""
    parser = Parser(prog="gossamer fleet", description="Sample a fleet of devices, show one, or convert traces.")
    names = parser.add_subparsers(metavar="sample|show|convert", required=True)
    _sample_parser(names.add_parser("sample", help="write a fleet of plausible devices"))
    _show_parser(names.add_parser("show", help="show the devices of a fleet: kinds, histograms, availability"))
    _convert_parser(names.add_parser("convert", help="convert traces of FedScale and FLASH"))
    arguments = parser.parse_args(words)
    status: int = arguments.do(arguments)
    return status


def _sample_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", metavar="PRESET", help=f"kind of devices: {', '.join(PRESETS)}")
    parser.add_argument("--clients", metavar="N", required=True, help="number of clients")
    parser.add_argument("--out", metavar="FILE", required=True, help="file of the fleet, such as fleet.toml")
    parser.add_argument("--seed", metavar="S", default="0", help="seed of the devices (default: 0)")
    parser.add_argument("--force", action="store_true", help=FORCE)
    parser.set_defaults(do=_sample)


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
    made.write(out, _comment(arguments.preset, clients or 0, seed or 0))
    kinds = text.count(len(made.devices), "kind")
    print(f"{text.count(made.clients, 'device')} of {kinds} in {out}; to look at them:")
    print(shlex.join(["gossamer", "fleet", "show", str(out)]))
    return 0


def _comment(preset: str, clients: int, seed: int) -> str:
    command = f"gossamer fleet sample {preset} --clients {clients} --seed {seed} --out FILE"
    return (
        f"A fleet of plausible {preset}, made by: {command}\n"
        "docs/fleet.md has the keys, and the sources of the figures. Measure your own devices where they matter."
    )


def _show_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("fleet", metavar="FLEET", help="file of a fleet")
    parser.add_argument("--clients", metavar="N", help="number of clients (default: that of the fleet)")
    parser.add_argument("--seed", metavar="S", default="0", help="seed of ranges and availability (default: 0)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", metavar="FILE", help="also draw a picture: a .png, .pdf or .svg file")
    parser.set_defaults(do=_show)


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


def _convert_parser(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="the trace")
    parser.add_argument(
        "--format", metavar="NAME", required=True, help=f"{', '.join(TRACES)}: availability; {CAPACITY}: devices"
    )
    parser.add_argument("--out", metavar="FILE", required=True, help="file to write: a .csv trace, or a .toml fleet")
    parser.add_argument(
        "--sample-flops",
        metavar="X",
        help=f"for {CAPACITY}: operations per sample of the measured model's forward pass "
        f"(default: {SAMPLE_FLOPS:g}, MobileNetV2)",
    )
    parser.add_argument("--force", action="store_true", help=FORCE)
    parser.set_defaults(do=_convert)


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
    print(_converted(trace, out))
    return 0


def _flops(given: str | None) -> float:
    try:
        return SAMPLE_FLOPS if given is None else read_speed(given)
    except ValueError:
        raise ConfigError(f"--sample-flops must be a positive number such as 6e8, got {given!r}") from None


def _converted(trace: ConvertedTrace, out: Path) -> str:
    lines = sum(len(times) for times, _ in trace.clients.values())
    rows = [("clients", f"{len(trace.clients):,}"), ("intervals", f"{lines:,}")]
    rows += [("available", f"{text.percent(trace.share)} of the time")]
    rows += [("left out", f"{text.count(count, 'client')} {reason}") for reason, count in trace.left_out.items()]
    rows += [("ignored", f"{name}, {text.count(count, 'time')}") for name, count in trace.notes.most_common(5)]
    return f"{text.pairs(rows)}\n\ntrace in {out}; in a fleet file:\navailability = {json.dumps(f'trace:{out.name}')}"


def check_new(out: Path, force: bool) -> None:
    """Refuse to write over a file, and to write where there is no folder."""
    check_folder(out)
    require((force or not out.exists(), f"--out {out}: the file exists: choose another name, or add --force"))
