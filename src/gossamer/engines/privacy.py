"""Differential privacy of a run: which statement holds, what each round adds, and when the budget ends the run.

The statement is that of the part that adds noise: a server, a codec or a solver (``private``). It
holds only if nothing else that depends on the clients' data leaves them, or changes the model. So a run is refused if
another exchange sends values without noise, if a part sends sections besides the update, or if clients are excluded or
updates of several versions are mixed. It is about the models of all rounds. Records, such as losses and numbers of
samples, are not covered.

Epsilon is a function of the number of rounds, so records are the same after a resumed run.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gossamer.core.binding import BoundMethod
from gossamer.core.bound import BoundExchange
from gossamer.core.errors import ConfigError, Mistake, Setting, require
from gossamer.core.extras import need
from gossamer.core.privacy import SEED, SYSTEM, Guarantee
from gossamer.core.view import CHANGE
from gossamer.engines.options import Options
from gossamer.parts.privacy.budget import guaranteed, participation, parts_of, usual_delta
from gossamer.parts.privacy.renyi import Renyi, compose
from gossamer.tasks.data.partition import Split

EPSILON, DELTA, SECURE_NOISE = (Setting("", name) for name in ("epsilon", "delta", "secure_noise"))

NOBODY = "nobody: the noise follows from the seed of the simulation"
"""Who noise from a seed protects from."""


@dataclass(frozen=True)
class Privacy:
    """The statement of differential privacy of a run.

    Args:
        guarantee: the statement
        delta: the probability with which epsilon may be exceeded
        budget: the largest epsilon; none means no limit
        secure_noise: whether the noise comes from the operating system; if not, it follows from the seed of the run
        central: whether all noise is added by the server
        unsampled: the statement against those who know the cohorts; none if sampling does not count
    """

    guarantee: Guarantee
    delta: float
    budget: float | None
    secure_noise: bool = False
    central: bool = False
    unsampled: Guarantee | None = None

    @property
    def protects_from(self) -> str:
        """Who learns no more than epsilon."""
        return self.guarantee.protects_from if self.secure_noise else NOBODY

    def spent(self, rounds: int, again: int = 0) -> float:
        """Return the epsilon of the first rounds, of which ``again`` were repeated after a crash."""
        return self.guarantee.epsilon(rounds, self.delta, again)

    def figures(self, rounds: int, again: int = 0) -> dict[str, Any]:
        """Return what the record of a round states."""
        words = {name: getattr(self.guarantee, name) for name in ("unit", "relation", "mechanism", "sampling")}
        source = {"protects_from": self.protects_from, "noise": SYSTEM if self.secure_noise else SEED}
        found = {"epsilon": self.spent(rounds, again), "delta": self.delta, **words, **source}
        if self.secure_noise:
            found["releases"] = rounds + again
        if self.unsampled is not None:
            found["epsilon_if_cohorts_known"] = self.unsampled.epsilon(rounds, self.delta, again)
        return found

    def allows(self, rounds: int, again: int = 0) -> bool:
        """Return whether the first rounds are within the budget."""
        return self.budget is None or self.spent(rounds, again) <= self.budget

    def reason_to_stop(self, done: int, again: int = 0) -> str | None:
        """Return why no round may follow the finished ones, if so."""
        if self.allows(done + 1, again):
            return None
        after, now = self.spent(done + 1, again), self.spent(done, again)
        return f"the next round would exceed epsilon {self.budget:g}: {after:.4g}, and {now:.4g} is spent"

    def check_start(self) -> None:
        """Refuse a budget that the first round exceeds."""
        if self.budget is None:
            return
        text = f"is {self.budget:g}, and the first round alone takes {self.spent(1):.4g}: use more noise"
        require((self.allows(1), Mistake(text, EPSILON)))

    def check_more(self, done: int, rounds: int | None, again: int = 0) -> None:
        """Refuse to continue a run beyond its budget, given the finished rounds and the new number of rounds."""
        if (reason := self.reason_to_stop(done, again)) is not None:
            raise ConfigError(f"the privacy budget of the run is spent: {reason}; start a new run with more noise")
        if rounds is not None and not self.allows(rounds, again):
            most = self.most_rounds(done, rounds, again)
            after = f"{rounds} rounds would exceed epsilon {self.budget:g}: {self.spent(rounds, again):.4g}"
            raise ConfigError(f"{after}; the budget of the run allows {most} rounds")

    def most_rounds(self, low: int, high: int, again: int = 0) -> int:
        """Return the largest number of rounds within the budget, of which ``low`` are and ``high`` are not."""
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self.allows(middle, again) else (low, middle)
        return low


def privacy_of(
    method: BoundMethod,
    options: Options,
    clients: int,
    split: Callable[[], Split | None],
    steady: bool,
    *,
    secure_noise: bool,
) -> Privacy | None:
    """Return the statement of a run, or ``None`` if no part adds noise.

    Args:
        method: the method
        options: the options
        clients: the number of clients
        split: returns the samples of each client, if they are known
        steady: whether all clients are available in every round
        secure_noise: whether the noise comes from the operating system
    """
    found = [each for exchange in method.exchanges for each in parts_of(exchange)]
    if not found:
        none = "needs a method that adds noise: use gossamer.private(method, ...), or --dp central"
        given = (options.epsilon, EPSILON), (options.delta, DELTA), (options.secure_noise or None, SECURE_NOISE)
        require(*((value is None, Mistake(none, setting)) for value, setting in given))
        return None
    need("dp_accounting")  # before any work
    require(*_rules(method, options))
    count = 1 if method.pooled else clients
    cohort, known = options.cohort(count) if count > 1 else 1, steady and options.schedule is None
    sizes = _sizes(split())
    central = all(any(part is exchange.server for exchange in method.exchanges) for part in found)
    fewest = min(sizes, default=0)
    taking = participation(method.sampler, count, cohort, options.rounds, fewest, steady=known, central=central)
    guarantee = _one([guaranteed(part, taking) for part in found])
    units = sum(sizes) if guarantee.unit == "example" and sizes else count
    delta = options.delta if options.delta is not None else usual_delta(units)
    seen = taking._replace(sampling="other")
    amplified = guarantee.unit == "client" and taking.sampling in ("poisson", "fixed")
    unsampled = _one([guaranteed(part, seen) for part in found]) if amplified else None
    made = Privacy(guarantee, delta, options.epsilon, secure_noise, central, unsampled)
    made.check_start()
    return made


def _sizes(split: Split | None) -> list[int]:
    """Return the numbers of samples of the clients that have some; none if they are not known."""
    return [int(size) for size in split.sizes() if size > 0] if split is not None else []


def _rules(method: BoundMethod, options: Options) -> Iterator[tuple[bool, str]]:
    """Yield what must hold so that the guarantee of the private parts is that of the run."""
    why = "differential privacy"
    late = options.schedule is not None and options.schedule.keeps_late
    about = Setting("", "exclude_after"), Setting("", "schedule")
    excluding = f"must be none with {why}: which clients are excluded depends on updates without noise"
    yield options.exclude_after is None, Mistake(excluding, about[0])
    mixing = f"mixes updates of several versions, for which {why} is not accounted: use a deadline, or none"
    yield not late, Mistake(mixing, about[1])
    probe = f"{type(method.sampler).__name__} chooses clients by losses that are sent without noise: use Poisson"
    yield method.probe is None, f"{why}: {probe}"
    for exchange in method.exchanges:
        yield from _unprotected(exchange)


def _unprotected(exchange: BoundExchange) -> Iterator[tuple[bool, str]]:
    """Yield the values that clients of an exchange send without noise."""
    private, why = parts_of(exchange), "differential privacy"
    solver, view = type(exchange.solver).__name__, type(exchange.view).__name__.removeprefix("Bound")
    yield bool(private), f"differential privacy: {solver} sends values without noise, in exchange {exchange.number + 1}"
    sections = [section.name for section in exchange.solver.sections]
    yield (
        exchange.solver.private or not sections,
        f"differential privacy: {solver} sends {', '.join(sections)} without noise",
    )
    server = exchange.server
    unequal = not server.equal_weights and exchange.hides
    yield not unequal, f"{why}: clients are weighted by numbers of samples, which have no noise: use weights='uniform'"
    yield exchange.view.section != CHANGE, f"differential privacy: {view} sends the masks of clients without noise"


def _one(guarantees: Iterable[Guarantee]) -> Guarantee:
    """Return one statement: the only one, or that of several mechanisms in each round."""
    first, *others = guarantees
    renyi = [each for each in (first, *others) if isinstance(each, Renyi)]
    if not others or len(renyi) == 1 + len(others):
        return compose(*renyi) if others else first
    names = " and ".join(each.mechanism for each in (first, *others))
    raise ConfigError(f"several parts add noise ({names}), and no statement covers all: use one of them")
