"""A method that is bound to a network: its exchanges, and what a client deploys."""

from collections.abc import Sequence
from functools import cached_property

from gossamer.bound import BoundExchange
from gossamer.clients import Clients
from gossamer.exchange import GLOBAL, Assignment, Context, Download, Network
from gossamer.method import Exchange, Method
from gossamer.random import Key, fold
from gossamer.servers import BoundServer, ModelPerClient
from gossamer.servers.listen import Listen
from gossamer.solvers.loss_probe import LossProbe
from gossamer.types import Params, State
from gossamer.views import Full


class BoundMethod:
    """A method for a network and its clients.

    exchanges: those of a round; the last is that of which clients remember things
    probe: the exchange by which the sampler chooses who takes part, if it needs one
    models: what the server has of each client, where it has models of clients' own
    """

    def __init__(self, method: Method, network: Network) -> None:
        self.method, self.network, self.sampler = method, network, method.sampler
        self.form, self.tune, self.pooled, self.shared = method.form, method.tune, method.pooled, method.shared
        self.models = Clients(str(network.device))
        last = len(method.exchanges) - 1
        self.exchanges = tuple(
            self._bound(each, number, number == last) for number, each in enumerate(method.exchanges)
        )
        probe = method.sampler.probe
        self.probe = None if probe is None else self._bound(probe, last + 1, False)
        self.training = self.exchanges[last]

    @cached_property
    def evaluation(self) -> BoundExchange:
        """The exchange by which clients of a deployment get what they are to evaluate: all of it, exactly."""
        make = OwnModels if self.training.per_client else Models
        exchange = Exchange(Full(), LossProbe(), server=make(self.training.server))
        return self._bound(exchange, len(self.exchanges) + 1, True)

    def _bound(self, exchange: Exchange, number: int, last: bool) -> BoundExchange:
        return BoundExchange(exchange, Context(self.network, exchange, self.sampler, self.models), number, last)

    def init(self, built: Params, key: Key) -> State:
        """What the server holds before the first round, for a network that was built with these tensors; run's key."""
        held, state = self.form.hold(built, fold(key, "form")), State()
        for exchange in self.exchanges:
            state |= exchange.server.init(held)
        return state

    def home(self, client: int) -> Assignment:
        """The assignment by which a client gets what it deploys."""
        return self.training.home(client)

    def global_models(self, state: State) -> Sequence[Params]:
        """The model that is trained together, or several among which clients choose."""
        return self.training.server.download(state, GLOBAL).models


class Models(Listen):
    """Another server's models, without its sections."""

    def __init__(self, server: BoundServer) -> None:
        self.server = server

    def download(self, state: State, assignment: Assignment) -> Download:
        """The models alone."""
        return Download(self.server.download(state, assignment).models)


class OwnModels(Models, ModelPerClient):
    """The same of a server with a model for each client."""

    def home(self, client: int) -> Assignment:
        """As that server says."""
        assert isinstance(self.server, ModelPerClient)
        return self.server.home(client)
