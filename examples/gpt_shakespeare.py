"""A small GPT-2 of Hugging Face learns to write, character by character; each client is a role of Shakespeare.

    python examples/gpt_shakespeare.py
    gossamer run examples/gpt_shakespeare.py:fedavg_adam --task examples/gpt_shakespeare.py:task --rounds 6

The roles are read from tinyshakespeare_roles.json in the data folder (GOSSAMER_DATA). Without this file the clients are
chapters of Python's manual, which is part of Python. The model is built from a configuration, without a download.
A minute of CPU time gives a perplexity of 10 to 11 and an accuracy of 29 to 32 % on each role (always a space: 16 to
17 %), and of 11 to 17 and 29 to 34 % on each chapter (always a space: 16 to 27 %). There are 80 characters.
"""

from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from gossamer import Adam, Dense, Full, Mean, Method, Task, compose, simulate
from gossamer.tasks.data.leaf import ALPHABET, read_texts, sequences
from gossamer.tasks.data.locate import folder

CHAPTERS = ("assignment", "comparisons", "debugger", "formatstrings", "string-methods", "types")
LENGTH = 64


def texts() -> dict[str, str]:
    """Return the longest roles, or the chapters, in the order of names."""
    roles = folder(None) / "tinyshakespeare_roles.json"
    found = read_texts(roles) if roles.exists() else {name: topics[name] for name in CHAPTERS}
    longest = sorted(found, key=lambda name: len(found[name]))[-len(CHAPTERS) :]
    return {name: found[name] for name in sorted(longest)}


def samples(text: str) -> list[tuple[Tensor, Tensor]]:
    """Return sequences and the characters that follow: four fifths of a text to train on, the end to test."""
    x, y = map(torch.from_numpy, sequences(text, LENGTH))
    cut = len(x) * 4 // 5
    return [(x[:cut], y[:cut]), (x[cut:], y[cut:])]


def gpt() -> nn.Module:
    size = {"n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4, "vocab_size": len(ALPHABET)}
    no_dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)  # a few rounds do not overfit
    model: nn.Module = GPT2LMHeadModel(GPT2Config(**size, **no_dropout, bos_token_id=None, eos_token_id=None))
    return model


def task() -> Task:
    both = {name: samples(text) for name, text in texts().items()}
    train, test = ({name: pairs[part] for name, pairs in both.items()} for part in (0, 1))
    return Task.of(gpt, train, test)


def fedavg_adam(lr: float = 0.003, epochs: int = 2) -> Method:
    """Federated averaging with Adam on the clients."""
    return compose(Full(), Adam(lr, epochs=epochs, batch=16), Dense(), Mean())


if __name__ == "__main__":
    result = simulate(fedavg_adam(), given := task(), rounds=6)
    for client, name in enumerate(texts()):
        x, y = given.data.test.x[rows := given.split.test(client)], given.data.test.y[rows]
        with torch.no_grad():
            scores = result.model(x).logits
        perplexity = F.cross_entropy(scores.flatten(0, 1), y.flatten()).exp()
        accuracy, trivial = (scores.argmax(-1) == y).float().mean(), (y == y.flatten().mode().values).float().mean()
        print(f"{name:20} perplexity {perplexity:5.1f}, accuracy {accuracy:.1%}; always a space: {trivial:.1%}")
