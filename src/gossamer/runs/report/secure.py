"""The report on secure aggregation: what the server could see, and rounds whose sum stayed unknown."""

from collections.abc import Sequence

from gossamer.runs.records import Record
from gossamer.runs.report.base import Figures, Folder, Report, reports
from gossamer.runs.report.plots import Series, chart
from gossamer.runs.report.text import count

ASKED, SUMMED, REFUSED, LIARS, REACH = "asked", "summed", "refused", "liars", "reach"
"""The entries of a record beside the number of clients that answered in each phase."""


@reports("secure")
class SecureReport(Report):
    """Secure aggregation: the sizes of the sums that the server saw, dropouts by phase, and refused rounds."""

    title = "Secure aggregation"

    def summary(self, records: Sequence[Record], clients: int) -> Figures | None:
        """Return the smallest and the largest sum, the clients lost in each phase, and the number of refused rounds."""
        found = [figures for _, figures in self.found(records)]
        if not found:
            return None
        sums = [figures[SUMMED] for figures in found if figures[SUMMED]]
        phases = [name for name in found[0] if name not in (ASKED, SUMMED, REFUSED, LIARS, REACH)]
        lost = {phase: sum(_lost(figures, phase, phases) for figures in found) for phase in phases}
        return {
            "sums": len(sums),
            "smallest": min(sums, default=0),
            "largest": max(sums, default=0),
            "lost": lost,
            REFUSED: [figures[REFUSED] for figures in found if REFUSED in figures],
            LIARS: {client: reason for figures in found for client, reason in figures.get(LIARS, {}).items()},
            REACH: max((figures.get(REACH, 0.0) for figures in found), default=0.0),
        }

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """Return what the server could see, and what went wrong."""
        few, most = summary["smallest"], summary["largest"]
        size = f"{most}" if few == most else f"{few} to {most}"
        sums = count(summary["sums"], "sum")
        seen = f"{sums} of {size} clients each, and no single update" if summary["sums"] else "no sum"
        also = "which clients took part, and when"
        lost = ", ".join(f"{number} in {phase}" for phase, number in summary["lost"].items() if number)
        refused, liars = summary[REFUSED], summary[LIARS]
        named = "; ".join(f"client {client}: {reason}" for client, reason in liars.items())
        return [
            ("the server saw", seen),
            ("it also saw", also),
            *([("clients lost", lost)] if lost else []),
            *([("clients that lied", named)] if named else []),
            *([("what one client can add", f"up to {summary[REACH]:.4g} times its limit")] if summary[REACH] else []),
            *([("rounds without a sum", f"{len(refused)}: {refused[-1]}")] if refused else []),
        ]

    def charts(self, records: Sequence[Record]) -> list[str]:
        """Return a chart of the size of the sums by round."""
        points = [(float(record["round"]), float(figures[SUMMED])) for record, figures in self.found(records)]
        return [chart("Secure aggregation: clients in the sum", "round", [Series("clients", points)])]

    def picture(self, folder: Folder, records: Sequence[Record]) -> str:
        """Return what the server could see as a section of the page."""
        return self.rows_card(folder, records)

    def cells(self, summary: Figures) -> dict[str, str]:
        """Return the size of the smallest sum."""
        return {"smallest secure sum": str(summary["smallest"])}


def _lost(figures: Figures, phase: str, phases: Sequence[str]) -> int:
    """Return how many clients were lost in a phase of a round: those that answered before, less those that did."""
    before = {
        name: figures[earlier] for earlier, name in zip((ASKED, *phases), phases, strict=False) if earlier in figures
    }
    return int(before[phase] - figures[phase]) if phase in figures and phase in before else 0
