"""The commands ``runs``, ``show``, ``compare`` and ``methods``. They read JSON files and tables, and need no torch.

They change nothing but ``report.html``, and execute no file that a run folder names. The costs that a paper counts, and
the flags of one method, do need torch.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gossamer.cli import user_files
from gossamer.cli.common import Parser, check_picture, open_run, reading, sentence, warn
from gossamer.core.errors import ConfigError, Mistakes, RunError
from gossamer.methods.registry import ENTRIES
from gossamer.runs.inside import links
from gossamer.runs.records import Record, damage, is_busy, linkless, read_metrics
from gossamer.runs.report import Folder, curves, sweep_points, tables, text
from gossamer.runs.report.base import reports_of
from gossamer.runs.report.labels import labels
from gossamer.runs.report.scores import common, scores_of
from gossamer.runs.report.summary import summarise
from gossamer.runs.report.targets import Reached, Target, compared, over_seeds, targets_for, to_target
from gossamer.runs.sweeps import Sweep, is_sweep


def runs(words: list[str]) -> int:
    """``gossamer runs [DIR]``."""
    parser = Parser(prog="gossamer runs", description="List the runs in a folder.")
    parser.add_argument("dir", metavar="DIR", nargs="?", default="runs", help="folder of runs (default: runs)")
    folder = Path(parser.parse_args(words).dir)
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}: gossamer run writes to runs/ unless --out is given")
    found = sorted(path.parent for path in folder.glob("*/run.json") if not path.parent.name.startswith("."))
    summaries: list[dict[str, Any] | None] = []
    damaged = []
    for path in found:
        try:
            with reading(path):
                summary = summarise(open_run(path), read_metrics(path))
                tables.listed([path.name], [summary], [""])
            summaries.append(summary)
        except RunError as error:
            summaries.append(None)
            damaged.append(f"{path.name} is damaged: {error}")
    states = [state(path, each) if each else "damaged" for path, each in zip(found, summaries, strict=True)]
    names = [path.name for path in found]
    print(tables.listed(names, summaries, states) if found else f"there are no runs in {folder}")
    if damaged:
        print("\n" + "\n".join(damaged))
    return 0


def show(words: list[str]) -> int:
    """``gossamer show RUN``."""
    parser = Parser(prog="gossamer show", description="Show one run in full.")
    parser.add_argument("run", metavar="RUN", help="folder of the run")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--json", action="store_true", help="print one JSON object")
    how.add_argument("--html", action="store_true", help="write report.html again")
    how.add_argument("--config", action="store_true", help="print the file that repeats the run, for run --config")
    papers = "compare its costs with the count of the method's paper"
    how.add_argument("--paper-costs", action="store_true", help=papers)
    arguments = _look(parser, words)
    path = Path(arguments.run)
    about, metrics = open_run(path), read_metrics(path)
    for problem in (*links(path, linkless(path)), *damage(path, about)):
        warn(problem)
    _load_reports(arguments.reports)
    targets = targets_for(arguments.target, [about]) if arguments.target else ()
    with reading(path):
        print(_shown(path, about, metrics, arguments, targets))
    return 0


def _shown(
    path: Path,
    about: dict[str, Any],
    metrics: list[Record],
    arguments: argparse.Namespace,
    targets: Sequence[Target],
) -> str:
    """Return what ``show`` prints."""
    if arguments.config:
        from gossamer.cli.request import config_of

        return config_of(path, about)
    if arguments.paper_costs:
        return _paper_costs(path, about, metrics)
    if arguments.html:
        from gossamer.cli.run import write_page

        return str(write_page(path, about, targets))
    summary = summarise(about, metrics)
    found = {report.name: report.details(Folder(path, summary["clients"])) for report in reports_of(metrics)}
    reached = [to_target(target, about, metrics) for target in targets]
    if arguments.json:
        figures = {name: {**figures, **found[name][0]} for name, figures in summary["figures"].items()}
        facts = summary | {"figures": figures, "parts": about["method"], "state": state(path, summary)}
        facts |= {"targets": [each._asdict() for each in reached]} if targets else {}
        return json.dumps(facts, indent=1, allow_nan=False)
    blocks = [[f"{each.target}: {each.words}"] for each in reached] + [lines for _, lines in found.values()]
    return tables.full(path, about, metrics, state(path, summary), blocks)


def _look(parser: Parser, words: list[str]) -> argparse.Namespace:
    """Parse the words of a command that looks at runs, with the flags that all of these have."""
    target = "show what was spent until a target was reached, such as accuracy=0.9 or loss<0.3"
    parser.add_argument("--target", metavar="METRIC=X", help=target)
    reports = "import a file of yours, for its reports on figures; the files that a run names are not executed"
    parser.add_argument("--reports", metavar="FILE.py", action="append", default=[], help=reports)
    return parser.parse_args(words)


def _load_reports(files: Sequence[str]) -> None:
    """Import the files that the user names; they declare reports."""
    for file in files:
        user_files.imported(file, f"--reports {file}")


def state(path: Path, summary: dict[str, Any]) -> str:
    """Return the state of a run: running, finished or interrupted."""
    if is_busy(path):
        return "running"
    whole = summary["rounds"] == summary["rounds_asked"] or summary["stopped"]
    return "finished" if whole else "interrupted"


def compare(words: list[str]) -> int:
    """``gossamer compare RUN...``, or ``gossamer compare SWEEP``."""
    text = "Compare runs, or the points of a sweep, as a table and, with --out, as curves."
    parser = Parser(prog="gossamer compare", description=text)
    parser.add_argument("run", metavar="RUN", nargs="+", help="folders of runs, or the folder of one sweep")
    parser.add_argument("--out", metavar="FILE", help="draw the curves into a file: .png, .pdf or .svg")
    arguments = _look(parser, words)
    paths = list(dict.fromkeys(Path(run) for run in arguments.run))
    mistakes, picture = Mistakes(), Path(arguments.out) if arguments.out else None
    if picture:
        mistakes.attempt(check_picture, picture)
    if sweeps := [path for path in paths if is_sweep(path)]:
        if len(paths) > 1:
            mistakes.note(f"{sweeps[0]} is a sweep: compare it alone, or name its runs")
        mistakes.settle()
        return _compare_points(sweeps[0], picture, arguments.target)
    abouts = [mistakes.attempt(open_run, path) for path in paths]
    mistakes.settle()
    metrics = [read_metrics(path) for path in paths]
    both = [(about, records) for about, records in zip(abouts, metrics, strict=True) if about]
    _load_reports(arguments.reports)
    names, found, summaries = distinct(paths), [about for about, _ in both], list[dict[str, Any]]()
    targets = targets_for(arguments.target, found) if arguments.target else ()
    for path, (about, records) in zip(paths, both, strict=True):
        with reading(path):
            summaries.append(summarise(about, records))
            tables.side_by_side([str(path)], summaries[-1:])
    labelled = [{**summary, "method": label} for summary, label in zip(summaries, labels(found), strict=True)]
    print(tables.side_by_side(names, labelled))
    for target in targets:
        reached = [to_target(target, about, records) for about, records in both]
        print("\n" + "\n\n".join((compared(names, reached), *_over_seeds(found, reached))))
    if tables.sends_views(summaries):
        print(f"\n{tables.VALUES}: {tables.COUNTED}")
    if differing := tables.differences(summaries, [about["method"] for about, _ in both]):
        print(f"\nthese runs also differ in: {', '.join(differing)}")
    if picture:
        if score := common(scores_of(about["task"])[0] for about, _ in both):
            curves.draw(names, metrics, picture, score)
        print(f"\ncurves in {picture}" if score else "\nno curves: the runs have different metrics")
    return 0


def _over_seeds(abouts: Sequence[dict[str, Any]], reached: Sequence[Reached]) -> list[str]:
    """Return a table of means over runs that differ in their seed alone; nothing if there are no such runs."""
    alike = labels([{**about, "options": {**about["options"], "seed": 0}} for about in abouts])
    groups: dict[tuple[str, int], list[Reached]] = {}
    for label, about, each in zip(alike, abouts, reached, strict=True):
        groups.setdefault((label, about["options"]["rounds"]), []).append(each)
    names = [label for label, _ in groups]
    return [over_seeds(names, list(groups.values()))] if len(groups) < len(abouts) else []


def _compare_points(path: Path, picture: Path | None, target: str | None) -> int:
    """Compare the points of a sweep."""
    sweep = Sweep.read(path)
    with reading(path):
        print(sweep_points.compared(path, sweep))
        for table in sweep_points.to_targets(path, sweep, target) if target else ():
            print(f"\n{table}")
        if picture:
            drawn = sweep_points.draw(path, sweep, picture)
            print(f"\ncurves in {picture}" if drawn else "\nno curves: no run has started, or their metrics differ")
    return 0


def distinct(paths: Sequence[Path]) -> list[str]:
    """Return the shortest path suffixes that tell runs apart: ``a/run`` and ``b/run``, but ``run`` if it is alone."""
    parts = [path.resolve().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(part[-length:]) for part in parts]
        if len(set(names)) == len(names):
            break
    return names


def methods(words: list[str]) -> int:
    """``gossamer methods [NAME]``."""
    parser = Parser(prog="gossamer methods", description="List the methods, or show one with its flags and parts.")
    parser.add_argument("name", metavar="NAME", nargs="?", help="a method, or FILE.py:RECIPE (default: list all)")
    name = parser.parse_args(words).name
    if name is None:
        print(text.table(("method", "paper", "what it does"), list(_families())))
    else:
        print("\n".join(_described(name)))
    return 0


def _families() -> Iterator[tuple[str, str, str]]:
    """Yield a row per method, below a row with the name of its family."""
    for place, family in enumerate(dict.fromkeys(entry.family for entry in ENTRIES.values())):
        yield from [("", "", "")] * (place > 0)
        yield family.upper(), "", ""
        for name, entry in ENTRIES.items():
            if entry.family == family:
                yield name, entry.link, entry.summary


def _described(name: str) -> Iterator[str]:
    """Yield the description of one method, its flags and its parts."""
    from gossamer.cli.build_method import find_recipe
    from gossamer.cli.flags import defaults, settable, shown
    from gossamer.cli.run_args import own_flags

    recipe = find_recipe(name)
    own = own_flags(recipe, name)
    yield f"{name}: {sentence(recipe)}" if sentence(recipe) else name
    if name in ENTRIES and ENTRIES[name].link:
        yield f"paper: {ENTRIES[name].link}"
    rows = [(flag.usage, shown(flag.default), flag.meaning) for flag in own]
    yield "\n" + (text.table(("flag", "default", "meaning"), rows) if rows else "It has no flags.")
    if method := defaults(recipe):
        yield "\nparts; --set part.field=value changes their fields:"
        yield text.pairs([(name, repr(part)) for name, part in settable(method).items()])


def _paper_costs(path: Path, about: dict[str, Any], metrics: Sequence[dict[str, Any]]) -> str:
    """Return a table of the costs of a run next to those that the paper of its method counts, and the paper's rules."""
    from gossamer.analysis.theory.costs import count_of, paper_costs
    from gossamer.cli.reopen import rebuild
    from gossamer.cli.request import Request

    summary = summarise(about, metrics)
    name = summary["method"]
    count_of(name)  # refuses a method before the data is loaded
    request = Request.recorded(about)
    if request and (own := request.files()):
        raise ConfigError(f"{path} is built from {' and '.join(own.values())}, and show executes no file of a run")
    method, task = rebuild(path, about)
    if every := about["options"].get("validate"):
        task = task.with_split(task.split.hold_out(every)[0])  # nobody trains on held-out samples
    found = paper_costs(name, method, task, metrics, about["options"]["seed"])
    sent = summary["bytes_up"] + summary["bytes_down"]
    rows = [
        ["bytes, both directions", text.size(sent), text.BLANK if found.bytes is None else text.size(found.bytes)],
        ["operations", text.number(summary["flops"]), text.BLANK if found.flops is None else text.number(found.flops)],
    ]
    held = f"operations with held weights: {text.number(summary['useful_flops'])}"
    return "\n\n".join((text.table(["costs", "this run", "paper"], rows), held, f"{found.paper}: {found.rules}"))
