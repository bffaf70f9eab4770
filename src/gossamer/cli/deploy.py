"""The commands that deploy: ``deploy try``, ``deploy new`` and ``deploy keys``.

Flower is imported here only once one of them is used: it is an extra, and slow to import.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gossamer.cli import user_files as sources
from gossamer.cli.flags import Flag, arguments, flags, value
from gossamer.cli.request import (
    DATA,
    OPTIONS,
    Request,
    as_typed,
    check_cohort,
    find_recipe,
    make_method,
    make_options,
    make_task,
    server_task,
)
from gossamer.cli.run import Asked, announce, carry_out, check_place, command, places, read, say
from gossamer.cli.run_args import RUN, Verb
from gossamer.core.errors import ConfigError, Mistakes, RunError
from gossamer.core.method import Method
from gossamer.engines.options import Options
from gossamer.runs.folder import RunFolder, read_metrics
from gossamer.runs.report.progress import Progress
from gossamer.runs.report.text import count
from gossamer.tasks.task import Task

if TYPE_CHECKING:
    from gossamer.cli.flower_app import Snippet
    from gossamer.engines.flower import Settings
    from gossamer.engines.flower.network import LocalNetwork
    from gossamer.engines.flower.server import FlowerRun

NODES = 3
POLL = 0.2
"""Seconds between two looks at a run that others carry out."""

SIMULATED = ("clients", "executor", "channel", "fleet", "plan", "failure_rate")
"""Flags of ``run`` that say how to simulate."""

TERMS = [
    Flag("nodes", int, None, f"machines, each of which is one client; {NODES}, or as many as the task has", "N"),
    Flag("deadline", float, 600, "seconds that a round's clients have to reply", "S"),
    Flag("wait", float, 600, "seconds to wait for enough clients to be there", "S"),
    Flag("min_replies", float, 0.5, "share of a round's clients that must reply for the round to count", "P"),
]
COMMON = [*TERMS, *(flag for flag in RUN if flag.name not in SIMULATED)]
TRY = Verb("gossamer deploy try METHOD", COMMON)
NEW = Verb("gossamer deploy new DIR METHOD", [flag for flag in COMMON if flag.name != "out"])

USAGE = """usage: gossamer deploy COMMAND

  try METHOD [flags]       a real network on this machine: a SuperLink and nodes, with TLS and node keys
  new DIR METHOD [flags]   write a Flower app for machines of your own, with a README that says what to type
  keys DIR [flags]         certificates for a SuperLink and keys for nodes"""


def deploy(words: list[str]) -> int:
    """``gossamer deploy ...``."""
    known: dict[str, Callable[[list[str]], int]] = {"try": attempt, "new": new, "keys": keys}
    if words[:1] in ([], ["-h"], ["--help"]):
        print(USAGE)
        return 0
    if words[0] not in known:
        raise ConfigError(f"gossamer deploy {words[0]}: there is no such command: try, new or keys")
    return known[words[0]](words[1:])


class Deployment(NamedTuple):
    """Everything that a deployment needs, checked."""

    request: Request
    method: Method
    task: Task
    settings: "Settings"
    pieces: "tuple[Snippet, Snippet]"


def plan(asked: Asked, resume: bool, out: str | None) -> Deployment:
    """From what was typed to what is deployed; every mistake in it is listed at once."""
    mistakes = asked.mistakes
    asked_options = asked.take(OPTIONS)
    given = {flag.name: asked.given.pop(flag.name, flag.default) for flag in TERMS}
    terms = {flag.name: mistakes.attempt(value, flag.word, given[flag.name], flag.kind) for flag in TERMS}
    if terms["nodes"] is not None and terms["nodes"] < 1:
        mistakes.note(f"--nodes must be at least 1, got {terms.pop('nodes')}")
    nodes, request = terms.pop("nodes", None), asked.request()
    request = request if request.task else replace(request, clients=str(nodes or NODES))
    method = mistakes.attempt(make_method, request)
    options = mistakes.attempt(make_options, {**asked_options, "executor": "one-by-one"})
    task = mistakes.attempt(make_task, request, options.seed if options else 0, None, server_task)
    if method and method.pooled:
        mistakes.note(f"{request.method} pools all samples in one place, so it cannot be deployed")
    if task and nodes not in (None, task.clients):
        mistakes.note(f"--nodes is {nodes}, but the task has {task.clients} clients: each is a node")
    if task and options:
        mistakes.attempt(check_cohort, asked_options, task.clients)
    settings = mistakes.attempt(_settings, options, terms, request.method.rpartition(":")[2]) if options else None
    mistakes.settle()
    assert method is not None  # or there were mistakes
    assert task is not None
    assert settings is not None
    where = out or f"runs/{settings.name}"
    settings = replace(settings, nodes=task.clients, resume=resume, out=where)
    return Deployment(request, method, task, settings, _pieces(request, method, task.clients, settings.seed))


def _settings(options: Options, terms: dict[str, Any], name: str) -> "Settings":
    from gossamer.engines.flower import Settings

    common = {f.name: getattr(options, f.name) for f in fields(Settings) if hasattr(options, f.name)}
    given = {word: float(term) for word, term in terms.items() if term is not None}
    try:
        return Settings(**{**common, "per_round": options.per_round or 0, **given, "name": name})
    except ConfigError as error:
        raise ConfigError(*map(as_typed, error.mistakes)) from None


def _pieces(request: Request, method: Method, clients: int, seed: int) -> "tuple[Snippet, Snippet]":
    """How the app writes the method and the task."""
    from gossamer.cli import flower_app as apps

    recipe, mistakes = find_recipe(request.method), Mistakes()
    values = arguments(flags(recipe, request.method), request.given, mistakes)
    mistakes.settle()
    file = Path(request.method.rpartition(":")[0]) if sources.is_file(request.method) else None
    written = apps.method_piece(recipe, values, method, file)
    if request.task:
        path, _, name = request.task.rpartition(":")
        return written, apps.own_task(Path(path), name)
    named = {"model": request.model, "split": request.split, "statistics": request.statistics}
    given = {word: said for word, said in named.items() if said}
    return written, apps.named_task(request.data or DATA, {**given, "clients": clients, "seed": seed})


def write_app(folder: Path, planned: Deployment) -> None:
    """The Flower app of a plan."""
    from gossamer.cli import flower_app as apps

    data_dir = str(Path(planned.request.data_dir).resolve()) if planned.request.data_dir else ""
    apps.write(folder, *planned.pieces, planned.settings, {"data-dir": data_dir})


# Writing an app.


def new(words: list[str]) -> int:
    """``gossamer deploy new DIR METHOD [flags]``."""
    if len(words) > 1 and not words[0].startswith("-"):
        folder, rest = Path(words[0]), words[1:]
    else:
        folder, rest = Path(), words if {"-h", "--help"} & set(words) else []
    asked = read(rest, NEW)
    if asked is None:
        return 0
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        asked.mistakes.note(f"{folder} is not empty: choose another place for the app")
    planned = plan(asked, resume=False, out=None)
    write_app(folder, planned)
    print(f"written to {folder}: app.py, pyproject.toml, and README.md, which says what to type")
    return 0


# Certificates and keys.


def keys(words: list[str]) -> int:
    """``gossamer deploy keys DIR --host NAME --nodes N``."""
    from gossamer.cli.parsers import Parser

    parser = Parser(prog="gossamer deploy keys", description="Certificates for a SuperLink, and keys for nodes.")
    parser.add_argument("dir", metavar="DIR", type=Path, help="where to write them")
    parser.add_argument("--host", metavar="NAME", action="append", default=[], help="name or address of the SuperLink")
    parser.add_argument("--nodes", metavar="N", type=int, default=NODES, help=f"how many nodes ({NODES})")
    asked = parser.parse_args(words)
    if asked.nodes < 0:
        raise ConfigError(f"--nodes must not be negative, got {asked.nodes}")
    from gossamer.engines.flower import credentials

    credentials.authority(asked.dir, asked.host)
    for node in range(asked.nodes):
        credentials.node_key(asked.dir / f"node-{node}")
    print(f"written to {asked.dir}: for the SuperLink ca.crt, server.pem and server.key; for each node ca.crt and")
    print("its own node-N. Keep server.key and the keys without .pub to the machine they are for.")
    return 0


# Trying it out.


def attempt(words: list[str]) -> int:
    """``gossamer deploy try METHOD [flags]``."""
    asked = read(words, TRY)
    if asked is None:
        return 0
    out = asked.given.pop("out", None)
    place = Path(out) if out is not None else next(_free(asked))
    asked.mistakes.attempt(check_place, place)
    planned = plan(asked, resume=True, out=str(place.absolute()))
    from gossamer.engines.flower.server import FlowerRun

    # The folder is made here, before anything is started; the server takes it up as if it had been interrupted.
    field = FlowerRun(planned.method, planned.task, planned.settings, None, planned.request.plain())
    folder = field.create(place)
    write_app(place / "deploy/app", planned)
    return _go(field, folder)


def _free(asked: Asked) -> Iterator[Path]:
    given = {name: asked.given[name] for name in ("data", "task") if name in asked.given}
    return places(Request(asked.method, **given))


def resume(path: Path, about: dict[str, Any]) -> int:
    """Go on with a run that was deployed."""
    if not (path / "deploy/app").is_dir():
        place = path.absolute()
        raise ConfigError(f"{path} was deployed: go on with flwr run APP CONNECTION -c 'resume=true out=\"{place}\"'")
    from gossamer.engines.flower import Settings
    from gossamer.engines.flower.server import FlowerRun

    request = Request.read(about["request"])
    sources.check_unchanged(about["request"]["digests"])
    settings = Settings(**about["deployment"])
    field = FlowerRun(
        make_method(request), make_task(request, settings.seed, None, server_task), settings, None, about["request"]
    )
    folder = field.restore(path)  # only to see that it can be, and where it stands: the server will do it again
    return _go(field, folder)


def _go(field: "FlowerRun", folder: RunFolder) -> int:
    """Start the network, have the run done on it, and show how it goes; the server takes the folder over."""
    from gossamer.engines.flower.network import LocalNetwork

    announce(folder, field)
    folder.close()
    path, home, nodes, rounds = folder.path, folder.path / "deploy", field.settings.nodes, field.options.rounds

    def told(node: int) -> dict[str, str | int | float | bool]:
        data_dir = (field.about["request"] or {}).get("data_dir")
        own = {
            "partition-id": node,
            "state-dir": str((home / f"nodes/{node}").absolute()),
            "device": field.options.device,
        }
        return {**own, **({"data-dir": data_dir} if data_dir else {})}

    def work() -> None:
        if len(field.metrics) < rounds:
            say(f"starting a SuperLink and {count(nodes, 'node')}, with TLS and node keys; what they say is in {home}")
            with LocalNetwork(home / "network", nodes, told) as network, Progress(rounds, field.metrics) as progress:
                _follow(network, path, network.run(home / "app", {"resume": True}), len(field.metrics), progress)

    try:
        return carry_out(work, path, field)
    except RunError as error:
        raise RunError(f"{error}: {command('resume', path)}") from error


def _follow(network: "LocalNetwork", path: Path, run: str, done: int, progress: Progress) -> None:
    """Show a run's rounds as they come, until it has ended."""
    while True:
        state = network.state(run)  # before the metrics are read, so that none is missed
        records = read_metrics(path)
        for record in records[done:]:
            progress(record)
        done = len(records)
        if state.status == "failed":
            raise RunError(f"the server's app failed: {state.reason}\n{network.tail()}")
        if state.status == "finished":
            return
        time.sleep(POLL)
