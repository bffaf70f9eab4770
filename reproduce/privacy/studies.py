"""Cells of the study: central and distributed privacy, secure sums, and the search of their hyper-parameters.

A row has candidates for its hyper-parameters. Each candidate is tried once, with a seed of its own, on held-out
training samples; the one with the highest accuracy after the last round is used for all seeds. Rows with noise are
tuned at epsilon 2, and use the same hyper-parameters for every epsilon.
"""

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any, NamedTuple

from gossamer import Result, Task
from reproduce.common import cells
from reproduce.common.cells import Cell, Studies
from reproduce.common.protection import Mode, Protection
from reproduce.common.store import Facts
from reproduce.privacy.settings import EPSILONS, PER_ROUND, ROUNDS, SETTINGS, noise

STUDY, SEEDS, TUNING_SEED = "privacy", (0, 1, 2), 100
HOLD_OUT = 6
"""Every n-th training sample is held out for tuning."""
TUNED_AT = 2.0
"""The epsilon at which rows with noise are tuned."""
TRAINING = {"epochs": 2, "batch": 10, "weights": "uniform"}

Candidate = dict[str, Any]
"""Parameters of a recipe, and ``clip``."""


class Row(NamedTuple):
    """A way to send updates.

    Args:
        title: its name in tables
        method: the recipe
        mode: how updates are protected; none for the plain recipe
        candidates: hyper-parameters to choose from, for Fashion-MNIST; others multiply them by their unit
        noisy: whether there is a run per epsilon
        like: the row whose learning rate it uses, if it is not tuned on its own
    """

    title: str
    method: str
    mode: Mode | None
    candidates: tuple[Candidate, ...]
    noisy: bool = False
    like: str = ""


def grid(**choices: tuple[Any, ...]) -> tuple[Candidate, ...]:
    """Return all combinations of values.

    >>> grid(lr=(0.1, 0.2), clip=(1.0,))
    ({'lr': 0.1, 'clip': 1.0}, {'lr': 0.2, 'clip': 1.0})
    """
    return tuple(dict(zip(choices, values, strict=True)) for values in product(*choices.values()))


RATES = (0.1, 0.3)
CLIPS = (0.5, 1.0, 2.0)
STEPS = (*grid(lr=(0.3,), clip=CLIPS), {"lr": 0.1, "clip": 1.0})
"""Learning rates and clipping norms of dense updates and masks with noise."""

CENTRAL = {
    "dense": Row("dense (FedAvg)", "fedavg", "central", STEPS, noisy=True),
    "signs": Row("signs", "signsgd", "central", grid(lr=(0.3,), scale=(0.005, 0.015), clip=(0.5, 1.0)), noisy=True),
    "masks": Row("masks (FedMRN)", "fedmrn", "central", STEPS, noisy=True),
}
CLIPPED = {
    "denseclipped": CENTRAL["dense"]._replace(candidates=grid(lr=(0.3,), clip=(1.0, 2.0)), noisy=False),
    "signsclipped": CENTRAL["signs"]._replace(candidates=grid(lr=(0.3,), scale=(0.01, 0.03), clip=(2.0,)), noisy=False),
    "masksclipped": CENTRAL["masks"]._replace(candidates=grid(lr=(0.3,), clip=(1.0, 2.0)), noisy=False),
}
"""The same rows without noise, tuned on their own."""
PLAIN = {
    "denseplain": Row("dense (FedAvg), float32", "fedavg", None, grid(lr=RATES)),
    "signsplain": Row("signs, scale of each tensor", "signsgd", None, grid(lr=RATES)),
    "masksplain": Row("masks (FedMRN), own noise, measured magnitude", "fedmrn", None, grid(lr=RATES)),
}
SCALES = (0.005, 0.02, 0.08)
SUMS = {
    "densesums": Row("dense, fixed point, 16 bits", "fedavg", "sums", (), like="denseplain"),
    "signssums": Row("signs, one fixed scale", "signsgd", "sums", grid(lr=(0.3,), scale=SCALES)),
    "masksfixed": Row("masks (FedMRN), own noise, fixed magnitude", "fedmrn", None, grid(lr=(0.3,), alpha=SCALES)),
    "maskssums": Row(
        "masks (FedMRN), common noise, fixed magnitude",
        "fedmrn",
        "sums",
        grid(lr=(0.3,), alpha=SCALES, common_noise=(True,)),
    ),
}
DISTRIBUTED = {
    "skellam": Row("dense, Skellam noise", "fedavg", "skellam", grid(lr=(0.3,), clip=CLIPS), noisy=True),
    "bits": Row("one random bit (Poisson binomial)", "fedavg", "bits", grid(lr=(0.3,), clip=CLIPS), noisy=True),
}
ROWS = {**CENTRAL, **CLIPPED, **PLAIN, **SUMS, **DISTRIBUTED}


def made(name: str, setting: str, row: Row, candidate: Candidate, epsilon: float | None, seed: int) -> Cell:
    """Return a run with hyper-parameters."""
    given = {key: value for key, value in candidate.items() if key != "clip"}
    place = SETTINGS[setting]
    cell = Cell(name, row.method, {**TRAINING, **given}, place.data, "cnn-small", "iid", seed, ROUNDS)
    cell = cell._replace(clients=place.clients, per_round=PER_ROUND, eval_every=10, executor="one-by-one")
    if row.mode is None:
        return cell
    how = Protection(row.mode, candidate.get("clip", 1.0), noise(setting, row.mode, epsilon), epsilon)
    return cell._replace(protect=how._asdict())


def candidates(setting: str, key: str) -> tuple[Candidate, ...]:
    """Return the candidates of a row for a data set."""
    unit = SETTINGS[setting].unit
    return tuple(
        {name: value if value is True else round(unit * value, 4) for name, value in each.items()}
        for each in ROWS[key].candidates
    )


def trial(setting: str, key: str, number: int) -> Cell:
    """Return the run of a candidate on held-out samples."""
    row = ROWS[key]
    epsilon = TUNED_AT if row.noisy else None
    name = f"{STUDY}-{setting}-tune-{key}-{number}"
    return made(name, setting, row, candidates(setting, key)[number], epsilon, TUNING_SEED)._replace(validate=HOLD_OUT)


def trials(setting: str, key: str) -> list[Cell]:
    """Return the runs of all candidates of a row."""
    return [trial(setting, key, number) for number in range(len(ROWS[key].candidates))]


def chosen(setting: str, key: str) -> Candidate:
    """Return the hyper-parameters of a row: those with the best trial, or the first ones if there was none."""
    row = ROWS[key]
    if row.like:
        return chosen(setting, row.like)
    scores = [cells.read(cell)["last"] if cell.stored else -1.0 for cell in trials(setting, key)]
    return candidates(setting, key)[scores.index(max(scores))]


def cell(setting: str, key: str, epsilon: float | None, seed: int) -> Cell:
    """Return the run of a row with the chosen hyper-parameters; without an epsilon there is no noise."""
    name = f"{STUDY}-{setting}-{key}-{'none' if epsilon is None else f'{epsilon:g}'}-{seed}"
    return made(name, setting, ROWS[key], chosen(setting, key), epsilon, seed)


def rows_of(setting: str) -> tuple[str, ...]:
    """Return the rows of a data set: distributed noise has Fashion-MNIST alone."""
    return tuple(key for key in ROWS if key not in DISTRIBUTED or setting == "fashion")


def tune(setting: str) -> Iterator[Cell]:
    """All candidates of all rows, the slowest methods first."""
    every = (each for key in rows_of(setting) for each in trials(setting, key))
    return iter(sorted(every, key=_slowness, reverse=True))


def measured(setting: str) -> Iterator[Cell]:
    """All runs with the chosen hyper-parameters, the slowest methods first."""
    levels = {key: EPSILONS if ROWS[key].noisy else (None,) for key in rows_of(setting)}
    every = (cell(setting, key, epsilon, seed) for seed in SEEDS for key in levels for epsilon in levels[key])
    return iter(sorted(every, key=_slowness, reverse=True))


def _slowness(cell: Cell) -> int:
    return ("fedavg", "signsgd", "fedmrn").index(cell.method)


STUDIES: Studies = {
    **{f"{setting}-tune": partial(tune, setting) for setting in SETTINGS},
    **{setting: partial(measured, setting) for setting in SETTINGS},
}


def more(cell: Cell, task: Task, result: Result) -> Facts:
    """Store the bytes that a client sends in a round, and the epsilon that the records state."""
    sent = sum(sum(record["bytes_up"].values()) for record in result.metrics)
    clients = sum(len(record["clients"]) for record in result.metrics)
    stated = result.metrics[-1].get("figures", {}).get("privacy", {}).get("epsilon")
    return {"bytes_per_client": round(sent / clients), "stated_epsilon": stated}
