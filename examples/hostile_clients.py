"""Two hostile clients of 20: what a mean makes of them, and what robust aggregation does.

    python examples/hostile_clients.py [--rounds 20] [--split dirichlet:0.3] [--codec sign]

Client 0 multiplies its updates by 100, client 1 by -100. They do it in the codec of their uploads, so that nothing else
of the method changes. The table has the accuracy of FedAvg with each server, without and with these clients.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from gossamer import CODECS, RULES, ConfigError, Mean, OnWeights, Robust, RunError, Task, fedavg, simulate
from gossamer.core.specs import parse
from gossamer.core.types import Payload
from gossamer.parts.codecs import Codec, Coding
from gossamer.parts.servers import Server

FACTORS = {0: 100.0, 1: -100.0}
RULES_SHOWN = (
    "clip:median",
    "clip:median,multiple=3",
    "clip:1.0",
    "median",
    "trimmed-mean:0.2",
    "geometric-median",
    "krum:f=2",
    "multi-krum:f=2",
    "centered-clipping",
    "bucketing:2/median",
    "bucketing:2/krum:f=2",
)


@dataclass(frozen=True)
class Hostile(Codec):
    """A codec of uploads that some clients multiply by a factor.

    Args:
        codec: the codec of the product
    """

    codec: Codec

    def encode(self, x: Tensor, ctx: Coding) -> Payload:
        """Return the payload of the update, multiplied by the client's factor."""
        factor = FACTORS.get(ctx.client, 1.0) if isinstance(ctx.client, int) else 1.0
        return self.codec.encode(x * factor, ctx)

    def decode(self, payload: Payload, ctx: Coding) -> Tensor:
        """Return the vector that the client sent."""
        return self.codec.decode(payload, ctx)


def accuracy(server: Server, codec: Codec, asked: argparse.Namespace) -> str:
    """Return the accuracy after the last round, or that the model was lost."""
    method = fedavg(lr=0.1, epochs=2).with_parts(server=server, codec=codec)
    task = Task.named("digits", clients=asked.clients, split=asked.split)
    try:
        result = simulate(method, task, rounds=asked.rounds, eval_every=asked.rounds, seed=asked.seed, progress=False)
    except RunError:  # the model is not finite
        return "diverged"
    return f"{100 * result.metrics[-1]['accuracy']:.1f} %"


def main(words: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Accuracy of FedAvg with two hostile clients, by server.")
    parser.add_argument("--clients", type=int, default=20, help="number of clients")
    parser.add_argument("--rounds", type=int, default=20, help="number of rounds")
    parser.add_argument("--split", default="iid", help="partition of the samples, such as dirichlet:0.3")
    parser.add_argument("--codec", default="dense", help="codec of uploads, such as sign")
    parser.add_argument("--seed", type=int, default=0, help="seed of the runs")
    parser.add_argument("--servers", nargs="*", default=RULES_SHOWN, help="robust rules beside the mean")
    asked = parser.parse_args(words)
    try:
        inner = parse(asked.codec, CODECS, "codec")
        rules = {text: Robust(parse(text, RULES, "server")) for text in asked.servers if text != "mean"}
    except ConfigError as error:
        parser.error(str(error))
    honest = inner if asked.codec.startswith("dense") else OnWeights(inner)
    servers: dict[str, Server] = {"mean": Mean(), **rules}
    print("| server | honest | two hostile |\n|---|---|---|")
    for name, server in servers.items():
        scores = [accuracy(server, codec, asked) for codec in (honest, Hostile(honest))]
        print(f"| {name} | {' | '.join(scores)} |", flush=True)


if __name__ == "__main__":
    main()
