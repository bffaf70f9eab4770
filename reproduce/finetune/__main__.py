"""Fine-tune a language model with 50 clients: perplexity, bytes, memory and operations of each method.

    make reproduce WHAT=finetune REPRODUCE="--data-dir DIR --jobs 8"

The folder has tinyshakespeare_roles.json. The steps, in order; ``--only`` chooses some of them:

    pretrain    the model that all runs start from: a minute on a GPU
    tune        all candidates of hyper-parameters on held-out sequences
    measure     all methods with the chosen ones, over three seeds
    base        the model as it is, and the memory that a client needs

Finished runs are stored, and do not run again, unless other hyper-parameters have been chosen since. The tables go to
docs/reproduction/finetune.md.
"""

import time
from collections.abc import Sequence

from reproduce.common import cli, tables
from reproduce.finetune import page, runs
from reproduce.finetune.rows import ROWS
from reproduce.finetune.settings import STUDY

STEPS = ("pretrain", "tune", "measure", "base")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the chosen steps, then render the page."""
    parser = cli.parser("Measure methods of federated fine-tuning.")
    parser.add_argument("--only", choices=STEPS, nargs="*", default=list(STEPS), help="steps (all)")
    parser.add_argument("--rows", choices=ROWS, nargs="*", default=list(ROWS), help="rows of the table (all)")
    asked = parser.parse_args(argv)
    until = time.time() + asked.seconds
    for step in asked.only:
        if step in ("tune", "measure"):
            runs.run(step, asked.rows, asked.data_dir, asked.jobs, until - time.time())
        else:
            {"pretrain": runs.pretrain, "base": runs.base}[step](asked.data_dir)
    tables.write(STUDY, page.page())


if __name__ == "__main__":
    main()
