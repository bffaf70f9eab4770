"""A method that is bound to a network: its exchanges, and what a client deploys."""

from collections.abc import Sequence

from gossamer.core.bound import BoundExchange
from gossamer.core.exchange import GLOBAL, Assignment, Context, Network
from gossamer.core.method import Exchange, Method
from gossamer.core.random import Key, fold
from gossamer.core.store import ClientStore
from gossamer.core.types import Params, State


class BoundMethod:
    """A method for a network and its clients.

    Args:
        exchanges: those of a round; the last is that of which clients remember things
        probe: the exchange by which the sampler chooses who takes part, if it needs one
        models: what the server has of each client, where it has models of clients' own
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

    def bind_exchange(self, exchange: Exchange, number: int, last: bool) -> BoundExchange:
        """An exchange for the same network; ``last`` is whether clients keep state of it."""
        return BoundExchange(exchange, Context(self.network, exchange, self.sampler, self.models), number, last)

    def init(self, built: Params, key: Key) -> State:
        """What the server holds before the first round, for a network that was built with these tensors; run's key."""
        held, state = self.parametrization.hold(built, fold(key, "form")), State()
        for exchange in self.exchanges:
            state |= exchange.server.init(held)
        return state

    def home(self, client: int) -> Assignment:
        """The assignment by which a client gets what it deploys."""
        return self.training.home(client)

    def global_models(self, state: State) -> Sequence[Params]:
        """The model that is trained together, or several among which clients choose."""
        return self.training.server.download(state, GLOBAL).models
