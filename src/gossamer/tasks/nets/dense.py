"""Networks of linear layers for inputs of any shape: logistic regression and a perceptron with two hidden layers."""

import torch
from torch import nn

HIDDEN = 200


def logistic(shape: torch.Size, classes: int) -> nn.Module:
    """Logistic regression, with a bias."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape.numel(), classes))


def mlp(shape: torch.Size, classes: int, hidden: int = HIDDEN) -> nn.Module:
    """Two hidden layers of 200 units with ReLU: PERM's network for MNIST and EMNIST, 199,210 parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(shape.numel(), hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, classes),
    )
