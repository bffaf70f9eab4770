"""A run as it is kept: the states of server and clients, the run folder, and the global model.

``KeptRun`` creates a run folder, restores the last checkpoint, and extends a finished run. The rounds are in
``gossamer.engines.run``.
"""

import struct
import time
import warnings
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from gossamer.core import tree
from gossamer.core.errors import ConfigError, RunError
from gossamer.core.exchange import Outcome
from gossamer.core.method import Method
from gossamer.core.random import Key, secret_key
from gossamer.core.random import key as make_key
from gossamer.core.store import ClientStore
from gossamer.core.types import Params, State
from gossamer.engines.anomalies import Exclusion
from gossamer.engines.arguments import check_arguments
from gossamer.engines.control import Until
from gossamer.engines.dispatch import check_schedule
from gossamer.engines.metrics import machine
from gossamer.engines.options import Options
from gossamer.engines.privacy import privacy_of
from gossamer.engines.same_run import check_same
from gossamer.engines.warm_start import Init
from gossamer.runs import inside
from gossamer.runs.checkpoint import newest, recall
from gossamer.runs.folder import RunFolder
from gossamer.runs.records import EXTENDED, SECRET, Record, check_about, read_about, read_metrics, stop_reason
from gossamer.runs.releases import released
from gossamer.runs.report.scores import Score, held_out, scores_of
from gossamer.runs.secret_state import decrypted, encrypted, without
from gossamer.runs.trackers.tracking import Tracking
from gossamer.tasks.data.partition import Split
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task


class DamagedRunWarning(UserWarning):
    """A file of a run folder is damaged, and an earlier checkpoint is used."""


def kept_key(path: Path) -> Key | None:
    """Return the secret key of a run folder; none if the run's key follows from its seed."""
    if read_about(path).get("deployment", {}).get("rehearsal", True):  # deployments of 0.2 had no secret key either
        return None
    return _read_secret(path, "all random numbers of the run follow from it")


def _read_secret(path: Path, use: str) -> Key:
    try:
        return Key(*struct.unpack("<QQ", inside.read(path, SECRET)))
    except (OSError, struct.error) as error:
        why = f"{path / SECRET} cannot be read ({error}): {use}"
        raise RunError(f"{why}: restore it from the machine of the run") from None


class KeptRun(ABC):
    """A run: the method, the task, and the states of server and clients.

    Its random key follows from the seed, unless ``key`` is given: a secret one, which the run folder keeps. Entries of
    the server state that nobody may read are encrypted in checkpoints (``secret_state``).
    """

    def __init__(
        self,
        method: Method,
        task: Task,
        options: Options,
        request: dict[str, Any] | None = None,
        init: Init | None = None,
        key: Key | None = None,
    ) -> None:
        check_arguments(method, task)
        self.init, self.options, self.secret = init, options, key
        self.task = task = (init.applied(task) if init else task).adapted(method.adapter)
        self.cohort_size = options.cohort(task.clients)
        self.key, how = key or make_key(options.seed), (self.precision_here, options.checkpointing)
        self.objective = Objective(task, options.device, self.key, *how, secure_noise=self.secure_noise)
        self.method = method.bind(self.objective)
        for exchange in self.method.exchanges:
            exchange.check_cohort(options.updates(self.cohort_size))
        if options.schedule:
            check_schedule(options.schedule, self.method, self.cohort_size)
            options.schedule.check(self.cohort_size, task.clients)
        known = task.clients, partial(self.split_of, options), self.steady
        self.privacy = privacy_of(self.method, options, *known, secure_noise=self.secure_noise)
        self.like = self.objective.initial()
        self.choice: dict[str, Any] = {"executor": options.executor}
        self.server: State = self.method.init(self.like, self.key)
        if self.method.probe is not None and len(self.method.global_models(self.server)) > 1:
            raise ConfigError(f"{method.sampler} needs losses of the global model, but this method has several models")
        self.clients, self.models = ClientStore(options.device), self.method.models
        self.metrics: list[Record] = []
        self.exclusion = Exclusion(options.exclude_after, task.clients)
        self.tracking = Tracking()
        self.outcomes: list[Outcome] = []  # of the last round
        self.save_seconds = 0.0
        self._deployed: tuple[Params, Params] | None = None
        self.about: dict[str, Any] = {
            "method": method.describe(),
            "recipe": method.recipe._asdict() if method.recipe else None,
            "task": task.describe(),
            "task_call": dict(task.call) if task.call else None,
            "parameters": self.objective.layout.size,
            **({"frozen": self.objective.frozen} if self.objective.frozen else {}),
            "tensors": {name: list(tensor.shape) for name, tensor in self.like.items()},
            "options": options.describe(),
            "request": request,
            "machine": machine(options.device),
            **({"init": init.describe()} if init else {}),
        }
        if options.until:
            options.until.check(self.scores)

    @property
    def steady(self) -> bool:
        """Whether all clients are available in every round, unless a schedule says otherwise."""
        return True

    @property
    def secure_noise(self) -> bool:
        """Whether the noise of differential privacy comes from the operating system."""
        return self.options.secure_noise

    @property
    def secret_state(self) -> tuple[str, ...]:
        """The entries of the server state that nobody may read in checkpoints; none if the noise follows from the seed.

        Anybody can compute such noise, and a run that is repeated must write the same bytes. Only the current state has
        such entries: schedules that keep earlier ones in checkpoints are refused with differential privacy.
        """
        servers = [exchange.server for exchange in self.method.exchanges] if self.secure_noise else []
        return tuple(name for each in servers for name in each.secret_state)

    def split_of(self, options: Options) -> Split | None:
        """Return the training samples of each client, if they are known."""
        split = self.task.split.hold_out(options.validate)[0] if options.validate else self.task.split
        return split.pooled(len(self.task.data.test)) if self.method.pooled else split

    @property
    def scores(self) -> tuple[Score, ...]:
        """The metrics of the run, the primary one first, and those on held-out samples."""
        return (*scores_of(self.about["task"]), *held_out(self.about))

    @property
    def precision_here(self) -> str:
        """The precision of training in this process."""
        return self.options.precision

    # The run folder.

    def create(self, path: Path) -> RunFolder:
        """Create the run folder."""
        if self.secret_state and self.secret is None:
            self.secret = secret_key()  # it encrypts secret entries alone: the run's key still follows from the seed
        secret = None if self.secret is None else struct.pack("<QQ", *self.secret)
        init = self.init.data if self.init else None
        return RunFolder.create(path, self.about, self.task.split.tensors(), init, secret)

    def restore(self, path: Path) -> RunFolder:
        """Load the last checkpoint of a run folder; refuse a folder with another method, task or options."""
        recorded = self._recorded(path)
        if self.secret_state:  # refused before anything in the folder changes
            self.secret = self.secret or _read_secret(path, "the checkpoints of the run are encrypted with it")
        folder = RunFolder.open(path)
        try:
            found = folder.restore()
            if found is not None:
                state = decrypted(found.server, self.secret) if self.secret else found.server
                self.recall(tree.move(state, self.options.device))
                folder.recall(found, self.clients, self.models)
            self.metrics = read_metrics(path)
        except RunError:
            folder.close()
            raise
        self.about |= {name: entry for name, entry in recorded.items() if name == EXTENDED}
        return folder

    def _recorded(self, path: Path) -> dict[str, Any]:
        """Return what a run folder says about its run; refuse another method, task or options."""
        recorded = read_about(path)
        check_about(path, recorded)
        check_same(recorded, self.about, path)
        return recorded

    def look(self, path: Path) -> None:
        """Load the newest whole checkpoint of a run folder to look at it; nothing in the folder changes.

        Secret entries of the server state are left out, so that whoever has a copy of the folder can look at it.
        """
        recorded = self._recorded(path)
        found, damaged, lines = newest(path)
        done, last = found.rounds if found else 0, len(lines.records)
        missing = [f"there is no checkpoint of round {last}"] if last > done and not damaged else []
        for problem in (*damaged.values(), *missing):
            warnings.warn(f"{problem}; this is the run after round {done}", DamagedRunWarning, stacklevel=2)
        if found is not None:
            self.recall(tree.move(without(found.server), self.options.device))
            recall(path, found, self.clients, self.models)
        self.metrics = lines.records[:done]
        self.about |= {name: entry for name, entry in recorded.items() if name == EXTENDED}

    def reopen(self, path: Path, **control: Any) -> RunFolder:
        """Restore a run and ``extend`` it; the folder is closed if that fails."""
        folder = self.restore(path)
        try:
            self.extend(folder, **control)
        except BaseException:
            folder.close()
            raise
        return folder

    def extend(
        self, folder: RunFolder, rounds: int | None = None, until: Until | None = None, patience: int | None = None
    ) -> None:
        """Give a restored run another number of rounds, targets or patience. Finished rounds stay as they are.

        Targets and patience that ended the run no longer hold; others hold unless they are given anew. Schedules
        count the new number of rounds from the next round on.
        """
        if rounds is None and until is None and patience is None:
            return
        done, before, rounds = len(self.metrics), self.options, rounds or self.options.rounds
        if rounds <= done:
            raise ConfigError(f"rounds must be above {done}, the number of finished rounds, got {rounds}")
        if self.privacy:
            again = max(0, released(folder.path) - done) if self.secure_noise else 0
            self.privacy.check_more(done, rounds if rounds > self.options.rounds else None, again)
        if until:
            until.check(self.scores)
        kept = Options() if self.stopped else before
        self.options = replace(before, rounds=rounds, until=until or kept.until, patience=patience or kept.patience)
        if self.options == before:
            return
        self.about[EXTENDED] = [*self.about.get(EXTENDED, ()), {"after": done, "options": before.describe()}]
        self.about["options"] = self.options.describe()
        folder.rewrite({name: self.about[name] for name in ("options", EXTENDED)})

    def options_of(self, number: int) -> Options:
        """Return the options that hold in a round: those of the run before it was extended, or the current ones."""
        earlier = (each["options"] for each in self.about.get(EXTENDED, ()) if number < each["after"])
        return next(map(Options.read, earlier), self.options)

    @property
    def stopped(self) -> str | None:
        """The reason why the run ended before its last round; none if it did not, or was extended since."""
        return stop_reason(self.about, self.metrics)

    @property
    def finished(self) -> bool:
        """Whether no round remains."""
        return len(self.metrics) >= self.options.rounds or self.stopped is not None

    def save(self, record: Record, folder: RunFolder) -> None:
        """Write the record of a round and its checkpoint."""
        # The record is written before the checkpoint, so it holds the time of the previous save.
        record["seconds"]["save"] = self.save_seconds
        begin = time.perf_counter()
        folder.keep_choice(self.choice)
        folder.append(record)
        state = self.checkpoint()
        if self.secret_state:
            assert self.secret is not None  # since the folder was created or restored
            state = encrypted(state, self.secret_state, self.secret)
        folder.save(record["round"], state, self.clients, self.models)
        self.save_seconds = round(time.perf_counter() - begin, 6)

    def checkpoint(self) -> State:
        """Return what a checkpoint keeps in addition to the client states."""
        return self.server

    def recall(self, state: State) -> None:
        """Continue from what a checkpoint has kept."""
        self.server = state

    # The global model.

    def model(self) -> Params:
        """Return the server's model, as it is trained."""
        first, *others = self.method.global_models(self.server)
        if others:
            raise RunError(
                "there is no single global model: each client chooses one of several; use result.client_model(i)"
            )
        return first

    def deployed(self) -> Params:
        """Return the global model as tensors of the network."""
        return self._deploy(self.model())

    def module(self) -> nn.Module:
        """Return the network with the global model."""
        return self.network(self.deployed())

    def network(self, params: Params) -> nn.Module:
        """Return the network of the task with these tensors; those of an adapter are merged into its own."""
        return self.merged(self.objective.build(params))

    def merged(self, module: nn.Module) -> nn.Module:
        """Return a network in the form of the task, given one that was trained; it may be modified."""
        adapter = self.method.method.adapter
        return module if adapter is None else adapter.merge(module)

    @abstractmethod
    def client_module(self, client: int) -> nn.Module:
        """Return the network that a client deploys."""

    def _deploy(self, held: Params) -> Params:
        if self._deployed is None or self._deployed[0] is not held:
            self._deployed = held, self.method.parametrization.deploy(held, self.like)
        return self._deployed[1]
