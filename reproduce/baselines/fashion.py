"""FedAvg on Fashion-MNIST as in Table 1 of FedMRN (https://arxiv.org/abs/2408.03220).

    make reproduce WHAT=fashion REPRODUCE="--data-dir DIR --jobs 8"

CNN4, 100 clients, 10 per round, 10 epochs, batches of 64, 100 rounds; three splits, three seeds, one cell each. Stored
cells do not run again. The table of all stored cells goes to docs/reproduction/fashion.md. Cells run on a GPU if there
is one.
"""

from collections.abc import Iterator, Sequence

from reproduce.common import cells, cli, tables
from reproduce.common.cells import Cell
from reproduce.common.seeds import spread

PAGE = "fashion"
PAPER = {"iid": 92.0, "dirichlet:0.3,min_samples=10": 90.5, "labels:3": 88.8}
GIVEN = {"lr": 0.03, "epochs": 10, "batch": 64, "weights": "batches"}


def all_cells() -> Iterator[Cell]:
    for seed in (0, 1, 2):
        for split in PAPER:
            name = f"fashion-{split.partition(',')[0].replace(':', '-')}-{seed}"
            yield Cell(name, "fedavg", GIVEN, "fashion-mnist:norm=fedmrn", "cnn4", split, seed, 100)


def table() -> str:
    """Return best and last rounds by split, next to the published values."""
    rows = []
    for split, paper in PAPER.items():
        found = cells.read_all(cell for cell in all_cells() if cell.split == split)
        if found:
            best, last = (spread([facts[name] for facts in found]) for name in ("best", "last"))
            rows.append([f"`{split}`", f"{paper}", best, last, f"{len(found)}"])
    return tables.markdown(["split", "paper, best round", "best round", "last round", "seeds"], rows)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the missing cells, then render the page."""
    asked = cli.parser("Run FedAvg on Fashion-MNIST, as in FedMRN's Table 1.").parse_args(argv)
    cells.run(list(all_cells()), asked.data_dir, asked.jobs, asked.seconds)
    tables.write(PAGE, table())


if __name__ == "__main__":
    main()
