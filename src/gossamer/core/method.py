"""A federated method: a sequence of exchanges, each with a view, a solver, a codec and a server.

    view      which entries of the model a client holds
    solver    how the client trains
    codec     how the update is compressed on the uplink, and ``down`` on the downlink
    server    how updates are aggregated

FedAvg has one exchange. ``compose`` builds a method with one exchange and default parts:

    method = gossamer.compose(Full(), SGD(lr=0.1), TopK(share=0.03), Mean())

Methods and exchanges are values: they print, compare and pickle. They contain no network and no engine. Engines call
``method.bind(network)`` once. The resulting ``BoundMethod`` (``gossamer.core.binding``) holds a ``BoundExchange``
(``gossamer.core.bound``) for each exchange, which defines the order of calls to the parts.
"""

from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from gossamer.core.adapter import Adapter
from gossamer.core.codec import Codec
from gossamer.core.downlink import Downlink
from gossamer.core.errors import ConfigError, Mistake, Setting, require, wrong
from gossamer.core.exchange import Network
from gossamer.core.interface import check_part
from gossamer.core.parametrization import Parametrization, Weights
from gossamer.core.sampler import Sampler
from gossamer.core.secure import SecureAggregation
from gossamer.core.server import Server
from gossamer.core.solver import Solver
from gossamer.core.view import View

if TYPE_CHECKING:
    from gossamer.core.binding import BoundMethod

SENDS = ("change", "model", "sections", "nothing")


@dataclass(frozen=True)
class Exchange:
    """One download and one upload per client of the cohort.

    Args:
        view: which entries of the model a client holds
        solver: how a client trains
        codec: compression on the uplink
        server: aggregation of the updates
        down: compression on the downlink: a codec for the whole model, or a downlink such as ``Delta()``
        send: what a client uploads: change (its update), model (its weights), sections (no model) or nothing (it
            continues from its own model)
        labels: all, or own: logits of labels without a local sample are 0, and their rows are not aggregated
        secure: secure aggregation of the uploads: the server learns only their sum; none sends each upload in the clear
    """

    view: View
    solver: Solver
    codec: Codec
    server: Server
    down: Codec | Downlink
    send: Literal["change", "model", "sections", "nothing"] = "change"
    labels: Literal["all", "own"] = "all"
    secure: SecureAggregation | None = None

    def __post_init__(self) -> None:
        down = Downlink if isinstance(self.down, Downlink) else Codec
        for name, kind in (("view", View), ("solver", Solver), ("codec", Codec), ("server", Server), ("down", down)):
            check_part(getattr(self, name), kind, name)
        if self.secure is not None:
            check_part(self.secure, SecureAggregation, "secure")
        require(
            (self.labels in ("all", "own"), wrong(self, "labels", "must be all or own")),
            (self.send in SENDS, wrong(self, "send", f"must be one of {', '.join(SENDS)}")),
        )

    def describe(self) -> dict[str, str]:
        """Return each part as text; secure aggregation only if there is any."""
        parts = {part.name: getattr(self, part.name) for part in fields(self)}
        return {name: repr(part) for name, part in parts.items() if name != "secure" or part is not None}


class RecipeCall(NamedTuple):
    """The call of a recipe that made a method.

    Args:
        name: name of the recipe, as ``gossamer run`` takes it
        given: its given arguments, as values of JSON; parts are written as ``gossamer run`` takes them
    """

    name: str
    given: dict[str, Any]


@dataclass(frozen=True)
class Method:
    """A complete federated method.

    Clients train in the last exchange of a round. Only its parts may have client state.

    Args:
        exchanges: the exchanges of a round, in order; all share one server state
        sampler: which clients take part in a round
        parametrization: what is trained and sent: the network's tensors, or tensors from which they are computed
        adapter: changes the network so that few tensors are trained, such as ``LoRA()``; none trains all of them
        pooled: put all samples on one client, as in centralized training
        tune: the solver with which a client fine-tunes the global model before it deploys it; none: no fine-tuning
        recipe: the recipe that made the method, for records and tables; methods that differ in it alone are equal
    """

    exchanges: tuple[Exchange, ...]
    sampler: Sampler
    parametrization: Parametrization = Weights()
    adapter: Adapter | None = None
    pooled: bool = False
    tune: Solver | None = None
    recipe: RecipeCall | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not (isinstance(self.exchanges, tuple) and all(isinstance(each, Exchange) for each in self.exchanges)):
            raise ConfigError(
                "Method.exchanges must be a tuple of Exchange: write compose(view, solver, codec, server, ...) for one"
            )
        private = any(each.server.private for each in self.exchanges)
        require(
            (len(self.exchanges) > 0, "Method.exchanges must have at least one exchange"),
            (
                len(self.exchanges) < 2 or not private,
                "Method.exchanges: a private server needs rounds with one exchange, because the others would release "
                "what clients send without noise: use fedavg, for example",
            ),
        )
        check_part(self.sampler, Sampler, "sampler")
        if isinstance(self.parametrization, type):
            check_part(self.parametrization, Parametrization, "parametrization")
        if self.adapter is not None:
            check_part(self.adapter, Adapter, "adapter")
        if self.tune is not None:
            check_part(self.tune, Solver, "tune")
            require(*_tuning_rules(self, self.tune))

    @property
    def training(self) -> Exchange:
        """The last exchange of a round, in which clients train."""
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
        """Whether clients train a common model. If not, each trains its own model without communication."""
        return self.training.send != "nothing"

    def describe(self) -> dict[str, str]:
        """Return each part as text, starting with those of the last exchange. Run folders record it."""
        parts = [part.name for part in fields(self) if part.name not in ("exchanges", "recipe")]
        own = {name: repr(getattr(self, name)) for name in parts if getattr(self, name) is not None}
        before, weights = repr(self.exchanges[:-1]).replace(", secure=None", ""), self.sampler.weights
        drawn = {"sampler": f"{self.sampler!r}, weights={weights}"} if weights else {}
        return {**self.training.describe(), **own, **drawn, **({"before": before} if self.exchanges[:-1] else {})}

    def with_parts(self, **parts: Any) -> "Method":
        """Return a copy with some parts replaced: fields of the method or of its last exchange."""
        own = {part.name for part in fields(self)}
        inside = {name: part for name, part in parts.items() if name not in own}
        outside = {name: part for name, part in parts.items() if name in own}
        if inside:
            outside["exchanges"] = (*self.exchanges[:-1], replace(self.training, **inside))
        return replace(self, **outside)

    def bind(self, network: Network) -> "BoundMethod":
        """Return the method for one network and its clients. Engines call it once, before the first round."""
        from gossamer.core.binding import BoundMethod  # imported here: it imports this module

        return BoundMethod(self, network)


def _tuning_rules(method: Method, tune: Solver) -> list[tuple[bool, str]]:
    """Return the conditions for ``Method.tune``, each with the message if it does not hold."""
    about = Setting("Method", "tune")
    return [
        (
            method.shared,
            Mistake(": with {} there is no global model", about, Setting("", "send", "nothing")),
        ),
        (method.view.whole, Mistake("needs clients that hold the whole model: use Full()", about)),
        (
            method.parametrization == Weights(),
            Mistake("needs the network's own tensors as parameters: use Weights()", about),
        ),
        (
            not tune.stateful,
            Mistake(f"must be a solver without client state, got {type(tune).__name__}: use SGD, for example", about),
        ),
    ]
