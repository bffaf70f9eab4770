"""The arguments after ``gossamer run METHOD``: the flags of every run, and those of the method.

argparse is not used, because it stops at the first mistake and takes ``-1e-3`` for a flag.

``--fleet`` and ``--plan`` concern both the channel and the method. ``--channel wireless --fleet FILE`` is short for
``--channel wireless:FILE``. The same holds for the channel ``fleet``. Without a fleet the devices are phones: on radio
links (``gossamer.fleet.fleet.PHONES``), and for the channel ``fleet`` a drawn fleet (``sample:phones``). With
``--schedule`` and without ``--channel``, the channel is ``fleet``, because virtual time needs devices and links. A plan
sets the ``powers`` of the channel. If the method has the flags, it also sets ``--ratio``, ``--by tensor`` and
``--rows``. The values are recorded, so a resumed run does not need the file. A method without these flags takes only
the powers.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gossamer.analysis.planning import Plan
from gossamer.analysis.planning.work import check_work
from gossamer.cli.flags import Flag, Recipe, flags
from gossamer.cli.request import CLIENTS, DATA, FLEET, ROUNDS
from gossamer.core.errors import ConfigError
from gossamer.core.specs import NONE, nearest, parse, texts, written
from gossamer.engines.control import Until
from gossamer.engines.executors import EXECUTORS
from gossamer.engines.options import AUTO
from gossamer.engines.simulation import Simulation
from gossamer.fleet.fleet import AIR
from gossamer.parts.channels import CHANNELS
from gossamer.parts.channels.links import PLAUSIBLE, FleetLinks, Wireless
from gossamer.parts.schedules import SCHEDULES
from gossamer.runs.report.text import pairs
from gossamer.tasks.precision import FLOAT32, PRECISIONS

PLAN, WIRELESS, DEVICES, CAPACITIES, SCHEDULE = "plan", "wireless", "fleet", "capacities", "schedule"

LINKS: dict[str, type] = {WIRELESS: Wireless, DEVICES: FleetLinks}
"""Channels with the devices of a fleet."""

CONTRADICTED = ("measurements", "rise", "codec")
"""Flags that would contradict a plan, in addition to those that it sets."""


def share_fleet(given: dict[str, Any], own: Sequence[Flag]) -> list[str]:
    """Pass ``--fleet`` to the channel, and to the method if it has such a flag; return the mistakes.

    ``given`` is changed in place.
    """
    wanted = any(flag.name == FLEET for flag in own)
    idle = f"--capacities has no effect with --fleet, which sets them by memory: leave one out; {AIR}"
    unheeded = wanted and fleet_heeded(given) and CAPACITIES in given
    return [*([idle] if unheeded else []), *_handed(given, wanted)]


def fleet_heeded(given: dict[str, Any]) -> bool:
    """Return whether a fleet is given to the method."""
    return given.get(FLEET) not in (None, *NONE)


def _handed(given: dict[str, Any], wanted: bool) -> list[str]:
    path = given.get(FLEET) if wanted else given.pop(FLEET, None)
    path = None if path in NONE else path
    if given.get(SCHEDULE) not in (None, *NONE):  # virtual time needs devices
        given.setdefault("channel", DEVICES if path is not None else f"{DEVICES}:{PLAUSIBLE}")
    name, _, rest = given.get("channel", "").partition(":")
    if name not in LINKS:
        effect = "--fleet has no effect here: add --schedule, --channel wireless or --channel fleet, or leave it out"
        return [] if path is None or wanted else [effect]
    named = any(field == FLEET for field, _ in texts(rest, LINKS[name]))
    if path is not None and named and not wanted:
        return ["--channel and --fleet both name a fleet: choose one"]
    if path is not None and not named:
        given["channel"] = ",".join([f"{name}:{written(FLEET, path)}", *([rest] if rest else [])])
    return []


class Followed(NamedTuple):
    """The plan that a run follows."""

    plan: Plan | None = None  # the plan, if there is one
    whole: bool = False  # whether the method follows all of it, or the powers alone
    mistakes: tuple[str, ...] = ()  # the mistakes in its use

    def check(self, run: Simulation, method: str) -> list[str]:
        """Refuse a run whose work differs from the plan; return notes for the user."""
        if self.plan is None:
            return []
        if not self.whole:
            return [f"--plan: {method} takes only the powers: it prunes and sends differently from the plan"]
        try:
            return [f"--plan: {note}" for note in check_work(self.plan, run.method.method, run.objective, run.split)]
        except ConfigError as error:
            raise ConfigError(*(f"--plan: {mistake}" for mistake in error.mistakes)) from error


def follow_plan(given: dict[str, Any], own: Sequence[Flag], clients: int, seed: int) -> Followed:
    """Apply ``--plan`` to the given values, in place; call it after ``share``."""
    path, channel = given.pop(PLAN, None), str(given.get("channel", ""))
    if path is None:
        return Followed()
    name, _, fields = channel.partition(":")
    if name != WIRELESS:
        return Followed(mistakes=("--plan needs a wireless channel: add --channel wireless --fleet FILE",))
    try:
        plan = Plan.read(path)
        # A task has its own number of clients.
        number = len(plan.clients) if given.get("task") else int(given.get("clients", clients))
        try:
            found = parse(channel, CHANNELS, "channel")
        except ConfigError as error:
            raise ValueError(str(error)) from error
        assert isinstance(found, Wireless)
        plan.check(found, number, int(given.get("seed", seed)))
    except ConfigError as error:
        return Followed(mistakes=tuple(f"--plan: {mistake}" for mistake in error.mistakes))
    except ValueError:  # a wrong channel, number of clients or seed is reported elsewhere
        return Followed()
    says = {"ratio": "+".join(map(repr, plan.ratios)), "by": "tensor", "rows": str(plan.measurements)}
    known = {flag.name for flag in own}
    whole = says.keys() <= known
    twice = [name for name in (*says, *CONTRADICTED) if whole and name in given]
    twice += ["channel"] * ("powers" in dict(texts(fields, Wireless)))
    powers = f"powers={'+'.join(map(repr, plan.powers))}"
    given |= {**(says if whole else {}), "channel": f"{WIRELESS}:{','.join(filter(None, (fields, powers)))}"}
    return Followed(plan, whole, tuple(f"--{name} is set by the plan: leave one out" for name in twice))


SUITS = "that of the data set"
OWN = "that of the method"

CLIP = "clip"
MODES = ("central", "distributed", "local", "example")

WHERE = "local|auto|HOST:PORT"
EXECUTOR_NAMES = ", ".join((AUTO, *EXECUTORS))

SCHEDULE_NAMES = ", ".join(SCHEDULES)

RUN = [
    Flag("data", str, DATA, "data set; gossamer data list shows all", "NAME"),
    Flag("data_dir", str, "", "folder with the files of data sets", "DIR"),
    Flag("model", str, SUITS, "network; gossamer data list shows all", "NAME"),
    Flag("split", str, SUITS, "partition of the samples, such as dirichlet:0.3", "SPEC"),
    Flag("statistics", str, "batch", "statistics of static batch norms in evaluation, such as train:10", "SPEC"),
    Flag("clients", int, CLIENTS, "number of clients", "N"),
    Flag("data_seed", int, "that of the run", "seed of the data set and of the partition", "S"),
    Flag("task", str, "", "your own task, instead of data, model and split", "FILE.py:NAME"),
    Flag("codec", str, OWN, "codec of uploaded weights, such as eden:2", "SPEC|FILE.py:NAME"),
    Flag("down", str, "dense", "codec of downloaded weights, such as dense:float16; or delta", "SPEC|FILE.py:NAME"),
    Flag("solver", str, OWN, "local training of clients: adam, sgd, or your own", "NAME|FILE.py:NAME"),
    Flag("server", str, OWN, "robust aggregation, such as median or trimmed-mean:0.2", "SPEC|FILE.py:NAME"),
    Flag(
        "sampler",
        str,
        "uniform",
        "client sampling: uniform, poisson:RATE, by-size, round-robin or power-of-choice",
        "SPEC|FILE.py:NAME",
    ),
    Flag(
        "adapter", str, OWN, "train few tensors beside a frozen network: lora:RANK, or peft:RANK", "SPEC|FILE.py:NAME"
    ),
    Flag("secure", bool, False, "secure aggregation: the server learns only the sum of the uploads", ""),
    Flag("dp", str, "", "differential privacy; gossamer privacy shows what it takes", "|".join(MODES)),
    Flag("epsilon", float | None, None, "privacy budget, from which the noise follows; it also ends the run", "X"),
    Flag("delta", float, "units ** -1.1: clients, or samples", "probability with which epsilon may be exceeded", "X"),
    Flag(CLIP, str, "auto", "largest norm of an update with --dp, or that of a sample's gradient", "auto|X"),
    Flag("noise_multiplier", float, "that of --epsilon", "noise with --dp, divided by the clipping norm", "X"),
    Flag("colluding", float, "0.1", "share of a round's clients that may help the server, with --dp distributed", "P"),
    Flag("secure_noise", bool, False, "noise of differential privacy from the operating system, not the seed", ""),
    Flag("per_round", int, "all", "clients per round", "K"),
    Flag("rounds", int, ROUNDS, "number of rounds", "R"),
    Flag("seed", int, 0, "seed of all randomness", "S"),
    Flag("device", str, "cpu", "device of the computation", "cpu|cuda"),
    Flag("executor", str, AUTO, f"how clients are trained: {EXECUTOR_NAMES}; auto measures and chooses", "NAME"),
    Flag("cluster", str | None, None, "Ray cluster: this machine, the one it belongs to, or an address", WHERE),
    Flag("actors", int, "one per core or GPU", "Ray actors on each node of the cluster", "N"),
    Flag("precision", str, FLOAT32, "precision of local training; tf32 needs a GPU", "|".join(PRECISIONS)),
    Flag("checkpointing", bool, False, "gradient checkpointing: less memory, one more forward pass per step", ""),
    Flag("schedule", str | None, None, f"virtual time: {SCHEDULE_NAMES}; such as deadline:60s,over=1.3", "SPEC"),
    Flag("channel", str, "perfect", "channel of the messages: perfect, lossy:0.1, or wireless", "SPEC"),
    Flag(FLEET, str, "", "file of the clients' devices, for --channel wireless (default: phones)", "FILE"),
    Flag(PLAN, str, "", "file of gossamer plan: powers, pruning and measurements", "FILE"),
    Flag("failure_rate", float, 0, "fraction of clients that fail in a round, to test failures", "P"),
    Flag("attack", str, "", "hostile clients, such as scale:-50,share=0.2", "NAME[:X][,share=P]"),
    Flag("eval_every", int, 1, "rounds between evaluations", "K"),
    Flag("validate", int | None, None, "hold out every N-th training sample of each client, for validation", "N|none"),
    Flag("max_weight", float | None, None, "samples that count for a client, as a multiple of the median", "X|none"),
    Flag("until", Until, "", "target that ends the run, such as accuracy=0.9 or loss<0.3", "METRIC=X"),
    Flag("patience", int, "", "evaluations without improvement that end the run", "N"),
    Flag("anomalies", bool, True, "name clients in the records whose uploads are far from the cohort's", ""),
    Flag(
        "exclude_after",
        int,
        "never; 3 in deployments",
        "rounds with an anomaly, among twice as many, after which a client is no longer sampled; or none",
        "N",
    ),
    Flag("init", str, "", "initial weights: a state dict (.pt, .safetensors), or a run", "FILE|RUN"),
    Flag("track", str, "", "trackers, such as tensorboard or tensorboard,wandb", "tensorboard|mlflow|wandb"),
    Flag("out", str, "a new folder under runs/", "folder of the run", "DIR"),
]
CONFIG = Flag("config", str, "", "TOML file of flags; typed flags win", "FILE")

SET = Flag("set", str, "", "set a field of a part; may be repeated", "part.field=value")

OWN_MEANING = (FLEET, CLIP, "noise_multiplier")
"""Flags that a method may have too, with its own meaning."""


class Verb(NamedTuple):
    """A command that runs a method."""

    command: str  # the words before the flags
    flags: Sequence[Flag]  # the flags that do not depend on the method

    def of(self, method: str) -> str:
        """Return the command with a method."""
        return self.command.replace("METHOD", method)


RUN_VERB = Verb("gossamer run METHOD", RUN)


class Typed(NamedTuple):
    """Scanned arguments."""

    given: dict[str, Any]  # values by the name of their flag
    sets: list[str]  # values of ``--set``, in order
    strange: list[str]  # unknown flags
    mistakes: list[str]  # other mistakes


def own_flags(recipe: Recipe, name: str, verb: Verb = RUN_VERB) -> list[Flag]:
    """Return the flags of a method; refuse names that are taken, except ``--fleet``, which is shared.

    A method keeps flags of noise and clipping of its own: ``--clip`` of HeteroFL is the norm of a gradient.
    """
    own = flags(recipe, name)
    taken = {"--help", *(flag.word for flag in (*verb.flags, SET, CONFIG) if flag.name not in OWN_MEANING)}
    for flag in own:
        if clash := taken & flag.words.keys():
            raise ConfigError(f"{name}: its parameter {flag.name!r} clashes with {clash.pop()}: rename it")
        taken |= flag.words.keys()
    return own


def scan(words: Sequence[str], own: Sequence[Flag], verb: Verb = RUN_VERB) -> Typed:
    """Assign words to flags; values stay text."""
    known = {word: (flag, implied) for flag in (*verb.flags, SET, *own) for word, implied in flag.words.items()}
    typed = Typed({}, [], [], [])
    rest = list(words)
    while rest:
        word, equals, text = rest.pop(0).partition("=")
        follows = bool(rest) and not rest[0].startswith("--")
        if not word.startswith("-"):
            typed.mistakes.append(f"{word + equals + text!r} is not a flag: flags start with --")
        elif word not in known:
            typed.strange.append(word)
            rest = rest[1:] if follows and not equals else rest  # most likely its value
        elif known[word][1] is not None:
            _imply(typed, word, *known[word], text if equals else None)
        elif equals or follows:
            flag = known[word][0]
            text = text if equals else rest.pop(0)
            if flag is SET:
                typed.sets.append(text)
            else:
                typed.given[flag.name] = text
        else:
            typed.mistakes.append(f"{word} needs a value: {known[word][0].usage}")
    return typed


def _imply(typed: Typed, word: str, flag: Flag, implied: bool | None, text: str | None) -> None:
    if text is not None:
        typed.mistakes.append(f"{word} takes no value, got {text!r}: write {' or '.join(flag.words)}")
    typed.given[flag.name] = implied


def unknown_flag(word: str, method: str, own: Sequence[Flag], verb: Verb = RUN_VERB) -> str:
    """Return the message on an unknown flag."""
    if any(word in flag.words for flag in RUN):
        known = {"--clients": "a deployment has --nodes", "--secure-noise": "a deployment always draws it so"}
        instead = known.get(word, "only gossamer run has it")
        return f"unknown flag {word}: {instead}; {verb.of(method)} --help lists all"
    near = nearest(word, [known for flag in (*verb.flags, SET, CONFIG, *own) for known in flag.words])
    hint = f"did you mean {near}?" if near else f"{method} has {', '.join(flag.word for flag in own) or 'none'};"
    return f"unknown flag {word}: {hint} {verb.of(method)} --help lists all"


def verb_help(width: int, verb: Verb = RUN_VERB) -> str:
    """Return the help of a command without a method."""
    return (
        f"usage: {verb.command} [flags]\n\n"
        "METHOD is a name of `gossamer methods`, or FILE.py:RECIPE.\n"
        f"`{verb.command} --help` also shows the flags of that method.\n\n"
        f"flags of every method:\n{_listed([*verb.flags, SET, CONFIG], width)}"
    )


def method_help(method: str, sentence: str, own: Sequence[Flag], width: int, verb: Verb = RUN_VERB) -> str:
    """Return the help of a command with a method; a flag that is shared is listed with those of the method."""
    names = {flag.name for flag in own}
    head = f"usage: {verb.of(method)} [flags]\n\n{sentence}".rstrip()
    common = _listed([flag for flag in (*verb.flags, SET, CONFIG) if flag.name not in names], width)
    return f"{head}\n\nflags of {method}:\n{_listed(own, width)}\n\nflags of every method:\n{common}"


def _listed(known: Sequence[Flag], width: int) -> str:
    return pairs([(f"  {flag.usage}", flag.about) for flag in known], width) if known else "  none"
