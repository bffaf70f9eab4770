"""Theorem 1 on training over links that lose messages, beside measured runs on a convex problem.

    make reproduce WHAT=wireless-bound

Logistic regression with a ridge over twelve devices of unequal sizes, one step on all samples a round, through a
channel that loses each message with the same chance. What the theorem bounds is measured: the mean over rounds of the
squared gradient of F, at the models that the rounds begin with. The constants are the problem's, with G and D from how
far the runs went. Twelve devices are the most that the theorem can be had for as it is printed.

Beside dense gradients there is the paper's own system: a third of the weights pruned, signs of measurements by one
Gaussian matrix, those that were lost sent again with the next. Then every term counts that the corrections leave. C and
delta are those of the matrix: C is how much least squares by it may multiply errors, delta how far it is from keeping
lengths.

Runs are kept in docs/reproduction/cells/wireless-bound.json and wireless-bound-one-bit.json and not done twice; the
picture goes to docs/reproduction/wireless-bound.svg. :func:`course` takes any method.
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

from gossamer import SGD, Dense, Full, MagnitudePruned, Mean, Method, OneBit, SumThenDecode, Task, compose
from gossamer.analysis.theory import CORRECTIONS, Mixture, WirelessSetting, gradient_bound, task_losses
from gossamer.core.random import fold, key, uniform
from gossamer.core.types import Layout
from gossamer.engines import Options
from gossamer.engines.simulate import Simulation
from gossamer.parts.channels import Channel, Lossy
from gossamer.runs.report.curves import COLOURS
from gossamer.tasks.data import Data, Samples, Split

SIZES = tuple(8 + 3 * u for u in range(12))
ENTRIES, RIDGE = 6, 0.05
OUTAGES = (0.0, 0.2, 0.5)
LENGTHS = {"dense": (300, 5), "signs": (100, 3)}
"""Rounds and seeds, by what is sent."""
PRUNED, SIGNS = 1 / 3, 64
"""Of the runs with signs: the share of weights that are left out, and how many signs are sent."""

Row = dict[str, Any]


class Linear(nn.Module):
    """One output, no bias, in double precision, from weights far from the optimum."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.full((1, ENTRIES), -2.0, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w[0]


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
        start = Linear().w.detach()[0]
        best = self.objective.optimum(torch.zeros(ENTRIES, dtype=torch.float64))
        return float(self.objective.value(start) - self.objective.value(best))

    def plain(self) -> Method:
        """A step on all of a device's samples, sent as it is."""
        return compose(Full(), self.solver, Dense(), Mean("samples"))

    def signs(self) -> Method:
        """The step of a pruned model as signs; what is lost goes with the next."""
        return compose(MagnitudePruned((PRUNED,)), self.solver, self.codec, SumThenDecode("samples"))

    @property
    def solver(self) -> SGD:
        """One step on all samples."""
        return SGD(self.rate, steps=1, batch=None, weight_decay=RIDGE)

    @property
    def codec(self) -> OneBit:
        """One matrix for all rounds, as lost signs need it."""
        return OneBit(rows=SIGNS, matrix="gaussian", fresh=False, retain="signs")

    def sensed(self) -> dict[str, Any]:
        """What the theorem has to know of pruning, measuring and retaining."""
        units = torch.eye(round((1 - PRUNED) * ENTRIES), dtype=torch.float64)
        matrix = self.codec.phi(Layout.of({"w": units[0]}), key(0), units.device)
        lengths = torch.linalg.svdvals(torch.stack([matrix.measure(unit) for unit in units]))
        return {
            "ratios": (PRUNED,) * len(SIZES),
            "measurements": SIGNS,
            "reconstruction": 1 / float(lengths.min()),
            "isometry": float((lengths**2 - 1).abs().max()),
            "coefficient": self.codec.coefficient,
        }

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
METHODS = {"dense": PROBLEM.plain, "signs": PROBLEM.signs}
KEPT = {"dense": "wireless-bound.json", "signs": "wireless-bound-one-bit.json"}
"""What is sent: the method, and where its runs are kept."""
TITLES = {"dense": "dense gradients", "signs": "pruned, one-bit CS, lost signs sent again"}


def course(method: Method, channel: Channel, rounds: int, seed: int) -> Course:
    """A run of any method on the problem."""
    options = Options(rounds=rounds, seed=seed, channel=channel, eval_every=rounds)
    simulation, squares, longest = Simulation(method, PROBLEM.task, options), [], 0.0
    for number in range(rounds):
        w = simulation.model()["w"][0]
        squares.append(PROBLEM.objective.gradient_norm(w) ** 2)
        longest = max(longest, float(w.norm()))
        simulation.round(number, None)
    return Course(squares, longest)


def measured(sent: str, outage: float, rounds: int, seeds: int) -> Row:
    """Mean over seeds of the mean over the rounds so far, with half of its interval, and the longest model."""
    method = METHODS[sent]()
    runs = [course(method, Lossy(outage), rounds, seed) for seed in range(seeds)]
    means = torch.tensor([run.squares for run in runs]).cumsum(1) / torch.arange(1, rounds + 1)
    spread = means.std(0) if seeds > 1 else torch.zeros(rounds)
    return {
        "sent": sent,
        "outage": outage,
        "seeds": seeds,
        "longest": max(run.longest for run in runs),
        "mean": means.mean(0).tolist(),
        "half": (1.96 * spread / math.sqrt(seeds)).tolist(),
    }


def setting(row: Row) -> WirelessSetting:
    """The theorem's constants for a row."""
    more = PROBLEM.sensed() if row["sent"] == "signs" else {}
    return PROBLEM.setting(row["outage"], row["longest"], **more)


def bounds(row: Row, corrected: Sequence[str] = CORRECTIONS) -> list[float]:
    """The theorem after each number of rounds."""
    constants = setting(row)
    return [
        sum(gradient_bound(constants, rounds, PROBLEM.rate, PROBLEM.gap, corrected).values())
        for rounds in range(1, len(row["mean"]) + 1)
    ]


def picture(rows: Sequence[Row]) -> str:
    """Measured means with their intervals, bounds dashed, and as printed dotted."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "wireless-bound", "font.size": 9}):
        figure = Figure(figsize=(9.6, 4.2), layout="constrained")
        panels = dict(zip(METHODS, figure.subplots(1, len(METHODS), sharey=True), strict=True))
        for sent, axes in panels.items():
            _panel(axes, [row for row in rows if row["sent"] == sent])
            axes.set(xscale="log", yscale="log", xlabel="rounds", title=TITLES[sent])
            axes.grid(color="#e3e6ea", linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)
        panels["dense"].set_ylabel("mean squared gradient so far")
        figure.legend(*panels["dense"].get_legend_handles_labels(), loc="outside right center", frameon=False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n"


def _panel(axes: Any, rows: Sequence[Row]) -> None:
    for row, colour in zip(rows, COLOURS, strict=False):
        rounds, mean, half = np.arange(1, len(row["mean"]) + 1), np.array(row["mean"]), np.array(row["half"])
        axes.plot(rounds, mean, color=colour, label=f"outage {row['outage']:g}")
        axes.fill_between(rounds, np.maximum(mean - half, mean / 10), mean + half, color=colour, alpha=0.2)
        axes.plot(rounds, bounds(row), "--", color=colour, linewidth=1, label="Theorem 1, corrected")
        axes.plot(rounds, bounds(row, ()), ":", color=colour, linewidth=1, label="as printed")


def table(rows: Sequence[Row]) -> str:
    """The last round of each, in Markdown."""
    lines = ["| sent | outage | measured | corrected | its terms | as printed |", "|---|---|---|---|---|---|"]
    for row in rows:
        terms = gradient_bound(setting(row), len(row["mean"]), PROBLEM.rate, PROBLEM.gap, CORRECTIONS)
        told = ", ".join(f"{name} {term:.3g}" for name, term in terms.items() if term)
        found = f"{row['mean'][-1]:.3g} ± {row['half'][-1]:.1g}"
        figures = f"{found} | {sum(terms.values()):.3g} | {told} | {bounds(row, ())[-1]:.3g}"
        lines.append(f"| {row['sent']} | {row['outage']:g} | {figures} |")
    return "\n".join(lines)


def kept(sent: str) -> list[Row]:
    """The runs of a method, which are done where they are not there yet."""
    path = cells.CELLS / KEPT[sent]
    if not path.exists():
        found = [measured(sent, outage, *LENGTHS[sent]) for outage in OUTAGES]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("[\n" + ",\n".join(json.dumps(row) for row in found) + "\n]\n")
    rows: list[Row] = json.loads(path.read_text())
    return [{"sent": sent, **row} for row in rows]


def main() -> None:
    torch.set_num_threads(1)
    rows = [row for sent in METHODS for row in kept(sent)]
    (cells.PAGES / "wireless-bound.svg").write_text(picture(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
