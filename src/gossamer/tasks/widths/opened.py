"""Recurrent layers as single operations, so that a trace sees which dimensions they tie.

Torch runs them as one opaque operation, which differs between devices.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
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
        cell, count = CELLS[type(rnn)]
        rows = x.transpose(0, 1) if rnn.batch_first and x.dim() == 3 else x
        given = None if hx is None else [hx] if isinstance(hx, Tensor) else list(hx)
        last: list[States] = []
        for layer in range(rnn.num_layers):
            outs = []
            for suffix in ("", "_reverse")[: 1 + rnn.bidirectional]:
                weights = [getattr(rnn, f"{name}_l{layer}{suffix}", None) for name in NAMES]
                states = _begin(weights[1], rows[0], count) if given is None else [state[len(last)] for state in given]
                out, states = _run(rnn, cell, rows.flip(0) if suffix else rows, states, weights)
                outs.append(out.flip(0) if suffix else out)
                last.append(states)
            rows = torch.cat(outs, -1) if len(outs) > 1 else outs[0]
        ends = tuple(torch.stack(each) for each in zip(*last, strict=True))
        whole = rows.transpose(0, 1) if rnn.batch_first and x.dim() == 3 else rows
        return whole, ends if count > 1 else ends[0]

    return forward


def _begin(hidden: Any, row: Tensor, count: int) -> States:
    return [row.new_zeros(*row.shape[:-1], hidden.shape[1]) for _ in range(count)]


def _run(rnn: Any, cell: Callable[..., States], rows: Tensor, states: States, weights: list[Any]) -> Any:
    """Run one layer in one direction."""
    found = []
    for row in rows.unbind(0):
        ahead, behind = F.linear(row, weights[0], weights[2]), F.linear(states[0], weights[1], weights[3])
        states = cell(rnn, ahead, behind, states)
        found.append(states[0])
    return torch.stack(found), states


def _lstm(rnn: Any, ahead: Tensor, behind: Tensor, states: States) -> States:
    return list(step(ahead + behind, states[1]))


def _gru(rnn: Any, ahead: Tensor, behind: Tensor, states: States) -> States:
    (reset, keep, new), (reset_, keep_, old) = ahead.chunk(3, -1), behind.chunk(3, -1)
    fresh = (new + (reset + reset_).sigmoid() * old).tanh()
    kept = (keep + keep_).sigmoid()
    return [(1 - kept) * fresh + kept * states[0]]


def _rnn(rnn: Any, ahead: Tensor, behind: Tensor, states: States) -> States:
    return [torch.tanh(ahead + behind) if rnn.nonlinearity == "tanh" else torch.relu(ahead + behind)]


NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
CELLS: dict[type[nn.Module], tuple[Callable[..., States], int]] = {
    nn.LSTM: (_lstm, 2),
    nn.GRU: (_gru, 1),
    nn.RNN: (_rnn, 1),
}
"""Time step of each type of layer, and its number of states."""
