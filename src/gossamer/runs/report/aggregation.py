"""The report on robust aggregation: how many hostile updates it tolerates, and when the model was kept."""

from collections.abc import Sequence

from gossamer.runs.records import Record
from gossamer.runs.report.base import Figures, Report, reports


@reports("aggregation")
class AggregationReport(Report):
    """Robust aggregation: updates, tolerated hostile ones, and rounds with too few updates."""

    title = "Aggregation"

    def summary(self, records: Sequence[Record], clients: int) -> Figures | None:
        """Return the figures of the last round, and those of rounds in which the model was kept."""
        found = [figures for _, figures in self.found(records)]
        kept = [figures["kept_model"] for figures in found if "kept_model" in figures]
        more = {"kept_rounds": len(kept), "kept_model": kept[-1]} if kept else {}
        return {**found[-1], **more} if found else None

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """Return what is tolerated, and rounds in which the model was kept."""
        tolerated = f"{summary['tolerated']} of {summary['updates']} updates in the last round"
        rows = [("hostile tolerated", tolerated)]
        if "kept_rounds" in summary:
            rows.append(("model kept", f"in {summary['kept_rounds']} rounds; the last: {summary['kept_model']}"))
        return rows

    def cells(self, summary: Figures) -> dict[str, str]:
        """Return nothing: ``compare`` shows how the servers of runs differ."""
        return {}
