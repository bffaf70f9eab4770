"""Networks and evaluation for systems with torch but without Gossamer."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from workloads import KINDS, TOKENS, VOCABULARY, Images


def network(name: str) -> nn.Module:
    """Return a network with fixed initial weights."""
    torch.manual_seed(0)
    nets: dict[str, Callable[[], nn.Module]] = {"mlp": _mlp, "cnn-gn": _cnn_gn, "bert": _bert}
    return nets[name]()


def _mlp() -> nn.Module:
    layers = [nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def _cnn_gn() -> nn.Module:
    def block(wide: int, channels: int) -> list[nn.Module]:
        return [nn.Conv2d(wide, channels, 3, padding=1), nn.GroupNorm(8, channels), nn.ReLU()]

    first = [*block(1, 32), *block(32, 32), nn.MaxPool2d(2)]
    second = [*block(32, 64), *block(64, 64), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64 * 7 * 7, 10))


def _bert() -> nn.Module:
    return Scores(bert())


def bert() -> nn.Module:
    """Return a BERT of four layers, 128 wide, with its usual dropout."""
    import transformers

    config = transformers.BertConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=TOKENS,
        num_labels=KINDS,
        hidden_size=128,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
    )
    module: nn.Module = transformers.BertForSequenceClassification(config)
    return module


class Scores(nn.Module):
    """A network of ``transformers`` that returns the scores alone."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        output: Any = self.network(input_ids=x)
        scores: Tensor = output.logits
        return scores


def tensors(images: Images) -> tuple[Tensor, Tensor]:
    """Return images with one channel, or texts, and labels."""
    x = torch.from_numpy(images.x)
    return x if x.dim() == 2 else x[:, None], torch.from_numpy(images.y)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the accuracy."""
    model.eval()
    pairs = zip(torch.split(x, 1000), torch.split(y, 1000), strict=True)
    right = sum(int((model(some).argmax(1) == labels).sum()) for some, labels in pairs)
    model.train()
    return right / len(y)
