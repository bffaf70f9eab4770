"""Norm of the reconstruction, and retention where outages differ with labels, on a convex problem.

    make reproduce WHAT=wireless-convex

Logistic regression with a ridge and 40 weights over ten devices, one gradient on all samples per round. Each device
labels by its own line. Five devices are near and lose almost nothing. Five are far, lose most messages, and label by
lines of another kind. The measured quantity is the excess loss: the loss over all samples minus its minimum, as the
mean over the last quarter of the rounds. Runs are stored and not repeated. Tables go to docs/reproduction/wireless.md.
"""

import argparse
from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from gossamer import SGD, Dense, Full, Method, OneBit, Retain, SumThenDecode, Task, Wireless, compose
from gossamer.analysis.theory import Mixture, task_losses
from gossamer.core.codec import Codec
from gossamer.core.random import fold, key, uniform
from gossamer.engines import Options
from gossamer.engines.simulation import Simulation
from gossamer.fleet.fleet import Device, Fleet
from gossamer.parts.channels import Channel, Perfect
from gossamer.tasks.data import Data, Samples, Split
from gossamer.tasks.metrics import metrics_of
from reproduce.common import seeds, store, tables
from reproduce.submodel.theory_problem import correct, loss

STUDY = "wireless-convex"
DEVICES, EACH, ENTRIES, RIDGE = 10, 30, 40, 0.05
ROUNDS, SEEDS = 160, (0, 1, 2)
STEPS = (0.25, 1.0)
"""Step sizes of ``scaling``, as multiples of 1 / L."""
SMALL = 0.05
"""Step size of ``retention``, likewise: with larger steps, updates that arrive together overshoot."""
RATIOS = (0.25, 1.0, 2.0)
"""Measurements per weight of ``scaling``."""
FLEET = Fleet(
    (
        Device("near", 5, None, 1e9, distance=40.0, interference=5e-8),
        Device("far", 5, None, 1e9, distance=420.0, interference=5e-8),
    )
)
"""Near devices lose 4 % of their messages, far ones 71 %."""


class Linear(nn.Module):
    """One output, no bias, zero weights, in double precision to resolve small distances."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(1, ENTRIES, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w[0]


def samples() -> tuple[Tensor, Tensor]:
    """Return samples of norm 1; each device labels by its own line, near and far ones by different kinds of lines."""
    owners = torch.repeat_interleave(torch.arange(DEVICES), EACH)

    def centred(label: str, rows: int) -> Tensor:
        return 2 * uniform(fold(key(0), label), rows * ENTRIES, dtype=torch.float64).view(rows, ENTRIES) - 1

    far = torch.tensor([FLEET.device(client, DEVICES).name == "far" for client in range(DEVICES)])
    lines = torch.where(far[:, None], centred("far", 1), centred("near", 1)) + 0.5 * centred("own", DEVICES)
    x = centred("x", len(owners))
    x = x / x.norm(dim=-1, keepdim=True)
    return x, ((x * lines[owners]).sum(-1) > 0).long()


class Problem:
    """The task, and F: the mean loss over all samples, with a ridge."""

    @cached_property
    def task(self) -> Task:
        both, start = Samples(*samples()), np.arange(0, DEVICES * EACH + 1, EACH)
        index = np.arange(DEVICES * EACH)
        data = Data("logistic", both, both, 2, "natural", "own")
        return Task(Linear, data, Split(index, start, index, start), loss, metrics_of({"accuracy": correct}))

    @cached_property
    def objective(self) -> Mixture:
        return Mixture(task_losses(self.task, RIDGE)[0], torch.full((DEVICES,), 1 / DEVICES, dtype=torch.float64))

    @cached_property
    def least(self) -> float:
        zero = torch.zeros(ENTRIES, dtype=torch.float64)
        return float(self.objective.value(self.objective.optimum(zero)))

    @cached_property
    def smoothness(self) -> float:
        x = self.task.data.train.x
        return float(torch.linalg.eigvalsh(x.mT @ x / len(x) / 4).max()) + RIDGE

    def method(self, codec: Codec, step: float) -> Method:
        """Return one gradient per device and round; ``step`` is a multiple of 1 / L."""
        solver = SGD(step / self.smoothness, steps=1, batch=None, weight_decay=RIDGE)
        return compose(Full(), solver, codec, SumThenDecode())

    def excess(self, codec: Codec, step: float, channel: Channel, seed: int) -> float:
        """Return the mean excess loss over the last quarter of a run."""
        options = Options(rounds=ROUNDS, seed=seed, channel=channel, eval_every=ROUNDS, executor="one-by-one")
        run, found = Simulation(self.method(codec, step), self.task, options), []
        for number in range(ROUNDS):
            run.round(number, None)
            if number >= 3 * ROUNDS // 4:
                found.append(float(self.objective.value(run.model()["w"][0])) - self.least)
        return float(np.mean(found))


PROBLEM = Problem()
SENSED: dict[str, Any] = {"measurements": 2.0, "scaling": "linear"}
RETAINED: dict[str, Codec] = {
    "dense, nothing": Dense(),
    "dense, last update": Retain(Dense()),
    "dense, all updates": Retain(Dense(), accumulate=True),
    "one-bit, nothing": OneBit(**SENSED),
    "one-bit, last update": OneBit(**SENSED, retain="change"),
    "one-bit, all updates": OneBit(**SENSED, retain="change", accumulate=True),
}
"""Codecs of ``retention`` by message and by what is retained of lost messages."""


class Entry(NamedTuple):
    """One stored value per seed: the excess loss of a codec with a step over a channel."""

    name: str
    codec: Codec
    step: float
    channel: Channel

    def kept(self) -> list[float]:
        """Return the stored values; run and store them if there are none."""
        if self.name not in store.read(STUDY):
            runs = [PROBLEM.excess(self.codec, self.step, self.channel, seed) for seed in SEEDS]
            store.write(STUDY, self.name, {"excess": runs})
        values: list[float] = store.read(STUDY)[self.name]["excess"]
        return values


def scaling() -> dict[tuple[float, str, float], Entry]:
    """Return the runs without losses, by measurements per weight, scaling and step."""
    return {
        (ratio, kind, step): Entry(f"scaling-{kind}-{ratio:g}-{step:g}", OneBit(ratio, scaling=kind), step, Perfect())
        for ratio in RATIOS
        for kind in ("norms", "linear")
        for step in STEPS
    }


def retention() -> dict[str, Entry]:
    """Return the runs over lossy links, by row."""
    return {name: Entry(f"retention-{name}", codec, SMALL, Wireless(FLEET)) for name, codec in RETAINED.items()}


def page() -> str:
    """Return the tables of all stored runs."""
    done = store.read(STUDY)
    rows = []
    for ratio in RATIOS:
        for step in STEPS:
            found = [scaling()[ratio, kind, step] for kind in ("norms", "linear")]
            if all(entry.name in done for entry in found):
                norms, linear = (float(np.mean(entry.kept())) for entry in found)
                rows.append([f"{ratio:g}", f"{step:g} / L", f"{norms:.2g}", f"{linear:.2g}", f"{norms / linear:.1f} x"])
    heads = ["measurements per weight", "step", "`norms`", "`linear`", "ratio"]
    note = "Convex problem, no losses: excess loss at the end, mean over seeds."
    first = tables.section("Norm of the reconstruction: error floor", heads, rows, note)
    kept = {name: entry.kept() for name, entry in retention().items() if entry.name in done}
    lines = [[name, seeds.interval(values, 4)] for name, values in kept.items()]
    note = "Convex problem, step 0.05 / L; near devices lose 4 % of their messages, far ones 71 %. Excess loss."
    second = tables.section(
        "Retention where outages differ with labels", ["message, retained", "excess loss"], lines, note
    )
    return tables.joined([first, second])


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, and print the tables."""
    argparse.ArgumentParser(description="Norm of the reconstruction, and retention, on a convex problem.").parse_args(
        argv
    )
    torch.set_num_threads(1)
    for entry in (*retention().values(), *scaling().values()):
        print(entry.name, entry.kept(), flush=True)
    print(page())


if __name__ == "__main__":
    main()
