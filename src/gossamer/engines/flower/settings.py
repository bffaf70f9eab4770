"""Settings of a deployment, for its server."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_type_hints

from gossamer.core.availability import SECOND
from gossamer.core.errors import ConfigError, Mistakes, require, wrong_argument
from gossamer.engines.anomalies import DEPLOYED_EXCLUSION
from gossamer.engines.options import DEPLOYED_WEIGHT, Options
from gossamer.parts.channels.links import Perfect
from gossamer.runs.trackers import check_names


@dataclass(frozen=True)
class Settings:
    """Settings of a deployment; each can be set for one run with ``flwr run -c name=value``.

    Args:
        name: name of the method in tables
        rounds: number of rounds
        out: the run folder, on the SuperLink's machine
        resume: continue the run in that folder
        per_round: clients per round; 0 means all of them
        seed: seed of the data and the partition; also of all other randomness in a rehearsal
        rehearsal: draw what a simulation with the same seed draws, to compare both. By default, all random numbers
            follow from a secret key in the run folder. Noise and cohorts of private methods never follow from the seed
        device: device of the server, cpu or cuda
        precision: precision of local training on the nodes, float32, tf32 or bf16
        checkpointing: gradient checkpointing on the nodes: less memory, and one more forward pass per step
        eval_every: number of rounds between evaluations; the last round is always evaluated
        nodes: clients to wait for before the first round; 0 means a whole cohort
        wait: seconds to wait for them, and for enough clients in later rounds
        deadline: seconds within which a client must reply
        min_replies: fraction of a round's clients that must reply for the round to count
        until: targets such as accuracy=0.9 or loss<0.3; the first that is reached ends the run; empty: none
        patience: evaluations without improvement of the primary metric that end the run; 0: no such limit
        keys: folder with the nodes' public keys, node-0.pub and so on: a node proves its number with its key; empty:
            numbers are not checked
        anomalies: whether records name clients whose uploads are far from the cohort's
        exclude_after: rounds with an anomaly, among twice as many of a client's last ones, after which it is no longer
            sampled; 0: never
        track: trackers on the server's machine, such as tensorboard or tensorboard,wandb; empty: none
        max_weight: number of samples that counts for a client, as a multiple of the clients' median; 0: no such limit
        schedule: when clients start and when the server aggregates, such as deadline:60s,over=1.3 or
            fedbuff:buffer=10,concurrency=20; empty: rounds that wait for all their clients
        epsilon: privacy budget: the run ends before a round that would exceed it; 0: none
        delta: probability with which epsilon may be exceeded; 0: clients to the power of -1.1
        init: initial weights, a file or a run on the server's machine; nodes have the same by their entry init
    """

    name: str = "custom"
    rounds: int = 30
    out: str = "runs/deployed"
    resume: bool = False
    per_round: int = 0
    seed: int = 0
    rehearsal: bool = False
    device: str = "cpu"
    precision: str = "float32"
    checkpointing: bool = False
    eval_every: int = 1
    nodes: int = 0
    wait: float = 600.0
    deadline: float = 600.0
    min_replies: float = 0.5
    until: str = ""
    patience: int = 0
    keys: str = ""
    anomalies: bool = True
    exclude_after: int = DEPLOYED_EXCLUSION
    track: str = ""
    max_weight: float = DEPLOYED_WEIGHT
    schedule: str = ""
    epsilon: float = 0.0
    delta: float = 0.0
    init: str = ""

    def __post_init__(self) -> None:
        mistakes = Mistakes()
        options = mistakes.attempt(self.options)
        longest = (options.schedule.deadline or 0) / SECOND if options and options.schedule else 0.0
        mistakes.attempt(check_names, self.track)
        mistakes.attempt(
            require,
            (self.per_round >= 0, wrong_argument("per_round", self.per_round, "must not be negative")),
            (self.nodes >= 0, wrong_argument("nodes", self.nodes, "must not be negative")),
            (0 <= self.wait < math.inf, wrong_argument("wait", self.wait, "must be a number of seconds")),
            (
                0 < self.deadline < math.inf,
                wrong_argument("deadline", self.deadline, "must be positive seconds"),
            ),
            (
                not 0 < self.deadline < longest,
                wrong_argument(
                    "deadline", self.deadline, f"must be at least that of the schedule, {longest:g} seconds"
                ),
            ),
            (0 < self.min_replies <= 1, wrong_argument("min_replies", self.min_replies, "must be in (0, 1]")),
        )
        mistakes.settle()

    def options(self) -> Options:
        """Return the options that all engines share."""
        common = {field.name: getattr(self, field.name) for field in fields(Options) if hasattr(self, field.name)}
        optional = {"per_round": max(self.per_round, 0), "until": self.until, "patience": self.patience}
        optional |= {"max_weight": self.max_weight, "exclude_after": self.exclude_after, "schedule": self.schedule}
        optional |= {"epsilon": self.epsilon, "delta": self.delta}
        given = common | {name: value or None for name, value in optional.items()}
        return Options(**given, channel=Perfect())  # the links are real, also under a schedule

    def given(self, config: Mapping[str, Any]) -> "Settings":
        """Return the settings, updated with a run's configuration; other entries of it are ignored."""
        mistakes = Mistakes()
        configured = {name.replace("-", "_"): value for name, value in config.items()}
        kinds = {name: kind for name, kind in get_type_hints(Settings).items() if name in configured}
        values = {name: mistakes.attempt(_read, name, configured[name], kind) for name, kind in kinds.items()}
        mistakes.settle()
        return Settings(**{**asdict(self), **values})


def _read(name: str, value: Any, kind: type) -> Any:
    """Check a setting of a run's configuration; an integer is accepted as a float."""
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(wrong_argument(name, value, f"must be a {kind.__name__}"))
    return value
