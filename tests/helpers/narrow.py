"""Narrow an optional value for a type checker, and fail the test if it is absent."""

from typing import TypeVar

T = TypeVar("T")


def present(value: T | None) -> T:
    """Return ``value``, which must not be None."""
    assert value is not None
    return value
