"""The flags ``--fleet`` and ``--plan``, which concern both the channel and the method.

``--channel wireless --fleet FILE`` is short for ``--channel wireless:FILE``. The same holds for the channel ``fleet``.
Without a fleet the devices are phones: on radio links (``gossamer.fleet.fleet.PHONES``), and for the channel ``fleet``
a drawn fleet (``sample:phones``). With ``--schedule`` and without ``--channel``, the channel is ``fleet``, because
virtual time needs devices and links. A plan sets the ``powers`` of the channel.
If the method has the flags, it also sets ``--ratio``, ``--by tensor`` and ``--rows``. The values are recorded, so a
resumed run does not need the file. A method without these flags takes only the powers.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gossamer.analysis.planning import Plan
from gossamer.analysis.planning.work import check_work
from gossamer.cli.flags import Flag
from gossamer.cli.request import FLEET
from gossamer.core.errors import ConfigError
from gossamer.core.specs import NONE, parse, texts, written
from gossamer.engines.simulation import Simulation
from gossamer.fleet.fleet import AIR
from gossamer.parts.channels import CHANNELS
from gossamer.parts.channels.links import PLAUSIBLE, FleetLinks, Wireless

PLAN, WIRELESS, DEVICES, CAPACITIES, SCHEDULE = "plan", "wireless", "fleet", "capacities", "schedule"

LINKS: dict[str, type] = {WIRELESS: Wireless, DEVICES: FleetLinks}
"""Channels with the devices of a fleet."""

OTHERS = ("measurements", "rise", "codec")
"""Flags that would contradict a plan, in addition to those that it sets."""


def share(given: dict[str, Any], own: Sequence[Flag]) -> list[str]:
    """Pass ``--fleet`` to the channel, and to the method if it has such a flag; return the mistakes.

    ``given`` is changed in place.
    """
    wanted = any(flag.name == FLEET for flag in own)
    idle = f"--capacities has no effect with --fleet, which sets them by memory: leave one out; {AIR}"
    unheeded = wanted and heeded(given) and CAPACITIES in given
    return [*([idle] if unheeded else []), *_handed(given, wanted)]


def heeded(given: dict[str, Any]) -> bool:
    """Return whether a fleet is given to the method."""
    return given.get(FLEET) not in (None, *NONE)


def _handed(given: dict[str, Any], wanted: bool) -> list[str]:
    path = given.get(FLEET) if wanted else given.pop(FLEET, None)
    path = None if path in NONE else path
    if given.get(SCHEDULE) not in (None, *NONE):  # virtual time needs devices
        given.setdefault("channel", DEVICES if path is not None else f"{DEVICES}:{PLAUSIBLE}")
    name, _, rest = given.get("channel", "").partition(":")
    if name not in LINKS:
        effect = "--fleet has no effect here: add --schedule, --channel wireless or --channel fleet, or leave it out"
        return [] if path is None or wanted else [effect]
    named = any(field == FLEET for field, _ in texts(rest, LINKS[name]))
    if path is not None and named and not wanted:
        return ["--channel and --fleet both name a fleet: choose one"]
    if path is not None and not named:
        given["channel"] = ",".join([f"{name}:{written(FLEET, path)}", *([rest] if rest else [])])
    return []


class Followed(NamedTuple):
    """The plan that a run follows.

    Args:
        plan: the plan, if there is one
        whole: whether the method follows all of it, or the powers alone
        mistakes: the mistakes in its use
    """

    plan: Plan | None = None
    whole: bool = False
    mistakes: tuple[str, ...] = ()

    def check(self, run: Simulation, method: str) -> list[str]:
        """Refuse a run whose work differs from the plan; return notes for the user."""
        if self.plan is None:
            return []
        if not self.whole:
            return [f"--plan: {method} takes only the powers: it prunes and sends differently from the plan"]
        try:
            return [f"--plan: {note}" for note in check_work(self.plan, run.method.method, run.objective, run.split)]
        except ConfigError as error:
            raise ConfigError(*(f"--plan: {mistake}" for mistake in error.mistakes)) from error


def follow(given: dict[str, Any], own: Sequence[Flag], clients: int, seed: int) -> Followed:
    """Apply ``--plan`` to the given values, in place; call it after ``share``."""
    path, channel = given.pop(PLAN, None), str(given.get("channel", ""))
    if path is None:
        return Followed()
    name, _, fields = channel.partition(":")
    if name != WIRELESS:
        return Followed(mistakes=("--plan needs a wireless channel: add --channel wireless --fleet FILE",))
    try:
        plan = Plan.read(path)
        # A task has its own number of clients.
        number = len(plan.clients) if given.get("task") else int(given.get("clients", clients))
        plan.check(_wireless(channel), number, int(given.get("seed", seed)))
    except ConfigError as error:
        return Followed(mistakes=tuple(f"--plan: {mistake}" for mistake in error.mistakes))
    except ValueError:  # a wrong channel, number of clients or seed is reported elsewhere
        return Followed()
    says = {"ratio": "+".join(map(repr, plan.ratios)), "by": "tensor", "rows": str(plan.measurements)}
    known = {flag.name for flag in own}
    whole = says.keys() <= known
    twice = [name for name in (*says, *OTHERS) if whole and name in given]
    twice += ["channel"] * ("powers" in dict(texts(fields, Wireless)))
    powers = f"powers={'+'.join(map(repr, plan.powers))}"
    given |= {**(says if whole else {}), "channel": f"{WIRELESS}:{','.join(filter(None, (fields, powers)))}"}
    return Followed(plan, whole, tuple(f"--{name} is set by the plan: leave one out" for name in twice))


def _wireless(channel: str) -> Wireless:
    """Return the channel of a spec; raise ``ValueError`` if it is wrong."""
    try:
        found = parse(channel, CHANNELS, "channel")
    except ConfigError as error:
        raise ValueError(str(error)) from error
    assert isinstance(found, Wireless)
    return found
