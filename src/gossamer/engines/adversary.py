"""The hostile clients of a simulated run, and what an attack makes of their samples and updates.

An attack acts in the training exchange alone. Each hostile client changes its update in ``Client.make_upload``, between
training and the codec, wherever its executor runs it. So all executors give what they give without an attack: the same
bytes, or the same numbers up to rounding.

Colluding clients train first in each round, with the executor of the run. They return their honest updates in place of
an upload. Then this process makes the update that all of them send, in client order, and encodes it for each of them.
The other clients train afterwards. The honest updates of colluding clients are in memory until then.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch

from gossamer.core.errors import ConfigError, Mistake, Setting
from gossamer.core.jobs import Job, Trained
from gossamer.core.random import Key, fold
from gossamer.core.specs import spec
from gossamer.core.tree import multiply
from gossamer.core.types import Flops, Params, State
from gossamer.parts.attacks import ATTACKS
from gossamer.parts.attacks.base import Attack, Collusion, DataAttack, Scene, Triggered, UpdateAttack
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.samples import AnySamples, Data


@contextmanager
def about_attack(attack: Attack) -> Iterator[None]:
    """Name the attack, as it is written, in mistakes about its fields and about what it cannot be used for."""
    try:
        yield
    except ConfigError as error:
        about = Setting("", "attack", spec(attack, ATTACKS))
        texts = (mistake.written(lambda field: field.field) for mistake in error.mistakes)
        raise ConfigError(*(Mistake(f": {text}", about) for text in texts)) from error


class AttackWarning(UserWarning):
    """An attack has no effect."""


class Adversary:
    """The hostile clients of a run.

    Args:
        attack: what they do
        clients: the number of all clients
        key: the run's key
    """

    def __init__(self, attack: Attack, clients: int, key: Key) -> None:
        self.attack, self.key = attack, key
        self.hostile = attack.hostile(clients, key)
        self.triggered = attack if isinstance(attack, Triggered) else None
        self._members, self._clients = frozenset(self.hostile), clients

    def warn(self, cohort: int) -> None:
        """Show a warning if the attack has no effect in a typical round of ``cohort`` clients."""
        typical = max(1, round(len(self.hostile) * cohort / self._clients))
        if text := self.attack.warning(typical, cohort):
            warnings.warn(f"attack {spec(self.attack, ATTACKS)}: {text}", AttackWarning, stacklevel=2)

    # Samples.

    def poisoned(self, samples: AnySamples, data: Data, split: Split) -> AnySamples:
        """Return the training samples of all clients, changed for hostile clients if the attack changes samples."""
        if not isinstance(attack := self.attack, DataAttack):
            return samples
        attack.check_data(data)
        rows = {client: split.train(client) for client in self.hostile}
        others = np.concatenate([split.train(client) for client in range(split.clients) if client not in rows])
        if np.isin(np.concatenate(list(rows.values())), others).any():
            raise ConfigError("it changes samples, and hostile clients share samples with others: use a split")
        x, y = samples.x, samples.y.clone()
        for client, index in rows.items():
            at = torch.from_numpy(index).to(y.device)
            found, labels = samples.read(at)
            mine, y[at] = attack.poison(found, labels, data.classes, fold(self.key, "poison", client))
            if mine is not found:
                x = x.clone() if x is samples.x else x
                x[at] = mine
        return replace(samples, x=x, y=y)

    # Updates.

    def altered(self, job: Job, trained: Trained) -> Trained:
        """Return the training result that a client reports: changed if the client is hostile."""
        if job.clock.client not in self._members or not isinstance(attack := self.attack, UpdateAttack):
            return trained
        change = attack.update_of(job.clock.client, trained.change, fold(job.key, "attack"))
        return _reported(job, trained, change)._replace(samples=attack.claim(trained.samples))

    def colluding(self, cohort: Sequence[int]) -> list[int]:
        """Return the clients of a cohort that train first and send a common update."""
        return [client for client in cohort if self.colludes(client)]

    def colludes(self, client: int) -> bool:
        """Return whether a client sends an update that is made from those of several."""
        return isinstance(self.attack, Collusion) and client in self._members

    def crafted(self, trained: Sequence[tuple[Job, Trained]], outline: Params, cohort: int) -> list[Trained]:
        """Return the training results that colluding clients report, given what they have trained.

        Args:
            trained: job and honest training result of each client, in client order
            outline: tensors in the shapes of the whole model
            cohort: the number of clients of the round
        """
        assert isinstance(self.attack, Collusion)
        mean, std = statistics([(job, result.change) for job, result in trained], outline)
        change = self.attack.craft(Scene(mean, std, len(trained), cohort))
        return [_reported(job, result, job.part.take(change)) for job, result in trained]


def withheld(trained: Trained) -> State:
    """Return what a colluding client returns in place of its client state: its honest training result."""
    return {"change": trained.change, "carry": trained.carry, "samples": torch.tensor(trained.samples)}


def honest(state: State, loss: float, flops: Flops) -> Trained:
    """Return the training result that ``withheld`` took apart."""
    return Trained(state["change"], state["carry"], loss, flops, int(state["samples"]))


def _reported(job: Job, trained: Trained, change: Params) -> Trained:
    """Return a training result with another change. A gradient is computed anew, at the weights that are reported."""
    return trained._replace(change=multiply(change, job.part.keep), gradient=None)


def statistics(updates: Sequence[tuple[Job, Params]], outline: Params) -> tuple[Params, Params]:
    """Return mean and standard deviation of updates for each entry of the model, over the clients that hold it."""
    zeros = {name: torch.zeros_like(tensor) for name, tensor in outline.items()}
    held = [
        (job.part.put(zeros, {n: torch.ones_like(t) for n, t in change.items()}), job.part.put(zeros, change))
        for job, change in updates
    ]
    mean, std = Params(), Params()
    for name in outline:
        count = torch.stack([ones[name] for ones, _ in held]).sum(0).clamp(min=1)
        values = torch.stack([change[name] for _, change in held])
        mean[name] = values.sum(0) / count
        apart = (values - mean[name]) * torch.stack([ones[name] for ones, _ in held])
        std[name] = (apart.square().sum(0) / count).sqrt()
    return mean, std
