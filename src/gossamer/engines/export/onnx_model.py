"""A network as an ONNX model, which runs with ONNX Runtime alone.

torch converts the program. ``thin`` then replaces every weight for which a bitmap pays by two initializers, bitmap and
values, and standard operators that fill in the zeros:

    BitShift, BitwiseAnd    the bits of the bitmap, one byte each
    CumSum, Mul             the number of the entry among the values, counted from 1; 0 where it is zero
    Gather                  that value; the first of the values is 0

Their inputs are constants. So ONNX Runtime computes them once, when it loads the model (constant folding, on by
default), and a call takes as long as with dense weights. The sparse initializers of ONNX itself are not used: they take
8 bytes for the position of a value of 4 bytes.
"""

import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from gossamer.core.errors import RunError
from gossamer.core.extras import need
from gossamer.core.sparse import BITMAP, SHAPE, VALUES, pays, split
from gossamer.engines.export.program import ABOUT, Traced
from gossamer.tasks.data import nests
from gossamer.tasks.data.nests import Nest

OPSET, IR = 18, 8
"""The first opset with BitwiseAnd, and the version of the file format that belongs to it."""

OUTPUT, OTHER, BATCH = "scores", "other.", "batch"
SIZE, SPARSE = ".size", "sparse."

FLOATS = (np.float16, np.float32, np.float64)

OVERHEAD, NAMES = 600, 25
"""Bytes that the operators for one tensor take in the file without its name, and occurrences of the name."""

LIMIT = 2**31
"""Bytes of a Protocol Buffers message."""

Model = Any
"""An ``onnx.ModelProto``; onnx is an extra."""


def check_extra() -> None:
    """Raise ``MissingExtraError`` unless the packages for ONNX are installed."""
    for package in ("onnx", "onnxscript", "onnxruntime"):
        need(package)


def convert(traced: Traced, about: str) -> Model:
    """Convert a program. Inputs have the names of the nest's tensors, or ``x``; the output is ``scores``."""
    if traced.program is None:
        raise RunError(f"there is no ONNX model, because torch cannot export this network: {traced.problem}")
    size = sum(tensor.nbytes for tensor in traced.program.state_dict.values())
    if size >= LIMIT:
        raise RunError(f"an ONNX file has at most 2 GiB, and the tensors of this network have {size / 2**30:.1f} GiB")
    inputs, outputs = list(_inputs(traced.x)), _outputs(traced.program.module(), traced.x)
    export = partial(torch.onnx.export, dynamo=True, verbose=False, opset_version=OPSET)
    with _quiet():
        try:
            made = export(traced.program, input_names=inputs, output_names=outputs)
        except torch.onnx.OnnxExporterError as error:
            raise RunError(f"there is no ONNX model: {_reason(error)}") from error
    assert made is not None
    return _cleaned(made.model_proto, about)


def _inputs(x: Nest) -> dict[str, Tensor]:
    """Return the tensors of a nest by the names of the model's inputs."""
    return {path or "x": tensor for path, tensor in nests.leaves(x).items()}


def _outputs(network: nn.Module, x: Nest) -> list[str]:
    """Return the names of the outputs: the scores, and tensors that a network returns beside them."""
    args, kwargs = nests.arguments(x)
    output = network(*args, **kwargs)
    chosen = nests.scores(output)
    return [OUTPUT if leaf is chosen else f"{OTHER}{at}" for at, leaf in enumerate(tree_leaves(output))]


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


def thin(model: Model) -> bool:
    """Replace initializers by bitmap, values and operators where this is smaller; return whether one was replaced."""
    onnx = need("onnx")
    kept, nodes = [], []
    for stored in model.graph.initializer:
        array = onnx.numpy_helper.to_array(stored)
        tensor = torch.from_numpy(array.copy()) if array.dtype in FLOATS else torch.zeros(0)
        if pays(tensor, OVERHEAD + NAMES * len(stored.name)):
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


def load(data: bytes) -> Callable[..., Tensor]:
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
