"""Look into a run: its bound view, keys, and the models and states that its server has."""

from typing import Any

from gossamer.core.random import Key
from gossamer.core.types import Clock, Params, State
from gossamer.engines.run import FederatedRun, Stage
from gossamer.engines.simulation import Simulation


def view_of(run: FederatedRun) -> Any:
    """The bound view of a run's training."""
    return run.method.training.view


def view_state(run: FederatedRun, client: int) -> State | None:
    """The server's copy of a client's view state."""
    return run.view_state(Stage(run.method.training, 0, {}), client)


def clock_and_key(run: Simulation, number: int, client: int) -> tuple[Clock, Key]:
    """The clock of a client in the training exchange of a round, and the random key of that exchange."""
    return run.clock_and_key(Stage(run.method.training, number, {}), client)


def personal_model(run: Simulation, client: int) -> Params:
    """A client's personalized model, as the server has it."""
    return run.method.training.server.download(run.server, run.method.home(client)).models[0]
