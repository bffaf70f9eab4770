"""Costs of a recorded run as a method's paper counts them, for comparison with its tables.

Each method whose paper defines a count has an entry in ``COUNTS``. The metrics of a run hold the true bytes and
operations.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from gossamer.analysis.theory.costs import paper_forward_flops, paper_round_flops
from gossamer.core.binding import BoundMethod
from gossamer.core.errors import ConfigError
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
