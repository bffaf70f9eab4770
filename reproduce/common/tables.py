"""Markdown tables and the pages that contain them."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from reproduce.common import store
from reproduce.common.cells import Studies

MARK = "<!-- table -->"
"""What comes after this line of a page is generated."""


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (heads, ["---"] * len(heads), *rows))


def section(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], note: str = "", level: int = 3) -> str:
    """Return a table below a title and a note; an empty string for a table without rows."""
    full = list(rows)
    above = [f"\n{'#' * level} {title}\n", *([f"{note}\n"] if note else [])]
    return "\n".join([*above, markdown(heads, full)]) if full else ""


def picture(text: str, file: str) -> str:
    """Return a link to a picture in the folder of the pages."""
    return f"![{text}]({file})"


def joined(parts: Iterable[str]) -> str:
    """Join the parts of a page that are not empty."""
    return "\n".join(part for part in parts if part)


def missing(studies: Studies, *others: str) -> str:
    """Return a line that names the studies without all of their cells, and other missing measurements."""
    absent = []
    for name, study in studies.items():
        every = list(study())
        count = sum(not cell.stored for cell in every)
        absent += [f"`{name}` ({count} of {len(every)} cells)"] if count else []
    absent += [f"`{other}`" for other in others]
    return f"\n**Not run yet:** {', '.join(absent)}." if absent else "\n**All cells are complete.**"


def write(name: str, generated: str) -> None:
    """Replace the generated part of a page, and print it."""
    page: Path = store.PAGES / f"{name}.md"
    before, mark, _ = page.read_text().partition(MARK)
    page.write_text(f"{before}{mark or MARK}\n{generated}\n")
    print(generated)
