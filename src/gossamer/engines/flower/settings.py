"""How a deployment is carried out: what its server goes by."""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, get_type_hints

from gossamer.core.errors import ConfigError, Mistakes, require, wrong_argument
from gossamer.engines.options import Options


@dataclass(frozen=True)
class Settings:
    """How a deployment is carried out; each can be set for one run with ``flwr run -c name=value``.

    Args:
        name: what the method is called in tables
        rounds: how many rounds
        out: the run's folder, on the SuperLink's machine
        resume: go on with the run in that folder
        per_round: clients in a round; 0 means all of them
        seed: where all randomness comes from
        device: where the server computes
        eval_every: evaluate every so many rounds, and after the last
        nodes: clients to wait for before the first round; 0 means a whole round's
        wait: seconds to wait for them, and for enough of them in later rounds
        deadline: seconds that a round's clients have to reply
        min_replies: share of a round's clients that must reply for the round to count
    """

    name: str = "custom"
    rounds: int = 30
    out: str = "runs/deployed"
    resume: bool = False
    per_round: int = 0
    seed: int = 0
    device: str = "cpu"
    eval_every: int = 1
    nodes: int = 0
    wait: float = 600.0
    deadline: float = 600.0
    min_replies: float = 0.5

    def __post_init__(self) -> None:
        mistakes = Mistakes()
        mistakes.attempt(self.options)
        mistakes.attempt(
            require,
            (self.per_round >= 0, wrong_argument("per_round", self.per_round, "must not be negative")),
            (self.nodes >= 0, wrong_argument("nodes", self.nodes, "must not be negative")),
            (0 <= self.wait < math.inf, wrong_argument("wait", self.wait, "must be a number of seconds")),
            (
                0 < self.deadline < math.inf,
                wrong_argument("deadline", self.deadline, "must be positive seconds"),
            ),
            (0 < self.min_replies <= 1, wrong_argument("min_replies", self.min_replies, "must be in (0, 1]")),
        )
        mistakes.settle()

    def options(self) -> Options:
        """What any engine is told."""
        common = {field.name: getattr(self, field.name) for field in fields(Options) if hasattr(self, field.name)}
        return Options(**{**common, "per_round": self.per_round if self.per_round > 0 else None})

    def given(self, config: Mapping[str, Any]) -> "Settings":
        """These, with what a run's configuration says instead; its other entries are not meant for us."""
        mistakes = Mistakes()
        said = {name.replace("-", "_"): value for name, value in config.items()}
        kinds = {name: kind for name, kind in get_type_hints(Settings).items() if name in said}
        values = {name: mistakes.attempt(_read, name, said[name], kind) for name, kind in kinds.items()}
        mistakes.settle()
        return Settings(**{**asdict(self), **values})


def _read(name: str, value: Any, kind: type) -> Any:
    """A setting from a run's configuration; a whole number will do for any number."""
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise ConfigError(wrong_argument(name, value, f"must be a {kind.__name__}"))
    return value
