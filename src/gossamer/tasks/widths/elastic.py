"""Layers that take their width from their tensors; torch's own store the width of their construction.

A client with some of the channels puts narrower tensors into the network. Most layers take their sizes from the
tensors. Exceptions are layer norms, RMS norms, norms with one group per channel, grouped convolutions, recurrent layers
and attention. Attention keeps its number of heads, and each head becomes narrower.

``opened`` runs recurrent layers as single operations, so that a trace sees which dimensions they tie. Torch runs them
as one opaque operation, which differs between devices.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gossamer.tasks.nets.text import step

CONVOLUTIONS: dict[type[nn.Module], Callable[..., Tensor]] = {
    nn.Conv1d: F.conv1d,
    nn.Conv2d: F.conv2d,
    nn.Conv3d: F.conv3d,
}
RECURRENT: dict[str, Callable[..., Any]] = {
    "LSTM": torch.lstm,
    "GRU": torch.gru,
    "RNN_TANH": torch.rnn_tanh,
    "RNN_RELU": torch.rnn_relu,
}
Masks = Tensor | None


def stretch(module: nn.Module) -> nn.Module:
    """Let every layer of a module follow the width of its tensors; at full width the outputs are unchanged."""
    for part in module.modules():
        if type(part) is nn.LayerNorm and part.elementwise_affine:
            part.forward = _layer_norm(part)  # type: ignore[assignment, method-assign]
        elif type(part) is nn.RMSNorm and part.elementwise_affine:
            part.forward = _root_norm(part)  # type: ignore[assignment, method-assign]
        elif type(part) is nn.GroupNorm and part.num_groups == part.num_channels:
            part.forward = _channel_norm(part)  # type: ignore[assignment, method-assign]
        elif type(part) in CONVOLUTIONS and part.groups != 1 and part.padding_mode == "zeros":
            part.forward = _convolution(part, CONVOLUTIONS[type(part)])
        elif type(part) in CELLS and not part.proj_size:
            part.forward = _recurrent(part)
        elif type(part) is nn.MultiheadAttention and part.bias_k is None and not part.add_zero_attn:
            part.forward = _attention(part)  # type: ignore[method-assign]
        elif type(part) is nn.TransformerEncoderLayer:
            part.activation_relu_or_gelu = 0  # disables torch's fast path, which uses stored widths
        elif type(part) is nn.TransformerEncoder:
            part.use_nested_tensor = False  # only the fast path supports it
    return module


def _layer_norm(norm: nn.LayerNorm) -> Callable[[Tensor], Tensor]:
    return lambda x: F.layer_norm(x, norm.weight.shape, norm.weight, norm.bias, norm.eps)


def _root_norm(norm: nn.RMSNorm) -> Callable[[Tensor], Tensor]:
    return lambda x: F.rms_norm(x, norm.weight.shape, norm.weight, norm.eps)


def _channel_norm(norm: nn.GroupNorm) -> Callable[[Tensor], Tensor]:
    return lambda x: F.group_norm(x, x.shape[1], norm.weight, norm.bias, norm.eps)


def _convolution(conv: Any, apply: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
    def forward(x: Tensor) -> Tensor:
        groups = x.shape[1] // conv.weight.shape[1]
        return apply(x, conv.weight, conv.bias, conv.stride, conv.padding, conv.dilation, groups)

    return forward


def _recurrent(rnn: Any) -> Callable[..., Any]:
    run = rnn.forward

    def forward(*args: Any, **named: Any) -> Any:
        rnn.input_size, rnn.hidden_size = rnn.weight_ih_l0.shape[1], rnn.weight_hh_l0.shape[1]
        return run(*args, **named)

    def traced(x: Tensor, hx: Any = None) -> Any:
        """Run the layers on the tensors themselves; torch's own method keeps references that a compiler refuses."""
        held = [getattr(rnn, name) for name in rnn._flat_weights_names]
        if hx is None:
            sides = rnn.num_layers * (1 + rnn.bidirectional)
            zeros = x.new_zeros(sides, x.shape[0 if rnn.batch_first else 1], rnn.weight_hh_l0.shape[1])
            hx = (zeros, zeros) if rnn.mode == "LSTM" else zeros
        options = (rnn.bias, rnn.num_layers, rnn.dropout, rnn.training, rnn.bidirectional, rnn.batch_first)
        out, *states = RECURRENT[rnn.mode](x, hx, held, *options)
        return out, tuple(states) if rnn.mode == "LSTM" else states[0]

    return lambda *args, **named: (traced if torch.compiler.is_compiling() else forward)(*args, **named)


def _attention(layer: nn.MultiheadAttention) -> Callable[..., tuple[Tensor, Tensor | None]]:
    whole = layer.forward

    def forward(
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Masks = None,
        need_weights: bool = True,
        attn_mask: Masks = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        # With dropout the weights are computed here: torch's function hides them from ``random_layers``.
        drop = layer.dropout if layer.training else 0.0
        if layer.out_proj.weight.shape[1] == layer.embed_dim == query.shape[-1] and not drop:
            more = (key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal)
            return whole(query, key, value, *more)
        turned = not layer.batch_first and query.dim() == 3
        sides = [x.transpose(0, 1) if turned else x for x in (query, key, value)]
        q, k, v = (_heads(layer, x, *of) for x, of in zip(sides, _projections(layer), strict=True))
        mask = _mask(attn_mask, key_padding_mask, q)
        weights = _weights(q, k, mask, drop) if need_weights else None
        mixed = F.scaled_dot_product_attention(q, k, v, mask, drop) if weights is None else weights @ v
        out = layer.out_proj(mixed.transpose(-3, -2).flatten(-2))
        returned = weights.mean(-3) if weights is not None and average_attn_weights else weights
        return out.transpose(0, 1) if turned else out, returned

    return forward


def _weights(q: Tensor, k: Tensor, mask: Masks, drop: float) -> Tensor:
    """Return the attention weights."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    return F.dropout((scores if mask is None else scores + mask).softmax(-1), drop)


def _projections(layer: nn.MultiheadAttention) -> list[tuple[Tensor, Tensor | None]]:
    """Return weights and biases for queries, keys and values."""
    packed = layer.in_proj_weight
    weights = (layer.q_proj_weight, layer.k_proj_weight, layer.v_proj_weight) if packed is None else packed.chunk(3)
    biases = (None, None, None) if layer.in_proj_bias is None else layer.in_proj_bias.chunk(3)
    return list(zip(weights, biases, strict=True))


def _heads(layer: nn.MultiheadAttention, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return a projection with shape [..., heads, positions, head size]."""
    found = F.linear(x, weight, bias)
    return found.view(*found.shape[:-1], layer.num_heads, -1).transpose(-3, -2)


def _mask(attention: Masks, padding: Masks, q: Tensor) -> Masks:
    """Combine both masks into a term that is added to the scores; True in a mask excludes a position."""
    found = None if attention is None else _added(attention, q)
    if found is not None and found.dim() == 3 and q.dim() == 4:
        found = found.view(*q.shape[:2], *found.shape[1:])
    if padding is None:
        return found
    padded = _added(padding, q)[..., None, None, :]
    return padded if found is None else found + padded


def _added(mask: Tensor, like: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros(mask.shape, dtype=like.dtype, device=mask.device).masked_fill(mask, -torch.inf)


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
                weights: list[Any] = [getattr(rnn, f"{name}_l{layer}{suffix}", None) for name in NAMES]
                if given is None:
                    states = [rows.new_zeros(*rows.shape[1:-1], weights[1].shape[1]) for _ in range(count)]
                else:
                    states = [state[len(last)] for state in given]
                out, states = run_layer(cell, rows.flip(0) if suffix else rows, states, weights)
                outs.append(out.flip(0) if suffix else out)
                last.append(states)
            rows = torch.cat(outs, -1) if len(outs) > 1 else outs[0]
        ends = tuple(torch.stack(each) for each in zip(*last, strict=True))
        whole = rows.transpose(0, 1) if rnn.batch_first and x.dim() == 3 else rows
        return whole, ends if count > 1 else ends[0]

    return forward


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


NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


CELLS: dict[type[nn.Module], tuple[Callable[[Any], Callable[..., States]], int]] = {
    nn.LSTM: (lambda rnn: lstm_cell, 2),
    nn.GRU: (lambda rnn: gru_cell, 1),
    nn.RNN: (lambda rnn: partial(rnn_cell, torch.tanh if rnn.nonlinearity == "tanh" else torch.relu), 1),
}
"""Time step of a layer, by its type, and its number of states."""
