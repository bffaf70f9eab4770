"""Runs that are looked at: after each round that is evaluated, the model and its loss on every test sample."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from gossamer.engines.options import Options
from gossamer.engines.simulate import Simulation
from gossamer.method import Method
from gossamer.objective import Objective
from gossamer.stability.found import Swap
from gossamer.tasks import Task
from gossamer.tree import norm, subtract
from gossamer.types import Params


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
