"""An LSTM that classifies an image from its rows: a small recurrent network that needs no text."""

from torch import Tensor, nn

from gossamer.tasks.nets.text import step


class RowLSTM(nn.Module):
    """Read the rows of an image from top to bottom, and score the classes by the last state.

    Args:
        width: the number of pixels of a row
        classes: the number of classes
        units: the size of the state
    """

    def __init__(self, width: int, classes: int, units: int = 64) -> None:
        super().__init__()
        self.input = nn.Linear(width, 4 * units)
        self.hidden = nn.Linear(units, 4 * units, bias=False)
        self.output = nn.Linear(units, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Return scores, one row per image of one channel."""
        hidden = cell = images.new_zeros(images.shape[0], self.hidden.weight.shape[1])
        for pushed in self.input(images.squeeze(1)).unbind(1):
            hidden, cell = step(pushed + self.hidden(hidden), cell)
        scores: Tensor = self.output(hidden)
        return scores
