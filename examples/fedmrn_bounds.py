"""A strongly convex problem solved with masked noise, beside what is proved about it (FedMRN, Theorems 1 and 2).

    python examples/fedmrn_bounds.py [--rounds 400] [--runs 5] [--svg FILE]

Logistic regression with a ridge over 20 clients, 5 of them a round, 3 steps each on single samples. All clients train
in every round, as in the proofs, which follow the mean of all of them from step to step; the server gets 5. Measured is

    Theorem 1    F(w) - F* after each round, at the learning rates 2 / (mu (gamma + t))
    Theorem 2    the mean of |grad F|^2 over all steps, at the rate 1 / (L sqrt(T)), a run for each number of rounds

The constants are the problem's: L and mu from the largest Hessian and the ridge, Gamma from the clients' minima, sigma
from the longest sample, G from that and from how far the runs go, and q is the error of masking the changes of a round
as it was found, the largest of any round until then. Bounds that use only the largest of everything have much to spare.

The noise is eta S G with the learning rate eta at which a round begins: just as much as its S steps can move an entry.
The theorems have twice that, and Theorem 1 the first round's for ever. But then changes that get smaller drown in it,
and no q holds for all of them: see gossamer.analysis.theory. Masks are applied at every step, as in the proofs.
"""

import argparse
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from torch import Tensor

from gossamer.analysis.theory import (
    BoundSetting,
    masking_error,
    noise_magnitude,
    nonconvex_bound,
    nonconvex_rate,
    strongly_convex_bound,
    strongly_convex_rate,
)
from gossamer.core.codec import Coding
from gossamer.core.random import Key, choice, fold, key, uniform
from gossamer.core.types import Layout
from gossamer.parts.codecs.masked_noise import MaskedNoise
from gossamer.runs.report.plots import COLOURS

CLIENTS, COHORT, STEPS, SAMPLES, ENTRIES = 20, 5, 3, 40, 4
RIDGE = 0.05
LAYOUT = Layout((("w", torch.Size([CLIENTS, ENTRIES])),), torch.float64)
"""Of the changes of all clients, a row each."""
HORIZONS = (10, 20, 50, 100, 200, 400)
"""Rounds of the runs for Theorem 2: each has a learning rate of its own."""
COLUMNS = ("rounds", "fedavg", "its bound", "fedmrn", "its bound", "q")

Row = tuple[float, ...]


@dataclass(frozen=True, eq=False)
class Problem:
    """Every client's samples, turned so that all labels are 1: F_k(w) = mean log(1 + exp(-x w)) + RIDGE |w|^2 / 2."""

    x: Tensor

    @classmethod
    def drawn(cls, at: Key) -> "Problem":
        """Samples of length 1, labelled by a line that differs a little from client to client, with noise."""

        def centred(label: str, *shape: int) -> Tensor:
            return 2 * uniform(fold(at, label), math.prod(shape), dtype=torch.float64).view(shape) - 1

        x = centred("x", CLIENTS, SAMPLES, ENTRIES)
        x = x / x.norm(dim=-1, keepdim=True)
        line = 1 + 0.5 * centred("line", CLIENTS, ENTRIES, 1)
        return cls(x * torch.sign(x @ line + centred("noise", CLIENTS, SAMPLES, 1)))

    def losses(self, w: Tensor) -> Tensor:
        """Every client's loss at w, or at its own row of w."""
        w = w.expand(CLIENTS, ENTRIES)
        margins = torch.einsum("csd,cd->cs", self.x, w)
        return torch.nn.functional.softplus(-margins).mean(1) + RIDGE * w.square().sum(1) / 2

    def slope(self, w: Tensor) -> Tensor:
        """The gradient of F, the mean of all losses."""
        return RIDGE * w - (torch.sigmoid(-self.x @ w)[..., None] * self.x).mean((0, 1))

    def slopes(self, w: Tensor, picked: Tensor) -> Tensor:
        """Every client's gradient at its own row of w, on one sample each."""
        x = self.x[torch.arange(CLIENTS), picked]
        return RIDGE * w - torch.sigmoid(-(x * w).sum(-1, keepdim=True)) * x

    def least(self, together: bool) -> Tensor:
        """Where the mean of all losses is least, or each client's own, by Newton's method."""
        x = self.x.reshape(1, -1, ENTRIES) if together else self.x
        w = torch.zeros(len(x), ENTRIES, dtype=torch.float64)
        for _ in range(30):
            p = torch.sigmoid(-torch.einsum("csd,cd->cs", x, w))
            slope = RIDGE * w - (p[..., None] * x).mean(1)
            hessian = x.mT @ ((p * (1 - p))[..., None] * x) / x.shape[1] + RIDGE * torch.eye(ENTRIES).double()
            w = w - torch.linalg.solve(hessian, slope)
        return w

    @cached_property
    def best(self) -> Tensor:
        """Where F is least."""
        return self.least(together=True)[0]

    def gap(self, w: Tensor) -> float:
        """F(w) - F*."""
        return float((self.losses(w) - self.losses(self.best)).mean())

    def setting(self, radius: float) -> BoundSetting:
        """The theorems' constants where no weights are longer than ``radius``."""
        longest = float(self.x.norm(dim=-1).max())
        curvature = torch.linalg.eigvalsh(self.x.mT @ self.x / SAMPLES / 4).max()
        gamma = (self.losses(self.best) - self.losses(self.least(together=False))).mean()
        return BoundSetting(
            smoothness=float(curvature) + RIDGE,
            gradient=longest + RIDGE * radius,
            deviation=longest,
            clients=CLIENTS,
            cohort=COHORT,
            steps=STEPS,
            convexity=RIDGE,
            heterogeneity=float(gamma),
        )


class Outside(Exception):  # noqa: N818 - nothing went wrong
    """A run came farther than the constants hold for."""


@dataclass
class Course:
    """What a run went through.

    weights: after each round
    squares: |grad F|^2 at the mean of all clients, before each step
    errors: of masking the changes of a round, in parts of them
    """

    weights: list[Tensor]
    squares: list[float]
    errors: list[float]


@dataclass(frozen=True, eq=False)
class Runs:
    """Runs with and without masks, within the radius that the constants hold for."""

    problem: Problem
    radius: float
    count: int

    @cached_property
    def setting(self) -> BoundSetting:
        return self.problem.setting(self.radius)

    def courses(self, rates: Sequence[float], masked: bool) -> list[Course]:
        return [self.run(rates, fold(key(1), number), masked) for number in range(self.count)]

    def run(self, rates: Sequence[float], at: Key, masked: bool) -> Course:
        """Steps at these rates, and the mean of what a cohort sends whenever a round is over."""
        w, course = torch.zeros(ENTRIES, dtype=torch.float64), Course([], [], [])
        for number in range(len(rates) // STEPS):
            mine = rates[number * STEPS :][:STEPS]
            sent = self._round(w, mine, fold(at, number), masked, course)
            w = w + sent[choice(fold(at, "cohort", number), CLIENTS, COHORT)].mean(0)
            course.weights.append(w)
        return course

    def _round(self, w: Tensor, rates: Sequence[float], at: Key, masked: bool, course: Course) -> Tensor:
        """What all clients would send."""
        alpha = noise_magnitude(self.setting, rates[0] / 2)
        codec = MaskedNoise(signed=True, noise="bernoulli", alpha=alpha, progressive=False)
        change, ctx = torch.zeros(CLIENTS, ENTRIES, dtype=torch.float64), Coding(LAYOUT, at)
        context = codec.surrogate_context(ctx, STEPS, w.device)
        picked = (uniform(fold(at, "samples"), STEPS * CLIENTS) * SAMPLES).long().view(STEPS, CLIENTS)
        for step, rate in enumerate(rates):
            course.squares.append(float(self.problem.slope(w + change.mean(0)).square().sum()))
            here = w + (codec.surrogate({"w": change}, context, torch.tensor(step))["w"] if masked else change)
            if float(here.norm(dim=-1).max()) > self.radius:
                raise Outside
            change = change - rate * self.problem.slopes(here, picked[step])
        if not masked:
            course.errors.append(0.0)
            return change
        course.errors.append(masking_error(change, codec.draw(ctx).view_as(change)))
        return codec.decode(codec.encode(change.view(-1), ctx), ctx).view_as(change)


def within(problem: Problem, count: int, work: Callable[[Runs], list[Row]]) -> tuple[BoundSetting, list[Row]]:
    """What comes of the work where no run leaves its radius: it is widened until none does."""
    radius = 2 * float(problem.best.norm())
    while True:
        try:
            runs = Runs(problem, radius, count)
            return runs.setting, work(runs)
        except Outside:
            radius *= 1.5


def convex(runs: Runs, rounds: int) -> list[Row]:
    """Theorem 1: for each round the mean of F - F* and its bound, without and with masks, and q until then."""
    setting, distance = runs.setting, float(runs.problem.best.square().sum())
    rates = [strongly_convex_rate(setting, 1 + step) for step in range(rounds * STEPS)]
    done = [runs.courses(rates, masked) for masked in (False, True)]
    rows: list[Row] = []
    for number in range(rounds):
        q = max(error for course in done[1] for error in course.errors[: number + 1])
        gaps = [sum(runs.problem.gap(course.weights[number]) for course in each) / runs.count for each in done]
        step = (number + 1) * STEPS
        bounds = [strongly_convex_bound(replace(setting, error=error), step, distance) for error in (0.0, q)]
        rows.append((number + 1, gaps[0], bounds[0], gaps[1], bounds[1], q))
    return rows


def nonconvex(runs: Runs, horizons: Sequence[int]) -> list[Row]:
    """Theorem 2: for each number of rounds the mean of |grad F|^2 over its steps and its bound, likewise."""
    setting, gap = runs.setting, runs.problem.gap(torch.zeros(ENTRIES).double())
    rows: list[Row] = []
    for rounds in horizons:
        horizon = rounds * STEPS
        done = [runs.courses([nonconvex_rate(setting, horizon)] * horizon, masked) for masked in (False, True)]
        means = [sum(sum(course.squares) for course in each) / horizon / runs.count for each in done]
        errors = [max(max(course.errors) for course in each) for each in done]
        bounds = [nonconvex_bound(replace(setting, error=error), horizon, gap) for error in errors]
        rows.append((rounds, means[0], bounds[0], means[1], bounds[1], errors[1]))
    return rows


def picture(tables: Sequence[Sequence[Row]]) -> str:
    """A panel a theorem: measured means, and bounds dashed, both axes logarithmic."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    named = (("Theorem 1", "F - F* after each round"), ("Theorem 2", "mean |grad F|² of a run"))
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "fedmrn-bounds", "font.size": 9}):
        figure = Figure(figsize=(7.2, 3.6), layout="constrained")
        for axes, rows, (title, label) in zip(figure.subplots(1, 2), tables, named, strict=True):
            rounds, *curves = zip(*rows, strict=True)
            for name, at, colour in (("FedAvg", 0, COLOURS[0]), ("FedMRNS", 2, COLOURS[1])):
                axes.plot(rounds, curves[at], color=colour, label=name)
                axes.plot(rounds, curves[at + 1], "--", color=colour, linewidth=1, label=f"{name}, bound")
            axes.set(xscale="log", yscale="log", xlabel="rounds", ylabel=label, title=title)
            axes.grid(color="#e3e6ea", linewidth=0.8)
            axes.spines[["top", "right"]].set_visible(False)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in drawn.getvalue().splitlines()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measured runs beside the bounds of FedMRN's theorems.")
    parser.add_argument("--rounds", type=int, default=max(HORIZONS))
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--svg", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    problem, shown = Problem.drawn(key(0)), [rounds for rounds in HORIZONS if rounds <= given.rounds]
    works = (lambda runs: convex(runs, given.rounds)), (lambda runs: nonconvex(runs, shown))
    tables = []
    for number, work in enumerate(works, 1):
        setting, rows = within(problem, given.runs, work)
        print(f"Theorem {number}: {setting}", "".join(f"{name:>14}" for name in COLUMNS), sep="\n")
        for row in rows:
            if row[0] in (1, *shown):
                print(f"{row[0]:>14}" + "".join(f"{value:>14.4g}" for value in row[1:]))
        tables.append(rows)
    if given.svg:
        given.svg.write_text(picture(tables))


if __name__ == "__main__":
    main()
