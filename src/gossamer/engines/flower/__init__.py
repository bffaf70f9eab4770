"""Deployment on Flower: the same methods across real machines. Only this package imports Flower.

A SuperLink connects the server with SuperNodes, one on each client machine, with TLS and one key per node. Flower
starts the apps that ``server_app`` and ``client_app`` return. Messages are the same bytes as in the simulator, and the
server aggregates them with the same code.
"""

from functools import partial
from logging import INFO, WARNING
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.logger import log
from flwr.superlink.grid import http_grid

from gossamer.core.method import Method
from gossamer.engines.control import Callbacks
from gossamer.engines.flower.messages import PHASE
from gossamer.engines.flower.node import Node
from gossamer.engines.flower.server import FlowerRun
from gossamer.engines.flower.settings import Settings
from gossamer.engines.flower.supernode import known_release, shorten_pulls
from gossamer.engines.kept_run import kept_key
from gossamer.engines.result import Result
from gossamer.engines.warm_start import Init
from gossamer.runs.records import Record
from gossamer.runs.report.scores import Score, primary
from gossamer.runs.report.summary import anomalies_of, anomaly_rows
from gossamer.runs.trackers import Track, Tracking
from gossamer.tasks.task import AnyTask, task_at

__all__ = ["Settings", "client_app", "server_app"]


def client_app(method: Method, task: AnyTask) -> ClientApp:
    """Return the Flower app for nodes; the ``partition-id`` of a node is its client number.

    ``task`` is a ``Task`` or a function that returns one. The function takes no argument, the client number, or the
    client number and the node's settings (a dictionary from ``--node-config``). Its entry ``init`` is a file or a run
    with the initial weights. A node needs those of the server if some parameters are frozen, because they are not sent.
    """
    app, node = ClientApp(), Node(method, task)
    app.query()(node.handler(node.hello))
    app.train()(node.handler(node.train))
    app.train(PHASE.partition(".")[2])(node.handler(node.answer))
    app.evaluate()(node.handler(node.evaluate))
    return app


def server_app(
    method: Method,
    task: AnyTask,
    rounds: int = 30,
    callbacks: Callbacks = (),
    track: Track = None,
    **settings: Any,
) -> ServerApp:
    """Return the Flower app for the server.

    ``callbacks`` and ``track`` are those of ``simulate``; ``settings`` are fields of ``Settings``. The entry ``track``
    of a run's configuration replaces the argument.

    ``task`` is a ``Task`` or a function that returns one. The function takes no argument, ``None`` (the server is not a
    client), or ``None`` and the run's configuration (a dictionary).
    """
    defaults = Settings(rounds=rounds, **settings)
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        if known_release():
            shorten_pulls(http_grid)
        chosen = defaults.given(context.run_config)
        key = kept_key(Path(chosen.out).expanduser().absolute()) if chosen.resume else None
        task_here, init = task_at(task, None, context.run_config), initial_weights(chosen)
        run = FlowerRun(method, task_here, chosen, grid, init=init, key=key)
        serve(run, callbacks, chosen.track or track)

    return app


def initial_weights(settings: Settings) -> Init | None:
    """Return the initial weights of a deployment: those that a resumed run keeps, or those of its settings."""
    if settings.resume:
        return Init.kept(Path(settings.out).expanduser().absolute())
    return Init.of(Path(settings.init).expanduser()) if settings.init else None


def serve(run: FlowerRun, callbacks: Callbacks = (), track: Track = None) -> Result:
    """Run all remaining rounds of a deployed run."""
    path = Path(run.settings.out).expanduser().absolute()
    run.tracking = Tracking.started(track, path if run.settings.resume else None, partial(log, WARNING))
    folder = run.restore(path) if run.settings.resume else run.create(path)
    for warning in folder.warnings:
        log(WARNING, warning)
    try:
        return run.run(folder, partial(_log_round, primary(run.about)), callbacks)
    finally:
        folder.close()


def _log_round(score: Score, record: Record) -> None:
    """Write what has become of a round to Flower's log."""
    value = record.get(score.name)
    shown = f", {score.words} {score.write(value)}" if value is not None else ""
    log(INFO, "round %s: %s clients%s", record["round"], len(record["clients"]), shown)
    for failure in record["failures"]:
        who = f"client {failure['client']} (node {failure['node']})"
        log(WARNING, "round %s: %s: %s", record["round"], who, failure["reason"])
    for mine in anomalies_of([record]):
        log(WARNING, "round %s: client %s is far from the cohort: %s", record["round"], *anomaly_rows([mine])[0][::2])
