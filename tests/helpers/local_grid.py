"""A Flower grid in one process: every message is taken apart and put together as on its way through a SuperLink."""

import uuid
from collections.abc import Callable, Iterable
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

Handle = Callable[[Message], Message | None]
"""What a node makes of a message; nothing, if it is gone."""


def through(message: Message) -> Message:
    """The message as it arrives elsewhere."""
    parts = {name: part.deflate() for name, part in get_all_nested_objects(message).items()}
    arrived: Any = inflate_object_from_contents(message.object_id, parts)
    arrived.metadata.__dict__["_message_id"] = message.metadata.message_id
    return arrived


def node(app: ClientApp, config: dict[str, Any]) -> Handle:
    """A node that runs an app with its settings; each message finds a new context, as if in a new process."""

    def handle(message: Message) -> Message:
        context = Context(0, message.metadata.dst_node_id, dict(config), RecordDict(), {}, 0)
        try:
            return through(app(through(message), context))
        except Exception as error:
            return Message(Error(0, str(error)), reply_to=message)

    return handle


class LocalGrid(Grid):
    """Nodes by their number."""

    def __init__(self, nodes: dict[int, Handle]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1  # whose messages these are
        self.nodes = nodes
        self.replies: dict[str, Message | None] = {}
        self.sent: list[Message] = []
        self.received: list[Message] = []

    def set_run(self, run: Run) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Run:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        numbers = []
        for message in messages:
            number = uuid.uuid4().hex
            message.metadata.__dict__["_message_id"] = number
            self.sent.append(message)
            self.replies[number] = self.nodes[message.metadata.dst_node_id](message)
            numbers.append(number)
        return numbers

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        ready = [self.replies.pop(number, None) for number in message_ids]
        come = [message for message in ready if message is not None]
        self.received += come
        return come
