"""Compute the tables of QUIC-FL (``gossamer.parts.codecs.quic_fl``), and their squared error.

    python bench/quic_fl_tables.py --bits 1 2 3 4

A table has the value R(h, x) that a receiver decodes for the shared random number h and the message x. For each h, a
sender rounds to the value nearest to a point y, which is such that the mean over h is z. As y grows, the message of one
h after the other goes up by one, at the mean of two neighbouring values. Between two of these steps, the mean square is
linear in z. The squared error of the table is

    integral over |z| < T of the normal density times (mean square at z - z^2)

It has a closed form, and is minimized over all symmetric tables by L-BFGS. The authors solve a discretized problem with
256 values of z. Of all values, a share of 1/512 is above T, and is sent without quantization.
"""

import argparse
import math
from statistics import NormalDist

import torch
from torch import Tensor

LARGE = 1 / 512
"""Share of the values that are not quantized, as in the authors' code."""
SHARED = {1: 6, 2: 5, 3: 4, 4: 4}
"""Bits of the shared random number by bits of the message, as in the authors' code."""
LIMIT = NormalDist().inv_cdf(1 - LARGE / 2)


def error(table: Tensor) -> Tensor:
    """Return the squared error for the normal distribution. A row of the table has the values of one h, ascending."""
    points = ((table[:, 1:] + table[:, :-1]) / 2).reshape(-1).detach().argsort()
    mean = _steps(table, points)
    square = _steps(table**2, points)
    low, high = mean[:-1].clamp(-LIMIT, LIMIT), mean[1:].clamp(-LIMIT, LIMIT)
    slope = (square[1:] - square[:-1]) / (mean[1:] - mean[:-1])
    mass, first = _below(high) - _below(low), _density(low) - _density(high)
    limit = torch.tensor(LIMIT, dtype=table.dtype)
    second = 2 * _below(limit) - 1 - 2 * limit * _density(limit)  # of z^2
    return (square[:-1] * mass + slope * (first - mean[:-1] * mass)).sum() - second


def _steps(values: Tensor, order: Tensor) -> Tensor:
    """Return the mean over h before the first step up and after each, in the given order."""
    ups = (values[:, 1:] - values[:, :-1]).reshape(-1)[order] / len(values)
    return torch.cat((values[:, :1].mean(0), values[:, 0].mean() + ups.cumsum(0)))


def _below(z: Tensor) -> Tensor:
    return torch.erfc(-z / math.sqrt(2)) / 2


def _density(z: Tensor) -> Tensor:
    return torch.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def symmetric(half: Tensor) -> Tensor:
    """Return the table with these values for the upper messages. The mean of the largest values becomes the limit."""
    largest = half[:, -1:] - half[:, -1].mean() + LIMIT
    upper = torch.cat((half[:, :-1], largest), 1)
    return torch.cat((-upper.flip(0, 1), upper), 1)


def solve(bits: int) -> Tensor:
    """Return the best table for messages of some bits."""
    messages, shared = 2**bits, 2 ** SHARED[bits]
    places = (torch.arange(messages * shared, dtype=torch.float64) + 0.5) / (messages * shared)
    first = 1.3 * math.sqrt(2) * torch.erfinv((2 * places - 1) * 0.999)
    half = first.view(messages, shared).T[:, messages // 2 :].contiguous().requires_grad_()
    search = torch.optim.LBFGS(
        [half], max_iter=600, history_size=30, line_search_fn="strong_wolfe", tolerance_grad=1e-10, tolerance_change=0
    )

    def evaluated() -> Tensor:
        search.zero_grad()
        found = error(symmetric(half))
        found.backward()
        return found

    search.step(evaluated)
    return symmetric(half).detach()


def main() -> None:
    """Print the upper messages of each table, one paragraph per table and one line per message, and its error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bits", type=int, nargs="+", default=list(SHARED), choices=list(SHARED))
    for bits in parser.parse_args().bits:
        table = solve(bits)
        print(f"{bits} bits, squared error {float(error(table)):.6f}")
        for message in range(2 ** (bits - 1), 2**bits):
            print(" ".join(f"{value:.6f}" for value in table[:, message].tolist()))
        print()


if __name__ == "__main__":
    main()
