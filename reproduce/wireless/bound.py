"""The convergence bound over lossy links (Theorem 1 of the one-bit system), next to measured runs on a convex problem.

    make reproduce WHAT=wireless-bound

Logistic regression with a ridge over twelve devices of unequal sizes, one step on all samples per round. The channel
loses each message with the same probability. The measured quantity is the one that the theorem bounds: the mean over
rounds of the squared gradient of F at the start of each round. The constants are those of the problem; G and D come
from the range of the runs. With more than twelve devices the printed theorem cannot be evaluated.

In addition to dense gradients there is the paper's own system: a third of the weights is pruned, the payload is the
signs of measurements by one Gaussian matrix, and lost signs are sent again with the next message. Then all corrected
terms count. C and delta are those of the matrix: C bounds how least squares multiplies errors, delta is the isometry
constant.

Runs are stored and not repeated. The plot goes to docs/reproduction/wireless-bound.svg. ``course`` takes any method.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from gossamer import SGD, Dense, Full, MagnitudePruned, Mean, Method, OneBit, SumThenDecode, Task, compose
from gossamer.analysis.theory import CORRECTIONS, Mixture, WirelessSetting, gradient_bound, task_losses
from gossamer.core.codec import Coding
from gossamer.core.random import fold, key, uniform
from gossamer.core.types import Layout
from gossamer.engines import Options
from gossamer.engines.simulation import Simulation
from gossamer.parts.channels import Channel, Lossy
from gossamer.tasks.data import Data, Samples, Split
from gossamer.tasks.metrics import metrics_of
from reproduce.common import plots, store, tables
from reproduce.common.store import Facts
from reproduce.submodel.theory_problem import correct, loss

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

STUDY, PLOT = "wireless-bound", "wireless-bound.svg"
SIZES = tuple(8 + 3 * u for u in range(12))
ENTRIES, RIDGE = 6, 0.05
OUTAGES = (0.0, 0.2, 0.5)
LENGTHS = {"dense": (300, 5), "signs": (100, 3)}
"""Rounds and seeds, by payload."""
PRUNED, SIGNS = 1 / 3, 64
"""Of the runs with signs: the fraction of pruned weights, and the number of signs per message."""


class Linear(nn.Module):
    """One output, no bias, in double precision, with initial weights far from the optimum."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((1, ENTRIES), -2.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w[0]


def samples() -> tuple[Tensor, Tensor]:
    """Return samples of norm 1; each device labels by its own line, with noise."""
    total, owners = sum(SIZES), torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))

    def centred(label: str, rows: int, columns: int) -> Tensor:
        return 2 * uniform(fold(key(0), label), rows * columns, dtype=torch.float64).view(rows, columns) - 1

    x = centred("x", total, ENTRIES)
    x = x / x.norm(dim=-1, keepdim=True)
    lines = (1 + 1.5 * centred("line", len(SIZES), ENTRIES))[owners]
    return x, ((x * lines).sum(-1, keepdim=True) + centred("noise", total, 1) > 0).long()[:, 0]


@dataclass(frozen=True)
class Course:
    """A run: the squared gradient at the start of each round, and the largest norm of the model."""

    squares: list[float]
    longest: float


class Problem:
    """The task, and F: the mean loss over all samples."""

    @cached_property
    def task(self) -> Task:
        both, start = Samples(*samples()), np.concatenate([[0], np.cumsum(SIZES)])
        index = np.arange(sum(SIZES))
        data = Data("logistic", both, both, 2, "natural", "own")
        return Task(Linear, data, Split(index, start, index, start), loss, metrics_of({"accuracy": correct}))

    @cached_property
    def objective(self) -> Mixture:
        weights = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
        return Mixture(task_losses(self.task, RIDGE)[0], weights)

    @cached_property
    def smoothness(self) -> float:
        """Smoothness of F: samples have norm 1, and the logistic loss has curvature of at most a quarter."""
        x = self.task.data.train.x
        return float(torch.linalg.eigvalsh(x.mT @ x / len(x) / 4).max()) + RIDGE

    @property
    def rate(self) -> float:
        """Half of the largest step that the theorem allows."""
        return 1 / (2 * self.smoothness)

    @cached_property
    def gap(self) -> float:
        """F at the start, minus its minimum."""
        start = Linear().w.detach()[0]
        best = self.objective.optimum(torch.zeros(ENTRIES, dtype=torch.float64))
        return float(self.objective.value(start) - self.objective.value(best))

    def plain(self) -> Method:
        """Return one step on all samples of a device, sent dense."""
        return compose(Full(), self.solver, Dense(), Mean("samples"))

    def signs(self) -> Method:
        """Return the step of a pruned model, sent as signs; lost signs are sent with the next message."""
        return compose(MagnitudePruned((PRUNED,)), self.solver, self.codec, SumThenDecode("samples"))

    @property
    def solver(self) -> SGD:
        """One step on all samples."""
        return SGD(self.rate, steps=1, batch=None, weight_decay=RIDGE)

    @property
    def codec(self) -> OneBit:
        """One matrix for all rounds, which retained signs require."""
        return OneBit(rows=SIGNS, matrix="gaussian", fresh=False, retain="signs")

    def sensed(self) -> dict[str, Any]:
        """Return the theorem's constants of pruning, measuring and retaining."""
        units = torch.eye(round((1 - PRUNED) * ENTRIES), dtype=torch.float64)
        matrix = self.codec.phi(Coding(Layout.of({"w": units[0]}), key(0)), units.device)
        lengths = torch.linalg.svdvals(torch.stack([matrix.measure(unit) for unit in units]))
        return {
            "ratios": (PRUNED,) * len(SIZES),
            "measurements": SIGNS,
            "reconstruction": 1 / float(lengths.min()),
            "isometry": float((lengths**2 - 1).abs().max()),
            "coefficient": self.codec.coefficient,
        }

    def setting(self, outage: float, longest: float, **more: Any) -> WirelessSetting:
        """Return the theorem's constants for models of at most a given norm; of dense gradients by default."""
        plain = {"ratios": (0.0,) * len(SIZES), "measurements": 1, "reconstruction": 0.0, "coefficient": 0.0}
        return WirelessSetting(
            smoothness=self.smoothness,
            gradient=1 + RIDGE * longest,
            weights=longest,
            sizes=SIZES,
            outages=(outage,) * len(SIZES),
            **{**plain, **more},
        )


PROBLEM = Problem()
METHODS = {"dense": PROBLEM.plain, "signs": PROBLEM.signs}
"""Method by payload."""
ENTRY = {"dense": "wireless-bound", "signs": "wireless-bound-one-bit"}
"""Name of the stored runs by payload."""
TITLES = {"dense": "dense gradients", "signs": "pruned, one-bit CS, lost signs sent again"}


def course(method: Method, channel: Channel, rounds: int, seed: int) -> Course:
    """Run any method on the problem."""
    options = Options(rounds=rounds, seed=seed, channel=channel, eval_every=rounds)
    simulation, squares, longest = Simulation(method, PROBLEM.task, options), [], 0.0
    for number in range(rounds):
        w = simulation.model()["w"][0]
        squares.append(PROBLEM.objective.gradient_norm(w) ** 2)
        longest = max(longest, float(w.norm()))
        simulation.round(number, None)
    return Course(squares, longest)


def measured(sent: str, outage: float, rounds: int, seeds: int) -> Facts:
    """Return the mean over seeds of the running mean, half of its interval, and the largest norm of the model."""
    method = METHODS[sent]()
    runs = [course(method, Lossy(outage), rounds, seed) for seed in range(seeds)]
    means = torch.tensor([run.squares for run in runs]).cumsum(1) / torch.arange(1, rounds + 1)
    deviation = means.std(0) if seeds > 1 else torch.zeros(rounds)
    return {
        "sent": sent,
        "outage": outage,
        "seeds": seeds,
        "longest": max(run.longest for run in runs),
        "mean": means.mean(0).tolist(),
        "half": (1.96 * deviation / math.sqrt(seeds)).tolist(),
    }


def setting(row: Facts) -> WirelessSetting:
    """Return the theorem's constants for a row."""
    more = PROBLEM.sensed() if row["sent"] == "signs" else {}
    return PROBLEM.setting(row["outage"], row["longest"], **more)


def bounds(row: Facts, corrected: Sequence[str] = CORRECTIONS) -> list[float]:
    """Return the bound by number of rounds."""
    constants = setting(row)
    return [
        sum(gradient_bound(constants, rounds, PROBLEM.rate, PROBLEM.gap, corrected).values())
        for rounds in range(1, len(row["mean"]) + 1)
    ]


def draw(rows: Sequence[Facts]) -> None:
    """Draw measured means with their intervals, corrected bounds dashed, printed bounds dotted."""

    def fill(figure: "Figure") -> None:
        panels = dict(zip(METHODS, figure.subplots(1, len(METHODS), sharey=True), strict=True))
        for sent, axes in panels.items():
            _panel(axes, [row for row in rows if row["sent"] == sent])
            axes.set(xscale="log", yscale="log", xlabel="rounds", title=TITLES[sent])
            plots.dress(axes)
        panels["dense"].set_ylabel("mean squared gradient so far")
        figure.legend(*panels["dense"].get_legend_handles_labels(), loc="outside right center", frameon=False)

    plots.draw(PLOT, (9.6, 4.2), fill)


def _panel(axes: "Axes", rows: Sequence[Facts]) -> None:
    for row, colour in zip(rows, plots.COLOURS, strict=False):
        rounds, mean, half = np.arange(1, len(row["mean"]) + 1), np.array(row["mean"]), np.array(row["half"])
        axes.plot(rounds, mean, color=colour, label=f"outage {row['outage']:g}")
        axes.fill_between(rounds, np.maximum(mean - half, mean / 10), mean + half, color=colour, alpha=0.2)
        axes.plot(rounds, bounds(row), "--", color=colour, linewidth=1, label="Theorem 1, corrected")
        axes.plot(rounds, bounds(row, ()), ":", color=colour, linewidth=1, label="as printed")


def table(rows: Sequence[Facts]) -> str:
    """Return a Markdown table of the last round of each row."""
    body = []
    for row in rows:
        terms = gradient_bound(setting(row), len(row["mean"]), PROBLEM.rate, PROBLEM.gap, CORRECTIONS)
        parts = ", ".join(f"{name} {term:.3g}" for name, term in terms.items() if term)
        found = f"{row['mean'][-1]:.3g} ± {row['half'][-1]:.1g}"
        figures = [found, f"{sum(terms.values()):.3g}", parts, f"{bounds(row, ())[-1]:.3g}"]
        body.append([row["sent"], f"{row['outage']:g}", *figures])
    return tables.markdown(["sent", "outage", "measured", "corrected", "terms", "as printed"], body)


def kept(sent: str) -> list[Facts]:
    """Return the stored runs of a payload; run and store them if there are none."""
    entry = ENTRY[sent]
    if entry not in store.read(STUDY):
        store.write(STUDY, entry, [measured(sent, outage, *LENGTHS[sent]) for outage in OUTAGES])
    return [{"sent": sent, **row} for row in store.read(STUDY)[entry]]


def main(argv: Sequence[str] | None = None) -> None:
    """Run what is missing, draw the plot, and print the table."""
    argparse.ArgumentParser(description="Compare the bound over lossy links with runs.").parse_args(argv)
    torch.set_num_threads(1)
    rows = [row for sent in METHODS for row in kept(sent)]
    draw(rows)
    print(table(rows))


if __name__ == "__main__":
    main()
