"""Backward passes of convolutions that are rewritten to take channels-last tensors."""

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import conv1d, conv2d

from gossamer.engines.executors.channels_last import channels_last_options

BACKWARD = torch.ops.aten.convolution_backward.default


def traced(image: Tensor, kernel: Tensor) -> torch.fx.GraphModule:
    """Return the graph of a convolution's gradients."""

    def gradients(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        convolve = conv2d if x.dim() == 4 else conv1d
        return torch.autograd.grad(convolve(x, w).square().sum(), (x, w))

    with FakeTensorMode(allow_non_fake_inputs=True):
        return make_fx(gradients)(image, kernel)


def rewritten(image: Tensor, kernel: Tensor) -> torch.fx.GraphModule:
    module = traced(image.requires_grad_(), kernel.requires_grad_())
    channels_last_options()["post_grad_custom_pre_pass"](module.graph)
    module.recompile()
    return module


def formats(module: torch.fx.GraphModule) -> list[bool]:
    """Return whether each tensor that the backward pass takes is channels-last."""
    (node,) = module.graph.find_nodes(op="call_function", target=BACKWARD)
    values = [argument.meta["val"] for argument in node.args[:3]]
    return [value.is_contiguous(memory_format=torch.channels_last) for value in values]


def test_arguments_are_channels_last_and_gradients_are_the_same() -> None:
    torch.manual_seed(0)
    image, kernel = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3)
    module = rewritten(image, kernel)
    assert formats(module) == [True, True, True]
    wanted = torch.autograd.grad(conv2d(image, kernel).square().sum(), (image, kernel))
    for found, expected in zip(module(image.detach(), kernel.detach()), wanted, strict=True):
        torch.testing.assert_close(found, expected)


def test_images_of_one_channel_or_pixel_and_other_convolutions_stay() -> None:
    for image, kernel in (
        (torch.randn(2, 1, 5, 5), torch.randn(4, 1, 3, 3)),
        (torch.randn(2, 3, 1, 1), torch.randn(4, 3, 1, 1)),
        (torch.randn(2, 3, 3, 3), torch.randn(4, 3, 3, 3)),
        (torch.randn(2, 3, 5), torch.randn(4, 3, 3)),
    ):
        before = len(traced(image.requires_grad_(), kernel.requires_grad_()).graph.nodes)
        assert len(rewritten(image, kernel).graph.nodes) == before
