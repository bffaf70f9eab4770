"""The tables of reproduce/submodel_theory.py."""

from collections.abc import Sequence

from submodel_theory_figures import BOTH, NAMES, Found, Mean, Row, bound, by, predicted, slope, slopes, stationarity
from submodel_theory_problem import posed

from gossamer.analysis.theory import excess_risk, residual


def lines(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def tables(found: Found) -> str:
    parts = [
        ("The distance to the masked optimum", distance_table(found["distances"])),
        ("How it falls with rounds", slope_table(found["distances"])),
        ("Shuffled windows against random masks", against_table(found["distances"])),
        ("Excess risk, and what masking leaves of it", residual_table(found["residuals"])),
        ("Stationarity", gradient_table(found["gradients"])),
    ]
    pictures = {
        "How it falls with rounds": "distance",
        "Excess risk, and what masking leaves of it": "residual",
        "Stationarity": "gradient",
    }
    drawn = {title: f"\n\n![{title}](submodel-theory-{name}.svg)" for title, name in pictures.items()}
    return "\n\n".join(f"## {title}\n\n{text}{drawn.get(title, '')}" for title, text in parts)


def distance_table(rows: list[Row]) -> str:
    body = []
    for noisy in (False, True):
        for masks in BOTH:
            late = by(rows, "rounds", "late", masks=masks, noisy=noisy)
            for rounds, mean in by(rows, "rounds", "distance", masks=masks, noisy=noisy).items():
                at = posed(0.5, masks == "rolling", noisy)
                printed = sum(value for name, value in predicted(at, int(rounds)).items() if name != "masks")
                most = bound(at, int(rounds))
                shown = "rate too large" if most is None else f"{most:.2e}"
                kind = "noisy" if noisy else "full"
                body.append([NAMES[masks], kind, str(rounds), str(mean), str(late[rounds]), f"{printed:.2e}", shown])
    head = ["masks", "gradients", "rounds", "squared distance", "over the last quarter", "terms in print", "bound"]
    return lines(head, body)


def slope_table(rows: list[Row]) -> str:
    body = []
    for noisy in (False, True):
        for masks in BOTH:
            measured = slopes(rows, "late", masks=masks, noisy=noisy)
            at = posed(0.5, masks == "rolling", noisy)
            found = by(rows, "rounds", "late", masks=masks, noisy=noisy)
            terms = {rounds: predicted(at, int(rounds)) for rounds in found}
            steep = [
                f"{name} {slope({rounds: each[name] for rounds, each in terms.items()}):.2f}"
                for name in next(iter(terms.values()))
                if all(each[name] > 0 for each in terms.values())
            ]
            body.append(
                [
                    NAMES[masks],
                    "noisy" if noisy else "full",
                    f"{measured.value:.2f} ± {measured.half:.2f}",
                    ", ".join(steep),
                ]
            )
    return lines(["masks", "gradients", "measured slope", "slope of each term over the same rounds"], body)


def against_table(rows: list[Row]) -> str:
    body = []
    for noisy in (False, True):
        for rounds in (64, 256, 1024):
            for what, name in (("distance", "squared distance"), ("output", "excess risk of the output")):
                means = [by(rows, "rounds", what, masks=masks, noisy=noisy)[rounds] for masks in BOTH]
                body.append(["noisy" if noisy else "full", str(rounds), name, *map(str, means), _less(*means)])
    return lines(["gradients", "rounds", "figure", *NAMES.values(), "lower"], body)


def _less(random: Mean, rolling: Mean) -> str:
    if abs(random.value - rolling.value) <= random.half + rolling.half:
        return "intervals meet"
    return NAMES["random" if random.value < rolling.value else "rolling"]


def residual_table(rows: list[Row]) -> str:
    body = []
    for masks in BOTH:
        for share, mean in by(rows, "share", "output", masks=masks).items():
            at = posed(share, masks == "rolling")
            w = by(rows, "share", "distance", masks=masks)[share].value
            exact, apart = at.excess(at.optimum), float((at.optimum - at.least).norm())
            bounds = (residual(at.setting), excess_risk(at.setting, w))
            figures = [f"{value:.2e}" if value > 1e-12 else "0" for value in (exact, apart, *bounds)]
            body.append([NAMES[masks], f"{share:g}", str(mean), *figures])
    head = ["masks", "share", "excess risk of the output", "F(w*(p)) - F*", "distance of w*(p) from w*"]
    return lines([*head, "residual term", "bound, with the measured distance"], body)


def gradient_table(rows: list[Row]) -> str:
    body = []
    for masks in BOTH:
        found = by(rows, "rounds", "gradient", masks=masks)
        for rounds, mean in found.items():
            terms = stationarity(posed(0.5, masks == "rolling"), int(rounds))
            shown = ", ".join(f"{name} {value:.1e}" for name, value in terms.items() if value > 0)
            body.append([NAMES[masks], str(rounds), str(mean), f"{sum(terms.values()):.2e}", shown])
        fitted = slopes(rows, "gradient", masks=masks)
        body.append([NAMES[masks], "slope", f"{fitted.value:.2f} ± {fitted.half:.2f}", "", ""])
    return lines(["masks", "rounds", "mean squared gradient", "sum of terms", "terms"], body)
