"""The command ``deploy``: ``deploy try``, ``deploy new``, ``deploy keys`` and ``deploy node``.

Flower is an extra and slow to import. It is imported when one of these commands needs it.

Updates are clipped by default, unless there is a reason against it. ``deploy node`` is a SuperNode whose client app
stays in memory for all messages of a run.
"""

import math
import os
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from gossamer.cli import trust, user_files
from gossamer.cli.build import OPTIONS, as_typed, check_cohort, in_flags, make_options, make_task, server_task
from gossamer.cli.build_method import find_recipe, make_method, with_budget
from gossamer.cli.common import Parser, command, say
from gossamer.cli.flags import Flag, arguments, flags, value
from gossamer.cli.request import DATA, Request
from gossamer.cli.run import Asked, announce, carry_out, check_run_path, notices, read_words, too_noisy, unused_paths
from gossamer.cli.run_args import RUN, SCHEDULE_NAMES, Verb
from gossamer.core.errors import ConfigError, Mistakes, RunError, require
from gossamer.core.method import Method
from gossamer.core.specs import spec
from gossamer.engines.anomalies import DEPLOYED_EXCLUSION, FEWEST
from gossamer.engines.kept_run import kept_key
from gossamer.engines.options import DEPLOYED_WEIGHT, Options
from gossamer.engines.warm_start import Init
from gossamer.parts.downlinks.delta import Delta
from gossamer.parts.schedules import SCHEDULES
from gossamer.parts.servers.mean import WeightedMean
from gossamer.parts.servers.robust import PLAIN
from gossamer.runs.folder import RunFolder
from gossamer.runs.records import INIT, read_metrics
from gossamer.runs.report.progress import Progress
from gossamer.runs.report.scores import primary
from gossamer.runs.report.text import count
from gossamer.runs.trackers import Tracking
from gossamer.tasks.precision import Precision
from gossamer.tasks.task import Task

if TYPE_CHECKING:
    from gossamer.cli.flower_app import Snippet
    from gossamer.engines.flower import Settings
    from gossamer.engines.flower.network import LocalNetwork
    from gossamer.engines.flower.server import FlowerRun


DEPLOYED_SERVER = "clip:median,multiple=3"
"""Default of ``--server`` in a deployment: no update counts for more than three times the median norm."""


class Protected(NamedTuple):
    """A method as it is deployed."""

    request: Request  # the request, with the rule of the server
    method: Method  # the method
    line: str  # which rule the server has, and why, for the user


def protected(request: Request, method: Method, cohort: int) -> Protected:
    """Return the method with the default rule of deployments, unless the user chose one or it cannot be used."""
    if request.server == PLAIN:
        return Protected(request, method, f"server: that of {request.method} (--server mean); updates are not clipped")
    if request.server:
        return Protected(request, method, f"server: {request.server} (--server)")
    if why := _why_unclipped(request, method, cohort):
        line = f"server: that of {request.method}; updates are not clipped by {DEPLOYED_SERVER}: {why}"
        return Protected(request, method, line)
    asked = replace(request, server=DEPLOYED_SERVER)
    line = f"server: {DEPLOYED_SERVER}, the default of deployments; --server mean does not clip updates"
    return Protected(asked, make_method(asked), line)


def _why_unclipped(request: Request, method: Method, cohort: int) -> str:
    """Return why updates cannot be clipped by default; empty if they can."""
    down, server = method.training.down, method.server
    if not method.shared:
        return f"{request.method} sends none"
    if method.training.secure is not None:
        return "with secure aggregation, the server sees no single one"
    if request.privacy.get("dp") == "central":
        return "--dp central clips them"
    if cohort < FEWEST:
        return f"it needs rounds with at least {FEWEST} clients, and a round has {cohort}"
    if not (isinstance(server, WeightedMean) and server.takes_any_mean):
        return f"{request.method} does not aggregate them by a plain mean"
    if isinstance(down, Delta) and down.codec is None:
        return "with --down delta, clients repeat the aggregation"
    own = [setting for setting in request.sets if setting.startswith("server.")]
    return f"--set {own[0]} is a field of the method's own server" if own else ""


NODES = 3
POLL = 0.2
"""Seconds between two reads of the metrics of a running deployment."""

SIMULATED = {"clients", "channel", "fleet", "plan", "failure_rate", "attack", "validate"}
SIMULATED |= {"executor", "cluster", "actors", "secure_noise"}
"""Flags of ``run`` that apply to simulations alone."""

DEPLOYED = {"max_weight": DEPLOYED_WEIGHT, "exclude_after": DEPLOYED_EXCLUSION, "server": DEPLOYED_SERVER}
"""Flags of ``run`` with another default in a deployment."""

MEANINGS = {"schedule": f"when clients start and the server aggregates: {SCHEDULE_NAMES}; such as deadline:60s"}
"""Flags of ``run`` with another meaning in a deployment."""

TERMS = [
    Flag("nodes", int, None, f"number of nodes, one client each; none: {NODES}, or those of --task", "N"),
    Flag("deadline", float, 600, "seconds within which a client must reply", "S"),
    Flag("wait", float, 600, "seconds to wait until enough clients are connected", "S"),
    Flag("min_replies", float, 0.5, "fraction of a round's clients that must reply for the round to count", "P"),
    Flag("rehearsal", bool, False, "draw what a simulation with the same seed draws, in place of a secret key", ""),
]
SHARED = [
    flag._replace(default=DEPLOYED.get(flag.name, flag.default), meaning=MEANINGS.get(flag.name, flag.meaning))
    for flag in RUN
    if flag.name not in SIMULATED
]

COMMON = [*TERMS, *SHARED]
TRY = Verb("gossamer deploy try METHOD", COMMON)

NEW = Verb("gossamer deploy new DIR METHOD", [flag for flag in COMMON if flag.name != "out"])

USAGE = """usage: gossamer deploy COMMAND

Run a method on real machines, with Flower.

commands:
  try METHOD [flags]      start a SuperLink and nodes on this machine, with TLS and node keys, and run on them
  new DIR METHOD [flags]  write a Flower app for your own machines, with a README of the steps
  keys DIR [flags]        write certificates for a SuperLink and keys for nodes
  node [flags]            run a SuperNode on this machine

`gossamer deploy COMMAND --help` describes a command."""


def deploy(words: list[str]) -> int:
    """``gossamer deploy ...``."""
    known: dict[str, Callable[[list[str]], int]] = {"try": attempt, "new": new, "keys": keys, "node": node}
    if words[:1] in ([], ["-h"], ["--help"]):
        print(USAGE)
        return 0
    if words[0] not in known:
        raise ConfigError(f"gossamer deploy {words[0]}: unknown command: use try, new, keys or node")
    return known[words[0]](words[1:])


class Deployment(NamedTuple):
    """The checked objects of a deployment."""

    request: Request
    method: Method
    task: Task
    settings: "Settings"
    pieces: "tuple[Snippet, Snippet]"
    init: Init | None


def plan(asked: Asked, resume: bool, out: str | None) -> Deployment:
    """Return the deployment of the arguments; every mistake is listed at once."""
    mistakes = asked.mistakes
    asked_options, track = asked.take(OPTIONS), asked.given.pop("track", "")
    given = {flag.name: asked.given.pop(flag.name, flag.default) for flag in TERMS}
    terms = {flag.name: mistakes.attempt(value, flag.word, given[flag.name], flag.kind) for flag in TERMS}
    if terms["nodes"] is not None and terms["nodes"] < 1:
        mistakes.note(f"--nodes must be at least 1, got {terms.pop('nodes')}")
    init = asked.given.pop("init", None)
    nodes, request = terms.pop("nodes", None), asked.request()
    start = mistakes.attempt(in_flags, request, Init.of, init) if init else None
    request = request if request.task else replace(request, clients=str(nodes or NODES))
    method = mistakes.attempt(make_method, request)
    unwatched = asked_options.get("anomalies") is False or bool(request.privacy or request.secure)
    exclude_after = None if unwatched else DEPLOYED_EXCLUSION
    usual = {"executor": "one-by-one", "max_weight": DEPLOYED_WEIGHT, "exclude_after": exclude_after}
    options = mistakes.attempt(make_options, {**usual, **asked_options})
    task = mistakes.attempt(make_task, request, options.seed if options else 0, None, server_task)
    if request.privacy and method and task and options and not mistakes.found:
        request = mistakes.attempt(with_budget, request, method, task, options, steady=False) or request
        method = mistakes.attempt(make_method, request)
    served = None
    if method and task and options:
        served = protected(request, method, options.updates(options.per_round or task.clients))
        request, method = served.request, served.method
    if method and method.pooled:
        mistakes.note(f"{request.method} pools the samples of all clients, so it cannot be deployed")
    if task and nodes not in (None, task.clients):
        mistakes.note(f"--nodes is {nodes}, but the task has {task.clients} clients: each client is a node")
    if task and options:
        mistakes.attempt(check_cohort, asked_options, task.clients)
    named = {"name": request.method.rpartition(":")[2], "track": track, "init": start.source if start else ""}
    settings = mistakes.attempt(_settings, options, terms, named) if options else None
    mistakes.settle()
    assert method is not None  # or there were mistakes
    assert task is not None
    assert settings is not None
    assert served is not None
    say(served.line)
    for note in (*notices(request, task, settings.rounds), *too_noisy(request.privacy)):
        say(f"gossamer: {note}")
    where = out or f"runs/{settings.name}"
    settings = replace(settings, nodes=task.clients, resume=resume, out=where)
    if settings.schedule or start:
        in_flags(request, _check_run, method, task, settings, start)
    return Deployment(request, method, task, settings, _pieces(request, method, task.clients, settings.seed), start)


def _check_run(method: Method, task: Task, settings: "Settings", init: Init | None) -> None:
    """Refuse a schedule that does not fit the method or the number of clients, and weights of another network."""
    from gossamer.engines.flower.server import FlowerRun

    FlowerRun(method, task, settings, None, init=init)


def _settings(options: Options, terms: dict[str, Any], named: dict[str, str]) -> "Settings":
    from gossamer.engines.flower import Settings

    common = {f.name: getattr(options, f.name) for f in fields(Settings) if hasattr(options, f.name)}
    given = {word: term if type(term) is bool else float(term) for word, term in terms.items() if term is not None}
    until = options.until.to_text() if options.until else ""
    schedule = spec(options.schedule, SCHEDULES) if options.schedule else ""
    control = {"per_round": options.per_round or 0, "patience": options.patience or 0, "until": until}
    control |= {"exclude_after": options.exclude_after or 0, "max_weight": options.max_weight or 0.0}
    control |= {"epsilon": options.epsilon or 0.0, "delta": options.delta or 0.0, "schedule": schedule}
    try:
        return Settings(**{**common, **control, **given, **named})
    except ConfigError as error:
        raise ConfigError(*map(as_typed, error.mistakes)) from None


def _pieces(request: Request, method: Method, clients: int, seed: int) -> "tuple[Snippet, Snippet]":
    """Return the source code of the method and the task in the app."""
    from gossamer.cli import flower_app

    recipe, mistakes = find_recipe(request.method), Mistakes()
    values = arguments(flags(recipe, request.method), request.given, mistakes)
    mistakes.settle()
    file = Path(request.method.rpartition(":")[0]) if user_files.is_file(request.method) else None
    written = flower_app.method_piece(recipe, values, method, file)
    if request.task:
        path, _, name = request.task.rpartition(":")
        return written, flower_app.own_task(Path(path), name)
    named = {"model": request.model, "split": request.split, "statistics": request.statistics}
    given = {name: value for name, value in named.items() if value}
    return written, flower_app.named_task(request.data or DATA, {**given, "clients": clients, "seed": seed})


def write_app(folder: Path, planned: Deployment) -> None:
    """Write the Flower app of a deployment."""
    from gossamer.cli import flower_app

    data_dir = str(Path(planned.request.data_dir).resolve()) if planned.request.data_dir else ""
    flower_app.write(folder, *planned.pieces, planned.settings, {"data-dir": data_dir})


def new(words: list[str]) -> int:
    """``gossamer deploy new DIR METHOD [flags]``."""
    if len(words) > 1 and not words[0].startswith("-"):
        folder, rest = Path(words[0]), words[1:]
    else:
        folder, rest = Path(), words if {"-h", "--help"} & set(words) else []
    asked = read_words(rest, NEW)
    if asked is None:
        return 0
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        asked.mistakes.note(f"{folder} is not empty: choose another folder for the app")
    planned = plan(asked, resume=False, out=None)
    if planned.method.training.secure is not None:  # such a run needs the public keys of the nodes: see README.md
        planned = planned._replace(settings=replace(planned.settings, keys="keys"))
    write_app(folder, planned)
    copied = ", ".join(sorted({file.name for piece in planned.pieces for file in piece.files}))
    own = f", and copied {copied} there" if copied else ""
    print(f"wrote app.py, pyproject.toml, nginx.conf and README.md to {folder}{own}; README.md describes the steps")
    admits = "nginx.conf, or a firewall rule in README.md, admits the nodes"
    print(f"the SuperLink listens on its own machine alone; {admits}")
    return 0


def keys(words: list[str]) -> int:
    """``gossamer deploy keys DIR --host NAME --nodes N``."""
    parser = Parser(prog="gossamer deploy keys", description="Write certificates for a SuperLink and keys for nodes.")
    parser.add_argument("dir", metavar="DIR", type=Path, help="folder to write to")
    parser.add_argument("--host", metavar="NAME", action="append", default=[], help="host of the SuperLink; repeatable")
    parser.add_argument("--nodes", metavar="N", type=int, default=NODES, help=f"number of nodes (default: {NODES})")
    asked = parser.parse_args(words)
    if asked.nodes < 0:
        raise ConfigError(f"--nodes must not be negative, got {asked.nodes}")
    from gossamer.engines.flower import credentials

    credentials.authority(asked.dir, asked.host)
    for node in range(asked.nodes):
        credentials.node_key(asked.dir / f"node-{node}")
    credentials.roster(asked.dir, asked.nodes)
    print(f"wrote to {asked.dir}: ca.crt, server.pem, server.key for the SuperLink; ca.crt and node-N for node N;")
    print("roster.pub, the public keys of all nodes, for every node that uses --secure.")
    print("server.key and the files node-N are secret: copy each only to the machine that uses it.")
    return 0


def attempt(words: list[str]) -> int:
    """``gossamer deploy try METHOD [flags]``."""
    asked = read_words(words, TRY)
    if asked is None:
        return 0
    out = asked.given.pop("out", None)
    named = {name: asked.given[name] for name in ("data", "task") if name in asked.given}
    place = Path(out) if out is not None else next(unused_paths(Request(asked.method, **named)))
    asked.mistakes.attempt(check_run_path, place)
    planned = plan(asked, resume=True, out=str(place.absolute()))
    Precision(planned.settings.precision, torch.device(planned.settings.device))  # the nodes are on this machine
    Tracking.of(planned.settings.track)  # a missing package is reported before anything starts
    from gossamer.engines.flower.server import FlowerRun

    # The folder is created before anything starts; the server resumes it like an interrupted run.
    given = (planned.method, planned.task, planned.settings, None, planned.request.plain(), planned.init)
    run = in_flags(planned.request, FlowerRun, *given)
    folder = run.create(place)
    write_app(place / trust.APP, planned)
    trust.remember(planned.request.plain()["digests"] | trust.app_digest(place))
    return _go(run, folder)


def resume(path: Path, about: dict[str, Any], control: dict[str, Any]) -> int:
    """Continue a deployed run; ``control`` are its new rounds, targets and patience."""
    if not (path / trust.APP).is_dir():
        place = path.absolute()
        raise ConfigError(f"{path} was deployed: use flwr run APP CONNECTION -c 'resume=true out=\"{place}\"'")
    from gossamer.engines.flower import Settings
    from gossamer.engines.flower.server import FlowerRun

    request = Request.read(about["request"])
    user_files.check_unchanged(about["request"]["digests"])
    options = {"until": "", "patience": 0, **about["options"]}  # newer than the settings if the run was extended
    # earlier releases had no such limits, and no secret keys
    before = {"max_weight": 0.0, "exclude_after": 0, "rehearsal": True, **about["deployment"]}
    settings = Settings(**{**before, **{name: options[name] for name in ("rounds", "until", "patience")}})
    task = make_task(request, settings.seed, None, server_task)
    run = FlowerRun(make_method(request), task, settings, None, about["request"], Init.kept(path), kept_key(path))
    return _go(run, run.reopen(path, **control))  # only a check: the server restores it again


def _go(run: "FlowerRun", folder: RunFolder) -> int:
    """Start the network, run on it and show the progress; the server takes over the folder."""
    from gossamer.engines.flower.network import LocalNetwork

    announce(folder, run)
    folder.close()
    path, home, nodes, rounds = folder.path, folder.path / "deploy", run.settings.nodes, run.options.rounds

    def node_config(node: int) -> dict[str, str | int | float | bool]:
        data_dir = (run.about["request"] or {}).get("data_dir")
        config = {
            "partition-id": node,
            "state-dir": str((home / f"nodes/{node}").absolute()),
            "device": run.options.device,
        }
        start = {"init": str((path / INIT).absolute())} if run.init else {}
        return {**config, **start, **({"data-dir": data_dir} if data_dir else {})}

    def work() -> None:
        done, options = len(run.metrics), run.options
        # The options may be newer than those of the app.
        until = options.until.to_text() if options.until else ""
        config: dict[str, str | int | float | bool] = {"until": until, "patience": options.patience or 0}
        config |= {"resume": True, "rounds": rounds}
        if not run.finished:
            logs = home / "network/logs"
            say(f"starting a SuperLink and {count(nodes, 'node')}, with TLS and node keys; their logs are in {logs}")
            with (
                LocalNetwork(home / "network", nodes, node_config) as network,
                Progress(rounds, run.metrics, primary(run.about)) as progress,
            ):
                config["keys"] = str(network.credential(""))
                _follow(network, path, network.run(home / "app", config), done, progress)

    try:
        return carry_out(work, path, run)
    except RunError as error:
        raise RunError(f"{error}: {command('resume', path)}") from error


def _follow(network: "LocalNetwork", path: Path, run: str, done: int, progress: Progress) -> None:
    """Show the rounds of a run as they finish, until it has ended."""
    while True:
        state = network.state(run)  # read before the metrics, so that no round is missed
        records = read_metrics(path)
        for record in records[done:]:
            progress(record)
        done = len(records)
        if state.status == "failed":
            raise RunError(f"the server's app failed: {state.reason}\n{network.tail()}")
        if state.status == "finished":
            return
        time.sleep(POLL)


NOT_OF_NODES = ("--isolation", "--allow-runtime-dependency-installation")
"""Flags of ``flower-supernode`` that do not apply: they are about processes that it would start."""


def node(words: list[str]) -> int:
    """``gossamer deploy node [flags]``."""
    from gossamer.engines.flower import supernode

    parser = Parser(
        prog="gossamer deploy node",
        usage="%(prog)s [--poll S] [flags of flower-supernode]",
        description="Run a SuperNode whose client app stays in memory for all messages of a run.",
        epilog="All other flags are those of flower-supernode: flower-supernode --help lists them.",
    )
    about = f"seconds between requests for messages (default: {supernode.POLL})"
    parser.add_argument("--poll", metavar="S", type=float, default=supernode.POLL, help=about)
    asked, arguments = parser.parse_known_args(words)
    refused = [word for word in arguments if word.partition("=")[0] in NOT_OF_NODES]
    require(
        (0 < asked.poll < math.inf, f"--poll must be a positive number of seconds, got {asked.poll:g}"),
        *((False, f"{word}: the client app runs in a process of Gossamer: use flower-supernode") for word in refused),
    )
    line = supernode.command(arguments, asked.poll)
    os.execv(line[0], line)
