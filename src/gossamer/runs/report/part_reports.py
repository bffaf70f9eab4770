"""The reports on the figures of Gossamer's own parts and engines; importing this module registers them."""

from collections.abc import Sequence
from dataclasses import asdict

from gossamer.core.errors import RunError
from gossamer.core.privacy import SEED, SYSTEM
from gossamer.runs.records import Record
from gossamer.runs.report.base import Figures, Folder, Report, reports
from gossamer.runs.report.plots import Series, chart
from gossamer.runs.report.text import count, number, percent


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
        moves = sum((figures["moved"] or 0.0) * int(record["exchanges"][-1]["folded"]) for record, figures in found)
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
        from gossamer.runs.report import masks

        overlaps = masks.overlap_map(folder.path, folder.split, folder.data, folder.rebuild())
        return overlaps + masks.layer_maps([(record["round"], figures) for record, figures in found])


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
        from gossamer.runs.report import mixing

        try:
            found = mixing.groups(mixing.read_mixing(folder.path))
        except RunError as error:
            return {"groups": None}, [f"groups of clients that learn from each other are unknown: {error}"]
        return {"groups": [asdict(group) for group in found]}, list(mixing.described(found, folder.clients))

    def picture(self, folder: Folder, records: Sequence[Record]) -> str:
        """Return a heat map of all weights, ordered by group."""
        from gossamer.runs.report import mixing

        return mixing.mixing_map(folder.path)


RELATIONS = {
    "add-remove": "one more or less",
    "replace-one": "one replaced by another",
    "zero-out": "one whose contribution is zero",
}
"""Neighbouring data sets in words, by their relation."""


SOURCES = {
    SYSTEM: "from the operating system",
    SEED: "from the seed: epsilon is that of a run whose noise is secret",
}
"""Where noise comes from in words."""


@reports("privacy")
class PrivacyReport(Report):
    """Differential privacy: epsilon, its unit, and from whom it protects."""

    title = "Privacy"

    def rows(self, summary: Figures) -> list[tuple[str, str]]:
        """Return the statement of privacy; records of earlier releases do not say where noise came from."""
        unit, relation = summary["unit"], summary["relation"]
        source = [("noise", SOURCES.get(summary["noise"], summary["noise"]))] if "noise" in summary else []
        if (known := summary.get("epsilon_if_cohorts_known")) is not None:
            source.append(("for those who know the cohorts", f"epsilon {known:.4g}"))
        if "releases" in summary:
            source.append(("releases", f"{summary['releases']}: rounds, and attempts that a crash ended"))
        return [
            ("privacy", f"{_budget(summary)} for each {unit} ({relation}: {RELATIONS.get(relation, relation)})"),
            ("mechanism", summary["mechanism"]),
            ("sampling", summary["sampling"]),
            *source,
            ("protects from", summary["protects_from"]),
        ]

    def cells(self, summary: Figures) -> dict[str, str]:
        """Return epsilon and delta, and the unit."""
        simulated = ", noise from the seed" if summary.get("noise") == SEED else ""
        return {"privacy": f"{_budget(summary)}, {summary['unit']}{simulated}"}

    def picture(self, folder: Folder, records: Sequence[Record]) -> str:
        """Return the statement as a section of the page."""
        return self.rows_card(folder, records)

    def charts(self, records: Sequence[Record]) -> list[str]:
        """Return a chart of epsilon by round."""
        found = [(record["round"], figures) for record, figures in self.found(records)]
        points = [(float(at), figures["epsilon"]) for at, figures in found if figures["epsilon"] is not None]
        return [chart("Privacy: epsilon spent", "round", [Series("epsilon", points)])]


def _budget(summary: Figures) -> str:
    spent = summary["epsilon"]
    return f"epsilon {'unbounded' if spent is None else f'{spent:.4g}'}, delta {summary['delta']:.3g}"


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
        lost = dict.fromkeys(phases, 0)  # those that answered in the phase before, less those that did in this one
        for figures in found:
            for before, phase in zip((ASKED, *phases), phases, strict=False):
                lost[phase] += int(figures[before] - figures[phase]) if {before, phase} <= figures.keys() else 0
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
        lost = ", ".join(f"{number} in {phase}" for phase, number in summary["lost"].items() if number)
        refused, liars = summary[REFUSED], summary[LIARS]
        named = "; ".join(f"client {client}: {reason}" for client, reason in liars.items())
        return [
            ("the server saw", seen),
            ("it also saw", "which clients took part, and when"),
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


@reports("adapter_error")
@reports("clipped_length")
@reports("clipped")
class ShareReport(Report):
    """A share, in percent."""

    format = "percent"
