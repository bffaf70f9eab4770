r"""SecAgg+: the server learns the sum of the clients' vectors modulo a power of two, and no single vector.

Bell, Bonawitz, Gascón, Lepoint and Raykova, Secure Single-Server Aggregation with (Poly)Logarithmic Overhead, CCS 2020
(https://eprint.iacr.org/2020/704), Algorithm 2. With a complete graph, it is the protocol of Bonawitz et al., Practical
Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017 (https://eprint.iacr.org/2017/281).

Client u with the vector x_u sends, modulo the sizes of the rings,

    y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)

with a seed b_u of its own, and a secret s_uv that it shares with each neighbour v. In the sum, the second kind of masks
cancels. If v is lost after ``shares``, its neighbours give the server their shares of the key of v, which removes s_uv.
If u is not lost, they give their shares of b_u instead. The masks b_u protect a client whose message was late, and
which the server therefore considers as lost.

    phase     request                                             answer
    keys      nonce of the round, number of clients               two public keys
    shares    numbers and public keys of the neighbours           shares of key and b_u, encrypted for each neighbour,
                                                                  and a commitment to b_u
    train     which neighbours have completed ``shares``          y_u, packed
    unmask    which neighbours are survivors and which dropped,   for each neighbour, a share of b_v or of its key
              and their encrypted shares for this client

Neighbours are numbered in the request of ``shares``. Later requests have one bit per neighbour, so that a client cannot
be named twice, nor one that is not a neighbour.

**Encrypted shares** stay at the server until ``unmask``. The papers forward them before training. This saves traffic to
clients that are lost. An honest-but-curious server follows the protocol, so it makes no difference. A malicious server
can leave out or replace a ciphertext in both variants: a replaced one is not authentic, and the client marks it as not
readable. Here it can do so after it has seen the masked vectors. The effect is a refused round.

**Threats.** An honest-but-curious server sees all messages and learns the sum of the survivors. If fewer than the
threshold of each neighbourhood collude with it, all of them together learn the sum of the others. A server that lies
about dropouts cannot have both secrets of a client: each needs more than half of the members, and a member gives one of
them, once. But it chooses the clients of the sum: at least ``threshold`` of each neighbourhood. If it sends different
lists to different clients of a complete graph, it can unmask the sum of a group of at least
``threshold + 1 - 1 / threshold`` of the cohort (1/6 with 2/3): a client of the group shares masks with at least
``threshold`` of the cohort, and each client calls at most ``1 - threshold`` of the others dropped. In a sparse graph,
the group can be smaller. A server that invents clients or replaces public keys is not detected, because keys are not
signed. Clients can make a round fail, and they can change the sum by what they send.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gossamer.core.errors import ConfigError, Mistake, PayloadError, Setting, require, wrong
from gossamer.core.random import Key, fold
from gossamer.core.secure import SecureAggregation, SecureRound, SumSegment
from gossamer.core.types import Payload, State
from gossamer.core.untrusted import check_names
from gossamer.parts.secure import client as client_side
from gossamer.parts.secure import graph, masks
from gossamer.parts.secure.primitives import SEED
from gossamer.parts.secure.rules import KEYS, SHARES, TRAIN, UNMASK, Rules, expect_bytes, expect_number
from gossamer.parts.secure.server import SecAggRound

FEWEST = 3


@dataclass(frozen=True)
class SecAgg(SecureAggregation):
    """SecAgg+ with a sparse graph of neighbours, or SecAgg with the complete graph.

    Args:
        neighbours: number of neighbours of each client, even; none: the smallest number that protects the cohort, and
            a complete graph up to 33 clients; at least the number of other clients: a complete graph
        threshold: share of the neighbours and the client that reconstruct its secrets, above 1/2
        colluding: largest share of clients that help the server, for which the graph is chosen
        dropouts: largest share of clients that are lost in a round, for which the graph is chosen
        min_clients: smallest cohort in which a client takes part
    """

    neighbours: int | None = None
    threshold: float = 2 / 3
    colluding: float = 0.1
    dropouts: float = 0.1
    min_clients: int = FEWEST

    setup: ClassVar[tuple[str, ...]] = (KEYS, SHARES)
    closing: ClassVar[tuple[str, ...]] = (UNMASK,)

    def __post_init__(self) -> None:
        even = self.neighbours is None or (self.neighbours >= 2 and self.neighbours % 2 == 0)
        require(
            (even, wrong(self, "neighbours", "must be an even number of at least 2, or none")),
            (0.5 < self.threshold <= 1, wrong(self, "threshold", "must be above 1/2 and at most 1")),
            (0 <= self.colluding < 1, wrong(self, "colluding", "must be at least 0 and below 1")),
            (0 <= self.dropouts < 1, wrong(self, "dropouts", "must be at least 0 and below 1")),
            (self.min_clients >= FEWEST, wrong(self, "min_clients", f"must be at least {FEWEST}")),
        )
        require(
            (
                self.colluding < 2 * self.threshold - 1 + graph.ROUNDING,
                wrong(self, "colluding", f"must be below 2 threshold - 1 = {2 * self.threshold - 1:.3g}"),
            ),
            (
                self.dropouts <= 1 - self.threshold + graph.ROUNDING,
                wrong(self, "dropouts", f"must be at most 1 - threshold = {1 - self.threshold:.3g}"),
            ),
        )

    @property
    def bounds(self) -> graph.Bounds:
        """The shares for which the graph is chosen."""
        return graph.Bounds(self.threshold, self.colluding, self.dropouts)

    def rules(self, clients: int) -> Rules:
        """Return the sizes of the protocol for a cohort.

        >>> SecAgg().rules(100)
        Rules(clients=100, degree=32, needed=22, quorum=67)
        """
        degree = graph.smallest_degree(clients, self.bounds) if self.neighbours is None else self.neighbours
        degree = min(degree, clients - 1)
        return Rules(clients, degree, graph.needed(self.threshold, degree + 1), graph.needed(self.threshold, clients))

    def failure(self, clients: int) -> graph.Failure:
        """Return bounds on the probability that a round is not secret, and that it has no sum."""
        return graph.failure(clients, self.rules(clients).degree, self.bounds)

    def check_cohort(self, clients: int) -> None:
        """Refuse a cohort below ``min_clients``, and a graph that is too sparse to be secret."""
        if clients < self.min_clients:
            raise ConfigError(
                Mistake(
                    f"a round of {clients} clients is not protected: {{}} is the fewest; select more clients per round",
                    None,
                    Setting("SecAgg", "min_clients", self.min_clients),
                )
            )
        if (found := self.failure(clients).secrecy) > graph.SECRECY:
            wanted = graph.smallest_degree(clients, self.bounds)
            raise ConfigError(
                wrong(
                    self,
                    "neighbours" if self.neighbours is not None else "colluding",
                    f"gives a graph of {clients:,} clients that fails to be secret with a probability of up to"
                    f" {found:.2g}, above 2^-40; {wanted + wanted % 2} neighbours are enough",
                )
            )

    def begin(self, clients: Sequence[int], segments: Sequence[SumSegment], key: Key) -> SecureRound:
        """Begin a round. The graph of neighbours follows from the key."""
        self.check_cohort(len(clients))
        rules = self.rules(len(clients))
        neighbours = graph.neighbourhoods(clients, rules.degree, fold(key, "neighbours"))
        return SecAggRound(rules, neighbours, masks.rings(segments, len(clients)))

    def answer(self, phase: str, client: int, request: Payload, scratch: State) -> tuple[Payload, State]:
        """Answer a request of ``keys``, ``shares`` or ``unmask``."""
        if phase == KEYS:
            check_names(request, ("nonce", "clients"))
            cohort = expect_number(request, "clients", self.min_clients)
            return client_side.make_keys(expect_bytes(request, "nonce", SEED), self._rules(cohort))
        if phase not in (SHARES, UNMASK):
            raise PayloadError(f"expected a phase of 'keys', 'shares' and 'unmask', got {phase!r}")
        client_side.check_phase(phase, scratch)
        step = client_side.share_secrets if phase == SHARES else client_side.reveal
        return step(client, request, scratch, self.rules(int(scratch["clients"])))

    def _rules(self, clients: int) -> Rules:
        """Return the sizes for a number of clients from the server, which is refused if a round is not protected."""
        try:
            self.check_cohort(clients)
        except ConfigError as error:
            raise PayloadError(f"the cohort is refused: {error}") from None
        return self.rules(clients)

    def protect(
        self, values: Tensor, segments: Sequence[SumSegment], client: int, request: Payload, scratch: State
    ) -> Payload:
        """Return the masked values as ``masked``."""
        client_side.check_phase(TRAIN, scratch)
        rules = self.rules(int(scratch["clients"]))
        rings = masks.rings(segments, rules.clients)
        lanes = masks.lanes_of(values, segments, rings)
        client_side.mask(lanes, client, request, scratch, rules)
        masks.reduce(lanes, rings)
        return {"masked": masks.packed(lanes, rings)}
