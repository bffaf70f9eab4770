"""Run training over lossy radio links, with pruned models and one-bit compressive sensing, cell by cell.

    make reproduce WHAT=wireless REPRODUCE="--data-dir DIR"

A cell is one run on Fashion-MNIST; a stored cell does not run again, and an interrupted one resumes. Tables and plots
of all stored cells go to docs/reproduction/wireless.md. Settings and step sizes are at the top of
reproduce/wireless/studies.py. ``--only`` names studies; without a name it only renders the page:

    compare     dense, pruned, one-bit CS with and without retention, EDEN and FedMRN over one channel, 20 devices
    sweep       fewer measurements, retransmission and z-SignFedAvg, over the same channel
    search      step sizes of ``retention``, on a separate seed
    retention   retention of lost gradients where every second message is lost, 5 seeds

Studies run one after the other: the result of the search applies to ``retention``.
"""

from reproduce.common.cli import Reproduction
from reproduce.wireless import page
from reproduce.wireless.facts import facts
from reproduce.wireless.studies import STUDIES, cost

REPRODUCTION = Reproduction(
    name="wireless",
    description="Run training over lossy radio links, cell by cell.",
    studies=STUDIES,
    page=page.page,
    draw=page.draw,
    methods="fedsgd, onebit-cs, eden, fedmrn, z-signfedavg",
    cost=cost,
    more=facts,
)
main = REPRODUCTION.main

if __name__ == "__main__":
    main()
