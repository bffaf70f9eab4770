"""What builds the network of a task: a function without arguments, or a network that is copied."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy

from gossamer.core.adapter import Adapter
from gossamer.core.errors import ConfigError

Factory = Callable[[], nn.Module]


@dataclass(frozen=True, eq=False)
class Copies:
    """Returns a copy of the same network at every call, so that training never changes the user's network."""

    module: nn.Module

    def __call__(self) -> nn.Module:
        """Return a copy of the network."""
        return copy.deepcopy(self.module)


@dataclass(frozen=True, eq=False)
class Adapted:
    """Builds a network and adapts it; the adapter may change what ``model`` returns only in a copy."""

    model: Factory
    adapter: Adapter

    def __call__(self) -> nn.Module:
        """Return the adapted network."""
        return self.adapter.adapt(copy.deepcopy(build(self.model)))


def factory(model: Any) -> Factory:
    """Return the function that builds a task's network; refuse what cannot build one."""
    if isinstance(model, nn.Module):
        return Copies(copy.deepcopy(model))
    if not callable(model):
        wanted = "model must be an nn.Module or a function that builds one, such as its class"
        raise ConfigError(f"{wanted}, got {_found(model)}")
    built: Factory = model
    return built


def _found(model: Any) -> str:
    """Return what was given in place of a network, and what to write if that is clear."""
    if isinstance(model, str):
        return f"{model!r}; Task.named takes networks by name"
    kind = type(model).__name__
    if hasattr(model, "model_type"):  # a configuration of transformers
        return f"a {kind}: write lambda: AutoModelForSequenceClassification.from_config(config), or another AutoModel"
    return repr(model) if isinstance(model, int | float | None) else f"a {kind}"


def build(model: Factory) -> nn.Module:
    """Build the network; refuse a function that needs arguments, or that builds something else."""
    try:
        module = model()
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # raised inside of the function, so it is the function's own
        name = getattr(model, "__name__", "Net")
        raise ConfigError(f"the model is built without arguments, but {error}: write lambda: {name}(...)") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"Task.model must build an nn.Module, got a {type(module).__name__}")
    _check_sizes(module)
    return module


def _check_sizes(module: nn.Module) -> None:
    """Refuse lazy layers, whose weights have no size before the first batch."""
    tensors = (*module.named_parameters(), *module.named_buffers())
    lazy = next((name for name, tensor in tensors if is_lazy(tensor)), None)
    if lazy is not None:
        raise ConfigError(
            f"the model's {lazy} has no size yet: write the sizes of its layers, such as nn.Linear(64, 10) for "
            "nn.LazyLinear(10), or run the model on one sample inside of the function that builds it"
        )
