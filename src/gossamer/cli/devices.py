"""Flags that say one thing to channel and method: ``--fleet``, the clients' devices, and ``--plan``, what these do.

``--channel wireless --fleet FILE`` is short for ``--channel wireless:FILE``. A plan becomes what it stands for: the
channel's ``powers`` and, where the method has such flags, ``--ratio``, ``--by tensor`` (by which operations fall as
planned) and ``--rows``; so a run does not need its file. Of a method that has not, only powers are planned.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gossamer.analysis.planning import Plan
from gossamer.analysis.planning.work import check_work
from gossamer.cli.flags import Flag
from gossamer.core.errors import ConfigError
from gossamer.core.specs import NONE, parse, texts, written
from gossamer.engines.simulate import Simulation
from gossamer.fleet.fleet import AIR
from gossamer.parts.channels import CHANNELS
from gossamer.parts.channels.wireless import Wireless

FLEET, PLAN, WIRELESS, CAPACITIES = "fleet", "plan", "wireless", "capacities"

OTHERS = ("measurements", "rise", "codec")
"""Flags that would change what a plan says, besides those that it stands for."""


def share(given: dict[str, Any], own: Sequence[Flag]) -> list[str]:
    """Hand a fleet to the channel, and leave it to a method that has a flag for it; what is wrong with that comes back.

    ``given`` is changed in place.
    """
    wanted = any(flag.name == FLEET for flag in own)
    idle = f"--capacities says nothing with --fleet, by which memory decides: leave one of both out; {AIR}"
    unheeded = wanted and heeded(given) and CAPACITIES in given
    return [*([idle] if unheeded else []), *_handed(given, wanted)]


def heeded(given: dict[str, Any]) -> bool:
    """Whether a fleet is given to the method."""
    return given.get(FLEET) not in (None, *NONE)


def _handed(given: dict[str, Any], wanted: bool) -> list[str]:
    path = given.get(FLEET) if wanted else given.pop(FLEET, None)
    name, _, rest = given.get("channel", "").partition(":")
    if name != WIRELESS:
        return [] if path is None or wanted else ["--fleet says nothing here: add --channel wireless, or leave it out"]
    named = any(field == FLEET for field, _ in texts(rest, Wireless))
    if path is not None and named and not wanted:
        return ["--channel names a fleet, and so does --fleet: choose one"]
    if path is None and not named:
        del given["channel"]
        return ["--channel wireless must know the clients' devices: add --fleet FILE, or write wireless:FILE"]
    if not named:
        given["channel"] = ",".join([f"{WIRELESS}:{written(FLEET, path or '')}", *([rest] if rest else [])])
    return []


class Followed(NamedTuple):
    """A plan that a run is to follow, if there is one, whether in all that it says, and what is wrong with that."""

    plan: Plan | None = None
    whole: bool = False
    mistakes: tuple[str, ...] = ()

    def check(self, run: Simulation, method: str) -> list[str]:
        """Refuse a run whose work is not what was planned; what is to be said of one that is comes back."""
        if self.plan is None:
            return []
        if not self.whole:
            return [f"--plan: {method} takes only powers from it: what it prunes and sends is its own, not as planned"]
        try:
            return [f"--plan: {note}" for note in check_work(self.plan, run.method.method, run.objective, run.split)]
        except ConfigError as error:
            raise ConfigError(*(f"--plan: {mistake}" for mistake in error.mistakes)) from error


def follow(given: dict[str, Any], own: Sequence[Flag], clients: int, seed: int) -> Followed:
    """Do as a plan says. ``given`` is changed in place, after ``share``."""
    path, channel = given.pop(PLAN, None), str(given.get("channel", ""))
    if path is None:
        return Followed()
    if not channel.startswith(f"{WIRELESS}:"):
        return Followed(mistakes=("--plan is for devices on the air: add --channel wireless --fleet FILE",))
    try:
        plan = Plan.read(path)
        many = len(plan.clients) if given.get("task") else int(given.get("clients", clients))  # a task has its own
        plan.check(_wireless(channel), many, int(given.get("seed", seed)))
    except ConfigError as error:
        return Followed(mistakes=tuple(f"--plan: {mistake}" for mistake in error.mistakes))
    except ValueError:  # a channel, a number of clients or a seed that is none, which is told elsewhere
        return Followed()
    says = {"ratio": "+".join(map(repr, plan.ratios)), "by": "tensor", "rows": str(plan.measurements)}
    known = {flag.name for flag in own}
    whole = says.keys() <= known
    twice = [name for name in (*says, *OTHERS) if whole and name in given]
    twice += ["channel"] * ("powers" in dict(texts(channel.partition(":")[2], Wireless)))
    given |= {**(says if whole else {}), "channel": f"{channel},powers={'+'.join(map(repr, plan.powers))}"}
    return Followed(plan, whole, tuple(f"--{name} is for the plan to say: leave one of both out" for name in twice))


def _wireless(channel: str) -> Wireless:
    """The channel that a text names; ``ValueError`` of one that cannot be."""
    try:
        found = parse(channel, CHANNELS, "channel")
    except ConfigError as error:
        raise ValueError(str(error)) from error
    assert isinstance(found, Wireless)
    return found
