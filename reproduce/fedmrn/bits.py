"""Bits per weight of a run's uploads, and the share of clipped entries: stored with each cell."""

from gossamer import Task
from gossamer.engines.run import Result
from gossamer.parts.codecs import OnWeights
from reproduce.common import cells
from reproduce.common.cells import Cell
from reproduce.common.store import Facts

MASK = ("codec.mask", "codec.quotients", "codec.remainders", "codec.scales")
"""Arrays of masked noise."""


def measured(cell: Cell, task: Task, result: Result) -> Facts:
    """Return bits per parameter of all uploads, bits per masked weight, and the mean share of clipped entries."""
    kinds = [record["bytes_up"] for record in result.metrics]
    uploads = sum(record["exchanges"][-1]["sent"] for record in result.metrics)
    shares = [record["figures"]["clipped"] for record in result.metrics if "clipped" in record.get("figures", {})]
    parameters, masked = sizes(cell, task)
    mask = sum(size for kind in kinds for name, size in kind.items() if name in MASK) if shares else 0
    every = sum(sum(kind.values()) for kind in kinds)
    return {
        "bits_per_parameter": round(8 * every / uploads / parameters, 4),
        **({"mask_bits": round(8 * mask / uploads / masked, 4)} if mask else {}),
        **({"clipped": round(sum(shares) / len(shares), 4)} if shares else {}),
    }


def sizes(cell: Cell, task: Task) -> tuple[int, int]:
    """Return the numbers of parameters, and of those that the codec compresses."""
    codec, parameters = cells.method(cell).codec, dict(task.model().named_parameters())
    counts = {name: tensor.numel() for name, tensor in parameters.items()}
    chosen = [name for name in counts if isinstance(codec, OnWeights) and codec.chosen(name, parameters[name].dim())]
    return sum(counts.values()), sum(counts[name] for name in chosen)
