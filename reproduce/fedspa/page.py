"""FedSpa's tables and plots, from the stored cells, next to the published values."""

from collections.abc import Iterator
from itertools import product

from reproduce.common import cells, plots, seeds, tables
from reproduce.common.plots import Curve
from reproduce.common.seeds import spread
from reproduce.common.store import Facts
from reproduce.fedspa import drift, paper
from reproduce.fedspa.studies import (
    ALONE_EVERY,
    DENSITIES,
    EVERY,
    LONGER,
    LONGER_METHODS,
    METHODS,
    PRUNINGS,
    ROUNDS,
    SEEDS,
    SETS,
    SETTINGS,
    STUDIES,
    VARIANTS,
    cell,
    split,
    where,
)

SETTING = (
    f"\nCells have {ROUNDS} rounds and are evaluated every {EVERY} rounds, `local` every {ALONE_EVERY}. Sub-FedAvg "
    f"prunes a share that reaches its target in {PRUNINGS} prunings."
)
ROWS = {**METHODS, **VARIANTS}
DRAWN = (*METHODS, *DENSITIES, "sub-fedavg-0.2", "sub-fedavg-0.8")
"""Methods in the plots: the rows of Table 1, and other densities."""
AXES = {"rounds": "round", "bytes": "GB sent and received"}


def page() -> str:
    """Return the generated part of the page."""
    parts = [tables.missing(STUDIES, *([] if drift.stored() else ["drift"])), SETTING, claims(), longer()]
    parts += [accuracies(data, setting) for data in SETS for setting in SETTINGS]
    parts += [speeds(data) for data in SETS] + [ablations(), global_models(), exchanged(), costs(), drift.table()]
    return tables.joined(parts)


def stored(data: str, setting: str, method: str, rounds: int = ROUNDS) -> dict[int, Facts]:
    """Return the stored cells of a method in a setting, by seed."""
    return seeds.by_seed(lambda seed: cell(data, setting, method, seed, rounds), SEEDS)


def every() -> Iterator[tuple[str, str, str, list[Facts]]]:
    """Return all data sets, settings and methods with a stored cell."""
    for data, setting, method in product(SETS, SETTINGS, ROWS):
        found = stored(data, setting, method)
        if found:
            yield data, setting, method, list(found.values())


def published(data: str, setting: str, method: str) -> float | None:
    """Return the published accuracy, if there is one."""
    found = paper.ACCURACIES.get(data, {}).get(method)
    return None if found is None else found[SETTINGS.index(setting)]


def shown(value: float | None, digits: int = 1) -> str:
    """Format a value; an empty string for None."""
    return "" if value is None else f"{value:.{digits}f}"


# Table 1 and Figure 3.


def accuracies(data: str, setting: str) -> str:
    """Return the personal accuracies of one data set and setting, with plots."""
    rows = []
    for _, _, method, found in (each for each in every() if each[:2] == (data, setting)):
        best, last, worst = (spread([one[which] for one in found]) for which in ("best", "last", "worst_tenth"))
        rows.append([f"`{method}`", shown(published(data, setting, method)), best, last, worst, f"{len(found)}"])
    title = f"Table 1: {data.upper()} with `{SETS[data].model}`, setting {setting.upper()} (`{split(data, setting)}`)"
    theirs = f"paper, {paper.ROUNDS[data]} rounds" if data in paper.ROUNDS else "paper"
    made = tables.section(title, ["method", theirs, "best", "last", "last, worst tenth of clients", "seeds"], rows)
    return _pictured(made, data, setting, ROUNDS)


def _pictured(made: str, data: str, setting: str, rounds: int) -> str:
    """Add the plots of a setting to its table."""
    pictures = (tables.picture(f"By {axis}", file(data, setting, axis, rounds)) for axis in AXES)
    return "\n\n".join([made, *pictures]) if made else ""


# The main claims.

CLAIMS: list[tuple[str, tuple[str, ...], str, str]] = [
    ("moving masks beat static masks on non-IID data", ("a", "b"), "dst", "rsm"),
    ("moving masks beat FedAvg on non-IID data", ("a", "b"), "dst", "fedavg"),
    ("static masks match FedAvg on IID data", ("iid",), "rsm", "fedavg"),
    ("ERK beats uniform densities", SETTINGS, "dst", "dst-uniform"),
    ("ERK beats uniform densities of weights", SETTINGS, "dst", "dst-uniform-weights"),
]


def claims() -> str:
    """Return the differences that the paper's claims are about."""
    rows = []
    for claim, settings, one, other in CLAIMS:
        for data, setting, rounds in product(SETS, settings, (ROUNDS, LONGER)):
            rows += [[claim, *row] for row in difference(data, setting, one, other, rounds)]
    note = "Personal accuracy after the last round, in points, seed by seed: a seed also determines split and cohorts."
    heads = ["claim", "data", "setting", "difference", "paper", "here", "rounds", "seeds"]
    return tables.section("The main claims", heads, rows, note)


def difference(data: str, setting: str, one: str, other: str, rounds: int = ROUNDS) -> list[list[str]]:
    """Return a row with the difference of two methods; no row if they have no seed in common."""
    here = seeds.paired(
        stored(data, setting, one, rounds), stored(data, setting, other, rounds), lambda facts: float(facts["last"])
    )
    if not here:
        return []
    theirs = [published(data, setting, method) for method in (one, other)]
    paper_points = "" if None in theirs else f"{theirs[0] - theirs[1]:.1f}"  # type: ignore[operator]
    pair = f"`{one}` - `{other}`"
    return [[data.upper(), setting.upper(), pair, paper_points, spread(here), f"{rounds}", f"{len(here)}"]]


def longer(data: str = "cifar-10", setting: str = "b") -> str:
    """Return the runs with more rounds, with plots."""
    rows, targets = [], (*SETS[data].targets, 75)
    for method in LONGER_METHODS:
        found = list(stored(data, setting, method, LONGER).values())
        if found:
            own, whole = (spread([one[which][-1] for one in found]) for which in ("personal", "accuracy"))
            here = [reached(found, target) for target in targets]
            theirs, _ = paper.SPEED[setting].get(method, (None, None))
            rows.append([f"`{method}`", shown(published(data, setting, method)), own, whole, *here, shown(theirs, 0)])
    heads = ["method", f"paper, {paper.ROUNDS[data]} rounds", "last", "global model"]
    heads += [*(f"{target} %" for target in targets), "paper, 75 %"]
    note = "Personal accuracy, and the first evaluated rounds that reach a given accuracy."
    made = tables.section(f"{LONGER} rounds: {data.upper()}, setting {setting.upper()}", heads, rows, note)
    return _pictured(made, data, setting, LONGER)


# Table 2.


def speeds(data: str) -> str:
    """Return the rounds to fixed accuracies, means over seeds, next to the published ones."""
    rows = []
    for _, setting, method, found in (each for each in every() if each[0] == data and each[2] in METHODS):
        here = [reached(found, target) for target in SETS[data].targets]
        theirs = paper.SPEED[setting].get(method) if data == "cifar-10" else None
        published_rounds = [f"{at:.0f}" if at else "> 1000" for at in theirs] if theirs else ["", ""]
        rows.append([setting.upper(), f"`{method}`", *here, *(published_rounds if data == "cifar-10" else [])])
    heads = ["setting", "method", *(f"{target} %" for target in SETS[data].targets)]
    heads += ["paper, 75 %", "paper, 80 %"] if data == "cifar-10" else []
    note = f"The first evaluated round, one in {EVERY}, whose personal accuracy reaches the value."
    return tables.section(f"Table 2: rounds to fixed accuracies, {data.upper()}", heads, rows, note)


def reached(found: list[Facts], target: float) -> str:
    """Format the first evaluated round that reaches an accuracy; more than all rounds if one seed never does."""
    first = [cells.first_round(one, target, "personal") for one in found]
    if None in first:
        return f"> {found[0]['rounds']}"
    return spread([at for at in first if at is not None], 0)


# Ablations: Figures 4 to 8.


def ablations() -> str:
    """Return each variant next to the method that it varies, with the same setting and seed."""
    rows = []
    for data, setting, method, _ in (each for each in every() if each[2] in VARIANTS):
        base, more = VARIANTS[method]
        changed = ", ".join(f"{name}={value}" for name, value in more.items())
        rows += [[f"`{base}`", changed, *row] for row in difference(data, setting, method, base)]
    heads = ["method", "with", "data", "setting", "difference", "paper", "here", "rounds", "seeds"]
    note = (
        "Personal accuracy after the last round, in points. The paper gives values of its ablations for CIFAR-100 only."
    )
    return tables.section("Ablations: density, initial masks, regrowth", heads, rows, note)


def global_models() -> str:
    """Return Figure 8: the global model on the whole test set, and personalized models on their own test sets."""
    rows = []
    for data, setting, method, found in (each for each in every() if each[2] != "local"):
        whole, own = (spread([one[which][-1] for one in found]) for which in ("accuracy", "personal"))
        moved, density, overlap = (_mask(found[0], name) for name in ("moved", "density", "overlap"))
        rows.append([data.upper(), setting.upper(), f"`{method}`", whole, own, density, overlap, moved])
    heads = ["data", "setting", "method", "global", "personal", "mask density", "mask overlap", "mask moved"]
    note = (
        "Accuracy and masks of the last round, masks in sparse tensors only. Overlap is the intersection of two masks "
        "over their union. Moved is the share of entries that the round removed."
    )
    return tables.section("Figure 8: global and personalized models", heads, rows, note)


def _mask(found: Facts, name: str) -> str:
    return shown((found["masks"] or {}).get(name), 3)


# Figure 1 and costs.


def exchanged() -> str:
    """Return Figure 1: accuracy and bytes."""
    rows = []
    for data, setting, method, found in (each for each in every() if each[3][0]["bytes"][-1]):
        counted, true = (found[0][which][-1] / 1e9 for which in ("paper_bytes", "bytes"))
        last = spread([one["last"] for one in found])
        rows.append([data.upper(), setting.upper(), f"`{method}`", f"{counted:.3f}", f"{true:.3f}", last])
    heads = ["data", "setting", "method", "GB, 4 bytes per kept value", "GB, all bytes", "last"]
    return tables.section("Figure 1: accuracy and bytes, both directions, all rounds", heads, rows)


def costs() -> str:
    """Return the costs of Table 1, scaled to the paper's number of rounds, next to the executed ones."""
    rows = []
    for data, setting, method, found in every():
        one, scale = found[0], paper.ROUNDS.get(data, found[0]["rounds"]) / found[0]["rounds"]
        size, work = paper.COSTS.get(data, {}).get(method, (None, None))
        counted = one["paper_flops"] and one["paper_flops"] * scale / 1e14
        done, useful = (one[which] * scale / 1e14 for which in ("flops", "useful_flops"))
        sent = [f"{one[which][-1] * scale / 1e9:.1f}" for which in ("paper_bytes", "bytes")]
        executed = [f"{done:.1f}", f"{useful:.1f}", f"{one['round_seconds']:.2f} s"]
        first = [data.upper(), setting.upper(), f"`{method}`"]
        rows.append([*first, shown(size), *sent, shown(work), shown(counted), *executed])
    heads = ["data", "setting", "method", "GB, paper", "GB, paper's count", "GB, all bytes", "10^14 FLOP, paper"]
    heads += ["paper's count", "executed", "executed on kept weights", "per round"]
    note = (
        "Bytes and operations are scaled to the paper's number of rounds, where it gives one. This says little about "
        "Sub-FedAvg, whose masks shrink. Published values are those of setting B. Seconds are medians of cells that "
        "shared a device, so rows are not comparable."
    )
    return tables.section("Costs, as the paper counts them and as executed", heads, rows, note)


# Plots of Figures 1 and 3: personal accuracy by round and by bytes, of the first seed.


def draw() -> None:
    """Draw two plots per setting, and the drift of masks."""
    drift.draw()
    for data, setting, axis, rounds in product(SETS, SETTINGS, AXES, (ROUNDS, LONGER)):
        lines = curves(data, setting, axis, rounds)
        if lines:
            title = f"{data}, setting {setting}: personal accuracy (%)"
            plots.curves(file(data, setting, axis, rounds), title, AXES[axis], lines)


def file(data: str, setting: str, axis: str, rounds: int = ROUNDS) -> str:
    """Return the file of a plot."""
    return f"fedspa-{where(data, setting, rounds)}-{axis}.svg"


def curves(data: str, setting: str, axis: str, rounds: int = ROUNDS) -> list[Curve]:
    """Return a curve per stored method; by bytes, none for a method that sends nothing."""
    methods = DRAWN if rounds == ROUNDS else LONGER_METHODS
    mine = {method: cell(data, setting, method, rounds=rounds) for method in methods}
    found = {method: cells.read(each) for method, each in mine.items() if each.stored}
    across = {
        m: one["rounds_told"] if axis == "rounds" else [b / 1e9 for b in one["bytes"]] for m, one in found.items()
    }
    points = {m: list(zip(across[m], one["personal"], strict=True)) for m, one in found.items()}
    return [Curve(method, line) for method, line in points.items() if any(at for at, _ in line)]
