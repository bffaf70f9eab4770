"""A method that is bound to one network and its clients. Engines work only with bound methods."""

from collections.abc import Sequence

from gossamer.core.bound import BoundExchange
from gossamer.core.errors import require
from gossamer.core.exchange import GLOBAL, Assignment, Context, Network
from gossamer.core.method import Exchange, Method
from gossamer.core.random import Key, fold
from gossamer.core.store import ClientStore
from gossamer.core.types import Params, State


class BoundMethod:
    """A method for one network and its clients.

    Args:
        exchanges: the exchanges of a round; clients have state only for the last one
        training: the last exchange
        probe: the exchange on which the sampler bases its choice of clients, or none
        models: the server's state per client, for example personalized models
    """

    def __init__(self, method: Method, network: Network) -> None:
        self.method, self.network, self.sampler = method, network, method.sampler
        self.parametrization, self.tune, self.pooled, self.shared = (
            method.parametrization,
            method.tune,
            method.pooled,
            method.shared,
        )
        self.models = ClientStore(str(network.device))
        last = len(method.exchanges) - 1
        self.exchanges = tuple(
            self.bind_exchange(each, number, number == last) for number, each in enumerate(method.exchanges)
        )
        probe = method.sampler.probe
        self.probe = None if probe is None else self.bind_exchange(probe, last + 1, False)
        self.training = self.exchanges[last]
        alone = last == 0 and self.probe is None
        more = "secure aggregation protects one exchange, and this method asks its clients for more before it"
        require((alone or self.training.secure is None, f"{more}: use a method with one exchange"))

    def bind_exchange(self, exchange: Exchange, number: int, last: bool) -> BoundExchange:
        """Return an exchange for the same network. ``last`` marks the exchange for which clients keep state."""
        context = Context(self.network, exchange, self.sampler, self.parametrization, self.models)
        return BoundExchange(exchange, context, number, last)

    def init(self, built: Params, key: Key) -> State:
        """Return the server state before the first round.

        ``built`` are the initial tensors of the network, ``key`` is the run's key.
        """
        held, state = self.parametrization.hold(built, fold(key, "form")), State()
        for exchange in self.exchanges:
            state |= exchange.init(held)
        return state

    def home(self, client: int) -> Assignment:
        """Return the assignment with which a client downloads the model that it deploys."""
        return self.training.home(client)

    def global_models(self, state: State) -> Sequence[Params]:
        """Return the global model, or several global models of which clients choose one."""
        return self.training.server.download(state, GLOBAL).models
