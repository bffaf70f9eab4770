"""Find out by a trial pass how a network draws random numbers.

The pass runs in the mode ``Layers``. If a generator has moved afterwards, the network also draws in a way that has no
rule: by another operation of torch, a generator of its own, NumPy or Python. Such a network trains with torch's
generators, which are seeded per client and round. It is neither stacked, compiled nor captured.
"""

import pickle
import random
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn
from torch.overrides import resolve_name
from torch.utils.checkpoint import CheckpointError

from gossamer.core.random import Key, tensor
from gossamer.tasks.operations import LightMode
from gossamer.tasks.random_layers.mode import Layers, Recorded

T = TypeVar("T")
State = Callable[[], Any]
TORCH = "torch's generator"
TWICE = "torch.utils.checkpoint, which runs layers twice"


class Randomness(NamedTuple):
    """How a network draws random numbers in training.

    Args:
        layers: whether it has random layers that draw from the run's keys
        other: what else draws, by name; empty if nothing does
    """

    layers: bool = False
    other: str = ""


def trial(module: nn.Module, device: torch.device, evaluate: Callable[[], T]) -> tuple[T, Randomness]:
    """Run one forward and backward pass of a module; return its result, and how the module draws."""
    found, numbers = generators(module), _numbers(device)
    before = {name: state() for name, state in found.items()}
    try:
        with _Backward() as backward, Layers(numbers):
            result = evaluate()
    except CheckpointError:  # the repeated layers used torch's generator, and saved other tensors
        return evaluate(), Randomness(other=TWICE)
    others = [name for name, state in found.items() if state() != before[name]]
    if TORCH in others:
        others = [*_named(found[TORCH], device, evaluate), *(name for name in others if name != TORCH)]
    if backward.draws:
        others.append(TWICE)
    return result, Randomness(bool(numbers.sizes) and not others, ", ".join(others))


def _numbers(device: torch.device) -> Recorded:
    return Recorded(tensor(Key(0, 0), device), torch.zeros((), dtype=torch.int64, device=device))


class _Backward(LightMode):
    """Notices random operations in the backward pass: a checkpoint there repeats a part of the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.draws = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if torch._C._current_graph_task_id() != -1 and _may_draw(func, args, kwargs or {}):
            self.draws = True
        return func(*args, **(kwargs or {}))


def _may_draw(func: Any, args: Any, kwargs: Any) -> bool:
    """Return whether an operation draws random numbers. Attention is marked as random, also without dropout."""
    if torch.Tag.nondeterministic_seeded not in func.tags:
        return False
    arguments = func._schema.arguments
    usual = {argument.name: argument.default_value for argument in arguments if argument.has_default_value()}
    given = dict(zip((argument.name for argument in arguments), args, strict=False))
    return bool({**usual, **given, **kwargs}.get("dropout_p", 1.0) != 0)


def generators(module: nn.Module) -> dict[str, State]:
    """Return functions that give the states of all generators that a module may use, by name."""
    found: dict[str, State] = {
        TORCH: _torch_state,
        "numpy.random": lambda: pickle.dumps(np.random.get_state()),
        "Python's random": random.getstate,
    }
    for name, part in module.named_modules():
        for attribute, value in vars(part).items():
            if (state := _state_of(value)) is not None:
                found[f"the generator {f'{name}.{attribute}'.lstrip('.')}"] = state
    return found


def _state_of(value: Any) -> State | None:
    """Return a function that gives a generator's state; none if the value is no generator."""
    if isinstance(value, torch.Generator):
        return lambda: value.get_state().tolist()
    if isinstance(value, np.random.Generator):
        return lambda: pickle.dumps(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return lambda: pickle.dumps(value.get_state())
    return value.getstate if isinstance(value, random.Random) else None


def _torch_state() -> Any:
    """Return the states of torch's own generators on all devices."""
    on_gpus = torch.cuda.default_generators if torch.cuda.is_initialized() else ()
    return [generator.get_state().numpy().tobytes() for generator in (torch.default_generator, *on_gpus)]


class _Naming(Layers):
    """Finds the operations that move torch's generators."""

    def __init__(self, numbers: Recorded, state: State) -> None:
        super().__init__(numbers)
        self.state, self.names = state, list[str]()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        before = self.state()
        result = super().__torch_function__(func, types, args, kwargs)
        if self.state() != before:
            self.names.append(resolve_name(func) or getattr(func, "__name__", "") or str(func))
        return result


def _named(state: State, device: torch.device, evaluate: Callable[[], object]) -> list[str]:
    """Return the names of the operations that move torch's generators."""
    with _Naming(_numbers(device), state) as mode:
        evaluate()
    return list(dict.fromkeys(mode.names)) or [TORCH]
