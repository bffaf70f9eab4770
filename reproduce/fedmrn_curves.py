"""FedMRN's Figure 3: accuracy by round, a picture a split, from the cells of Table 1 that there are."""

from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import cells
from cells import PAGES
from fedmrn_studies import SPLITS, table1

from gossamer.runs.report.curves import COLOURS
from gossamer.runs.report.svg import HEIGHT, WIDTH, Series, chart

FEW = 5
"""An accuracy is drawn as the mean of so many rounds: single ones go up and down too much to be told apart."""
FLOOR = 40.0
"""What is below is drawn here, or a few bad rounds would press all else together."""
KEYS = 120
"""Room for the names, at the right."""
STYLE = (
    "text { fill: #5d6b7a; font: 12px system-ui, sans-serif } .grid { stroke: #d5dbe2 } "
    ".line { fill: none; stroke-width: 1.4; stroke-linejoin: round }"
)


def draw() -> None:
    """Draw all pictures anew."""
    for split in SPLITS:
        lines = series(split)
        if lines:
            (PAGES / name(split)).write_text(picture(f"Fashion-MNIST, {split}: accuracy (%)", lines))


def name(split: str) -> str:
    """The file of a split's picture."""
    return f"fedmrn-{split}.svg"


def series(split: str) -> list[Series]:
    """A line for each method: the first seed's run."""
    mine = [cell for cell in table1() if (cell.split, cell.seed) == (SPLITS[split], 0) and cell.path.exists()]
    return [Series(cell.method, smooth(cells.read(cell)["accuracy"])) for cell in mine]


def smooth(curve: list[float]) -> list[tuple[float, float]]:
    """The mean of each round and those just before it, and not below the floor."""
    means = ((end, sum(curve[end - FEW : end]) / FEW) for end in range(FEW, len(curve) + 1))
    return [(end, max(mean, FLOOR)) for end, mean in means]


def picture(title: str, lines: list[Series]) -> str:
    """A report's chart as a file that stands on its own: with colours, and names at the right."""
    drawn = ElementTree.fromstring(chart(title, "round", lines)).find("svg")
    assert drawn is not None
    drawn.set("xmlns", "http://www.w3.org/2000/svg")
    drawn.set("viewBox", f"0 0 {WIDTH + KEYS} {HEIGHT}")
    colours = " ".join(f".k{number} {{ {_look(number)} }}" for number in range(len(lines)))
    style = Element("style")
    style.text = f"{STYLE} {colours}"
    drawn.insert(0, style)
    drawn.extend(key for number, line in enumerate(lines) for key in _key(number, line.name))
    return ElementTree.tostring(drawn, encoding="unicode") + "\n"


def _look(number: int) -> str:
    dashes = "" if number < len(COLOURS) else "; stroke-dasharray: 4 2"
    return f"stroke: {COLOURS[number % len(COLOURS)]}{dashes}"


def _key(number: int, method: str) -> tuple[Element, Element]:
    y = 20 + 18 * number
    dash = Element("path", {"class": f"line k{number}", "d": f"M{WIDTH} {y}h22"})
    word = Element("text", {"x": str(WIDTH + 28), "y": str(y + 4)})
    word.text = method
    return dash, word
