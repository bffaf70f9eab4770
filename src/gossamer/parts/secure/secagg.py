r"""SecAgg+ against an active server: it learns the sum of the clients' vectors modulo a power of two, and nothing else.

The masks are those of Bell, Bonawitz, Gascón, Lepoint and Raykova, Secure Single-Server Aggregation with
(Poly)Logarithmic Overhead, CCS 2020 (https://eprint.iacr.org/2020/704), Algorithm 2. With a complete graph, they are
those of Bonawitz et al., Practical Secure Aggregation for Privacy-Preserving Machine Learning, CCS 2017
(https://eprint.iacr.org/2017/281), whose section 6 is the model for signed keys and for the consent of a quorum. As in
Flamingo (Ma et al., IEEE S&P 2023, https://eprint.iacr.org/2023/486), a client that lies does not end the round. Shares
are verifiable: see ``dealing``.

Client u with the vector x_u sends, modulo the sizes of the rings,

    y_u = x_u + PRG(b_u) + sum_{v > u} PRG(s_uv) - sum_{v < u} PRG(s_uv)

with a seed b_u of its own, and a secret s_uv that it shares with each neighbour v. In the sum, the second kind of masks
cancels. If v is lost after ``check``, its neighbours give the server their shares of the key of v, which removes s_uv.
If u is not lost, they give their shares of b_u instead. The masks b_u protect a client whose message was late, and
which the server therefore considers as lost.

    phase     request                                             answer
    keys      nonce, digest of the roster                         three public keys of the round, signed with the
                                                                  client's key on the roster
    shares    the list: all clients with their signed keys        shares of key and b_u, sealed for each neighbour, and
                                                                  what makes them verifiable
    check     the client's shares of all neighbours               of which neighbours they are good
    train     with the model: who has completed the setup         y_u, packed; a signed digest of all that it saw
    consent   who survives, and the signature of each upload      a signature of the list of survivors
    unmask    signatures of a quorum                              for each neighbour, a share of b_v or of its key, and
                                                                  the secret shared with each neighbour that was dropped

**What makes an active server fail.** Clients compute everything from the list: its size, the graph, thresholds and
rings. The roster signs the keys, so that no client can be invented or replaced. The keys of masks follow from the list,
who has completed the setup, the form of the vectors, and a digest of the models that the client received
(``common_digest``). So two masks cancel only if both clients have seen the same, and every survivor has signed that it
has. A client agrees to one list of survivors, of a quorum of the whole list of keys, and reveals shares once a quorum
has agreed to the same. Two quorums share more clients than may collude, so there is one such list. So for each client
honest neighbours reveal shares of one secret, the same one everywhere, and the survivors that are honest and in one
piece of the graph (``graph``) are opened as one sum, or not at all: at least quorum - c of them, if c collude.

Without the signatures of uploads, this would not be true: a server could tell a group and its dropped neighbours apart
from the others at ``train``, and open a group of 2 quorum - n - c clients with the keys of those that it calls lost.

**What makes a lying client fail.** Whatever it sends is verified by the server or by its neighbours, except the numbers
in its vector, and that its masks are those of its secrets: both change the sum by at most what the ring holds
(``reach``). A client that is caught is named in ``liars``. See ``Rules.margin`` for disputes, in which one of two
clients lies.

**What remains.** ``colluding`` is a share of the clients of the list. The server chooses who is on it. ``min_clients``
must be so large that no more than this share of them can collude. A server may open different sums in different rounds,
and their difference is the sum of the clients in which they differ. It may also send all clients a model that makes one
of them stand out in the sum. Differential privacy bounds both.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from gossamer.core.errors import ConfigError, Mistake, PayloadError, Setting, require, wrong
from gossamer.core.secure import Member, Roster, SecureAggregation, SecureRound, SumSegment
from gossamer.core.types import Payload, State
from gossamer.core.untrusted import check_single
from gossamer.parts.secure import client as client_side
from gossamer.parts.secure.primitives import fresh, raw
from gossamer.parts.secure.rules import (
    CHECK,
    CONSENT,
    KEYS,
    ROUNDING,
    SECRECY,
    SHARES,
    TRAIN,
    UNMASK,
    Bounds,
    Failure,
    Place,
    Rules,
    failure,
    needed,
    quorum,
    smallest_degree,
)
from gossamer.parts.secure.server import SecAggRound

FEWEST = 3


@dataclass(frozen=True)
class SecAgg(SecureAggregation):
    """SecAgg+ with a sparse graph of neighbours, or SecAgg with the complete graph.

    Args:
        neighbours: number of neighbours of each client, even; none: the smallest number that protects the cohort, and
            a complete graph up to 100 clients; at least the number of other clients: a complete graph
        threshold: share of the neighbours and the client that reconstruct its secrets, above 1/2
        colluding: largest share of the clients of a round that help the server, for which graph and quorum are chosen
        dropouts: largest share of clients that are lost in a round, for which the graph is chosen
        min_clients: smallest number of clients of a round, and of a sum, in which a client takes part; ``colluding`` of
            it must be all clients that may help the server, because the server chooses the cohort
    """

    neighbours: int | None = None
    threshold: float = 2 / 3
    colluding: float = 0.1
    dropouts: float = 0.1
    min_clients: int = FEWEST

    setup: ClassVar[tuple[str, ...]] = (KEYS, SHARES, CHECK)
    closing: ClassVar[tuple[str, ...]] = (CONSENT, UNMASK)

    def __post_init__(self) -> None:
        even = self.neighbours is None or (self.neighbours >= 2 and self.neighbours % 2 == 0)
        require(
            (even, wrong(self, "neighbours", "must be an even number of at least 2, or none")),
            (0.5 < self.threshold <= 1, wrong(self, "threshold", "must be above 1/2 and at most 1")),
            (0 <= self.colluding < 1, wrong(self, "colluding", "must be at least 0 and below 1")),
            (0 <= self.dropouts < 1, wrong(self, "dropouts", "must be at least 0 and below 1")),
            (self.min_clients >= FEWEST, wrong(self, "min_clients", f"must be at least {FEWEST}")),
        )
        overlap, spare = 2 * self.threshold - 1, 1 - self.threshold
        many = wrong(self, "colluding", f"must be below 2 threshold - 1 = {overlap:.3g}")
        lossy = wrong(self, "dropouts", f"must be at most 1 - threshold = {spare:.3g}")
        require((self.colluding < overlap + ROUNDING, many), (self.dropouts <= spare + ROUNDING, lossy))

    @property
    def bounds(self) -> Bounds:
        """The shares for which the graph is chosen."""
        return Bounds(self.threshold, self.colluding, self.dropouts)

    def rules(self, clients: int) -> Rules:
        """Return the sizes of the protocol for a cohort.

        >>> SecAgg().rules(100)
        Rules(clients=100, degree=99, needed=67, quorum=67, fewest=67, accusers=33)
        """
        degree = smallest_degree(clients, self.bounds) if self.neighbours is None else self.neighbours
        degree = min(degree, clients - 1)
        agree = quorum(clients, self.bounds)
        need = agree if degree == clients - 1 else needed(self.threshold, degree + 1)
        # As many as collude at most: those for which the quorum holds, or those for which a sparse graph was chosen.
        bad = 2 * agree - clients - 1 if degree == clients - 1 else int(self.colluding * clients + ROUNDING)
        return Rules(clients, degree, need, agree, max(agree, self.min_clients), bad)

    def failure(self, clients: int) -> Failure:
        """Return bounds on the probability that a round is not secret, and that it has no sum."""
        return failure(clients, self.rules(clients).degree, self.bounds)

    def check_cohort(self, clients: int) -> None:
        """Refuse a cohort below ``min_clients``, and a graph that is too sparse to be secret."""
        if clients < self.min_clients:
            few = f"a round of {clients} clients is not protected: {{}} is the fewest; select more clients per round"
            raise ConfigError(Mistake(few, None, Setting("SecAgg", "min_clients", self.min_clients)))
        if (found := self.failure(clients).secrecy) > SECRECY:
            wanted = smallest_degree(clients, self.bounds)
            why = (
                f"gives a graph of {clients:,} clients that fails to be secret with a probability of up to"
                f" {found:.2g}, above 2^-80; {wanted + wanted % 2} neighbours are enough"
            )
            raise ConfigError(wrong(self, "neighbours" if self.neighbours is not None else "colluding", why))

    def begin(
        self, clients: Sequence[int], segments: Sequence[SumSegment], topic: bytes, roster: Roster, models: bytes
    ) -> SecureRound:
        """Begin a round, with a new nonce."""
        self.check_cohort(len(clients))
        place = Place(topic, fresh(), roster.digest)
        return SecAggRound(clients, segments, place, roster, models, self._rules, self.threshold)

    def answer(self, phase: str, member: Member, request: Payload, scratch: State) -> tuple[Payload, State]:
        """Answer a request of any phase but ``train``."""
        check_single(request)
        if phase == KEYS:
            return client_side.make_keys(member, request)
        if phase not in client_side.STEPS:
            raise PayloadError(f"expected a phase of {', '.join(map(repr, (KEYS, *client_side.STEPS)))}, got {phase!r}")
        client_side.check_phase(phase, scratch)
        if raw(scratch["topic"]) != member.topic:
            raise PayloadError("a request of another run, round or exchange than that of the keys of this client")
        return client_side.STEPS[phase](member, request, scratch, self._rules)

    def _rules(self, clients: int) -> Rules:
        """Return the sizes for a number of clients from elsewhere, which is refused if a round is not protected."""
        try:
            self.check_cohort(clients)
        except ConfigError as error:
            raise PayloadError(f"the cohort is refused: {error}") from None
        return self.rules(clients)

    def protect(
        self,
        values: Tensor,
        segments: Sequence[SumSegment],
        client: int,
        request: Payload,
        models: bytes,
        scratch: State,
    ) -> Payload:
        """Return the masked values as ``masked``, and the signed digest of what the client saw."""
        check_single(request)
        client_side.check_phase(TRAIN, scratch)
        return client_side.mask(values, segments, client, request, models, scratch, self._rules)
