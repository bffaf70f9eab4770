"""Check the method and the task of a run, before anything else is done."""

from typing import Any

from gossamer.core.errors import require
from gossamer.core.method import Exchange, Method
from gossamer.methods.registry import METHODS
from gossamer.tasks.data.datasets import DATASETS
from gossamer.tasks.task import Task


def check_arguments(method: object, task: object) -> None:
    """Refuse a method that is no ``Method`` and a task that is no ``Task``; say what to write instead."""
    if isinstance(method, Task) and isinstance(task, Method):
        require((False, "method and task are swapped: the method comes first, as in simulate(fedavg(), task)"))
    require(
        (isinstance(method, Method), f"method must be a gossamer Method, got {_found(method)}{_for_method(method)}"),
        (isinstance(task, Task), f"task must be a gossamer Task, got {_found(task)}{_for_task(task)}"),
    )


def _found(value: object) -> str:
    """Return a value in a few words."""
    if isinstance(value, str):
        return f"the text {value!r}"
    name = getattr(value, "__name__", "")
    return f"{'the class' if isinstance(value, type) else 'the function'} {name}" if name else f"a {_kind(value)}"


def _kind(value: object) -> str:
    return type(value).__name__


def _for_method(value: Any) -> str:
    if isinstance(value, str):
        return f": write {value.replace('-', '_')}()" if value in METHODS else ": write a recipe, such as fedavg()"
    if isinstance(value, Exchange):
        return ": write compose(view, solver, codec, server)"
    if callable(value) and hasattr(value, "__name__"):
        return f": write {value.__name__}()"
    return ": write a recipe, such as fedavg(), or compose(view, solver, codec, server)"


def _for_task(value: Any) -> str:
    if isinstance(value, str):
        name = value.partition(":")[0]
        return f": write Task.named({value!r})" if name in DATASETS else ": write Task.named(...) or Task.of(...)"
    if value is Task:
        return ": write Task.named(...) or Task.of(...)"
    if callable(value) and hasattr(value, "__name__"):
        return f": write {value.__name__}()"
    return ": write Task.of(model, train, test)"
