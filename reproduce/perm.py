"""PERM's experiments (Deng et al., "Distributed personalized empirical risk minimization"), cell by cell.

    make reproduce WHAT=perm REPRODUCE="--data-dir DIR --jobs 2"

A cell is one run, kept as a small JSON file and not run again; one that is cut off goes on where it stopped. All cells
there are go into docs/reproduction/perm.md. Settings and step sizes stand at the top of perm_studies.py. ``--only``
names studies; none renews the page alone:

    search          step sizes of all methods on the synthetic data, on a seed that no table uses
    synthetic       Figure 1: 50 clients of two populations, labels balanced; and the paper's generator as it stands
    maps            Figure 6: MNIST, who learns from whom if clients have all digits, and if each has one
    cifar-search    step sizes on CIFAR-10, as above
    cifar           Figure 2: CIFAR-10, two classes a client, two convolutions
    cifar-longer    the same with PERM's models going round five times, which is as much work as the others have
    femnist         Figures 4 and 5: FEMNIST by writer

Studies are run one after the other, in the order in which they are named: what a search finds counts for those after
it. Without ``--only`` the first three are run. Cells whose data set is not in DIR are left out.
"""

import time

import cells
import perm_curves
import perm_page
from cells import PAGES, Cell
from perm_facts import engine, facts
from perm_studies import DEFAULT, STUDIES, cost


def wanted(study: str, methods: list[str] | None) -> list[Cell]:
    """The cells of a study, the longest first; of some methods only, if these are given."""
    found = [cell for cell in STUDIES[study]() if not methods or cell.method in methods]
    return sorted(found, key=cost, reverse=True)


def main() -> None:
    asked = cells.parser("PERM", list(STUDIES), DEFAULT, "perm, perm-two-stage, fedavg-tuned and so on").parse_args()
    if asked.list:
        print(cells.told([cell for study in asked.only for cell in wanted(study, asked.methods)], cost))
        return
    until = time.time() + asked.seconds
    for study in asked.only:
        cells.run(wanted(study, asked.methods), asked.data_dir, asked.jobs, until - time.time(), facts, engine)
    perm_curves.draw()
    cells.write(PAGES / "perm.md", perm_page.page())


if __name__ == "__main__":
    main()
