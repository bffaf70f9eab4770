"""The report on mixing weights: how much each client learns from the others."""

from collections.abc import Sequence
from dataclasses import asdict

from gossamer.core.errors import RunError
from gossamer.runs.records import Record
from gossamer.runs.report.base import Figures, Folder, Report, reports
from gossamer.runs.report.plots import Series, chart
from gossamer.runs.report.text import number, percent


@reports("mixing")
class MixingReport(Report):
    """Mixing weights: the weight of a client for itself, and the effective number of clients it learns from."""

    title = "Who learns from whom"

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """Return medians over clients."""
        return [
            ("own weight", f"{percent(summary['own'])} (of a client for itself, median)"),
            ("learns from", f"{summary['peers']:.1f} clients in effect (median), lambda {number(summary['lam'])}"),
        ]

    def cells(self, summary: Figures) -> dict[str, str]:
        """Return medians over clients."""
        return {"own weight": percent(summary["own"]), "learns from": f"{summary['peers']:.1f}"}

    def charts(self, records: Sequence[Record]) -> list[str]:
        """Return charts of both medians by round."""
        found = [(float(record["round"]), figures) for record, figures in self.found(records)]
        own = Series("median", [(at, 100 * figures["own"]) for at, figures in found])
        peers = Series("median", [(at, figures["peers"]) for at, figures in found])
        return [
            chart("Weight of a client for itself (%)", "round", [own]),
            chart("Effective number of clients it learns from", "round", [peers]),
        ]

    def details(self, folder: Folder) -> tuple[Figures, list[str]]:
        """Return the groups of clients that learn from each other, or the reason why they are unknown."""
        from gossamer.runs.report import groups

        try:
            found = groups.groups(groups.read(folder.path))
        except RunError as error:
            return {"groups": None}, [f"groups of clients that learn from each other are unknown: {error}"]
        return {"groups": [asdict(group) for group in found]}, list(groups.described(found, folder.clients))

    def picture(self, folder: Folder, records: Sequence[Record]) -> str:
        """Return a heat map of all weights, ordered by group."""
        from gossamer.runs.report import mixing_map

        return mixing_map.figure(folder.path)
