"""Storage of client states: in memory up to a limit, the rest on disk.

The states of thousands of clients (masks, personalized models) can exceed memory. The least recently used states are
written to temporary files, and read again when needed. A file stays until the state changes, so that reading all states
writes nothing. Files that a crash leaves behind are removed by the next process that writes some.

Changes of a round are staged client by client. ``commit`` makes them valid when the round is finished; ``discard``
drops them.
"""

from dataclasses import dataclass, field
from pathlib import Path

from gossamer.core import files, tree
from gossamer.core.scratch import Scratch
from gossamer.core.types import State

LIMIT = 2 * 2**30
"""The default limit of the bytes in memory."""


@dataclass
class ClientStore:
    """The states of all clients.

    Args:
        device: the device of the states in memory
        limit: the maximum number of bytes in memory
        changed: the clients whose state changed since the last checkpoint
    """

    device: str = "cpu"
    limit: int = LIMIT
    changed: set[int] = field(default_factory=set)
    _cached: dict[int, State] = field(default_factory=dict)  # states in memory, the most recently used last
    _sizes: dict[int, int] = field(default_factory=dict)  # bytes of each state in memory
    _filed: set[int] = field(default_factory=set)  # clients with an up-to-date file, in memory or not
    _bytes: int = 0
    _folder: Path | None = None
    _scratch: Scratch | None = None  # removes the folder with the store
    _next: "ClientStore | None" = None  # staged states

    def __contains__(self, client: int) -> bool:
        return client in self._cached or client in self._filed

    def known(self) -> list[int]:
        """Return all clients with a state, in order."""
        return sorted({*self._cached, *self._filed})

    def get(self, client: int) -> State:
        """Return the state of a client. It is empty before the client's first round."""
        if client in self._cached:
            self._cached[client] = self._cached.pop(client)
        elif client in self._filed:
            self.fill(client, tree.unflatten(files.from_tensors(self._path(client))))
        return self._cached.get(client, {})

    def put(self, client: int, state: State) -> None:
        """Replace the state of a client. A first state without tensors is not stored."""
        if client in self or tree.flatten(state):
            self.forget(client)
            self._keep(client, state)
            self.changed.add(client)

    def stage(self, client: int, state: State) -> None:
        """Stage a state. ``get`` returns the old state until the next ``commit``."""
        if self._next is None:
            self._next = ClientStore(self.device, self.limit)
        self._next.forget(client)
        self._next._keep(client, state)

    def staged(self, client: int) -> State:
        """Return the staged state of a client."""
        return self._next.get(client) if self._next is not None else {}

    def commit(self) -> None:
        """Replace states by the staged ones. Staged files are moved, not read."""
        waiting, self._next = self._next, None
        for client in waiting.known() if waiting is not None else ():
            assert waiting is not None
            if client in waiting._cached:
                self.put(client, waiting._cached[client])
            else:
                self.forget(client)
                waiting._path(client).rename(self._path(client))
                self._filed.add(client)
                self.changed.add(client)

    def discard(self) -> None:
        """Drop all staged states."""
        self._next = None

    def fill(self, client: int, state: State) -> None:
        """Load a state without marking the client as changed, for example from a checkpoint."""
        self._keep(client, tree.move(state, self.device))

    def forget(self, client: int) -> None:
        """Remove the state of a client."""
        if client in self._cached:
            self._drop(client)
        if client in self._filed:
            self._filed.discard(client)
            self._path(client).unlink()

    def _keep(self, client: int, state: State) -> None:
        self._cached[client], self._sizes[client] = state, size(state)
        self._bytes += self._sizes[client]
        while self._bytes > self.limit and (oldest := self._oldest(client)) is not None:
            self._spill(oldest)

    def _oldest(self, newest: int) -> int | None:
        """Return the least recently used client to spill; a state without tensors stays, as its file frees nothing."""
        return next((client for client in self._cached if self._sizes[client] and client != newest), None)

    def _spill(self, client: int) -> None:
        if client not in self._filed:
            # Without sync: the file is not needed after this process.
            self._path(client).write_bytes(files.to_tensors(tree.flatten(self._cached[client])))
            self._filed.add(client)
        self._drop(client)

    def _drop(self, client: int) -> None:
        del self._cached[client]
        self._bytes -= self._sizes.pop(client)

    def _path(self, client: int) -> Path:
        if self._folder is None:
            self._scratch = Scratch("clients")
            self._folder = self._scratch.path
        return self._folder / f"{client}.safetensors"


def size(state: State) -> int:
    """Return the number of bytes of the tensors of a state."""
    return sum(tensor.nbytes for tensor in tree.flatten(state).values())
