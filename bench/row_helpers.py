"""Measure what rows cost: random numbers, packing, norms and rotations of K clients at once, and one by one.

    python bench/row_helpers.py [--device cpu|cuda] [--rows 1000] [--size 650] [--repeats 5]

The table has median microseconds per row.
"""

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from stopwatch import milliseconds

from gossamer.core import bits, exact
from gossamer.core.random import Keys, draws, fold_each, key, tensor, uniform, words
from gossamer.core.random.noise import draw
from gossamer.core.random.private import gaussian
from gossamer.parts.codecs.rotation import Rotation, nearest
from gossamer.parts.codecs.scale import largest

Work = Callable[[Any], object]
LEVELS = (-1.51, -0.453, 0.453, 1.51)


def works(keys: Keys, n: int, device: str) -> dict[str, tuple[Work, Any]]:
    """Return functions of one row or of all, each with its argument for all rows."""
    x = uniform(keys, n, device=device) - 0.5
    whole = ((x + 0.5) * 8).to(torch.uint8)
    step = torch.tensor(3, device=device)
    return {
        "words": (lambda k: words(k, n, device=device), keys),
        "uniform": (lambda k: uniform(k, n, device=device), keys),
        "gauss": (lambda k: draw("gauss", 1.0, k, n, device=device), keys),
        "gaussian": (lambda k: gaussian(k, n, device=device), keys),
        "draws": (lambda k: draws(k, step, n), tensor(keys, device)),
        "bits": (bits.bits, x > 0),
        "unbits": (lambda packed: bits.unbits(packed, n), bits.bits(x > 0)),
        "codes": (lambda values: bits.codes(values, 3), whole),
        "uncodes": (lambda packed: bits.uncodes(packed, 3, n), bits.codes(whole, 3)),
        "trits": (bits.trits, x.sign().to(torch.int8)),
        "untrits": (lambda packed: bits.untrits(packed, n), bits.trits(x.sign().to(torch.int8))),
        "largest": (largest, x),
        "norm": (exact.norm, x),
        "nearest": (lambda rows: nearest(rows, LEVELS), x),
    }


def each(work: Work, rows: Any) -> None:
    for row in rows:
        work(row)


def rotated(keys: Keys, x: torch.Tensor) -> None:
    for one, row in zip(keys, x, strict=True):
        Rotation(len(row), one).forward(row)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the time per row of helpers over rows.")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--size", type=int, default=650)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    keys, n, device = fold_each(key(1), "client", range(given.rows)), given.size, given.device
    machine = torch.cuda.get_device_name() if device == "cuda" else f"{torch.get_num_threads()} CPU threads"
    print(f"torch {torch.__version__}, {machine}, {given.rows:,} rows of {n:,} entries; microseconds per row")
    print(f"{'':12}{'one by one':>12}{'at once':>12}")
    x = uniform(keys, n, device=device) - 0.5
    timed: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        name: (partial(each, work, rows), partial(work, rows)) for name, (work, rows) in works(keys, n, device).items()
    }
    timed["rotation"] = partial(rotated, keys, x), partial(Rotation(n, keys).forward, x)
    for name, ways in timed.items():
        single, together = (1e3 * milliseconds(way, device, given.repeats) / given.rows for way in ways)
        print(f"{name:12}{single:12.2f}{together:12.2f}", flush=True)


if __name__ == "__main__":
    main()
