"""Give a compiled step the tensors behind vectors as inputs of their own.

A solver computes with vectors: a step cuts the parameters into the tensors of the network, joins the gradients, and
updates the vector entry by entry. Cut and joined, the compiler can fuse none of that with the layers, and every entry
is read and written once more. So each vector that a step is given becomes one input per tensor, and an operation entry
by entry on vectors becomes one per tensor:

    copy_(w, w - rate * cat(g_1, g_2))    becomes    copy_(w_1, w_1 - rate * g_1), copy_(w_2, w_2 - rate * g_2)

An operation on all entries, such as a norm, still gets the whole vector.
"""

import operator
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, fx

from gossamer.engines.executors.recording import Drawn, Piece, Recording, Source

ATEN = torch.ops.aten
SPLIT = ATEN.split_with_sizes.default


def take_apart(recording: Recording) -> Recording:
    """Return a recording of the same step, with vectors as one input per tensor."""
    nodes = list(recording.graph.graph.nodes)
    splits = [node for node in nodes if node.target is SPLIT and node.args[0].op == "placeholder"]
    return Apart(recording, splits[0].args[1]).made(nodes) if splits else recording


class Apart:
    """A graph that is built again, node by node, in which a list of nodes stands for a vector.

    Args:
        recording: the graph, with its inputs
        sizes: the numbers of entries of the tensors behind a vector
    """

    def __init__(self, recording: Recording, sizes: list[int]) -> None:
        self.recording, self.sizes, self.graph = recording, sizes, fx.Graph()
        self.shape, self.starts = torch.Size((sum(sizes),)), [0, *accumulate(sizes[:-1])]
        self.nodes: dict[fx.Node, Any] = {}
        self.inputs: list[tuple[Source, Tensor, fx.Node]] = []

    def made(self, nodes: list[fx.Node]) -> Recording:
        """Return the new recording, without inputs that no operation uses."""
        given = iter(zip(self.recording.inputs, self.recording.examples, strict=True))
        for node in nodes:
            self.nodes[node] = self._input(*next(given)) if node.op == "placeholder" else self._node(node)
        used = [(source, example) for source, example, node in self.inputs if node.users]
        for _, _, node in self.inputs:
            if not node.users:
                self.graph.erase_node(node)
        module = fx.GraphModule({}, self.graph)
        return Recording(module, [source for source, _ in used], [example for _, example in used])

    def _input(self, source: Source, example: Tensor) -> Any:
        vector = example.shape == self.shape and (example.is_floating_point() or example.dtype == torch.bool)
        if not vector or isinstance(source, Drawn | Piece):
            return self._placeholder(source, example)
        pieces = []
        for start, size in zip(self.starts, self.sizes, strict=True):
            own = source.narrow(0, start, size) if isinstance(source, Tensor) else Piece(source, start, size)
            pieces.append(self._placeholder(own, example.narrow(0, start, size)))
        return pieces

    def _placeholder(self, source: Source, example: Tensor) -> fx.Node:
        node = self.graph.placeholder(f"input_{len(self.inputs)}")
        node.meta["shape"] = example.shape
        self.inputs.append((source, example, node))
        return node

    def _node(self, node: fx.Node) -> Any:
        """Return what stands for a node: a node, or the pieces of a vector."""
        first: Any = node.args[0] if node.args else None
        pieces = self.nodes.get(first) if isinstance(first, fx.Node) else None
        if isinstance(pieces, list) and node.target is SPLIT and node.args[1] == self.sizes:
            return pieces
        if isinstance(pieces, list) and node.target is operator.getitem:
            return pieces[node.args[1]]  # type: ignore[index]
        if node.target is ATEN.cat.default and [each.meta["shape"] for each in first] == [
            (size,) for size in self.sizes
        ]:
            return [self._whole(each) for each in first]
        by_entry = torch.Tag.pointwise in getattr(node.target, "tags", ()) or node.target is ATEN.copy_.default
        if by_entry and any(isinstance(self.nodes[each], list) for each in node.all_input_nodes):
            shapes = {each.meta["shape"] for each in (node, *node.all_input_nodes)}
            if shapes <= {self.shape, (1,), ()} and node.meta["shape"] == self.shape:
                return [self._piece(node, number) for number in range(len(self.sizes))]
        return self.graph.node_copy(node, self._whole)

    def _piece(self, node: fx.Node, number: int) -> fx.Node:
        """Return an operation on one piece of its vectors."""

        start, size = self.starts[number], self.sizes[number]

        def of(each: fx.Node) -> fx.Node:
            found = self.nodes[each]
            if not isinstance(found, list) and each.meta["shape"] == self.shape:  # such as a product of matrices
                return self.graph.call_function(ATEN.slice.Tensor, (found, 0, start, start + size))
            return found[number] if isinstance(found, list) else found  # type: ignore[no-any-return]

        made = self.graph.node_copy(node, of)
        made.meta = {"shape": torch.Size((size,))}
        return made

    def _whole(self, node: fx.Node) -> fx.Node:
        """Return the node that stands for another one; pieces are joined."""
        found = self.nodes[node]
        if not isinstance(found, list):
            return found  # type: ignore[no-any-return]
        joined = self.graph.call_function(ATEN.cat.default, (found,))
        joined.meta["shape"] = self.shape
        return joined
