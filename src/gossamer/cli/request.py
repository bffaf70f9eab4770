"""The request of a run: the arguments of the command line as plain data.

A request is kept in ``run.json``. ``build`` turns it into the objects of a run, for a new run and for a resumed one.
"""

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gossamer.cli import user_files
from gossamer.core.errors import RunError, listed
from gossamer.methods.registry import METHODS

DATA = "digits"
CLIENTS = 50
ROUNDS = 30

FLEET = "fleet"

TASK = ("data", "data_dir", "model", "split", "statistics", "clients", "data_seed")
"""The flags that ``--task`` replaces."""

PARTS = ("codec", "down", "solver", "server", "sampler", "adapter")
"""The parts of a method that a flag can replace."""


SECAGG = "secagg"
"""The protocol of ``--secure``."""

PRIVACY = ("dp", "clip", "noise_multiplier", "colluding")
"""The flags of differential privacy, beside the options of its budget."""


@dataclass(frozen=True)
class Request:
    """The arguments of a run, as typed.

    Args:
        method: the name of a method, or ``file.py:recipe``
        given: values of the method's flags
        sets: values of ``--set``
        data: the data set
        data_dir: the folder with the files of data sets
        model: the network
        split: the partition
        statistics: how static batch norms are evaluated
        clients: the number of clients
        task: ``file.py:name`` of a task
        codec: the codec of uploads
        down: the codec or the downlink of downloads
        solver: ``file.py:name`` of a solver
        server: a robust rule, or ``file.py:name`` of a server
        sampler: the sampler
        adapter: the adapter
        data_seed: the seed of the data and the partition; by default that of the run
        secure: the protocol of secure aggregation
        privacy: the flags of differential privacy; before the run starts, the noise and the numbers of clients and
            parameters are added
    """

    method: str
    given: dict[str, Any] = field(default_factory=dict)
    sets: tuple[str, ...] = ()
    data: str | None = None
    data_dir: str | None = None
    model: str | None = None
    split: str | None = None
    statistics: str | None = None
    clients: str | None = None
    task: str | None = None
    codec: str | None = None
    down: str | None = None
    solver: str | None = None
    server: str | None = None
    sampler: str | None = None
    adapter: str | None = None
    data_seed: str | None = None
    secure: str | None = None
    privacy: dict[str, Any] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        """Return the request for ``run.json``: files have their full path and a digest."""
        full = {name: user_files.full(spec) for name, spec in self.files().items()}
        data_dir = str(Path(self.data_dir).resolve()) if self.data_dir else None
        digests = {spec: user_files.digest(spec) for spec in full.values()}
        fleet = self.given.get(FLEET)
        given = {FLEET: str(Path(fleet).resolve())} if fleet and Path(fleet).is_file() else {}
        named = {"given": {**self.given, **given}, "data_dir": data_dir, "sets": list(self.sets)}
        return {**asdict(self), **full, **named, "digests": digests}

    @classmethod
    def read(cls, plain: dict[str, Any]) -> "Request":
        """Return the request that ``plain`` wrote."""
        asked = {name: value for name, value in plain.items() if name != "digests"}
        try:
            read = cls(**{**asked, "sets": tuple(asked["sets"])})
            texts = {name: value for name, value in vars(read).items() if name not in ("given", "sets", "privacy")}
            if strange := [name for name, value in texts.items() if not isinstance(value, str | None)]:
                raise TypeError(f"{listed(strange)} must be text")
            return read
        except (KeyError, TypeError) as error:
            raise RunError(f"run.json has a request that this release cannot read: {error}") from error

    @classmethod
    def recorded(cls, about: dict[str, Any]) -> "Request | None":
        """Return the request of a run: as typed, or by the recipe and the named task of Python; none for others."""
        if about["request"]:
            return cls.read(about["request"])
        recipe, task = about.get("recipe"), about.get("task_call")
        if not recipe or recipe["name"] not in METHODS or not task:
            return None
        named = {**task, "clients": str(task["clients"]), "data_seed": str(task["seed"])}
        del named["seed"]
        return cls(recipe["name"], recipe["given"], **named)

    def files(self) -> dict[str, str]:
        """Return the method, task and parts that are in user files."""
        asked = {name: getattr(self, name) for name in ("method", *PARTS)}
        named = {name: spec for name, spec in asked.items() if spec and user_files.is_file(spec)}
        return named | ({"task": self.task} if self.task else {})
