"""Run FedSpa's experiments (Huang et al., 2022, https://arxiv.org/abs/2201.11380), cell by cell.

    make reproduce WHAT=fedspa REPRODUCE="--data-dir DIR --jobs 4 --seconds 1300"

A cell is one run; a stored cell does not run again, and an interrupted one resumes. Tables and plots of all stored
cells go to docs/reproduction/fedspa.md. The number of rounds is at the top of reproduce/fedspa/studies.py. ``--only``
names studies; without a name it only renders the page:

    claims             CIFAR-10: FedSpa's moving and static masks and FedAvg in all settings; ERK and uniform densities
    baselines          CIFAR-10: Ditto, Sub-FedAvg, Subsampling and Local in all settings
    densities          CIFAR-10, setting B: densities 0.2 to 0.8 of FedSpa, 0.2 and 0.8 of Sub-FedAvg
    ablations          CIFAR-10: random regrowth, a separate initial mask per client, uniform densities
    longer             CIFAR-10, setting B: FedSpa and FedAvg with four times the rounds
    hybrid             CIFAR-10: Sub-FedAvg that also prunes channels of convolutions, in all settings
    seeds              more seeds of ``claims``; takes twice as long
    fashion            Fashion-MNIST with LeNet5: the claims, one hour on a CPU
    fashion-seeds      more seeds of ``fashion``
    drift              a convex problem: the drift of masks and the bound of Theorem 1, two minutes on a CPU
    fashion-densities  Fashion-MNIST: densities 0.2 to 0.8 of FedSpa
    emnist-letters     EMNIST-Letters with LeNet5: all methods in all settings
    cifar-100          CIFAR-100 with ResNet18-GN: the same, and all variants, in all settings

Without ``--only`` the first five and ``drift`` run, the most important first. Cells without their data set in DIR are
skipped.
"""

from reproduce.common.cells import Cell
from reproduce.common.cli import Reproduction
from reproduce.fedspa import drift, page
from reproduce.fedspa.facts import facts
from reproduce.fedspa.studies import DEFAULT, STUDIES, cost, variant


def labels(cell: Cell) -> tuple[str]:
    """Return the method or variant of a cell."""
    return (variant(cell),)


REPRODUCTION = Reproduction(
    name="fedspa",
    description="Run FedSpa's experiments, cell by cell.",
    studies=STUDIES,
    page=page.page,
    draw=page.draw,
    default=(*DEFAULT, "drift"),
    methods="dst, rsm, fedavg, ditto, dst-0.2, ...",
    labels=labels,
    cost=cost,
    more=facts,
    measurements={"drift": drift.keep},
)
main = REPRODUCTION.main

if __name__ == "__main__":
    main()
