"""Client states and failures in a form that other processes can read."""

import io
import pickle
import traceback

import torch

from gossamer.core import tree
from gossamer.core.types import State
from gossamer.engines.client import Failure


def pack_state(state: State) -> State | bytes:
    """Convert a client state for pickling: to bytes if it holds tensors."""
    if not tree.flatten(state):
        return state
    buffer = io.BytesIO()
    torch.save(state, buffer)
    return buffer.getvalue()


def unpack_state(stored: State | bytes) -> State:
    """Return the client state that ``pack_state`` converted."""
    return torch.load(io.BytesIO(stored), weights_only=True) if isinstance(stored, bytes) else stored


def portable(failure: Failure) -> Failure:
    """Return a failure that can be pickled; the traceback becomes a note of the error."""
    cause = failure.cause
    if cause is None:
        return failure
    cause.add_note("".join(traceback.format_exception(cause)).rstrip())
    try:
        pickle.loads(pickle.dumps(cause))
    except Exception:  # a user-defined error may hold anything
        return Failure(failure.reason, RuntimeError("\n".join((failure.reason, *cause.__notes__))))
    return failure
