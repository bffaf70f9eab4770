"""Recurrent layers as single operations, so that a trace sees which dimensions they tie.

Torch runs them as one opaque operation, which differs between devices.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.tasks.nets.lstm import step

States = list[Tensor]
"""State of a layer between time steps; its output is first."""


@contextmanager
def opened(module: nn.Module) -> Iterator[None]:
    """Run a module's recurrent layers step by step inside the block; without dropout, which ties nothing."""
    with ExitStack() as stack:
        for part in module.modules():
            if type(part) in CELLS and not part.proj_size:
                stack.callback(vars(part).update, {k: v for k, v in vars(part).items() if k == "forward"})
                stack.callback(vars(part).pop, "forward")
                part.forward = _forward(part)
        yield


def _forward(rnn: Any) -> Callable[..., Any]:
    def forward(x: Tensor, hx: Any = None) -> Any:
        of, count = CELLS[type(rnn)]
        cell = of(rnn)
        rows = x.transpose(0, 1) if rnn.batch_first and x.dim() == 3 else x
        given = None if hx is None else [hx] if isinstance(hx, Tensor) else list(hx)
        last: list[States] = []
        for layer in range(rnn.num_layers):
            outs = []
            for suffix in ("", "_reverse")[: 1 + rnn.bidirectional]:
                weights = [getattr(rnn, f"{name}_l{layer}{suffix}", None) for name in NAMES]
                states = _begin(weights[1], rows[0], count) if given is None else [state[len(last)] for state in given]
                out, states = run_layer(cell, rows.flip(0) if suffix else rows, states, weights)
                outs.append(out.flip(0) if suffix else out)
                last.append(states)
            rows = torch.cat(outs, -1) if len(outs) > 1 else outs[0]
        ends = tuple(torch.stack(each) for each in zip(*last, strict=True))
        whole = rows.transpose(0, 1) if rnn.batch_first and x.dim() == 3 else rows
        return whole, ends if count > 1 else ends[0]

    return forward


def _begin(hidden: Any, row: Tensor, count: int) -> States:
    return [row.new_zeros(*row.shape[:-1], hidden.shape[1]) for _ in range(count)]


def run_layer(cell: Callable[..., States], rows: Tensor, states: States, weights: list[Any]) -> tuple[Tensor, States]:
    """Run one layer in one direction; return its outputs and its last states."""
    found = []
    for row in rows.unbind(0):
        ahead, behind = F.linear(row, weights[0], weights[2]), F.linear(states[0], weights[1], weights[3])
        states = cell(ahead, behind, states)
        found.append(states[0])
    return torch.stack(found), states


def lstm_cell(ahead: Tensor, behind: Tensor, states: States) -> States:
    """Run one time step of an LSTM, given the products with its input and with its state."""
    return list(step(ahead + behind, states[1]))


def gru_cell(ahead: Tensor, behind: Tensor, states: States) -> States:
    """Run one time step of a GRU."""
    (reset, keep, new), (reset_, keep_, old) = ahead.chunk(3, -1), behind.chunk(3, -1)
    fresh = (new + (reset + reset_).sigmoid() * old).tanh()
    kept = (keep + keep_).sigmoid()
    return [(1 - kept) * fresh + kept * states[0]]


def rnn_cell(activation: Callable[[Tensor], Tensor], ahead: Tensor, behind: Tensor, states: States) -> States:
    """Run one time step of a plain recurrent layer."""
    return [activation(ahead + behind)]


def _rnn(rnn: Any) -> Callable[..., States]:
    return partial(rnn_cell, torch.tanh if rnn.nonlinearity == "tanh" else torch.relu)


NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
CELLS: dict[type[nn.Module], tuple[Callable[[Any], Callable[..., States]], int]] = {
    nn.LSTM: (lambda rnn: lstm_cell, 2),
    nn.GRU: (lambda rnn: gru_cell, 1),
    nn.RNN: (_rnn, 1),
}
"""Time step of a layer, by its type, and its number of states."""
