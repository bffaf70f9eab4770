"""FedMRN's masking error on real updates: q of Assumption 4, and the effect of progressive masking.

Clients with the settings of Table 1 are observed as they encode. Their update and its noise give q in closed form. The
same update is then masked as in each local step, with the codec's own straight-through surrogate. The mean error over
the steps compares with the factor of Proposition 1. Both are measured again for the update clipped to the range of its
noise: no mask can send the rest, and the noise of the theorems leaves no rest.

A few rounds on a CPU suffice. The result is stored and not measured again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gossamer import simulate
from gossamer.analysis.theory import masking_error, progressive_factor, progressive_factor_by_entry
from gossamer.core.codec import Coding
from gossamer.core.types import Payload
from gossamer.parts.codecs import MaskedNoise, OnWeights
from gossamer.parts.codecs.masked_noise import clipped
from reproduce.common import cells, store, tables
from reproduce.fedmrn.studies import fashion

NAME = "fedmrn-error"
ROUNDS, PER_ROUND, SPLIT = 3, 2, "labels-3"
METHODS = ("fedmrn", "fedmrns")
STEPS = 100
"""Local steps of a round: 10 epochs of 600 samples in batches of 64."""
HEADS = ("method", "round", "entries beyond the noise", "q", "progressive", "q, clipped update", "progressive, clipped")

Errors = dict[str, float]


@dataclass(frozen=True)
class Observed(MaskedNoise):
    """Masked noise that records its error.

    Args:
        steps: local steps of a round, for progressive masking
        found: errors of each encoded update
    """

    steps: int = 1
    found: list[Errors] = field(default_factory=list, compare=False, repr=False)

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Record the error of an update, and encode it."""
        self.found.append(errors(self, x, ctx, self.steps))
        return super().encode(x, ctx)


def errors(codec: MaskedNoise, x: Tensor, ctx: Coding, steps: int) -> Errors:
    """Return the share of entries beyond the noise, and the masking error: whole and clipped, final and progressive."""
    noise = codec.draw(ctx, x.device)
    ratio, found = x / noise, Errors()
    beyond = (ratio < (-1 if codec.signed else 0)) | (ratio > 1)
    for name, change in (("whole", x), ("clipped", clipped(x, noise, codec.signed))):
        found[name] = masking_error(change, noise, codec.signed)
        found[f"{name}, progressive"] = progressive(codec, change, ctx, steps)
    return {"beyond": float(beyond.double().mean()), **found}


def progressive(codec: MaskedNoise, x: Tensor, ctx: Coding, steps: int) -> float:
    """Return the root mean square over the local steps of the relative error of progressive masking."""
    context, change = codec.surrogate_context(ctx, steps, x.device), ctx.layout.unflatten(x)
    total = 0.0
    for step in range(steps):
        masked = ctx.layout.flatten(codec.surrogate(change, context, torch.tensor(step, device=x.device)))
        total += float((masked - x).double().square().sum()) / steps
    return math.sqrt(total / float(x.double().square().sum()))


def measured(method: str, data_dir: Path, rounds: int, per_round: int) -> list[Errors]:
    """Return the errors of all clients of a run, with their round."""
    cell = fashion(NAME, SPLIT, 0, method)
    made = cells.method(cell)
    assert isinstance(made.codec, OnWeights)
    assert isinstance(made.codec.codec, MaskedNoise)
    inner = made.codec.codec
    observed = Observed(inner.signed, inner.noise, inner.alpha, steps=STEPS)
    task = cells.task(cell, data_dir)
    options: dict[str, Any] = {"rounds": rounds, "per_round": per_round, "eval_every": rounds}
    with_errors = made.with_parts(codec=replace(made.codec, codec=observed))
    simulate(with_errors, task, seed=0, executor="one-by-one", **options)
    return [{"round": number // per_round + 1, **each} for number, each in enumerate(observed.found)]


def keep(data_dir: Path) -> None:
    """Measure and store the errors, unless they are stored."""
    if NAME not in store.read("fedmrn"):
        found = {method: measured(method, data_dir, ROUNDS, PER_ROUND) for method in METHODS}
        store.write("fedmrn", NAME, {"steps": STEPS, "found": found})
    print(f"{NAME}: stored")


def section() -> str:
    """Return the errors by round; an empty string if they were not measured."""
    facts = store.read("fedmrn").get(NAME)
    if facts is None:
        return ""
    steps = facts["steps"]
    title = f"The masking error of real updates, Fashion-MNIST, `labels:3`, {steps} local steps"
    whole, by_entry = progressive_factor(steps), progressive_factor_by_entry(steps)
    note = f"Proposition 1 has the factor {whole:.3f}; {by_entry:.3f} where entries are masked one by one."
    rows = [_row(method, number, rows) for method, rows in facts["found"].items() for number in _rounds(rows)]
    return tables.section(title, HEADS, rows, note)


def _rounds(rows: Sequence[Errors]) -> list[int]:
    return sorted({int(row["round"]) for row in rows})


def _row(method: str, number: int, rows: Sequence[Errors]) -> list[str]:
    mine = [row for row in rows if row["round"] == number]
    mean = {name: sum(row[name] for row in mine) / len(mine) for name in mine[0]}
    pairs = [
        (f"{mean[name]:.3f}", f"{mean[f'{name}, progressive'] / mean[name]:.3f} q") for name in ("whole", "clipped")
    ]
    return [f"`{method}`", f"{number}", f"{100 * mean['beyond']:.0f} %", *(value for pair in pairs for value in pair)]
