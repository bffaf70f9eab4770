"""Options of a run: rounds, cohort size, seed, device, executor, precision, checkpointing and channel."""

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from gossamer.core.channel import Channel
from gossamer.core.errors import ConfigError, Mistake, Setting, require, wrong_argument
from gossamer.core.fields import check_fields
from gossamer.core.schedule import Schedule
from gossamer.core.specs import parse, spec, unknown
from gossamer.engines.anomalies import FEWEST
from gossamer.engines.control import Until
from gossamer.engines.executors import EAGER, EXECUTORS
from gossamer.fleet.fleet import Fleet
from gossamer.parts.attacks import ATTACKS
from gossamer.parts.attacks.base import Attack
from gossamer.parts.channels import CHANNELS
from gossamer.parts.channels.links import PLAUSIBLE, FleetLinks, Perfect
from gossamer.parts.schedules import SCHEDULES
from gossamer.tasks.precision import FLOAT32, PRECISIONS

AUTO = "auto"
"""Value of ``executor`` that measures all executors and chooses the fastest."""

CLUSTERS = ("local", "auto")
"""Values of ``cluster`` beside addresses: Ray on this machine alone, and the cluster that this machine belongs to."""

DEPLOYED_WEIGHT = 5.0
"""Default of ``max_weight`` in a deployment, where clients state their numbers of samples themselves."""

BY_SCRIPT = "is an object of your own that the folder cannot build: run its script again with resume=True"

ELSEWHERE = {
    **dict.fromkeys(("lr", "epochs", "steps", "batch", "weights"), "method, such as fedavg({}=...)"),
    **dict.fromkeys(("clients", "split", "model", "loss"), "task, such as Task.of(..., {}=...)"),
    **dict.fromkeys(
        ("codec", "down", "solver", "server", "sampler", "adapter", "view"), "method: fedavg().with_parts({}=...)"
    ),
}
"""Names that are no options, and where they belong."""


@dataclass(frozen=True)
class Options:
    """Options of a run, in addition to its method and task.

    Args:
        rounds: number of rounds
        per_round: clients per round; none means all of them
        seed: seed of all randomness
        device: cpu or cuda, as a text or a ``torch.device``
        precision: precision of local training: float32, tf32 (on a GPU) or bf16
        checkpointing: gradient checkpointing in local training: less memory, and one more forward pass per step
        executor: how the clients of a round are trained; auto measures and chooses
        channel: model of the uplink; by default perfect, and under a schedule that of plausible phones
        failure_rate: probability of a simulated failure, per client and round
        eval_every: number of rounds between evaluations; the last round is always evaluated
        validate: hold out every n-th training sample of each client, and evaluate on these samples too; none means that
            no sample is held out
        until: targets such as accuracy=0.9 or loss<0.3; the first that is reached ends the run
        patience: evaluations without improvement of the primary metric that end the run, on held-out samples if there
            are any; none means no such limit
        max_weight: largest number of samples that counts for a client, as a multiple of the clients' median; none means
            no such limit
        attack: what hostile clients do, or its text, such as scale:-50,share=0.2; none means that all are honest
        anomalies: whether records name clients whose uploads are far from the cohort's
        exclude_after: rounds with an anomaly, among the last ones of a client, after which it is no longer sampled;
            none means that no client is excluded
        cluster: train on a Ray cluster: local (this machine), auto (the cluster of this machine), or HOST:PORT; none
            means without Ray
        actors: Ray actors on each node of the cluster; none means one per core, or with cuda one per GPU
        schedule: when clients start and when the server aggregates, or its text, such as deadline:60s,over=1.3; none
            means rounds without virtual time
        epsilon: privacy budget: the run ends before a round that would exceed it; for methods that add noise
        delta: probability with which epsilon may be exceeded; none means clients to the power of -1.1
        secure_noise: draw the noise of differential privacy from the operating system, in place of the seed: such a run
            cannot be repeated, and its noise protects somebody. A deployment always does
    """

    rounds: int = 30
    per_round: int | None = None
    seed: int = 0
    device: str = "cpu"
    executor: str = "one-by-one"
    precision: str = FLOAT32
    checkpointing: bool = False
    channel: Channel = Perfect()
    failure_rate: float = 0.0
    eval_every: int = 1
    validate: int | None = None
    until: Until | None = None
    patience: int | None = None
    max_weight: float | None = None
    attack: Attack | None = None
    anomalies: bool = True
    exclude_after: int | None = None
    cluster: str | None = None
    actors: int | None = None
    schedule: Schedule | None = None
    epsilon: float | None = None
    delta: float | None = None
    secure_noise: bool = False

    def __new__(cls, *args: Any, **options: Any) -> "Options":
        """Check the types of the options, then make the object."""
        device = {"device": str(options["device"])} if isinstance(options.get("device"), torch.device) else {}
        texts = {name: None for name in ("attack", "schedule") if isinstance(options.get(name), str)}  # read below
        check_fields(cls, args, options | device | texts, part="")
        return super().__new__(cls)

    def __post_init__(self) -> None:
        device = "cuda" if str(self.device) == "cuda:0" else str(self.device)
        plain = {"device": device} | {
            name: value.item() for name, value in vars(self).items() if isinstance(value, np.generic)
        }
        for name, value in plain.items():
            object.__setattr__(self, name, value)
        if isinstance(self.attack, str):
            object.__setattr__(self, "attack", Attack.of_text(self.attack))
        if isinstance(self.schedule, str):
            object.__setattr__(self, "schedule", parse(self.schedule, SCHEDULES, "schedule"))
        if self.schedule is not None and self.channel is Options.channel:  # virtual time needs devices
            object.__setattr__(self, "channel", FleetLinks(Fleet.of_text(PLAUSIBLE)))
        if self.until is not None:
            object.__setattr__(self, "until", Until.of(self.until))
        require(
            (
                self.patience is None or self.patience >= 1,
                wrong_argument("patience", self.patience, "must be at least 1"),
            ),
            (
                self.exclude_after is None or self.exclude_after >= 1,
                wrong_argument("exclude_after", self.exclude_after, "must be at least 1, or none"),
            ),
            (
                self.anomalies or self.exclude_after is None,
                Mistake("needs {}", Setting("", "exclude_after"), Setting("", "anomalies", True)),
            ),
            (self.rounds >= 1, wrong_argument("rounds", self.rounds, "must be at least 1")),
            (
                self.max_weight is None or 1 <= self.max_weight < math.inf,
                wrong_argument("max_weight", self.max_weight, "must be at least 1, or none"),
            ),
            (
                self.per_round is None or self.per_round >= 1,
                wrong_argument("per_round", self.per_round, "must be at least 1"),
            ),
            (
                self.epsilon is None or 0 < self.epsilon < math.inf,
                wrong_argument("epsilon", self.epsilon, "must be a positive number, or none"),
            ),
            (
                self.delta is None or 0 < self.delta < 1,
                wrong_argument("delta", self.delta, "must be above 0 and below 1, or none"),
            ),
            (self.seed >= 0, wrong_argument("seed", self.seed, "must not be negative")),
            (self.executor in (AUTO, *EXECUTORS), unknown("executor", self.executor, (AUTO, *EXECUTORS))),
            (self.precision in PRECISIONS, unknown("precision", self.precision, PRECISIONS)),
            (
                not self.checkpointing or self.executor in (AUTO, *EAGER),
                Mistake(
                    f"needs {_either(AUTO, *EAGER)} as {{}}", Setting("", "checkpointing"), Setting("", "executor")
                ),
            ),
            (0 <= self.failure_rate <= 1, wrong_argument("failure_rate", self.failure_rate, "must be in [0, 1]")),
            (self.eval_every >= 1, wrong_argument("eval_every", self.eval_every, "must be at least 1")),
            (
                self.validate is None or self.validate >= 2,
                wrong_argument("validate", self.validate, "must be at least 2, or none"),
            ),
            (hasattr(self.channel, "fit"), wrong_argument("channel", self.channel, "must be a Channel")),
            _device(self.device),
            *_cluster(self.cluster, self.actors, self.executor),
        )

    def cohort(self, clients: int) -> int:
        """Return the cohort size, given the number of clients."""
        size = clients if self.per_round is None else self.per_round
        too_few = Mistake(f"is {size}, but there are only {clients} clients", Setting("", "per_round"))
        require((size <= clients, too_few))
        return size

    def updates(self, cohort: int) -> int:
        """Return the number of updates that a round aggregates if no client fails, given the clients per round."""
        return (self.schedule.goal(cohort) if self.schedule else None) or cohort

    def check_exclusion(self, clients: int) -> None:
        """Refuse to exclude clients in rounds that are too small to name one, given the number of clients."""
        size = self.updates(self.cohort(clients))
        few = f"needs rounds with at least {FEWEST} clients, which it compares, and a round has {size}"
        text = f"{few}: leave it out, or use more clients, or a larger {{}}"
        mistake = Mistake(text, Setting("", "exclude_after"), Setting("", "per_round"))
        require((self.exclude_after is None or size >= FEWEST, mistake))

    def describe(self) -> dict[str, Any]:
        """Return the options as JSON for the run folder; ``read`` is the inverse.

        What earlier releases lack is left out if it has its default, so that their runs can be continued.
        """
        newer = {
            "validate": self.validate,
            "until": self.until.to_text() if self.until else None,
            "patience": self.patience,
            "precision": None if self.precision == FLOAT32 else self.precision,
            "checkpointing": self.checkpointing or None,
            "max_weight": self.max_weight,
            "anomalies": None if self.anomalies else False,
            "exclude_after": self.exclude_after,
            "attack": spec(self.attack, ATTACKS) if self.attack else None,
            "cluster": self.cluster,
            "actors": self.actors,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "secure_noise": self.secure_noise or None,
            "schedule": spec(self.schedule, SCHEDULES) if self.schedule else None,
        }
        plain = {name: value for name, value in vars(self).items() if name not in newer}
        given = {name: value for name, value in newer.items() if value is not None}
        return {**plain, "channel": spec(self.channel, CHANNELS), **given}

    @classmethod
    def of(cls, given: dict[str, Any], others: Iterable[str]) -> "Options":
        """Return options by name; refuse unknown names. ``others`` are names that may have been meant as well."""
        known = {option.name for option in fields(cls)}
        strange = [name for name in given if name not in known]
        if strange:
            raise ConfigError(*(_stray(name, {*known, *others} - {"options"}) for name in strange))
        return cls(**given)

    @classmethod
    def read(cls, described: dict[str, Any]) -> "Options":
        """Return the options that ``describe`` wrote; refuse objects of the user, which are recorded as text."""
        own = [name for name, known in RECORDED.items() if _own(described.get(name), known)]
        require(*((False, f"the {name} of the run, {described[name]}, {BY_SCRIPT}") for name in own))
        return cls(**{**described, "channel": parse(described["channel"], CHANNELS, "channel")})


RECORDED: dict[str, Iterable[str]] = {"channel": CHANNELS, "attack": ATTACKS, "schedule": SCHEDULES}
"""Options that are recorded as specs, with the names that these may have."""


def _own(text: Any, known: Iterable[str]) -> bool:
    """Return whether an option is recorded as the ``repr`` of an object that has no name."""
    return isinstance(text, str) and "(" in text and text.partition(":")[0] not in set(known)


def _stray(name: str, known: Iterable[str]) -> str:
    """Return the message on an unknown option."""
    if name in ELSEWHERE:
        return f"{name} is not an option of the run: give it to the {ELSEWHERE[name].format(name)}"
    return unknown("option", name, known)


def known_cluster(cluster: str) -> tuple[bool, Mistake]:
    """Return the check of the name or the address of a cluster."""
    address = re.fullmatch(r"[^\s:/]+:(\d{1,5})", cluster)
    known = cluster in CLUSTERS or (address is not None and 0 < int(address[1]) < 2**16)
    return known, wrong_argument("cluster", cluster, "must be local, auto, or HOST:PORT such as 10.0.0.1:6379")


def _cluster(cluster: str | None, actors: int | None, executor: str) -> Iterator[tuple[bool, Mistake]]:
    """Yield the checks of a cluster and its actors."""
    if cluster is None:
        yield actors is None, Mistake("needs {}", Setting("", "actors"), Setting("", "cluster"))
        return
    yield known_cluster(cluster)
    yield actors is None or actors >= 1, wrong_argument("actors", actors, "must be at least 1")
    one_core = ": threaded needs all cores of a machine, and an actor of {} has one: use one-by-one, or auto"
    threaded = Mistake(one_core, Setting("", "executor"), Setting("", "cluster"))
    yield executor != "threaded", threaded


def _either(*names: str) -> str:
    return f"{', '.join(names[:-1])} or {names[-1]}"


def _device(name: str) -> tuple[bool, str]:
    if name.startswith("cuda:"):
        number = name.removeprefix("cuda:")
        return (
            False,
            f"device {name}: a run uses the first visible GPU: set CUDA_VISIBLE_DEVICES={number}, use cuda",
        )
    if name not in ("cpu", "cuda"):
        hint = "did you mean cuda? " if name.lower() in ("gpu", "cuda", "nvidia") else ""
        return False, f"unknown device {name!r}: {hint}known: cpu, cuda"
    return name == "cpu" or torch.cuda.is_available(), "device cuda is not available, torch finds no GPU: use cpu"
