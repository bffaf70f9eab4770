"""Memory and time of robust aggregation against the number of clients, for dense and for one-bit messages.

    python bench/robust.py                                        1 Mi parameters, 10, 30 and 100 clients
    python bench/robust.py --parameters 11000000 --clients 20 --servers mean median krum:f=2 --codecs sign

Each line is a process of its own. ``messages`` are the payloads that wait, ``peak`` is the memory that folding and
finishing a round add to them, and ``all decoded`` is what the decoded updates of all clients would take. ``fold`` is
the time to receive all messages, each of which is decoded once; ``finish`` is the time of the aggregation. Times are
those of the processor, with one thread.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence

import torch
from torch import nn

from gossamer import CODECS, RULES, Mean, Part, Robust, Task, fedavg
from gossamer.core.codec import Coding
from gossamer.core.exchange import Arrival
from gossamer.core.random import fold, key
from gossamer.core.specs import parse
from gossamer.core.types import Clock, Layout
from gossamer.engines.metrics import peak_memory
from gossamer.parts.servers import Server
from gossamer.testing import bound

SERVERS = ("mean", "clip:median", "median", "trimmed-mean:0.2", "geometric-median", "krum:f=2", "centered-clipping")
HEAD = ("codec", "clients", "server", "messages", "peak", "all decoded", "fold", "finish")


def server_of(text: str) -> Server:
    """Return a server by its spec."""
    return Mean() if text == "mean" else Robust(parse(text, RULES, "server"))


def measure(text: str, codec: str, clients: int, parameters: int) -> dict[str, float]:
    """Return the bytes and seconds of one round."""
    torch.set_num_threads(1)
    data = torch.zeros(4, 64), torch.zeros(4, dtype=torch.long)
    task = Task.of(lambda: nn.Linear(64, max(1, parameters // 64), bias=False), data, data, clients=2)
    exchange = bound(fedavg().with_parts(codec=parse(codec, CODECS, "codec"), server=server_of(text)).training, task)
    layout, server = Layout.of(exchange.outline), exchange.server
    state = server.init(exchange.context.network.initial())

    def arrival(client: int) -> Arrival:
        at = fold(key(0), client)
        vector = torch.randn(layout.size, generator=torch.Generator().manual_seed(client))
        return exchange.arrival(
            client, Part(), Coding(layout, at), 1.0, exchange.codec.encode(vector, Coding(layout, at))
        )

    found = [arrival(client) for client in range(clients)]
    waiting = sum(array.nbytes for each in found for array in each.payload.values())
    before, begin = peak_memory(), time.process_time()
    acc = server.begin(state, {})
    for each in found:
        acc = server.fold(acc, each)
    folded = time.process_time()
    server.finish(state, acc, Clock(0, 1, -1))
    done = time.process_time()
    spent = {"messages": waiting, "peak": peak_memory() - before, "decoded": 4 * layout.size * clients}
    return {**spent, "fold": folded - begin, "finish": done - folded}


def row(text: str, codec: str, clients: int, parameters: int) -> tuple[str, ...]:
    """Return a line of the table, from a process of its own: the peak memory of a process never falls."""
    words = ["--one", text, codec, str(clients), str(parameters)]
    made = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
    found = json.loads(made.stdout)
    sizes = (f"{found[name] / 2**20:.0f} MiB" for name in ("messages", "peak", "decoded"))
    return codec, str(clients), text, *sizes, *(f"{found[name]:.2f} s" for name in ("fold", "finish"))


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--parameters", type=int, default=2**20)
    parser.add_argument("--clients", type=int, nargs="*", default=[10, 30, 100])
    parser.add_argument("--servers", nargs="*", default=SERVERS)
    parser.add_argument("--codecs", nargs="*", default=["dense", "sign"])
    parser.add_argument("--one", nargs=4, default=None, help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    if asked.one:
        text, codec, clients, parameters = asked.one
        print(json.dumps(measure(text, codec, int(clients), int(parameters))))
        return
    print(f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}")
    for codec in asked.codecs:
        for clients in asked.clients:
            for text in asked.servers:
                print(f"| {' | '.join(row(text, codec, clients, asked.parameters))} |", flush=True)


if __name__ == "__main__":
    main()
