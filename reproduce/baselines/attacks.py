"""Attacks of hostile clients against servers and one-bit codecs, on Fashion-MNIST.

    make reproduce WHAT=attacks REPRODUCE="--data-dir DIR --jobs 16"

20 clients with 500 images each, all of them in every round; an MLP with 64 hidden units (55,050 parameters), 15 rounds
of 2 epochs in batches of 50, learning rate 0.1, nothing tuned per row. 2 or 6 clients are hostile (10 and 30 %), the
same ones for every row of a seed. Splits: iid, and a Dirichlet distribution of labels with 0.3. Three seeds. A cell
takes about 3 s on one CPU core. Servers that need the number of hostile clients are told the true one.

The rows of Flower call the aggregation functions of its strategies on the same updates (``flower_rules``). Bulyan needs
4 f + 3 clients for f hostile ones, so it has no row for 6 of 20.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from gossamer import Method, Result, RunError, Task, load_run, simulate
from reproduce.common import tables
from reproduce.common.cells import Cell, Studies
from reproduce.common.cli import Reproduction
from reproduce.common.seeds import by_seed
from reproduce.common.store import Facts

STUDY, SEEDS, CLIENTS, ROUNDS = "attacks", (0, 1, 2), 20, 15
GIVEN = {"epochs": 2, "batch": 50, "lr": 0.1}
FLOWER = "--server reproduce/baselines/flower_rules.py:FlowerRule --set server.rule={} --set server.f={{f}}"

ATTACKS = {
    "none": "",
    "sign flip": "sign-flip:1",
    "scale by -50": "scale:-50",
    "2^40 samples": "claim-samples",
    "ALIE, z=1.5": "alie:1.5",
    "inner product": "inner-product:0.5",
    "label flip": "label-flip",
    "backdoor x3": "backdoor:3",
}
"""The columns, and the attack of each as it is typed, without the share."""


class Row(NamedTuple):
    """A row of the tables.

    Args:
        title: its name
        method: the recipe
        words: further words of ``gossamer run``; ``{f}`` is the number of hostile clients, ``{share}`` their share
    """

    title: str
    method: str = "fedavg"
    words: str = ""


ROWS = {
    "mean": Row("mean (FedAvg)"),
    "clip": Row("clip:median", words="--server clip:median"),
    "median": Row("median", words="--server median"),
    "trimmed": Row("trimmed-mean", words="--server trimmed-mean:{share}"),
    "geometric": Row("geometric-median", words="--server geometric-median"),
    "krum": Row("krum", words="--server krum:{f}"),
    "multikrum": Row("multi-krum", words="--server multi-krum:{f}"),
    "centered": Row("centered-clipping", words="--server centered-clipping"),
    "buckets": Row("bucketing:2/median", words="--server bucketing:2/median"),
    "signsgd": Row("signsgd, mean", "signsgd"),
    "fedmrn": Row("fedmrn, mean", "fedmrn"),
    "eden": Row("eden, 1 bit, mean", "eden", "--bits 1"),
}
"""Servers and one-bit codecs of Gossamer."""

FLOWER_ROWS = {
    f"flower{rule}": Row(f"Flower {title}", words=FLOWER.format(rule))
    for rule, title in (
        ("median", "FedMedian"),
        ("trimmed-mean", "FedTrimmedAvg"),
        ("krum", "Krum"),
        ("multi-krum", "MultiKrum"),
        ("bulyan", "Bulyan"),
    )
}

BULYAN = "flowerbulyan"

SETTINGS = {f"{split}{share}": (split, share) for split in ("iid", "dirichlet") for share in (10, 30)}
SPLITS = {"iid": "iid", "dirichlet": "dirichlet:0.3"}


def hostile_clients(share: int) -> int:
    """Return the number of hostile clients of a share in percent."""
    return round(CLIENTS * share / 100)


def cell(setting: str, row: str, attack: str, seed: int) -> Cell:
    """Return the run of a row under an attack; ``setting`` is a key of ``SETTINGS``."""
    (split, share), mine = SETTINGS[setting], (ROWS | FLOWER_ROWS)[row]
    text = ATTACKS[attack]
    words = mine.words.format(f=hostile_clients(share), share=share / 100)
    name = f"{STUDY}_{setting}-{row}-{text.partition(':')[0] or 'none'}-{seed}"
    made = Cell(name, mine.method, GIVEN, "fashion-mnist", "mlp-64", SPLITS[split], seed, ROUNDS, CLIENTS, CLIENTS)
    made = made._replace(samples=500, words=words, eval_every=5, executor="compiled")
    return made._replace(attack=f"{text},share={share / 100}" if text else "")


def study(setting: str, rows: Sequence[str]) -> Iterator[Cell]:
    """Return the cells of a setting, seed after seed."""
    return (cell(setting, row, attack, seed) for seed in SEEDS for attack in ATTACKS for row in rows)


def flower_rows(setting: str) -> tuple[str, ...]:
    """Return the rows of Flower that can be run in a setting."""
    enough = 4 * hostile_clients(SETTINGS[setting][1]) + 3 <= CLIENTS
    return tuple(row for row in FLOWER_ROWS if enough or row != BULYAN)


STUDIES: Studies = {
    **{setting: partial(study, setting, tuple(ROWS)) for setting in SETTINGS},
    **{f"flower-{setting}": partial(study, setting, flower_rows(setting)) for setting in SETTINGS},
}


def engine(method: Method, task: Task, **options: Any) -> Result:
    """Simulate a run; one whose updates are no longer finite ends with the accuracy of chance, and is marked."""
    try:
        return simulate(method, task, **options)
    except RunError as error:
        if "diverges" not in str(error):
            raise
        found = load_run(options["out"], method=method, task=task)
        blank = {"accuracy": 1 / task.data.classes, "diverged": True, "seconds": {}, "bytes_up": {}, "failures": []}
        return Result(found.about, [*found.metrics, blank], found.path, lambda: found.run)


def more(cell: Cell, task: Task, result: Result) -> Facts:
    """Store the success of a backdoor, whether the run diverged, and how often the report named whom."""
    rounds = [record for record in result.metrics if "clients" in record]
    hostile = set(result.about.get("hostile", ()))
    named = [(mine["client"] in hostile) for record in rounds for mine in record.get("anomalies", ())]
    present = [(client in hostile) for record in rounds for client in record["clients"]]
    rates = [record["attack_success"] for record in rounds if "attack_success" in record]
    return {
        "success": round(100 * rates[-1], 2) if rates else None,
        "diverged": any("diverged" in record for record in result.metrics),
        "hostile_named": sum(named),
        "hostile_rounds": sum(present),
        "honest_named": len(named) - sum(named),
        "honest_rounds": len(present) - sum(present),
    }


def entry(setting: str, row: str, attack: str) -> str:
    """Return the mean accuracy over seeds; with a backdoor also its success, and a mark where runs diverged."""
    found = list(by_seed(partial(cell, setting, row, attack), SEEDS).values())
    if not found:
        return ""
    text = f"{sum(facts['last'] for facts in found) / len(found):.1f}"
    rates = [facts["success"] for facts in found if facts["success"] is not None]
    text += f" / {sum(rates) / len(rates):.0f}" if rates else ""
    return f"{text} †" if any(facts["diverged"] for facts in found) else text


def table(setting: str) -> str:
    """Return the table of a setting."""
    split, share = SETTINGS[setting]
    every = {key: [entry(setting, key, attack) for attack in ATTACKS] for key in ROWS | FLOWER_ROWS}
    rows = [[(ROWS | FLOWER_ROWS)[key].title, *entries] for key, entries in every.items() if any(entries)]
    return tables.section(f"{SPLITS[split]}, {share} % hostile", ["server or codec", *ATTACKS], rows)


def reported() -> str:
    """Return how often the anomaly report names hostile and honest clients, by attack, with the plain mean."""
    rows = []
    for setting, (split, share) in SETTINGS.items():
        for attack in ATTACKS:
            facts = list(by_seed(partial(cell, setting, "mean", attack), SEEDS).values())
            if facts:
                total = {
                    name: sum(each[name] for each in facts) for name in facts[0] if name.endswith(("named", "rounds"))
                }
                hostile = f"{total['hostile_named']:,} of {total['hostile_rounds']:,}"
                honest = f"{total['honest_named']:,} of {total['honest_rounds']:,}"
                rows.append([SPLITS[split], f"{share} %", attack, hostile, honest])
    note = "Uploads that the records name, with the plain mean. Honest uploads also change once the model is ruined."
    heads = ["split", "hostile", "attack", "hostile uploads named", "honest uploads named"]
    return tables.section("The anomaly report", heads, rows, note)


def page() -> str:
    """Return the tables of all settings, the anomaly report, and what was not run."""
    return tables.joined([*map(table, SETTINGS), reported(), "", tables.missing(STUDIES)])


REPRODUCTION = Reproduction(
    STUDY,
    "Attacks of hostile clients against servers and one-bit codecs.",
    STUDIES,
    page,
    methods="rows, such as mean or krum",
    labels=lambda cell: (cell.name.split("-")[1],),
    more=more,
    engine=engine,
)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the missing cells, then render the page."""
    REPRODUCTION.main(argv)


if __name__ == "__main__":
    main()
