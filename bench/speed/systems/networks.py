"""Networks and evaluation for systems with torch but without Gossamer."""

import torch
from torch import Tensor, nn
from workloads import Images


def network(name: str) -> nn.Module:
    """Return a network with fixed initial weights."""
    torch.manual_seed(0)
    return {"mlp": _mlp, "cnn-gn": _cnn_gn}[name]()


def _mlp() -> nn.Module:
    layers = [nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)]
    return nn.Sequential(nn.Flatten(), *layers)


def _cnn_gn() -> nn.Module:
    def block(wide: int, channels: int) -> list[nn.Module]:
        return [nn.Conv2d(wide, channels, 3, padding=1), nn.GroupNorm(8, channels), nn.ReLU()]

    first = [*block(1, 32), *block(32, 32), nn.MaxPool2d(2)]
    second = [*block(32, 64), *block(64, 64), nn.MaxPool2d(2)]
    return nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(64 * 7 * 7, 10))


def tensors(images: Images) -> tuple[Tensor, Tensor]:
    """Return images with one channel, and labels."""
    return torch.from_numpy(images.x)[:, None], torch.from_numpy(images.y)


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the accuracy."""
    model.eval()
    pairs = zip(torch.split(x, 1000), torch.split(y, 1000), strict=True)
    right = sum(int((model(some).argmax(1) == labels).sum()) for some, labels in pairs)
    model.train()
    return right / len(y)
