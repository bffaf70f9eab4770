"""Every executor computes what one-by-one computes."""

import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from gossamer import (
    DPSGD,
    METHODS,
    SGD,
    ConfigError,
    Exponential,
    LoRA,
    Method,
    Options,
    RunError,
    Task,
    fedavg,
    fedmrn,
    fedprox,
    fedspa,
    local,
    simulate,
)
from gossamer.core import tree
from gossamer.core.chunks import cores
from gossamer.core.exchange import GLOBAL
from gossamer.core.jobs import Job
from gossamer.engines.client import Client, ClientResult, ClientTask, Failure
from gossamer.engines.executors import CapturedPlain, SideBySide, Stacked, auto, building, program
from gossamer.engines.executors.captured import NotCompiledWarning
from gossamer.engines.executors.kept import KeptPrograms
from gossamer.engines.executors.slots import LENGTHS, ClientSlot
from gossamer.engines.executors.stacked import InChunks, schedule
from gossamer.engines.metrics import Ledger
from gossamer.engines.run import Stage
from gossamer.engines.simulation import Simulation
from gossamer.runs.records import read_about
from gossamer.tasks.data.samples import CropFlip
from gossamer.tasks.nets import build
from gossamer.testing import tiny_task
from helpers.random_nets import RANDOM_NETS
from helpers.tasks import Fragile

ROUNDS = 3


def final(result: Any) -> dict[str, Tensor]:
    """The global model; of a method whose clients choose among several, what each client deploys."""
    try:
        state: dict[str, Tensor] = result.model.state_dict()
    except RunError:
        each = {client: result.client_model(client) for client in range(result.about["task"]["clients"])}
        return {f"{client}/{name}": t for client, model in each.items() for name, t in model.state_dict().items()}
    return state


def exact_figures(result: Any) -> list[dict[str, Any]]:
    """What must agree exactly between executors: everything but measured time and the rounding of floats."""
    names = ("round", "bytes_up", "bytes_down", "flops", "clients", "failures", "lost")
    return [{name: record[name] for name in names} for record in result.metrics]


def close(method: Method, task: Task, executor: str, **more: Any) -> None:
    """Parameters within 1e-9 after three rounds in double precision; bytes and operations equal."""
    options = {"rounds": ROUNDS, "per_round": min(4, task.clients), **more}
    reference, other = (simulate(method, task, executor=name, **options) for name in ("one-by-one", executor))
    assert exact_figures(other) == exact_figures(reference)
    for name, tensor in final(reference).items():
        torch.testing.assert_close(final(other)[name], tensor, rtol=0, atol=1e-9, msg=name)
    for ours, theirs in zip(other.metrics, reference.metrics, strict=True):
        assert ours["train_loss"] == pytest.approx(theirs["train_loss"], abs=1e-9)
        assert ours["personal_accuracy"] == theirs["personal_accuracy"]


SOLVERS = {
    "plain": SGD(epochs=2, batch=4),
    "momentum": SGD(epochs=2, batch=4, momentum=0.9, weight_decay=0.01),
    "clipped": SGD(steps=7, batch=5, clip=0.3, proximal=0.1),
    "full batch": SGD(epochs=2, batch=None),
}


@pytest.mark.parametrize("solver", SOLVERS)
def test_stacked_steps_equal_single_ones(solver: str) -> None:
    close(fedavg().with_parts(solver=SOLVERS[solver]), tiny_task(clients=6, dtype=torch.float64), "stacked")


@pytest.mark.parametrize("name", METHODS)
def test_stacked_equals_one_by_one_for_every_method(name: str) -> None:
    close(METHODS[name](), tiny_task(clients=6, dtype=torch.float64), "stacked")


@pytest.mark.parametrize("split", ["iid", "dirichlet:0.3", "dirichlet-client:0.5", "labels:2", "shards:2", "slices:2"])
def test_stacked_equals_one_by_one_for_every_split(split: str) -> None:
    base = tiny_task(clients=6, dtype=torch.float64)
    train, test = ((s.x, s.y) for s in (base.data.train, base.data.test))
    close(fedavg(epochs=2, batch=7), Task.of(base.model, train, test, clients=6, split=split), "stacked")


def images(model: str, side: int, clients: int = 4) -> Task:
    torch.manual_seed(1)
    x, y = torch.randn(50, 1, side, side, dtype=torch.float64), torch.arange(50) % 3
    return Task.of(
        lambda: build(model, (1, side, side), 3).double(), (x, y), (x, y), clients=clients, split="dirichlet:1"
    )


@pytest.mark.parametrize("model", ["logistic", "mlp", "cnn2", "cnn4", pytest.param("cnn8", marks=pytest.mark.slow)])
def test_stacked_equals_one_by_one_for_every_network(model: str) -> None:
    close(fedavg(lr=0.01, epochs=2, batch=6), images(model, 16), "stacked", rounds=2)


def test_a_batch_of_one_is_normalised_the_same() -> None:
    base = images("cnn4", 16)
    sizes = base.split.sizes()
    assert (sizes % 5 == 1).any() or (sizes % 4 == 1).any()
    for batch in (4, 5):
        close(fedavg(lr=0.01, epochs=1, batch=batch), base, "stacked", rounds=2)


@pytest.mark.parametrize("model", ["mlp", "cnn2", "cnn4"])
def test_threaded_equals_one_by_one(model: str) -> None:
    close(fedavg(lr=0.01, epochs=2, batch=6), images(model, 16), "threaded", rounds=2)


class Watched(nn.Linear):
    """Notes which of its tensors differ between the clients of a stack."""

    seen: ClassVar[set[tuple[str, bool]]] = set()

    def forward(self, x: Tensor) -> Tensor:
        for name, tensor in self.named_parameters():
            self.seen.add((name, torch._C._functorch.is_functorch_wrapped_tensor(tensor)))
        return super().forward(x)


def test_frozen_tensors_are_shared_by_the_clients_of_a_stack() -> None:
    base = tiny_task(clients=4)
    task = replace(base, model=lambda: nn.Sequential(Watched(6, 8), nn.ReLU(), nn.Linear(8, 3)))
    adapted = fedavg(steps=1).with_parts(adapter=LoRA(2, targets=("2",), also=("0.bias",)))
    run = Simulation(adapted, task, Options(rounds=1, executor="stacked"))
    Watched.seen.clear()
    run.round(0, None, ())
    assert {("weight", False), ("bias", True)} <= Watched.seen
    assert ("weight", True) not in Watched.seen


REMEMBERED = ("ditto", "fedavg", "fedpm", "fedspa", "ifca", "onebit-cs", "per-fedavg", "perm", "scaffold", "topk")
"""Methods whose tasks carry different kinds of states and downloads; the others are slow tests."""


@pytest.mark.parametrize("name", [n if n in REMEMBERED else pytest.param(n, marks=pytest.mark.slow) for n in METHODS])
def test_side_by_side_equals_one_by_one_to_the_bit(name: str) -> None:
    task = tiny_task(clients=6)
    runs = [simulate(METHODS[name](), task, rounds=2, per_round=4, executor=e) for e in ("one-by-one", "side-by-side")]
    assert exact_figures(runs[0]) == exact_figures(runs[1])
    assert [r["train_loss"] for r in runs[0].metrics] == [r["train_loss"] for r in runs[1].metrics]
    assert all(torch.equal(final(runs[0])[n], final(runs[1])[n]) for n in final(runs[0]))


def test_side_by_side_draws_dropout_and_augments_as_one_by_one_does() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(40, 1, 8, 8), torch.arange(40) % 2
    task = Task.of(lambda: nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 2)), (x, y), (x, y), clients=4)
    task = replace(task, data=replace(task.data, augment=CropFlip(2)))
    runs = [simulate(fedavg(), task, rounds=2, executor=e) for e in ("one-by-one", "side-by-side")]
    assert all(torch.equal(final(runs[0])[n], final(runs[1])[n]) for n in final(runs[0]))


def test_augmentation_changes_training_and_is_the_same_stacked() -> None:
    plain = images("mlp", 8)
    moved = replace(plain, data=replace(plain.data, augment=CropFlip(2)))
    method = fedavg(lr=0.05, epochs=2, batch=6)
    ends = [final(simulate(method, task, rounds=1))["1.weight"] for task in (plain, moved)]
    assert not torch.equal(ends[0], ends[1])
    close(method, moved, "stacked")


def random_task(net: str, clients: int = 4) -> Task:
    """A task in double precision for a network with random layers; clients have 11 or 12 samples."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(46, 6, dtype=torch.float64, generator=generator)
    y = torch.arange(46) % 3
    return Task.of(lambda: RANDOM_NETS[net]().double(), (x, y), (x, y), clients=clients)


RAGGED = fedavg().with_parts(solver=SGD(epochs=1, batch=4, momentum=0.5))


@pytest.mark.parametrize("net", RANDOM_NETS)
def test_random_layers_draw_the_same_numbers_if_stacked(net: str) -> None:
    close(RAGGED, random_task(net), "stacked", rounds=2)


def test_random_layers_draw_the_same_numbers_in_other_processes() -> None:
    task = random_task("transformer")
    reference, other = (simulate(RAGGED, task, rounds=2, executor=name) for name in ("one-by-one", "side-by-side"))
    assert all(torch.equal(final(other)[name], tensor) for name, tensor in final(reference).items())


@pytest.fixture
def without_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let recorded programs run in eager mode."""
    monkeypatch.setattr(program, "compile_graph", lambda recording, kept: lambda inputs: recording.graph(*inputs))


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("net", RANDOM_NETS)
def test_random_layers_draw_the_same_numbers_if_recorded(net: str) -> None:
    close(RAGGED, random_task(net), "compiled", rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize("net", RANDOM_NETS)
def test_random_layers_draw_the_same_numbers_if_compiled(net: str) -> None:
    close(RAGGED, random_task(net), "compiled", rounds=2)


OWN_STEPS = ("ditto", "fedmrn", "fedpm", "fedrolex", "per-fedavg", "scaffold")
"""Methods with steps of different kinds; the others are slow tests."""


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("name", [n if n in OWN_STEPS else pytest.param(n, marks=pytest.mark.slow) for n in METHODS])
def test_recorded_steps_equal_one_by_one_for_every_method(name: str) -> None:
    close(METHODS[name](), tiny_task(clients=4, dtype=torch.float64), "compiled", rounds=2)


PRIVATE = {
    "plain": fedavg().with_parts(solver=DPSGD(steps=4, batch=4, momentum=0.5, noise_multiplier=0.5)),
    "straight-through": fedmrn(learn_masks=True).with_parts(solver=DPSGD(steps=3, batch=4)),
    "scores": METHODS["fedpm"]().with_parts(solver=DPSGD(steps=3, batch=4)),
    "adapter": fedavg().with_parts(solver=DPSGD(steps=3, batch=4), adapter=LoRA(2)),
}
"""Methods with gradients of single samples: of the model, of masked noise, of scores of a mask, and of an adapter."""


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("executor", ["stacked", "compiled"])
@pytest.mark.parametrize("name", PRIVATE)
def test_gradients_of_single_samples_are_the_same_in_every_executor(name: str, executor: str) -> None:
    close(PRIVATE[name], tiny_task(clients=4, dtype=torch.float64), executor, rounds=2)


@pytest.mark.parametrize("net", ["dense", "lstm"])
def test_samples_draw_the_same_numbers_in_random_layers_if_stacked(net: str) -> None:
    close(fedavg().with_parts(solver=DPSGD(steps=2, batch=3)), random_task(net), "stacked", rounds=1)


def test_private_steps_are_captured(without_gpu: list["Replayed"]) -> None:
    """Rows that only fill a batch change from step to step, and are read from the memory of a slot."""
    close(fedavg().with_parts(solver=DPSGD(steps=21, batch=3)), tiny_task(6, torch.float64), "captured-plain", rounds=2)
    assert sum(graph.times for graph in without_gpu) > 8


@pytest.mark.slow
def test_private_steps_are_compiled() -> None:
    close(PRIVATE["plain"], tiny_task(clients=4, dtype=torch.float64), "compiled", rounds=2)


@pytest.mark.parametrize("name", ["ditto", "pfedme", "per-fedavg", "fedmrn", "fedpm", "scaffold", "fedrolex"])
def test_random_layers_draw_the_same_numbers_in_every_gradient_evaluation(name: str) -> None:
    """Methods with two models, straight-through training, control variates, and narrower networks."""
    given = {"steps": 2} if name == "pfedme" else {}
    close(METHODS[name](**given), random_task("dense"), "stacked", rounds=2)


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["stacked", "compiled"])
def test_the_recurrent_network_of_fedmrn_trains_with_dropout_in_every_executor(executor: str) -> None:
    generator = torch.Generator().manual_seed(1)
    x, y = torch.randint(20, (12, 6), generator=generator), torch.arange(12) % 20
    task = Task.of(lambda: build("lstm", (6,), 20).double(), (x, y), (x, y), clients=3)
    close(fedavg().with_parts(solver=SGD(epochs=1, batch=2)), task, executor, rounds=2)


@pytest.mark.parametrize("executor", ["one-by-one", "threaded", "stacked"])
def test_a_run_with_random_layers_resumes_bit_for_bit(executor: str, tmp_path: Path) -> None:
    def stop(record: dict[str, Any], run: Any) -> None:
        if record["round"] == 1:
            raise KeyboardInterrupt

    task = random_task("transformer")
    options: dict[str, Any] = {"rounds": 3, "per_round": 2, "executor": executor}
    whole = simulate(RAGGED, task, **options)
    with pytest.raises(KeyboardInterrupt):
        simulate(RAGGED, task, out=tmp_path / "cut", callbacks=[stop], **options)
    resumed = simulate(RAGGED, task, out=tmp_path / "cut", resume=True, **options)
    assert all(torch.equal(final(resumed)[name], tensor) for name, tensor in final(whole).items())
    assert [r["train_loss"] for r in resumed.metrics] == [r["train_loss"] for r in whole.metrics]


def test_masks_change_with_seed_client_and_round() -> None:
    """With a tiny learning rate, a loss depends on the samples, which are equal here, and on the masks."""
    x, y = torch.ones(8, 6), torch.zeros(8, dtype=torch.int64)
    task = Task.of(RANDOM_NETS["dense"], (x, y), (x, y), clients=2)
    method = fedavg().with_parts(solver=SGD(lr=1e-30, steps=1, batch=None))
    losses = {
        record["train_loss"]
        for seed in (1, 1, 2)
        for only in (1, 2)
        for record in simulate(method, task, rounds=2, per_round=only, seed=seed).metrics
    }
    assert len(losses) == 8


@pytest.mark.parametrize("executor", ["stacked", "side-by-side", "threaded"])
def test_failing_clients_are_named_the_same(executor: str) -> None:
    x, y = torch.zeros(40, 2), torch.arange(40) % 2
    task = Task.of(Fragile, (x, y), (x, y), clients=4)
    x[torch.from_numpy(task.split.train(2)), 0] = 9.0
    x[:2] = 0
    runs = [simulate(fedavg(), task, rounds=2, executor=e) for e in ("one-by-one", executor)]
    assert exact_figures(runs[0]) == exact_figures(runs[1])
    assert runs[1].metrics[0]["failures"] == [{"client": 2, "reason": "ValueError: sensor broken"}]


def order(client: int, simulation: Simulation) -> ClientTask:
    stage = Stage(simulation.method.training, 0, {client: GLOBAL})
    made, _ = simulation.client_task(stage, client, {})
    return made


def test_a_worker_that_dies_is_a_client_that_failed_and_is_replaced() -> None:
    simulation = Simulation(fedavg(), tiny_task(clients=6), Options(rounds=1))

    class Mortal(Client):
        def train(self, order: ClientTask, job: Any) -> Any:
            if job.clock.client == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().train(order, job)

    executor = SideBySide(Mortal(simulation.method, simulation.objective), workers=2)
    done = {d.client_task.clock.client: d.result for d in executor.run(order(c, simulation) for c in range(6))}
    executor.close()
    assert isinstance(done[1], Failure)
    assert "its process died (exit code -9)" in done[1].reason
    assert all(isinstance(done[c], ClientResult) for c in (0, 2, 3, 4, 5))


def test_a_worker_that_dies_between_two_rounds_is_replaced_and_no_client_fails() -> None:
    def kill(record: dict[str, Any], run: Any) -> None:
        process, _ = next(iter(run.executor._workers.values()))
        process.kill()
        process.join()

    task = tiny_task(clients=4)
    whole, cut = (simulate(fedavg(), task, rounds=3, executor="side-by-side", callbacks=c) for c in ([], [kill]))
    assert exact_figures(cut) == exact_figures(whole)
    assert all(torch.equal(final(cut)[name], tensor) for name, tensor in final(whole).items())


@pytest.mark.parametrize("received", [True, False])
def test_a_worker_that_dies_before_it_reads_its_task_is_a_client_that_failed(received: bool) -> None:
    simulation = Simulation(fedavg(), tiny_task(clients=6), Options(rounds=1))
    executor = SideBySide(Client(simulation.method, simulation.objective), workers=2)

    def orders() -> Any:
        """The second worker gets the task of client 1."""
        yield order(0, simulation)
        _, (process, _) = executor._workers.values()
        if received:
            os.kill(process.pid, signal.SIGSTOP)
            yield order(1, simulation)
        process.kill()
        process.join()
        yield from (order(c, simulation) for c in range(2 if received else 1, 6))

    done = {d.client_task.clock.client: d.result for d in executor.run(orders())}
    assert len(executor._workers) == 2
    executor.close()
    assert isinstance(done[1], Failure)
    assert "its process died (exit code -9)" in done[1].reason
    assert all(isinstance(done[c], ClientResult) for c in (0, 2, 3, 4, 5))


def test_workers_go_when_the_run_is_over() -> None:
    simulation = Simulation(fedavg(), tiny_task(), Options(rounds=1, executor="side-by-side"))
    simulation.round(0, None)
    assert isinstance(simulation.executor, SideBySide)
    processes = [process for process, _ in simulation.executor._workers.values()]
    assert all(p.is_alive() for p in processes)
    simulation.executor.close()
    assert not any(p.is_alive() for p in processes)


def test_a_worker_that_still_trains_when_a_run_is_stopped_ends_quietly(capfd: pytest.CaptureFixture[str]) -> None:
    simulation = Simulation(fedavg(), tiny_task(clients=3), Options(rounds=1))

    class Slow(Client):
        def train(self, order: ClientTask, job: Any) -> Any:
            if job.clock.client == 0:
                raise BrokenPipeError("sensor broken")
            time.sleep(0.3)
            return super().train(order, job)

    executor = SideBySide(Slow(simulation.method, simulation.objective), workers=1)
    first = next(executor.run(order(c, simulation) for c in range(3))).result
    assert isinstance(first, Failure)
    assert "sensor broken" in first.reason, "errors of a client are no closed pipes"
    ((process, _),) = executor._workers.values()
    executor.close()
    assert process.exitcode == 0
    assert capfd.readouterr().err == ""


def test_orders_are_made_as_they_are_asked_for() -> None:
    """A thousand clients must not mean a thousand models in memory."""
    simulation = Simulation(fedavg(), tiny_task(clients=40), Options(rounds=1))
    made, most = 0, 0

    def orders() -> Any:
        nonlocal made
        for c in range(40):
            made += 1
            yield order(c, simulation)

    for executor in (SideBySide(Client(simulation.method, simulation.objective), 2),
                     Stacked(Client(simulation.method, simulation.objective), size=4)):  # fmt: skip
        made, most, done = 0, 0, 0
        for _ in executor.run(orders()):
            done += 1
            most = max(most, made - done)
        executor.close()
        assert done == 40
        assert most <= 4


@pytest.mark.parametrize("executor", ["stacked", "side-by-side"])
def test_the_executor_is_kept_with_the_run_and_resumes(executor: str, tmp_path: Path) -> None:
    task, seen = tiny_task(), []

    def stop(record: dict[str, Any], run: Any) -> None:
        seen.append(record)
        if len(seen) == 2:
            raise KeyboardInterrupt

    whole = simulate(local(), task, rounds=4, per_round=2, executor=executor, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        simulate(local(), task, rounds=4, per_round=2, executor=executor, out=tmp_path / "cut", callbacks=[stop])
    resumed = simulate(local(), task, rounds=4, per_round=2, executor=executor, out=tmp_path / "cut", resume=True)
    assert exact_figures(resumed) == exact_figures(whole)
    newest = [(tmp_path / run / "clients").iterdir() for run in ("whole", "cut")]
    assert {p.name: p.read_bytes() for p in newest[0]} == {p.name: p.read_bytes() for p in newest[1]}


def test_gradients_in_single_precision_agree_to_rounding() -> None:
    task = images("cnn4", 16)
    single = replace(task, model=lambda: build("cnn4", (1, 16, 16), 3), data=replace(
        task.data, train=replace(task.data.train, x=task.data.train.x.float())))  # fmt: skip
    objective = Simulation(fedprox(), single, Options(rounds=1)).objective
    params = {**objective.initial(), **objective.local()}
    objective.train_mode(alone=False)
    _, eager, _ = objective.gradient(params, objective.samples.x[:9], objective.samples.y[:9])
    _, pure, _ = objective.pure_gradient(params, objective.samples.x[:9], objective.samples.y[:9])
    for name, g in eager.items():
        assert (pure[name] - g).norm() <= 1e-5 * g.norm() + 1e-12, name


def test_auto_measures_chooses_and_stays_with_its_choice(tmp_path: Path) -> None:
    """What it chooses for a short run gives the same bits, whichever it is."""
    task = tiny_task(clients=6)
    reference = simulate(fedavg(), task, rounds=3, per_round=4)

    def stop(record: dict[str, Any], run: Any) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulate(fedavg(), task, rounds=3, per_round=4, executor="auto", out=tmp_path / "run", callbacks=[stop])
    chosen = simulate(fedavg(), task, rounds=3, per_round=4, executor="auto", out=tmp_path / "run", resume=True)
    assert set(chosen.about["rates"]) == {"one-by-one", "side-by-side"}
    assert chosen.metrics[0]["seconds"]["prepare"] > 0
    assert chosen.summary()["executor"] == read_about(tmp_path / "run")["executor"] in chosen.about["rates"]
    assert exact_figures(chosen) == exact_figures(reference)
    assert all(torch.equal(final(chosen)[n], final(reference)[n]) for n in final(reference))


@pytest.mark.parametrize("executor", ["captured", "captured-plain"])
def test_captured_needs_a_gpu(executor: str) -> None:
    with pytest.raises(ConfigError, match="captured needs a GPU"):
        simulate(fedavg(), tiny_task(), rounds=1, executor=executor)


class Replayed:
    """A graph without a GPU: a replay repeats the work, and fills the memory of its first result."""

    def __init__(self, work: Callable[[], Any], made: Any) -> None:
        self.work, self.made, self.times = work, made, 0

    def replay(self) -> None:
        self.times += 1
        made = self.work()
        if self.made is not None:
            tree.put(self.made, ..., made)


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> list[Replayed]:
    """Let ``captured-plain`` run on a CPU, with ``Replayed`` for graphs; return the graphs."""
    graphs: list[Replayed] = []

    def captured(slot: Any, work: Callable[[], Any], benchmark: bool) -> tuple[Replayed, Any]:
        before = tree.clone(slot.tensors)
        made = work()
        tree.put(slot.tensors, ..., before)  # a capture runs nothing
        graphs.append(Replayed(work, made))
        return graphs[-1], made

    class Idle:
        def wait_stream(self, other: Any) -> None:
            """All work is done at once."""

    def init(self: Any, client: Client) -> None:
        InChunks.__init__(self, client, 16)
        self.full, self.room, self.slots, self.compiling, self.steppings = None, 0, {}, False, {}

    for name, fake in {"Stream": Idle, "current_stream": Idle, "graph_pool_handle": Idle}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (10**9, 10**9))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(CapturedPlain, "__init__", init)
    monkeypatch.setattr(ClientSlot, "_captured", captured)
    return graphs


@pytest.mark.parametrize("given", [{}, {"distribution": "uniform"}, {"regrow": "random"}, {"mask": "rsm"}], ids=str)
def test_the_gradient_of_moving_masks_is_captured_with_the_steps(
    given: dict[str, Any], without_gpu: list[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, method = tiny_task(6, torch.float64), fedspa(epochs=4, batch=4, density=0.6, **given)
    asked: list[int] = []
    real = Client.screen

    def screen(self: Client, *of: Any) -> Any:
        asked.append(1)
        return real(self, *of)

    options: dict[str, Any] = {"rounds": 3, "per_round": 4}
    reference = simulate(method, task, executor="one-by-one", **options)
    monkeypatch.setattr(Client, "screen", screen)
    other = simulate(method, task, executor="captured-plain", **options)
    assert exact_figures(other) == exact_figures(reference)
    for name, tensor in final(reference).items():
        torch.testing.assert_close(final(other)[name], tensor, rtol=0, atol=1e-9, msg=name)
    for ours, theirs in zip(other.metrics, reference.metrics, strict=True):
        assert ours["figures"] == theirs["figures"], "the same masks"
    screening = [graph for graph in without_gpu if graph.made is not None]
    assert sum(graph.times for graph in screening) >= (12 if not given or "distribution" in given else 0)
    assert bool(asked) == bool(screening) == (given.get("regrow") != "random" and given.get("mask") != "rsm")


def test_one_launch_runs_several_steps(without_gpu: list[Replayed]) -> None:
    task, method, steps = tiny_task(6, torch.float64), fedavg(steps=21, batch=2), 21
    reference = simulate(method, task, rounds=2, per_round=4, executor="one-by-one")
    other = simulate(method, task, rounds=2, per_round=4, executor="captured-plain")
    for name, tensor in final(reference).items():
        torch.testing.assert_close(final(other)[name], tensor, rtol=0, atol=1e-9, msg=name)
    last_round = 4 * (steps // LENGTHS[0] + steps % LENGTHS[0])
    assert sum(graph.times for graph in without_gpu) >= last_round
    assert max(graph.times for graph in without_gpu) < 2 * steps


def of_sizes(*sizes: int) -> Task:
    """A task with clients of these sizes."""
    ends = np.cumsum(sizes)
    x, y = torch.sin(torch.arange(6.0 * ends[-1], dtype=torch.float64)).view(-1, 6), torch.arange(ends[-1]) % 3
    split = [list(range(end - size, end)) for size, end in zip(sizes, ends, strict=True)]
    return Task.of(lambda: nn.Linear(6, 3).double(), (x, y), (x, y), split=split)


def test_a_batch_size_is_captured_once_it_has_occurred_often(without_gpu: list[Replayed]) -> None:
    """Clients of many sizes have a last batch of their own size, with one step per round."""
    task, method = of_sizes(6, 6), fedavg(epochs=1, batch=4)
    reference = simulate(method, task, rounds=8, executor="one-by-one")
    other = simulate(method, task, rounds=8, executor="captured-plain")
    for name, tensor in final(reference).items():
        torch.testing.assert_close(final(other)[name], tensor, rtol=0, atol=1e-9, msg=name)
    assert len(without_gpu) == 4, "one graph per slot and size"
    assert all(graph.times >= 2 for graph in without_gpu)


def test_slots_have_room_for_clients_of_all_sizes(without_gpu: list[Replayed], monkeypatch: pytest.MonkeyPatch) -> None:
    """A slot that is replaced would lose its graphs."""
    made, real = list[ClientSlot](), ClientSlot.__init__

    def init(self: ClientSlot, *given: Any) -> None:
        made.append(self)
        real(self, *given)

    monkeypatch.setattr(ClientSlot, "__init__", init)
    simulation = Simulation(fedavg(epochs=3, batch=2), of_sizes(3, 57), Options(rounds=1, executor="captured-plain"))
    simulation.prepare(0, [0], Ledger())
    assert simulation.train(0, Ledger()) == [0, 1]
    assert len(made) == 1, "one slot serves both clients"


def test_a_step_that_cannot_be_compiled_is_captured_as_it_is(
    without_gpu: list[Replayed], monkeypatch: pytest.MonkeyPatch
) -> None:
    task, method = tiny_task(6, torch.float64), fedavg(steps=9, batch=2)
    simulation = Simulation(method, task, Options(rounds=1, per_round=4, executor="captured-plain"))
    executor = simulation.executor
    assert isinstance(executor, CapturedPlain)
    executor.compiling, real = True, executor._steppings

    def fails(slot: Any, size: int) -> None:
        raise RuntimeError("no kernel for this layout")

    def steppings(job: Job) -> Any:
        if not executor.compiling:
            return real(job)
        return fails, fails

    monkeypatch.setattr(executor, "_steppings", steppings)
    with pytest.warns(NotCompiledWarning, match="no kernel for this layout"):
        simulation.prepare(0, range(4), Ledger())
    simulation.train(0, Ledger())
    assert sum(graph.times for graph in without_gpu) >= 4 * 2


def test_captured_groups_follow_each_other_in_the_same_slots(without_gpu: list[Replayed]) -> None:
    """The results of a group are copied out of its slots before the next one is loaded."""
    task, method = tiny_task(24, torch.float64), fedspa(epochs=4, batch=4, density=0.6)
    options: dict[str, Any] = {"rounds": 2, "per_round": 20}  # more clients than slots
    reference = simulate(method, task, executor="one-by-one", **options)
    other = simulate(method, task, executor="captured-plain", **options)
    assert any(graph.times for graph in without_gpu)
    assert exact_figures(other) == exact_figures(reference)
    for name, tensor in final(reference).items():
        torch.testing.assert_close(final(other)[name], tensor, rtol=0, atol=1e-9, msg=name)


def test_captured_steps_and_gradients_have_the_precision_of_the_run(without_gpu: list[Replayed]) -> None:
    task, method = tiny_task(6), fedspa(epochs=4, batch=4, density=0.6)
    exact, wanted = (simulate(method, task, rounds=2, per_round=4, precision=name) for name in ("float32", "bf16"))
    found = simulate(method, task, rounds=2, per_round=4, precision="bf16", executor="captured-plain")
    assert any(graph.times for graph in without_gpu)
    one, other, reference = (torch.cat([t.flatten() for t in final(r).values()]) for r in (found, exact, wanted))
    assert (one - reference).norm() < 0.1 * (other - reference).norm()


def test_a_schedule_takes_everybody_through_all_steps_in_order() -> None:
    sizes = [[4, 4, 1, 4, 4, 1], [4, 2, 4, 2], [4, 4, 4, 4, 4, 3], [7]]
    at = [0] * len(sizes)
    for size, clients in schedule(sizes):
        for c in clients:
            assert sizes[c][at[c]] == size
            at[c] += 1
    assert at == [len(own) for own in sizes]
    assert max(len(clients) for _, clients in schedule(sizes)) == 3


@pytest.mark.slow
def test_compiled_equals_one_by_one_and_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """One test for the compiler, as it takes its time: momentum, decay, ragged batches, a schedule and masks."""
    solver = SGD(epochs=2, batch=4, momentum=0.9, weight_decay=0.01, schedule=Exponential(0.5))
    method, task = fedmrn(alpha=0.5).with_parts(solver=solver), tiny_task(clients=6, dtype=torch.float64)
    close(method, task, "compiled")
    monkeypatch.delattr(building, "_compile_library")  # from here on nothing is compiled
    close(method, task, "compiled")
    runs = [simulate(method, task, rounds=ROUNDS, per_round=4, executor="compiled") for _ in range(2)]
    assert all(torch.equal(final(runs[0])[name], tensor) for name, tensor in final(runs[1]).items())


@pytest.mark.parametrize("faults", [("True",), ("True", "None")])
def test_a_program_that_the_processor_cannot_run_ends_no_run(
    faults: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def compile_library(recording: Any, room: Path, options: Mapping[str, Any]) -> None:
        (room / "library.so").write_text(str(options["cpp.vec_isa_ok"]))

    def try_library(recording: Any, library: Path) -> None:
        if library.read_text() in faults:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(building, "_compile_library", compile_library)
    monkeypatch.setattr(building, "_try_library", try_library)
    recording: Any = None
    if len(faults) == 2:
        with pytest.raises(ConfigError, match="use another executor: its process was ended by SIGKILL"):
            building._build_library(recording, tmp_path)
    else:
        assert building._build_library(recording, tmp_path).read_text() == "None"


@pytest.mark.usefixtures("without_compiler")
@pytest.mark.parametrize("kept", [True, False])
def test_auto_compiles_a_short_run_only_if_the_program_is_kept(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto, "SHORT", 0.0)
    monkeypatch.setattr(KeptPrograms, "__contains__", lambda self, key: kept)
    chosen = simulate(fedavg(), tiny_task(clients=6), rounds=2, per_round=4, executor="auto")
    assert ("compiled" in chosen.about["rates"]) == kept
    assert "left_out" not in chosen.about


def test_side_by_side_counts_the_processor_time_of_its_workers() -> None:
    simulation = Simulation(fedavg(), tiny_task(clients=4), Options(rounds=1))
    executor = SideBySide(simulation.client, workers=2)
    assert len(list(executor.run([order(c, simulation) for c in range(4)]))) == 4
    alone = time.process_time()
    assert executor.processor_seconds() - alone > 0
    executor.close()


@pytest.mark.parametrize(("limits", "most"), [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None)])
def test_workers_keep_to_the_quota_of_a_container(limits: str, most: int | None, tmp_path: Path) -> None:
    (tmp_path / "cpu.max").write_text(limits)
    assert cores(tmp_path / "cpu.max") == (most or len(os.sched_getaffinity(0)))
    assert cores(tmp_path / "none") == len(os.sched_getaffinity(0))


def test_clients_of_a_round_share_what_the_server_sent() -> None:
    """It is encoded once, decoded once, and never written to."""
    simulation = Simulation(fedavg(), tiny_task(clients=4), Options(rounds=1))
    client = simulation.client
    orders = [order(c, simulation) for c in range(2)]
    exchange = simulation.method.training
    common = exchange.make_common(simulation.server, orders[0].clock, orders[0].key)
    assert common is not None
    shared = [
        o._replace(data=exchange.make_download(simulation.server, o.clock, o.key, GLOBAL, None, common).data)
        for o in orders
    ]
    assert shared[0].data.common is shared[1].data.common is common.data
    jobs = [client.read_download(o) for o in shared]
    assert jobs[0].models is jobs[1].models
    assert all(jobs[0].start[name] is tensor is jobs[0].models[0][name] for name, tensor in jobs[1].start.items())
    before = {name: tensor.clone() for name, tensor in jobs[0].start.items()}
    assert all(isinstance(client.do(o).result, ClientResult) for o in shared)
    assert all(torch.equal(jobs[0].start[name], tensor) for name, tensor in before.items())
    late = shared[1]._replace(clock=shared[1].clock._replace(round=1))
    result = client.do(late).result
    assert isinstance(result, Failure)
    assert "another round" in result.reason
