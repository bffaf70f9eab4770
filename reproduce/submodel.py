"""The experiments on sub-model training of Deng, Qiao and Mahdavi, cell by cell.

    make reproduce WHAT=submodel REPRODUCE="--data-dir DIR --jobs 8 --seconds 1300"

A cell is one run, kept as a small JSON file and not run again; one that is cut off goes on where it stopped. All cells
there are go into docs/reproduction/submodel.md. The number of rounds and the learning rate stand at the top of
submodel_studies.py. ``--only`` names studies; none renews the page alone:

    high        CIFAR-10, 2 labels a client: capacities drawn, all 1, all 1/16
    narrow      CIFAR-10, 2 labels a client: capacities all 1/4, all 1/8
    low         CIFAR-10, 5 labels a client: capacities drawn, all 1/16, all 1
    seeds       more seeds of what matters most, which takes almost as long as the three above
    times       how long a client trains, by width and by how channels are chosen, on the device at hand; run it alone
    search      learning rates, a few rounds each
    cifar-100   CIFAR-100, 20 and 50 labels a client

Without ``--only`` the first three are run, in this order: what time does not suffice for is the least important.
"""

import argparse
from pathlib import Path

import cells
import submodel_page
import submodel_times
from cells import PAGES, Cell
from submodel_facts import facts
from submodel_studies import DEFAULT, STUDIES, cost

TIMES = "times"


def wanted(studies: list[str], methods: list[str] | None) -> list[Cell]:
    """The cells of some studies, each once, the most important first; of some methods only, if these are given."""
    found = {cell.name: cell for name in studies if name != TIMES for cell in STUDIES[name]()}
    return [cell for cell in found.values() if not methods or set(methods) & set(cell.name.split("-"))]


def main() -> None:
    parser = argparse.ArgumentParser(description="Sub-model training, cell by cell.")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    parser.add_argument("--only", choices=[*STUDIES, TIMES], nargs="*", default=DEFAULT, help="studies")
    parser.add_argument("--methods", nargs="*", help="rolling, shuffled, random, published, static (all)")
    parser.add_argument("--jobs", type=int, default=1, help="cells at once")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no cell after so long")
    parser.add_argument("--list", action="store_true", help="only say which cells there are, and their cost")
    asked = parser.parse_args()
    mine = wanted(asked.only, asked.methods)
    if asked.list:
        print(cells.told(mine, cost))
        return
    if TIMES in asked.only:
        submodel_times.keep()
    cells.run(mine, asked.data_dir, asked.jobs, asked.seconds, facts)
    cells.write(PAGES / "submodel.md", submodel_page.page())


if __name__ == "__main__":
    main()
