"""The command ``privacy``: the noise that a privacy budget takes, or the epsilon of some noise, without training."""

import json
import math
from argparse import Namespace
from typing import Any, NamedTuple, cast

from gossamer.cli.common import warn
from gossamer.cli.flags import value
from gossamer.cli.parser import Parser
from gossamer.cli.spent import spent
from gossamer.core.errors import Mistakes, require
from gossamer.core.privacy import Guarantee, Participation, Sampling
from gossamer.parts.codecs.private import honest, of_share
from gossamer.parts.privacy.accounting import ANYBODY, Accountant, SampledGaussian, dp_sgd, gaussian
from gossamer.parts.privacy.budget import calibrate, usual_delta
from gossamer.parts.secure import SecAgg
from gossamer.runs.report import text
from gossamer.runs.report.privacy import RELATIONS

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
    """The checked arguments.

    Args:
        mode: central, distributed, local or example
        participation: who takes part
        delta: the probability with which epsilon may be exceeded
        epsilon: the budget, if it is given
        noise: the noise multiplier, if it is given
        batch: the expected size of a batch, in example mode
        steps: steps per round, in example mode
        colluding: the share of a round's clients that may help the server, in distributed mode
    """

    mode: str
    participation: Participation
    delta: float
    epsilon: float | None
    noise: float | None
    batch: int
    steps: int
    colluding: float

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
    arguments = _parser().parse_args(words)
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
    exact = {"pld": _analysis(chosen)} if len(names) == 1 else {"pld": "PLD", "rdp": "RDP"}
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
        **(_shared(asked, noises["pld"]) if asked.mode == "distributed" else {}),
    }


def _shared(asked: Asked, noise: float) -> dict[str, Any]:
    """Return how much noise each client adds in distributed mode, so that the honest ones who are left add enough."""
    clients, lost = int(asked.participation.cohort), SecAgg().dropouts
    left = honest(clients, lost, asked.colluding)
    each = noise / math.sqrt(left)
    return {
        "noise_per_client": each,
        "noise_of_all": each * math.sqrt(clients),
        "honest": left,
        "who": f"{clients} clients, of whom {of_share(clients, lost)} may be lost and "
        f"{of_share(clients, asked.colluding)} may help the server, which subtracts their noise",
    }


def _shares(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of distributed mode."""
    if "honest" not in facts:
        return []
    each, whole = facts["noise_per_client"], facts["noise_of_all"]
    return [
        ("a round", facts["who"]),
        ("each client adds", f"{each:.4g} times the clipping norm: {whole:.4g} if all are left and none helps"),
    ]


def _analysis(guarantee: Guarantee) -> str:
    return "RDP" if guarantee.relation == "replace-one" else "exact"


def _noise(asked: Asked, accountant: Accountant) -> float:
    assert asked.epsilon is not None
    rounds = asked.participation.rounds
    return calibrate(lambda noise: asked.guarantee(noise, accountant), asked.epsilon, asked.delta, rounds)


def _table(facts: dict[str, Any]) -> str:
    """Return the facts as text."""
    first, *others = facts["noise_multiplier"].items()
    more = "".join(f" ({name} would take {noise:g})" for name, noise in others if noise != first[1])
    spent = [(name, f"{', '.join(_after(at, x) for at, x in row.items())}") for name, row in facts["epsilon"].items()]
    relation = facts["relation"]
    return text.pairs(
        [
            ("noise multiplier", f"{first[1]:g} times the clipping norm, by {first[0]}{more}"),
            *((f"epsilon by {name}", row) for name, row in spent),
            ("delta", f"{facts['delta']:.3g}"),
            ("protects", f"each {facts['unit']} ({relation}: {RELATIONS[relation]})"),
            ("from", facts["protects_from"]),
            ("sampling", facts["sampling"]),
            ("assumes", facts["assumes"]),
            *_shares(facts),
        ]
    )


def _after(rounds: str, epsilon: float) -> str:
    return f"{epsilon:.4g} after {text.count(int(rounds), 'round')}"


def _asked(arguments: Namespace) -> Asked:
    """Return the checked arguments; raise ``ConfigError`` with all mistakes."""
    mistakes, given = Mistakes(), dict[str, Any]()
    for name, (kind, _, _) in NUMBERS.items():
        typed = getattr(arguments, name)
        given[name] = mistakes.attempt(value, _word(name), typed, kind) if typed is not None else None
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
        *((given[name] >= 1, f"{_word(name)} must be at least 1, got {given[name]}") for name in whole),
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
            f"{', '.join(map(_word, EXAMPLE))}: only --dp example needs them",
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


def _word(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parser() -> Parser:
    parser = Parser(
        prog="gossamer privacy",
        description="Show the noise that a privacy budget takes, or the epsilon of some noise. Nothing is trained. "
        "`gossamer privacy spent RUN...` shows what runs on the same clients have spent together.",
    )
    for name, (_, takes, meaning) in NUMBERS.items():
        parser.add_argument(_word(name), metavar=takes, required=name in ("clients", "rounds"), help=meaning)
    help_dp = "whose noise: central, distributed, local or example (default: central)"
    parser.add_argument("--dp", metavar="MODE", choices=MODES, default="central", help=help_dp)
    help_sampling = "how clients are drawn: poisson, fixed or all (default: poisson; fixed with distributed)"
    parser.add_argument("--sampling", metavar="NAME", choices=SAMPLINGS, help=help_sampling)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser
