"""Accuracy under differential privacy and secure aggregation, on Fashion-MNIST and CIFAR-10.

    make reproduce WHAT=privacy REPRODUCE="--data-dir DIR --jobs 16 --only fashion-tune fashion"

A cell is one run, of about 40 s on one CPU core; a stored cell does not run again. The tables of all stored cells go to
docs/reproduction/privacy.md. ``--only`` names studies; without a name it only renders the page:

    fashion-tune    hyper-parameters of all rows, on held-out training samples of Fashion-MNIST
    cifar-tune      the same for CIFAR-10
    fashion         accuracy by epsilon, and with sums instead of single updates
    cifar           the same for CIFAR-10, without distributed noise

``bench/private_peer.py`` adds runs of pfl-research.
"""

from reproduce.common.cli import Reproduction
from reproduce.common.protection import simulate_private
from reproduce.privacy import page
from reproduce.privacy.studies import STUDIES, STUDY, more

REPRODUCTION = Reproduction(
    STUDY,
    "Measure accuracy under differential privacy and secure aggregation.",
    STUDIES,
    page.page,
    methods="fedavg, signsgd, fedmrn",
    more=more,
    engine=simulate_private,
)
main = REPRODUCTION.main

if __name__ == "__main__":
    main()
