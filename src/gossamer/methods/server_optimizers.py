"""Server optimizers, with the mean update of a round as the gradient: FedAvgM, FedAdagrad, FedAdam and FedYogi.

Algorithm 2 of Reddi et al., Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295. With the mean
update D of a round,

    m <- beta1 m + (1 - beta1) D
    v <- v + D^2                              FedAdagrad
    v <- v - (1 - beta2) D^2 sign(v - D^2)    FedYogi
    v <- beta2 v + (1 - beta2) D^2            FedAdam
    w <- w + server_lr m / (sqrt(v) + tau)

m starts at 0 and v at tau^2, without bias correction. tau is added outside the square root. FedAvgM (Hsu et al.,
Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019,
https://arxiv.org/abs/1909.06335) uses heavy-ball momentum: m <- beta1 m + D and w <- w + server_lr m. Running
statistics of the network are averaged.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, Self, Unpack

import torch
from torch import Tensor

from gossamer.core.errors import require, wrong
from gossamer.core.exchange import Context
from gossamer.core.method import Method
from gossamer.core.types import Clock, Params, State
from gossamer.methods.averaging import fedavg
from gossamer.methods.recipes import Averaging, Default, pick, recipe
from gossamer.parts.servers.mean import Sum, WeightedMean

__all__ = ["ServerOptimizer", "fedadagrad", "fedadam", "fedavgm", "fedyogi"]

Rule = Literal["momentum", "adagrad", "adam", "yogi"]

SECOND: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "adagrad": lambda v, square, beta2: v + square,
    "adam": lambda v, square, beta2: beta2 * v + (1 - beta2) * square,
    "yogi": lambda v, square, beta2: v - (1 - beta2) * square * torch.sign(v - square),
}
"""Update rules of the second moment, from its old value, the squared mean update and beta2."""


@dataclass(frozen=True)
class ServerOptimizer(WeightedMean):
    """Server optimizer whose gradient is the mean update.

    Args:
        rule: update rule: momentum, adagrad, adam or yogi
        server_lr: server learning rate
        beta1: decay rate of the first moment, or momentum
        beta2: decay rate of the second moment; unused by adagrad
        tau: adaptivity: constant added to the square root of the second moment
        trained: the names of the trained tensors
    """

    takes_any_mean: ClassVar[bool] = True

    rule: Rule = "adam"
    server_lr: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    trained: tuple[str, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        rules = ("momentum", *SECOND)
        require(
            (self.rule in rules, wrong(self, "rule", f"must be one of {', '.join(rules)}")),
            (0 <= self.beta1 < 1, wrong(self, "beta1", "must be in [0, 1)")),
            (0 <= self.beta2 < 1, wrong(self, "beta2", "must be in [0, 1)")),
            (0 < self.tau < math.inf, wrong(self, "tau", "must be positive")),
        )

    def bind(self, context: Context) -> Self:
        """Return the server with the names of the trained tensors."""
        return super().bind(context).filled(trained=context.trained)

    def init(self, params: Params) -> State:
        """Return the model and the initial moments."""
        first = {name: torch.zeros_like(params[name]) for name in self.trained}
        second = {name: torch.full_like(params[name], self.tau**2) for name in self.trained}
        return {"params": params, "first": first, **({"second": second} if self.rule in SECOND else {})}

    def finish(self, state: State, acc: Sum, clock: Clock) -> State:
        """Take one step of the optimizer. Without updates the state stays unchanged."""
        if acc.weight == 0:
            return state
        change, params = acc.mean(), dict(state["params"])
        moved = {name: tensor + change[name] for name, tensor in params.items() if name not in self.trained}
        new = dict.fromkeys(self.trained, 1.0 if self.rule == "momentum" else 1 - self.beta1)
        first = {name: self.beta1 * state["first"][name] + part * change[name] for name, part in new.items()}
        if self.rule == "momentum":
            moved |= {name: params[name] + self.server_lr * m for name, m in first.items()}
            return {**state, "params": self.projected({**params, **moved}), "first": first}
        rule = SECOND[self.rule]
        second = {name: rule(state["second"][name], change[name].square(), self.beta2) for name in self.trained}
        steps = {name: m / (second[name].sqrt() + self.tau) for name, m in first.items()}
        moved |= {name: params[name] + self.server_lr * step for name, step in steps.items()}
        return {**state, "params": self.projected({**params, **moved}), "first": first, "second": second}


class Adaptive(Averaging, total=False):
    """Local training, aggregation weights, and the server fields that Adam and Yogi share."""

    server_lr: Annotated[float, Default(0.03)]
    beta1: Annotated[float, Default(0.9)]
    beta2: Annotated[float, Default(0.99)]
    tau: Annotated[float, Default(1e-3)]


@recipe
def fedavgm(*, server_lr: float = 1.0, beta1: float = 0.9, **fields: Unpack[Averaging]) -> Method:
    """FedAvg with server momentum.

    Hsu et al., Measuring the Effects of Non-Identical Data Distribution for Federated Visual Classification, 2019,
    https://arxiv.org/abs/1909.06335

    Args:
        server_lr: server learning rate
        beta1: server momentum
    """
    return _stepping("momentum", fields, server_lr=server_lr, beta1=beta1)


@recipe
def fedadagrad(*, server_lr: float = 0.1, beta1: float = 0.0, tau: float = 1e-3, **fields: Unpack[Averaging]) -> Method:
    """FedAvg with Adagrad as the server optimizer.

    Reddi et al., Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295

    Args:
        server_lr: server learning rate
        beta1: decay rate of the first moment
        tau: adaptivity: constant added to the square root of the second moment
    """
    return _stepping("adagrad", fields, server_lr=server_lr, beta1=beta1, tau=tau)


@recipe
def fedadam(**fields: Unpack[Adaptive]) -> Method:
    """FedAvg with Adam as the server optimizer.

    Reddi et al., Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295
    """
    return _stepping("adam", fields, **{name: fields[name] for name in ("server_lr", "beta1", "beta2", "tau")})


@recipe
def fedyogi(**fields: Unpack[Adaptive]) -> Method:
    """FedAvg with Yogi as the server optimizer.

    Reddi et al., Adaptive Federated Optimization, ICLR 2021, https://arxiv.org/abs/2003.00295
    """
    return _stepping("yogi", fields, **{name: fields[name] for name in ("server_lr", "beta1", "beta2", "tau")})


def _stepping(rule: Rule, fields: Averaging, **more: Any) -> Method:
    """Return FedAvg with a server optimizer."""
    return fedavg(**pick(Averaging, fields)).with_parts(server=ServerOptimizer(fields["weights"], rule=rule, **more))
