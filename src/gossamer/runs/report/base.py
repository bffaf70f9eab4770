"""How the figures that parts put into the records of rounds are shown: in tables, on the page and side by side.

A server or a view returns figures from ``measure``, by name. Each name has a ``Report``. Where nobody wrote one, the
default shows the last value of every number, and a chart of it by round. The tables and the page loop over the names
that they find in the records, and know none of them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from gossamer.core.types import State
from gossamer.runs.folder import read_split
from gossamer.runs.report.svg import Series, chart
from gossamer.runs.report.text import number
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.samples import Data

T = TypeVar("T")
Record = dict[str, Any]
Figures = dict[str, Any]
Starts = Callable[[int], State]
"""What the view of a client remembers before its first round."""


def _nothing() -> None:
    return None


@dataclass(frozen=True, eq=False)
class Folder:
    """A run folder, for reports that read more than records.

    Args:
        path: where it is
        clients: the number of clients
        data: the data set, where it can still be loaded
        rebuild: gives what the view of a client remembers at first; ``None`` where the method cannot be built again
    """

    path: Path
    clients: int
    data: Data | None = None
    rebuild: Callable[[], Starts | None] = field(default=_nothing)

    @cached_property
    def split(self) -> Split:
        """Which samples each client has."""
        return Split.from_tensors(read_split(self.path))


class Report:
    """How the figures of one name are shown; override what the default does not do well.

    Args:
        title: the heading of the section on the page, where there is a picture
    """

    title: ClassVar[str] = ""

    def __init__(self, name: str) -> None:
        self.name, self.heading = name, self.title or name

    def found(self, records: Sequence[Record]) -> list[tuple[Record, Figures]]:
        """The records that have figures of this name, with these; a figure alone has no name within."""
        have = [(record, record["figures"][self.name]) for record in records if self.name in record.get("figures", {})]
        return [(record, figures if isinstance(figures, dict) else {"": figures}) for record, figures in have]

    def summary(self, records: Sequence[Record], clients: int) -> Figures | None:
        """The figures of a whole run: those of the last round that has some."""
        found = self.found(records)
        return dict(found[-1][1]) if found else None

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """Names and values, one line each, for ``show`` and the end of a run."""
        return [(f"{self.name} {key}".strip(), number(value)) for key, value in _numbers(summary).items()]

    def cells(self, summary: Figures) -> dict[str, str]:
        """Columns of ``compare`` and what they say of a run."""
        return dict(self.rows(summary))

    def charts(self, records: Sequence[Record]) -> list[str]:
        """Charts by round, as SVG text."""
        found = [(record["round"], _numbers(figures)) for record, figures in self.found(records)]
        keys = dict.fromkeys(key for _, figures in found for key in figures)
        lines = {key: [(float(at), figures[key]) for at, figures in found if key in figures] for key in keys}
        return [
            chart(f"{self.name} {key}".strip(), "round", [Series(key or self.name, points)])
            for key, points in lines.items()
        ]

    def details(self, folder: Folder) -> tuple[Figures, list[str]]:
        """What ``show`` adds from the run folder: for ``--json``, and as lines of text."""
        return {}, []

    def picture(self, folder: Folder, records: Sequence[Record]) -> str:
        """A section of the page, as HTML; empty where there is nothing to draw."""
        return ""


class SafeReport(Report):
    """A report that may fail, as one of the user's own: then it says so, and what it was to show is not lost."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.name)
        self.report, self.heading = report, report.heading

    def _try(self, member: str, instead: Callable[[str], T], *args: Any) -> T:
        try:
            found: T = getattr(self.report, member)(*args)
            return found
        except Exception as error:
            return instead(f"its report fails in {member}: {type(error).__name__}: {error}")

    def summary(self, records: Sequence[Record], clients: int) -> Figures | None:
        """That of the report, or of the default."""
        return self._try("summary", lambda why: super(SafeReport, self).summary(records, clients), records, clients)

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """Those of the report, or why there are none."""
        return self._try("rows", lambda why: [(self.name, why)], summary)

    def cells(self, summary: Figures) -> dict[str, str]:
        """Those of the report, or why there are none."""
        return self._try("cells", lambda why: {self.name: why}, summary)

    def charts(self, records: Sequence[Record]) -> list[str]:
        """Those of the report, or why there are none."""
        return self._try("charts", self._card, records)

    def details(self, folder: Folder) -> tuple[Figures, list[str]]:
        """Those of the report, or why there are none."""
        return self._try("details", lambda why: ({}, [f"{self.name}: {why}"]), folder)

    def picture(self, folder: Folder, records: Sequence[Record]) -> str:
        """That of the report, or why there is none."""
        return self._try("picture", lambda why: "".join(self._card(why)), folder, records)

    def _card(self, why: str) -> list[str]:
        return [f'<div class="card">{escape(f"{self.name}: {why}")}</div>']


def _numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """The figures that are plain numbers."""
    return {key: value for key, value in figures.items() if isinstance(value, int | float)}


R = TypeVar("R", bound=type[Report])
REPORTS: dict[str, Report] = {}
"""The reports that somebody wrote, by the name of their figures."""


def reports(name: str) -> Callable[[R], R]:
    """Declare a class the report of the figures of a name."""

    def declare(kind: R) -> R:
        REPORTS[name] = kind(name)
        return kind

    return declare


def reports_of(records: Sequence[Record]) -> list[Report]:
    """A report for every name of figures in the records, in the order in which the names first occur."""
    names = dict.fromkeys(name for record in records for name in record.get("figures", {}))
    return [_report(name) for name in names]


def summaries_of(records: Sequence[Record], clients: int) -> dict[str, Figures]:
    """The figures of a whole run, by name."""
    found = {report.name: report.summary(records, clients) for report in reports_of(records)}
    return {name: summary for name, summary in found.items() if summary is not None}


def rows_of(summaries: Mapping[str, Figures]) -> list[tuple[str, str]]:
    """The lines of all reports on a run."""
    return [row for name, summary in summaries.items() for row in _report(name).rows(summary)]


def cells_of(summaries: Mapping[str, Figures]) -> dict[str, str]:
    """The cells of all reports on a run, by column."""
    return {
        column: cell for name, summary in summaries.items() for column, cell in _report(name).cells(summary).items()
    }


def _report(name: str) -> Report:
    return SafeReport(REPORTS.get(name) or Report(name))
