"""Recurrent layers with dropout between them, run one layer at a time.

Torch runs all layers of an ``nn.LSTM``, ``nn.GRU`` or ``nn.RNN`` as one operation, and draws the masks between them
inside. Here each layer is a call of its own. A compiled step runs a loop over time, because torch's compiler does not
support the operation.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from gossamer.tasks.widths.elastic import States, gru_cell, lstm_cell, rnn_cell, run_layer

CELLS: dict[str, Callable[..., States]] = {
    "lstm": lstm_cell,
    "gru": gru_cell,
    "tanh": lambda *args: rnn_cell(torch.tanh, *args),
    "relu": lambda *args: rnn_cell(torch.relu, *args),
}


def recurrent(kind: str, drop: Callable[..., Tensor]) -> Callable[..., Any]:
    """Return the rule of an operation: ``torch.lstm``, ``gru``, ``rnn_tanh`` or ``rnn_relu``."""

    def rule(mode: Any, func: Any, *args: Any) -> Any:
        packed = not isinstance(args[3], bool)  # (data, batch sizes, states, weights, ...) of a PackedSequence
        x, sizes, (given, weights, bias, layers, p, train, both) = args[0], args[1 : 1 + packed], args[1 + packed :][:7]
        first = args[8] if not packed else False
        projected = len(weights) // (layers * (1 + both)) % 2
        looped = torch.compiler.is_compiling() and not packed and not projected
        p = p if train and layers > 1 else 0.0
        if not p and not looped:
            return func(*args)
        states = [given] if isinstance(given, Tensor) else list(given)
        each, sides, ends = len(weights) // layers, 1 + both, []
        for layer in range(layers):
            own = [state[layer * sides : (layer + 1) * sides] for state in states]
            used = weights[layer * each : (layer + 1) * each]
            if looped:
                x, *last = looping(CELLS[kind], x, own, used, first)
            else:
                begin = own[0] if isinstance(given, Tensor) else own
                rest = (bias, 1, 0.0, train, both, *(() if packed else (first,)))
                x, *last = func(x, *sizes, begin, used, *rest)
            ends.append(last)
            if p and layer + 1 < layers:
                x = drop(mode, x, p, x.shape)
        return (x, *(torch.cat(column) for column in zip(*ends, strict=True)))

    return rule


def looping(cell: Callable[..., States], x: Tensor, states: list[Tensor], weights: Any, first: bool) -> list[Tensor]:
    """Run one layer, in one or both directions, as a loop over time; return its outputs and last states."""
    rows = x.transpose(0, 1) if first else x
    sides, outs, ends = len(states[0]), [], []
    each = len(weights) // sides
    for side in range(sides):
        own = [*weights[side * each : (side + 1) * each], None, None][:4]
        out, last = run_layer(cell, rows.flip(0) if side else rows, [state[side] for state in states], own)
        outs.append(out.flip(0) if side else out)
        ends.append(last)
    whole = torch.cat(outs, -1) if sides > 1 else outs[0]
    return [whole.transpose(0, 1) if first else whole, *(torch.stack(column) for column in zip(*ends, strict=True))]
