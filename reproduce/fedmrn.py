"""FedMRN's experiments (Li et al., 2024): its tables and figures, cell by cell.

    make reproduce WHAT=fedmrn REPRODUCE="--data-dir DIR --jobs 8 --only table1"

A cell is one run, kept as a small JSON file and not run again, so that the tables can grow over several goes; all cells
there are go into docs/reproduction/fedmrn.md and the pictures beside it. ``--only`` names studies; none renews the page
alone:

    search              learning rates of the methods for which none is published, 25 rounds of labels:3
    table1              Fashion-MNIST, three splits, ten methods
    cifar               CIFAR-10, labels:3, five methods
    ablation            Figure 4: masking without its parts, and after training only
    noise               Figure 5: kind and magnitude of the noise, reduced
    times               Figure 6: how long a client trains and encodes, on the device at hand
    error               the masking error of Assumption 4 on real updates, a few rounds of labels:3 on a CPU
    shakespeare         Table 3: the LSTM on the file of roles, three methods
    shakespeare-plain   the same without dropout, which a GPU does several times faster
    shakespeare-noise   the same with more noise, for FedMRN
"""

import argparse
from pathlib import Path

import cells
import fedmrn_curves
import fedmrn_error
import fedmrn_page
import fedmrn_times
from cells import PAGES
from fedmrn_studies import STUDIES

TIMES, ERROR = "times", "error"


def main() -> None:
    parser = argparse.ArgumentParser(description="FedMRN's experiments, cell by cell.")
    parser.add_argument("--data-dir", type=Path, default=Path("data"))
    names = [*STUDIES, TIMES, ERROR]
    parser.add_argument("--only", choices=names, nargs="*", default=names, help="studies (all)")
    parser.add_argument("--methods", nargs="*", help="methods (all)")
    parser.add_argument("--jobs", type=int, default=1, help="cells at once")
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no cell after so long")
    asked = parser.parse_args()
    if TIMES in asked.only:
        fedmrn_times.keep()
    if ERROR in asked.only:
        fedmrn_error.keep(asked.data_dir)
    wanted = [cell for name in asked.only if name in STUDIES for cell in STUDIES[name]()]
    mine = [cell for cell in wanted if not asked.methods or cell.method in asked.methods]
    cells.run(mine, asked.data_dir, asked.jobs, asked.seconds)
    fedmrn_curves.draw()
    cells.write(PAGES / "fedmrn.md", fedmrn_page.page())


if __name__ == "__main__":
    main()
