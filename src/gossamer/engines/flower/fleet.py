"""The nodes of a run, as the server sees them: who is there, which client each is, and how to ask them something.

Flower knows a node by a number that it draws; a method knows its clients by their own. So a node that is not known yet
is asked who it is. One that cannot say, or does not fit the run, is refused with a reason, and asked again only after a
while; a client that two nodes claim to be belongs to the one that is there already.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from logging import WARNING
from typing import NamedTuple

from flwr.app import Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.logger import log

from gossamer.core.errors import GossamerError, PayloadError, RunError
from gossamer.engines.flower.messages import carried, word
from gossamer.engines.flower.node import FAULT

POLL = 0.25
"""Seconds between two looks for what has come."""

HELLO = 120.0
"""Seconds that a new node has to say who it is."""

LONGEST = 1000
"""Characters of a node's reason that are kept."""

AGAIN = 60.0
"""Seconds after which a node that was refused is asked once more."""


class Peer(NamedTuple):
    """A node that takes part: its number in Flower, and what it said it has."""

    node: int
    samples: int
    tested: int
    test: int


class NodeReply(NamedTuple):
    """What came of a question: a message, or the reason why there is none."""

    asked: int
    message: Message | None
    fault: str = ""

    def told(self) -> Message:
        """The message, if nothing went wrong."""
        if self.message is None:
            raise PayloadError(self.fault)
        if any(FAULT in words for words in self.message.content.config_records.values()):
            raise PayloadError(word(self.message, FAULT, str)[:LONGEST])
        return self.message

    def says(self, name: str) -> bool:
        """Whether there is a word of that name, and it says yes."""
        records = self.message.content.config_records if self.message else {}
        return any(words.get(name) is True for words in records.values())

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays that came."""
        records = self.message.content.array_records if self.message else {}
        return sum(len(array.data) for arrays in records.values() for array in arrays.values())


class NodePool:
    """Nodes by client.

    ``hello`` makes the question who a node is; ``wanted`` is what its answer must agree with.
    """

    def __init__(
        self, grid: Grid | None, clients: int, hello: Callable[[], RecordDict], wanted: Mapping[str, str]
    ) -> None:
        self._grid, self.clients, self.hello, self.wanted = grid, clients, hello, dict(wanted)
        self.peers: dict[int, Peer] = {}
        self.refused: dict[int, tuple[float, str]] = {}
        self.bytes_down = self.bytes_up = 0

    @property
    def grid(self) -> Grid:
        """The way to the nodes, which only a server that runs has."""
        assert self._grid is not None
        return self._grid

    def wait_for_nodes(self, needed: int, wait: float) -> None:
        """Wait until so many clients are there, and say so clearly where they do not come."""
        until = time.monotonic() + wait
        self.refresh()
        while len(self.peers) < needed:
            if time.monotonic() > until:
                refused = "".join(f"; node {node} was refused: {why}" for node, (_, why) in self.refused.items())
                raise RunError(
                    f"{len(self.peers)} of {needed} clients were there after {wait:g} s{refused}: "
                    "start more SuperNodes, or ask for fewer"
                )
            time.sleep(POLL)
            self.refresh()

    def refresh(self) -> None:
        """Look who is there, and ask those who are new who they are."""
        there = set(self.grid.get_node_ids())
        self.peers = {client: peer for client, peer in self.peers.items() if peer.node in there}
        self.refused = {node: (at, why) for node, (at, why) in self.refused.items() if at > time.monotonic() - AGAIN}
        new = there - {peer.node for peer in self.peers.values()} - self.refused.keys()
        for reply in self._ask(MessageType.QUERY, {node: self.hello() for node in sorted(new)}, HELLO):
            try:
                self._admit(reply)
            except GossamerError as error:
                self.refused[reply.asked] = time.monotonic(), str(error)
                log(WARNING, "node %s refused: %s", reply.asked, error)

    def _admit(self, reply: NodeReply) -> None:
        message = reply.told()
        client = word(message, "client", int)
        if not 0 <= client < self.clients:
            raise PayloadError(f"it says that it is client {client}, of {self.clients}")
        if client in self.peers:
            raise PayloadError(f"it says that it is client {client}, and so does node {self.peers[client].node}")
        for name, wanted in self.wanted.items():
            if word(message, name, str) != wanted:
                raise PayloadError(f"it has another {name} than the server: give both the same app and release")
        samples, tested, test = (word(message, name, int) for name in ("samples", "tested", "test"))
        if samples < 1:
            raise PayloadError(f"client {client} has no training samples")
        self.peers[client] = Peer(reply.asked, samples, tested, test)

    def ask(self, kind: str, contents: Mapping[int, RecordDict], deadline: float) -> Iterator[tuple[int, NodeReply]]:
        """Send each client its question; replies as they come, and at last who did not reply in time."""
        nodes = {self.peers[client].node: client for client in contents}
        for reply in self._ask(kind, {node: contents[client] for node, client in nodes.items()}, deadline):
            yield nodes[reply.asked], reply

    def _ask(self, kind: str, contents: Mapping[int, RecordDict], deadline: float) -> Iterator[NodeReply]:
        waiting: dict[str, int] = {}
        for node, records in contents.items():
            message = Message(records, node, kind, ttl=deadline)
            self.bytes_down += carried(message)
            sent = [number for number in self.grid.push_messages([message]) if number]
            if sent:
                waiting[sent[0]] = node
            else:
                yield NodeReply(node, None, "the SuperLink did not take the message: it may be too large for it")
        until = time.monotonic() + deadline
        while waiting and time.monotonic() < until:
            come = list(self.grid.pull_messages(list(waiting)))
            for message in come:
                if message.metadata.reply_to_message_id in waiting:
                    yield self._reply(waiting.pop(message.metadata.reply_to_message_id), message)
            if waiting and not come:
                time.sleep(POLL)
        for node in waiting.values():
            yield NodeReply(node, None, f"no reply within {deadline:g} s")

    def _reply(self, node: int, message: Message) -> NodeReply:
        if message.has_error():
            return NodeReply(node, None, f"Flower says: {message.error.reason or message.error.code}")
        self.bytes_up += carried(message)
        return NodeReply(node, message)
