"""A method is a list of exchanges, and an exchange is a view, a solver, a codec and a server.

Both are values: they print, compare and pickle. They know nothing of engines and networks. ``method.bind(network)``
works out, once, all that follows from a network and its clients; what comes of it is in ``gossamer.core.bound``,
where the parts meet.
"""

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from gossamer.core.codec import Codec
from gossamer.core.errors import ConfigError, Mistake, Setting, require, wrong
from gossamer.core.exchange import Network
from gossamer.core.interface import check_part
from gossamer.core.parametrization import Parametrization, Weights
from gossamer.core.sampler import Sampler
from gossamer.core.server import Server
from gossamer.core.solver import Solver, SolverMemory
from gossamer.core.view import View

if TYPE_CHECKING:
    from gossamer.core.binding import BoundMethod

SENDS = ("change", "model", "sections", "nothing")


@dataclass(frozen=True)
class Exchange:
    """What goes between the server and the clients of a round, once down and once up.

    Args:
        view: which entries of the model a client holds
        solver: how it trains them
        codec: what crosses the uplink
        server: what happens to arrivals
        down: what crosses the downlink
        send: what a client sends: its change, what it holds (its model), only sections, or nothing (it then goes on
            from
            its own model)
        labels: all, or own: a client's scores of labels that it has no sample of are 0, and these rows do not count
    """

    view: View
    solver: Solver
    codec: Codec
    server: Server
    down: Codec
    send: Literal["change", "model", "sections", "nothing"] = "change"
    labels: Literal["all", "own"] = "all"

    def __post_init__(self) -> None:
        for name, kind in (("view", View), ("solver", Solver), ("codec", Codec), ("server", Server), ("down", Codec)):
            check_part(getattr(self, name), kind, name)
        require(
            (self.labels in ("all", "own"), wrong(self, "labels", "must be all or own")),
            (self.send in SENDS, wrong(self, "send", f"must be one of {', '.join(SENDS)}")),
        )

    def describe(self) -> dict[str, str]:
        """Each part as text."""
        return {part.name: repr(getattr(self, part.name)) for part in fields(self)}


@dataclass(frozen=True)
class Method:
    """A federated method, whole: the exchanges of a round, of which the last is the one that clients remember.

    Args:
        exchanges: the exchanges of a round, in order; all share one server state
        sampler: who takes part in a round
        form: what is held: the network's tensors, or something that they follow from
        pooled: all samples at one client, as if there were no federation: the upper reference
        tune: how a client trains the global model once more, on its own samples, before it deploys it; none: not at all
    """

    exchanges: tuple[Exchange, ...]
    sampler: Sampler
    parametrization: Parametrization = Weights()
    pooled: bool = False
    tune: Solver | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.exchanges, tuple) and all(isinstance(each, Exchange) for each in self.exchanges)):
            raise ConfigError(
                "Method has a tuple of exchanges: write compose(view, solver, codec, server, ...) for one"
            )
        require((len(self.exchanges) > 0, "a Method needs one exchange at least"))
        check_part(self.sampler, Sampler, "sampler")
        if self.tune is not None:
            require(*_tuning_rules(self, self.tune))

    @property
    def training(self) -> Exchange:
        """The last exchange of a round, in which clients train; they may remember things of it."""
        return self.exchanges[-1]

    @property
    def view(self) -> View:
        """The view of the last exchange."""
        return self.training.view

    @property
    def solver(self) -> Solver:
        """The solver of the last exchange."""
        return self.training.solver

    @property
    def codec(self) -> Codec:
        """The codec of the last exchange."""
        return self.training.codec

    @property
    def server(self) -> Server:
        """The server of the last exchange."""
        return self.training.server

    @property
    def shared(self) -> bool:
        """Whether anything is learned together, or each client has only its own model."""
        return self.training.send != "nothing"

    def describe(self) -> dict[str, str]:
        """Each part as text, those of the last exchange first: what a run folder records."""
        parts = [part.name for part in fields(self) if part.name != "exchanges"]
        told = {name: repr(getattr(self, name)) for name in parts if getattr(self, name) is not None}
        before, weights = self.exchanges[:-1], self.sampler.weights
        drawn = {"sampler": f"{self.sampler!r}, weights={weights}"} if weights else {}
        return {**self.training.describe(), **told, **drawn, **({"before": repr(before)} if before else {})}

    def with_parts(self, **parts: Any) -> "Method":
        """The same method with other parts, of its own or of its last exchange."""
        own = {part.name for part in fields(self)}
        inside = {name: part for name, part in parts.items() if name not in own}
        outside = {name: part for name, part in parts.items() if name in own}
        if inside:
            outside["exchanges"] = (*self.exchanges[:-1], replace(self.training, **inside))
        return replace(self, **outside)

    def bind(self, network: Network) -> "BoundMethod":
        """The method for this network: with all that follows from it and its clients. Whoever runs a method does it."""
        from gossamer.core.binding import BoundMethod  # which needs this class itself

        return BoundMethod(self, network)


def _tuning_rules(method: Method, tune: Solver) -> list[tuple[bool, str]]:
    """What must hold where clients tune the global model, and what to say where it does not."""
    about = Setting("Method", "tune")
    return [
        (
            method.shared,
            Mistake(": with {} there is no global model", about, Setting("", "send", "nothing")),
        ),
        (method.view.whole, Mistake("needs clients that hold the whole model: use Full()", about)),
        (
            method.parametrization == Weights(),
            Mistake("needs clients that hold the network's own tensors: use Weights()", about),
        ),
        (
            not isinstance(tune, SolverMemory),
            Mistake(f": {type(tune).__name__} trains two models, and one is to be tuned: use SGD, say", about),
        ),
    ]
