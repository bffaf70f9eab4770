"""``--dp``: the noise of a run, chosen from its budget before anything starts, and recorded with its request.

A request is typed with ``--dp central --epsilon 8``. ``with_budget`` adds the noise multiplier and the numbers that it
depends on. A resumed run reads them, so nothing is chosen again.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from gossamer.cli.flags import value
from gossamer.cli.request import Request
from gossamer.core.errors import ConfigError
from gossamer.core.method import Method
from gossamer.core.random import key
from gossamer.core.sampler import Sampler
from gossamer.engines.options import Options
from gossamer.engines.privacy import Privacy
from gossamer.methods.private import Budget, Clip, Terms, check_method, noise_for, units_of, with_noise
from gossamer.parts.privacy.budget import usual_delta
from gossamer.runs.report.text import count
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task

HOPELESS = 20.0
"""Length of the noise of a round's mean, divided by the clipping norm, from which a run hardly learns."""


def with_budget(request: Request, method: Method, task: Task, options: Options, *, steady: bool = True) -> Request:
    """Return a request with the noise of its budget. ``method`` is the one without noise."""
    typed, mode = request.privacy, request.privacy["dp"]
    objective = Objective(task.adapted(method.adapter), "cpu", key(options.seed))
    counts = {"clients": task.clients, "per_round": options.cohort(task.clients), "size": objective.layout.size}
    noise = typed.get("noise_multiplier")
    if noise is not None and not value("--noise-multiplier", noise, float) > 0:
        raise ConfigError(f"--noise-multiplier must be positive, got {noise}: without noise there is no privacy")
    if noise is None and options.epsilon is None:
        raise ConfigError(f"--dp {mode} needs a budget: give --epsilon, or --noise-multiplier")
    if noise is None:
        delta = options.delta if options.delta is not None else usual_delta(units_of(mode, task.clients, task))
        terms, budget = _terms({**typed, **counts}, request), Budget(options.epsilon, delta, options.rounds)
        noise = repr(noise_for(budget, method, mode, terms, objective, steady=steady))
    return replace(request, privacy={**typed, **counts, "noise_multiplier": noise})


def with_privacy(method: Method, request: Request) -> Method:
    """Return the method of a request with its noise; without, if the noise is not yet chosen."""
    if not request.privacy:
        return method
    check_method(method, request.privacy["dp"])
    terms = _terms(request.privacy, request)
    return with_noise(method, request.privacy["dp"], terms) if "size" in request.privacy else method


def _terms(given: dict[str, Any], request: Request) -> Terms:
    noise: float = value("--noise-multiplier", given.get("noise_multiplier", "1"), float)
    clip: Clip = value("--clip", given.get("clip", "auto"), Clip)
    numbers = {name: given[name] for name in ("clients", "per_round", "size") if name in given}
    bad: float | None = value("--colluding", given["colluding"], float) if "colluding" in given else None
    if bad is not None and given["dp"] != "distributed":
        raise ConfigError("--colluding: only --dp distributed needs it, where clients share the noise")
    return Terms(noise, clip, **numbers, own_sampler=request.sampler is not None, colluding=bad)


def statement(privacy: Privacy, rounds: int) -> str:
    """Return a line on the privacy of a run that starts."""
    about = privacy.guarantee
    spent = f"epsilon {privacy.spent(rounds):.4g} after {count(rounds, 'round')}, delta {privacy.delta:.3g}"
    ends = "" if privacy.allows(rounds) else f"; the budget ends the run after round {privacy.most_rounds(0, rounds)}"
    public = (
        "" if privacy.secure_noise else "; the noise follows from the seed, and protects nobody: see --secure-noise"
    )
    return f"differential privacy of each {about.unit}: {about.mechanism}; {about.sampling}: {spent}{ends}{public}"


def replaced(before: Method, after: Method, mode: str) -> Iterator[str]:
    """Yield a line for each part that ``--dp`` has replaced, given the method without and with noise."""
    for name in ("codec", "solver", "server", "sampler"):
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield f"--dp {mode}: {name}: {old} becomes {new}"


def rate_notice(sampler: Sampler, options: Options, clients: int) -> Iterator[str]:
    """Yield a notice if a sampler with a rate of its own draws another number of clients than ``--per-round``."""
    asked, drawn = options.per_round, sampler.expected(clients, options.cohort(clients))
    if asked is not None and abs(asked - drawn) >= 1:
        yield f"--per-round {asked} has no effect: {sampler} draws {drawn:g} clients on average"


def too_noisy(given: dict[str, Any]) -> Iterator[str]:
    """Yield a line if the noise of a round's mean is so large that a run hardly learns.

    ``given`` are the flags of differential privacy, with the noise and the numbers of clients and parameters.
    """
    if "size" not in given or given["dp"] == "example":
        return
    clients = math.sqrt(given["per_round"]) if given["dp"] == "local" else given["per_round"]
    ratio = float(given["noise_multiplier"]) * math.sqrt(given["size"]) / clients
    if ratio > HOPELESS:
        yield (
            f"the noise of a round's mean is about {ratio:.3g} times as long as the longest update: such a run hardly "
            "learns; use more clients per round, a smaller network, or a larger --epsilon"
        )
