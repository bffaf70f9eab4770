"""A strongly convex problem solved with masked noise, beside what is proved about it (FedMRN, Theorem 1).

    python examples/fedmrn_bounds.py [--rounds 200] [--runs 3] [--csv FILE] [--svg FILE]

Logistic regression with a ridge over 20 clients, 5 of them a round, 3 steps each, at the theorem's learning rates.
Clients rehearse the masks at every step, as in the proof. The constants are the problem's: L and mu from the largest
Hessian and the ridge, Gamma from the clients' minima, sigma from the longest sample, G from that and from how far the
runs go, and q is the error of masking as it was found, the largest of any round until then. Bounds that use only the
largest of everything hold with much to spare.

The noise is eta S G with the learning rate eta at which a round begins: just as much as its S steps can move an entry.
The theorem has twice that, and the first round's for ever. But then changes that get smaller drown in it, and no q
holds for all of them: see gossamer.theory.
"""

import argparse
import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from gossamer.codecs.masked_noise import MaskedNoise, probability
from gossamer.random import Key, choice, fold, key, uniform
from gossamer.theory import Setting, masking_error, noise_magnitude, strongly_convex_bound, strongly_convex_rate
from gossamer.types import Layout

CLIENTS, COHORT, STEPS, SAMPLES, ENTRIES = 20, 5, 3, 40, 4
RIDGE = 0.02
LAYOUT = Layout((("w", torch.Size([ENTRIES])),), torch.float64)
COLUMNS = ("round", "fedavg", "fedavg bound", "fedmrn", "fedmrn bound", "q")


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

    def setting(self, radius: float) -> Setting:
        """The theorem's constants where no weights are longer than ``radius``."""
        longest = float(self.x.norm(dim=-1).max())
        curvature = torch.linalg.eigvalsh(self.x.mT @ self.x / SAMPLES / 4).max()
        gamma = self.losses(self.least(together=True)).mean() - self.losses(self.least(together=False)).mean()
        return Setting(
            smoothness=float(curvature) + RIDGE,
            gradient=longest + RIDGE * radius,
            deviation=longest,
            clients=CLIENTS,
            cohort=COHORT,
            steps=STEPS,
            convexity=RIDGE,
            heterogeneity=float(gamma),
        )


@dataclass
class Course:
    """What a run went through: the weights after each round, each round's masking error, the longest weights seen."""

    weights: list[Tensor]
    errors: list[float]
    farthest: float = 0.0


def run(problem: Problem, setting: Setting, rounds: int, at: Key, masked: bool) -> Course:
    """Local steps on K clients a round, and the mean of what they send."""
    w, course = torch.zeros(ENTRIES, dtype=torch.float64), Course([], [])
    for number in range(rounds):
        rate = strongly_convex_rate(setting, 1 + number * STEPS)
        codec = (
            MaskedNoise(signed=True, noise="bernoulli", alpha=noise_magnitude(setting, rate / 2)) if masked else None
        )
        total, changes, noises = torch.zeros_like(w), [], []
        for client in choice(fold(at, "cohort", number), CLIENTS, COHORT).tolist():
            mine = fold(at, "client", number, client)
            noise = codec.draw(LAYOUT, mine) if codec else torch.zeros_like(w)
            rates = [strongly_convex_rate(setting, 1 + number * STEPS + step) for step in range(STEPS)]
            change = local(problem.x[client], w, rates, noise, mine, course)
            changes.append(change)
            noises.append(noise)
            if codec:
                codec.fold(total, codec.encode(change, LAYOUT, mine), LAYOUT, mine, 1 / COHORT)
            else:
                total += change / COHORT
        w = w + total
        course.weights.append(w)
        course.errors.append(masking_error(torch.cat(changes), torch.cat(noises)) if masked else 0.0)
    return course


def local(x: Tensor, w: Tensor, rates: Sequence[float], noise: Tensor, at: Key, course: Course) -> Tensor:
    """One client's change: a step on one sample at each rate, seen through a mask where there is noise."""
    change, masked = torch.zeros_like(w), bool(noise.any())
    picked = (uniform(fold(at, "sample"), len(rates)) * len(x)).long()
    draws = uniform(fold(at, "rehearsal"), noise.numel() * len(rates), dtype=torch.float64).view(len(rates), -1)
    for rate, sample, draw in zip(rates, x[picked], draws, strict=True):
        seen = torch.where(draw < probability(change, noise, signed=True), noise, -noise) if masked else change
        here = w + seen
        change = change - rate * (RIDGE * here - torch.sigmoid(-sample @ here) * sample)
        course.farthest = max(course.farthest, float(here.norm()))
    return change


def courses(problem: Problem, rounds: int, runs: int) -> tuple[Setting, dict[bool, list[Course]]]:
    """Runs without and with masks, and a setting that holds wherever they went: widened until they stay within it."""
    radius, tried = 2 * float(problem.least(together=True).norm()), (min(rounds, 20), 1)
    while True:
        setting = problem.setting(radius)
        done = {
            masked: [run(problem, setting, tried[0], fold(key(1), i), masked) for i in range(tried[1])]
            for masked in (False, True)
        }
        farthest = max(course.farthest for each in done.values() for course in each)
        if farthest > radius:
            radius = 1.5 * farthest
        elif tried == (rounds, runs):
            return setting, done
        else:
            tried = (rounds, runs)


def table(problem: Problem, setting: Setting, done: dict[bool, list[Course]]) -> list[tuple[float, ...]]:
    """For each round the measured mean of F - F* and its bound, without and with masks, and q until then."""
    best = problem.least(together=True)[0]
    least, distance = problem.losses(best).mean(), float(best.square().sum())

    def gap(masked: bool, number: int) -> float:
        return sum(float(problem.losses(c.weights[number]).mean() - least) for c in done[masked]) / len(done[masked])

    rows: list[tuple[float, ...]] = []
    q = 0.0
    for number in range(len(done[False][0].weights)):
        step = (number + 1) * STEPS
        q = max([q, *(course.errors[number] for course in done[True])])
        bounds = [strongly_convex_bound(replace(setting, error=error), step, distance) for error in (0.0, q)]
        rows.append((number + 1, gap(False, number), bounds[0], gap(True, number), bounds[1], q))
    return rows


def picture(rows: list[tuple[float, ...]], width: int = 640, height: int = 400) -> str:
    """The four curves over rounds, both axes logarithmic."""
    colours = ("#1f77b4", "#9ecae1", "#d62728", "#f5a3a3")
    values = [math.log(row[column]) for row in rows for column in range(1, 5)]
    low, high, wide = min(values), max(values), math.log(len(rows)) or 1.0

    def points(column: int) -> str:
        across = (60 + (width - 80) * math.log(row[0]) / wide for row in rows)
        down = (20 + (height - 60) * (high - math.log(row[column])) / (high - low) for row in rows)
        return " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(across, down, strict=True))

    curves = [
        f'<polyline fill="none" stroke="{c}" stroke-width="2" points="{points(i)}"/>' for i, c in enumerate(colours, 1)
    ]
    names = [
        f'<text x="{70 + 140 * i}" y="{height - 10}" fill="{c}">{COLUMNS[i + 1]}</text>' for i, c in enumerate(colours)
    ]
    size = f'width="{width}" height="{height}" font-family="sans-serif" font-size="13"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size}>'
    return "\n".join([head, *curves, *names, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(description="A measured run beside the bound of FedMRN's Theorem 1.")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--csv", type=Path)
    parser.add_argument("--svg", type=Path)
    given = parser.parse_args()
    torch.set_num_threads(1)
    problem = Problem.drawn(key(0))
    setting, done = courses(problem, given.rounds, given.runs)
    rows = table(problem, setting, done)
    print(setting)
    print("".join(f"{name:>14}" for name in COLUMNS))
    for row in rows:
        if row[0] in (1, 2, 5, 10, 20, 50, 100, 200, 500, given.rounds):
            print(f"{row[0]:>14}" + "".join(f"{value:>14.4g}" for value in row[1:]))
    if given.csv:
        with given.csv.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
    if given.svg:
        given.svg.write_text(picture(rows))


if __name__ == "__main__":
    main()
