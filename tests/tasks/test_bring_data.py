"""Data as people have it: whatever form it comes in, it trains as the same tensors do."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from gossamer import Task, fedavg, simulate
from gossamer.core.errors import ConfigError
from gossamer.core.random import key
from gossamer.tasks.data import Dirichlet, Split, nests
from gossamer.tasks.data.lazy import LazySamples

N, TESTS, CLIENTS = 96, 24, 4
Y = torch.arange(N + TESTS) % 3
X = 2 * torch.eye(3, 6)[Y] + torch.randn(N + TESTS, 6, generator=torch.Generator().manual_seed(0))
TRAIN, TEST = (X[:N], Y[:N]), (X[N:], Y[N:])
TINY = 400
"""A budget of some samples: data is read when needed."""


class Halves(nn.Module):
    """Takes its input in two pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.layer(torch.cat([left, right], -1))


def network() -> nn.Module:
    return nn.Linear(6, 3)


class Images(Dataset[Any]):
    """A map-style data set that makes samples when asked."""

    def __init__(self, x: Tensor, y: Tensor, sample: Callable[[Tensor, Tensor], Any] = lambda x, y: (x, y)) -> None:
        self.x, self.y, self.sample = x, y, sample

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> Any:
        return self.sample(self.x[row], self.y[row])


def as_dict(x: Tensor, y: Tensor) -> dict[str, Any]:
    return {"left": x[:4].numpy(), "labels": int(y), "right": x[4:].tolist()}


def model_of(task: Task, executor: str = "one-by-one") -> dict[str, Tensor]:
    result = simulate(fedavg(lr=0.1, epochs=1, batch=8), task, rounds=2, executor=executor)
    assert not any(record["failures"] for record in result.metrics)
    return {name: tensor.detach() for name, tensor in result.model.named_parameters()}


@pytest.fixture(scope="module")
def expected() -> dict[str, Tensor]:
    """The model that tensors give."""
    return model_of(Task.of(network, TRAIN, TEST, clients=CLIENTS))


def pairs(form: Callable[[Tensor, Tensor], Any]) -> tuple[Any, Any]:
    return form(*TRAIN), form(*TEST)


FORMS: dict[str, tuple[Callable[[], nn.Module], tuple[Any, Any]]] = {
    "NumPy arrays": (network, pairs(lambda x, y: (x.double().numpy(), y.int().numpy()))),
    "lists": (network, pairs(lambda x, y: (x.tolist(), y.tolist()))),
    "a tensor data set": (network, pairs(TensorDataset)),
    "a data set": (network, pairs(Images)),
    "a subset": (network, pairs(lambda x, y: Subset(Images(x, y), range(len(y))))),
    "joined data sets": (network, pairs(lambda x, y: ConcatDataset([Images(x[:9], y[:9]), Images(x[9:], y[9:])]))),
    "a data loader": (network, pairs(lambda x, y: DataLoader(Images(x, y), batch_size=7, shuffle=True))),
    "a dict": (Halves, pairs(lambda x, y: ({"right": x[:, 4:], "left": x[:, :4]}, y))),
    "a tuple": (Halves, pairs(lambda x, y: ((x[:, :4], x[:, 4:]), y))),
    "a data set of dicts": (Halves, pairs(lambda x, y: Images(x, y, as_dict))),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("memory", ["1MB", TINY], ids=["held", "lazy"])
def test_every_form_trains_the_same_model(form: str, memory: Any, expected: dict[str, Tensor]) -> None:
    model, data = FORMS[form]
    task = Task.of(model, *data, clients=CLIENTS, memory=memory, workers=0)
    found = model_of(task)
    assert all(torch.equal(a, b) for a, b in zip(found.values(), expected.values(), strict=True))
    arrays = isinstance(data[0], tuple)
    assert isinstance(task.data.train, LazySamples) == (memory == TINY and not arrays)


@pytest.mark.parametrize("executor", ["one-by-one", "side-by-side", "threaded", "stacked"])
def test_worker_processes_read_what_one_process_reads(executor: str, expected: dict[str, Tensor]) -> None:
    task = Task.of(network, Images(*TRAIN), Images(*TEST), clients=CLIENTS, memory=TINY, workers=2)
    found = model_of(task, executor)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(found.values(), expected.values(), strict=True))


def noisy(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """A sample with random noise of all three generators."""
    return x + torch.rand(()) + random.random() + float(np.random.rand()), y


def test_random_transforms_are_drawn_anew_in_each_round_and_again_the_same_in_each_run() -> None:
    def run(workers: int) -> dict[str, Tensor]:
        return model_of(
            Task.of(network, Images(*TRAIN, noisy), Images(*TEST, noisy), clients=2, memory=TINY, workers=workers)
        )

    random.seed(1)
    first, here = run(0), random.random()
    second = run(2)
    assert all(torch.equal(a, second[name]) for name, a in first.items())
    random.seed(1)
    assert random.random() == here, "the user's own generators are left alone"
    task = Task.of(network, Images(*TRAIN, noisy), Images(*TEST), clients=2, memory=TINY, workers=0)
    samples = task.data.train
    assert isinstance(samples, LazySamples)
    one, other = (samples.fetch(samples.announce([(np.array([3]), key(seed))])[0])[0] for seed in (1, 2))
    assert not torch.equal(one, other)


def test_one_data_set_per_client_is_a_natural_federation() -> None:
    sizes = {"ann": 10, "bob": 30, "cy": 20}
    starts = dict(zip(sizes, np.cumsum([0, 10, 30]).tolist(), strict=True))

    def of(name: str) -> Any:
        rows = slice(starts[name], starts[name] + sizes[name])
        return Images(X[rows], Y[rows]) if name == "bob" else (X[rows], Y[rows])

    by_name = Task.of(network, {name: of(name) for name in sizes}, TEST)
    assert by_name.split.sizes().tolist() == [10, 30, 20]
    assert torch.equal(by_name.data.train.x, X[:60])
    assert by_name.names[2] == "natural"
    tests = [(X[row : row + 2], Y[row : row + 2]) for row in (100, 102, 104)]
    own_tests = Task.of(network, [of(name) for name in sizes], tests)
    assert [own_tests.split.test(client).tolist() for client in range(3)] == [[0, 1], [2, 3], [4, 5]]
    lazy = Task.of(network, {name: of(name) for name in sizes}, TEST, memory=TINY, workers=0)
    assert all(torch.equal(a, b) for a, b in zip(model_of(lazy).values(), model_of(by_name).values(), strict=True))


def test_test_data_by_name_belongs_to_the_client_of_that_name() -> None:
    train = {"bob": (X[:50], Y[:50]), "ann": (X[50:N], Y[50:N])}
    task = Task.of(network, train, {"ann": (X[N : N + 9], Y[N : N + 9]), "bob": (X[N + 9 :], Y[N + 9 :])})
    bob, ann = (task.data.test.x[task.split.test(client)] for client in range(2))
    assert torch.equal(bob, X[N + 9 :])
    assert torch.equal(ann, X[N : N + 9])


def test_groups_are_the_clients_of_the_natural_split() -> None:
    names = np.array(["eve", "dan", "fay"])[Y[:N]]
    task = Task.of(network, TRAIN, TEST, groups=names)
    assert task.clients == 3
    assert [set(names[task.split.train(client)]) for client in range(3)] == [{"dan"}, {"eve"}, {"fay"}]


@given(st.integers(1, 6), st.integers(0, 5))
@settings(max_examples=15)
def test_a_split_of_index_lists_of_a_function_and_of_a_split_is_the_same(clients: int, seed: int) -> None:
    lists = np.array_split(np.random.default_rng(seed).permutation(N), clients)
    by_lists = Task.of(network, TRAIN, TEST, split=lists)
    assert all(by_lists.split.train(c).tolist() == sorted(one) for c, one in enumerate(lists))
    by_function = Task.of(network, TRAIN, TEST, split=lambda y, n, rng: lists, clients=clients)
    assert by_function.split == by_lists.split
    assert Task.of(network, TRAIN, TEST, split=by_lists.split).split == by_lists.split


def test_a_split_may_be_a_rule_and_a_function_draws_from_the_seed() -> None:
    named, made = (Task.of(network, TRAIN, TEST, clients=4, split=s) for s in ("dirichlet:0.5", Dirichlet(0.5)))
    assert named.split == made.split

    def dealt(y: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
        assert np.array_equal(y, TRAIN[1].numpy())
        return np.array_split(rng.permutation(len(y)), clients)

    tasks = [Task.of(network, TRAIN, TEST, clients=4, split=dealt, seed=seed) for seed in (1, 1, 2)]
    assert tasks[0].split == tasks[1].split != tasks[2].split


class Stream(IterableDataset[Any]):
    """Samples without an index."""

    def __iter__(self) -> Iterator[Any]:
        return iter(())


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "stream": ({"train": Stream()}, "train: a Stream has no length and index: give a map-style data set"),
    "other names": (
        {"train": {"ann": TRAIN, "bob": TRAIN}, "test": {"ann": TEST, "eve": TEST}},
        "^test has no data for client 'bob', and 'eve' is no client of train: use the same names$",
    ),
    "array alone": ({"train": X}, r"train must be a pair \(x, y\) or a data set, got a Tensor"),
    "text": (
        {"train": Images(X, Y, lambda x, y: {"text": "hello", "label": 1})},
        r"train: an input\['text'\] is text: encode",
    ),
    "no target": (
        {"train": Images(X, Y, lambda x, y: {"x": x, "kind": y})},
        "no target column among x, kind: name it with target=",
    ),
    "other target": ({"train": Images(X, Y, as_dict), "target": "kind"}, "no column 'kind' among left, labels, right"),
    "ragged": (
        {"train": Images(X, Y, lambda x, y: (x[: int(y) + 1], y))},
        "samples have different shapes: pad or resize",
    ),
    "ragged lists": ({"train": ([[1.0], [1.0, 2.0]], [0, 1])}, "rows have different lengths: pad them"),
    "empty": ({"train": Images(X[:0], Y[:0])}, "train: the data set is empty"),
    "no clients": ({"train": []}, "train is empty: give one data set per client"),
    "triple": (
        {"train": Images(X, Y, lambda x, y: (x, y, y))},
        r"a sample must be \(x, y\) or a dict .*, got a tuple of 3: write \(\(a, b\), y\)$",
    ),
    "uneven dict": ({"train": ({"a": X[:5], "b": X[:6]}, Y[:6])}, "x holds 5 or 6 samples and y 6"),
    "owners": ({"groups": [1, 2]}, r"groups must hold one owner per sample: 96 samples, but its shape is \(2,\)"),
    "memory": ({"memory": "much"}, r"memory must be bytes or text such as '2GB' \(units: B, kB, .*\), got 'much'"),
    "workers": ({"workers": -1}, "workers must be at least 0, got -1"),
    "text labels": ({"train": (X, ["cat"] * len(X))}, "train: y is text: number the classes from 0"),
    "index": ({"split": [[0, 1], [2, N]]}, "split: client 1 has sample 96, but samples are 0 to 95"),
    "index twice": ({"split": [[0, 1, 1]]}, "split: client 0 has a sample twice"),
    "index empty": ({"split": [[0], []]}, "split: client 1 "),
    "clients": ({"split": [[0], [1]], "clients": 3}, "clients is 3, but the split has 2"),
    "split": ({"split": 7}, "split must be a name, a rule, a Split, index lists or a function, got 7"),
    "foreign split": ({"split": Split.alone(0, 1, N + 1, TESTS)}, "the split has training sample 96, the data only 96"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_cannot_be_used_is_refused_in_a_line(mistake: str) -> None:
    wrong, message = MISTAKES[mistake]
    with pytest.raises(ConfigError, match=message) as raised:
        Task.of(network, **{"train": TRAIN, "test": TEST, "clients": None, **wrong})
    assert "\n" not in str(raised.value)


def test_a_batch_above_the_budget_is_refused() -> None:
    task = Task.of(network, Images(*TRAIN), Images(*TEST), clients=2, memory=100, workers=2)
    with pytest.raises(
        Exception, match="a batch of 8 samples has 192 bytes, above memory=100: raise memory to 192 or more"
    ):
        model_of(task)


@given(
    st.recursive(
        st.integers(1, 3),
        lambda inner: st.dictionaries(st.sampled_from("abc"), inner, min_size=1) | st.tuples(inner, inner),
    )
)
def test_nests_are_taken_apart_and_put_together(form: Any) -> None:
    def made(form: Any) -> Any:
        if isinstance(form, int):
            return torch.rand(4, form)
        return {k: made(v) for k, v in form.items()} if isinstance(form, dict) else tuple(map(made, form))

    nest = made(form)
    assert nests.count(nest) == 4
    back = nests.rebuild(nest, nests.leaves(nest))
    halves = nests.concatenate([nests.take(back, slice(2)), nests.take(back, slice(2, 4))])
    rows = nests.stack([nests.take(back, row) for row in range(4)])
    for found in (back, halves, rows):
        assert list(nests.leaves(found)) == list(nests.leaves(nest))
        assert all(map(torch.equal, nests.leaves(found).values(), nests.leaves(nest).values()))
