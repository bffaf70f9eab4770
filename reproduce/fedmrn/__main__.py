"""Run FedMRN's experiments (Li et al., 2024, https://arxiv.org/abs/2408.03220): its tables and figures, cell by cell.

    make reproduce WHAT=fedmrn REPRODUCE="--data-dir DIR --jobs 8 --only table1"

A cell is one run; a stored cell does not run again. Tables and plots of all stored cells go to
docs/reproduction/fedmrn.md. ``--only`` names studies; without a name it only renders the page:

    search              learning rates of the methods without a published one, 25 rounds of labels:3
    table1              Fashion-MNIST, three splits, ten methods
    cifar               CIFAR-10, labels:3, five methods
    ablation            Figure 4: masking without its parts, and only after training
    noise               Figure 5: distribution and magnitude of the noise, reduced
    times               Figure 6: times of training and encoding, on this machine's device
    error               the masking error of Assumption 4 on real updates, a few rounds of labels:3 on a CPU
    shakespeare         Table 3: the LSTM on Shakespeare by role, three methods
    shakespeare-plain   the same without dropout, several times faster on a GPU
    shakespeare-noise   the same with more noise, FedMRN only
    digits              the bundled digits on a CPU: alpha auto, an MLP, 40 rounds
    roles               Table 3 with weights by samples, every fourth sample, seven methods
    auto                Table 1 with the noise measured from the updates (alpha auto)
    cifar-auto          CIFAR-10 with alpha auto
    spread              bits per weight against accuracy, 25 rounds of dirichlet:0.3, on held-out samples
    roles-search        the same on Shakespeare, on held-out roles
    seen                masks in training, or after it, on three tasks with held-out samples
    roles-rates         learning rates on Shakespeare with all samples, 25 rounds, on held-out roles
    roles-full          Table 3 with weights by samples and all samples
"""

from reproduce.common.cli import Reproduction
from reproduce.fedmrn import bits, error, page, times
from reproduce.fedmrn.studies import STUDIES

REPRODUCTION = Reproduction(
    name="fedmrn",
    description="Run FedMRN's experiments, cell by cell.",
    studies=STUDIES,
    page=page.page,
    draw=page.draw,
    methods="fedavg, fedmrn, eden, ...",
    more=bits.measured,
    measurements={"times": times.keep, "error": error.keep},
)
main = REPRODUCTION.main

if __name__ == "__main__":
    main()
