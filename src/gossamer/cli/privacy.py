"""The command ``privacy``: the noise that a privacy budget takes, or the epsilon of some noise, without training.

``privacy spent`` shows what several runs on the same clients have spent together. Each run is built again from its
folder, without training, and its guarantee is composed with the others (``parts.privacy.composition``). A run from
Python whose method the folder cannot build counts by what its last record states: its epsilon and its delta.
"""

import json
import math
from argparse import Namespace
from pathlib import Path
from typing import Any, NamedTuple, cast

from gossamer.cli.common import TRUST, Parser, flag_word, open_run, reading, warn
from gossamer.cli.flags import value
from gossamer.cli.reopen import rebuild
from gossamer.core.errors import ConfigError, Mistakes, RunError, require
from gossamer.core.privacy import SEED, SYSTEM, Guarantee, Participation, Sampling
from gossamer.core.random import key
from gossamer.engines.options import Options
from gossamer.engines.privacy import privacy_of
from gossamer.parts.codecs.private import honest, of_share
from gossamer.parts.privacy.accounting import ANYBODY, Accountant, SampledGaussian, dp_sgd, gaussian
from gossamer.parts.privacy.budget import BASIC, Spent, Total, calibrate, common_relation, composed, usual_delta
from gossamer.parts.secure import SecAgg
from gossamer.runs.folder import released
from gossamer.runs.records import read_metrics
from gossamer.runs.report import text
from gossamer.runs.report.part_reports import RELATIONS
from gossamer.tasks.data.partition import Split
from gossamer.tasks.objective import Objective

SHARES = (0.1, 0.5, 1.0)
"""The parts of a run after which epsilon is shown."""

MODES = ("central", "distributed", "local", "example")
SAMPLINGS = ("poisson", "fixed", "all")

ASSUMED = {
    "central": "the server clips the updates, adds the noise and is trusted; everybody else sees only models",
    "distributed": "clients add the noise, and secure aggregation reveals only sums. Whole numbers take a little more "
    "noise than this, which depends on the model: gossamer run --dp distributed computes it",
    "local": "each client adds the noise to its own update, and the server sees every message",
    "example": "each client draws Poisson batches, clips the gradient of each sample and adds the noise in every step",
}
"""What must hold, by mode."""


class Asked(NamedTuple):
    """The checked arguments."""

    mode: str  # central, distributed, local or example
    participation: Participation  # who takes part
    delta: float  # the probability with which epsilon may be exceeded
    epsilon: float | None  # the budget, if it is given
    noise: float | None  # the noise multiplier, if it is given
    batch: int  # the expected size of a batch, in example mode
    steps: int  # steps per round, in example mode
    colluding: float  # the share of a round's clients that may help the server, in distributed mode

    def guarantee(self, noise: float, accountant: Accountant) -> Guarantee:
        """Return the guarantee for a noise multiplier."""
        if self.mode == "example":
            return dp_sgd(noise, self.batch, self.participation, steps=self.steps, accountant=accountant)
        known = self.participation if self.mode != "local" else self.participation._replace(sampling="other")
        from_whom = ANYBODY if self.mode == "central" else "everybody, the server too"
        return gaussian(noise, known, accountant=accountant, protects_from=from_whom)


def privacy(words: list[str]) -> int:
    """``gossamer privacy --clients N --per-round K --rounds R --epsilon X``, and ``gossamer privacy spent RUNS...``."""
    if words[:1] == ["spent"]:
        return spent(words[1:])
    parser = Parser(
        prog="gossamer privacy",
        description="Show the noise that a privacy budget takes, or the epsilon of some noise. Nothing is trained. "
        "`gossamer privacy spent RUN...` shows what runs on the same clients have spent together.",
    )
    for name, (_, takes, meaning) in NUMBERS.items():
        parser.add_argument(flag_word(name), metavar=takes, required=name in ("clients", "rounds"), help=meaning)
    help_dp = "whose noise: central, distributed, local or example (default: central)"
    parser.add_argument("--dp", metavar="MODE", choices=MODES, default="central", help=help_dp)
    help_sampling = "how clients are drawn: poisson, fixed or all (default: poisson; fixed with distributed)"
    parser.add_argument("--sampling", metavar="NAME", choices=SAMPLINGS, help=help_sampling)
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args(words)
    asked = _asked(arguments)
    if asked.delta >= 1 / asked.participation.clients:
        few = f"--delta {asked.delta:g} is not below 1 / clients"
        warn(f"{few}: all data of one client could be revealed; use {usual_delta(asked.participation.clients):.2g}")
    facts = _facts(asked)
    print(json.dumps(facts, indent=2) if arguments.json else _table(facts))
    return 0


def _facts(asked: Asked) -> dict[str, Any]:
    """Return everything that is shown."""
    made = asked.guarantee(asked.noise or 1.0, "pld")
    names: tuple[Accountant, ...] = ("pld", "rdp") if isinstance(made, SampledGaussian) else ("pld",)
    noises = {name: asked.noise or _noise(asked, name) for name in names}
    chosen = asked.guarantee(noises["pld"], "pld")
    after = sorted({max(1, round(share * asked.participation.rounds)) for share in SHARES})
    epsilons = {
        name: [asked.guarantee(noises["pld"], name).epsilon(rounds, asked.delta) for rounds in after] for name in names
    }
    exact = {"pld": "PLD", "rdp": "RDP"}
    if len(names) == 1:
        exact["pld"] = "RDP" if chosen.relation == "replace-one" else "exact"
    shared: dict[str, Any] = {}
    if asked.mode == "distributed":  # the honest clients who are left must add enough noise
        clients, lost = int(asked.participation.cohort), SecAgg().dropouts
        left = honest(clients, lost, asked.colluding)
        each = noises["pld"] / math.sqrt(left)
        shared = {
            "noise_per_client": each,
            "noise_of_all": each * math.sqrt(clients),
            "honest": left,
            "who": f"{clients} clients, of whom {of_share(clients, lost)} may be lost and "
            f"{of_share(clients, asked.colluding)} may help the server, which subtracts their noise",
        }
    return {
        "noise_multiplier": {exact[name]: noise for name, noise in noises.items()},
        "epsilon": {exact[name]: dict(zip(map(str, after), spent, strict=True)) for name, spent in epsilons.items()},
        "delta": asked.delta,
        "unit": chosen.unit,
        "relation": chosen.relation,
        "mechanism": chosen.mechanism,
        "sampling": chosen.sampling,
        "protects_from": chosen.protects_from,
        "assumes": ASSUMED[asked.mode],
        **shared,
    }


def _noise(asked: Asked, accountant: Accountant) -> float:
    assert asked.epsilon is not None
    rounds = asked.participation.rounds
    return calibrate(lambda noise: asked.guarantee(noise, accountant), asked.epsilon, asked.delta, rounds)


def _table(facts: dict[str, Any]) -> str:
    """Return the facts as text."""
    first, *others = facts["noise_multiplier"].items()
    more = "".join(f" ({name} would take {noise:g})" for name, noise in others if noise != first[1])
    rows = [("noise multiplier", f"{first[1]:g} times the clipping norm, by {first[0]}{more}")]
    for name, row in facts["epsilon"].items():
        after = (f"{epsilon:.4g} after {text.count(int(rounds), 'round')}" for rounds, epsilon in row.items())
        rows.append((f"epsilon by {name}", ", ".join(after)))
    rows += [
        ("delta", f"{facts['delta']:.3g}"),
        ("protects", f"each {facts['unit']} ({facts['relation']}: {RELATIONS[facts['relation']]})"),
        *((name.replace("protects_", ""), facts[name]) for name in ("protects_from", "sampling", "assumes")),
    ]
    if "honest" in facts:
        each, whole = facts["noise_per_client"], facts["noise_of_all"]
        sums = f"{each:.4g} times the clipping norm: {whole:.4g} if all are left and none helps"
        rows += [("a round", facts["who"]), ("each client adds", sums)]
    return text.pairs(rows)


def _asked(arguments: Namespace) -> Asked:
    """Return the checked arguments; raise ``ConfigError`` with all mistakes."""
    mistakes, given = Mistakes(), dict[str, Any]()
    for name, (kind, _, _) in NUMBERS.items():
        typed = getattr(arguments, name)
        given[name] = mistakes.attempt(value, flag_word(name), typed, kind) if typed is not None else None
    mistakes.attempt(_check, given, arguments.dp, arguments.sampling)
    mistakes.settle()
    clients, rounds = given["clients"], given["rounds"]
    cohort, mode = given["per_round"] or clients, arguments.dp
    usual = "all" if cohort == clients else "fixed" if mode == "distributed" else "poisson"
    sampling = cast(Sampling, arguments.sampling or usual)
    who = Participation(clients, cohort, sampling, rounds, given["samples"] or 0)
    units = clients * given["samples"] if mode == "example" else clients
    budget = (given["delta"] or usual_delta(units), given["epsilon"], given["noise_multiplier"])
    bad = SecAgg().colluding if given["colluding"] is None else given["colluding"]
    return Asked(mode, who, *budget, given["batch"] or 0, given["steps"] or 0, bad)


def _check(given: dict[str, Any], mode: str, sampling: str | None) -> None:
    """Raise ``ConfigError`` with everything that does not fit."""
    clients, cohort, training = given["clients"], given["per_round"], [given[name] for name in EXAMPLE]
    whole = [name for name in ("clients", "per_round", "rounds", *EXAMPLE) if given[name] is not None]
    require(
        *((given[name] >= 1, f"{flag_word(name)} must be at least 1, got {given[name]}") for name in whole),
        (
            cohort is None or clients is None or cohort <= clients,
            f"--per-round is {cohort}, but there are only {clients} clients",
        ),
        (
            given["epsilon"] is not None or given["noise_multiplier"] is not None,
            "give --epsilon for the noise that it takes, or --noise-multiplier for its epsilon",
        ),
        (
            given["noise_multiplier"] is None or given["noise_multiplier"] > 0,
            f"--noise-multiplier must be positive, got {given['noise_multiplier']}: without noise there is no privacy",
        ),
        (
            given["delta"] is None or 0 < given["delta"] < 1,
            f"--delta must be above 0 and below 1, got {given['delta']}",
        ),
        (
            given["epsilon"] is None or given["noise_multiplier"] is None,
            "--epsilon and --noise-multiplier were both given: choose one",
        ),
        (mode != "example" or None not in training, "--dp example needs --samples, --batch and --steps of a client"),
        (
            mode == "example" or training == [None] * 3,
            f"{', '.join(map(flag_word, EXAMPLE))}: only --dp example needs them",
        ),
        (
            mode != "distributed" or sampling != "poisson",
            "--dp distributed needs rounds with a fixed number of clients, who share the noise: use --sampling fixed",
        ),
        (
            mode == "distributed" or given["colluding"] is None,
            "--colluding: only --dp distributed needs it, where clients share the noise",
        ),
        (
            given["colluding"] is None or 0 <= given["colluding"] < 1 - SecAgg().dropouts,
            f"--colluding must be at least 0 and below {1 - SecAgg().dropouts:g}, got {given['colluding']}",
        ),
        (
            sampling != "all" or cohort in (None, clients),
            f"--sampling all: all {clients} clients take part, and --per-round is {cohort}",
        ),
    )


EXAMPLE = ("samples", "batch", "steps")
"""Flags of example mode."""

NUMBERS: dict[str, tuple[type, str, str]] = {
    "clients": (int, "N", "number of clients (required)"),
    "per_round": (int, "K", "clients per round, on average with Poisson sampling (default: all)"),
    "rounds": (int, "R", "number of rounds (required)"),
    "epsilon": (float, "X", "the budget of all rounds: print the noise that it takes"),
    "noise_multiplier": (float, "X", "noise divided by the clipping norm: print its epsilon"),
    "delta": (
        float,
        "X",
        "probability with which epsilon may be exceeded (default: units ** -1.1)",
    ),
    "samples": (int, "N", "smallest number of samples of a client, with --dp example"),
    "batch": (int, "N", "expected samples of a batch, with --dp example"),
    "steps": (int, "N", "steps of a client per round, with --dp example"),
    "colluding": (float, "P", "share of a round's clients that help the server, with --dp distributed (default: 0.1)"),
}
"""Flags with a number: its type, its placeholder and its meaning."""


ONE_POPULATION = (
    "the runs had the same clients, and there were no others: this is a ledger for one population, and nothing in a "
    "run folder proves which one it was"
)
"""What the command takes for granted."""


class Entry(NamedTuple):
    """A run in the ledger."""

    path: Path  # its folder
    stated: dict[str, Any]  # what its last record states
    rounds: int  # its number of finished rounds
    again: int  # how many more results may have been released
    guarantee: Guarantee | None  # its guarantee; none if the folder cannot build it
    clients: int  # its number of clients

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
    arguments = parser.parse_args(words)
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
        "assumes": ONE_POPULATION,
    }
    counts = {entry.clients for entry in entries}
    if len(counts) > 1:
        warn(f"the runs have {', '.join(map(str, sorted(counts)))} clients: are these the same people?")
    print(json.dumps(facts, indent=2) if arguments.json else _ledger(facts))
    return 0


def _entry(path: Path, trusted: bool) -> Entry:
    """Return a run with its guarantee."""
    about = open_run(path)
    records = read_metrics(path)
    stated = next((found for each in reversed(records) if (found := each.get("figures", {}).get("privacy"))), None)
    if stated is None:
        raise RunError(f"{path} states nothing about privacy: what its models reveal has no bound")
    rounds = len(records)
    # Attempts after the last record count too.
    again = max(0, max(int(stated.get("releases", 0)), released(path)) - rounds)
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

    found = privacy_of(bound, options, task.clients, split, not deployed, secure_noise=True)
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


def _ledger(facts: dict[str, Any]) -> str:
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
    together = f"epsilon {epsilon}, delta {facts['delta']:.3g}, by {facts['by']}{if_secret}"
    protects = f"each {facts['unit']} ({facts['relation']}: {RELATIONS[facts['relation']]})"
    return text.pairs([*rows, ("together", together), ("protects", protects), ("assumes", facts["assumes"])])
