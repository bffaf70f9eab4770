"""Build the method of a request: its recipe, the parts that replace those of the recipe, ``--set``, and ``--dp``.

Mistakes are named by the flags that cause them. A request is typed with ``--dp central --epsilon 8``. ``with_budget``
adds the noise multiplier and the numbers that it depends on. A resumed run reads them, so nothing is chosen again.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from gossamer.cli import user_files
from gossamer.cli.common import flag_word
from gossamer.cli.flags import (
    REQUIRED,
    Flag,
    Recipe,
    arguments,
    assign,
    by_flags,
    defaults,
    flags,
    parts,
    settable,
    value,
)
from gossamer.cli.request import Request
from gossamer.core.adapter import Adapter
from gossamer.core.codec import Codec
from gossamer.core.downlink import Downlink
from gossamer.core.errors import ConfigError, Mistake, Mistakes
from gossamer.core.interface import check_part
from gossamer.core.method import Method
from gossamer.core.parametrization import Weights
from gossamer.core.random import key
from gossamer.core.sampler import Sampler
from gossamer.core.server import Server
from gossamer.core.solver import Solver
from gossamer.core.specs import parse, unknown
from gossamer.engines.options import Options
from gossamer.methods import METHODS
from gossamer.methods.private import Budget, Clip, Terms, check_method, noise_for, units_of, with_noise
from gossamer.methods.secure import secured
from gossamer.parts.adapters import ADAPTERS
from gossamer.parts.codecs import CODECS
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.codecs.masked_noise import MaskedNoise
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.downlinks import DOWNLINKS
from gossamer.parts.downlinks.delta import Delta
from gossamer.parts.privacy.budget import usual_delta
from gossamer.parts.samplers import SAMPLERS
from gossamer.parts.secure import PROTOCOLS
from gossamer.parts.servers.robust import PLAIN, RULES
from gossamer.parts.servers.robust.server import Robust, Rule
from gossamer.parts.solvers import SOLVERS
from gossamer.tasks.objective import Objective
from gossamer.tasks.task import Task

KINDS: dict[str, tuple[type, Mapping[str, Any]]] = {
    "codec": (Codec, CODECS),
    "down": (Codec, CODECS | DOWNLINKS),
    "solver": (Solver, SOLVERS),
    "server": (Server, RULES),
    "sampler": (Sampler, SAMPLERS),
    "adapter": (Adapter, ADAPTERS),
}
"""The interface of each part that a flag can replace, and the registry of those with a name."""

SECURE = "secure."
"""How settings of secure aggregation begin."""

WHOLE = ("codec", "down", "sampler", "adapter")
"""The parts that a spec sets as a whole. A solver takes flags of the method, and a rule wraps the method's server."""

OTHERS: dict[str, type] = {"down": Downlink, "server": Rule}
"""Other types that a flag accepts in place of a part."""


def make_method(request: Request) -> Method:
    """Call the recipe with the given values, replace parts, and apply ``--set``.

    If the recipe cannot be called with these values, the settings are still checked, on its defaults.
    """
    recipe = find_recipe(request.method)
    mistakes = Mistakes()
    known = flags(recipe, request.method)
    values = arguments(known, request.given, mistakes)
    method = defaults(recipe)
    if all(flag.name in values for flag in known if flag.default is REQUIRED):
        method = _called(recipe, request.method, known, values, mistakes) or method
    if method is not None:
        made = mistakes.attempt(with_parts, method, request, values)
        if made is not None and not mistakes.found:
            mistakes.note(*_unused(recipe, known, values, request, method, made))
        method = made or method
        refused = [name for name in KINDS if getattr(request, name)] if made is None else []
        # Settings of a part that is not there are left out.
        ours = [setting for setting in request.sets if setting.partition(".")[0] not in refused]
        for setting in ours:
            if not setting.startswith(SECURE):
                method = mistakes.attempt(assign, method, setting) or method
        if request.secure:
            method = mistakes.attempt(secured, method, PROTOCOLS[request.secure]()) or method
        method = mistakes.attempt(with_privacy, method, request) or method
        # ``--dp`` will add secure aggregation, once its noise is known.
        later = request.privacy.get("dp") == "distributed" and "size" not in request.privacy
        for setting in ours:
            if setting.startswith(SECURE) and (method.training.secure or not later):
                method = mistakes.attempt(assign, method, setting) or method
    mistakes.settle()
    assert method is not None  # or there were mistakes
    return method


def _unused(
    recipe: Recipe, known: Sequence[Flag], values: dict[str, Any], request: Request, method: Method, made: Method
) -> Iterator[str]:
    """Yield a mistake for each given flag without effect, because ``made`` replaces a part of the recipe's ``method``.

    Without such a flag the result is the same. This says nothing about a value that is the default: its flag is without
    effect if it is one of a replaced part alone.
    """
    files = request.files()
    asked = {name: getattr(request, name) for name in KINDS if getattr(request, name)}
    named = settable(made).get("solver") if request.solver and "solver" not in files else None
    taken = _names(named)  # also if it is the default there
    replaced = [name for name in WHOLE if name in asked and name not in files]
    before, after = settable(method), settable(made)
    kept = {field for name, part in after.items() if name not in replaced for field in _names(part)}
    gone = {name: _names(before[name]) - kept for name in replaced if name in before}
    for flag in known if asked else ():
        if flag.name not in values or flag.default is REQUIRED or flag.name in taken:
            continue
        blamed = [name for name, names in gone.items() if flag.name in names]
        idle = bool(blamed)
        if values[flag.name] != flag.default:
            rest = {name: value for name, value in values.items() if name != flag.name}
            without = Mistakes().attempt(call, recipe, request.method, rest)
            idle = without not in (None, method) and Mistakes().attempt(with_parts, without, request, rest) == made
        if idle:
            others = " and ".join(f"{flag_word(name)} {asked[name]}" for name in blamed or asked)
            yield f"{flag.word} changes nothing with {others}, which does not read this flag: leave one of them out"


def _names(part: Any) -> set[str]:
    """Return the names of the fields of a part, and of the parts in it."""
    return {field.name for each in (part, *parts(part)) if is_dataclass(each) for field in fields(each) if field.init}


def with_parts(method: Method, request: Request, values: Mapping[str, Any]) -> Method:
    """Return the method with the requested parts; ``values`` are those of the recipe's flags."""
    mistakes = Mistakes()
    asked = {name: getattr(request, name) for name in KINDS if getattr(request, name)}
    if asked.get("server") == PLAIN:
        del asked["server"]
    found = {name: mistakes.attempt(find_part, name, spec, values) for name, spec in asked.items()}
    silent = [name for name in found if name in ("codec", "down", "server")]
    if silent and not method.shared:
        mistakes.note(f"{' and '.join(map(flag_word, silent))}: {request.method} sends nothing")
    if found.get("codec") and method.parametrization != Weights():
        mistakes.note(f"--codec: {request.method} sends masks, which have their own codec")
    if found.get("codec") and method.codec.takes_carry(method.solver):
        mistakes.note(f"--codec: {request.method} sends scalars of its solver, which have their own codec")
    if isinstance(found.get("down"), MaskedNoise):
        mistakes.note("--down: masked noise can encode a small update, not a model")
    rule, down = found.get("server"), found.get("down")
    if isinstance(rule, Rule) and isinstance(down, Delta) and down.codec is None:
        mistakes.note(
            f"--down {request.down}: clients cannot repeat --server {request.server}, which needs the updates of all: "
            "use --down delta:eden:2, or --down dense"
        )
    if isinstance(rule, Rule) and method.shared:
        try:
            found["server"] = Robust(rule, method.server)
        except ConfigError as error:
            where = f"--server {request.server} with {request.method}"
            mistakes.note(*(f"{where}: {mistake}" for mistake in error.mistakes))
    mistakes.settle()
    for name, part in found.items():
        # A codec applies to the weights alone, unless it takes the whole model, or its noise must protect all of it.
        if isinstance(part, Codec) and not (isinstance(part, (Dense, OnWeights)) or part.private):
            found[name] = OnWeights(part)
    return method.with_parts(**{name: part for name, part in found.items() if part})


def find_part(name: str, spec: str, values: Mapping[str, Any]) -> Any:
    """Return a part by its spec, or by ``file.py:Name``: a part, or a class or function that makes one.

    A class, or a solver with a name, receives the values of the recipe's flags for its fields of the same name.
    """
    kind, known = KINDS[name]
    if not user_files.is_file(spec):
        part = parse(spec, known, "codec" if kind is Codec else name)
        return replace(part, **_of_fields(type(part), values)) if kind is Solver else part
    label = f"{flag_word(name)} {spec}"
    found = user_files.load(spec, label)
    if isinstance(found, type) or (callable(found) and not isinstance(found, kind)):
        found = user_files.called(label, found, **_of_fields(found, values))
    other = OTHERS.get(name)
    check_part(found, other if other and isinstance(found, other) else kind, label)
    return found


def _of_fields(found: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a class's fields, if it is a dataclass."""
    own = {field.name for field in fields(found) if field.init} if is_dataclass(found) else set()
    return {field: value for field, value in values.items() if field in own}


def _called(
    recipe: Recipe, name: str, known: Sequence[Flag], values: dict[str, Any], mistakes: Mistakes
) -> Method | None:
    """Call a recipe; note refused values as mistakes of their flags, and return ``None`` if there are any.

    A recipe stops at the first part that refuses a value. Refused values are left out, and it is called again.
    """
    wrong: set[str] = set()
    while True:
        left = {field: value for field, value in values.items() if field not in wrong}
        try:
            method = call(recipe, name, left)
            return None if wrong else method
        except ConfigError as error:
            blame = [blamed(recipe, name, known, left, mistake) for mistake in error.mistakes]
        mistakes.note(*(text for text, _ in blame))
        more = {field for _, fields in blame for field in fields} & values.keys() - wrong
        if not more or any(flag.default is REQUIRED for flag in known if flag.name in more):
            return None
        wrong |= more


def blamed(
    recipe: Recipe, name: str, known: Sequence[Flag], values: dict[str, Any], mistake: Mistake
) -> tuple[str, set[str]]:
    """Return a mistake in terms of flags, and these; if it names none, the flag whose absence removes it."""
    text, found = by_flags(mistake, known)
    if found:
        return text, found
    for flag in known:
        if flag.name in values and flag.default is not REQUIRED:
            others = Mistakes()
            others.attempt(call, recipe, name, {field: v for field, v in values.items() if field != flag.name})
            if mistake not in others.found:
                return _about_flag(mistake, flag, values[flag.name]), {flag.name}
    return text, found


def _about_flag(mistake: Mistake, flag: Flag, given: Any) -> str:
    """Return a mistake that a flag causes. A field that has the value of the flag is called by the flag."""
    if mistake.about and mistake.rest.endswith(f", got {given!r}"):
        return mistake.written(lambda setting: flag.word if setting == mistake.about else str(setting))
    return f"{flag.word}: {mistake}"


def call(recipe: Recipe, name: str, values: dict[str, Any]) -> Method:
    """Call a recipe and check that it returns a method."""
    method = user_files.called(f"method {name}", recipe, **values)
    if not isinstance(method, Method):
        raise ConfigError(f"method {name}: must return a Method, got {type(method).__name__}")
    return method


def find_recipe(name: str) -> Recipe:
    """Return a recipe by name, or by ``file.py:name``."""
    if user_files.is_file(name):
        recipe = user_files.load(name, f"method {name}")
        if not callable(recipe):
            raise ConfigError(f"method {name}: must be a function that returns a Method")
        return recipe
    if name not in METHODS:
        raise ConfigError(unknown("method", name, METHODS) + ", or file.py:recipe")
    return METHODS[name]


def one_method(spec: str) -> Method:
    """Return the method of ``file.py:name``: a Method, or a recipe that needs no arguments; also a method by name."""
    found = user_files.load(spec, f"--method {spec}") if user_files.is_file(spec) else None
    return found if isinstance(found, Method) else call(find_recipe(spec), spec, {})


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
