"""How much one sample matters: train on S and on S with one sample replaced, under the same keys, and compare.

An algorithm whose model hardly changes is stable, and a stable one generalises (Deng, Qiao and Mahdavi, "On the
convergence and stability of distributed sub-model training", https://arxiv.org/abs/2511.06132, Definition 4 and
Lemma 1). The replacement is a test sample. All other samples, the cohorts, batches, masks and the noise of messages
stay the same. After each evaluated round the model and its loss on every test sample are compared.

>>> from gossamer import fedavg
>>> from gossamer.testing import tiny_task
>>> found = stability(fedavg(), tiny_task(), rounds=2, repeats=2)
>>> len(found.moments), len(found.swaps), found.last.distance > 0
(2, 2, True)
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.core.errors import ConfigError, require
from gossamer.core.method import Method
from gossamer.core.random import Key, fold, key, uniform
from gossamer.core.tree import norm, subtract
from gossamer.core.types import Params
from gossamer.engines.options import Options
from gossamer.engines.simulate import Simulation
from gossamer.runs.report.text import number, percent, table
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task

__all__ = ["Growth", "Moment", "Stability", "Swap", "growth", "stability"]

HEAD = ("distance", "loss difference", "at the newcomer", "loss gap", "accuracy gap", "test accuracy")


class Swap(NamedTuple):
    """One training sample for another: of client ``client`` the one at place ``sample``, for test sample ``by``."""

    client: int
    sample: int
    by: int


@dataclass(frozen=True)
class Moment:
    """What was found after one round; differences are means over the samples that were replaced.

    Args:
        round: after which round
        distance: of the two models, as the Euclidean norm over all trained tensors
        loss_difference: mean over the test samples of the losses' absolute difference
        newcomer_difference: the same at the sample that came in alone, which is Definition 4's
        train_loss: of the model trained on S, on all that clients train on
        test_loss: of the same model, on the test samples
        train_accuracy: as train_loss
        test_accuracy: as test_loss
        distances: the distance for each sample that was replaced
    """

    round: int
    distance: float
    loss_difference: float
    newcomer_difference: float
    train_loss: float
    test_loss: float
    train_accuracy: float
    test_accuracy: float
    distances: tuple[float, ...]

    @property
    def loss_gap(self) -> float:
        """Test loss above training loss."""
        return self.test_loss - self.train_loss

    @property
    def accuracy_gap(self) -> float:
        """Training accuracy above test accuracy."""
        return self.train_accuracy - self.test_accuracy

    def cells(self) -> tuple[str, ...]:
        """As a table shows it."""
        differences = (self.distance, self.loss_difference, self.newcomer_difference, self.loss_gap)
        return (*map(number, differences), percent(self.accuracy_gap), percent(self.test_accuracy))


@dataclass(frozen=True)
class Stability:
    """What was found, round by round; printed, it is a table.

    Args:
        swaps: the samples that were replaced, one run each
        moments: what was found after each round that was looked at
    """

    swaps: tuple[Swap, ...]
    moments: tuple[Moment, ...]

    @property
    def last(self) -> Moment:
        """After the last round."""
        return self.moments[-1]

    def __str__(self) -> str:
        return table(("round", *HEAD), [(str(moment.round), *moment.cells()) for moment in self.moments])

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        gaps = [{"loss_gap": moment.loss_gap, "accuracy_gap": moment.accuracy_gap} for moment in self.moments]
        rounds = [{**asdict(moment), **gap} for moment, gap in zip(self.moments, gaps, strict=True)]
        return {"swaps": [swap._asdict() for swap in self.swaps], "rounds": rounds}


@dataclass(frozen=True)
class Growth:
    """The same for one capacity after another; printed, it is a table of the last round."""

    found: tuple[tuple[Any, Stability], ...]

    def __str__(self) -> str:
        return table(("capacity", *HEAD), [(written(share), *each.last.cells()) for share, each in self.found])

    def plain(self) -> list[dict[str, Any]]:
        """For JSON."""
        return [{"capacity": written(share), **each.plain()} for share, each in self.found]


def written(capacity: Any) -> str:
    """A capacity as a table shows it."""
    return number(capacity) if isinstance(capacity, float) else str(capacity)


class Look(NamedTuple):
    """A model after a round: its trained tensors, losses on all test samples, and four means."""

    round: int
    model: Params
    losses: Tensor
    train: tuple[float, float]
    test: tuple[float, float]


class Apart(NamedTuple):
    """How far a look is from that at the model of S."""

    distance: float
    loss_difference: float
    newcomer_difference: float


class Course(NamedTuple):
    """A run, looked at after each round that is evaluated."""

    looks: tuple[Look, ...]
    executor: str

    @classmethod
    def of(cls, method: Method, task: Task, options: Options) -> "Course":
        """Carry it out."""
        run = Simulation(method, task, options)
        judge = Objective(replace(task, correct=_verdict(task)), options.device, run.key)
        looks: list[Look] = []

        def look(record: dict[str, Any]) -> None:
            if "accuracy" in record:
                params = run.client_params(0) if method.pooled else run.deployed()
                looks.append(_look(record["round"], params, judge))

        run.run(None, look)
        return cls(tuple(looks), str(run.choice["executor"]))

    def apart(self, plain: "Course", swap: Swap) -> list[Apart]:
        """How far it is from the run on S, look by look."""
        found = []
        for mine, theirs in zip(self.looks, plain.looks, strict=True):
            differences = (mine.losses - theirs.losses).abs()
            distance = float(norm(subtract(mine.model, theirs.model)))
            found.append(Apart(distance, float(differences.mean()), float(differences[swap.by])))
        return found


def _verdict(task: Task) -> Callable[[Tensor, Tensor], Tensor]:
    """In place of whether an answer is right: each sample's loss, and that."""

    def verdict(output: Tensor, y: Tensor) -> Tensor:
        return torch.stack([_losses(task, output, y), task.correct(output, y).double()], -1)

    return verdict


def _losses(task: Task, output: Tensor, y: Tensor) -> Tensor:
    if task.loss is F.cross_entropy:
        return F.cross_entropy(output, y, reduction="none").double()
    return torch.stack([task.loss(output[i : i + 1], y[i : i + 1]) for i in range(len(y))]).double()


def _look(round_: int, params: Params, judge: Objective) -> Look:
    task = judge.task
    held = torch.from_numpy(task.split.train_index).to(judge.device)
    test = [tensor.to(judge.device) for tensor in (task.data.test.x, task.data.test.y)]
    found = [judge.evaluate(params, x, y)[1].cpu() for x, y in ((judge.x[held], judge.y[held]), test)]
    train, tested = ((float(each[:, 0].mean()), float(each[:, 1].mean())) for each in found)
    model = {name: params[name].cpu().double().clone() for name in judge.trained}
    return Look(round_, model, found[1][:, 0], train, tested)


REPEATS = 3

Say = Callable[[str], None]


def stability(
    method: Method,
    task: Task,
    *,
    replaced: Sequence[int | Swap] = (),
    repeats: int | None = None,
    say: Say = lambda line: None,
    **options: Any,
) -> Stability:
    """Train ``method`` on ``task``, and again with one sample replaced, ``repeats`` times; ``options`` as of a run.

    ``replaced`` says what to replace, in turn: a ``Swap``, or a client of which a sample is drawn; if it is empty,
    clients are drawn too. Rounds are looked at as ``eval_every`` says. ``say`` is told which run begins.
    """
    told = Options(**options)
    _check_method(method)
    swaps = choose_swaps(task, replaced, repeats, fold(key(told.seed), "stability"))
    say(f"run 1 of {len(swaps) + 1}: all samples as they are")
    plain = Course.of(method, task, told)
    told = replace(told, executor=plain.executor)  # another one may round otherwise
    others = []
    for turn, swap in enumerate(swaps, 2):
        say(f"run {turn} of {len(swaps) + 1}: client {swap.client}, sample {swap.sample}, by test sample {swap.by}")
        others.append(Course.of(method, swapped(task, swap), told).apart(plain, swap))
    return Stability(swaps, tuple(_moment(look, apart) for look, *apart in zip(plain.looks, *others, strict=True)))


def growth(make: Callable[[Any], Method], capacities: Iterable[Any], task: Task, **options: Any) -> Growth:
    """The stability of what ``make`` returns for each capacity, with the same samples replaced: does it grow?"""
    return Growth(tuple((capacity, stability(make(capacity), task, **options)) for capacity in capacities))


def choose_swaps(task: Task, replaced: Sequence[int | Swap], repeats: int | None, at: Key) -> tuple[Swap, ...]:
    """What is replaced: as asked, or drawn where nothing was said."""
    many = repeats if repeats is not None else len(replaced) or REPEATS
    require(
        (many >= 1, f"repeats must be at least 1, got {many}"),
        (many >= len(replaced), f"repeats is {many}, but {len(replaced)} samples or clients are to be replaced"),
        (len(task.data.test) > 0, "there are no test samples, of which one could come in"),
    )
    asked = [replaced[turn % len(replaced)] if replaced else None for turn in range(many)]
    swaps = [_filled(task, wanted, fold(at, turn)) for turn, wanted in enumerate(asked)]
    for swap in swaps:
        _check_swap(task, swap)
    return tuple(swaps)


def _filled(task: Task, wanted: int | Swap | None, at: Key) -> Swap:
    if isinstance(wanted, Swap):
        return wanted
    draws = uniform(at, 3, dtype=torch.float64).tolist()
    client = int(draws[0] * task.clients) if wanted is None else wanted
    held = len(task.split.train(client)) if 0 <= client < task.clients else 0
    return Swap(client, int(draws[1] * held), int(draws[2] * len(task.data.test)))


def _check_swap(task: Task, swap: Swap) -> None:
    clients, tests = task.clients, len(task.data.test)
    require((0 <= swap.client < clients, f"replaced: client must be from 0 to {clients - 1}, got {swap.client}"))
    held = len(task.split.train(swap.client))
    require(
        (
            0 <= swap.sample < held,
            f"replaced: client {swap.client} has the samples 0 to {held - 1}, got {swap.sample}",
        ),
        (0 <= swap.by < tests, f"replaced: the test sample must be from 0 to {tests - 1}, got {swap.by}"),
    )


def _check_method(method: Method) -> None:
    if not (method.shared or method.pooled):
        raise ConfigError("stability: this method has no global model, only each client's own")


def swapped(task: Task, swap: Swap) -> Task:
    """The task with one training sample replaced by a test sample."""
    train, test, row = task.data.train, task.data.test, int(task.split.train(swap.client)[swap.sample])
    x, y = train.x.clone(), train.y.clone()
    x[row], y[row] = test.x[swap.by], test.y[swap.by]
    return replace(task, data=replace(task.data, train=replace(train, x=x, y=y)))


def _moment(look: Look, apart: Sequence[Apart]) -> Moment:
    (train_loss, train_accuracy), (test_loss, test_accuracy) = look.train, look.test
    distance, difference, newcomer = (sum(values) / len(apart) for values in zip(*apart, strict=True))
    return Moment(
        round=look.round,
        distance=distance,
        loss_difference=difference,
        newcomer_difference=newcomer,
        train_loss=train_loss,
        test_loss=test_loss,
        train_accuracy=train_accuracy,
        test_accuracy=test_accuracy,
        distances=tuple(each.distance for each in apart),
    )
