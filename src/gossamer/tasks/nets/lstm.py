"""FedMRN's recurrent network for Shakespeare: from 80 characters to the scores of the next one.

It has an embedding of size 8, one layer of 256 LSTM units, dropout, and a linear layer on the last state, all without
biases. The LSTM is two linear layers and a loop over time. Unlike PyTorch's LSTM, it can be stacked over clients and
compiled, and FedMRN can mask its linear weights. On a GPU a loop over time is slow in eager mode, so with dropout it
uses cuDNN's LSTM there, with the same weights.

Linear weights start as N(0, 0.01^2), embeddings as N(0, 1). With smaller embeddings, hundreds of steps learn nothing.
"""

import warnings

import torch
from torch import Tensor, nn
from torch._C._functorch import is_functorch_wrapped_tensor

from gossamer.core.errors import require

EMBEDDING = 8
UNITS = 256
DROPOUT = 0.5
INIT_STD = 0.01


class LSTM(nn.Module):
    """Map rows of character indices to scores of the next character; gates have PyTorch's order."""

    def __init__(self, classes: int, *, dropout: float = DROPOUT) -> None:
        require((0 <= dropout < 1, f"LSTM: dropout must be in [0, 1), got {dropout}"))
        super().__init__()
        self.embedding = nn.Embedding(classes, EMBEDDING)
        self.input = nn.Linear(EMBEDDING, 4 * UNITS, bias=False)
        self.hidden = nn.Linear(UNITS, 4 * UNITS, bias=False)
        self.output = nn.Linear(UNITS, classes, bias=False)
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        for linear in (self.input, self.hidden, self.output):
            nn.init.normal_(linear.weight, std=INIT_STD)

    def forward(self, characters: Tensor) -> Tensor:
        """Return scores, one row per row of characters."""
        scores: Tensor = self.output(self.drop(self.states(self.embedding(characters))))
        return scores

    def states(self, x: Tensor) -> Tensor:
        """Return the state after the last vector of ``x`` (batch x time x embedding)."""
        if x.is_cuda and isinstance(self.drop, nn.Dropout) and _eager(x) and torch.backends.cudnn.enabled:
            return self._states_by_cudnn(x)
        units = self.hidden.weight.shape[1]  # fewer than UNITS in a narrower network
        hidden = cell = x.new_zeros(x.shape[0], units)
        for pushed in self.input(x).unbind(1):
            hidden, cell = step(pushed + self.hidden(hidden), cell)
        return hidden

    def _states_by_cudnn(self, x: Tensor) -> Tensor:
        weights = [self.input.weight, self.hidden.weight]
        begin = x.new_zeros(1, x.shape[0], weights[1].shape[1])
        with warnings.catch_warnings():  # cuDNN copies the weights, which is cheap
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
            _, hidden, _ = torch.lstm(x, (begin, begin), weights, False, 1, 0.0, True, False, True)
        last: Tensor = hidden[0]
        return last


def _eager(x: Tensor) -> bool:
    """Return whether operations run one by one, neither compiled nor stacked."""
    return not torch.compiler.is_compiling() and not is_functorch_wrapped_tensor(x)


def step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Run one time step: return the next state and the next cell."""
    into, keep, new, out = gates.chunk(4, dim=-1)
    cell = keep.sigmoid() * cell + into.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def lstm(shape: torch.Size, classes: int, *, dropout: float = DROPOUT) -> nn.Module:
    """Build the LSTM; the number of characters is the number of classes."""
    return LSTM(classes, dropout=dropout)
