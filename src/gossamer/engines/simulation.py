"""A simulated run: all clients train in this process, and every message is encoded to real bytes."""

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from gossamer.core.availability import FOREVER
from gossamer.core.bound import BoundExchange
from gossamer.core.channel import Cost
from gossamer.core.errors import Mistake, RunError, Setting, require
from gossamer.core.exchange import Assignment
from gossamer.core.extras import need
from gossamer.core.jobs import Job, Outgoing, Trained, own_key
from gossamer.core.method import Method
from gossamer.core.random import Key, fold, uniform
from gossamer.core.schedule import ABOUT as ABOUT_SCHEDULE
from gossamer.core.schedule import Schedule
from gossamer.core.secure import Member
from gossamer.core.secure_exchange import REHEARSAL, SCRATCH
from gossamer.core.types import Params, State
from gossamer.core.wire import Body
from gossamer.engines.adversary import Adversary, about_attack, honest
from gossamer.engines.client import Client, ClientResult, ClientTask, Failure, TaskOutcome
from gossamer.engines.evaluate import Evaluated, Evaluator, validation_figures
from gossamer.engines.executors import EXECUTORS
from gossamer.engines.executors.auto import choose
from gossamer.engines.executors.base import Executor, OneByOne, Threaded, threads
from gossamer.engines.executors.side_by_side import SideBySide
from gossamer.engines.executors.stacked import Stacked
from gossamer.engines.held_models import HeldModels
from gossamer.engines.inbox import FAILED_ON_PURPOSE, ClientReply, Replies
from gossamer.engines.metrics import Ledger
from gossamer.engines.options import AUTO, Options
from gossamer.engines.run import FederatedRun, Stage
from gossamer.engines.secure import PhaseReplies, PhaseReply
from gossamer.engines.virtual.clock import VirtualTime
from gossamer.engines.warm_start import Init
from gossamer.parts.attacks.base import Attack, Collusion, UpdateAttack
from gossamer.parts.channels.links import Lossy, Perfect
from gossamer.parts.secure.primitives import SimulatedKeys
from gossamer.runs.folder import RunFolder
from gossamer.runs.records import ATTACK_SUCCESS, CHOSEN, CLUSTER, read_about
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.samples import AnySamples
from gossamer.tasks.task import Task

if TYPE_CHECKING:
    from gossamer.engines.ray import Cluster

ABOUT_VALIDATE = Setting("", "validate")
"""What mistakes in held-out samples are about."""

EARLY_EXECUTORS: dict[str, Callable[[Client], Executor]] = {
    "one-by-one": OneByOne,
    "threaded": Threaded,
    "stacked": Stacked,
}
"""Executors of the exchanges before the last, by the executor of the last exchange.

These exchanges take one or two steps per client, so compilation does not pay.
"""


class Simulation(FederatedRun):
    """A simulated run: all clients train in this process, with the data on one device."""

    def __init__(
        self,
        method: Method,
        task: Task,
        options: Options,
        request: dict[str, Any] | None = None,
        init: Init | None = None,
        key: Key | None = None,
    ) -> None:
        super().__init__(method, task, options, request, init, key)
        task, self.held_models = self.task, HeldModels()
        self.objective.check(self.like)
        self.split, held = self._held_out(options.validate) if options.validate else (task.split, None)
        self.split = self.split.pooled(len(task.data.test)) if method.pooled else self.split
        self.adversary = self._adversary(options.attack) if options.attack else None
        self.client = Client(self.method, self.objective, adversary=self.adversary)
        labels = self.labels if self.method.training.labels else None
        self.evaluate = Evaluator(self.objective, labels)
        self.validate = Evaluator(self.objective, labels, held) if held else None
        self.channel = options.channel.fit(task.clients, self.key)
        self.dispatcher: VirtualTime | None = self._virtual_time(options.schedule) if options.schedule else None
        self.cluster = self._cluster() if options.cluster else None
        self.executor: Executor | None = None if options.executor == AUTO else self._executor(options.executor)
        self.early: dict[int, Executor] = {}
        self.clients_of = {self.method.training.number: self.client}
        self.scratch: dict[int, State] = {}  # the secrets of clients, within an exchange with secure aggregation
        self.ready = False

    def _virtual_time(self, schedule: Schedule) -> VirtualTime:
        """Return the virtual clock of a schedule."""
        idle = "needs devices and links that take time: use the channel fleet or wireless"
        require((not isinstance(self.channel, Perfect | Lossy), Mistake(idle, ABOUT_SCHEDULE)))
        made = VirtualTime(self, schedule, self.channel, self._sizes)
        some = any(made.roster.availability(client).interval(0).start < FOREVER for client in self._sizes)
        require((some, "no client is ever available: check the availability of the fleet's devices"))
        self.about |= {"slots": made.slots, "refills": schedule.refills}
        return made

    def _held_out(self, every: int) -> tuple[Split, tuple[AnySamples, Split]]:
        """Return the split without held-out samples, and these samples with their split."""
        rest, held, chosen = self.task.split.hold_out(every)
        kept = bool((rest.sizes()[self.task.split.sizes() > 0] > 0).all())
        none = Mistake(f"is {every}, and no client has as many training samples: use a smaller one", ABOUT_VALIDATE)
        left = Mistake(f"is {every}, and a client would be left without training samples", ABOUT_VALIDATE)
        require((len(chosen) > 0, none), (kept, left))
        return rest, (self.task.data.train.take(chosen), held)

    def restore(self, path: Path) -> RunFolder:
        """Load the last checkpoint of a run folder, and keep the executor that was chosen."""
        folder = super().restore(path)
        recorded = read_about(path)
        if "executor" in recorded:
            self.choice = {name: recorded[name] for name in CHOSEN if name in recorded}
            if (name := recorded["executor"]) not in tuple(EXECUTORS):
                folder.close()
                raise RunError(f"{path} was run with an executor that this release does not have: {name!r}")
            self.executor = self._executor(name)
        if recorded["options"] != self.about["options"]:  # the run was moved to another cluster, if that can be reached
            try:
                if self.cluster is not None:
                    self.cluster.connect()
            except BaseException:
                folder.close()
                raise
            folder.rewrite({"options": self.about["options"]})
        return folder

    def _cluster(self) -> "Cluster":
        """Return the actors of a cluster; it is not connected yet."""
        made: Cluster = need("gossamer.engines.ray").Cluster(self.client, self.options.cluster, self.options.actors)
        return made

    def _executor(self, name: str) -> Executor:
        """Return the executor of the last exchange by its name: on this machine, or on a cluster."""
        if self.cluster is None:
            return EXECUTORS[name](self.client)
        return self.cluster.executor(self.client.exchange.number, name)

    def create(self, path: Path) -> RunFolder:
        """Create the run folder, once the cluster is known to hold the task."""
        if self.cluster is None:
            return super().create(path)
        self.cluster.connect()
        try:
            return super().create(path)
        except BaseException:
            self.cluster.close()
            raise

    def checkpoint(self) -> State:
        """Return the server state, together with the models that clients hold, and the tasks in flight."""
        return {**self.server, **self.held_models.state(), **(self.dispatcher.state() if self.dispatcher else {})}

    def recall(self, state: State) -> None:
        """Continue from the state of a checkpoint."""
        self.held_models = HeldModels.of(state)
        if self.dispatcher is not None:
            self.dispatcher.recall(state)
        super().recall(state)

    def close(self) -> None:
        """Release the processes and the memory of the executors."""
        for executor in (*self.early.values(), *([] if self.executor is None else [self.executor])):
            executor.close()
        if self.cluster is not None:
            self.cluster.close()
        judges = (self.evaluate, *([self.validate] if self.validate else ()))
        for samples in (self.objective.samples, *(judge.test for judge in judges)):
            samples.close()

    def available(self) -> Mapping[int, int]:
        """Return all clients; under a schedule, those that are available now and have no task."""
        return self._sizes if self.dispatcher is None else self.dispatcher.eligible()

    def claims(self) -> Mapping[int, int]:
        """Return the numbers of samples of all clients."""
        return self._sizes

    @cached_property
    def _sizes(self) -> dict[int, int]:
        return dict(enumerate(self.split.sizes().tolist()))

    def _adversary(self, attack: Attack) -> Adversary:
        """Return the hostile clients of the run, and change their samples if the attack does that."""
        shared, single = self.method.training.shared, len(self.method.global_models(self.server)) == 1
        with about_attack(attack):
            adversary = Adversary(attack, self.task.clients, self.key)
            require(
                (not self.method.pooled, "a method that pools all samples has no clients that could attack"),
                (shared or self.method.pooled, "clients of this method send nothing that could be attacked"),
                (
                    not (self.method.training.carried and isinstance(attack, UpdateAttack | Collusion)),
                    "it changes updates, and this method sends scalars of the solver instead: use an attack on samples",
                ),
                (
                    adversary.triggered is None or (self.method.shared and single),
                    "the success of a backdoor is that of the global model, and this method has none",
                ),
            )
            self.objective.samples = adversary.poisoned(self.objective.samples, self.task.data, self.split)
        self.about["hostile"] = list(adversary.hostile)
        return adversary

    def prepare(self, number: int, cohort: Sequence[int], ledger: Ledger) -> None:
        """Choose and compile the executor before the first round; this time is recorded separately."""
        if self.ready or not cohort:
            return
        if self.adversary:
            self.adversary.warn(self.cohort_size)
        with ledger.time("prepare"):
            # The client that most likely has a full batch. Not one of this cohort: a program is compiled for the size
            # of its batch, and a resumed run begins with another cohort.
            client = max(self._sizes, key=self._sizes.__getitem__)
            stage = Stage(self.method.training, number, {client: self.typical_assignment(client)})
            client_task, _ = self.client_task(stage, client, {})
            if self.executor is None:
                left = self.options.rounds - number
                choosing = partial(choose, self.client) if self.cluster is None else self.cluster.choice
                name, self.executor, rates, left_out = choosing(client_task, len(cohort), left)
                self.choice = {"executor": name, "rates": rates} | ({"left_out": left_out} if left_out else {})
            else:
                with threads(self.executor.threads):
                    self.executor.prepare(client_task, len(cohort))
        if self.cluster is not None:
            self.choice["cluster"] = self.cluster.describe()
        self.about |= self.choice
        self.ready = True

    def typical_assignment(self, client: int) -> Assignment:
        """Return the assignment of a client in a typical round."""
        home = self.method.home(client)
        return home if home.owner is None else home._replace(loss_scale=1.0)

    def executor_of(self, exchange: BoundExchange) -> Executor:
        """Return the executor of an exchange."""
        if exchange.last:
            return self.executor or OneByOne(self.client)
        if exchange.number not in self.early and self.cluster is not None:
            self.early[exchange.number] = self.cluster.executor(exchange.number, self.choice["executor"])
        if exchange.number not in self.early:
            gpu = self.objective.device.type == "cuda"
            make = EARLY_EXECUTORS.get(self.choice["executor"], Stacked if gpu else SideBySide)
            self.early[exchange.number] = make(self.client_of(exchange))
        return self.early[exchange.number]

    def client_of(self, exchange: BoundExchange) -> Client:
        """Return what runs the tasks of an exchange one at a time."""
        if exchange.number not in self.clients_of:
            self.clients_of[exchange.number] = Client(self.method, self.objective, exchange)
        return self.clients_of[exchange.number]

    def train(self, number: int, ledger: Ledger) -> list[int]:
        """Run all exchanges of a round, and drop models that no task needs any more."""
        cohort = super().train(number, ledger)
        self.scratch.clear()
        self.held_models.drop(min(self.dispatcher.versions, default=number) if self.dispatcher else number)
        if self.cluster is not None:
            ledger.notes[CLUSTER] = self.cluster.note()
        return cohort

    def cohort(self, number: int, ledger: Ledger) -> list[int]:
        """Sample the cohort of a round, in client order."""
        return [0] if self.method.pooled else super().cohort(number, ledger)

    def exchange(self, stage: Stage, ledger: Ledger, inbox: Replies) -> None:
        """Train the clients and send their uploads through the channel; a folded upload settles its client's state."""
        with threads(self.executor_of(stage.exchange).threads):
            if self.dispatcher is not None:
                self.dispatcher.exchange(stage, ledger, inbox)
                return
            for client_task, result in self.trained(stage, lambda part: self.client_tasks(part, ledger, inbox)):
                with ledger.time("receive"):
                    inbox.put(client_task.clock.client, self.send_upload(client_task, result, ledger))
        ledger.wait()

    def trained(self, stage: Stage, tasks: Callable[[Stage], Iterator[ClientTask]]) -> Iterator[TaskOutcome]:
        """Train the clients of a stage, and return their uploads as they are made; clients that collude train first.

        ``tasks`` returns the tasks of a part of the stage.
        """
        executor = self.executor_of(stage.exchange)
        first = self.adversary.colluding(stage.active) if self.adversary and stage.exchange.last else []
        if not first:
            return executor.run(tasks(stage))
        together = list(executor.run(tasks(stage.only(first))))
        others = stage.only([client for client in stage.assigned if client not in first])
        return chain(self.colluded(together, len(stage.active)), executor.run(tasks(others)))

    def colluded(self, outcomes: Sequence[TaskOutcome], cohort: int) -> Iterator[TaskOutcome]:
        """Yield the uploads of colluding clients, given what each of them has trained; failures stay failures."""
        assert self.adversary is not None
        done: list[tuple[ClientTask, Job, Trained]] = []
        for client_task, result in sorted(outcomes, key=lambda outcome: outcome.client_task.clock.client):
            if isinstance(result, Failure):
                yield TaskOutcome(client_task, result)
            else:
                trained = honest(result.state, result.loss, result.flops)
                done.append((client_task, self.client.read_download(client_task), trained))
        jobs = [(job, trained) for _, job, trained in done]
        crafted = self.adversary.crafted(jobs, self.method.training.outline, cohort) if jobs else []
        for (client_task, job, _), trained in zip(done, crafted, strict=True):
            try:
                yield TaskOutcome(client_task, self.client.encode(job, trained))
            except Exception as error:
                yield TaskOutcome(client_task, Failure.of(error))

    def client_tasks(self, stage: Stage, ledger: Ledger, inbox: Replies) -> Iterator[ClientTask]:
        """Yield the task of each client of a stage, created on demand."""
        common: dict[int, Body | None] = {}
        for client in stage.active:
            with ledger.time("download"):
                client_task, kinds = self.client_task(stage, client, common)
                ledger.receive(client, kinds, self.download_cost(client_task, kinds))
            if self.fails(client_task):
                inbox.put(client, FAILED_ON_PURPOSE)
            else:
                yield client_task

    def run_name(self, number: int) -> str:
        """Return a name that no other run has. It is not recorded: keys of simulated clients live for this process."""
        return self._name

    @cached_property
    def _name(self) -> str:
        return secrets.token_hex(16)

    @cached_property
    def roster(self) -> SimulatedKeys:
        """The keys with which simulated clients sign in secure aggregation."""
        return SimulatedKeys(self.task.clients)

    def ask_phase(self, stage: Stage, phase: str, requests: Mapping[int, Outgoing], ledger: Ledger) -> PhaseReplies:
        """Let each client answer, and send request and answer through the channel."""
        secure = stage.exchange.secure
        assert secure is not None
        for client, sent in requests.items():
            clock, key = self.clock_and_key(stage, client)
            mine = fold(own_key(key, clock), phase)
            cost = self.channel.receive(len(sent.data), clock, fold(mine, "download"))
            ledger.receive(client, sent.kinds, cost)
            try:
                member = Member(
                    client, secure.topic(self.run_name(clock.round), clock), self.roster.signer(client), self.roster
                )
                known = self.scratch.get(client, {})
                answer, self.scratch[client] = secure.answer(phase, sent.data, clock, member, known)
            except Exception as error:  # the client fails, and the round continues
                yield PhaseReply(client, failure=Failure.of(error))
                continue
            receipt = self.channel.send(len(answer.data), clock, fold(mine, "channel"))
            ledger.answer(client, answer.kinds, receipt)
            yield PhaseReply(client, answer.data if receipt.delivered else None)
        ledger.wait()

    def fails(self, client_task: ClientTask) -> bool:
        """Return whether a client fails on purpose."""
        rate = self.options.failure_rate
        return bool(rate and uniform(fold(own_key(client_task.key, client_task.clock), "failure"), 1).item() < rate)

    def client_task(
        self, stage: Stage, client: int, common: dict[int, Body | None]
    ) -> tuple[ClientTask, dict[str, int]]:
        """Return the task of one client, and the bytes of its download by kind."""
        clock, key = self.clock_and_key(stage, client)
        sent = self.download(stage, client, common)
        state = self.held_models.given(self.clients.get(client), clock.round) if stage.exchange.last else {}
        if stage.exchange.secure is not None:
            state = {**state, SCRATCH: self.scratch.get(client, {}) if stage.secure else REHEARSAL}
        return ClientTask(clock, key, sent.data, state, self.split.train(client)), sent.kinds

    def download_cost(self, client_task: ClientTask, kinds: dict[str, int]) -> Cost:
        """Return what a client spends on its download, as the channel models it."""
        if self.method.pooled:  # pooled training runs on no device
            return Cost()
        clock, mine = client_task.clock, own_key(client_task.key, client_task.clock)
        return self.channel.receive(sum(kinds.values()), clock, fold(mine, "download"))

    def send_upload(self, client_task: ClientTask, result: ClientResult | Failure, ledger: Ledger) -> ClientReply:
        """Send a client's upload through the channel and return what arrives."""
        clock, mine = client_task.clock, own_key(client_task.key, client_task.clock)
        if isinstance(result, Failure):
            return ClientReply(failure=result)
        ledger.train(result.loss, result.flops)
        ledger.report(result.sent.figures)
        if not self.method.pooled:  # pooled training runs on no device
            ledger.work(clock.client, self.channel.work(result.flops, clock, fold(mine, "work")))
        delivered = False
        if result.sent.data:
            receipt = self.channel.send(len(result.sent.data), clock, fold(mine, "channel"))
            ledger.send(clock.client, result.sent.kinds, receipt, result.delivery)
            delivered = receipt.delivered
        return ClientReply(result.sent.data if delivered else None, result.state)

    def settle_client(self, stage: Stage, client: int, reply: ClientReply, arrived: bool, known: State) -> None:
        """Stage the client's own state."""
        if reply.state is not None:
            self.clients.stage(client, self.held_models.taken(stage.exchange.settle(reply.state, arrived)))

    def evaluate_round(self, number: int, ledger: Ledger) -> Evaluated:
        """Evaluate the global model and each client's deployed model on the test set, and on held-out samples."""
        found = self.evaluated(self.evaluate, number)
        if self.validate is not None:
            found |= validation_figures(self.task.metrics, self.evaluated(self.validate, number))
        if self.adversary is None or self.adversary.triggered is None:
            return found
        first = self.method.global_models(self.server)[0]  # a backdoor is refused where there are several
        return found | {ATTACK_SUCCESS: self.evaluate.success(self._deploy(first), self.adversary.triggered)}

    def evaluated(self, evaluate: Evaluator, number: int) -> Evaluated:
        """Evaluate the models after a round, on the samples of an evaluator."""
        first, *others = self.method.global_models(self.server)
        if others:
            return evaluate.by_client(self.client_params)
        return evaluate(self._deploy(first), self.method.shared, lambda client: self.client_params(client, number))

    def client_params(self, client: int, number: int | None = None) -> Params:
        """Return the network's tensors as a client deploys them; clients with the global model share one object.

        ``number`` is the round after which the model is deployed, by default the last recorded one. Fine-tuning
        depends on it.
        """
        home, training = 0 if self.method.pooled else client, self.method.training
        models = training.server.download(self.server, self.method.home(home)).models
        held = training.deploy(self.client.choose(models, self.split.train(home)), self.clients.get(home), home)
        if self.method.tune is None:
            return self._deploy(held)
        after = max(0, len(self.metrics) - 1 if number is None else number)
        clock, key = self.clock(after, client), self.round_key(after)
        with threads(1):  # as Flower nodes do
            return self._deploy(self.client.tuned(held, clock, key, self.split.train(home)))

    def labels(self, client: int) -> Tensor | None:
        """Return a vector with 1 for each label whose score counts for a client; none means all."""
        return self.client.labels(self.split.train(0 if self.method.pooled else client))

    def client_module(self, client: int) -> nn.Module:
        """Return the network that a client deploys."""
        return self.network(self.client_params(client))

    def module(self) -> nn.Module:
        """Return the network with the global model, or with the pooled client's model."""
        return self.network(self.client_params(0)) if self.method.pooled else super().module()
