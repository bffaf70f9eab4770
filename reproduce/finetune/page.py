"""The tables of the study of fine-tuning."""

import statistics
from collections.abc import Sequence

from reproduce.common import store, tables
from reproduce.common.seeds import spread
from reproduce.common.store import Facts
from reproduce.finetune.rows import ROWS
from reproduce.finetune.runs import BASE, chosen, run_name, trial_name
from reproduce.finetune.settings import SEEDS, STUDY

HEADS = (
    "method",
    "trained",
    "parameters",
    "perplexity",
    "accuracy, %",
    "kB up",
    "kB down",
    "memory, MB",
    "GFLOP",
    "seconds",
)


def found(row: str) -> list[Facts]:
    """Return the stored runs of a row."""
    stored = store.read(STUDY)
    return [stored[run_name(row, seed)] for seed in SEEDS if run_name(row, seed) in stored]


def mean(runs: Sequence[Facts], name: str) -> float:
    """Return the mean of a figure over seeds."""
    return float(statistics.mean(facts[name] for facts in runs))


def line(row: str) -> list[str]:
    """Return the cells of a row."""
    runs, needs = found(row), store.read(STUDY).get("memory", {})
    if not runs:
        return [ROWS[row].title, ROWS[row].trained, *["not run"] + [""] * 7]
    scores = [
        spread([facts["perplexity"] for facts in runs], 3),
        spread([100 * facts["token_accuracy"] for facts in runs], 2),
    ]
    sent = [f"{mean(runs, name) / 1e3:,.1f}" for name in ("up", "down")]
    cost = [f"{needs[row] / 1e6:.1f}" if row in needs else "", f"{mean(runs, 'flops') / 1e9:,.0f}"]
    size = f"{runs[0]['parameters']:,}" if sum(mean(runs, name) for name in ("up", "down")) else "0"
    on_gpu = all(facts["device"].startswith("NVIDIA") for facts in runs)
    seconds = f"{mean(runs, 'seconds'):,.0f}" if on_gpu else "on a CPU"
    return [ROWS[row].title, ROWS[row].trained, size, *scores, *sent, *cost, seconds]


def results() -> str:
    """Return the table of all methods."""
    stored = store.read(STUDY)
    if BASE not in stored:
        return ""
    as_it_is = stored[BASE]
    first = ["the model as it is", "nothing", "0", f"{as_it_is['perplexity']:.3f}"]
    first += [f"{100 * as_it_is['token_accuracy']:.2f}", "0", "0", "", "0", "0"]
    return tables.section("All methods", HEADS, [first, *map(line, ROWS)])


def hyper_parameters() -> str:
    """Return the chosen hyper-parameters, and the perplexity of all candidates on held-out sequences."""
    stored, rows = store.read(STUDY), []
    for row, entry in ROWS.items():
        tried = [stored.get(trial_name(row, given)) for given in entry.candidates]
        if not any(tried):
            continue
        shown = [f"{each['validation_perplexity']:.3f}" if each else "not run" for each in tried]
        names = (", ".join(f"{name} {value:g}" for name, value in each.items()) for each in entry.candidates)
        every = "; ".join(f"{name}: {value}" for name, value in zip(names, shown, strict=True))
        picked = ", ".join(f"{name} {value:g}" for name, value in chosen(row).items())
        rows.append([entry.title, entry.trained, picked, every, str(entry.rounds)])
    heads = ["method", "trained", "chosen", "perplexity on held-out sequences", "rounds"]
    return tables.section("Hyper-parameters", heads, rows)


def page() -> str:
    """Return all tables, and what was not run."""
    absent = [f"`{row}`" for row in ROWS if len(found(row)) < len(SEEDS)]
    left = (
        f"\n**Not run yet, or not for all seeds:** {', '.join(absent)}." if absent else "\n**All runs are complete.**"
    )
    return tables.joined([results(), hyper_parameters(), left])
