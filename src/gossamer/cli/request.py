"""The request of a run: the arguments of the command line as plain data, in ``run.json`` and as a file of ``--config``.

``build`` turns a request into the objects of a run, for a new run and for a resumed one. A file of ``--config`` has the
arguments in TOML, one key per flag:

    method = "fedavg"
    rounds = 30
    lr = 0.1
    set = ["solver.momentum=0.9"]

It is turned into the words of a command line, before those that were typed. So its keys are checked as flags are,
typed flags win over the file, and paths in it are relative to the current folder. ``gossamer show RUN --config`` prints
the file that repeats a run.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gossamer.cli import user_files
from gossamer.core.errors import ConfigError, RunError, listed
from gossamer.engines.options import AUTO, Options
from gossamer.methods.registry import METHODS
from gossamer.runs.records import EXTENDED, INIT

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


CONFIG_FLAG = "--config"

TERMS = ("nodes", "deadline", "wait", "min_replies")
"""Settings of a deployment that are flags of ``deploy try``."""

REPEATED = ("set", "grid")
"""Flags that may be given several times: a list has one value of each."""

RULES = ("until", "patience")
"""Options that end a run early."""


def expanded(words: list[str]) -> list[str]:
    """Return the words of a command with the file of ``--config`` in place of that flag: method, file, typed flags."""
    at = next((i for i, word in enumerate(words) if word == CONFIG_FLAG or word.startswith(f"{CONFIG_FLAG}=")), None)
    if at is None:
        return words
    _, equals, name = words[at].partition("=")
    if not equals and at + 1 == len(words):
        raise ConfigError(f"{CONFIG_FLAG} needs a value: {CONFIG_FLAG} FILE")
    file, rest = (name, words[at + 1 :]) if equals else (words[at + 1], words[at + 2 :])
    typed = [*words[:at], *rest]
    if CONFIG_FLAG in typed:
        raise ConfigError(f"{CONFIG_FLAG} was given twice: give one file")
    found = _contents(Path(file))
    method = found.pop("method", None)
    named = [typed.pop(0)] if typed and not typed[0].startswith("-") else [method] if method else []
    return [*named, *(word for key, value in found.items() for word in _words(key, value, file)), *typed]


def _contents(file: Path) -> dict[str, Any]:
    """Return the contents of a config file."""
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"{CONFIG_FLAG} {file}: it cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{CONFIG_FLAG} {file}: it is not TOML: {error}") from None


def _words(key: str, value: Any, file: str) -> list[str]:
    """Return the words of a key: ``--lr=0.1``, or ``--no-feedback``."""
    name = key.rstrip("_").replace("_", "-")
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, str | int | float):
        return [f"--{name}={value}"]
    if isinstance(value, list) and all(isinstance(each, str | int | float) for each in value):
        several = value if name in REPEATED else ["+".join(map(str, value))]
        return [f"--{name}={each}" for each in several]
    raise ConfigError(f"{CONFIG_FLAG} {file}: {key} must be a number, a text, true, false, or a list of these")


def config_of(path: Path, about: Mapping[str, Any]) -> str:
    """Return the config file that repeats a run."""
    request = Request.recorded(dict(about))
    if request is None:
        raise ConfigError(
            f"{path} was started from Python with objects of its own, which no file describes: repeat it by its script"
        )
    command = "deploy try" if "deployment" in about else "run"
    lines = [f"# gossamer {command} {CONFIG_FLAG} FILE"]
    lines += [
        f"# The run was extended after round {each['after']}, when it had {each['options']['rounds']} rounds."
        for each in about.get(EXTENDED, ())
    ]
    # The rules that were given when the run was extended, and the round after which each applied. The others hold for
    # all its rounds, but one that ended the run no longer does.
    late: dict[str, int] = {}
    for each in about.get(EXTENDED, ()):
        before, now = each["options"], about["options"]
        late |= {name: each["after"] for name in RULES if name in now and before.get(name) != now[name]}
    for key, value in _entries(path, request, about):
        if key in late:
            lines.append(f"# {key} applied only after round {late[key]}: this file does not repeat the run")
        lines.append(f"{'# ' if key in late else ''}{key} = {_toml(value)}")
    return "\n".join(lines)


def _entries(path: Path, request: Request, about: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield key and value of what differs from the defaults, and of what fixes the result."""
    deployment, recorded = about.get("deployment"), about["options"]
    plain = request.plain()
    yield "method", plain["method"]
    own = plain["given"].items()
    others = ("method", "given", "sets", "digests", "secure", "privacy")
    parts = ((name, value) for name, value in plain.items() if name not in others)
    secure = [("secure", True)] if request.secure else []
    private = [(name, request.privacy[name]) for name in PRIVACY if name in request.privacy]
    options = {**recorded, "executor": about.get("executor", recorded["executor"])}
    usual = Options(executor=AUTO).describe()
    changed = [(name, value) for name, value in options.items() if name == "rounds" or value != usual.get(name)]
    terms = [(name, deployment[name]) for name in TERMS] if deployment else []
    absent = ("executor", "clients", "failure_rate", "channel") if deployment else ()
    for name, value in (*parts, *secure, *private, *own, *changed, *terms):
        if name not in absent and (value is not None or name in plain["given"]):
            yield name.rstrip("_").replace("_", "-"), value
    if "init" in about:
        yield "init", str((path / INIT).absolute())
    if plain["sets"]:
        yield "set", plain["sets"]


def _toml(value: Any) -> str:
    """Return a value in TOML; a text that is a number becomes one."""
    if value is None:
        return '"none"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str) and _is_number(value):
        return value
    return json.dumps(value)


def _is_number(text: str) -> bool:
    try:
        return isinstance(tomllib.loads(f"x = {text}")["x"], int | float) and text not in ("true", "false")
    except tomllib.TOMLDecodeError:
        return False
