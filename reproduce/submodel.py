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
    methods = "rolling, shuffled, random, published, static"
    asked = cells.parser("Sub-model training", [*STUDIES, TIMES], DEFAULT, methods).parse_args()
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
