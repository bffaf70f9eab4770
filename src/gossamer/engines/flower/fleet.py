"""The server's view of the nodes: which are connected, which client each one is, and how to send them messages.

Flower identifies nodes by random numbers, methods identify clients by index. So the server queries each new node for
its client number. A node that does not answer, or does not fit the run, is refused with a reason and queried again
later. If two nodes claim the same client, the first one keeps it.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from logging import WARNING
from typing import NamedTuple

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.logger import log

from gossamer.core.errors import GossamerError, PayloadError, RunError
from gossamer.core.untrusted import MOST_SAMPLES, shown
from gossamer.engines.flower.messages import FROZEN, carried, word
from gossamer.engines.flower.node import FAULT

POLL = 0.1
"""Seconds between the first checks for replies."""

SHARE = 0.02
"""Pause between two checks as a fraction of the time waited so far: long rounds are checked less often."""

LONGEST_PAUSE = 1.0
"""Maximum seconds between two checks for replies."""

HELLO = 120.0
"""Seconds within which a new node must answer the query."""

AGAIN = 60.0
"""Seconds after which a refused node is queried again."""


NOT_ACCEPTED = "the SuperLink did not accept the message: it may be too large"


def no_reply(deadline: float) -> str:
    """Return the reason of a failure without a reply."""
    return f"no reply within {deadline:g} s"


class Peer(NamedTuple):
    """A connected node: its Flower ID, and its numbers of training samples, own test samples and all test samples."""

    node: int
    samples: int
    tested: int
    test: int


class NodeReply(NamedTuple):
    """The reply of a node, or the reason why there is none."""

    node: int
    message: Message | None
    fault: str = ""

    def checked(self) -> Message:
        """Return the message; raise if the node failed."""
        if self.message is None:
            raise PayloadError(self.fault)
        if any(FAULT in words for words in self.message.content.config_records.values()):
            raise PayloadError(shown(word(self.message, FAULT, str)))
        return self.message

    def flag(self, name: str) -> bool:
        """Return whether a named value of the reply is true."""
        records = self.message.content.config_records if self.message else {}
        return any(words.get(name) is True for words in records.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays in the reply."""
        records = self.message.content.array_records if self.message else {}
        return sum(len(array.data) for arrays in records.values() for array in arrays.values())


class NodePool:
    """Nodes by client.

    ``hello`` builds the query for new nodes. ``wanted`` holds the fingerprints that their answer must match.
    ``identify`` raises ``PayloadError`` if a node is not the client that it claims to be.
    """

    def __init__(
        self,
        grid: Grid | None,
        clients: int,
        hello: Callable[[], RecordDict],
        wanted: Mapping[str, str],
        identify: Callable[[int, int, Message], None] = lambda node, client, message: None,
    ) -> None:
        self._grid, self.clients, self.hello, self.wanted = grid, clients, hello, dict(wanted)
        self.identify = identify
        self.peers: dict[int, Peer] = {}
        self.refused: dict[int, tuple[float, str]] = {}
        self._greeted: dict[str, tuple[int, float]] = {}
        self.bytes_down = self.bytes_up = 0

    @property
    def grid(self) -> Grid:
        """Flower's connection to the nodes; only a running server has one."""
        assert self._grid is not None
        return self._grid

    def name(self, client: int) -> str:
        """Return Flower's number of a client's node, as text: it is too long for a number of JSON."""
        return str(self.peers[client].node) if client in self.peers else "unknown"

    def wait_for_nodes(self, needed: int, wait: float) -> None:
        """Wait until enough clients are connected; raise after ``wait`` seconds."""
        until = time.monotonic() + wait
        self.refresh()
        while len(self.peers) < needed:
            if time.monotonic() > until:
                refused = "".join(f"; node {node} was refused: {why}" for node, (_, why) in self.refused.items())
                raise RunError(
                    f"{len(self.peers)} of {needed} clients were connected after {wait:g} s{refused}: "
                    "start more SuperNodes, or use fewer clients"
                )
            time.sleep(POLL)
            self.refresh()

    def refresh(self) -> None:
        """Update the list of connected nodes, and wait for the answers of new ones."""
        begun = time.monotonic()
        self.look()
        while self._greeted:
            time.sleep(pause(time.monotonic() - begun))
            self.listen()

    def look(self) -> None:
        """Update the list of connected nodes, and query new ones. ``listen`` takes their answers."""
        connected = set(self.grid.get_node_ids())
        self.peers = {client: peer for client, peer in self.peers.items() if peer.node in connected}
        self.refused = {node: (at, why) for node, (at, why) in self.refused.items() if at > time.monotonic() - AGAIN}
        greeted = {node for node, _ in self._greeted.values()}
        new = connected - {peer.node for peer in self.peers.values()} - self.refused.keys() - greeted
        for node in sorted(new):
            if number := self.push(MessageType.QUERY, node, self.hello(), HELLO):
                self._greeted[number] = node, time.monotonic() + HELLO
            else:
                self._refuse(node, NOT_ACCEPTED)
        self.listen()

    def listen(self) -> None:
        """Admit the nodes whose answers to the query have arrived; refuse those that are late, or do not fit."""
        for number, reply in self.pull({number: node for number, (node, _) in self._greeted.items()}).items():
            del self._greeted[number]
            try:
                self._admit(reply)
            except GossamerError as error:
                self._refuse(reply.node, shown(str(error)))
        for number, (node, until) in list(self._greeted.items()):
            if time.monotonic() >= until:
                del self._greeted[number]
                self._refuse(node, no_reply(HELLO))

    def _refuse(self, node: int, why: str) -> None:
        self.refused[node] = time.monotonic(), why
        log(WARNING, "node %s refused: %s", node, why)

    def _admit(self, reply: NodeReply) -> None:
        message = reply.checked()
        client = word(message, "client", int)
        if not 0 <= client < self.clients:
            raise PayloadError(f"it claims to be client {client}, of {self.clients}")
        self.identify(reply.node, client, message)
        if client in self.peers:
            raise PayloadError(f"it claims to be client {client}, as does node {self.peers[client].node}")
        for name, wanted in self.wanted.items():
            if word(message, name, str) != wanted:
                raise PayloadError(
                    "its frozen parameters, which are not sent, have other values than the server's: give it the same"
                    " initial weights, init= in its --node-config"
                    if name == FROZEN
                    else f"it has another {name} than the server: give both the same app and release"
                )
        samples, tested, test = (word(message, name, int) for name in ("samples", "tested", "test"))
        if samples < 1:
            raise PayloadError(f"client {client} has no training samples")
        for count in (samples, tested, test):
            if not 0 <= count <= MOST_SAMPLES:
                raise PayloadError(f"client {client} claims {count:,} samples, expected 0 to {MOST_SAMPLES:,}")
        self.peers[client] = Peer(reply.node, samples, tested, test)

    def ask(self, kind: str, contents: Mapping[int, RecordDict], deadline: float) -> Iterator[tuple[int, NodeReply]]:
        """Send a message to each client; yield replies as they arrive, and a failure for each missing reply."""
        nodes, waiting = {self.peers[client].node: client for client in contents}, dict[str, int]()
        for node, client in nodes.items():
            if number := self.push(kind, node, contents[client], deadline):
                waiting[number] = node
            else:
                yield client, NodeReply(node, None, NOT_ACCEPTED)
        begun = time.monotonic()
        while waiting and time.monotonic() < begun + deadline:
            arrived = self.pull(waiting)
            for number, reply in arrived.items():
                del waiting[number]
                yield nodes[reply.node], reply
            if waiting and not arrived:
                time.sleep(pause(time.monotonic() - begun))
        for node in waiting.values():
            yield nodes[node], NodeReply(node, None, no_reply(deadline))

    def push(self, kind: str, node: int, records: RecordDict, deadline: float) -> str:
        """Send a message, and return its number; empty if the SuperLink did not accept it."""
        message = Message(records, node, kind, ttl=deadline)
        self.bytes_down += carried(message)
        return next((number for number in self.grid.push_messages([message]) if number), "")

    def pull(self, waiting: Mapping[str, int]) -> dict[str, NodeReply]:
        """Return the replies to messages that have arrived, given the nodes of the messages by number."""
        arrived = self.grid.pull_messages(list(waiting)) if waiting else ()
        found = {message.metadata.reply_to_message_id: message for message in arrived}
        return {number: self._reply(waiting[number], message) for number, message in found.items() if number in waiting}

    def _reply(self, node: int, message: Message) -> NodeReply:
        if message.has_error():
            return NodeReply(node, None, shown(f"Flower reports: {message.error.reason or message.error.code}"))
        self.bytes_up += carried(message)
        return NodeReply(node, message)


def pause(waited: float) -> float:
    """Return the seconds until the next check for replies, after some seconds of waiting."""
    return min(max(POLL, SHARE * waited), LONGEST_PAUSE)
