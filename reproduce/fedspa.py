"""FedSpa's experiments (Huang et al., "Achieving personalized federated learning with sparse local models"), by cell.

    make reproduce WHAT=fedspa REPRODUCE="--data-dir DIR --jobs 4 --seconds 1300"

A cell is one run, kept as a small JSON file and not run again; one that is cut off goes on where it stopped. All cells
there are go into docs/reproduction/fedspa.md. The number of rounds stands at the top of fedspa_studies.py. ``--only``
names studies; none renews the page alone:

    claims          CIFAR-10: FedSpa's moving and static masks beside FedAvg in all settings; ERK beside uniform
    baselines       CIFAR-10: Ditto, Sub-FedAvg, Subsampling and Local in all settings
    densities       CIFAR-10, setting B: densities 0.2 and 0.8 of FedSpa and Sub-FedAvg
    ablations       CIFAR-10: random regrowth, masks of clients' own from the start, uniform densities
    longer          CIFAR-10, setting B: FedSpa and FedAvg with four times the rounds
    hybrid          CIFAR-10: Sub-FedAvg with channels of convolutions, in all settings
    seeds           more seeds of ``claims``, which takes twice as long as that
    fashion         Fashion-MNIST with LeNet5: the claims, which a CPU has done in an hour
    fashion-seeds   more seeds of ``fashion``
    emnist-letters  EMNIST-Letters with LeNet5: all methods in all settings
    cifar-100       CIFAR-100 with ResNet18-GN: the same, and all variants in setting B

Without ``--only`` the first five are run, in this order: what time does not suffice for is the least important. Cells
whose data set is not in DIR are left out.
"""

import cells
import fedspa_curves
import fedspa_page
from cells import PAGES, Cell
from fedspa_facts import facts
from fedspa_studies import DEFAULT, STUDIES, cost


def wanted(studies: list[str], methods: list[str] | None) -> list[Cell]:
    """The cells of some studies, each once, the most important first; of some methods only, if these are given."""
    found = {cell.name: cell for name in studies for cell in STUDIES[name]()}
    return [cell for cell in found.values() if not methods or method(cell) in methods]


def method(cell: Cell) -> str:
    """A cell's method or variant: what its name has between setting and seed."""
    return cell.name.removeprefix(f"fedspa-{cell.data}-").partition("-")[2].rpartition("-")[0]


def main() -> None:
    asked = cells.parser("FedSpa", list(STUDIES), DEFAULT, "dst, rsm, fedavg, ditto, dst-0.2 and so on").parse_args()
    mine = wanted(asked.only, asked.methods)
    if asked.list:
        print(cells.told(mine, cost))
        return
    cells.run(mine, asked.data_dir, asked.jobs, asked.seconds, facts)
    fedspa_curves.draw()
    cells.write(PAGES / "fedspa.md", fedspa_page.page())


if __name__ == "__main__":
    main()
