"""The file of ``--config``: the arguments of a run in TOML, one key per flag.

    method = "fedavg"
    rounds = 30
    lr = 0.1
    set = ["solver.momentum=0.9"]

The file is turned into the words of a command line, before those that were typed. So its keys are checked as flags are,
typed flags win over the file, and paths in it are relative to the current folder. ``gossamer show RUN --config`` prints
the file that repeats a run.
"""

import json
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gossamer.cli.request import PRIVACY, Request
from gossamer.core.errors import ConfigError
from gossamer.engines.options import AUTO, Options
from gossamer.runs.records import EXTENDED, INIT

FLAG = "--config"

TERMS = ("nodes", "deadline", "wait", "min_replies")
"""Settings of a deployment that are flags of ``deploy try``."""

REPEATED = ("set", "grid")
"""Flags that may be given several times: a list has one value of each."""

RULES = ("until", "patience")
"""Options that end a run early."""


def expanded(words: list[str]) -> list[str]:
    """Return the words of a command with the file of ``--config`` in place of that flag: method, file, typed flags."""
    at = next((i for i, word in enumerate(words) if word == FLAG or word.startswith(f"{FLAG}=")), None)
    if at is None:
        return words
    _, equals, name = words[at].partition("=")
    if not equals and at + 1 == len(words):
        raise ConfigError(f"{FLAG} needs a value: {FLAG} FILE")
    file, rest = (name, words[at + 1 :]) if equals else (words[at + 1], words[at + 2 :])
    typed = [*words[:at], *rest]
    if FLAG in typed:
        raise ConfigError(f"{FLAG} was given twice: give one file")
    found = read(Path(file))
    method = found.pop("method", None)
    named = [typed.pop(0)] if typed and not typed[0].startswith("-") else [method] if method else []
    return [*named, *(word for key, value in found.items() for word in _words(key, value, file)), *typed]


def read(file: Path) -> dict[str, Any]:
    """Return the contents of a config file."""
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"{FLAG} {file}: it cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{FLAG} {file}: it is not TOML: {error}") from None


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
    raise ConfigError(f"{FLAG} {file}: {key} must be a number, a text, true, false, or a list of these")


def written(path: Path, about: Mapping[str, Any]) -> str:
    """Return the config file that repeats a run."""
    request = Request.recorded(dict(about))
    if request is None:
        raise ConfigError(
            f"{path} was started from Python with objects of its own, which no file describes: repeat it by its script"
        )
    command = "deploy try" if "deployment" in about else "run"
    lines = [f"# gossamer {command} {FLAG} FILE"]
    lines += [
        f"# The run was extended after round {each['after']}, when it had {each['options']['rounds']} rounds."
        for each in about.get(EXTENDED, ())
    ]
    late = _late(about)
    for key, value in _entries(path, request, about):
        if key in late:
            lines.append(f"# {key} applied only after round {late[key]}: this file does not repeat the run")
        lines.append(f"{'# ' if key in late else ''}{key} = {_toml(value)}")
    return "\n".join(lines)


def _late(about: Mapping[str, Any]) -> dict[str, int]:
    """Return the rules that were given when a run was extended, and the round after which each applied.

    The others of an extended run hold for all its rounds. A rule that ended the run no longer does.
    """
    found: dict[str, int] = {}
    for each in about.get(EXTENDED, ()):
        before, now = each["options"], about["options"]
        found |= {name: each["after"] for name in RULES if name in now and before.get(name) != now[name]}
    return found


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
