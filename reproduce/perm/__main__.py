"""Run PERM's experiments (Deng et al., 2023, https://arxiv.org/abs/2310.17761), cell by cell.

    make reproduce WHAT=perm REPRODUCE="--data-dir DIR --jobs 2"

A cell is one run; a stored cell does not run again, and an interrupted one resumes. Tables and plots of all stored
cells go to docs/reproduction/perm.md. Settings and step sizes are at the top of reproduce/perm/studies.py. ``--only``
names studies; without a name it only renders the page:

    search          step sizes of all methods on the synthetic data, on a separate seed
    synthetic       Figure 1: 50 clients of two populations, with balanced labels and with the paper's generator
    weights         Theorem 1: the error of the mixing weights after some rounds of FedAvg
    maps            Figure 6: MNIST, mixing weights for IID clients and for clients with one class each
    cifar-search    step sizes on CIFAR-10, on a separate seed
    cifar           Figure 2: CIFAR-10, two classes per client, two convolutions
    cifar-longer    the same with 260 rounds of `perm-two-stage`
    femnist         Figures 4 and 5: FEMNIST by writer

Studies run one after the other in the given order: the result of a search applies to the studies after it. Without
``--only`` the first four run. Cells without their data set in DIR are skipped.
"""

from reproduce.common.cli import Reproduction
from reproduce.perm import page
from reproduce.perm.facts import engine, facts
from reproduce.perm.studies import DEFAULT, STUDIES, cost

REPRODUCTION = Reproduction(
    name="perm",
    description="Run PERM's experiments, cell by cell.",
    studies=STUDIES,
    page=page.page,
    draw=page.draw,
    default=DEFAULT,
    methods="perm, perm-two-stage, fedavg-tuned, ...",
    cost=cost,
    more=facts,
    engine=engine,
)
main = REPRODUCTION.main

if __name__ == "__main__":
    main()
