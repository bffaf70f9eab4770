"""The server asks each node for its configuration, and writes down the answers."""

import json
from pathlib import Path

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

server = ServerApp()
client = ClientApp()


@server.main()
def ask(grid: Grid, context: Context) -> None:
    if not context.run_config["out"]:
        raise ValueError("nowhere to write to")
    questions = [Message(RecordDict(), node, MessageType.QUERY) for node in grid.get_node_ids()]
    answers = [dict(reply.content["configuration"]) for reply in grid.send_and_receive(questions, timeout=60)]
    Path(str(context.run_config["out"])).write_text(json.dumps(answers))


@client.query()
def answer(message: Message, context: Context) -> Message:
    return Message(RecordDict({"configuration": ConfigRecord(dict(context.node_config))}), reply_to=message)
