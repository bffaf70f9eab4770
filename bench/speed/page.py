"""Render results for docs/speed.md: the tables between its two marks, and the figure.

python bench/speed/page.py        from bench/speed/results/full.json
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import table
import workloads
from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from race import Outcome

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results" / "full.json"
PAGE, PICTURE = ROOT / "docs" / "speed.md", ROOT / "docs" / "speed.svg"
BEGIN, END = "<!-- written by bench/speed/page.py: begin -->", "<!-- written by bench/speed/page.py: end -->"
OURS, PLAIN, PEER = "#2f6f8f", "#9a9a9a", "#d0a060"
TITLES = {
    "w1": "W1: MLP, 10 clients per round",
    "w2": "W2: CNN, 10 clients per round",
    "w3-10": "W3: MLP, 10 of 10,000 clients",
    "w3-100": "W3: MLP, 100 of 10,000 clients",
    "w3-1000": "W3: MLP, 1,000 of 10,000 clients",
}


def write() -> None:
    """Update page and figure."""
    stored = json.loads(RESULTS.read_text())
    results = {name: stored[name] for name in TITLES if name in stored}
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{BEGIN}\n\n{sections(results)}\n\n{END}{after}")
    draw({name: outcomes(found) for name, found in results.items()})


def outcomes(found: dict[str, Any]) -> list[Outcome]:
    return [Outcome.read(stored) for stored in found["systems"]]


def sections(results: dict[str, Any]) -> str:
    """Return one section per workload."""
    return "\n\n".join(section(name, found) for name, found in results.items())


def section(name: str, found: dict[str, Any]) -> str:
    facts = found["about"]
    measured = f"{facts['data']}; {facts['processor']}, {facts['cores']} cores; torch {facts['torch']}; {facts['day']}"
    setting = f"{workloads.WORKLOADS[name].describe()}. {measured}."
    return f"### {TITLES[name]}\n\n{setting}\n\n{table.markdown(outcomes(found))}"


def draw(results: dict[str, list[Outcome]]) -> None:
    """Draw the speed of each system relative to the plain loop, one panel per workload."""
    rcParams.update({"svg.hashsalt": "gossamer", "svg.fonttype": "none"})  # the same results give the same file
    columns = 2
    lines = -(-len(results) // columns)
    figure = Figure(figsize=(11, 3.4 * lines), layout="constrained")
    axes = figure.subplots(lines, columns, squeeze=False).flatten()
    for axis, (name, found) in zip(axes, results.items(), strict=False):
        panel(axis, TITLES[name], found)
    for axis in axes[len(results) :]:
        axis.set_visible(False)
    figure.savefig(PICTURE, metadata={"Date": None})


def panel(axis: Axes, title: str, found: Sequence[Outcome]) -> None:
    rows = table.rows(found)[::-1]
    colours = {"gossamer": OURS, table.PLAIN: PLAIN}
    bars = axis.barh(
        [row.outcome.name for row in rows],
        [row.speed for row in rows],
        color=[colours.get(row.outcome.family, PEER) for row in rows],
    )
    axis.bar_label(bars, [f" {row.speed:.2f}" for row in rows], fontsize=8)
    axis.axvline(1, color="black", linewidth=0.8)
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("speed relative to the plain loop", fontsize=8)
    axis.tick_params(labelsize=8)
    axis.margins(x=0.12)
    axis.spines[["top", "right"]].set_visible(False)


if __name__ == "__main__":
    write()
