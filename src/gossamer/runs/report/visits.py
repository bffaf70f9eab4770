"""Where models were trained that are passed from client to client: how many visits, and what became of them."""

from collections.abc import Sequence

from gossamer.runs.report.base import Figures, Record, Report, reports
from gossamer.runs.report.svg import Series, chart
from gossamer.runs.report.text import count

KINDS = ("trained", "skipped", "capped")


@reports("visits")
class VisitReport(Report):
    """Visits of models to clients."""

    def summary(self, records: Sequence[Record], clients: int) -> Figures | None:
        """Those of the last round that had some, and sums over the run."""
        found = [figures for _, figures in self.found(records)]
        if not found:
            return None
        return {**found[-1], **{f"{kind}_in_all": sum(visits[kind] for visits in found) for kind in KINDS}}

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """The last round, and the run."""
        last, in_all = (", ".join(f"{summary[kind + when]:,} {kind}" for kind in KINDS) for when in ("", "_in_all"))
        return [
            ("visits", f"{last} (in the last round)"),
            ("visits in all", f"{in_all}, {count(summary['epoch'], 'epoch')} over"),
        ]

    def cells(self, summary: Figures) -> dict[str, str]:
        """How many visits had their loss scale capped."""
        return {"capped": f"{summary['capped_in_all']:,}"}

    def charts(self, records: Sequence[Record]) -> list[str]:
        """Visits of each kind by round."""
        found = [(float(record["round"]), figures) for record, figures in self.found(records)]
        lines = [Series(kind, [(at, figures[kind]) for at, figures in found]) for kind in KINDS]
        return [chart("Visits of models to clients", "round", lines)]
