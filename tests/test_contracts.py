"""One table of all parts: each keeps the contract of its kind. Whoever adds a part adds a row."""

from pathlib import Path

import pytest
import torch

from gossamer import SGD, Bernoulli, Codec, Dense, Ditto, Full, Lossy, Mean, NotingSGD, Perfect, Windows, Wireless
from gossamer.channels import Channel
from gossamer.fleet import Device, Fleet
from gossamer.methods import METHODS
from gossamer.servers import Server
from gossamer.solvers import SCHEDULES, Solver
from gossamer.testing import (
    check_channel,
    check_codec,
    check_method,
    check_server,
    check_solver,
    check_value,
    check_view,
)
from gossamer.views import View

CODECS: list[Codec] = [Dense()]
VIEWS: list[View] = [Full(), Bernoulli(), Bernoulli((1.0, 0.2), drawn=True, least=1), Windows(), Windows(least=1)]
SOLVERS: list[Solver] = [
    SGD(),
    SGD(momentum=0.9, clip=1.0),
    SGD(steps=3, batch=None, weight_decay=0.1, proximal=0.1),
    Ditto(),
    NotingSGD(),
]
SERVERS: list[Server] = [Mean(), Mean("batches"), Mean("uniform", over="holders")]
CHANNELS: list[Channel] = [Perfect(), Lossy(0.3), Wireless(Fleet((Device("phone", 5, None, 1e9),)))]
LIKE = {"layer.weight": torch.arange(12.0).view(4, 3), "layer.bias": torch.ones(4)}


@pytest.mark.parametrize("codec", CODECS, ids=repr)
def test_codecs(codec: Codec) -> None:
    check_codec(codec)


@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_views(view: View) -> None:
    check_view(view, LIKE)


@pytest.mark.parametrize("solver", SOLVERS, ids=repr)
def test_solvers(solver: Solver) -> None:
    check_solver(solver)


@pytest.mark.parametrize("server", SERVERS, ids=repr)
def test_servers(server: Server) -> None:
    check_server(server, LIKE)


@pytest.mark.parametrize("channel", CHANNELS, ids=repr)
def test_channels(channel: Channel) -> None:
    check_channel(channel)


@pytest.mark.parametrize("name", METHODS)
def test_methods(name: str, tmp_path: Path) -> None:
    check_method(METHODS[name](), tmp_path)


@pytest.mark.parametrize("name", SCHEDULES)
def test_schedules(name: str) -> None:
    given = {"exponential": (0.9,), "steps": ((2, 4),)}.get(name, ())
    schedule = SCHEDULES[name](*given)
    check_value(schedule)
    assert schedule.factor(0, 10) == 1
    assert all(0 <= schedule.factor(r, 10) <= 1 for r in range(10))
