"""Backward passes of convolutions in channels-last, the layout of a GPU's tensor cores.

Torch's compiler gives the convolutions of the forward pass channels-last inputs. Those of the backward pass keep the
layout in which the step was traced. In a step that is one graph this is the default layout, so that cuDNN converts each
argument and each result of each convolution: six kernels per layer. The rewritten graph asks for channels-last
arguments. The operation before then writes this layout, and no conversion is left. Images of one channel or one pixel
have the same layout in both cases, which torch takes for the default one; so their convolutions stay as they are.
"""

from typing import Any

import torch
from torch import fx

ARGUMENTS = 3
"""The first arguments of a backward pass are tensors: gradient of the output, input, weight."""


def channels_last_options() -> dict[str, Any]:
    """Return options of torch's compiler: channels-last convolutions in the forward and in the backward pass."""
    from torch._inductor.custom_graph_pass import CustomGraphPass, get_hash_for_files

    class ChannelsLast(CustomGraphPass):
        def __call__(self, graph: fx.Graph) -> None:
            for node in graph.find_nodes(op="call_function", target=torch.ops.aten.convolution_backward.default):
                rewrite(graph, node)

        def uuid(self) -> Any:
            return get_hash_for_files((__file__,))

    return {"force_layout_optimization": True, "post_grad_custom_pre_pass": ChannelsLast()}


def rewrite(graph: fx.Graph, node: fx.Node) -> None:
    """Let the backward pass of a convolution over images of several channels take channels-last tensors."""
    from torch._inductor.inductor_prims import force_stride_order

    result, image = (given.meta["val"] for given in node.args[:2])  # type: ignore[union-attr]
    if image.dim() != 4 or image.shape[1] == 1 or 1 in (result[0, 0].numel(), image[0, 0].numel()):
        return
    for number in range(ARGUMENTS):
        given: Any = node.args[number]
        value = given.meta["val"].contiguous(memory_format=torch.channels_last)
        with graph.inserting_before(node):
            asked = graph.call_function(force_stride_order, (given, list(value.stride())))
        asked.meta["val"] = value
        node.update_arg(number, asked)
