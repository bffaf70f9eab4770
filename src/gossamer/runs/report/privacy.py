"""The report on differential privacy: the epsilon that a run has spent, and what it says."""

from collections.abc import Sequence

from gossamer.core.privacy import SEED, SYSTEM
from gossamer.runs.records import Record
from gossamer.runs.report.base import Figures, Folder, Report, reports
from gossamer.runs.report.plots import Series, chart

RELATIONS = {
    "add-remove": "one more or less",
    "replace-one": "one replaced by another",
    "zero-out": "one whose contribution is zero",
}
"""Neighbouring data sets in words, by their relation."""


@reports("privacy")
class PrivacyReport(Report):
    """Differential privacy: epsilon, its unit, and from whom it protects."""

    title = "Privacy"

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """Return the statement of privacy; records of earlier releases do not say where noise came from."""
        unit, relation = summary["unit"], summary["relation"]
        source = [("noise", _from(summary["noise"]))] if "noise" in summary else []
        if (known := summary.get("epsilon_if_cohorts_known")) is not None:
            source.append(("for those who know the cohorts", f"epsilon {known:.4g}"))
        if "releases" in summary:
            source.append(("releases", f"{summary['releases']}: rounds, and attempts that a crash ended"))
        return [
            ("privacy", f"{_written(summary)} for each {unit} ({relation}: {RELATIONS.get(relation, relation)})"),
            ("mechanism", summary["mechanism"]),
            ("sampling", summary["sampling"]),
            *source,
            ("protects from", summary["protects_from"]),
        ]

    def cells(self, summary: Figures) -> dict[str, str]:
        """Return epsilon and delta, and the unit."""
        simulated = ", noise from the seed" if summary.get("noise") == SEED else ""
        return {"privacy": f"{_written(summary)}, {summary['unit']}{simulated}"}

    def picture(self, folder: Folder, records: Sequence[Record]) -> str:
        """Return the statement as a section of the page."""
        return self.rows_card(folder, records)

    def charts(self, records: Sequence[Record]) -> list[str]:
        """Return a chart of epsilon by round."""
        found = [(record["round"], figures) for record, figures in self.found(records)]
        points = [(float(at), figures["epsilon"]) for at, figures in found if figures["epsilon"] is not None]
        return [chart("Privacy: epsilon spent", "round", [Series("epsilon", points)])]


def _from(source: str) -> str:
    words = {
        SYSTEM: "from the operating system",
        SEED: "from the seed: epsilon is that of a run whose noise is secret",
    }
    return words.get(source, source)


def _written(summary: Figures) -> str:
    spent = summary["epsilon"]
    return f"epsilon {'unbounded' if spent is None else f'{spent:.4g}'}, delta {summary['delta']:.3g}"
