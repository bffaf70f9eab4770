"""Bits per weight of a run's uploads, and the share of clipped entries: stored with each cell."""

from gossamer import Task
from gossamer.engines.run import Result
from gossamer.parts.codecs import OnWeights
from reproduce.common import cells
from reproduce.common.cells import Cell
from reproduce.common.store import Facts

MASK = ("codec.mask", "codec.quotients", "codec.remainders", "codec.scales")


def measured(cell: Cell, task: Task, result: Result) -> Facts:
    """Return bits per parameter of all uploads, bits per masked weight, and the mean share of clipped entries."""
    parameters = {name: tensor for name, tensor in task.model().named_parameters()}
    codec, uploads = cells.method(cell).codec, sum(record["exchanges"][-1]["sent"] for record in result.metrics)
    chosen = isinstance(codec, OnWeights)
    masked = sum(t.numel() for name, t in parameters.items() if chosen and codec.chosen(name, t.dim()))  # type: ignore[union-attr]
    kinds = [record["bytes_up"] for record in result.metrics]
    mask = sum(size for kind in kinds for name, size in kind.items() if name in MASK)
    every = sum(sum(kind.values()) for kind in kinds)
    shares = [record["figures"]["clipped"] for record in result.metrics if "clipped" in record.get("figures", {})]
    return {
        "bits_per_parameter": round(8 * every / uploads / sum(t.numel() for t in parameters.values()), 4),
        **({"mask_bits": round(8 * mask / uploads / masked, 4)} if mask else {}),
        **({"clipped": round(sum(shares) / len(shares), 4)} if shares else {}),
    }
