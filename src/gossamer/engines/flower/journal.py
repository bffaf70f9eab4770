"""What a node remembers, on its own disk, in step with the server.

A method's client may remember things from one round to the next: what its codec held back, a model of its own. In the
simulator that lies beside the server's state and is saved with it. On a node it lies apart: the server may have been
set back to an earlier round, a reply may have come too late, the node's disk may have been lost. So each round's entry
keeps what the node remembered before and after it, and the last round of this client that the server had folded in by
then; with each order the server says which round that is now, and the two are compared.

- The order is for a round that was done already (the server was set back, or tries the round again): what was
  remembered before it is taken up.
- The last round done is the one that the server folded last: the message arrived, and the client settles that.
- It is not, but the server knows of the one before it: the message came too late or was refused; the client settles
  that, and keeps what it would keep of a message that was lost.
- Anything else does not fit together: ``OutOfStepError``. The server then tells the node to start over.
"""

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from gossamer.core import files, tree
from gossamer.core.errors import GossamerError
from gossamer.core.types import State

NEVER = -1
"""Instead of a round's number: no round of this client was folded yet."""

KEEP = 2
"""Rounds that can be gone back to: as many as a run keeps checkpoints."""

BUSY = 600.0
"""Seconds to wait for an earlier order that this node is still at."""


class OutOfStepError(GossamerError):
    """A node's memory does not fit what the server knows."""


class JournalEntry(NamedTuple):
    """One round of this client: what the server had folded last by then, and what was remembered."""

    round: int
    last_folded: int
    before: State
    after: State


class Journal:
    """The last rounds of one client in one run, in one file that is replaced as a whole."""

    def __init__(self, folder: Path, run: str, client: int) -> None:
        home = folder / hashlib.sha256(run.encode()).hexdigest()[:16]  # a run's name comes from outside
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path, self._lock = home / f"{client}.safetensors", home / f"{client}.lock"
        self.client = client

    @contextmanager
    def alone(self) -> Iterator[None]:
        """While inside, no other process of this client reads or writes."""
        handle = files.take_lock(self._lock, BUSY)
        try:
            yield
        finally:
            os.close(handle)

    def recall(self, number: int, known: int, settle: Callable[[State, bool], State]) -> State:
        """What the client remembers at the beginning of a round, given which of its rounds was folded last."""
        entries = self.entries()
        again = next((entry for entry in entries if entry.round >= number), None)
        # What came before the first entry is forgotten: it is at its own round, or had nothing to remember.
        whole = again and (again.round == number or again is not entries[0] or not again.before)
        if again and whole and again.last_folded == known:
            return again.before
        if entries and not again and known in (entries[-1].round, entries[-1].last_folded):
            return settle(entries[-1].after, entries[-1].round == known)
        if entries or known != NEVER:
            raise self._out_of_step(entries, known)
        return {}

    def note(self, entry: JournalEntry) -> None:
        """Keep a round; those from its number on are forgotten, as are old ones."""
        kept = [earlier for earlier in self.entries() if earlier.round < entry.round]
        self._write([*kept, entry][-KEEP:])

    def forget(self) -> None:
        """Start over."""
        self.path.unlink(missing_ok=True)

    def entries(self) -> list[JournalEntry]:
        """The rounds that are remembered, in order."""
        if not self.path.exists():
            return []
        try:
            nest = tree.unflatten(files.tensors_of(files.unsealed(self.path.read_bytes())))
            return [_entry(nest[place]) for place in sorted(nest)]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise OutOfStepError(f"what client {self.client} remembers cannot be read: {error}") from error

    def _write(self, entries: list[JournalEntry]) -> None:
        nest = {
            str(place): {
                "round": torch.tensor(entry.round),
                "known": torch.tensor(entry.last_folded),
                "before": entry.before,
                "after": entry.after,
            }
            for place, entry in enumerate(entries)
        }
        with files.told(f"what client {self.client} remembers was not saved"):
            files.write(self.path, files.sealed(files.to_tensors(tree.flatten(nest))))

    def _out_of_step(self, entries: list[JournalEntry], known: int) -> OutOfStepError:
        mine = ", ".join(str(entry.round + 1) for entry in entries) or "none"
        theirs = f"round {known + 1}" if known != NEVER else "none"
        return OutOfStepError(f"client {self.client} remembers rounds: {mine}; the server has last folded: {theirs}")


def _entry(nest: State) -> JournalEntry:
    return JournalEntry(int(nest["round"]), int(nest["known"]), nest.get("before", {}), nest.get("after", {}))
