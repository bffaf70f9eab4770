"""The command ``privacy spent``: what several runs on the same clients have spent together.

Each run is built again from its folder, without training, and its guarantee is composed with the others
(``parts.privacy.composition``). A run from Python whose method the folder cannot build counts by what its last record
states: its epsilon and its delta.
"""

import json
import math
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gossamer.cli.common import TRUST, open_run, reading, warn
from gossamer.cli.parser import Parser
from gossamer.cli.rebuild import rebuild
from gossamer.core.errors import ConfigError, RunError, require
from gossamer.core.privacy import SEED, SYSTEM, Guarantee
from gossamer.core.random import key
from gossamer.engines.options import Options
from gossamer.engines.privacy import privacy_of
from gossamer.parts.privacy.budget import BASIC, Spent, Total, common_relation, composed
from gossamer.runs.records import read_metrics
from gossamer.runs.releases import released
from gossamer.runs.report import text
from gossamer.runs.report.privacy import RELATIONS
from gossamer.tasks.data.partition import Split
from gossamer.tasks.objective import Objective

ASSUMED = (
    "the runs had the same clients, and there were no others: this is a ledger for one population, and nothing in a "
    "run folder proves which one it was"
)
"""What the command takes for granted."""


class Entry(NamedTuple):
    """A run in the ledger.

    Args:
        path: its folder
        stated: what its last record states
        rounds: its number of finished rounds
        again: how many more results may have been released
        guarantee: its guarantee; none if the folder cannot build it
        clients: its number of clients
    """

    path: Path
    stated: dict[str, Any]
    rounds: int
    again: int
    guarantee: Guarantee | None
    clients: int

    @property
    def secret(self) -> bool:
        """Whether nobody can draw its noise again."""
        return bool(self.stated.get("noise", SEED) == SYSTEM)

    def facts(self) -> dict[str, Any]:
        """Return what is listed."""
        named = {name: self.stated[name] for name in ("epsilon", "delta", "unit", "relation", "mechanism")}
        counted = {"run": str(self.path), "clients": self.clients, "releases": self.rounds + self.again}
        return {**counted, **named, "noise": self.stated.get("noise", SEED), "private": self.secret}


def spent(words: list[str]) -> int:
    """``gossamer privacy spent RUNS...``."""
    arguments = _parser().parse_args(words)
    paths = [Path(name) for name in arguments.runs]
    twice = len({path.resolve() for path in paths}) < len(paths)
    require((not twice, "a run is named twice"))
    require((arguments.delta is None or 0 < arguments.delta < 1, "--delta must be above 0 and below 1"))
    entries = [_entry(path, arguments.trust) for path in paths]
    total = _total(entries, arguments.delta)
    public = [entry for entry in entries if not entry.secret]
    private = not public or arguments.as_if_secret
    facts = {
        "runs": [entry.facts() for entry in entries],
        "private": private,
        "epsilon": total.epsilon if private and math.isfinite(total.epsilon) else None,
        "delta": total.delta,
        "unit": entries[0].stated["unit"],
        "relation": total.relation,
        "by": total.by,
        "as_if_secret": bool(public and arguments.as_if_secret),
        "assumes": ASSUMED,
    }
    counts = {entry.clients for entry in entries}
    if len(counts) > 1:
        warn(f"the runs have {', '.join(map(str, sorted(counts)))} clients: are these the same people?")
    print(json.dumps(facts, indent=2) if arguments.json else _table(facts))
    return 0


def _entry(path: Path, trusted: bool) -> Entry:
    """Return a run with its guarantee."""
    about = open_run(path)
    records = read_metrics(path)
    stated = next((found for each in reversed(records) if (found := each.get("figures", {}).get("privacy"))), None)
    if stated is None:
        raise RunError(f"{path} states nothing about privacy: what its models reveal has no bound")
    rounds = len(records)
    again = max(int(stated.get("releases", 0)), released(path)) - rounds  # also attempts after the last record
    again = max(0, again)
    task_clients = int(about["task"]["clients"])
    try:
        found = _guarantee(path, about, trusted)
    except ConfigError as error:
        if again + rounds > int(stated.get("releases", rounds)):
            text = f"{path} has released more than its last record states, and its guarantee cannot be built: {error}"
            raise RunError(text) from None
        warn(f"{path} counts by its last record, as its guarantee cannot be built again: {error}")
        return Entry(path, stated, rounds, again, None, task_clients)
    computed = found.epsilon(rounds, stated["delta"], again)
    if stated["epsilon"] is not None and not math.isclose(computed, stated["epsilon"], rel_tol=1e-3):
        warn(f"{path} states epsilon {stated['epsilon']:.4g}, and this release computes {computed:.4g}, which counts")
    return Entry(path, stated, rounds, again, found, task_clients)


def _guarantee(path: Path, about: dict[str, Any], trusted: bool) -> Guarantee:
    """Return the guarantee of a recorded run, as its engine found it."""
    method, task = rebuild(path, about, trusted=trusted)
    with reading(path):
        options = Options.read(about["options"])
    task, deployed = task.adapted(method.adapter), "deployment" in about
    bound = method.bind(Objective(task, "cpu", key(options.seed)))

    def split() -> Split | None:  # only the nodes of a deployment know their samples
        whole = task.split.hold_out(options.validate)[0] if options.validate else task.split
        return None if deployed else whole.pooled(len(task.data.test)) if method.pooled else whole

    known = partial(privacy_of, bound, options, task.clients, split, not deployed)
    found = known(secure_noise=True)
    assert found is not None  # its records have a statement
    return found.guarantee


def _total(entries: list[Entry], delta: float | None) -> Total:
    """Return the guarantee of all runs together."""
    known = [Spent(entry.guarantee, entry.rounds, entry.again) for entry in entries if entry.guarantee is not None]
    stated = [entry.stated for entry in entries if entry.guarantee is None]
    delta = delta if delta is not None else max(entry.stated["delta"] for entry in entries)
    if not stated:
        return composed(known, delta)
    units = sorted({entry.stated["unit"] for entry in entries})
    require((len(units) == 1, f"the runs protect different units ({' and '.join(units)})"))
    # Stated epsilons hold for their own delta alone, so deltas add up too.
    parts = [composed(known, delta)] if known else []
    epsilon = math.fsum([*(each["epsilon"] or math.inf for each in stated), *(part.epsilon for part in parts)])
    whole = math.fsum([*(each["delta"] for each in stated), *(part.delta for part in parts)])
    return Total(epsilon, whole, BASIC, common_relation([entry.stated["relation"] for entry in entries]))


def _table(facts: dict[str, Any]) -> str:
    """Return the facts as text."""
    rows = []
    for run in facts["runs"]:
        shown = "unbounded" if run["epsilon"] is None else f"{run['epsilon']:.4g}"
        alone = f"epsilon {shown}, delta {run['delta']:.3g}, {text.count(run['releases'], 'release')}"
        whose = "noise from the operating system" if run["private"] else "noise from the seed: protects nobody"
        rows.append((run["run"], f"{alone}, {whose}"))
    if not facts["private"]:
        why = "not private: who knows the seed of a run can subtract its noise; --as-if-secret counts it all the same"
        return text.pairs([*rows, ("together", why), ("assumes", facts["assumes"])])
    epsilon = "unbounded" if facts["epsilon"] is None else f"{facts['epsilon']:.4g}"
    if_secret = ", if the seeds of all runs were secret" if facts["as_if_secret"] else ""
    relation = facts["relation"]
    return text.pairs(
        [
            *rows,
            ("together", f"epsilon {epsilon}, delta {facts['delta']:.3g}, by {facts['by']}{if_secret}"),
            ("protects", f"each {facts['unit']} ({relation}: {RELATIONS[relation]})"),
            ("assumes", facts["assumes"]),
        ]
    )


def _parser() -> Parser:
    parser = Parser(
        prog="gossamer privacy spent",
        description="Show what several runs on the same clients have spent together.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="folder of a run")
    parser.add_argument("--delta", metavar="X", type=float, help="delta of all runs (default: the largest of theirs)")
    secret = "count runs whose noise came from the seed as if the seed were secret"
    parser.add_argument("--as-if-secret", action="store_true", help=secret)
    parser.add_argument("--trust", action="store_true", help=TRUST)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
