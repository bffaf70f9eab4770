"""What a run trains on: a model, data, who holds which samples, and the loss."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.data import SPLITS, Data, Samples, Split, split
from gossamer.errors import ConfigError, require
from gossamer.random import key as make_key
from gossamer.specs import parse

Arrays = tuple[Tensor, Tensor]


def correct(output: Tensor, y: Tensor) -> Tensor:
    """For each sample, whether the largest output is the right label."""
    return output.argmax(-1) == y


@dataclass(frozen=True, eq=False)
class Task:
    """A learning problem spread over clients.

    model: builds the network; called under a seeded generator, so the same seed gives the same start
    data: training and test samples
    split: which client holds which of them
    loss: the mean loss of a batch, from outputs and labels
    correct: for each sample whether the output is right, from outputs and labels
    """

    model: Callable[[], nn.Module]
    data: Data
    split: Split
    loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy
    correct: Callable[[Tensor, Tensor], Tensor] = correct
    names: tuple[str, str, str] = ("custom", "custom", "custom")

    @classmethod
    def of(
        cls,
        model: Callable[[], nn.Module],
        train: Arrays,
        test: Arrays,
        *,
        clients: int = 50,
        split: str = "iid",
        seed: int = 0,
        loss: Callable[[Tensor, Tensor], Tensor] = F.cross_entropy,
        correct: Callable[[Tensor, Tensor], Tensor] = correct,
    ) -> "Task":
        """A task from your own module and arrays.

        ``model`` is a function without arguments that builds an ``nn.Module`` (its class, say); ``train`` and
        ``test`` are ``(x, y)`` tensors with one sample a row; ``split`` is a spec such as ``"dirichlet:0.3"``.
        """
        _check_arrays(train, test)
        classes = int(max(train[1].max(), test[1].max())) + 1
        data = Data("custom", Samples(*train), Samples(*test), classes=classes, split=split, model="custom")
        return cls(model, data, deal(data, split, clients, seed), loss, correct, ("custom", "custom", split))

    def with_split(self, kept: Split) -> "Task":
        """The same task with another split: one read back from a run, say."""
        return replace(self, split=kept)

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return self.split.clients

    def describe(self) -> dict[str, object]:
        """What a run folder records, so that a resumed run can tell whether this is the same task."""
        name, model, spec = self.names
        return {
            "data": name,
            "model": model,
            "split": spec,
            "clients": self.clients,
            "data_digest": self.data.digest(),
            "split_digest": self.split.digest(),
        }


def deal(data: Data, spec: str, clients: int, seed: int) -> Split:
    """The split that a spec names, drawn from the run's seed."""
    require((clients >= 1, f"clients must be at least 1, got {clients}"))
    return split(parse(spec, SPLITS, "split"), data, clients, make_key(seed))


def _check_arrays(train: Arrays, test: Arrays) -> None:
    mistakes = []
    for name, (x, y) in (("train", train), ("test", test)):
        if len(x) != len(y) or len(x) == 0:
            mistakes.append(f"{name}: x holds {len(x)} samples and y {len(y)}: they must agree and not be empty")
        elif not torch.isfinite(x).all():
            mistakes.append(f"{name}: x holds values that are not finite")
        elif y.dim() != 1 or y.dtype != torch.int64 or y.min() < 0:
            mistakes.append(f"{name}: y must hold one label a sample, whole numbers from 0 in int64")
    if mistakes:
        raise ConfigError(*mistakes)
