"""The command ``deploy node``: a SuperNode whose client app stays in memory for all messages of a run."""

import math
import os

from gossamer.cli.parser import Parser
from gossamer.core.errors import require

OURS = ("--isolation", "--allow-runtime-dependency-installation")
"""Flags of ``flower-supernode`` that do not apply: they are about processes that it would start."""


def node(words: list[str]) -> int:
    """``gossamer deploy node [flags]``."""
    from gossamer.engines.flower import supernode

    asked, arguments = _parser(supernode.POLL).parse_known_args(words)
    refused = [word for word in arguments if word.partition("=")[0] in OURS]
    require(
        (0 < asked.poll < math.inf, f"--poll must be a positive number of seconds, got {asked.poll:g}"),
        *((False, f"{word}: the client app runs in a process of Gossamer: use flower-supernode") for word in refused),
    )
    line = supernode.command(arguments, asked.poll)
    os.execv(line[0], line)


def _parser(poll: float) -> Parser:
    parser = Parser(
        prog="gossamer deploy node",
        usage="%(prog)s [--poll S] [flags of flower-supernode]",
        description="Run a SuperNode whose client app stays in memory for all messages of a run.",
        epilog="All other flags are those of flower-supernode: flower-supernode --help lists them.",
    )
    parser.add_argument(
        "--poll", metavar="S", type=float, default=poll, help=f"seconds between requests for messages (default: {poll})"
    )
    return parser
