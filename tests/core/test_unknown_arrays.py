"""An array that nobody reads refuses a message, with every codec and beside every section."""

import warnings
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch

from fuzz.messages import methods
from gossamer import Options
from gossamer.core import wire
from gossamer.core.errors import PayloadError
from gossamer.core.exchange import Outcome
from gossamer.core.jobs import Folding
from gossamer.core.sections import MARK
from gossamer.engines.client import ClientTask
from gossamer.engines.inbox import ClientReply, Replies
from gossamer.engines.metrics import Ledger
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from helpers import recorder

SECTIONS = ["heterofl", "ifca", "scaffold", "fednova", "perm", "fedspa", "sub-fedavg", "loss probe", "fiarse", "ef21"]
REASONS = "unexpected array|section that no part reads|steps of a download|expected only"
CASES = [*SECTIONS, *(name for name in methods() if name.startswith(("up ", "down ")))]


def strangers(data: bytes) -> Iterator[bytes]:
    """The message with one array more, of each kind of name."""
    message = wire.unpack(data)
    sections = {name.partition(".")[0] for name in message.arrays if name.startswith(MARK)}
    for name in ("zzz", "rest.zzz", "0.zzz", "@zzz", "@zzz.values", *(f"{section}.zzz" for section in sections)):
        yield wire.pack(replace(message, payload={**message.payload, name: torch.ones(2)}))


class Watched(Simulation):
    """A simulation in which messages with unknown arrays come first."""

    tried = 0

    def client_tasks(self, stage: Stage, ledger: Ledger, inbox: Replies) -> Iterator[ClientTask]:
        for task in super().client_tasks(stage, ledger, inbox):
            for made in strangers(bytes(task.data)):
                with pytest.raises(PayloadError, match=REASONS):
                    stage.exchange.read_download(made, task.state, task.clock, task.key)
            yield task

    def fold_reply(
        self, stage: Stage, client: int, reply: ClientReply, acc: Folding, ledger: Ledger
    ) -> tuple[Folding, Outcome]:
        for made in strangers(bytes(reply.data)) if reply.data is not None else ():  # the link may lose it
            with pytest.raises(PayloadError, match=REASONS):
                self._fold(stage, client, ClientReply(wire.Frame.of(made)), acc)
            self.tried += 1
        return super().fold_reply(stage, client, reply, acc, ledger)


@pytest.mark.parametrize("name", CASES)
def test_an_array_that_nobody_reads_is_refused(name: str) -> None:
    make, more = methods()[name]
    options = {"rounds": 1, "per_round": 2, "executor": "one-by-one", **more}
    task = recorder.task(options.pop("split", "dirichlet:1"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run = Watched(make(), task, Options(**options))
        run.run(None, lambda record: None)
    assert run.tried >= 5 or "channel" in more
