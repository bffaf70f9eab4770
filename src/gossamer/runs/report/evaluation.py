"""The report on evaluation: why a run has no metrics of single clients."""

from collections.abc import Sequence

from gossamer.runs.records import Record
from gossamer.runs.report.base import Figures, Folder, Report, reports

EVALUATION = "evaluation"
"""The figure that says who evaluates, where metrics of single clients do not exist."""


@reports(EVALUATION)
class EvaluationReport(Report):
    """Evaluation without metrics of single clients: where the metrics come from, and why there are no others."""

    title = "Evaluation"

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """Return the reason."""
        return [("evaluation", summary[""])]

    def cells(self, summary: Figures) -> dict[str, str]:
        """Return nothing: the reason is no result."""
        return {}

    def charts(self, records: Sequence[Record]) -> list[str]:
        """Return nothing: there are no numbers."""
        return []

    def picture(self, folder: Folder, records: Sequence[Record]) -> str:
        """Return the reason as a section of the page."""
        return self.rows_card(folder, records)
