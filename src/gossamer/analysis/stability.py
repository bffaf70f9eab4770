"""Algorithmic stability: train on S and on S with one sample replaced, with the same random keys, and compare.

An algorithm whose model hardly changes is stable, and a stable algorithm generalizes: Deng, Qiao and Mahdavi, "On the
convergence and stability of distributed sub-model training", https://arxiv.org/abs/2511.06132, Definition 4 and Lemma
1. A test sample of the same client replaces the training sample, since Definition 4 draws it from the client's own
distribution. All other samples, cohorts, batches, masks and codec noise stay the same. Models and their losses on every
test sample are compared after each evaluated round.

>>> from gossamer import fedavg
>>> from gossamer.testing import tiny_task
>>> found = stability(fedavg(), tiny_task(), rounds=2, repeats=2)
>>> len(found.moments), len(found.swaps), found.last.distance > 0
(2, 2, True)
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.errors import ConfigError, require
from gossamer.core.method import Method
from gossamer.core.random import Key, fold, key, uniform
from gossamer.core.tree import norm, subtract
from gossamer.core.types import Params
from gossamer.engines.options import Options
from gossamer.engines.simulation import Simulation
from gossamer.runs.report.scores import ACCURACY, Score
from gossamer.runs.report.text import number, table
from gossamer.tasks.losses import cross_entropy
from gossamer.tasks.metrics import Metric
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task

__all__ = ["Growth", "Moment", "Newcomer", "Stability", "Swap", "growth", "stability"]

REPEATS = 3

Say = Callable[[str], None]

Newcomer = Literal["own", "any"]
"""Where the new sample is drawn: from the test samples of the client itself, or from all test samples."""


class Swap(NamedTuple):
    """A replacement: training sample number ``sample`` of client ``client`` by test sample ``by`` of the task."""

    client: int
    sample: int
    by: int


@dataclass(frozen=True)
class Moment:
    """Results after one round; differences are means over the replacements.

    Args:
        round: number of rounds so far
        distance: Euclidean distance of the two models, over all trained tensors
        loss_difference: mean absolute difference of the losses on the test samples
        newcomer_difference: absolute difference of the losses on the new sample, as in Definition 4
        train_loss: loss of the model trained on S, on all training samples
        test_loss: loss of the same model, on the test samples
        train_score: primary metric of the task on the training samples
        test_score: primary metric on the test samples
        distances: distance for each replacement
        metric: the primary metric
    """

    round: int
    distance: float
    loss_difference: float
    newcomer_difference: float
    train_loss: float
    test_loss: float
    train_score: float
    test_score: float
    distances: tuple[float, ...]
    metric: Score = ACCURACY

    @property
    def loss_gap(self) -> float:
        """Test loss minus training loss."""
        return self.test_loss - self.train_loss

    @property
    def score_gap(self) -> float:
        """By how much the primary metric is worse on the test samples than on the training samples."""
        return self.metric.gap(self.train_score, self.test_score)

    def head(self) -> tuple[str, ...]:
        """Return the titles of the cells."""
        name = self.metric.words
        return ("distance", "loss difference", "at the new sample", "loss gap", f"{name} gap", f"test {name}")

    def cells(self) -> tuple[str, ...]:
        """Return the cells of a table row."""
        differences = (self.distance, self.loss_difference, self.newcomer_difference, self.loss_gap)
        return (*map(number, differences), self.metric.write(self.score_gap), self.metric.write(self.test_score))

    def plain(self) -> dict[str, Any]:
        """Return the results as JSON types; the primary metric has its name."""
        known = asdict(self)
        for field in ("train_score", "test_score", "metric"):
            known.pop(field)
        name = self.metric.name
        scores = {f"train_{name}": self.train_score, f"test_{name}": self.test_score, f"{name}_gap": self.score_gap}
        return {**known, **scores, "loss_gap": self.loss_gap}


@dataclass(frozen=True)
class Stability:
    """Results by round; ``str`` gives a table.

    Args:
        swaps: the replacements, one run each
        moments: results after each evaluated round
    """

    swaps: tuple[Swap, ...]
    moments: tuple[Moment, ...]

    @property
    def last(self) -> Moment:
        """Results after the last round."""
        return self.moments[-1]

    def __str__(self) -> str:
        return table(("round", *self.last.head()), [(str(moment.round), *moment.cells()) for moment in self.moments])

    def plain(self) -> dict[str, Any]:
        """Return the results as JSON types."""
        return {"swaps": [swap._asdict() for swap in self.swaps], "rounds": [each.plain() for each in self.moments]}


@dataclass(frozen=True)
class Growth:
    """Stability by capacity; ``str`` gives a table of the last round."""

    found: tuple[tuple[Any, Stability], ...]

    def __str__(self) -> str:
        return table(
            ("capacity", *self.found[0][1].last.head()),
            [(written(share), *each.last.cells()) for share, each in self.found],
        )

    def plain(self) -> list[dict[str, Any]]:
        """Return the results as JSON types."""
        return [{"capacity": written(share), **each.plain()} for share, each in self.found]


def written(capacity: Any) -> str:
    """Format a capacity for a table."""
    return number(capacity) if isinstance(capacity, float) else str(capacity)


class Snapshot(NamedTuple):
    """A model after a round: its trained tensors, its losses on all test samples, and mean losses and scores."""

    round: int
    model: Params
    losses: Tensor
    train: tuple[float, ...]
    test: tuple[float, ...]
    metric: Score


class Difference(NamedTuple):
    """Difference between a model and the model of S after the same round."""

    distance: float
    loss_difference: float
    newcomer_difference: float


class TrackedRun(NamedTuple):
    """A run with a snapshot after each evaluated round."""

    snapshots: tuple[Snapshot, ...]
    executor: str

    @classmethod
    def of(cls, method: Method, task: Task, options: Options) -> "TrackedRun":
        """Run a method and take the snapshots."""
        run = Simulation(method, task, options)
        measured = (Metric("sample_loss", partial(_losses, task)), task.metrics[0])
        judge, score = Objective(replace(run.task, metrics=measured), options.device, run.key), task.metrics[0].name
        snapshots: list[Snapshot] = []

        def take(record: dict[str, Any]) -> None:
            if score in record:
                params = run.client_params(0) if method.pooled else run.deployed()
                held = torch.from_numpy(judge.task.split.train_index).to(judge.device)
                test = judge.task.data.test.to(judge.device).read(slice(None))
                train, tested = (judge.evaluate(params, x, y) for x, y in (judge.samples.read(held), test))
                model = {name: params[name].cpu().double().clone() for name in judge.trained}
                assert tested.rows[0] is not None
                losses, metric = torch.from_numpy(tested.rows[0][:, 0]), Score(**judge.task.metrics[1].describe())
                found = Snapshot(record["round"], model, losses, train.values(), tested.values(), metric)
                snapshots.append(found)

        run.run(None, take)
        return cls(tuple(snapshots), str(run.choice["executor"]))

    def differences(self, plain: "TrackedRun", swap: Swap) -> list[Difference]:
        """Return the difference to the run on S, snapshot by snapshot."""
        found = []
        for mine, theirs in zip(self.snapshots, plain.snapshots, strict=True):
            differences = (mine.losses - theirs.losses).abs()
            distance = float(norm(subtract(mine.model, theirs.model)))
            found.append(Difference(distance, float(differences.mean()), float(differences[swap.by])))
        return found


def stability(
    method: Method,
    task: Task,
    *,
    replaced: Sequence[int | Swap] = (),
    repeats: int | None = None,
    newcomer: Newcomer = "own",
    say: Say = lambda line: None,
    **options: Any,
) -> Stability:
    """Train ``method`` on ``task``, and again with one sample replaced, ``repeats`` times.

    Args:
        method: the method
        task: the task
        replaced: what to replace, in turn: a ``Swap``, or a client with a random sample; empty draws clients too
        repeats: number of replacements
        newcomer: where new samples are drawn: own (the client's test samples, as in Definition 4) or any (all of them)
        say: called with one line of text before each run
        options: fields of ``Options``; ``eval_every`` selects the rounds
    """
    settings = Options(**options)
    require((settings.validate is None, "stability: leave out validate, because a held-out sample has no effect"))
    if not (method.shared or method.pooled):
        raise ConfigError("stability: this method has no global model, only personalized models")
    swaps = choose_swaps(task, replaced, repeats, fold(key(settings.seed), "stability"), newcomer)
    say(f"run 1 of {len(swaps) + 1}: all original samples")
    plain = TrackedRun.of(method, task, settings)
    settings = replace(settings, executor=plain.executor)  # another executor may round differently
    others = []
    for turn, swap in enumerate(swaps, 2):
        say(f"run {turn} of {len(swaps) + 1}: client {swap.client}, sample {swap.sample}, by test sample {swap.by}")
        others.append(TrackedRun.of(method, swapped(task, swap), settings).differences(plain, swap))
    moments = []
    for snapshot, *found in zip(plain.snapshots, *others, strict=True):
        (train_loss, train_score), (test_loss, test_score) = snapshot.train, snapshot.test
        distance, difference, at_new = (sum(values) / len(found) for values in zip(*found, strict=True))
        moments.append(
            Moment(
                round=snapshot.round,
                distance=distance,
                loss_difference=difference,
                newcomer_difference=at_new,
                train_loss=train_loss,
                test_loss=test_loss,
                train_score=train_score,
                test_score=test_score,
                distances=tuple(each.distance for each in found),
                metric=snapshot.metric,
            )
        )
    return Stability(swaps, tuple(moments))


def growth(make: Callable[[Any], Method], capacities: Iterable[Any], task: Task, **options: Any) -> Growth:
    """Measure the stability of ``make(capacity)`` for each capacity, with the same replacements."""
    return Growth(tuple((capacity, stability(make(capacity), task, **options)) for capacity in capacities))


def choose_swaps(
    task: Task, replaced: Sequence[int | Swap], repeats: int | None, at: Key, newcomer: Newcomer = "own"
) -> tuple[Swap, ...]:
    """Return the replacements, drawn where they are not given."""
    count = repeats if repeats is not None else len(replaced) or REPEATS
    require(
        (count >= 1, f"repeats must be at least 1, got {count}"),
        (count >= len(replaced), f"repeats is {count}, but {len(replaced)} samples or clients are to be replaced"),
        (len(task.data.test) > 0, "stability needs test samples: one of them replaces a training sample"),
        (newcomer in get_args(Newcomer), f"newcomer must be own or any, got {newcomer!r}"),
    )
    given = [replaced[turn % len(replaced)] if replaced else None for turn in range(count)]
    swaps = [_filled(task, wanted, fold(at, turn), newcomer) for turn, wanted in enumerate(given)]
    tests = len(task.data.test)
    for swap in swaps:
        _check_client(task, swap.client)
        held = len(task.split.train(swap.client))
        there = f"replaced: client {swap.client} has the samples 0 to {held - 1}, got {swap.sample}"
        require(
            (0 <= swap.sample < held, there),
            (0 <= swap.by < tests, f"replaced: the test sample must be from 0 to {tests - 1}, got {swap.by}"),
        )
    return tuple(swaps)


def _filled(task: Task, wanted: int | Swap | None, at: Key, newcomer: Newcomer) -> Swap:
    if isinstance(wanted, Swap):
        return wanted
    draws = uniform(at, 3, dtype=torch.float64).tolist()
    if wanted is None:  # one of the clients that have a training sample and a possible replacement
        replaceable = (task.split.sizes() > 0) & ((np.diff(task.split.test_start) > 0) | (newcomer == "any"))
        able = np.flatnonzero(replaceable)
        require((len(able) > 0, "no client has both training and test samples of its own: use newcomer=any"))
        wanted = int(able[int(draws[0] * len(able))])
    client = wanted
    _check_client(task, client)
    fresh = task.split.test(client) if newcomer == "own" else np.arange(len(task.data.test))
    require((len(fresh) > 0, f"replaced: client {client} has no test samples: name one, or use newcomer=any"))
    held = len(task.split.train(client))
    return Swap(client, int(draws[1] * held), int(fresh[int(draws[2] * len(fresh))]))


def _check_client(task: Task, client: int) -> None:
    last = task.clients - 1
    require((0 <= client <= last, f"replaced: client must be from 0 to {last}, got {client}"))


def swapped(task: Task, swap: Swap) -> Task:
    """Return the task with one training sample replaced by a test sample."""
    train, test, row = task.data.train, task.data.test, int(task.split.train(swap.client)[swap.sample])
    x, y = train.x.clone(), train.y.clone()
    x[row], y[row] = test.x[swap.by], test.y[swap.by]
    return replace(task, data=replace(task.data, train=replace(train, x=x, y=y)))


def _losses(task: Task, output: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each sample."""
    if task.loss is cross_entropy and y.dim() == 1:
        return F.cross_entropy(output, y, reduction="none").double()
    return torch.stack([task.loss(output[i : i + 1], y[i : i + 1]) for i in range(len(y))]).double()
