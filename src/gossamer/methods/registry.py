"""The one list of recipes: the command line, the root of the package, the tables of the docs and the tests read it."""

from collections.abc import Callable
from typing import TypeVar

from gossamer.method import Method

Recipe = Callable[..., Method]
R = TypeVar("R", bound=Recipe)

METHODS: dict[str, Recipe] = {}
"""Recipes by the name that the command line uses."""


def recipe(function: R) -> R:
    """Declare a recipe: ``per_fedavg`` is ``per-fedavg`` on the command line."""
    METHODS[function.__name__.replace("_", "-")] = function
    return function
