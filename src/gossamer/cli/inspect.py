"""The commands that look: ``show``, ``runs``, ``compare``, ``methods`` and ``data``."""

import argparse
import inspect
import json
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from gossamer.cli import flags
from gossamer.cli import run_args as words
from gossamer.cli import user_files as sources
from gossamer.cli.request import Request, find_recipe, make_method, make_options, make_task, recorded_data, whole_task
from gossamer.cli.settings import settable
from gossamer.core.errors import ConfigError, GossamerError, Mistakes, RunError
from gossamer.core.random import key
from gossamer.core.specs import usage
from gossamer.methods import METHODS
from gossamer.runs.folder import is_busy, read_about, read_metrics, read_split
from gossamer.runs.report import REPORTS, Folder, curves, page, tables, text
from gossamer.runs.report.base import Starts, reports_of
from gossamer.runs.summary import summarise
from gossamer.tasks.data.datasets import DATASETS
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.partitioners import SPLITS
from gossamer.tasks.data.picture import draw, table
from gossamer.tasks.data.samples import Data
from gossamer.tasks.nets import NETS
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task


def open_run(path: Path) -> dict[str, Any]:
    """A run that the user names: what is none is the user's mistake."""
    if not (path / "run.json").is_file():
        raise ConfigError(f"{path} is not a run: there is no run.json in it")
    return read_about(path)


def show(arguments: argparse.Namespace) -> int:
    """One run in full."""
    path = Path(arguments.run)
    about, metrics = open_run(path), read_metrics(path)
    _load_reports(about, metrics)
    if arguments.html:
        print(page.write(_folder(path, about, _data_of(about))))
        return 0
    summary = summarise(about, metrics)
    found = {report.name: report.details(Folder(path, summary["clients"])) for report in reports_of(metrics)}
    if arguments.json:
        figures = {name: {**figures, **found[name][0]} for name, figures in summary["figures"].items()}
        facts = summary | {"figures": figures, "parts": about["method"], "state": state(path, summary)}
        print(json.dumps(facts, indent=1, allow_nan=False))
    else:
        blocks = [lines for _, lines in found.values()]
        print(tables.full(path, about, metrics, state(path, summary), blocks))
    return 0


def _load_reports(about: dict[str, Any], metrics: Sequence[dict[str, Any]]) -> None:
    """Load the user's files of a run where a report that is not known yet may be in them; the default does as well."""
    files = Request.read(about["request"]).files().values() if about["request"] else ()
    if files and any(report.name not in REPORTS for report in reports_of(metrics)):
        with suppress(GossamerError):  # the files have changed or are gone
            sources.check_unchanged(about["request"]["digests"])
            for spec in files:
                sources.load(spec, spec)


def _data_of(about: dict[str, Any]) -> Data | None:
    """The data of a run, if it can still be had: a report does without."""
    try:
        return recorded_data(about)
    except (GossamerError, ModuleNotFoundError):
        return None


def _folder(path: Path, about: dict[str, Any], data: Data | None) -> Folder:
    """A run folder, for reports."""
    return Folder(path, about["task"]["clients"], data, lambda: _starts(path, about, data))


def _starts(path: Path, about: dict[str, Any], data: Data | None) -> Starts | None:
    """What clients' views remember at first, if it can still be had."""
    if data is None or not about["request"]:
        return None
    request, seed = Request.read(about["request"]), about["options"]["seed"]
    try:
        sources.check_unchanged(about["request"]["digests"])
        method, split = make_method(request), Split.from_tensors(read_split(path))
        named = (data, request.model, request.split or data.split, split, request.statistics)
        objective = Objective(whole_task(request.task) if request.task else Task.of_data(*named), "cpu", key(seed))
        view = method.bind(objective).training.view_memory
    except (GossamerError, ModuleNotFoundError):
        return None
    return view.first if view is not None and method.describe() == about["method"] else None


def write_report(path: Path, data: Data) -> Path | None:
    """The page of a run that has just ended, which must not fail because of its page."""
    try:
        return page.write(_folder(path, read_about(path), data))
    except Exception as error:
        print(f"gossamer: no report.html was written: {error}", file=sys.stderr)
        return None


def state(path: Path, summary: dict[str, Any]) -> str:
    """Where a run stands."""
    if is_busy(path):
        return "running"
    return "finished" if summary["rounds"] == summary["rounds_asked"] else "interrupted"


def runs(arguments: argparse.Namespace) -> int:
    """The runs in a folder."""
    folder = Path(arguments.dir)
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: gossamer run keeps its runs in runs/, or where --out says")
    found = sorted(path.parent for path in folder.glob("*/run.json") if not path.parent.name.startswith("."))
    rows, damaged = [], []
    for path in found:
        try:
            summary = summarise(read_about(path), read_metrics(path))
            rows.append((path.name, *tables.listed(summary), state(path, summary)))
        except (RunError, KeyError, TypeError) as error:
            rows.append((path.name, *[text.BLANK] * (len(tables.LISTED) - 2), "damaged"))
            damaged.append(f"{path.name} is damaged: {error}")
    print(text.table(tables.LISTED, rows) if rows else f"there are no runs in {folder}")
    if damaged:
        print("\n" + "\n".join(damaged))
    return 0


def compare(arguments: argparse.Namespace) -> int:
    """Runs side by side."""
    paths = list(dict.fromkeys(Path(run) for run in arguments.run))
    mistakes, picture = Mistakes(), Path(arguments.out)
    mistakes.attempt(check_picture, picture)
    abouts = [mistakes.attempt(open_run, path) for path in paths]
    mistakes.settle()
    metrics = [read_metrics(path) for path in paths]
    both = [(about, records) for about, records in zip(abouts, metrics, strict=True) if about]
    for about, records in both:
        _load_reports(about, records)
    summaries = [summarise(about, records) for about, records in both]
    names = distinct(paths)
    print(tables.side_by_side(names, summaries))
    if tables.tells_what_is_held(summaries):
        print(f"\n{tables.VALUES}: {tables.COUNTED}")
    if differing := tables.differences(summaries, [about["method"] for about, _ in both]):
        print(f"\nthese runs also differ in: {', '.join(differing)}")
    curves.draw(names, metrics, picture)
    print(f"\ncurves in {picture}")
    return 0


def distinct(paths: Sequence[Path]) -> list[str]:
    """The shortest ends of paths that tell them apart: ``a/run`` and ``b/run``, but ``run`` if there is one."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def methods(arguments: argparse.Namespace) -> int:
    """The methods, or one of them with its flags."""
    if arguments.name is None:
        known = [(name, sentence(recipe)) for name, recipe in METHODS.items()]
        print(text.table(("method", "what it is"), known, text.screen()))
    else:
        _method(arguments.name)
    return 0


def _method(name: str) -> None:
    recipe = find_recipe(name)
    own = words.own_flags(recipe, name)
    print(f"{name}: {sentence(recipe)}" if sentence(recipe) else name)
    rows = [(flag.usage, flags.shown(flag.default), flag.meaning) for flag in own]
    print("\n" + (text.table(("flag", "default", "meaning"), rows, text.screen()) if rows else "It has no flags."))
    if method := flags.defaults(recipe):
        print("\nparts, whose fields --set part.field=value changes:")
        print(text.pairs([(name, repr(part)) for name, part in settable(method).items()], text.screen()))


def sentence(source: object) -> str:
    """The first line of a docstring, without its marks for code."""
    return (inspect.getdoc(source) or "").partition("\n")[0].replace("``", "")


def data_list(arguments: argparse.Namespace) -> int:
    """Data sets, splits and models."""
    sets = [(usage(name, source), sentence(source)) for name, source in DATASETS.items()]
    splits = [(usage(name, rule), sentence(rule)) for name, rule in SPLITS.items()]
    nets = [(name, net.summary) for name, net in NETS.items()]
    titles = (("data set", "what it is"), ("split", "what it does"), ("model", "what it is"))
    print("\n\n".join(text.table(*both, text.screen()) for both in zip(titles, (sets, splits, nets), strict=True)))
    return 0


def data_show(arguments: argparse.Namespace) -> int:
    """Who holds what."""
    asked = {name: getattr(arguments, name) for name in ("data", "data_dir", "split", "clients")}
    request, picture, mistakes = Request("fedavg", **asked), Path(arguments.out), Mistakes()
    mistakes.attempt(check_picture, picture)
    options = mistakes.attempt(make_options, {"seed": arguments.seed})
    task = mistakes.attempt(make_task, request, options.seed if options else 0, None)
    mistakes.settle()
    assert task is not None  # or there were mistakes
    data, split, spec = task.data, task.split, task.names[2]
    draw(split, data, picture, spec=spec)
    facts = [(name.replace("_", " "), f"{value:,.6g}") for name, value in table(split, data).items()]
    print(text.pairs([("data", data.name), ("split", spec), *facts]))
    print(f"\npicture in {picture}")
    return 0


def check_picture(picture: Path, flag: str = "--out") -> None:
    """Refuse a place where no picture can be written."""
    mistakes = Mistakes()
    if picture.suffix.lower() not in (".png", ".pdf", ".svg"):
        mistakes.note(f"{flag} {picture}: must end in .png, .pdf or .svg")
    if not os.access(picture.parent, os.W_OK):
        mistakes.note(f"{flag} {picture}: there is no folder {picture.parent} that you may write in")
    mistakes.settle()
