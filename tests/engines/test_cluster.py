"""Runs on a cluster give the bytes of runs on one machine, whatever the order of completion and whatever dies."""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from hypothesis import given
from hypothesis import strategies as st
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayTaskError
from torch import Tensor, nn
from torch.utils.data import Dataset

from gossamer import METHODS, ConfigError, Options, RunError, Task, __version__, fedavg, fedspa, resume, simulate
from gossamer.core.random import Key
from gossamer.core.types import Clock
from gossamer.core.wire import Frame
from gossamer.engines.client import Client, ClientTask
from gossamer.engines.ray import ClusterWarning, nodes
from gossamer.engines.ray import cluster as pool
from gossamer.engines.ray.actor import ClientActor, Machine
from gossamer.engines.ray.dealer import AHEAD, Dealer
from gossamer.engines.ray.jobs import OnNodes
from gossamer.engines.ray.nodes import Need, Node
from gossamer.parts.samplers import PowerOfChoice
from gossamer.testing import tiny_task
from helpers.clusters import contents
from helpers.fake_ray import Deadly, FakeRay, use_fake_ray

Fake = Callable[..., FakeRay]
FIGURES = ("bytes_up", "bytes_down", "flops", "clients", "failures", "train_loss", "accuracy", "personal_accuracy")


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Replaces Ray by one without processes."""
    return partial(use_fake_ray, monkeypatch)


def figures(result: Any) -> list[dict[str, Any]]:
    return [{name: record.get(name) for name in FIGURES} for record in result.metrics]


def same_bytes(method: Any, task: Task, folder: Path, **options: Any) -> Any:
    """Run on one machine and on a cluster; all checkpoints and figures must be equal. Return the second result."""
    common = {"rounds": 2, "per_round": 5} | {k: v for k, v in options.items() if k not in ("cluster", "actors")}
    alone = simulate(method, task, out=folder / "alone", **common)
    result = simulate(method, task, out=folder / "cluster", **common, cluster="auto", actors=options.get("actors"))
    assert contents(folder / "cluster") == contents(folder / "alone")
    assert figures(result) == figures(alone)
    return result


# A real instance.


@pytest.fixture(scope="module")
def local_ray() -> Iterator[None]:
    assert nodes.connect("local")
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Ray leaves files open
        ray.shutdown()


@pytest.mark.slow
def test_two_actors_give_the_bytes_of_one_machine(local_ray: None, tmp_path: Path) -> None:
    result = same_bytes(fedspa(epochs=2, batch=4), tiny_task(clients=8), tmp_path, actors=2)
    assert [record["cluster"]["actors"] for record in result.metrics] == [2, 2]
    assert result.about["executor"] == "one-by-one"
    assert sum(result.about["cluster"]["machines"].values()) == 2
    assert ray.is_initialized()  # a connection that was there before stays


@pytest.mark.slow
def test_a_folder_that_no_node_sees_is_refused(
    local_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    monkeypatch.setattr("gossamer.core.files.digest_of", lambda data: "that of another file")
    with (
        pytest.warns(ClusterWarning, match=r"does not see .* and is not used"),
        pytest.raises(ConfigError, match=r"no node of the cluster sees .* put it on a disk that all nodes share"),
    ):
        OnNodes("auto", tmp_path / "sweep.json")


# Ray without processes: any order of completion.


SHUFFLED = ("perm", "fedspa", "fedmrn")
ALSO_SHUFFLED = ("fedavg", "scaffold", "ifca", "ef21", "centralised")


@pytest.mark.parametrize("name", [*SHUFFLED, *(pytest.param(name, marks=pytest.mark.slow) for name in ALSO_SHUFFLED)])
def test_shuffled_completions_give_the_same_bytes(name: str, fake: Fake, tmp_path: Path) -> None:
    cluster = fake(seed=3, cores=(2, 1))
    result = same_bytes(METHODS[name](), tiny_task(clients=8), tmp_path)
    assert len({each.node for each in cluster.actors}) == 2
    assert result.metrics[-1]["cluster"] == {"nodes": 2, "actors": 3}


@pytest.mark.slow
def test_attacks_and_probes_reach_the_actors(fake: Fake, tmp_path: Path) -> None:
    fake(seed=1)
    for attack in ("label-flip,share=0.25", "alie,share=0.5"):
        same_bytes(fedavg(), tiny_task(clients=8), tmp_path / attack[:4], attack=attack)
    probing = fedavg().with_parts(sampler=PowerOfChoice(4))
    same_bytes(probing, tiny_task(clients=8), tmp_path / "sampler", per_round=3)


class Named(nn.Module):
    """Takes its input by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        found: Tensor = self.layer(left * right)
        return found


class Rows(Dataset[Any]):
    """A map-style data set of named inputs."""

    def __init__(self, x: dict[str, Tensor], y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[dict[str, Tensor], int]:
        return {name: tensor[row] for name, tensor in self.x.items()}, int(self.y[row])


@pytest.mark.parametrize("memory", [pytest.param("1GB", marks=pytest.mark.slow), "1kB"])
def test_nests_and_samples_that_are_read_when_needed(memory: str, fake: Fake, tmp_path: Path) -> None:
    fake()
    torch.manual_seed(0)
    rows = Rows({"left": torch.randn(80, 3), "right": torch.randn(80, 3)}, torch.arange(80) % 2)
    task = Task.of(Named, rows, rows, clients=6, split="iid", memory=memory, workers=0)
    assert task.data.train.lazy == (memory == "1kB")
    same_bytes(fedavg(batch=4), task, tmp_path)


def test_a_network_that_takes_the_data_along_is_reported(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake()
    monkeypatch.setattr(pool, "LARGE", 100_000)
    held = torch.zeros(100_000)
    task = tiny_task()
    greedy = replace(task, model=lambda: task.model() if held is not None else nn.Identity())
    with pytest.warns(ClusterWarning, match=r"each actor gets a copy of 0\.\d MB beside the samples"):
        simulate(fedavg(), greedy, rounds=1, cluster="auto")


@pytest.mark.parametrize("name", ["stacked", pytest.param("compiled", marks=pytest.mark.slow)])
def test_grouped_executors_agree_up_to_rounding(name: str, fake: Fake) -> None:
    fake(seed=2)
    method, task = fedavg(epochs=2, batch=4), tiny_task(clients=7, dtype=torch.float64)
    alone = simulate(method, task, rounds=2)
    grouped = simulate(method, task, rounds=2, executor=name, cluster="auto")
    for name, tensor in alone.model.state_dict().items():
        torch.testing.assert_close(grouped.model.state_dict()[name], tensor, rtol=0, atol=1e-9)


def test_side_by_side_is_one_by_one_on_a_cluster(fake: Fake, tmp_path: Path) -> None:
    fake()
    same_bytes(fedavg(), tiny_task(), tmp_path, executor="side-by-side", per_round=2)


def test_auto_measures_on_an_actor(fake: Fake) -> None:
    fake()
    result = simulate(fedavg(), tiny_task(), rounds=1, executor="auto", cluster="auto")
    assert result.about["executor"] == "one-by-one"
    assert list(result.about["rates"]) == ["one-by-one"]


# Losses.


def dying(times: int, error: Callable[[], BaseException] = ActorDiedError) -> Deadly:
    """Let the first ``times`` actors that train die before they do."""
    left = [times]

    def deadly(name: str, args: tuple[Any, ...]) -> BaseException | None:
        if name != "run" or not left[0]:
            return None
        left[0] -= 1
        return error()

    return deadly


@pytest.mark.parametrize("seed", range(3))
def test_tasks_of_a_dead_actor_are_repeated(seed: int, fake: Fake, tmp_path: Path) -> None:
    fake(seed=seed, cores=(2, 2), deadly=dying(2))
    result = same_bytes(fedspa(), tiny_task(clients=8), tmp_path)
    assert sum(record["cluster"].get("repeated", 0) for record in result.metrics) >= 2
    assert result.metrics[-1]["cluster"]["actors"] == 4  # others took their places


def test_a_client_fails_if_its_task_ends_several_actors(fake: Fake) -> None:
    def deadly(name: str, args: tuple[Any, ...]) -> BaseException | None:
        sent = args[1] if name == "run" else []
        return ActorDiedError() if any(parcel.client_task.clock.client == 3 for parcel in sent) else None

    fake(cores=(1, 1), deadly=deadly)
    result = simulate(fedavg(), tiny_task(clients=6), rounds=1, cluster="auto")
    (failure,) = result.metrics[0]["failures"]
    assert failure["client"] == 3
    assert failure["reason"].startswith("3 actors died while they ran its task; the last one: ")


def short_of_memory(result: Any) -> None:
    assert [record["cluster"]["actors"] for record in result.metrics] == [1, 1]
    assert not any(record["failures"] for record in result.metrics)


NAMED = r"actor \d on node1 ran out of memory: node1 has 1 actors at most from now on, and its tasks are repeated"


def test_an_actor_that_ray_kills_for_memory_is_named_and_not_replaced(fake: Fake) -> None:
    fake(cores=(2,), deadly=dying(1, lambda: OutOfMemoryError("the node is low on memory")))
    with pytest.warns(ClusterWarning, match=NAMED):
        short_of_memory(simulate(fedavg(), tiny_task(), rounds=2, cluster="auto"))


def test_an_actor_that_cannot_allocate_memory_is_named_and_not_replaced(
    fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors, train = [MemoryError("cannot allocate 3 GB")], Client.train

    def failing(self: Client, *args: Any) -> Any:
        if errors:
            raise errors.pop()
        return train(self, *args)

    monkeypatch.setattr(Client, "train", failing)
    fake(cores=(2,))
    with pytest.warns(ClusterWarning, match=NAMED):
        short_of_memory(simulate(fedavg(), tiny_task(), rounds=2, cluster="auto"))


def test_a_node_that_cannot_build_the_client_is_not_used(fake: Fake) -> None:
    def deadly(name: str, args: tuple[Any, ...]) -> BaseException | None:
        return ActorDiedError(RayTaskError("__init__", "ModuleNotFoundError: no nets", ModuleNotFoundError("no nets")))

    fake(cores=(1,), deadly=deadly)
    with (
        pytest.warns(ClusterWarning, match="actor 0 on node1 cannot build its client: .*ModuleNotFoundError: no nets"),
        pytest.raises(RunError, match="the cluster has no actor left: actor 0 on node1 cannot build its client"),
    ):
        simulate(fedavg(), tiny_task(), rounds=1, cluster="auto")


def test_nodes_that_differ_are_recorded(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(cores=(2,))
    found: dict[int, int] = {}

    def machine(self: ClientActor) -> Machine:
        return Machine(f"processor {found.setdefault(id(self), len(found))}", torch.__version__, __version__)

    monkeypatch.setattr(ClientActor, "machine", machine)
    with pytest.warns(ClusterWarning, match="the nodes differ"):
        result = simulate(fedavg(), tiny_task(), rounds=1, cluster="auto")
    assert len(result.metrics[0]["cluster"]["machines"]) == 2


def test_a_cluster_without_actors_ends_the_run(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "PATIENCE", 0.0)
    cluster = fake(cores=(1,))

    def deadly(name: str, args: tuple[Any, ...]) -> BaseException | None:
        if name == "run":
            cluster.hosts.clear()
            return ActorDiedError()
        return None

    cluster.deadly = deadly
    with pytest.raises(RunError, match="the cluster has no actor left: no node has had a place for one"):
        simulate(fedavg(), tiny_task(), rounds=1, cluster="auto")


def test_a_node_that_joins_gets_work(fake: Fake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pool, "POLL", 0.0)
    cluster = fake(cores=(1,))

    def join(record: Any, run: Any) -> None:
        cluster.hosts[f"{9:056x}"] = 2

    result = simulate(fedavg(), tiny_task(clients=6), rounds=3, cluster="auto", callbacks=join)
    assert result.metrics[0]["cluster"] == {"nodes": 1, "actors": 1}
    assert result.metrics[-1]["cluster"] == {"nodes": 2, "actors": 3}


# What is refused.


def test_a_cluster_that_cannot_hold_the_task_is_refused_with_the_figures() -> None:
    small = Node("a", "10.0.0.1", cores=4, gpus=0, memory=1e9, store=5e7)
    need = Need(gpu=False, actors=None, memory=600_000_000, samples=40_000_000)
    nodes.check([small], need)
    assert small.seats(need) == 1  # memory for one
    assert small._replace(memory=9e9).seats(need) == 4
    assert small._replace(memory=9e9).seats(need._replace(actors=2)) == 2
    figures = "needs a core, 3.0 GB of memory and 40.0 MB of object store, and it has 10.0.0.1 with 4 cores, 1.0 GB"
    with pytest.raises(ConfigError, match=figures):
        nodes.check([small], need._replace(memory=3_000_000_000))
    with pytest.raises(ConfigError, match=r"needs a core, 0.6 GB of memory and 90.0 MB of object store"):
        nodes.check([small], need._replace(samples=90_000_000))
    with pytest.raises(ConfigError, match="needs a GPU"):
        nodes.check([small], need._replace(gpu=True))


def test_actors_share_the_gpus_of_a_node() -> None:
    node = Node("a", "10.0.0.1", cores=8, gpus=2, memory=64e9, store=8e9)
    need = Need(gpu=True, actors=None, memory=600_000_000, samples=0)
    assert (node.seats(need), node.share(need)["num_gpus"]) == (2, 1.0)
    assert (node.seats(need._replace(actors=8)), node.share(need._replace(actors=8))["num_gpus"]) == (8, 0.25)


def test_an_address_without_ray_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    with pytest.raises(
        ConfigError, match=r"cluster 127.0.0.1:1: no Ray cluster answers there: run `ray start --head --port 1`"
    ):
        nodes.connect("127.0.0.1:1")


def test_wrong_clusters_are_refused() -> None:
    for wrong, text in (
        ({"cluster": "here"}, "cluster must be local, auto, or HOST:PORT such as 10.0.0.1:6379, got 'here'"),
        ({"actors": 2}, "actors needs cluster"),
        ({"cluster": "local", "actors": 0}, "actors must be at least 1, got 0"),
        (
            {"cluster": "local", "executor": "threaded"},
            "executor: threaded needs all cores of a machine, and an actor of cluster has one",
        ),
    ):
        with pytest.raises(ConfigError, match=text):
            Options(**wrong)


# A run may move.


def test_a_run_moves_between_machine_and_cluster(fake: Fake, tmp_path: Path) -> None:
    fake()
    method, task = fedavg(), tiny_task(clients=6)
    simulate(method, task, rounds=6, out=tmp_path / "alone")
    simulate(method, task, rounds=2, out=tmp_path / "moved", cluster="auto", actors=1)
    resume(tmp_path / "moved", method=method, task=task, rounds=4, cluster="none")
    resume(tmp_path / "moved", method=method, task=task, rounds=6, cluster="auto")
    assert contents(tmp_path / "moved") == contents(tmp_path / "alone")


# The order of tasks.


def tasks(samples: list[int]) -> list[ClientTask]:
    return [
        ClientTask(Clock(0, 1, client), Key(0, 0), Frame(b""), {}, np.arange(count))
        for client, count in enumerate(samples)
    ]


@given(st.lists(st.integers(0, 50), max_size=200), st.integers(1, 4), st.sampled_from([1, 3]), st.booleans())
def test_each_task_is_dealt_once_and_soon(samples: list[int], actors: int, size: int, measured: bool) -> None:
    dealer, given = Dealer(), tasks(samples)
    for task in given if measured else ():
        dealer.measured(task, 0.001 * len(task.samples))
    groups = list(dealer.groups(given, actors, size))
    dealt = [task.clock.client for group in groups for task in group]
    assert Counter(dealt) == Counter(range(len(given)))
    assert all(abs(place - client) < AHEAD * actors for place, client in enumerate(dealt))
    assert all(len(group) <= size for group in groups) or size == 1


def test_the_longest_tasks_go_first_by_measured_seconds() -> None:
    dealer, given = Dealer(), tasks([10, 10, 10, 10])
    for task, seconds in zip(given, (0.2, 0.5, 0.3, 0.9), strict=True):
        dealer.measured(task, seconds)
    assert [[t.clock.client for t in group] for group in dealer.groups(given, 2, 1)] == [[3], [1], [2], [0]]
    assert dealer.cost(tasks([0, 0, 0, 0, 20])[4]) == pytest.approx(20 * (1.9 / 40))  # by samples, as it is new


def test_short_tasks_are_dealt_in_groups_that_shrink_at_the_end() -> None:
    dealer, given = Dealer(), tasks([10] * 64)
    for task in given:
        dealer.measured(task, 0.01)
    sizes = [len(group) for group in dealer.groups(given, 2, 1)]
    assert sizes[0] == 10  # 0.1 s
    assert sizes[-1] == 1
    assert dealer.depth == 2
