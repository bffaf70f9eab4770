"""Schedules in virtual time on Fashion-MNIST: time and energy to 85 % accuracy.

    make reproduce WHAT=schedules REPRODUCE="--data-dir DIR --jobs 2"

200 devices with a tenfold spread of speeds, each away for half of the time. Synchronous rounds, rounds with a deadline
and over-selection, and FedBuff, each with 20 clients in training at the same time, dense (FedAvg) and with one bit per
parameter (FedMRN). The server learning rate of each schedule and method is chosen on held-out training samples. A run
ends with the first evaluation that reaches 85 % on the test set, or after 3,000 updates.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, product
from typing import NamedTuple

import numpy as np
import torch

from gossamer import Result, Task
from gossamer.runs.records import Record
from reproduce.common import cli, tables
from reproduce.common.cells import Cell, Studies
from reproduce.common.seeds import by_seed, spread
from reproduce.common.store import Facts

PAGE, SEEDS, TARGET, UPDATES = "schedules", (0, 1, 2), 85.0, 3000
TRAINING = {"epochs": 2, "batch": 20, "lr": 0.05}
METHODS = {"fedavg": "dense", "fedmrn": "one bit"}
RATES = (0.5, 1.0, 1.5, 2.0)
"""Candidates for the server learning rate."""
HOLD_OUT = 6
"""Every n-th training sample is held out to choose the server learning rate."""


class Row(NamedTuple):
    """A schedule.

    Args:
        title: its name in tables
        text: its text
        per_round: updates of an aggregation, or clients per round
    """

    title: str
    text: str
    per_round: int


SCHEDULES = {
    "sync": Row("synchronous", "sync", 20),
    "deadline": Row("deadline, 15 of 20", "deadline:40s,over=1.33", 15),
    "fedbuff": Row("FedBuff, buffer of 5", "fedbuff:buffer=5,concurrency=20", 5),
}


class Setting(NamedTuple):
    """Devices and partition.

    Args:
        fleet: the fleet file
        split: the partition
    """

    fleet: str
    split: str


PATIENT = "deadline:104s,over=1.33"
"""The deadline of dense uploads over thin links: 64 s longer, as long as such an upload takes."""

SETTINGS = {
    "main": Setting("devices.toml", "dirichlet:0.3"),
    "correlated": Setting("devices.toml", "by-device:0.5"),
    "thin": Setting("thin_devices.toml", "dirichlet:0.3"),
}


TUNED = {"main": "rate", "thin": "thinrate"}
"""Settings whose server learning rates are chosen, and the name of these runs."""


def cell(setting: str, schedule: str, method: str, seed: int, rate: float | None = None) -> Cell:
    """Return a run. With a rate, it is one on held-out samples; else the rate is the chosen one."""
    row, (fleet, split) = SCHEDULES[schedule], SETTINGS[setting]
    tuned = chosen(setting, schedule, method) if rate is None else rate
    name = f"{PAGE}-{setting if rate is None else f'{TUNED[setting]}{rate}'}-{schedule}-{method}-{seed}"
    text = PATIENT if (setting, schedule, method) == ("thin", "deadline", "fedavg") else row.text
    rounds, often = UPDATES // row.per_round, max(1, 20 // row.per_round)
    made = Cell(name, method, TRAINING, "fashion-mnist", "mlp", split, seed, rounds, 200, row.per_round)
    made = made._replace(words=f"--set server.server_lr={tuned}", eval_every=often, executor="one-by-one")
    made = made._replace(virtual=text, fleet=fleet, until=f"accuracy={TARGET / 100}")
    return made._replace(validate=0 if rate is None else HOLD_OUT)


def chosen(setting: str, schedule: str, method: str) -> float:
    """Return the server learning rate with the shortest virtual time to the target on held-out samples.

    That of labels that go with the speed is the one of other labels.
    """
    at = setting if setting in TUNED else "main"
    found = {rate: by_seed(partial(_tuning, at, schedule, method, rate), SEEDS[:1]) for rate in RATES}
    times = {rate: _seconds(facts[0]) for rate, facts in found.items() if facts}
    return min(times, key=lambda rate: (times[rate] is None, times[rate] or 0.0), default=1.0)


def _tuning(setting: str, schedule: str, method: str, rate: float, seed: int) -> Cell:
    return cell(setting, schedule, method, seed, rate)


def rates(setting: str) -> Iterator[Cell]:
    """Runs on held-out samples, one per schedule, method and server learning rate."""
    return (_tuning(setting, *each, 0) for each in product(SCHEDULES, METHODS, RATES))


def study(setting: str) -> Iterator[Cell]:
    """All runs of a setting, seed after seed."""
    return (cell(setting, schedule, method, seed) for seed in SEEDS for schedule in SCHEDULES for method in METHODS)


STUDIES: Studies = {
    **{f"{name}s": partial(rates, setting) for setting, name in TUNED.items()},
    **{setting: partial(study, setting) for setting in SETTINGS},
}


def more(cell: Cell, task: Task, result: Result) -> Facts:
    """Store times, energy, bytes and staleness at each evaluation, and accuracy by speed after the last round."""
    metrics = result.metrics
    at = [number for number, record in enumerate(metrics) if "accuracy" in record]
    joules, sent = (list(accumulate(map(each, metrics))) for each in (_joules, _sent))
    stale = [record["round"] - 1 - version for record in metrics for version in record["tasks"]["version"]]
    outcomes = [outcome for record in metrics for outcome in record["tasks"]["outcome"]]
    return {
        "rounds_told": [metrics[number]["round"] for number in at],
        "times": [round(metrics[number]["time"], 3) for number in at],
        "joules": [round(joules[number], 1) for number in at],
        "sent": [sent[number] for number in at],
        "staleness": round(statistics.mean(stale), 3),
        "outcomes": {name: outcomes.count(name) for name in sorted(set(outcomes))},
        "by_speed": by_speed(task, result),
    }


def _joules(record: Record) -> float:
    return float(record["joules"])


def _sent(record: Record) -> int:
    return int(sum(record["bytes_up"].values()))


def by_speed(task: Task, result: Result) -> list[float]:
    """Return the accuracy in percent on the test samples of the clients of each kind of device, the slowest first."""
    model, test = result.model, task.data.test
    found = []
    for kind in range(10):
        index = np.concatenate([task.split.test(client) for client in range(kind, task.split.clients, 10)])
        x, y = test.read(torch.from_numpy(index))
        with torch.no_grad():
            found.append(round(100 * float((model(x).argmax(1) == y).double().mean()), 2))
    return found


# The page.


def _first(facts: Facts) -> int | None:
    """Return the index of the first evaluation that reaches the target."""
    return next((number for number, value in enumerate(facts["accuracy"]) if value >= TARGET), None)


def _seconds(facts: Facts) -> float | None:
    """Return the virtual time to the target; None if it is not reached."""
    return None if (first := _first(facts)) is None else float(facts["times"][first])


def _at(name: str, scale: float, facts: Facts) -> float | None:
    first = _first(facts)
    return None if first is None else float(facts[name][first]) / scale


COLUMNS: dict[str, tuple[Callable[[Facts], float | None], int]] = {
    "virtual hours": (partial(_at, "times", 3600), 2),
    "kilojoules": (partial(_at, "joules", 1e3), 1),
    "megabytes uploaded": (partial(_at, "sent", 1e6), 1),
    "aggregations": (partial(_at, "rounds_told", 1), 0),
}
HEADS = ["schedule", "method", "server rate", *COLUMNS, "mean staleness", "not aggregated", "reached"]


def row(setting: str, schedule: str, method: str) -> list[str]:
    """Return the row of a schedule and a method: means over the seeds that reach the target."""
    found = by_seed(partial(cell, setting, schedule, method), SEEDS)
    names = [SCHEDULES[schedule].title, METHODS[method], f"{chosen(setting, schedule, method):g}"]
    if not found:
        return [*names, *["not run"] * len(COLUMNS), "", "", ""]
    cost = []
    for value, digits in COLUMNS.values():
        reached = [each for each in map(value, found.values()) if each is not None]
        cost.append(spread(reached, digits) if reached else "not reached")
    stale = spread([facts["staleness"] for facts in found.values()], 1)
    vain = [100 - 100 * facts["outcomes"]["folded"] / sum(facts["outcomes"].values()) for facts in found.values()]
    count = sum(_first(facts) is not None for facts in found.values())
    return [*names, *cost, stale, spread(vain, 1, " %"), f"{count} of {len(found)}"]


def groups(setting: str, schedule: str, method: str) -> list[str]:
    """Return the accuracy after the last round by thirds of the devices: slow, middle and fast."""
    found = by_seed(partial(cell, setting, schedule, method), SEEDS)
    names = [SCHEDULES[schedule].title, METHODS[method]]
    thirds = (slice(0, 3), slice(3, 7), slice(7, 10))
    means = [[statistics.mean(facts["by_speed"][third]) for facts in found.values()] for third in thirds]
    return [*names, *(spread(values, 1) if values else "not run" for values in means)]


BY_GROUP = "Accuracy after the last round on the test samples of slow and fast devices, in percent:"


def section(setting: str, title: str) -> str:
    """Return the tables of a setting."""
    every: Sequence[tuple[str, str]] = [(schedule, method) for schedule in SCHEDULES for method in METHODS]
    cost = tables.section(title, HEADS, [row(setting, *each) for each in every])
    heads = ["schedule", "method", "slow third", "middle", "fast third"]
    by_group = tables.markdown(heads, [groups(setting, *each) for each in every])
    return f"{cost}\n\n{BY_GROUP}\n\n{by_group}"


def page() -> str:
    """Return all tables, and what was not run."""
    titles = {
        "main": "Unequal labels, 2 Mbit/s up",
        "correlated": "Labels that go with the speed of the device",
        "thin": "Thin links, 100 kbit/s up",
    }
    return tables.joined([*(section(setting, title) for setting, title in titles.items()), tables.missing(STUDIES)])


REPRODUCTION = cli.Reproduction(
    PAGE,
    "Compare schedules in virtual time on Fashion-MNIST.",
    STUDIES,
    page,
    methods="schedules or methods",
    labels=lambda cell: (cell.method, cell.name.split("-")[2]),
    more=more,
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the missing cells, then render the page."""
    REPRODUCTION.main(argv)


if __name__ == "__main__":
    main()
