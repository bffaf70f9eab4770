"""Visits of models that rotate among clients: their number, those skipped or capped, and idle clients."""

from collections.abc import Sequence

from gossamer.runs.records import Record
from gossamer.runs.report.base import Figures, Report, reports
from gossamer.runs.report.plots import Series, chart
from gossamer.runs.report.text import count

KINDS = ("trained", "skipped", "capped", "idle")


@reports("visits")
class VisitReport(Report):
    """Visits of models to clients."""

    def summary(self, records: Sequence[Record], clients: int) -> Figures | None:
        """Return the figures of the last round with visits, and sums over the run."""
        found = [figures for _, figures in self.found(records)]
        if not found:
            return None
        return {**found[-1], **{f"{kind}_in_all": sum(visits[kind] for visits in found) for kind in KINDS}}

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """Return a line on the last round, and one on the run."""
        last, in_all = (", ".join(f"{summary[kind + when]:,} {kind}" for kind in KINDS) for when in ("", "_in_all"))
        return [
            ("visits", f"{last} (in the last round)"),
            ("visits in all", in_all),
            ("epochs", f"{summary['epoch']:,} finished, the last one of {count(summary['epoch_rounds'], 'round')}"),
        ]

    def cells(self, summary: Figures) -> dict[str, str]:
        """Return the number of visits, and of clients without one."""
        return {"visits": f"{summary['trained_in_all']:,}", "idle": f"{summary['idle_in_all']:,}"}

    def charts(self, records: Sequence[Record]) -> list[str]:
        """Return a chart of visits of each kind by round."""
        found = [(float(record["round"]), figures) for record, figures in self.found(records)]
        lines = [Series(kind, [(at, figures[kind]) for at, figures in found]) for kind in KINDS]
        return [chart("Visits of models to clients", "round", lines)]
