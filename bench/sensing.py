"""Measure one-bit compressive sensing: a server's round, and one measurement by either kind of matrix.

    python bench/sensing.py [--devices 100] [--millions 1.2] [--threads 1]

The first part is the server's work of a round: sum the signs of 100 devices with a shared mask over 1.2 million
parameters, draw the matrix, and reconstruct once. There is a quarter of a measurement per parameter, and all, half or a
tenth of the parameters are kept. The target is less than 2 s. The work of devices is not counted. The printed cosine is
that with the true mean.

The second part is one device's measurement, including the matrix, of the same number of entries, by Gaussian and by
Hadamard matrices in turns. Hadamard matrices should take a tenth of the time. It also measures vectors of 2,000
entries.

Seconds are the minimum of three measurements, of seven for a device: wall-clock time and processor time, which is
more reliable on a shared machine. Memory is the peak in addition to the codes and the matrix's seed.
"""

import argparse
import math
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from held import peak
from torch import Tensor

from gossamer.core.random import Key, key
from gossamer.core.random.noise import draw
from gossamer.parts.codecs.reconstruction import amp, back_projection, least_squares
from gossamer.parts.codecs.sensing import KINDS, Kind, Matrix, Sensing, add_signs, pack_signs

KEPT, RATIO, OWN, TARGET = (1.0, 0.5, 0.1), 0.25, 0.7, 2.0
REPEATS, TURNS = 3, 7
DECODERS: dict[str, Callable[[Matrix, Tensor], Tensor]] = {
    "back-projection": back_projection,
    "least squares": least_squares,
    "message passing": lambda phi, y: amp(phi, y, phi.size),
}


class Taken(NamedTuple):
    """Wall-clock seconds, and processor seconds."""

    wall: float
    work: float

    def __str__(self) -> str:
        return f"{self.wall:.3f} s ({self.work:.3f} s processor time)"


def once(work: Callable[[], object]) -> Taken:
    wall, own = time.perf_counter(), time.process_time()
    work()
    return Taken(time.perf_counter() - wall, time.process_time() - own)


def least(found: list[Taken]) -> Taken:
    return Taken(*(min(column) for column in zip(*found, strict=True)))


def best(work: Callable[[], object]) -> Taken:
    return least([once(work) for _ in range(REPEATS)])


def student(at: Key, n: int) -> Tensor:
    """Draw from Student's t with 3 degrees of freedom."""
    z = draw("gauss", 1.0, at, 4 * n).view(4, n)
    return z[0] / (z[1:].square().sum(0) / 3).sqrt()


def cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a, b, dim=0))


# The server.


def server(kind: Kind, n: int, rows: int, devices: int) -> None:
    at, sensing = key(1), Sensing(kind, rows=rows)
    codes, mean = gathered(sensing, n, devices, at)

    def summed() -> Tensor:
        total = torch.zeros(rows)
        for code in codes:
            add_signs(total, code, 1 / devices)
        return total

    adding, y = best(summed), summed()
    print(f"{kind}, {n:,} entries kept, {rows:,} measurements: {devices} codes summed in {adding}")
    for name, decode in DECODERS.items():
        report(name, adding, lambda: decode(sensing.matrix(n, at), y), mean)  # noqa: B023


def report(name: str, adding: Taken, decoded: Callable[[], Tensor], mean: Tensor) -> None:
    taken = best(decoded)
    whole = adding.wall + taken.wall
    verdict = "target met" if whole < TARGET else "target MISSED"
    print(f"    {name}: {taken}, with the sum {whole:.2f} s, {verdict};", end=" ")
    print(f"{peak(decoded, 'cpu') / 2**20:.0f} MiB; cosine {cosine(decoded(), mean):.3f}")


def gathered(sensing: Sensing, n: int, devices: int, at: Key) -> tuple[list[Tensor], Tensor]:
    """Return the codes of devices whose gradients have pairwise cosines of 2/3, and the mean of the gradients."""
    phi, common, mean = sensing.matrix(n, at), student(key(4), n), torch.zeros(n)
    codes = []
    for device in range(devices):
        own = common + OWN * common.roll(7919 * (device + 1))
        codes.append(pack_signs(phi.signs(own)))
        mean += own / devices
    return codes, mean


# A device.


def device(n: int, ratio: float) -> None:
    x, at = student(key(2), n), key(3)
    turns = [[once(lambda: Sensing(kind, ratio).measure(x, at)) for kind in KINDS] for _ in range(TURNS)]  # noqa: B023
    gaussian, hadamard = (least(list(column)) for column in zip(*turns, strict=True))
    share = f"1/{gaussian.work / hadamard.work:.1f}"
    print(f"{n:,} entries, S/n = {ratio}: gaussian {gaussian}, hadamard {hadamard}: {share}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure one-bit compressive sensing.")
    parser.add_argument("--devices", type=int, default=100)
    parser.add_argument("--millions", type=float, default=1.2)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    whole = int(given.millions * 1e6)
    for kept in KEPT:
        for kind in KINDS:
            server(kind, math.floor(kept * whole), math.floor(RATIO * whole), given.devices)
    for n in (2000, whole):
        for ratio in (0.1, 0.25, 0.5, 1.0):
            device(n, ratio)


if __name__ == "__main__":
    main()
