"""Flags that say one thing to channel and method: ``--fleet``, the clients' devices, and ``--plan``, what these do.

``--channel wireless --fleet FILE`` is short for ``--channel wireless:FILE``. A plan becomes what it stands for: the
channel's ``powers`` and, where the method has such flags, ``--ratio``, ``--by tensor`` (by which operations fall as
planned) and ``--rows``; so a run does not need its file.
"""

from collections.abc import Sequence
from typing import Any

from gossamer.cli.flags import Flag
from gossamer.errors import ConfigError
from gossamer.fleet import Fleet
from gossamer.planning import Plan

FLEET, PLAN, WIRELESS = "fleet", "plan", "wireless"


def share(given: dict[str, Any], own: Sequence[Flag]) -> list[str]:
    """Hand a fleet to the channel, and leave it to a method that has a flag for it; what is wrong with that comes back.

    ``given`` is changed in place.
    """
    wanted = any(flag.name == FLEET for flag in own)
    path = given.get(FLEET) if wanted else given.pop(FLEET, None)
    name, _, rest = given.get("channel", "").partition(":")
    pieces = [piece for piece in rest.split(",") if piece]
    named = any("=" not in piece or piece.startswith(f"{FLEET}=") for piece in pieces)
    if name != WIRELESS:
        return [] if path is None or wanted else ["--fleet says nothing here: add --channel wireless, or leave it out"]
    if path is not None and named and not wanted:
        return ["--channel names a fleet, and so does --fleet: choose one"]
    if path is None and not named:
        del given["channel"]
        return ["--channel wireless must know the clients' devices: add --fleet FILE, or write wireless:FILE"]
    if not named:
        given["channel"] = f"{WIRELESS}:{','.join([f'{FLEET}={path}', *pieces])}"
    return []


def follow(given: dict[str, Any], own: Sequence[Flag], clients: int, seed: int) -> list[str]:
    """Do as a plan says; what is wrong with that comes back. ``given`` is changed in place, after :func:`share`."""
    path, channel = given.pop(PLAN, None), str(given.get("channel", ""))
    if path is None:
        return []
    if not channel.startswith(f"{WIRELESS}:"):
        return ["--plan is for devices on the air: add --channel wireless --fleet FILE"]
    fleet = channel.partition(":")[2].split(",")[0].removeprefix(f"{FLEET}=")
    try:
        plan = Plan.read(path)
        many = len(plan.clients) if given.get("task") else int(given.get("clients", clients))  # a task has its own
        plan.check(Fleet.of_text(fleet), many, int(given.get("seed", seed)))
    except ConfigError as error:
        return [f"--plan: {mistake}" for mistake in error.mistakes]
    except ValueError:  # a number of clients or a seed that is none, which is told elsewhere
        return []
    says = {"ratio": "+".join(map(repr, plan.ratios)), "by": "tensor", "rows": str(plan.measurements)}
    known = {flag.name for flag in own}
    meant = says if says.keys() <= known else {}
    twice = [f"--{name} is for the plan to say: leave one of both out" for name in meant if name in given]
    given |= {**meant, "channel": f"{channel},powers={'+'.join(map(repr, plan.powers))}"}
    return twice
