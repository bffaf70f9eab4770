"""A network as a program that needs no Gossamer: of ``torch.export``, and as an ONNX model for ONNX Runtime.

A program accepts any batch size if the network does. It is traced with zeros on the CPU, so it contains no training
sample. ``thinned`` returns the same program with bitmap and values in place of a tensor, wherever this is smaller; the
program fills in the zeros at every call, with the operators of torch.

torch converts a program to ONNX. ``thin_onnx`` then replaces every weight for which a bitmap pays by two initializers,
bitmap and values, and standard operators that fill in the zeros:

    BitShift, BitwiseAnd    the bits of the bitmap, one byte each
    CumSum, Mul             the number of the entry among the values, counted from 1; 0 where it is zero
    Gather                  that value; the first of the values is 0

Their inputs are constants. So ONNX Runtime computes them once, when it loads the model (constant folding, on by
default), and a call takes as long as with dense weights. The sparse initializers of ONNX itself are not used: they take
8 bytes for the position of a value of 4 bytes.
"""

import io
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.export import ExportedProgram
from torch.utils._pytree import tree_leaves

from gossamer.core.errors import RunError
from gossamer.core.extras import need
from gossamer.core.sparse import BITMAP, SHAPE, VALUES, pays, split
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest

ABOUT = "gossamer"
"""Metadata entry with the origin of a model, as JSON."""

ONE = "1 only"

OVERHEAD = 16_000
"""Bytes that the operators for one tensor take in the file."""


class Traced(NamedTuple):
    """A program, the inputs of its trace, the batch sizes it accepts, and the problem if there is no program."""

    program: ExportedProgram | None
    x: Nest
    batch: str
    problem: str | None = None


def trace(module: nn.Module, x: Nest) -> Traced:
    """Export a network for any batch size, or else for batches of one; if both fail, return the reason."""
    problem = ""
    try:
        nests.forward(module, nests.take(x, slice(1)))
        sizes = "any"
    except ValueError:  # norms with batch statistics may refuse a batch of one
        sizes = "2 or more"
    for example, batch in ((x, sizes), (nests.take(x, slice(1)), ONE)):
        try:
            return Traced(_exported(module, example, batch), example, batch)
        except Exception as error:  # torch.export raises many types of errors
            problem = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return Traced(None, x, "any", problem)


def _exported(module: nn.Module, x: Nest, batch: str) -> ExportedProgram:
    args, kwargs = nests.arguments(x)
    program = torch.export.export(module, args, kwargs, dynamic_shapes=_dynamic(x, batch), strict=False)
    for node in program.graph.nodes:
        node.meta.pop("stack_trace", None)  # paths and lines of source code on this machine
    return program


def _dynamic(example: Nest, batch: str) -> Any:
    """Return which dimensions of the inputs may vary: the first of each tensor, unless the batch size is fixed."""
    dims = {} if batch == ONE else {0: torch.export.Dim("batch")}

    def each(nest: Nest) -> Any:
        if isinstance(nest, Tensor):
            return dims
        if isinstance(nest, tuple):
            return tuple(map(each, nest))
        return {name: each(inner) for name, inner in nest.items()}

    return (dims,) if isinstance(example, Tensor) else each(example)


def save(program: ExportedProgram) -> bytes:
    """Return the content of a ``.pt2`` file."""
    data = io.BytesIO()
    torch.export.save(program, data)
    return data.getvalue()


def load(data: bytes) -> nn.Module:
    """Load the network of a program, without a warning of torch 2.11 about its own buffer."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given buffer is not writable")
        return torch.export.load(io.BytesIO(data)).module()


class Filled(nn.Module):
    """A tensor that is stored as bitmap and values."""

    bitmap: Tensor
    values: Tensor

    def __init__(self, tensor: Tensor) -> None:
        super().__init__()
        values, bitmap = split(tensor)
        self.shape = tensor.shape
        self.register_buffer("bitmap", bitmap)
        self.register_buffer("values", values)

    def forward(self) -> Tensor:
        """Return the dense tensor."""
        size = self.shape.numel()
        shifts = torch.arange(8, dtype=torch.uint8)
        held = ((self.bitmap.unsqueeze(1) >> shifts) & 1).view(-1)[:size] != 0
        return torch.zeros(size, dtype=self.values.dtype).masked_scatter(held, self.values).view(self.shape)


def thinned(traced: Traced) -> ExportedProgram | None:
    """Return the program with bitmaps where they pay; none if there is no program, or no bitmap pays."""
    if traced.program is None:
        return None
    network = traced.program.module()
    assert isinstance(network, fx.GraphModule)
    named = (*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False))
    stored = {name: tensor for name, tensor in named if pays(tensor, OVERHEAD)}
    filled: dict[int, fx.Node] = {}
    for node in [node for node in network.graph.nodes if node.op == "get_attr" and node.target in stored]:
        at = stored[node.target].data_ptr()  # tied weights have one address, and are stored once
        if at not in filled:
            name = f"{node.target}_sparse"
            network.add_submodule(name, Filled(stored[node.target]))
            with network.graph.inserting_before(node):
                filled[at] = network.graph.call_module(name)
        node.replace_all_uses_with(filled[at])
        network.graph.erase_node(node)
    for name in [name for name, tensor in stored.items() if tensor.data_ptr() in filled]:
        owner, _, attribute = name.rpartition(".")
        delattr(network.get_submodule(owner), attribute)
    network.recompile()
    return _exported(network, traced.x, traced.batch) if filled else None


OPSET, IR = 18, 8
"""The first opset with BitwiseAnd, and the version of the file format that belongs to it."""

OUTPUT, OTHER, BATCH = "scores", "other.", "batch"
SIZE, SPARSE = ".size", "sparse."

FLOATS = (np.float16, np.float32, np.float64)

ONNX_OVERHEAD, NAMES = 600, 25
"""Bytes that the operators for one tensor take in the file without its name, and occurrences of the name."""

LIMIT = 2**31
"""Bytes of a Protocol Buffers message."""

Model = Any
"""An ``onnx.ModelProto``; onnx is an extra."""


def check_onnx() -> None:
    """Raise ``MissingExtraError`` unless the packages for ONNX are installed."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        need(package)


def to_onnx(traced: Traced, about: str) -> Model:
    """Convert a program. Inputs have the names of the nest's tensors, or ``x``; the output is ``scores``."""
    if traced.program is None:
        raise RunError(f"there is no ONNX model, because torch cannot export this network: {traced.problem}")
    size = sum(tensor.nbytes for tensor in traced.program.state_dict.values())
    if size >= LIMIT:
        raise RunError(f"an ONNX file has at most 2 GiB, and the tensors of this network have {size / 2**30:.1f} GiB")
    args, kwargs = nests.arguments(traced.x)
    output = traced.program.module()(*args, **kwargs)
    chosen = nests.scores(output)  # a network may return other tensors beside them
    inputs = [path or "x" for path in nests.leaves(traced.x)]
    outputs = [OUTPUT if leaf is chosen else f"{OTHER}{at}" for at, leaf in enumerate(tree_leaves(output))]
    export = partial(torch.onnx.export, dynamo=True, verbose=False, opset_version=OPSET)
    with _quiet():
        try:
            made = export(traced.program, input_names=inputs, output_names=outputs)
        except torch.onnx.OnnxExporterError as error:
            raise RunError(f"there is no ONNX model: {_reason(error)}") from error
    assert made is not None
    return _cleaned(made.model_proto, about)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what the converter of torch says about itself: a deprecated call, and packages that it does not need."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r".*isinstance\(treespec, LeafSpec\)", FutureWarning)
            yield
    finally:
        logger.setLevel(level)


def _reason(error: BaseException) -> str:
    """Return the operator that ONNX lacks, or else the first line of the innermost error."""
    while error.__cause__ is not None:
        error = error.__cause__
    found = re.search(r"No ONNX function found for <OpOverload\(op='([^']+)'", str(error))
    return f"ONNX has no operator for {found[1]}" if found else str(error).strip().partition("\n")[0]


def _cleaned(model: Model, about: str) -> Model:
    """Remove the converter's notes, which hold paths of this machine, and outputs other than the scores."""
    graph = model.graph
    for part in (model, graph, *graph.node, *graph.initializer, *graph.input, *graph.output):
        part.ClearField("metadata_props")
        part.ClearField("doc_string")
    graph.ClearField("value_info")
    kept = [output for output in graph.output if output.name == OUTPUT]
    _replace(graph.output, kept)
    for tensor in (*graph.input, *graph.output):
        for dim in tensor.type.tensor_type.shape.dim[:1]:
            if dim.dim_param:
                dim.dim_param = BATCH
    model.ir_version = IR
    model.metadata_props.add(key=ABOUT, value=about)
    return model


def _replace(field: Any, values: list[Any]) -> None:
    del field[:]
    field.extend(values)


def thin_onnx(model: Model) -> bool:
    """Replace initializers by bitmap, values and operators where this is smaller; return whether one was replaced."""
    onnx = need("onnx")
    kept, nodes = [], []
    for stored in model.graph.initializer:
        array = onnx.numpy_helper.to_array(stored)
        tensor = torch.from_numpy(array.copy()) if array.dtype in FLOATS else torch.zeros(0)
        if pays(tensor, ONNX_OVERHEAD + NAMES * len(stored.name)):
            kept += _stored(stored.name, tensor)
            nodes += _filled(stored.name)
        else:
            kept.append(stored)
    if not nodes:
        return False
    _replace(model.graph.initializer, kept + _constants())
    _replace(model.graph.node, nodes + list(model.graph.node))
    return True


def _stored(name: str, tensor: Tensor) -> list[Any]:
    """Return the initializers of one tensor. A zero in front of the values stands for all zeros of the tensor."""
    from_array = need("onnx").numpy_helper.from_array
    values, bitmap = split(tensor)
    arrays = {
        VALUES: torch.cat([values.new_zeros(1), values]).numpy(),
        BITMAP: bitmap.view(-1, 1).numpy(),
        SHAPE: np.array(tensor.shape, dtype=np.int64),
        SIZE: np.array([tensor.numel()], dtype=np.int64),
    }
    return [from_array(array, name + ending) for ending, array in arrays.items()]


def _constants() -> list[Any]:
    """Return the constants that all tensors share."""
    arrays = {
        "shifts": np.arange(8, dtype=np.uint8),
        "bit": np.ones(1, dtype=np.uint8),
        "flat": np.array([-1], dtype=np.int64),
        "start": np.zeros(1, dtype=np.int64),
        "axis": np.array(0, dtype=np.int64),
    }
    return [need("onnx").numpy_helper.from_array(array, SPARSE + name) for name, array in arrays.items()]


def _filled(name: str) -> list[Any]:
    """Return the operators that compute a dense tensor under its own name."""
    node = need("onnx").helper.make_node
    shared = {word: SPARSE + word for word in ("shifts", "bit", "flat", "start", "axis")}
    at = {word: f"{name}.{word}" for word in ("shifted", "bits", "row", "cut", "held", "count", "index", "entries")}
    return [
        node("BitShift", [name + BITMAP, shared["shifts"]], [at["shifted"]], direction="RIGHT"),
        node("BitwiseAnd", [at["shifted"], shared["bit"]], [at["bits"]]),
        node("Reshape", [at["bits"], shared["flat"]], [at["row"]]),
        node("Slice", [at["row"], shared["start"], name + SIZE], [at["cut"]]),
        node("Cast", [at["cut"]], [at["held"]], to=need("onnx").TensorProto.INT32),
        node("CumSum", [at["held"], shared["axis"]], [at["count"]]),
        node("Mul", [at["count"], at["held"]], [at["index"]]),
        node("Gather", [name + VALUES, at["index"]], [at["entries"]]),
        node("Reshape", [at["entries"], name + SHAPE], [name]),
    ]


def load_onnx(data: bytes) -> Callable[..., Tensor]:
    """Return the network of an ONNX model, run by ONNX Runtime on one thread."""
    runtime = need("onnxruntime")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])

    names = [each.name for each in session.get_inputs()]

    def network(*args: Any, **kwargs: Any) -> Tensor:
        given = nests.leaves(kwargs) if kwargs else dict(zip(names, nests.leaves(args).values(), strict=True))
        return torch.from_numpy(session.run([OUTPUT], {name: tensor.numpy() for name, tensor in given.items()})[0])

    return network
