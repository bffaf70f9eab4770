"""FedSpa's Figures 1 and 3: clients' own accuracy by round and by bytes, two pictures a setting, of the first seed."""

import re
from itertools import product

import cells
from cells import PAGES
from fedmrn_curves import picture
from fedspa_studies import LONGER, METHODS, PATIENT, ROUNDS, SETS, SETTINGS, cell, place

from gossamer.runs.report.svg import Series

DRAWN = (*METHODS, "dst-0.2", "dst-0.8", "sub-fedavg-0.2", "sub-fedavg-0.8")
"""The rows of Table 1, and other densities where there are some."""
AXES = {"rounds": "round", "bytes": "GB sent and received"}


def draw() -> None:
    """Draw all pictures anew."""
    for data, setting, axis, rounds in product(SETS, SETTINGS, AXES, (ROUNDS, LONGER)):
        lines = series(data, setting, axis, rounds)
        if lines:
            title = f"{data}, setting {setting}: accuracy of clients' own models (%)"
            (PAGES / name(data, setting, axis, rounds)).write_text(drawn(title, axis, lines))


def name(data: str, setting: str, axis: str, rounds: int = ROUNDS) -> str:
    """The file of a picture."""
    return f"fedspa-{place(data, setting, rounds)}-{axis}.svg"


def drawn(title: str, axis: str, lines: list[Series]) -> str:
    """A picture without dots, and with the name of what goes across it."""
    plain = re.sub(r"<circle.*?</circle>", "", picture(title, lines))
    return plain.replace(f">{AXES['rounds']}<", f">{AXES[axis]}<")


def series(data: str, setting: str, axis: str, rounds: int = ROUNDS) -> list[Series]:
    """A line for each method that there is a cell of; who sends nothing has none by bytes."""
    methods = DRAWN if rounds == ROUNDS else PATIENT
    mine = {method: cell(data, setting, method, rounds=rounds) for method in methods}
    kept = {method: cells.read(each) for method, each in mine.items() if each.path.exists()}
    across = {m: found["rounds_told"] if axis == "rounds" else _giga(found["bytes"]) for m, found in kept.items()}
    points = {m: list(zip(across[m], found["personal"], strict=True)) for m, found in kept.items()}
    return [Series(method, line) for method, line in points.items() if any(at for at, _ in line)]


def _giga(sizes: list[int]) -> list[float]:
    return [size / 1e9 for size in sizes]
