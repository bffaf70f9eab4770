"""Training over radio links that lose messages, with pruned models and one-bit compressive sensing, cell by cell.

    make reproduce WHAT=wireless REPRODUCE="--data-dir DIR"

A cell is one run on Fashion-MNIST, kept as a small JSON file and not run again; one that is cut off goes on where it
stopped. All cells there are go into docs/reproduction/wireless.md. Settings and step sizes stand at the top of
wireless_studies.py. ``--only`` names studies; none renews the page alone:

    compare     dense, pruned, one-bit CS with and without retention, EDEN and FedMRN over one channel, 20 devices
    search      step sizes for the next, on a seed that no table uses
    retention   lost gradients retained or not where every second message is lost, 5 seeds

Studies are run one after the other: what the search finds counts for what comes after it.
"""

import time

import cells
import wireless_curves
import wireless_page
from cells import PAGES, Cell
from wireless_facts import facts
from wireless_studies import STUDIES, cost


def wanted(study: str, methods: list[str] | None) -> list[Cell]:
    """The cells of a study; of some methods only, if these are given."""
    return [cell for cell in STUDIES[study]() if not methods or cell.method in methods]


def main() -> None:
    asked = cells.parser("Wireless", list(STUDIES), list(STUDIES), "fedsgd, onebit-cs, eden, fedmrn").parse_args()
    if asked.list:
        print(cells.told([cell for study in asked.only for cell in wanted(study, asked.methods)], cost))
        return
    until = time.time() + asked.seconds
    for study in asked.only:
        cells.run(wanted(study, asked.methods), asked.data_dir, asked.jobs, until - time.time(), facts)
    wireless_curves.draw()
    cells.write(PAGES / "wireless.md", wireless_page.page())


if __name__ == "__main__":
    main()
