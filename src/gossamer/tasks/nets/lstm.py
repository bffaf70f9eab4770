"""The recurrent network of FedMRN for Shakespeare: 80 characters in, scores of the one that follows out.

Eight numbers for each character, one layer of 256 LSTM units, and scores from its last state; no biases, and dropout
before the scores. The LSTM is written out from two linear layers and a loop over time: unlike PyTorch's own, whose
kernels are closed boxes, it can be stacked over clients and compiled, and what FedMRN masks, the weights of linear
layers, is all there is of it besides the characters' numbers. With dropout it is neither stacked nor compiled, and on a
GPU a loop over time is slow by itself: there it is cuDNN's LSTM, with the same weights.

Linear weights start as N(0, 0.01^2), the characters' numbers as N(0, 1): with these as small as the weights, nothing
is learned for hundreds of steps.
"""

import warnings

import torch
from torch import Tensor, nn

from gossamer.core.errors import require

EMBEDDING = 8
UNITS = 256
DROPOUT = 0.5
INIT_STD = 0.01


class LSTM(nn.Module):
    """Rows of character numbers to scores of the next; gates are in PyTorch's order, so that weights can be shared.

    With dropout the network draws random numbers in training, and clients cannot be trained stacked: 0 leaves it out.
    """

    def __init__(self, classes: int, *, dropout: float = DROPOUT) -> None:
        require((0 <= dropout < 1, f"LSTM: dropout must be from 0 to below 1, got {dropout}"))
        super().__init__()
        self.embedding = nn.Embedding(classes, EMBEDDING)
        self.input = nn.Linear(EMBEDDING, 4 * UNITS, bias=False)
        self.hidden = nn.Linear(UNITS, 4 * UNITS, bias=False)
        self.output = nn.Linear(UNITS, classes, bias=False)
        # Left out where there is none: a dropout of 0 would still count as a network that draws.
        self.drop = nn.Dropout(dropout) if dropout else nn.Identity()
        for linear in (self.input, self.hidden, self.output):
            nn.init.normal_(linear.weight, std=INIT_STD)

    def forward(self, characters: Tensor) -> Tensor:
        """Scores, a row for each row of characters."""
        scores: Tensor = self.output(self.drop(self.states(self.embedding(characters))))
        return scores

    def states(self, x: Tensor) -> Tensor:
        """The state after the last of the vectors ``x`` (batch x time x embedding)."""
        if x.is_cuda and torch.backends.cudnn.enabled and isinstance(self.drop, nn.Dropout):
            return self._states_by_cudnn(x)
        units = self.hidden.weight.shape[1]  # fewer than UNITS at a client that holds a narrower network
        hidden = cell = x.new_zeros(x.shape[0], units)
        for pushed in self.input(x).unbind(1):
            hidden, cell = step(pushed + self.hidden(hidden), cell)
        return hidden

    def _states_by_cudnn(self, x: Tensor) -> Tensor:
        weights = [self.input.weight, self.hidden.weight]
        begin = x.new_zeros(1, x.shape[0], weights[1].shape[1])
        with warnings.catch_warnings():  # cuDNN wants them in one piece of memory; to copy them takes next to nothing
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous")
            _, hidden, _ = torch.lstm(x, (begin, begin), weights, False, 1, 0.0, True, False, True)
        last: Tensor = hidden[0]
        return last


def step(gates: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """One step in time: the next state and the next cell."""
    into, keep, new, out = gates.chunk(4, dim=-1)
    cell = keep.sigmoid() * cell + into.sigmoid() * new.tanh()
    return out.sigmoid() * cell.tanh(), cell


def lstm(shape: torch.Size, classes: int, *, dropout: float = DROPOUT) -> nn.Module:
    """The LSTM for rows of characters; as many characters as classes."""
    return LSTM(classes, dropout=dropout)
