"""The tables of the study of privacy."""

import statistics
from collections.abc import Sequence
from functools import partial

from reproduce.common import store, tables
from reproduce.common.seeds import by_seed, spread
from reproduce.common.store import Facts
from reproduce.privacy.settings import EPSILONS, SETTINGS, noise
from reproduce.privacy.studies import (
    CENTRAL,
    CLIPPED,
    DISTRIBUTED,
    PLAIN,
    ROWS,
    SEEDS,
    STUDIES,
    STUDY,
    SUMS,
    cell,
    chosen,
    rows_of,
    trials,
)

PEER = "peer"
"""The first word of the entries of ``bench/private_peer.py``."""
SYSTEMS = ("Gossamer", "pfl-research")


def found(setting: str, key: str, epsilon: float | None) -> list[Facts]:
    """Return the stored runs of a row."""
    return list(by_seed(partial(cell, setting, key, epsilon), SEEDS).values())


def accuracy(runs: Sequence[Facts]) -> str:
    """Format the accuracy after the last round over seeds."""
    return spread([facts["last"] for facts in runs], 1) if runs else "not run"


def sent(runs: Sequence[Facts]) -> str:
    """Format the bytes that a client sends in a round."""
    return f"{statistics.mean(facts['bytes_per_client'] for facts in runs):,.0f}" if runs else ""


def central(setting: str) -> str:
    """Return accuracy by epsilon of central privacy, with and without clipping."""
    rows = []
    for key, row in CENTRAL.items():
        levels = [found(setting, key, epsilon) for epsilon in EPSILONS]
        plain = found(setting, f"{key}plain", None), found(setting, f"{key}clipped", None)
        rows.append([row.title, *map(accuracy, levels), accuracy(plain[1]), accuracy(plain[0]), sent(levels[-1])])
    heads = ["updates", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS), "none, clipped", "none", "bytes per client"]
    return tables.section(f"{SETTINGS[setting].title}: central privacy", heads, rows)


def distributed(setting: str) -> str:
    """Return accuracy by epsilon of distributed privacy."""
    rows = []
    for key in (key for key in DISTRIBUTED if key in rows_of(setting)):
        levels = [found(setting, key, epsilon) for epsilon in EPSILONS]
        rows.append([ROWS[key].title, *map(accuracy, levels), sent(levels[-1])])
    heads = ["updates", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS), "bytes per client"]
    return tables.section(f"{SETTINGS[setting].title}: distributed privacy", heads, rows)


def sums(setting: str) -> str:
    """Return accuracy and bytes of updates that add up, next to those of the plain recipes."""
    order = sorted({**PLAIN, **SUMS}, key=lambda key: [ROWS[key].method for key in PLAIN].index(ROWS[key].method))
    rows = []
    for key in order:
        runs = found(setting, key, None)
        server = "their sum" if ROWS[key].mode else "each update"
        rows.append([ROWS[key].title, server, accuracy(runs), sent(runs)])
    heads = ["updates", "the server sees", "accuracy", "bytes per client"]
    return tables.section(f"{SETTINGS[setting].title}: secure aggregation without noise", heads, rows)


def hyper_parameters(setting: str) -> str:
    """Return the chosen hyper-parameters."""
    rows = []
    for key in rows_of(setting):
        names = ", ".join(f"{name} {value:g}" for name, value in chosen(setting, key).items() if value is not True)
        tried = sum(each.stored for each in trials(setting, key))
        kind = "clipped" if key in CLIPPED else "plain" if key in PLAIN else ROWS[key].mode or "plain"
        rows.append([ROWS[key].title, kind, names, f"{tried} of {len(ROWS[key].candidates)}"])
    heads = ["updates", "protection", "chosen", "candidates tried"]
    return tables.section(f"{SETTINGS[setting].title}: hyper-parameters", heads, rows)


def multipliers() -> str:
    """Return the noise of each epsilon."""
    kinds = [("central", "noise multiplier"), ("skellam", "noise multiplier"), ("bits", "theta")]
    rows = []
    for setting in SETTINGS:
        for mode, unit in kinds if setting == "fashion" else kinds[:1]:
            values = [f"{noise(setting, mode, epsilon):g}" for epsilon in EPSILONS]
            rows.append([SETTINGS[setting].title, mode, unit, *values])
    heads = ["data", "privacy", "noise", *(f"epsilon {epsilon:g}" for epsilon in EPSILONS)]
    return tables.section("Noise", heads, rows)


def peer_name(setting: str, epsilon: float, seed: int, system: str) -> str:
    """Return the name of the entry of a run beside pfl-research."""
    return f"{PEER}-{setting}-{epsilon:g}-{seed}-{system}"


def peers() -> str:
    """Return the runs of both systems, by data and epsilon."""
    stored, rows = store.read(STUDY), []
    for setting in SETTINGS:
        for epsilon in EPSILONS:
            both = [
                [stored[name] for seed in SEEDS if (name := peer_name(setting, epsilon, seed, system)) in stored]
                for system in SYSTEMS
            ]
            if all(both):
                accuracies = [spread([facts["accuracy"] for facts in runs], 1) for runs in both]
                seeds = "/".join(str(len(runs)) for runs in both)
                rows.append([SETTINGS[setting].title, f"{epsilon:g}", *accuracies, seeds])
    heads = ["data", "epsilon", *(f"{name}, accuracy" for name in SYSTEMS), "seeds of each"]
    return tables.section("Dense updates beside pfl-research", heads, rows)


def page() -> str:
    """Return all tables, and what was not run."""
    by_setting = [make(setting) for make in (central, distributed, sums) for setting in SETTINGS]
    last = [hyper_parameters(setting) for setting in SETTINGS]
    absent = [] if peers() else ["bench/private_peer.py"]
    return tables.joined([*by_setting, peers(), multipliers(), *last, tables.missing(STUDIES, *absent)])
