"""A small BERT of Hugging Face learns which text a passage of 23 words is from.

    python examples/bert_classifier.py
    gossamer run examples/bert_classifier.py:fedavg_adam --task examples/bert_classifier.py:task --rounds 15

The texts are six chapters of Python's manual, which is part of Python. If tinyshakespeare_roles.json is in the data
folder (GOSSAMER_DATA), they are the six longest roles of Shakespeare. The model is built from a configuration, without
a download. Half a minute of CPU time gives an accuracy of 72 % on the chapters (the most common one: 27 %), and of 42 %
on the roles (the most common one: 21 %).
"""

import re
from collections import Counter
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForSequenceClassification

from gossamer import Adam, Dense, Full, Mean, Method, Task, compose, simulate
from gossamer.tasks.data.leaf import read_texts
from gossamer.tasks.data.locate import folder

CHAPTERS = ("assignment", "comparisons", "debugger", "formatstrings", "string-methods", "types")
LENGTH, WORDS = 24, 1000
PADDING, START, OTHER, FIRST = range(4)


def passages() -> tuple[list[list[str]], list[int]]:
    """Return the words of each passage, and the number of its text."""
    roles = folder(None) / "tinyshakespeare_roles.json"
    texts = read_texts(roles) if roles.exists() else {name: topics[name] for name in CHAPTERS}
    longest = sorted(texts.values(), key=len)[-len(CHAPTERS) :]
    split = [re.findall(r"\w+|[^\w\s]", text.lower()) for text in longest]
    starts = [(label, at) for label, words in enumerate(split) for at in range(0, len(words), LENGTH - 1)]
    return [split[label][at : at + LENGTH - 1] for label, at in starts], [label for label, _ in starts]


def encode(found: list[list[str]]) -> dict[str, Tensor]:
    """Number the common words; short passages are padded, and the mask says where."""
    common = Counter(word for words in found for word in words).most_common(WORDS)
    numbers = {word: FIRST + rank for rank, (word, _) in enumerate(common)}
    rows = [[START, *(numbers.get(word, OTHER) for word in words)] for words in found]
    ids = torch.tensor([row + [PADDING] * (LENGTH - len(row)) for row in rows])
    return {"input_ids": ids, "attention_mask": (ids != PADDING).long()}


def bert() -> nn.Module:
    size = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    vocabulary = {"vocab_size": FIRST + WORDS, "max_position_embeddings": LENGTH}
    model: nn.Module = BertForSequenceClassification(BertConfig(num_labels=len(CHAPTERS), **vocabulary, **size))
    return model


def task() -> Task:
    found, labels = passages()
    x, y = encode(found), torch.tensor(labels)
    tested = torch.arange(len(y)) % 5 == 0
    train, test = (({name: ids[rows] for name, ids in x.items()}, y[rows]) for rows in (~tested, tested))
    return Task.of(bert, train, test, clients=8, split="dirichlet:1")


def fedavg_adam(lr: float = 0.003, epochs: int = 2) -> Method:
    """Federated averaging with Adam on the clients: 10 rounds of SGD at 0.1 only learn the most common text."""
    return compose(Full(), Adam(lr, epochs=epochs, batch=32), Dense(), Mean())


if __name__ == "__main__":
    result = simulate(fedavg_adam(), given := task(), rounds=15)
    most_common = given.data.test.y.bincount().max() / len(given.data.test)
    print(f"accuracy {result.accuracy:.1%}; always the most common text: {most_common:.1%}")
