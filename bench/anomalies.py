"""Measure what the anomaly report adds to the aggregation of one upload, for several codecs.

    python bench/anomalies.py [--sizes 55000 11000000] [--codecs dense eden topk] [--cohort 100] [--repeats 5]

The table has median milliseconds per upload: folding it into the mean, without the report and with its norm and sketch.
An upload is decoded once for both where its codec allows it. The last line has the milliseconds of the comparison of a
whole cohort, once per round.
"""

import argparse
from collections.abc import Sequence

import torch
from stopwatch import milliseconds
from torch import nn

from gossamer import SGD, Mean, OnWeights, Task
from gossamer.core.bound import BoundExchange
from gossamer.core.codec import Coding
from gossamer.core.exchange import Arrival
from gossamer.core.random import fold, key, uniform
from gossamer.core.specs import parse
from gossamer.core.types import Layout, Part
from gossamer.engines.anomalies import AnomalyWatch
from gossamer.methods.composition import compose
from gossamer.parts.codecs import CODECS
from gossamer.parts.views.entries import Full
from gossamer.tasks.objective import Objective

KEY, INPUTS = key(1), 100
USUAL = ("dense", "sign", "eden", "qsgd", "topk", "masked-noise", "one-bit")


def exchange_of(size: int, codec: str) -> tuple[BoundExchange, Layout]:
    """Return an exchange that sends a linear network of about ``size`` weights with a codec."""
    outputs = max(2, size // (INPUTS + 1))
    data = (torch.zeros(4, INPUTS), torch.tensor([0, 1, 0, 1]))
    task = Task.of(lambda: nn.Linear(INPUTS, outputs), data, data, clients=2, split="iid")
    method = compose(Full(), SGD(), OnWeights(parse(codec, CODECS, "codec")), Mean())
    objective = Objective(task, "cpu", KEY)
    return method.bind(objective).training, Layout.of(objective.outline())


def arrival_of(exchange: BoundExchange, layout: Layout, client: int) -> Arrival:
    """Return a random upload."""
    own = fold(KEY, client)
    x = uniform(own, layout.size) - 0.5
    payload, _ = exchange.codec.encode_with(x, exchange.codec.init(layout), Coding(layout, own))
    return exchange.arrival(client, Part(), Coding(layout, own), 10, payload)


def row(size: int, codec: str, repeats: int) -> str:
    """Return the times of one codec."""
    exchange, layout = exchange_of(size, codec)
    arrival, watch = arrival_of(exchange, layout, 0), AnomalyWatch(KEY)
    acc = exchange.server.begin({"params": exchange.outline}, {})

    def reported() -> None:
        with exchange.decoded(arrival) as (readable, update):
            assert update is not None
            exchange.server.fold(acc, readable)
            watch.note(arrival, update)

    plain = milliseconds(lambda: exchange.server.fold(acc, arrival), "cpu", repeats)
    both = milliseconds(reported, "cpu", repeats)
    return f"| {layout.size:,} | `{codec}` | {plain:.3f} | {both:.3f} | {both / plain:.2f} |"


def comparison(cohort: int, repeats: int) -> float:
    """Return the milliseconds of the comparison of a cohort."""
    exchange, layout = exchange_of(20_000, "dense")
    watch = AnomalyWatch(KEY)
    for client in range(cohort):
        arrival = arrival_of(exchange, layout, client)
        watch.note(arrival, arrival.vector(torch.device("cpu")))
    return milliseconds(watch.report, "cpu", repeats)


def main(argv: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure the cost of the anomaly report.")
    parser.add_argument("--sizes", type=int, nargs="*", default=[55_000, 11_000_000])
    parser.add_argument("--codecs", nargs="*", default=USUAL)
    parser.add_argument("--cohort", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    asked = parser.parse_args(argv)
    torch.set_num_threads(1)
    print("| entries | codec | fold (ms) | with the report (ms) | ratio |\n|---|---|---|---|---|")
    for size in asked.sizes:
        for codec in asked.codecs:
            print(row(size, codec, asked.repeats), flush=True)
    print(f"\ncomparison of {asked.cohort} clients: {comparison(asked.cohort, asked.repeats):.1f} ms per round")


if __name__ == "__main__":
    main()
