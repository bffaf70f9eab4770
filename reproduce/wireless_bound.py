"""Theorem 1 on training over links that lose messages, beside measured runs on a convex problem.

    make reproduce WHAT=wireless-bound

Logistic regression with a ridge over twelve devices of unequal sizes, one step on all samples a round, through a
channel that loses each message with the same chance. What the theorem bounds is measured: the mean over rounds of the
squared gradient of F, at the models that the rounds begin with. The constants are the problem's, with G and D from how
far the runs went. Twelve devices are the most that the theorem can be had for as it is printed.

Runs are kept in docs/reproduction/cells/wireless-bound.json and not done twice; the picture goes to
docs/reproduction/wireless-bound.svg. :func:`course` takes any method.
"""

import io
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cells
import numpy as np
import torch
from submodel_theory_problem import correct, loss
from torch import Tensor, nn

from gossamer import SGD, Dense, Full, Mean, Method, Task
from gossamer.channels import Channel, Lossy
from gossamer.data import Data, Samples, Split
from gossamer.engines import Options
from gossamer.engines.simulate import Simulation
from gossamer.random import fold, key, uniform
from gossamer.report.curves import COLOURS
from gossamer.theory import CORRECTIONS, Mixture, WirelessSetting, gradient_bound, task_losses

SIZES = tuple(8 + 3 * u for u in range(12))
ENTRIES, RIDGE = 6, 0.05
OUTAGES = (0.0, 0.2, 0.5)
ROUNDS, SEEDS = 300, 5

Row = dict[str, Any]


class Linear(nn.Module):
    """One output, no bias, in double precision, from weights far from the optimum."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((ENTRIES,), -2.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w


def samples() -> tuple[Tensor, Tensor]:
    """Samples of length 1, labelled by a line of each device's own, with noise."""
    total, owners = sum(SIZES), torch.repeat_interleave(torch.arange(len(SIZES)), torch.tensor(SIZES))

    def centred(label: str, rows: int, columns: int) -> Tensor:
        return 2 * uniform(fold(key(0), label), rows * columns, dtype=torch.float64).view(rows, columns) - 1

    x = centred("x", total, ENTRIES)
    x = x / x.norm(dim=-1, keepdim=True)
    lines = (1 + 1.5 * centred("line", len(SIZES), ENTRIES))[owners]
    return x, ((x * lines).sum(-1, keepdim=True) + centred("noise", total, 1) > 0).long()[:, 0]


@dataclass(frozen=True)
class Course:
    """What a run went through: the squared gradient at the model that each round began with, and the longest model."""

    squares: list[float]
    longest: float


class Problem:
    """The task, and F: the mean loss over all samples."""

    @cached_property
    def task(self) -> Task:
        both, start = Samples(*samples()), np.concatenate([[0], np.cumsum(SIZES)])
        index = np.arange(sum(SIZES))
        data = Data("logistic", both, both, 2, "natural", "own")
        return Task(Linear, data, Split(index, start, index, start), loss, correct)

    @cached_property
    def objective(self) -> Mixture:
        weights = torch.tensor(SIZES, dtype=torch.float64) / sum(SIZES)
        return Mixture(task_losses(self.task, RIDGE)[0], weights)

    @cached_property
    def smoothness(self) -> float:
        """Of F: its samples have length 1, and the logistic loss bends by at most a quarter."""
        x = self.task.data.train.x
        return float(torch.linalg.eigvalsh(x.mT @ x / len(x) / 4).max()) + RIDGE

    @property
    def rate(self) -> float:
        """Half the largest step that the theorem allows for."""
        return 1 / (2 * self.smoothness)

    @cached_property
    def gap(self) -> float:
        """F at the start, above its least value."""
        start = Linear().w.detach()
        best = self.objective.optimum(torch.zeros(ENTRIES, dtype=torch.float64))
        return float(self.objective.value(start) - self.objective.value(best))

    def plain(self) -> Method:
        """A step on all of a device's samples, sent as it is."""
        return Method(Full(), SGD(self.rate, steps=1, batch=None, weight_decay=RIDGE), Dense(), Mean("samples"))

    def setting(self, outage: float, longest: float, **more: Any) -> WirelessSetting:
        """The theorem's constants where no model is longer than that; of gradients sent as they are, unless told."""
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


def course(method: Method, channel: Channel, rounds: int, seed: int) -> Course:
    """A run of any method on the problem."""
    options = Options(rounds=rounds, seed=seed, channel=channel, eval_every=rounds)
    simulation, squares, longest = Simulation(method, PROBLEM.task, options), [], 0.0
    for number in range(rounds):
        w = simulation.model()["w"]
        squares.append(PROBLEM.objective.gradient_norm(w) ** 2)
        longest = max(longest, float(w.norm()))
        simulation.round(number, None)
    return Course(squares, longest)


def measured(method: Method, outage: float, rounds: int, seeds: int) -> Row:
    """Mean over seeds of the mean over the rounds so far, with half of its interval, and the longest model."""
    runs = [course(method, Lossy(outage), rounds, seed) for seed in range(seeds)]
    means = torch.tensor([run.squares for run in runs]).cumsum(1) / torch.arange(1, rounds + 1)
    spread = means.std(0) if seeds > 1 else torch.zeros(rounds)
    return {
        "outage": outage,
        "seeds": seeds,
        "longest": max(run.longest for run in runs),
        "mean": means.mean(0).tolist(),
        "half": (1.96 * spread / math.sqrt(seeds)).tolist(),
    }


def bounds(row: Row, corrected: Sequence[str] = CORRECTIONS) -> list[float]:
    """The theorem after each number of rounds."""
    setting = PROBLEM.setting(row["outage"], row["longest"])
    return [
        sum(gradient_bound(setting, rounds, PROBLEM.rate, PROBLEM.gap, corrected).values())
        for rounds in range(1, len(row["mean"]) + 1)
    ]


def picture(rows: Sequence[Row]) -> str:
    """Measured means with their intervals, bounds dashed, and as printed dotted."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wireless-bound", "font.size": 9}):
        figure = Figure(figsize=(7.2, 4.2), layout="constrained")
        axes = figure.subplots()
        for row, colour in zip(rows, COLOURS, strict=False):
            rounds, mean, half = np.arange(1, len(row["mean"]) + 1), np.array(row["mean"]), np.array(row["half"])
            axes.plot(rounds, mean, color=colour, label=f"outage {row['outage']:g}")
            axes.fill_between(rounds, np.maximum(mean - half, mean / 10), mean + half, color=colour, alpha=0.2)
            axes.plot(rounds, bounds(row), "--", color=colour, linewidth=1, label="Theorem 1, corrected")
            axes.plot(rounds, bounds(row, ()), ":", color=colour, linewidth=1, label="as printed")
        axes.set(xscale="log", yscale="log", xlabel="rounds", ylabel="mean squared gradient so far")
        axes.grid(color="#e3e6ea", linewidth=0.8)
        axes.spines[["top", "right"]].set_visible(False)
        figure.legend(loc="outside right center", frameon=False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n"


def table(rows: Sequence[Row]) -> str:
    """The last round of each, in Markdown."""
    lines = ["| outage | measured | corrected | its terms | as printed |", "|---|---|---|---|---|"]
    for row in rows:
        setting = PROBLEM.setting(row["outage"], row["longest"])
        terms = gradient_bound(setting, len(row["mean"]), PROBLEM.rate, PROBLEM.gap, CORRECTIONS)
        told = ", ".join(f"{name} {term:.3g}" for name, term in terms.items() if term)
        found = f"{row['mean'][-1]:.3g} ± {row['half'][-1]:.1g}"
        lines.append(
            f"| {row['outage']:g} | {found} | {sum(terms.values()):.3g} | {told} | {bounds(row, ())[-1]:.3g} |"
        )
    return "\n".join(lines)


def main() -> None:
    torch.set_num_threads(1)
    path = cells.CELLS / "wireless-bound.json"
    if not path.exists():
        found = [measured(PROBLEM.plain(), outage, ROUNDS, SEEDS) for outage in OUTAGES]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[\n" + ",\n".join(json.dumps(row) for row in found) + "\n]\n")
    rows = json.loads(path.read_text())
    (cells.PAGES / "wireless-bound.svg").write_text(picture(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
