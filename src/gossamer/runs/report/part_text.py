"""Read the parts of a method from their recorded text, such as ``Robust(rule=Median(), mean=Mean())``."""

import ast
from collections.abc import Mapping
from typing import Any

from gossamer.parts.servers.robust import PLAIN

ROBUST = "Robust"
"""The server with a rule in place of the mean."""


def parsed(text: str) -> ast.expr:
    """Return the expression of a part; a constant with the text if it is none."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # a part of the user's may print anything
        return ast.Constant(text)


def chosen_server(about: Mapping[str, Any]) -> str | None:
    """Return the server that replaces the one of the recipe, with its fields; none if the recipe's own is used.

    Of a robust server it is the rule. A server that Python code has put in, and that is not robust, is not told from
    the recipe's own.
    """
    text, asked = about["method"].get("server", ""), (about["request"] or {}).get("server")
    match parsed(text):
        case ast.Call(func=ast.Name(id=name), keywords=[ast.keyword(arg="rule", value=rule), *_]) if name == ROBUST:
            return ast.get_source_segment(text, rule)
    return text if asked and asked != PLAIN else None
