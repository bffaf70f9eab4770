"""Build the objects of a run from a request. The request is checked as a whole, and every mistake is listed at once."""

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from gossamer.cli import user_files
from gossamer.cli.flags import REQUIRED, Flag, Recipe, arguments, by_flags, defaults, flags, parts, value
from gossamer.cli.private import with_budget, with_privacy
from gossamer.cli.request import CLIENTS, DATA, ROUNDS, TASK, Request
from gossamer.cli.settings import assign, settable
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
from gossamer.engines.options import AUTO, Options
from gossamer.engines.simulation import Simulation
from gossamer.engines.warm_start import Init
from gossamer.methods import METHODS
from gossamer.methods.secure import secured
from gossamer.parts.adapters import ADAPTERS
from gossamer.parts.codecs import CODECS
from gossamer.parts.codecs.dense import Dense
from gossamer.parts.codecs.masked_noise import MaskedNoise
from gossamer.parts.codecs.on_weights import OnWeights
from gossamer.parts.downlinks import DOWNLINKS
from gossamer.parts.downlinks.delta import Delta
from gossamer.parts.samplers import SAMPLERS
from gossamer.parts.secure import PROTOCOLS
from gossamer.parts.servers.robust import PLAIN, RULES
from gossamer.parts.servers.robust.server import Robust, Rule
from gossamer.parts.solvers import SOLVERS
from gossamer.tasks.batch_norms import STATISTICS
from gossamer.tasks.data.datasets import DATASETS, load
from gossamer.tasks.data.partition import Split
from gossamer.tasks.data.partitioners import SPLITS
from gossamer.tasks.data.samples import Data
from gossamer.tasks.nets import build, check_name
from gossamer.tasks.task import Task, deal, task_at

T = TypeVar("T")

OPTIONS = tuple(option.name for option in fields(Options))

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


def assemble(
    request: Request, options: dict[str, Any], split: Split | None = None, init: str | None = None
) -> Simulation:
    """Return a checked simulation; nothing is written before this returns."""
    mistakes = Mistakes()
    start = mistakes.attempt(in_flags, request, Init.of, init) if init else None
    method = mistakes.attempt(make_method, request)
    checked = mistakes.attempt(make_options, options)
    task = mistakes.attempt(make_task, request, checked.seed if checked else 0, split)
    clients = task.clients if task else None if request.task else Mistakes().attempt(make_clients, request)
    if clients is not None:
        mistakes.attempt(check_cohort, options, clients)
    mistakes.settle()
    assert method is not None  # or there were mistakes
    assert task is not None
    assert checked is not None
    if request.privacy:
        request = in_flags(request, with_budget, request, method, task, checked)
        method = make_method(request)
    given = (method, task, checked, request.plain(), start)
    if not request.files():
        return in_flags(request, Simulation, *given)
    label = " with ".join(request.files().values())
    made: Simulation = in_flags(request, user_files.called, label, Simulation, *given)
    return made


def in_flags(request: Request, function: Callable[..., T], *args: Any) -> T:
    """Call a function. Its mistakes name the flags of the method and of the run in place of fields and options."""
    try:
        return function(*args)
    except ConfigError as error:
        own = Mistakes().attempt(lambda: flags(find_recipe(request.method), request.method)) or []
        options = (*OPTIONS, "init")
        raise ConfigError(*(by_flags(mistake, own, options)[0] for mistake in error.mistakes)) from error


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
        for setting in ours:
            if setting.startswith(SECURE) and (method.training.secure or not _later(request)):
                method = mistakes.attempt(assign, method, setting) or method
    mistakes.settle()
    assert method is not None  # or there were mistakes
    return method


def _later(request: Request) -> bool:
    """Return whether ``--dp`` will add secure aggregation, once its noise is known."""
    return request.privacy.get("dp") == "distributed" and "size" not in request.privacy


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
    gone = _gone(method, made, [name for name in WHOLE if name in asked and name not in files])
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
            replaced = " and ".join(f"{_word(name)} {asked[name]}" for name in blamed or asked)
            yield f"{flag.word} changes nothing with {replaced}, which does not read this flag: leave one of them out"


def _gone(method: Method, made: Method, replaced: Sequence[str]) -> dict[str, set[str]]:
    """Return, for each replaced part, the names of its fields that no other part has."""
    before, after = settable(method), settable(made)
    kept = {field for name, part in after.items() if name not in replaced for field in _names(part)}
    return {name: _names(before[name]) - kept for name in replaced if name in before}


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
        mistakes.note(f"{' and '.join(map(_word, silent))}: {request.method} sends nothing")
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
        found["server"] = mistakes.attempt(_replacing, rule, method, request)
    mistakes.settle()
    return method.with_parts(**{name: _lifted(part) for name, part in found.items() if part})


def _replacing(rule: Rule, method: Method, request: Request) -> Robust:
    """Return the server with a robust rule in place of the method's mean."""
    try:
        return Robust(rule, method.server)
    except ConfigError as error:
        raise ConfigError(*(f"--server {request.server} with {request.method}: {e}" for e in error.mistakes)) from None


def find_part(name: str, spec: str, values: Mapping[str, Any]) -> Any:
    """Return a part by its spec, or by ``file.py:Name``: a part, or a class or function that makes one.

    A class, or a solver with a name, receives the values of the recipe's flags for its fields of the same name.
    """
    kind, known = KINDS[name]
    if not user_files.is_file(spec):
        part = parse(spec, known, "codec" if kind is Codec else name)
        return replace(part, **_of_fields(type(part), values)) if kind is Solver else part
    label = f"{_word(name)} {spec}"
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


def _lifted(part: Any) -> Any:
    """Apply a codec to the weights alone, unless it takes the whole model, or its noise must protect all of it."""
    lifted = isinstance(part, Codec) and not (isinstance(part, (Dense, OnWeights)) or part.private)
    return OnWeights(part) if lifted else part


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


def make_options(given: dict[str, Any]) -> Options:
    """Return options from text or from a recorded run; mistakes name the flags."""
    hints, mistakes = typing.get_type_hints(Options), Mistakes()
    values: dict[str, Any] = {"rounds": ROUNDS, "executor": AUTO}
    for name, text in given.items():
        try:
            values[name] = value(_word(name), text, hints[name])
        except ConfigError as error:
            mistakes.note(*error.mistakes)
    try:
        options = Options(**values)
    except ConfigError as error:
        mistakes.note(*map(as_typed, error.mistakes))
    mistakes.settle()
    return options


def check_cohort(given: dict[str, Any], clients: int) -> None:
    """Refuse a cohort larger than the number of clients, or too small for ``--exclude-after`` if that is given."""
    options = make_options({name: given[name] for name in ("per_round", "exclude_after", "schedule") if name in given})
    try:
        options.check_exclusion(clients)
    except ConfigError as error:
        raise ConfigError(*map(as_typed, error.mistakes)) from None


def _word(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def as_typed(mistake: Mistake) -> str:
    """Return a mistake about options in terms of flags."""
    return mistake.written(lambda setting: str(setting) if setting.part else _word(setting.field))


def make_task(request: Request, seed: int, split: Split | None, read: Callable[[str], Task] | None = None) -> Task:
    """Return the task of a request.

    Args:
        request: the request
        seed: the seed of the run
        split: the partition of the run that is resumed; by default a new one is drawn
        read: finds a task in a user file
    """
    if request.task:
        task = task_from_file(request, request.task, read or whole_task)
        return task.with_split(split) if split else task
    mistakes = Mistakes()
    seed = mistakes.attempt(data_seed, request, seed) or 0
    clients = mistakes.attempt(make_clients, request)
    data = mistakes.attempt(make_data, request, clients or CLIENTS, seed)
    if data is not None:
        mistakes.attempt(build, request.model or data.model, data.shape, data.outputs)
    elif request.model:
        mistakes.attempt(check_name, request.model)
    if data is not None and clients is not None:
        split = split or mistakes.attempt(deal, data, request.split or data.split, clients, seed)
    elif request.split:
        mistakes.attempt(parse, request.split, SPLITS, "split")
    if request.statistics:
        mistakes.attempt(parse, request.statistics, STATISTICS, "statistics")
    mistakes.settle()
    assert data is not None  # or there were mistakes
    assert split is not None
    return Task.of_data(data, request.model, request.split or data.split, split, request.statistics)


_KEPT: dict[tuple[Any, ...], Data] = {}
_keeping = False


@contextmanager
def keeping_data() -> Iterator[None]:
    """Read the data set of several requests once, as long as the requests ask for the same."""
    global _keeping
    _keeping = True
    try:
        yield
    finally:
        _keeping = False
        _KEPT.clear()


def make_data(request: Request, clients: int, seed: int) -> Data:
    """Return the data set of a request."""
    name, folder = request.data or DATA, Path(request.data_dir) if request.data_dir else None
    mistakes = Mistakes()
    mistakes.attempt(parse, name, DATASETS, "data set")
    if folder is not None and not folder.is_dir():
        mistakes.note(f"--data-dir: there is no folder {folder}")
    mistakes.settle()
    if (asked := (name, folder, clients, seed)) not in _KEPT:
        _KEPT.clear()
        _KEPT[asked] = load(name, data_dir=folder, clients=clients, key=key(seed))
    return _KEPT[asked] if _keeping else _KEPT.pop(asked)


def make_clients(request: Request) -> int:
    """Return the number of clients of a request."""
    clients: int = CLIENTS if request.clients is None else value("--clients", request.clients, int)
    if clients < 1:
        raise ConfigError(f"--clients must be at least 1, got {clients}")
    return clients


def data_seed(request: Request, seed: int) -> int:
    """Return the seed of the data and the partition: by default that of the run."""
    chosen: int = seed if request.data_seed is None else value("--data-seed", request.data_seed, int)
    if chosen < 0:
        raise ConfigError(f"--data-seed must not be negative, got {chosen}")
    return chosen


def task_from_file(request: Request, spec: str, read: Callable[[str], Task]) -> Task:
    """Return the task of ``file.py:name``: a Task, or a function that returns one."""
    mistakes = Mistakes()
    replaced = [_word(name) for name in TASK if getattr(request, name)]
    if replaced:
        mistakes.note(f"--task brings its own data, model and split: leave out {', '.join(replaced)}")
    task = mistakes.attempt(read, spec)
    mistakes.settle()
    assert task is not None  # or there were mistakes
    return task


def whole_task(spec: str) -> Task:
    """Return the task of ``file.py:name`` for a simulation, with the samples of all clients."""
    label = f"--task {spec}"
    found = user_files.load(spec, label)
    if callable(found) and any(p.default is p.empty for p in inspect.signature(found).parameters.values()):
        raise ConfigError(f"{label}: it takes arguments, which only a deployment passes")
    if callable(found):
        found = user_files.called(label, found)
    return _checked(found, label)


def server_task(spec: str) -> Task:
    """Return the task of ``file.py:name`` for the server of a deployment."""
    label = f"--task {spec}"
    found: Any = user_files.load(spec, label)
    return _checked(user_files.called(label, task_at, found, None, {}), label)


def _checked(found: object, label: str) -> Task:
    if not isinstance(found, Task):
        raise ConfigError(f"{label}: must be a gossamer.Task or a function that returns one")
    return found


def recorded_data(about: dict[str, Any]) -> Data | None:
    """Return the data of a recorded run; ``None`` if it cannot be loaded or has changed."""
    request = Request.recorded(about)
    if request is None:
        return None
    seed = data_seed(request, about["options"]["seed"])
    task = request.task
    data = whole_task(task).data if task else make_data(request, make_clients(request), seed)
    return data if data.digest() == about["task"]["data_digest"] else None
