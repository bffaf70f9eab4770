"""The client state on a node's disk, kept consistent with the server.

A client may have a state from one round to the next, for example error feedback or a personalized model. The simulator
saves client states together with the server state. A node saves its own, so the two can diverge: the server may resume
from an earlier checkpoint, a reply may be too late, or the node's disk may be lost. So each journal entry keeps the
state before and after a round, and the client's last round that the server had aggregated by then. With each task the
server sends the last aggregated round, and the node compares:

- The journal already has the round, because the server resumed or repeats it. Use the state before that round.
- The node's last round is the last aggregated one. The upload arrived.
- The server knows only the round before. The upload was late or refused. The client settles it as a lost upload.
- Otherwise the states are inconsistent: ``OutOfStepError``. The server then lets the node start over.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

from gossamer.core import files, tree
from gossamer.core.errors import GossamerError, PayloadError
from gossamer.core.types import Clock, State

NEVER = -1
"""Round number that means: no round of this client was aggregated yet."""

KEEP = 2
"""Number of rounds that can be repeated: the number of checkpoints that a run keeps."""

TRAINED = "trained"
"""The entry of a client's secrets that says that an upload was made with them."""

BUSY = 600.0
"""Seconds to wait for an earlier task that this node still runs."""


class OutOfStepError(GossamerError):
    """A node's client state is inconsistent with the server."""


class JournalEntry(NamedTuple):
    """One round of this client: the last aggregated round by then, and the client state before and after."""

    round: int
    last_folded: int
    before: State
    after: State


class Journal:
    """The last rounds of one client in one run, in one file that is replaced atomically."""

    def __init__(self, folder: Path, run: str, client: int) -> None:
        home = folder / hashlib.sha256(run.encode()).hexdigest()[:16]  # the run's name is untrusted
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.path, self._lock = home / f"{client}.safetensors", home / f"{client}.lock"
        self.secrets = home / f"{client}.secrets"
        self.evaluated, self.uploads = home / f"{client}.evaluations.json", home / f"{client}.uploads"
        self.client = client

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Exclude other processes of this client from reading and writing inside the block."""
        handle = files.take_lock(self._lock, BUSY)
        try:
            yield
        finally:
            os.close(handle)

    def recall(self, number: int, known: int, settle: Callable[[State, bool], State]) -> State:
        """Return the client state at the beginning of a round; ``known`` is the client's last aggregated round."""
        entries = self.entries()
        again = next((entry for entry in entries if entry.round >= number), None)
        # States before the first entry are discarded. It must be this round's entry, or have had no state before it.
        whole = again and (again.round == number or again is not entries[0] or not again.before)
        if again and whole and again.last_folded == known:
            return again.before
        if entries and not again and known in (entries[-1].round, entries[-1].last_folded):
            return settle(entries[-1].after, entries[-1].round == known)
        if entries or known != NEVER:
            own = ", ".join(str(entry.round + 1) for entry in entries) or "none"
            server, client = str(known + 1) if known != NEVER else "none", self.client
            raise OutOfStepError(f"the state of client {client} has rounds: {own}; last aggregated round: {server}")
        return {}

    def note(self, entry: JournalEntry) -> None:
        """Add a round; entries with the same or a later number are discarded, as are old ones."""
        kept = [*(earlier for earlier in self.entries() if earlier.round < entry.round), entry][-KEEP:]
        nest = {
            str(index): {
                "round": torch.tensor(each.round),
                "known": torch.tensor(each.last_folded),
                "before": each.before,
                "after": each.after,
            }
            for index, each in enumerate(kept)
        }
        with files.on_failure(f"the state of client {self.client} was not saved"):
            files.write(self.path, _sealed(nest))

    def forget(self) -> None:
        """Delete the client state."""
        self.path.unlink(missing_ok=True)

    def scratch(self) -> State:
        """Return the client's secrets of the current exchange with secure aggregation; empty if there are none."""
        return {name: value for name, value in _unsealed(self.secrets).items() if name != TRAINED}

    def train_scratch(self) -> State:
        """Return the secrets for an upload, once: two uploads with the same masks would reveal their difference."""
        found = _unsealed(self.secrets)
        if TRAINED in found:
            raise PayloadError("a second request to train in the same round of secure aggregation")
        self.note_scratch({**found, TRAINED: torch.ones(1)})
        return found

    def note_scratch(self, scratch: State) -> None:
        """Replace the client's secrets, in a file that no other user can read."""
        with files.on_failure(f"the secrets of client {self.client} were not saved"):
            self.secrets.touch(mode=0o600, exist_ok=True)
            files.write(self.secrets, _sealed(scratch))
            self.secrets.chmod(0o600)

    def sent_before(self, clock: Clock, received: bytes) -> bytes | None:
        """Return the upload with which the node answered a download before; none if the round is new.

        Noise of local privacy protects one upload: from many with new noise, a server would learn their mean. So a node
        answers a repeated download with the same bytes, and refuses another one for a round that is over.
        """
        if not (kept := _unsealed(self.uploads)):
            return None
        mine = kept.get(str(clock.round))
        if mine is not None and bytes(mine["received"].tolist()) == hashlib.sha256(received).digest():
            return bytes(mine["sent"].numpy().tobytes())
        if mine is not None or clock.round < max(map(int, kept)):
            raise PayloadError(f"round {clock.round + 1} is over: this node adds local noise to one upload of a round")
        return None

    def keep_sent(self, clock: Clock, received: bytes, sent: bytes) -> None:
        """Keep the upload of a round, and those of the last rounds that a resumed server may repeat."""
        kept = _unsealed(self.uploads)
        digest = torch.tensor(list(hashlib.sha256(received).digest()), dtype=torch.uint8)
        kept[str(clock.round)] = {"received": digest, "sent": torch.frombuffer(bytearray(sent), dtype=torch.uint8)}
        last = {number: kept[number] for number in sorted(kept, key=int)[-KEEP:]}
        with files.on_failure(f"the upload of client {self.client} was not kept, and is not sent"):
            files.write(self.uploads, _sealed(last), 0o600)

    def check_evaluation(self, clock: Clock, sent: bytes, *, once: bool = False) -> None:
        """Refuse to evaluate models of a round that was not announced, or a second download for the same round.

        Otherwise a server could ask for the metrics of any model, and learn the samples of this client from them. The
        same download may come again after the server has resumed: its metrics are the same. With ``once`` it may not:
        the difference of two sums over almost the same clients is what one of them sent.
        """
        if not 0 <= clock.round < clock.rounds:
            raise PayloadError(f"round {clock.round + 1} of {clock.rounds} was not announced: it is not evaluated")
        known: dict[str, str] = json.loads(self.evaluated.read_bytes()) if self.evaluated.exists() else {}
        digest = hashlib.sha256(sent).hexdigest()[:32]
        again = str(clock.round) in known
        if known.setdefault(str(clock.round), digest) != digest or (again and once):
            which = "the" if known[str(clock.round)] == digest else "another"
            raise PayloadError(f"{which} model was evaluated in round {clock.round + 1}: each round has one evaluation")
        with files.on_failure(f"the evaluations of client {self.client} were not saved"):
            files.write(self.evaluated, json.dumps(known).encode())

    def entries(self) -> list[JournalEntry]:
        """Return the entries, in order of rounds."""
        try:
            nest = _unsealed(self.path)
            rows = [nest[index] for index in sorted(nest)]
            return [
                JournalEntry(int(row["round"]), int(row["known"]), row.get("before", {}), row.get("after", {}))
                for row in rows
            ]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise OutOfStepError(f"the state of client {self.client} cannot be read: {error}") from error


def _sealed(nest: State) -> bytes:
    """Return tensors as the content of a file with a checksum."""
    return files.sealed(files.to_tensors(tree.flatten(nest)))


def _unsealed(path: Path) -> State:
    """Return the tensors in a file; empty if there is no file."""
    return tree.unflatten(files.tensors_of(files.unsealed(path.read_bytes()))) if path.exists() else {}
