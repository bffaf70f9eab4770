"""Train, replace a sample, train again."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch

from gossamer.engines.options import Options
from gossamer.errors import ConfigError, require
from gossamer.method import Method
from gossamer.random import Key, fold, key, uniform
from gossamer.stability.courses import Apart, Course, Look
from gossamer.stability.found import Growth, Moment, Stability, Swap
from gossamer.tasks import Task

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

    ``replaced`` says what to replace, in turn: a :class:`Swap`, or a client of which a sample is drawn; if it is empty,
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
