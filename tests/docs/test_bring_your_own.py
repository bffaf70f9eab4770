"""Every row of the table of docs/bring-your-own.md trains: two rounds, without a failure, to other weights."""

import importlib
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from gossamer import Task, fedavg, simulate
from gossamer.core.random import key
from gossamer.tasks.data import Shards
from gossamer.tasks.objective import Objective
from helpers.paths import ROOT

PAGE = (ROOT / "docs/bring-your-own.md").read_text()
TABLE = PAGE.partition("<!-- ways -->")[2].partition("<!-- /ways -->")[0]
WAYS = dict(re.findall(r"^\| (.+?) \| `(.+)` \|$", TABLE, re.M))

CLASSES, VOCABULARY, TIME = 3, 12, 5


class Halves(nn.Module):
    """Takes its input in two pieces."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, CLASSES)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.layer(torch.cat([left, right], -1))


class Images(Dataset[Any]):
    """A map-style data set."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> tuple[Tensor, int]:
        return self.x[row], int(self.y[row])


class Folder(Dataset[Any]):
    """A file per sample, in a folder per class, as torchvision's ImageFolder reads them."""

    def __init__(self, path: Path) -> None:
        self.files = sorted(path.glob("*/*.npy"))
        self.targets = [int(file.parent.name) for file in self.files]

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        return np.load(self.files[row]), self.targets[row]


def focal(outputs: Tensor, targets: Tensor) -> Tensor:
    """The focal loss."""
    right = outputs.log_softmax(-1).gather(1, targets[:, None])
    return -((1 - right.exp()) ** 2 * right).mean()


def margin(outputs: Tensor, targets: Tensor) -> Tensor:
    """How far the score of the label is above the mean score."""
    return outputs.gather(1, targets[:, None])[:, 0] - outputs.mean(1)


def by_thirds(targets: np.ndarray, clients: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Equal pieces of a random permutation."""
    return np.array_split(rng.permutation(len(targets)), clients)


def bert() -> nn.Module:
    transformers: Any = importlib.import_module("transformers")
    config = transformers.BertConfig(
        vocab_size=VOCABULARY, num_labels=CLASSES, max_position_embeddings=TIME, hidden_size=8, intermediate_size=8,
        num_hidden_layers=1, num_attention_heads=2,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt() -> nn.Module:
    transformers: Any = importlib.import_module("transformers")
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_positions=TIME, n_embd=8, n_layer=1, n_head=2)
    return transformers.GPT2LMHeadModel(config)


def halves(x: Tensor) -> dict[str, Tensor]:
    return {"left": x[:, :4], "right": x[:, 4:]}


@pytest.fixture
def names(tmp_path: Path) -> dict[str, Any]:
    """What the table's code uses."""
    draw = torch.Generator().manual_seed(0)
    labels = torch.arange(120) % CLASSES
    inputs = 2 * torch.eye(CLASSES, 6)[labels] + torch.randn(120, 6, generator=draw)
    ids = torch.randint(VOCABULARY, (120, TIME + 1), generator=draw)
    x, xt, y, yt = inputs[:100], inputs[100:], labels[:100], labels[100:]
    for row, (image, label) in enumerate(zip(x, y.tolist(), strict=True)):
        (tmp_path / str(label)).mkdir(exist_ok=True)
        np.save(tmp_path / str(label) / f"{row}.npy", image.numpy())
    tokens = {"input_ids": ids[:, :TIME], "attention_mask": torch.ones(120, TIME, dtype=torch.int64)}
    return {
        "Task": Task, "TensorDataset": TensorDataset, "DataLoader": DataLoader, "Shards": Shards,
        "Images": Images, "Folder": Folder, "path": tmp_path, "Halves": Halves, "halves": halves,
        "net": lambda: nn.Linear(6, CLASSES), "one": lambda: nn.Linear(6, 1), "bert": bert, "gpt": gpt,
        "x": x, "xt": xt, "y": y, "yt": yt, "owners": ["ann", "bob"] * 50, "by_thirds": by_thirds,
        "tokens": {name: t[:100] for name, t in tokens.items()},
        "tokens_t": {name: t[100:] for name, t in tokens.items()},
        "ids": ids[:100, :TIME], "ids_t": ids[100:, :TIME], "following": ids[:100, 1:], "following_t": ids[100:, 1:],
        "labels": torch.eye(CLASSES)[y], "labels_t": torch.eye(CLASSES)[yt], "focal": focal, "margin": margin,
    }  # fmt: skip


def test_there_are_25_ways() -> None:
    assert len(WAYS) == 25


LARGE = "a data set larger than memory"


@pytest.mark.parametrize("way", [pytest.param(way, marks=pytest.mark.slow) if way == LARGE else way for way in WAYS])
def test_each_way_trains(way: str, names: dict[str, Any]) -> None:
    if "rows" in WAYS[way]:
        datasets = pytest.importorskip("datasets")
        columns = {"left": names["x"][:, :4].tolist(), "right": names["x"][:, 4:].tolist(), "kind": names["y"].tolist()}
        names["rows"] = datasets.Dataset.from_dict(columns)
    if "bert" in WAYS[way] or "gpt" in WAYS[way]:
        pytest.importorskip("transformers")
    if "Multiclass" in WAYS[way]:
        names["MulticlassF1Score"] = pytest.importorskip("torchmetrics.classification").MulticlassF1Score
    task: Task = eval(WAYS[way], names)
    result = simulate(fedavg(lr=0.05, epochs=1), task, rounds=2)
    assert not any(record["failures"] for record in result.metrics)
    assert math.isfinite(result.score)
    start = Objective(task, "cpu", key(0)).initial()
    assert any(not torch.equal(start[name], tensor) for name, tensor in result.model.named_parameters())
