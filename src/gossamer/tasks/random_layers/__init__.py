"""Random layers: dropout and other layers draw from the run's keys, so that all executors draw the same numbers."""

from gossamer.tasks.random_layers.mode import Layers, Numbers, Recorded, Size, drawing
from gossamer.tasks.random_layers.trial import Randomness, trial

__all__ = ["Layers", "Numbers", "Randomness", "Recorded", "Size", "drawing", "trial"]
