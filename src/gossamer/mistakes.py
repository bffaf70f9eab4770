"""Collects what is wrong, so that the user sees all of it at once."""

from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from gossamer.errors import ConfigError, gather

P = ParamSpec("P")
T = TypeVar("T")


class Mistakes:
    """What was found wrong so far, each thing once."""

    def __init__(self, found: Iterable[str] = ()) -> None:
        self.found: list[str] = []
        self.note(*found)

    def note(self, *mistakes: str) -> None:
        """Remember mistakes."""
        self.found += [mistake for mistake in dict.fromkeys(mistakes) if mistake not in self.found]

    def attempt(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        """What a function returns; ``None`` when it finds mistakes, which are remembered."""
        try:
            return function(*args, **kwargs)
        except ConfigError as error:
            self.note(*error.mistakes)
            return None

    def settle(self) -> None:
        """Stop here if there are any."""
        gather(self.found)
