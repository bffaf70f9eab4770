"""FedMRN's masking error, the q of Assumption 4, on real updates, and what progressive masking makes of it.

Clients of Table 1's setting are watched as they encode: the change that training arrived at and the noise it is masked
with give q in closed form. Then the same change is masked as in each of the round's steps, with the codec's own
rehearsal, and the mean error over the steps stands beside the factor of Proposition 1. Both are measured again for the
change clipped to what its noise spans: the rest of it no mask can send, and the theorems' noise leaves no such rest.

A few rounds are enough, on a CPU; what is found is kept in one file and not done again.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import cells
import torch
from fedmrn_studies import fashion
from torch import Tensor

from gossamer import simulate
from gossamer.analysis.theory import masking_error, progressive_factor, progressive_factor_by_entry
from gossamer.core.random import Key
from gossamer.core.types import Layout, Payload
from gossamer.parts.codecs import MaskedNoise, OnWeights
from gossamer.parts.codecs.masked_noise import clipped

ROUNDS, FEW, SPLIT = 3, 2, "labels-3"
METHODS = ("fedmrn", "fedmrns")
STEPS = 100
"""Of a client's round: 10 epochs of 600 samples in batches of 64."""
HEADS = ("method", "round", "entries beyond the noise", "q", "progressive", "q, clipped change", "progressive")

Facts = dict[str, float]


@dataclass(frozen=True)
class Watched(MaskedNoise):
    """Masked noise that keeps account of its error.

    steps: of a round, for which progressive masking is tried out
    found: what was found of each change that was encoded
    """

    steps: int = 1
    found: list[Facts] = field(default_factory=list, compare=False, repr=False)

    def encode(self, x: Tensor, layout: Layout, key: Key) -> Payload:
        """As ever, and what is lost."""
        self.found.append(facts(self, x, layout, key, self.steps))
        return super().encode(x, layout, key)


def facts(codec: MaskedNoise, x: Tensor, layout: Layout, key: Key, steps: int) -> Facts:
    """The share of a change beyond its noise, and the error of masking it, whole and clipped, at once and by steps."""
    noise = codec.draw(layout, key, x.device)
    ratio, found = x / noise, Facts()
    beyond = (ratio < (-1 if codec.signed else 0)) | (ratio > 1)
    for name, change in (("whole", x), ("clipped", clipped(x, noise, codec.signed))):
        found[name] = masking_error(change, noise, codec.signed)
        found[f"{name}, progressive"] = progressive(codec, change, layout, key, steps)
    return {"beyond": float(beyond.double().mean()), **found}


def progressive(codec: MaskedNoise, x: Tensor, layout: Layout, key: Key, steps: int) -> float:
    """The error of a change as the steps of a round would see it, root mean square over the steps, in parts of it."""
    context, change = codec.surrogate_context(layout, steps, key, x.device), layout.unflatten(x)
    total = 0.0
    for taken in range(steps):
        felt = layout.flatten(codec.surrogate(change, context, torch.tensor(taken, device=x.device)))
        total += float((felt - x).double().square().sum()) / steps
    return math.sqrt(total / float(x.double().square().sum()))


def measured(method: str, data_dir: Path, rounds: int, few: int) -> list[Facts]:
    """What all clients of a run had, with their round."""
    cell = fashion("fedmrn-error", SPLIT, 0, method)
    made = cells.method(cell)
    assert isinstance(made.codec, OnWeights)
    assert isinstance(made.codec.codec, MaskedNoise)
    inner = made.codec.codec
    watched = Watched(inner.signed, inner.noise, inner.alpha, steps=STEPS)
    task = cells.task(cell, data_dir)
    told: dict[str, Any] = {"rounds": rounds, "per_round": few, "eval_every": rounds, "executor": "one-by-one"}
    simulate(made.with_parts(codec=replace(made.codec, codec=watched)), task, seed=0, **told)
    return [{"round": number // few + 1, **each} for number, each in enumerate(watched.found)]


def path() -> Path:
    """Where it is kept."""
    return cells.CELLS / "fedmrn-error.json"


def keep(data_dir: Path) -> None:
    """Measure, unless that is there already."""
    if not path().exists():
        path().parent.mkdir(parents=True, exist_ok=True)
        found = {method: measured(method, data_dir, ROUNDS, FEW) for method in METHODS}
        path().write_text(json.dumps({"steps": STEPS, "found": found}) + "\n")
    print(f"{path().stem}: kept")


def table() -> str:
    """The errors by round, or nothing where they were not measured."""
    if not path().exists():
        return ""
    kept = json.loads(path().read_text())
    steps = kept["steps"]
    two = (
        f"{progressive_factor(steps):.3f}; {progressive_factor_by_entry(steps):.3f} where entries are masked one by one"
    )
    title = f"\n### The masking error of real updates, Fashion-MNIST, `labels:3`, {steps} steps a round\n"
    told = f"Proposition 1 has the factor {two}.\n"
    lines = [_row(method, number, rows) for method, rows in kept["found"].items() for number in _rounds(rows)]
    return "\n".join([title, told, f"| {' | '.join(HEADS)} |", "| --- " * len(HEADS) + "|", *lines])


def _rounds(rows: Sequence[Facts]) -> list[int]:
    return sorted({int(row["round"]) for row in rows})


def _row(method: str, number: int, rows: Sequence[Facts]) -> str:
    mine = [row for row in rows if row["round"] == number]
    mean = {name: sum(row[name] for row in mine) / len(mine) for name in mine[0]}
    pairs = [f"{mean[name]:.3f} | {mean[f'{name}, progressive'] / mean[name]:.3f} q" for name in ("whole", "clipped")]
    return f"| `{method}` | {number} | {100 * mean['beyond']:.0f} % | {' | '.join(pairs)} |"
