"""Add the gradients of linear layers to their weights while they are computed.

The gradient of a linear layer's weight is a matrix product, and SGD adds a multiple of it to the weight. A compiled
step would write the gradient to memory and read it again. BLAS can add a product to a matrix in place, which torch's
compiler does not use. So the program returns the two factors, and the product is added after the call:

    weight - rate * (a @ b)    becomes    weight.addmm_(-rate * a, b)

A weight is given as its entries, see ``gossamer.engines.executors.pieces``.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from gossamer.engines.executors.recording import Recording

ATEN = torch.ops.aten
LARGE = 2**15
"""Entries of a weight for which another call takes less time than another pass over the weight."""


class Update(NamedTuple):
    """An operation of a graph that subtracts a multiple of a matrix product from a weight.

    Args:
        copy: the operation, which writes the new values
        weight: the weight, an input of the graph
        rate: the factor: a scalar tensor
        a: the first matrix
        b: the second matrix
    """

    copy: fx.Node
    weight: fx.Node
    rate: Any
    a: fx.Node
    b: fx.Node


def separate(recording: Recording) -> list[int]:
    """Take products out of a graph that are subtracted from large weights. It returns their factors instead.

    The results are the numbers of the inputs that ``add_products`` adds the products of the factors to.
    """
    graph = recording.graph.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    written: set[Any] = {node.args[0] for node in graph.nodes if node.target is ATEN.copy_.default}
    updates = [
        found
        for node in graph.nodes
        if (found := _update(node)) and found.weight in inputs and not {_base(found.a), _base(found.b)} & written
    ]
    outputs = [factor for update in updates for factor in _factors(graph, update)]
    last: Any = graph.output_node()
    last.args = ((*last.args[0], *outputs),)
    graph.eliminate_dead_code()
    recording.graph.recompile()
    return [inputs.index(update.weight) for update in updates]


def add_products(inputs: Sequence[Tensor], weights: Sequence[int], results: Sequence[Tensor]) -> Tensor:
    """Add the products of the factors among a graph's results to its inputs, and return the first result."""
    for place, number in enumerate(weights):
        a, b = results[2 * place + 1], results[2 * place + 2]
        inputs[number].view(len(a), -1).addmm_(a, b)
    return results[0]


def _factors(graph: fx.Graph, update: Update) -> tuple[fx.Node, fx.Node]:
    """Replace an update by its factors."""
    with graph.inserting_before(update.copy):
        rate = graph.call_function(ATEN.neg.default, (update.rate,))
        scaled = graph.call_function(ATEN.mul.Tensor, (update.a, rate))
    graph.erase_node(update.copy)
    return scaled, update.b


def _update(node: Any) -> Update | None:
    """Return the update that a node writes, if it writes one to a large weight, and no other node uses the gradient."""
    if node.target is not ATEN.copy_.default or node.users:
        return None
    weight, moved = node.args
    if not _alone(moved, ATEN.addcmul.default) or moved.args[0] is not weight or moved.kwargs != {"value": -1}:
        return None
    _, product, rate = moved.args
    if not isinstance(rate, fx.Node) or rate.meta["shape"] != () or not _alone(product, ATEN.view.default):
        return None
    product, turned = product.args[0], False
    while _turns(product):
        product, turned = product.args[0], not turned
    if turned or not _alone(product, ATEN.mm.default) or weight.meta["shape"].numel() < LARGE:
        return None
    return Update(node, weight, rate, *product.args)


def _turns(node: Any) -> bool:
    """Return whether a node is the transpose of a matrix."""
    transposed = _alone(node, ATEN.transpose.int) and sorted(at % 2 for at in node.args[1:]) == [0, 1]
    permuted = _alone(node, ATEN.permute.default) and [at % 2 for at in node.args[1]] == [1, 0]
    return transposed or permuted or _alone(node, ATEN.t.default)


def _alone(node: Any, target: Any) -> bool:
    """Return whether a node is this operation, with one user."""
    return isinstance(node, fx.Node) and node.target is target and len(node.users) == 1


def _base(node: Any) -> Any:
    """Return the tensor whose memory a node shows."""
    while node.op == "call_function" and any(result.alias_info for result in _results(node)):
        node = node.args[0]
    return node


def _results(node: fx.Node) -> Sequence[Any]:
    schema = getattr(node.target, "_schema", None)
    return schema.returns if schema is not None else ()
