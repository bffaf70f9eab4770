"""A language model in kilobytes: pretrain a small GPT, then fine-tune it with clients over thin links.

    python examples/adapt_language_model.py

The model is pretrained on some texts in one place. The clients hold others, which it has not seen: roles of
Shakespeare, if tinyshakespeare_roles.json is in the data folder (GOSSAMER_DATA), else chapters of Python's manual,
which is part of Python. They adapt the model in four ways, and the table shows what each costs a client in all: all
weights, LoRA's small matrices, the same with one bit per parameter both ways, and scalars of random directions
(DeComFL), for which a client computes no gradient. Sizes are those of a toy: a CPU needs less than two minutes.
"""

from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn import functional as F

from gossamer import (
    Adam,
    Cosine,
    Delta,
    Drive,
    Full,
    LoRA,
    Method,
    OnWeights,
    Task,
    centralised,
    compose,
    decomfl,
    simulate,
)
from gossamer.tasks.data.leaf import ALPHABET, read_texts, sequences
from gossamer.tasks.data.locate import folder
from gossamer.tasks.nets import build

LENGTH, CLIENTS, PER_ROUND = 64, 10, 5
PRETRAINING_ROUNDS, ROUNDS, SCALAR_ROUNDS = 8, 8, 24


def texts() -> dict[str, str]:
    """Return the roles, or the chapters, the longest first."""
    roles = folder(None) / "tinyshakespeare_roles.json"
    found = read_texts(roles) if roles.exists() else dict(topics)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def samples(text: str) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return sequences and the characters that follow: four fifths of a text to train on, the end to test."""
    x, y = map(torch.from_numpy, sequences(text, LENGTH))
    cut = len(x) * 4 // 5
    return [(x[:cut], y[:cut]), (x[cut:], y[cut:])]


def gpt() -> nn.Module:
    return build("gpt:2,64,4", (LENGTH,), len(ALPHABET))


def task(names: list[str]) -> Task:
    """Return a task with one client per text."""
    found = texts()
    both = {name: samples(found[name]) for name in names}
    train, test = ({name: pairs[part] for name, pairs in both.items()} for part in (0, 1))
    return Task.of(gpt, train, test)


@torch.no_grad()
def perplexity(model: nn.Module, given: Task) -> float:
    """Return the mean over the clients of the perplexity on their test sequences."""
    found = []
    for client in range(given.clients):
        x, y = given.data.test.x[rows := given.split.test(client)], given.data.test.y[rows]
        found.append(F.cross_entropy(model(x).flatten(0, 1), y.flatten()).exp())
    return float(torch.stack(found).mean())


def methods() -> dict[str, tuple[Method, int]]:
    """Return methods, with their numbers of rounds."""
    whole, adam = (Adam(lr, epochs=1, batch=16, schedule=Cosine()) for lr in (0.0007, 0.0015))
    small = LoRA(rank=2)
    one_bit, down = OnWeights(Drive()), Delta(OnWeights(Drive()), shared_start=True)
    scalars = decomfl(lr=0.03, steps=1, batch=16).with_parts(adapter=LoRA(rank=1, train="B"))
    return {
        "all weights": (compose(Full(), whole), ROUNDS),
        "LoRA": (compose(Full(), adam, adapter=small), ROUNDS),
        "LoRA, one bit": (compose(Full(), adam, one_bit, down=down, adapter=small), ROUNDS),
        "DeComFL on LoRA": (scalars, SCALAR_ROUNDS),
    }


def main() -> None:
    names = list(texts())
    own, others = names[1 : 2 * CLIENTS : 2], [*names[0 : 2 * CLIENTS : 2], *names[2 * CLIENTS : 60]]
    solver = Adam(0.005, steps=100, batch=32, warmup=20, schedule=Cosine())
    base = simulate(centralised().with_parts(solver=solver), task(others), rounds=PRETRAINING_ROUNDS, eval_every=99)
    clients = task(own)
    print(f"{'as it is':16} perplexity {perplexity(base.model, clients):.3f}")
    for name, (method, rounds) in methods().items():
        result = simulate(method, clients, rounds=rounds, per_round=PER_ROUND, init=base.model, eval_every=rounds)
        up, down = (sum(sum(record[way].values()) for record in result.metrics) for way in ("bytes_up", "bytes_down"))
        shown = f"{up / CLIENTS / 1000:8.1f} kB up and {down / CLIENTS / 1000:8.1f} kB down per client in all"
        print(f"{name:16} perplexity {result.metrics[-1]['personal_perplexity']:.3f}, {shown}")


if __name__ == "__main__":
    main()
