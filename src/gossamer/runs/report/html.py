"""HTML from the templates of this package, by Jinja2 with escaping of every value."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from gossamer.core.extras import need

TEMPLATES = Path(__file__).parent / "templates"


@cache
def _environment() -> Any:
    need("jinja2")
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> str:
    """Return a template filled with values; text in them is escaped."""
    return str(_environment().get_template(template).render(values))


def card(text: str) -> str:
    """Return a card with a text."""
    return render("card.html", text=text)


def figure(
    title: str, drawing: str, keys: Sequence[str] = (), notes: Sequence[str] = (), colours: Sequence[int] = ()
) -> str:
    """Return a ``<figure>``.

    Args:
        title: the caption
        drawing: the figure as SVG
        keys: names of lines, in the order of their colours
        notes: lines below the drawing
        colours: the colour of each name; by default in the order of colours
    """
    named = list(zip(keys, colours or range(len(keys)), strict=True))
    return render("figure.html", title=title, drawing=drawing, keys=named, notes=notes)
