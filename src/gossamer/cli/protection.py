"""The server of a deployment: updates are clipped by default, unless there is a reason against it."""

from dataclasses import replace
from typing import NamedTuple

from gossamer.cli.build import make_method
from gossamer.cli.request import Request
from gossamer.core.method import Method
from gossamer.engines.anomalies import FEWEST
from gossamer.parts.downlinks.delta import Delta
from gossamer.parts.servers.mean import WeightedMean
from gossamer.parts.servers.robust import PLAIN

DEPLOYED_SERVER = "clip:median,multiple=3"
"""Default of ``--server`` in a deployment: no update counts for more than three times the median norm."""


class Protected(NamedTuple):
    """A method as it is deployed.

    Args:
        request: the request, with the rule of the server
        method: the method
        line: which rule the server has, and why, for the user
    """

    request: Request
    method: Method
    line: str


def protected(request: Request, method: Method, cohort: int) -> Protected:
    """Return the method with the default rule of deployments, unless the user chose one or it cannot be used."""
    if request.server == PLAIN:
        return Protected(request, method, f"server: that of {request.method} (--server mean); updates are not clipped")
    if request.server:
        return Protected(request, method, f"server: {request.server} (--server)")
    if why := _against(request, method, cohort):
        line = f"server: that of {request.method}; updates are not clipped by {DEPLOYED_SERVER}: {why}"
        return Protected(request, method, line)
    asked = replace(request, server=DEPLOYED_SERVER)
    line = f"server: {DEPLOYED_SERVER}, the default of deployments; --server mean does not clip updates"
    return Protected(asked, make_method(asked), line)


def _against(request: Request, method: Method, cohort: int) -> str:
    """Return why updates cannot be clipped by default; empty if they can."""
    down, server = method.training.down, method.server
    if not method.shared:
        return f"{request.method} sends none"
    if method.training.secure is not None:
        return "with secure aggregation, the server sees no single one"
    if request.privacy.get("dp") == "central":
        return "--dp central clips them"
    if cohort < FEWEST:
        return f"it needs rounds with at least {FEWEST} clients, and a round has {cohort}"
    if not (isinstance(server, WeightedMean) and server.takes_any_mean):
        return f"{request.method} does not aggregate them by a plain mean"
    if isinstance(down, Delta) and down.codec is None:
        return "with --down delta, clients repeat the aggregation"
    own = [setting for setting in request.sets if setting.startswith("server.")]
    return f"--set {own[0]} is a field of the method's own server" if own else ""
