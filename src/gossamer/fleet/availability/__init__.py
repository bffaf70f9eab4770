"""When clients are available: always, Markov on and off times, day and night, and traces.

A model describes a device type, as ``availability`` in a fleet file: ``markov:on=10min,off=30min``. Its ``of_client``
returns the intervals of one client of a run. They follow from the run's key and the client's number.
"""

from gossamer.core.specs import parse
from gossamer.fleet.availability.always import AlwaysAvailable
from gossamer.fleet.availability.base import AvailabilityModel
from gossamer.fleet.availability.daily import Daily
from gossamer.fleet.availability.markov import Markov
from gossamer.fleet.availability.trace import AvailabilityTrace

__all__ = ["MODELS", "AlwaysAvailable", "AvailabilityModel", "AvailabilityTrace", "Daily", "Markov", "read_model"]

MODELS: dict[str, type[AvailabilityModel]] = {
    "always": AlwaysAvailable,
    "markov": Markov,
    "daily": Daily,
    "trace": AvailabilityTrace,
}
"""Models by the name that fleet files use."""


def read_model(text: str) -> AvailabilityModel:
    """Return the model of a text such as ``markov:on=10min,off=30min``."""
    return parse(text, MODELS, "availability")
