"""How the figures that parts measure are shown: in tables, on the page, and side by side.

A server or a view returns named figures from ``measure``, and the record of a round keeps them. Each name has a
``Report``. A name without a report of its own gets the default: the last value of every number, and a chart of it by
round. The tables and the page loop over the names in the records and know none of them in advance.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

from gossamer.runs.records import Record
from gossamer.runs.report import plots
from gossamer.runs.report.plots import Series, chart
from gossamer.runs.report.text import number, percent

if TYPE_CHECKING:
    from gossamer.core.types import State
    from gossamer.tasks.data.partition import Split
    from gossamer.tasks.data.samples import Data

T = TypeVar("T")
Figures = dict[str, Any]
Starts = Callable[[int], "State"]
"""Returns the state of a client's view before its first round."""


@dataclass(frozen=True, eq=False)
class Folder:
    """A run folder, for reports that read more than records.

    Args:
        path: the folder
        clients: the number of clients
        data: the data set, if it can still be loaded
        rebuild: returns the initial states of the clients' views; ``None`` if the method cannot be built again
    """

    path: Path
    clients: int
    data: "Data | None" = None
    rebuild: Callable[[], Starts | None] = lambda: None

    @cached_property
    def split(self) -> "Split":
        """The partition: the samples of each client."""
        from gossamer.runs.checkpoint import read_split
        from gossamer.tasks.data.partition import Split

        return Split.from_tensors(read_split(self.path))


class Report:
    """The presentation of the figures of one name. Override the methods whose default does not suit.

    Args:
        title: the heading of the section on the page, if ``picture`` returns something
        format: number, or percent for shares; in tables and charts alike
    """

    title: ClassVar[str] = ""
    format: ClassVar[Literal["number", "percent"]] = "number"

    def __init__(self, name: str) -> None:
        self.name, self.heading = name, self.title or name

    def found(self, records: Sequence[Record]) -> list[tuple[Record, Figures]]:
        """Return the records that have figures of this name, with these; a single figure has the empty name."""
        have = [(record, record["figures"][self.name]) for record in records if self.name in record.get("figures", {})]
        return [(record, figures if isinstance(figures, dict) else {"": figures}) for record, figures in have]

    def summary(self, records: Sequence[Record], clients: int) -> Figures | None:
        """Return the figures of a whole run; by default those of the last round that has some."""
        found = self.found(records)
        return dict(found[-1][1]) if found else None

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """Return names and values, one line each, for ``show`` and the end of a run."""
        write = percent if self.format == "percent" else number
        return [(f"{self.name} {key}".strip(), write(value)) for key, value in _numbers(summary).items()]

    def cells(self, summary: Figures) -> dict[str, str]:
        """Return the cells of a run in ``compare``, by column."""
        return dict(self.rows(summary))

    def charts(self, records: Sequence[Record]) -> list[str]:
        """Return charts by round, as HTML made by ``gossamer.runs.report.chart``."""
        found = [(record["round"], _numbers(figures)) for record, figures in self.found(records)]
        keys = dict.fromkeys(key for _, figures in found for key in figures)
        scale, unit = (100, " (%)") if self.format == "percent" else (1, "")
        lines = {key: [(float(at), scale * figures[key]) for at, figures in found if key in figures] for key in keys}
        return [
            chart(f"{self.name} {key}".strip() + unit, "round", [Series(key or self.name, points)])
            for key, points in lines.items()
        ]

    def rows_card(self, folder: Folder, records: Sequence[Record]) -> str:
        """Return the rows of a whole run as a card, for a ``picture``; empty if there are no figures."""
        summary = self.summary(records, folder.clients)
        return plots.card("; ".join(f"{name}: {text}" for name, text in self.rows(summary))) if summary else ""

    def details(self, folder: Folder) -> tuple[Figures, list[str]]:
        """Return what ``show`` adds from the run folder: figures for ``--json``, and lines of text."""
        return {}, []

    def picture(self, folder: Folder, records: Sequence[Record]) -> str:
        """Return a section of the page, as HTML; empty if there is nothing to draw."""
        return ""


class DefaultReport(Report):
    """The report on figures whose name has none of its own."""


class SafeReport(Report):
    """A wrapper that shows the error of a failing report in its place, so that the rest is still shown."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.name)
        self.report, self.heading = report, report.heading

    def _try(self, member: str, instead: Callable[[str], T], *args: Any) -> T:
        try:
            found: T = getattr(self.report, member)(*args)
            return found
        except Exception as error:  # a report of the user's may fail in any way
            return instead(f"its report fails in {member}: {type(error).__name__}: {error}")

    def summary(self, records: Sequence[Record], clients: int) -> Figures | None:
        """Return the summary of the report, or the default one."""
        return self._try("summary", lambda why: super(SafeReport, self).summary(records, clients), records, clients)

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """Return the rows of the report, or its error."""
        return self._try("rows", lambda why: [(self.name, why)], summary)

    def cells(self, summary: Figures) -> dict[str, str]:
        """Return the cells of the report, or its error."""
        return self._try("cells", lambda why: {self.name: why}, summary)

    def charts(self, records: Sequence[Record]) -> list[str]:
        """Return the charts of the report, or its error."""
        return self._try("charts", lambda why: [self._card(why)], records)

    def details(self, folder: Folder) -> tuple[Figures, list[str]]:
        """Return the details of the report, or its error."""
        return self._try("details", lambda why: ({}, [f"{self.name}: {why}"]), folder)

    def picture(self, folder: Folder, records: Sequence[Record]) -> str:
        """Return the picture of the report, or its error."""
        return self._try("picture", self._card, folder, records)

    def _card(self, why: str) -> str:
        return plots.card(f"{self.name}: {why}")


def _numbers(figures: Mapping[str, Any]) -> dict[str, float]:
    """Return the figures that are plain numbers."""
    return {key: value for key, value in figures.items() if isinstance(value, int | float)}


R = TypeVar("R", bound=type[Report])
REPORTS: dict[str, Report] = {}
"""The registered reports, by the name of their figures."""


def reports(name: str) -> Callable[[R], R]:
    """Register a class as the report of the figures with this name."""

    def declare(kind: R) -> R:
        REPORTS[name] = kind(name)
        return kind

    return declare


def reports_of(records: Sequence[Record]) -> list[Report]:
    """Return a report for every name of figures in the records, in order of first occurrence."""
    names = dict.fromkeys(name for record in records for name in record.get("figures", {}))
    return [_report(name) for name in names]


def summaries_of(records: Sequence[Record], clients: int) -> dict[str, Figures]:
    """Return the figures of a whole run, by name."""
    found = {report.name: report.summary(records, clients) for report in reports_of(records)}
    return {name: summary for name, summary in found.items() if summary is not None}


def rows_of(summaries: Mapping[str, Figures]) -> list[tuple[str, str]]:
    """Return the rows of all reports on a run."""
    return [row for name, summary in summaries.items() for row in _report(name).rows(summary)]


def cells_of(summaries: Mapping[str, Figures]) -> dict[str, str]:
    """Return the cells of all reports on a run, by column."""
    return {
        column: cell for name, summary in summaries.items() for column, cell in _report(name).cells(summary).items()
    }


def _report(name: str) -> Report:
    return SafeReport(REPORTS.get(name) or DefaultReport(name))
