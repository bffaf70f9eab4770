"""The report on personal masks: their density, how much they change, and how much they overlap."""

from collections.abc import Sequence

from gossamer.runs.records import Record
from gossamer.runs.report.base import Figures, Folder, Report, reports
from gossamer.runs.report.text import percent


@reports("masks")
class MaskReport(Report):
    """Personal masks: density, change and overlap."""

    title = "Masks"

    def summary(self, records: Sequence[Record], clients: int) -> Figures | None:
        """Return the figures of the last round in which an update arrived.

        ``moved_in_all`` is the sum over a client's rounds, averaged over all clients.
        """
        found = self.found(records)
        if not found:
            return None
        measured = [figures for _, figures in found if figures["density"] is not None]
        moves = sum((figures["moved"] or 0.0) * _folded(record) for record, figures in found)
        return {**(measured[-1] if measured else found[-1][1]), "moved_in_all": moves / clients}

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """Return density, change and overlap."""
        last, in_all = percent(summary["moved"]), percent(summary["moved_in_all"])
        return [
            ("mask density", f"{percent(summary['density'])} (of the entries that masks choose from)"),
            ("masks moved", f"{last} of the held entries in the last round, {in_all} in all (mean over clients)"),
            ("mask overlap", f"{percent(summary['overlap'])} (between two clients of the last round)"),
        ]

    def cells(self, summary: Figures) -> dict[str, str]:
        """Return nothing: ``compare`` has a column for the bytes of values without masks."""
        return {}

    def charts(self, records: Sequence[Record]) -> list[str]:
        """Return nothing: the page has a heat map of overlaps instead."""
        return []

    def picture(self, folder: Folder, records: Sequence[Record]) -> str:
        """Return heat maps: the overlap of every two masks, and density and distance by tensor and round."""
        found = self.found(records)
        if all(figures["density"] is None for _, figures in found):
            return ""
        from gossamer.runs.report import mask_layers, mask_map

        overlaps = mask_map.figure(folder.path, folder.split, folder.data, folder.rebuild())
        return overlaps + mask_layers.figure([(record["round"], figures) for record, figures in found])


def _folded(record: Record) -> int:
    """Return the number of clients whose message was aggregated in the last exchange."""
    return int(record["exchanges"][-1]["folded"])
