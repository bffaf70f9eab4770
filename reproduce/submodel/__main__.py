"""Run the experiments on sub-model training of Deng, Qiao and Mahdavi (2025, https://arxiv.org/abs/2511.06132).

    make reproduce WHAT=submodel REPRODUCE="--data-dir DIR --jobs 8 --seconds 1300"

A cell is one run; a stored cell does not run again, and an interrupted one resumes. Tables of all stored cells go to
docs/reproduction/submodel.md. Rounds and learning rate are at the top of reproduce/submodel/studies.py. ``--only``
names studies; without a name it only renders the page:

    high        CIFAR-10, 2 labels per client: capacities drawn, all 1, all 1/16
    narrow      CIFAR-10, 2 labels per client: capacities all 1/4, all 1/8
    low         CIFAR-10, 5 labels per client: capacities drawn, all 1/16, all 1
    seeds       more seeds of the published draw and of capacity 1, which take long
    epochs      CIFAR-10, 2 labels per client, capacities drawn, 3 seeds: Algorithm 2 with 8 offsets, FIARSE, and the
                paper's own aggregation beside that of FedRolex
    table-4     CIFAR-10, 2 labels per client, capacities 1/4 or 1/8, 3 seeds
    fashion     Fashion-MNIST with a small network, 3 seeds; some minutes on a CPU
    search      learning rates, a few rounds each
    cifar-100   CIFAR-100, 20 and 50 labels per client
    times       training time of a client by width and choice of channels, on this machine's device; run it alone

Without ``--only`` the first three run in this order, the most important first.
"""

from reproduce.common.cells import Cell
from reproduce.common.cli import Reproduction
from reproduce.submodel import curves, page, times
from reproduce.submodel.facts import facts
from reproduce.submodel.studies import DEFAULT, STUDIES, cost


def labels(cell: Cell) -> list[str]:
    """Return the words of a cell's name: one of them is its choice of channels."""
    return cell.name.split("-")


REPRODUCTION = Reproduction(
    name="submodel",
    description="Run the experiments on sub-model training, cell by cell.",
    studies=STUDIES,
    page=page.page,
    draw=curves.draw,
    default=DEFAULT,
    methods="rolling, shuffled, random, published, static, fiarse, cohort",
    labels=labels,
    cost=cost,
    more=facts,
    measurements={"times": times.keep},
)
main = REPRODUCTION.main

if __name__ == "__main__":
    main()
