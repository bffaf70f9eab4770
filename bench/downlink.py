"""Bits per parameter of downloads: the whole model in two types, and the delta downlink, with all clients or some.

    python bench/downlink.py                                     digits, MLP, 10 of 10 and 10 of 100 clients
    python bench/downlink.py --data fashion-mnist --data-dir DIR --model cnn4 --rounds 15 --steps 8
    python bench/downlink.py --clients 10 --links delta:sum --set alpha=0.02 weights=uniform common_noise=true

The method is FedMRN, with the arguments of ``--set``. Downloads are counted over all rounds, and over the rounds after
the first, in which every client receives the whole model. Clients that take part for the first time later also receive
it.
"""

import argparse
from collections.abc import Sequence
from typing import Any

from gossamer import Delta, Dense, Eden, OnWeights, Result, Task, simulate
from gossamer.core.specs import read
from gossamer.methods import METHODS

LINKS: dict[str, Any] = {
    "dense": Dense(),
    "dense:float16": Dense("float16"),
    "delta": Delta(),
    "delta:sum": Delta(sums_only=True),
    "delta:eden:2": Delta(OnWeights(Eden(2))),
    "delta:eden:1": Delta(OnWeights(Eden(1))),
    "delta:eden:2, float16": Delta(OnWeights(Eden(2)), Dense("float16")),
}
PER_ROUND = 10
HEAD = ("clients", "down", "accuracy", "up", "down, all rounds", "down, after the first")


def bits(result: Result, way: str, first: int = 0) -> float:
    """Return the mean bits per parameter of a message, from round ``first`` on."""
    records = result.metrics[first:]
    sent = sum(sum(record[way].values()) for record in records)
    return float(8 * sent / sum(len(record["clients"]) for record in records) / result.run.about["parameters"])


def row(name: str, clients: int, words: argparse.Namespace) -> tuple[str, ...]:
    """Run one setting with each seed, and return its line of the table: means over the seeds."""
    runs = [run(name, clients, seed, words) for seed in words.seeds]
    score = sum(100 * found.metrics[-1]["accuracy"] for found in runs) / len(runs)
    counts = (("bytes_up", 0), ("bytes_down", 0), ("bytes_down", 1))
    means = [sum(bits(found, *which) for found in runs) / len(runs) for which in counts]
    return f"{PER_ROUND} of {clients}", name, f"{score:.1f} %", *(f"{mean:.2f}" for mean in means)


def run(name: str, clients: int, seed: int, words: argparse.Namespace) -> Result:
    """Run one setting."""
    task = Task.named(words.data, data_dir=words.data_dir, model=words.model, split=words.split, clients=clients)
    method = METHODS[words.method](epochs=words.epochs, steps=words.steps, **words.set).with_parts(down=LINKS[name])
    often = {"rounds": words.rounds, "eval_every": words.rounds, "per_round": PER_ROUND}
    return simulate(method, task, progress=False, seed=seed, device=words.device, executor=words.executor, **often)


def setting(text: str) -> tuple[str, Any]:
    """Return name and value of an argument of the method."""
    name, _, value = text.partition("=")
    return name, None if value == "none" else read(value, float | bool | str)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--data-dir")
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--split", default="dirichlet:0.3")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--method", default="fedmrn")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="arguments of the method")
    parser.add_argument("--clients", type=int, nargs="*", default=[10, 100])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--executor", default="one-by-one")
    parser.add_argument("--links", nargs="*", default=[name for name in LINKS if name != "delta:sum"])
    words = parser.parse_args(arguments)
    words.set = dict(map(setting, words.set))
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|")
    for clients in words.clients:
        for name in words.links:
            print("| " + " | ".join(row(name, clients, words)) + " |", flush=True)


if __name__ == "__main__":
    main()
