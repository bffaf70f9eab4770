"""What all clients remember: in memory up to a limit, beyond it on disk.

Thousands of clients that each remember something (a mask, a model of their own) may together be larger than memory.
Whoever was not asked for longest is written to a temporary file, and read again when it is needed. The file stays until
the client remembers something else, so that looking at everybody writes nothing.

What a round changes is staged first, client by client. It counts once the round does, and is forgotten otherwise.
"""

import shutil
import tempfile
import weakref
from dataclasses import dataclass, field
from pathlib import Path

from gossamer.core import files, tree
from gossamer.core.types import State

LIMIT = 2 * 2**30
"""Bytes that are kept in memory."""


@dataclass
class ClientStore:
    """What each client remembers, and who changed since the last checkpoint.

    Args:
        device: where states are kept while they are in memory
        limit: bytes that are kept in memory
    """

    device: str = "cpu"
    limit: int = LIMIT
    changed: set[int] = field(default_factory=set)
    _near: dict[int, State] = field(default_factory=dict)  # whoever was asked for last stands last
    _sizes: dict[int, int] = field(default_factory=dict)  # bytes of each that is near
    _filed: set[int] = field(default_factory=set)  # whose file has what they remember, near or not
    _bytes: int = 0
    _folder: Path | None = None
    _next: "ClientStore | None" = None  # what is staged

    def __contains__(self, client: int) -> bool:
        return client in self._near or client in self._filed

    def known(self) -> list[int]:
        """All clients who remember something."""
        return sorted({*self._near, *self._filed})

    def get(self, client: int) -> State:
        """A client's memory; empty before its first round."""
        if client in self._near:
            self._near[client] = self._near.pop(client)
        elif client in self._filed:
            self.fill(client, tree.unflatten(files.from_tensors(self._place(client))))
        return self._near.get(client, {})

    def put(self, client: int, state: State) -> None:
        """Remember; a state without a single tensor is nothing to remember."""
        if client in self or tree.flatten(state):
            self.forget(client)
            self._keep(client, state)
            self.changed.add(client)

    def stage(self, client: int, state: State) -> None:
        """Remember from the next ``commit`` on; until then ``get`` gives what was before."""
        if self._next is None:
            self._next = ClientStore(self.device, self.limit)
        self._next.forget(client)
        if client in self or tree.flatten(state):  # else there is nothing to remember
            self._next._keep(client, state)

    def staged(self, client: int) -> State:
        """What is staged of a client."""
        return self._next.get(client) if self._next is not None else {}

    def commit(self) -> None:
        """What is staged counts from now on; what lies in files stays in files."""
        waiting, self._next = self._next, None
        for client in waiting.known() if waiting is not None else ():
            assert waiting is not None
            if client in waiting._near:
                self.put(client, waiting._near[client])
            else:
                self.forget(client)
                waiting._place(client).rename(self._place(client))
                self._filed.add(client)
                self.changed.add(client)

    def discard(self) -> None:
        """Forget what is staged."""
        self._next = None

    def fill(self, client: int, state: State) -> None:
        """Remember what was remembered before, so that nothing has changed."""
        self._keep(client, tree.move(state, self.device))

    def forget(self, client: int) -> None:
        """As if it had never been there."""
        if client in self._near:
            self._drop(client)
        if client in self._filed:
            self._filed.discard(client)
            self._place(client).unlink()

    def _keep(self, client: int, state: State) -> None:
        self._near[client], self._sizes[client] = state, size(state)
        self._bytes += self._sizes[client]
        while self._bytes > self.limit and len(self._near) > 1:
            self._send_away(next(iter(self._near)))

    def _send_away(self, client: int) -> None:
        if client not in self._filed:
            # Not synced to the disk: it need not outlive this process.
            self._place(client).write_bytes(files.to_tensors(tree.flatten(self._near[client])))
            self._filed.add(client)
        self._drop(client)

    def _drop(self, client: int) -> None:
        del self._near[client]
        self._bytes -= self._sizes.pop(client)

    def _place(self, client: int) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="gossamer-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        return self._folder / f"{client}.safetensors"


def size(state: State) -> int:
    """How many bytes the tensors of a state take."""
    return sum(tensor.nbytes for tensor in tree.flatten(state).values())
