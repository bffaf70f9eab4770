"""Costs of training as FedSpa's paper counts them (https://arxiv.org/abs/2201.11380), and those of a recorded run.

A forward pass of one sample costs two operations per held weight for each application of a layer, and one per output
with a bias. Norms, activations and pooling are free. Training costs three forward passes. On the links, a held value
costs four bytes, and masks are free.

Each method whose paper defines a count has an entry in ``COUNTS``. These numbers are for comparison with the tables of
a paper. The metrics of a run hold the real operations and bytes.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from gossamer.core.binding import BoundMethod
from gossamer.core.errors import ConfigError, require
from gossamer.core.method import Method
from gossamer.core.random import Key, key
from gossamer.core.types import Clock
from gossamer.core.view import CHANGE
from gossamer.parts.views.personal_mask import PersonalMask
from gossamer.runs.records import Record
from gossamer.runs.report.summary import totals, values
from gossamer.tasks.data.nests import take
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task

TRAINING = 3
"""Cost of training on a sample, in forward passes."""

VALUE = 4
"""Bytes per value on a link."""

COPIES = 2
"""Batch size of the counting pass: static batch norms may refuse a batch of one."""

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


@torch.no_grad()
def paper_forward_flops(module: nn.Module, x: Tensor, nonzeros: Mapping[str, int] | None = None) -> int:
    """Return the operations of one forward pass on the sample ``x``, which has no batch dimension.

    ``nonzeros`` gives the number of held entries by parameter name; other parameters are complete.

    >>> paper_forward_flops(nn.Conv2d(1, 2, 3), torch.zeros(1, 5, 5)), (2 * 18 + 2) * 9
    (342, 342)
    >>> paper_forward_flops(nn.Linear(4, 3), torch.zeros(4), {"weight": 5})
    13
    """
    held, given, total = dict[int, int](), nonzeros or {}, 0
    sizes = {name: parameter.numel() for name, parameter in module.named_parameters()}
    for name, number in given.items():
        require((name in sizes, f"nonzeros: the network has no parameter {name!r}"))
        fits = 0 <= number <= sizes[name]
        require((fits, f"nonzeros: {name} has {sizes[name]:,} entries, {number:,} cannot be held"))
    for name, parameter in module.named_parameters():
        held[id(parameter)] = given.get(name, sizes[name])

    def count(layer: Any, inputs: Any, output: Tensor) -> None:
        nonlocal total
        linear = isinstance(layer, nn.Linear)
        wide = layer.out_features if linear else layer.out_channels
        bias = 0 if layer.bias is None else held[id(layer.bias)] if linear else wide
        total += (2 * held[id(layer.weight)] + bias) * (output.numel() // (COPIES * wide))

    training = module.training
    with ExitStack() as stack:
        stack.callback(module.train, training)
        for layer in module.modules():
            if isinstance(layer, LAYERS):
                stack.callback(layer.register_forward_hook(count).remove)
        module.eval()(x.expand(COPIES, *x.shape))
    return total


def paper_round_flops(forward: int, samples: int, epochs: int = 5, screened: int = 0, dense: int = 0) -> int:
    """Return the operations of one client's round.

    Args:
        forward: operations of a forward pass of the client's sparse network
        samples: number of training samples
        epochs: number of local epochs
        screened: number of samples for the dense gradient that updates the mask; the paper uses a batch of 128
        dense: operations of a forward pass of the dense network
    """
    return TRAINING * (epochs * samples * forward + screened * dense)


def paper_bytes(nonzeros_down: float, nonzeros_up: float, clients: int, rounds: int) -> int:
    """Return the bytes of all rounds, given the held values per client in a download and an upload.

    >>> paper_bytes(100, 50, clients=10, rounds=2)
    12000
    """
    return round(VALUE * (nonzeros_down + nonzeros_up) * clients * rounds)


FEDSPA = "FedSpa, https://arxiv.org/abs/2201.11380"
NOT_A_BATCH = Key(0, 0)
"""The key of batches of which only the sizes count."""


@dataclass(frozen=True)
class PaperCosts:
    """The costs of a run by a paper's rules; none where the rules do not apply.

    Args:
        paper: the paper
        bytes: bytes of all uploads and downloads
        flops: floating-point operations of all training
        rules: what counts
    """

    paper: str
    bytes: int | None
    flops: int | None
    rules: str


Count = Callable[[BoundMethod, Task, Sequence[Record]], PaperCosts]
"""Returns the costs of a run, given its method, task and records."""


def fedspa_costs(method: BoundMethod, task: Task, metrics: Sequence[Record]) -> PaperCosts:
    """Return costs as FedSpa's Tables 1, 3 and 4 have them."""
    both = totals(metrics, "bytes_up") + totals(metrics, "bytes_down")
    rules = (
        "4 bytes per held value, without masks and headers; 2 operations per held weight for each application of a "
        "layer and 1 per bias, training counts as three forward passes, and every client with a mask has one dense "
        "batch for the mask search in every round"
    )
    return PaperCosts(FEDSPA, values(both), fedspa_flops(method, task, metrics), rules)


def fedspa_flops(method: BoundMethod, task: Task, metrics: Sequence[Record]) -> int | None:
    """Return the operations as FedSpa's paper counts them; none if the size of a mask changes between rounds.

    The batch of the mask search counts for every run with masks, moving or static.
    """
    training = method.training
    view, solver = training.view, training.solver
    if view.section == CHANGE and not isinstance(view, PersonalMask):
        return None
    module, sample = task.model(), take(task.data.train.example(1)[0], 0)
    assert isinstance(sample, torch.Tensor)
    dense = paper_forward_flops(module, sample)
    keep = view.part(training.outline, Clock(0, 1, 0), NOT_A_BATCH).keep
    held = {name: int(mask.count_nonzero()) for name, mask in keep.items()}
    forward, sizes = paper_forward_flops(module, sample, held), task.split.sizes().tolist()
    plans = {size: [len(batch) for batch in solver.plan(size, NOT_A_BATCH)] for size in set(sizes)}
    each = {
        size: paper_round_flops(forward, sum(plan), 1, plan[0] if held and plan else 0, dense)
        for size, plan in plans.items()
    }
    return sum(each[sizes[client]] for record in metrics for client in record["clients"])


COUNTS: Mapping[str, Count] = dict.fromkeys(
    ("fedspa", "sub-fedavg", "fedavg", "ditto", "local", "subsample"), fedspa_costs
)
"""The counts by method: here all rows of FedSpa's tables."""


def count_of(name: str) -> Count:
    """Return the count of a method's paper; refuse a method without one."""
    if name not in COUNTS:
        raise ConfigError(f"{name}: no paper's count of costs is known for this method: known for {', '.join(COUNTS)}")
    return COUNTS[name]


def paper_costs(name: str, method: Method, task: Task, metrics: Sequence[Record], seed: int = 0) -> PaperCosts:
    """Return the costs of a run as the paper of its method counts them.

    Args:
        name: the name of the method
        method: the method
        task: the task
        metrics: the records of the run
        seed: the seed of the run
    """
    return count_of(name)(method.bind(Objective(task.adapted(method.adapter), "cpu", key(seed))), task, metrics)
