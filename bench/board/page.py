"""Render the board on docs/speed.md, between its two marks.

python bench/board/page.py [FILE ...]        files of results are first merged into bench/board/results/board.json
"""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from board import table
from board.race import Outcome
from board.workloads import WORKLOADS, Workload

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "board.json"
PAGE = ROOT / "docs" / "speed.md"
BEGIN, END = "<!-- written by bench/board/page.py: begin -->", "<!-- written by bench/board/page.py: end -->"
COLUMNS = {("plain", ""): "plain loop", ("pfl", ""): "pfl-research", ("gossamer", ""): "Gossamer"}
"""Columns of the summary, by system and precision; other precisions have columns of their own if they are measured."""
NOTHING = "not measured"

Results = dict[str, dict[str, Any]]


def read(path: Path = RESULTS) -> Results:
    """Return stored results, by workload."""
    return json.loads(path.read_text()) if path.exists() else {}


def merge(path: Path, found: Results) -> None:
    """Add results to a file; a workload that is there already is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(read(path) | found, indent=1) + "\n")


def write() -> None:
    """Update the page."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{render(read())}\n\n{END}{after}")


def render(results: Results) -> str:
    """Return the summary, and a section per workload."""
    works = {name: as_measured(work, results.get(name)) for name, work in WORKLOADS.items()}
    sections = [section(name, work, results.get(name)) for name, work in works.items()]
    return "\n\n".join([summary(works, {name: outcomes(results.get(name)) for name in works}), *sections])


def summary(works: dict[str, Workload], found: dict[str, list[Outcome]]) -> str:
    """Return the time of the whole run by each system, beside the published one."""
    measured = {(o.family, o.precision): o.precision for outcomes in found.values() for o in outcomes if not o.skipped}
    columns = COLUMNS | {key: f"Gossamer, {name}" for key, name in measured.items() if key not in COLUMNS}
    header = ("workload", "rounds", *columns.values(), "published", "published on")
    lines = [line(work, found[name], list(columns)) for name, work in works.items()]
    return table.markdown(header, lines, ("workload", "published on"))


def as_measured(work: Workload, found: dict[str, Any] | None) -> Workload:
    """Return a workload with the number of clients per round that were timed."""
    return replace(work, timed=found["about"]["timed_clients"]) if found else work


def outcomes(found: dict[str, Any] | None) -> list[Outcome]:
    return [Outcome.read(stored) for stored in found["systems"]] if found else []


def line(work: Workload, found: list[Outcome], columns: list[tuple[str, str]]) -> tuple[str, ...]:
    """Return the row of a workload."""
    return (
        work.title,
        f"{work.rounds:,}",
        *(fastest(work, found, column) for column in columns),
        work.published.text,
        work.published.hardware,
    )


def fastest(work: Workload, found: list[Outcome], column: tuple[str, str]) -> str:
    """Return the time of the whole run by the fastest executor."""
    measured = [o for o in found if (o.family, o.precision) == column and not o.skipped]
    taken = [o.total(work.rounds, work.scale) for o in measured]
    return table.clock(min(taken)) if taken else NOTHING


def section(name: str, work: Workload, found: dict[str, Any] | None) -> str:
    """Return what was trained, the measurements, and the sources."""
    published = f"Published: {work.published.text} ({work.published.source}), on {work.published.hardware}."
    sources = [f"- {what}: {where}" for what, where in work.sources.items()]
    notes = [f"- {note}" for note in work.notes]
    blocks = [f"### {work.title}", f"`{name}`: {work.describe()}.", *measured(work, found), published]
    return "\n\n".join([*blocks, "\n".join([*sources, *notes])])


def measured(work: Workload, found: dict[str, Any] | None) -> list[str]:
    if not found:
        return ["This workload was not measured yet."]
    facts, systems = found["about"], outcomes(found)
    where = f"{facts['device']}; {facts['processor']}, {facts['cores']} cores"
    missing = [f"- {one}" for one in table.absent(systems)]
    versions = "; ".join(dict.fromkeys(outcome.version for outcome in systems if outcome.version))
    part = f" A timed round has {work.count} of {work.cohort} clients; its time is multiplied by {work.scale:g}."
    setting = (
        f"Data: {facts['data']}. Measured on {where}; {versions}; {facts['day']}.{part if work.scale != 1 else ''}"
    )
    shown = [table.markdown(table.HEADER, table.rows(systems, work), ("system",))] if table.rows(systems, work) else []
    return [setting, *shown, *(["\n".join(missing)] if missing else [])]


def main() -> None:
    """Merge the given files, and update the page."""
    for path in map(Path, sys.argv[1:]):
        merge(RESULTS, read(path))
    write()


if __name__ == "__main__":
    main()
