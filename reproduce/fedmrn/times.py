"""FedMRN's Figure 6: times of one client's round by method.

The client has the size of one in Table 1. Medians are stored with the name of the device, one entry per kind of device.
A GPU captures training, as in the other cells; a CPU trains on one thread.
"""

from pathlib import Path
from typing import Any

from gossamer import METHODS
from reproduce.common import tables, timing
from reproduce.common.store import Facts
from reproduce.common.timing import Times
from reproduce.fedmrn.studies import COMMON, SETTINGS

SAMPLES = {"cnn4": (600, (1, 28, 28)), "cnn8": (500, (3, 32, 32))}
"""Samples and their shape: a hundredth of Fashion-MNIST, and of CIFAR-10."""
PLANS: dict[str, dict[str, Any]] = {
    "cpu": {"executor": "one-by-one", "models": ("cnn4",), "repeats": 5},
    "cuda": {"executor": "captured", "models": ("cnn4", "cnn8"), "repeats": 10},
}
"""Measurements by kind of device. CNN8 takes a quarter of an hour on a CPU."""
WARM_UP = 2
"""Rounds that do not count: a GPU captures the last, smaller batch when it occurs for the second time."""
LONGER, SLOWER = "trains slightly longer", "encodes for up to a third of the training time"
MODELS, ROTATED = ("fedpm", "fedavg-pruned", "fedmrn", "fedmrns"), ("drive", "eden")
PAPER = dict.fromkeys(MODELS, LONGER) | dict.fromkeys(ROTATED, SLOWER)
"""The paper's statements about its figure, on an RTX 3090."""
HEADS = (
    "method",
    "training",
    "relative to FedAvg",
    "encoding",
    "share of training",
    "aggregation",
    "bytes",
    "paper",
)


def race(model: str, device: str, plan: Facts) -> dict[str, Times]:
    """Return the medians of every method."""
    task = timing.images(model, *SAMPLES[model])
    methods = {name: METHODS[name](**COMMON, **own) for name, own in SETTINGS.items()}
    found = timing.race(methods, task, device, plan["executor"], plan["repeats"], WARM_UP)
    return {
        name: {part: timing.median([turn[part] for turn in turns], 3) for part in turns[0]}
        for name, turns in found.items()
    }


def keep(data_dir: Path) -> None:
    """Measure on this machine's device, unless its times are stored."""
    timing.keep("fedmrn", PLANS, lambda device, plan: {model: race(model, device, plan) for model in plan["models"]})


def section() -> str:
    """Return a table per device and network."""
    return "\n".join(
        _table(facts, model, times)
        for facts in timing.stored("fedmrn")
        for model, times in facts["times"].items()
    )  # fmt: skip


def _table(facts: Facts, model: str, times: dict[str, Times]) -> str:
    samples, _ = SAMPLES[model]
    title = f"Figure 6: times of one client's round, {model.upper()}, {facts['device']}"
    measured = f"torch {facts['torch']}, medians of {facts['repeats']} rounds"
    note = f"{samples} samples, executor `{facts['executor']}`, {measured}."
    rows = [_row(name, mine, times["fedavg"]["train"]) for name, mine in times.items()]
    return tables.section(title, HEADS, rows, note)


def _row(name: str, mine: Times, base: float) -> list[str]:
    train, encode, folding = (mine[part] for part in ("train", "encode", "fold"))
    training = [f"{train:.1f} ms", f"{train / base:.2f}"]
    encoding = [f"{encode:.2f} ms", f"{100 * encode / train:.1f} %"]
    return [f"`{name}`", *training, *encoding, f"{folding:.2f} ms", f"{mine['bytes']:,.0f}", PAPER.get(name, "")]
