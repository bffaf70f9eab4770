"""The command line of a reproduction: shared arguments, and the steps from cells to a page."""

import argparse
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from reproduce.common import cells, tables
from reproduce.common.cells import Cell, Engine, More, Studies


def by_method(cell: Cell) -> Collection[str]:
    """Return the names that ``--methods`` selects a cell by: its recipe."""
    return (cell.method,)


@dataclass(frozen=True)
class Reproduction:
    """The experiments of one paper, as its command line runs them.

    Args:
        name: page in ``docs/reproduction``, without its ending
        description: description on the command line
        studies: cells by study, in the order of importance
        page: returns the generated part of the page
        draw: draws all plots
        default: studies that run without ``--only``; all if empty
        methods: help text of ``--methods``
        labels: names that ``--methods`` selects a cell by
        cost: operations of a cell in units of 10^15; unknown if None
        more: further values to store of each run
        engine: replacement for ``simulate``
        measurements: studies that are no cells; each takes the data folder
    """

    name: str
    description: str
    studies: Studies
    page: Callable[[], str]
    draw: Callable[[], None] = lambda: None
    default: Sequence[str] = ()
    methods: str = "methods"
    labels: Callable[[Cell], Collection[str]] = by_method
    cost: Callable[[Cell], float] | None = None
    more: More = cells.no_more
    engine: Engine | None = None
    measurements: Mapping[str, Callable[[Path], None]] = field(default_factory=dict)

    def main(self, argv: Sequence[str] | None = None) -> None:
        """Run the cells of the chosen studies, one study after the other, then render plots and page."""
        asked = self.parser().parse_args(argv)
        if asked.list:
            print(self.listing([cell for study in asked.only for cell in self.wanted(study, asked.methods)]))
            return
        until = time.time() + asked.seconds
        for study in asked.only:
            if study in self.measurements:
                self.measurements[study](asked.data_dir)
                continue
            mine = self.wanted(study, asked.methods)
            cells.run(mine, asked.data_dir, asked.jobs, until - time.time(), self.more, self.engine)
        self.draw()
        tables.write(self.name, self.page())

    def parser(self) -> argparse.ArgumentParser:
        """Return the parser of the shared arguments, ``--only``, ``--methods`` and ``--list``."""
        names = [*self.studies, *self.measurements]
        made = parser(self.description)
        made.add_argument("--only", choices=names, nargs="*", default=list(self.default) or names, help="studies")
        made.add_argument("--methods", nargs="*", help=f"{self.methods} (all)")
        made.add_argument(
            "--list", action="store_true", help="list the cells, with their cost where it is known, and run nothing"
        )
        return made

    def wanted(self, study: str, methods: Collection[str] | None = None) -> list[Cell]:
        """Return the cells of a study, of the given methods only."""
        every = self.studies[study]() if study in self.studies else ()
        return [cell for cell in every if not methods or set(methods) & set(self.labels(cell))]

    def listing(self, mine: Sequence[Cell]) -> str:
        """Return one line per cell, with its rough cost in units of 10^15 operations, and the remaining cost."""
        mine = list({cell.name: cell for cell in mine}.values())
        names = [f"{cell.name}{' (stored)' if cell.stored else ''}" for cell in mine]
        if self.cost is None:
            return "\n".join(names)
        lines = [f"{self.cost(cell):6.2f}  {name}" for cell, name in zip(mine, names, strict=True)]
        left = sum(self.cost(cell) for cell in mine if not cell.stored)
        return "\n".join([*lines, f"{left:6.2f}  PFLOP left to run"])


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the arguments that all scripts with cells share."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--data-dir", type=Path, default=Path("data"), help="folder of the data sets (data)")
    made.add_argument("--jobs", type=int, default=1, help="cells in parallel (1)")
    made.add_argument("--seconds", type=float, default=1e9, help="start no cell after this time")
    return made
