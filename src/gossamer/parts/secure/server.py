"""The server's side of a round of SecAgg. It adds masked vectors as they arrive, and removes the masks at the end.

Clients are called by their places in the list of keys, except where they are named to the outside.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from gossamer.core.bits import expect_bits
from gossamer.core.errors import PayloadError
from gossamer.core.secure import DISPUTED, LIED, Ring, Roster, SecureRound, SumSegment, TooFewClientsError
from gossamer.core.types import Payload
from gossamer.core.untrusted import check_names, check_single
from gossamer.parts.secure import primitives, rules, shamir
from gossamer.parts.secure.primitives import PUBLIC, SEED, SIGNATURE, SIGNED, expect_bytes, pieces, tensor
from gossamer.parts.secure.rules import CHECK, CONSENT, KEYS, PHASES, SHARES, TRAIN, UNMASK, Place, Rules
from gossamer.parts.secure.shamir import BOX, HASHES, KEY_SEED, SELF_SEED, challenge, hashed

ADVICE = "lower SecAgg.threshold (it stays above 1/2), select more clients per round, or wait longer for them"


class SeenKeys:
    """Digests of the last public keys that this process has accepted, to refuse keys of earlier rounds."""

    def __init__(self, limit: int = 1 << 17) -> None:
        self.limit = limit
        self._digests: dict[bytes, None] = {}  # in order of arrival
        self._lock = threading.Lock()

    def add(self, *keys: bytes) -> None:
        """Add the keys of a client. Raise ``PayloadError`` if one of them was seen before."""
        digests = [blake2b(key, digest_size=16).digest() for key in keys]
        with self._lock:
            if len(set(digests)) < len(digests) or any(digest in self._digests for digest in digests):
                raise PayloadError("keys replayed from an earlier round, or from another client of this round")
            self._digests.update(dict.fromkeys(digests))
            while len(self._digests) > self.limit:
                del self._digests[next(iter(self._digests))]


SEEN = SeenKeys()


class Dealt:
    """A dealing, as the server keeps it.

    Args:
        members: the clients with shares, in the order of their points
        boxes: the sealed values of each neighbour
        hashes: the three hashes of each member
        d: the challenge
        line: the value of z of each member
    """

    def __init__(
        self, members: Sequence[int], boxes: Mapping[int, bytes], hashes: bytes, d: int, line: list[int]
    ) -> None:
        self.points = {member: at for at, member in enumerate(members, start=1)}
        self.boxes, self.d, self.line = boxes, d, line
        self.hashes = dict(zip(members, pieces(hashes, HASHES), strict=True))
        self.holders = set(members)
        """The clients that call their shares good, and the dealer itself."""


class SecAggRound(SecureRound):
    """One round of SecAgg at the server. See ``gossamer.parts.secure.secagg``.

    Args:
        clients: the clients that are asked
        segments: the segments of the vectors
        place: the round that all digests belong to
        roster: the public keys of the clients
        models: the digest of what clients train
        rules_of: returns the sizes for a number of clients, or raises ``PayloadError``
        threshold: the share of the clients that must send keys
    """

    def __init__(
        self,
        clients: Sequence[int],
        segments: Sequence[SumSegment],
        place: Place,
        roster: Roster,
        models: bytes,
        rules_of: Callable[[int], Rules],
        threshold: float,
    ) -> None:
        self.segments, self.place, self.roster, self.models, self.rules_of = segments, place, roster, models, rules_of
        self.asked_first, self.threshold = sorted(clients), threshold
        self.rings: tuple[Ring, ...] = primitives.rings(segments, len(clients))
        self._phase = ""
        self._asked: set[int] = set(clients)
        self._answered: set[int] = set(clients)
        self._liars: dict[int, str] = {}
        self._keys: dict[int, tuple[bytes, bytes]] = {}  # by client: its three public keys, and its signature
        self._bad: dict[int, set[int]] = {}  # by holder: the dealers whose shares it calls wrong
        self._signatures: dict[int, bytes] = {}  # of the phase
        self._dealt: dict[int, Dealt] = {}
        self._completed: set[int] = set()
        self._survivors: set[int] = set()
        self._shares: dict[int, dict[int, int]] = {}  # by owner: the shares by point
        self._pairs: dict[tuple[int, int], bytes] = {}  # by dropped client and survivor: the key of their mask
        self._known: dict[tuple[int, ...], shamir.Known] = {}
        self._request: Payload = {}
        self._total: Tensor | None = None

    # The list of keys: known once ``keys`` is over.

    def _make_list(self, clients: list[int]) -> None:
        self.clients = clients
        self.at = {client: at for at, client in enumerate(clients)}
        self.rules = self.rules_of(len(clients))
        rows = [pieces(self._keys[client][0], PUBLIC) for client in clients]
        self.mask_keys, self.share_keys, self.sign_keys = ([row[which] for row in rows] for which in range(3))
        listed = [b"".join(each) for each in (self.mask_keys, self.share_keys, self.sign_keys)]
        signatures = b"".join(self._keys[client][1] for client in clients)
        self.listed = self.place.listed(clients, *listed, signatures)
        self.graph = self.rules.graph(self.listed)
        self.rings = primitives.rings(self.segments, len(clients))
        names = ("mask_keys", "share_keys", "sign_keys", "signatures")
        self._request = {name: tensor(data) for name, data in zip(names, (*listed, signatures), strict=True)}
        self._request["clients"] = torch.tensor(clients)

    # Phases.

    def open_phase(self, phase: str) -> list[int]:
        """Begin a phase. A client with too few neighbours left is not asked before training."""
        if (expected := dict(zip(("", *PHASES), (*PHASES, None), strict=True))[self._phase]) != phase:
            raise ValueError(f"expected the phase {expected!r}, got {phase!r}")
        if phase == KEYS:
            self._phase, self._request = phase, {"nonce": tensor(self.place.nonce), "roster": tensor(self.place.roster)}
            left = self.asked_first
        elif phase == SHARES:
            left = sorted(self._answered)
            self._check_count(len(left), len(self.asked_first), rules.needed(self.threshold, len(self.asked_first)))
            try:
                self._make_list(left)
            except PayloadError as error:
                raise TooFewClientsError(f"secure aggregation: {len(left)} clients sent keys: {error}") from None
        else:
            left = [self.clients[at] for at in sorted(self._begun(phase, {self.at[each] for each in self._answered}))]
        self._phase, self._asked, self._answered, self._signatures = phase, set(left), set(), {}
        return left

    def _begun(self, phase: str, answered: set[int]) -> set[int]:
        """Return which clients are asked in a phase after ``shares``."""
        if phase == CHECK:
            left = self._connected(answered, {at: set(self.graph.neighbours(at)) | {at} for at in answered})
            self._check_left(left)
            self._dealt = {at: self._dealt[at] for at in left}
            return left
        if phase == TRAIN:
            self._judge(answered)
            left = {at for at in answered if self.clients[at] not in self._liars}
            self._completed = left = self._connected(left, {at: self._dealt[at].holders for at in left})
            self._check_left(left)
            self._check_sound(left)
            self._sums = primitives.zeros(self.rings)
            self._inputs = rules.inputs_digest(self.rings, self.segments, self.models)
            completed = rules.flags(left, len(self.clients))
            self._common = rules.common_digest(self.listed, completed, self._inputs)
            self._request = {"completed": completed}
            return left
        self._check_left(answered, consented=phase == UNMASK)
        for at in sorted(self._completed):  # refused now if the answers of all these cannot suffice
            self._check_shares(at, len(answered & self._dealt[at].holders), self._phase)
        if phase == CONSENT:
            self._check_sound(answered)
            self._survivors = answered
            signed = b"".join(self._signatures[at] for at in sorted(answered))
            survivors = rules.flags(answered, len(self.clients))
            more = {"inputs": tensor(self._inputs), "survivors": survivors, "signatures": tensor(signed)}
            self._request = {"completed": rules.flags(self._completed, len(self.clients)), **more}
            self._claim = rules.consent_claim(self._common, survivors)
            return answered
        signers = sorted(answered)[: self.rules.quorum]
        signed = b"".join(self._signatures[at] for at in signers)
        self._request = {"signers": rules.flags(signers, len(self.clients)), "signatures": tensor(signed)}
        self._shares = {at: {} for at in self._completed}
        return answered

    def _connected(self, left: set[int], holders: Mapping[int, set[int]]) -> set[int]:
        """Return the clients that have enough holders of their shares among each other."""
        left = set(left)
        while few := {at for at in left if len(left & holders[at]) < self.rules.needed}:
            left -= few
        return left

    def _judge(self, answered: set[int]) -> None:
        """Name the clients in more disputes about shares than honest clients are in, those with most disputes first."""
        holds = {at: dealt.holders for at, dealt in self._dealt.items()}
        disputes: dict[int, set[int]] = {at: set() for at in self._dealt}
        for holder in answered:
            for dealer in self._bad[holder]:
                holds[dealer].discard(holder)
                disputes[holder].add(dealer)
                disputes[dealer].add(holder)
        for dealer, held in holds.items():
            held &= answered | {dealer}
        while (most := max(map(len, disputes.values()), default=0)) > self.rules.margin > 0:
            named = [at for at in disputes if len(disputes[at]) == most]
            for at in named:
                wrong = sum(at in self._bad.get(holder, ()) for holder in disputes[at])
                neighbours = f"{self.rules.degree} neighbours"
                self._name(
                    at,
                    f"its shares were unreadable or wrong for {wrong} of {neighbours}"
                    if 2 * wrong >= most
                    else f"it called the shares of {most - wrong} of {neighbours} unreadable or wrong",
                    LIED if most > self.rules.accusers else DISPUTED,
                )
                del disputes[at]
            for each in disputes.values():
                each.difference_update(named)

    def _name(self, at: int, reason: str, how: str = LIED) -> str:
        """Note that a client lied, and return the text."""
        return self._liars.setdefault(self.clients[at], f"{how}{reason}")

    def _check_count(self, left: int, clients: int, least: int) -> None:
        if left < least:
            answered = len(self._answered)
            alone = f", of which {left} have enough neighbours left" if answered >= least else ""
            raise TooFewClientsError(
                f"secure aggregation: {answered} of {clients} clients answered in the phase {self._phase!r}{alone};"
                f" {least} are needed: {ADVICE}"
            )

    def _check_left(self, left: set[int], consented: bool = False) -> None:
        """Raise ``TooFewClientsError`` if the sum would be of too few, or after consent, if too few are left for it."""
        self._check_count(len(left), len(self.clients), self.rules.quorum if consented else self.rules.fewest)

    def _check_sound(self, left: set[int]) -> None:
        """Raise ``TooFewClientsError`` if clients would not agree to be summed with these alone."""
        there = np.zeros(len(self.clients), np.bool_)
        there[list(left)] = True
        if problem := self.graph.sound(there, self.rules.needed):
            raise TooFewClientsError(f"secure aggregation: after the phase {self._phase!r}, {problem}: {ADVICE}")

    def _check_shares(self, at: int, held: int, phase: str) -> None:
        if held < self.rules.needed:
            raise TooFewClientsError(
                f"secure aggregation: {held} of the {self.rules.members} clients with shares of client"
                f" {self.clients[at]} answered in the phase {phase!r}; {self.rules.needed} are needed: {ADVICE}"
            )

    def request(self, client: int) -> Payload:
        """Return the request of the current phase to a client. Only that of ``check`` differs between clients."""
        if self._phase != CHECK:
            return self._request
        me = self.at[client]
        others = self.graph.neighbours(me)
        dealers = [other for other in others if other in self._dealt]
        dealings = [self._dealt[dealer] for dealer in dealers]
        lines = [value for dealt in dealings for value in (dealt.d, dealt.line[dealt.points[me] - 1])]
        there = [number for number, other in enumerate(others) if other in self._dealt]
        return {
            "dealt": rules.flags(there, len(others)),
            "sealed": tensor(b"".join(dealt.boxes[me] for dealt in dealings)),
            "hashes": tensor(b"".join(dealt.hashes[me] for dealt in dealings)),
            "lines": tensor(shamir.packed(lines)),
        }

    def accept(self, client: int, answer: Payload) -> None:
        """Take the answer of a client, if it is well formed and the first one."""
        if client not in self._asked:
            raise PayloadError(f"client {client} was not asked in the phase {self._phase!r}")
        if client in self._answered:
            raise PayloadError(f"a second answer of client {client} in the phase {self._phase!r}")
        check_single(answer)
        if self._phase == KEYS:
            self._accept_keys(client, answer)
        else:
            {
                SHARES: self._accept_dealing,
                CHECK: self._accept_verdict,
                TRAIN: self._accept_vector,
                CONSENT: self._accept_consent,
                UNMASK: self._accept_shares,
            }[self._phase](self.at[client], answer)
        self._answered.add(client)

    def _accept_keys(self, client: int, answer: Payload) -> None:
        names = ("mask_key", "share_key", "sign_key")
        check_names(answer, (*names, "signature"))
        keys, signature = (
            [expect_bytes(answer, name, PUBLIC) for name in names],
            expect_bytes(answer, "signature", SIGNATURE),
        )
        trial = primitives.private_key(primitives.fresh(), self.place.nonce, "trial")
        for key in keys[:2]:
            primitives.agree(trial, key)  # a key of low order is refused here
        if not self.roster.verify(client, self.place.keys_claim(client, b"".join(keys)), signature):
            raise PayloadError(f"the keys of client {client} are not signed with its key on the roster")
        SEEN.add(*keys)
        self._keys[client] = b"".join(keys), signature

    def _accept_dealing(self, at: int, answer: Payload) -> None:
        check_names(answer, ("sealed", "hashes", "line"))
        members, others = self.graph.members(at), self.graph.neighbours(at)
        boxes = pieces(expect_bytes(answer, "sealed", BOX * len(others)), BOX)
        hashes = expect_bytes(answer, "hashes", HASHES * len(members))
        line = shamir.elements(expect_bytes(answer, "line", SEED * self.rules.needed))
        if line is None:
            raise PayloadError(self._name(at, "its dealing has a number that is not in the field"))
        d = challenge(rules.dealer_context(self.listed, self.clients[at]), hashes)
        sealed = dict(zip(others, boxes, strict=True))
        self._dealt[at] = Dealt(members, sealed, hashes, d, shamir.spread(line, len(members)))

    def _accept_verdict(self, at: int, answer: Payload) -> None:
        check_names(answer, ("good",))
        dealers = [other for other in self.graph.neighbours(at) if other in self._dealt]
        good = expect_bits(answer, "good", len(dealers)).tolist()
        self._bad[at] = {dealer for dealer, fine in zip(dealers, good, strict=True) if not fine}

    def _accept_vector(self, at: int, answer: Payload) -> None:
        check_names(answer, ("masked", "common", "signature"))
        common, signature = expect_bytes(answer, "common", PUBLIC), expect_bytes(answer, "signature", SIGNED)
        if common != self._common:
            raise PayloadError(self._name(at, "its upload is from another model, list of clients or kind of values"))
        if not primitives.signed_by(self.sign_keys[at], rules.upload_claim(common), signature):
            raise PayloadError(self._name(at, "its upload is not signed"))
        primitives.add_packed(self._sums, self.rings, answer, "masked")
        self._signatures[at] = signature

    def _accept_consent(self, at: int, answer: Payload) -> None:
        check_names(answer, ("signature",))
        signature = expect_bytes(answer, "signature", SIGNED)
        if not primitives.signed_by(self.sign_keys[at], self._claim, signature):
            raise PayloadError(self._name(at, "what it signed is not the list of survivors"))
        self._signatures[at] = signature

    def _accept_shares(self, at: int, answer: Payload) -> None:
        check_names(answer, ("shares", "pairs"))
        others = [other for other in self.graph.neighbours(at) if other in self._completed]
        dropped = [other for other in others if other not in self._survivors]
        owners = [at, *(other for other in others if at in self._dealt[other].holders)]
        shares = pieces(expect_bytes(answer, "shares", SEED * len(owners)), SEED)
        pairs = pieces(expect_bytes(answer, "pairs", SEED * len(dropped)), SEED)
        wrong = 0
        for owner, share in zip(owners, shares, strict=True):
            value, dealt = shamir.element(share), self._dealt[owner]
            which = SELF_SEED if owner in self._survivors else KEY_SEED
            promised = pieces(dealt.hashes[at], PUBLIC)[which - 1]
            context = rules.dealer_context(self.listed, self.clients[owner])
            if value is None or hashed(context, which, dealt.points[at], share) != promised:
                wrong += 1
            else:
                self._shares[owner][dealt.points[at]] = value
        if wrong:
            self._name(at, f"{wrong} of the {len(owners)} shares that it revealed are not those that it was given")
        self._pairs |= {(other, at): key for other, key in zip(dropped, pairs, strict=True)}

    # The sum.

    @property
    def summed(self) -> list[int]:
        """The clients that have answered in ``train``."""
        return sorted(self._answered if self._phase == TRAIN else (self.clients[at] for at in self._survivors))

    @property
    def liars(self) -> Mapping[int, str]:
        """The clients that broke the protocol, as far as it is known by now, each with the reason."""
        return dict(sorted(self._liars.items()))

    @property
    def reach(self) -> float:
        """The largest value of a ring, in units of the limit of its segment."""
        pairs = zip(self.rings, self.segments, strict=True)
        return max((((1 << ring.bits) - 1) / limit for ring, (size, limit) in pairs if size and limit), default=0.0)

    def total(self) -> Tensor:
        """Return the sum. All secrets are reconstructed before the first mask is removed."""
        if self._phase != UNMASK:
            raise ValueError(f"the sum is known after the phase 'unmask', not in {self._phase!r}")
        if self._total is None:
            keys = [key for at in sorted(self._completed) for key in self._mask_keys(at)]
            for key, sign in keys:
                primitives.add_mask(self._sums, key, sign)
            primitives.reduce(self._sums, self.rings)
            self._total = primitives.joined(self._sums)
        return self._total

    def _mask_keys(self, at: int) -> list[tuple[bytes, int]]:
        """Return the keys of the masks to remove of a client, with the sign of each."""
        client, shares = self.clients[at], self._shares[at]
        self._check_shares(at, len(shares), UNMASK)
        secret = self._secret(at, shares)
        if at in self._survivors:
            if secret is None:
                raise TooFewClientsError(
                    f"secure aggregation: {len(shares)} shares of client {client} arrived, of which too many are wrong:"
                    f" client {client} lied, and some of its neighbours with it"
                )
            return [(primitives.self_mask(secret, self._common, client), -1)]
        beside = sorted(self._survivors.intersection(self.graph.neighbours(at)))
        private = None if secret is None else primitives.private_key(secret, self.place.nonce, "mask")
        fits = private is not None and primitives.public_bytes(private) == self.mask_keys[at]
        if not fits:
            self._name(at, "the key that it shared is not the one of its masks")
        found = []
        for other in beside:
            if fits:
                key = primitives.pair_mask(private, self.mask_keys[other], self._common, client, self.clients[other])
            elif (at, other) in self._pairs:
                key = self._pairs[at, other]
            else:
                raise TooFewClientsError(
                    f"secure aggregation: client {client} shared a wrong key, and client {self.clients[other]}, which"
                    " knows the mask that both share, did not answer in the phase 'unmask'"
                )
            found.append((key, -primitives.pair_sign(self.clients[other], client)))
        return found

    def _secret(self, at: int, shares: dict[int, int]) -> bytes | None:
        """Return the secret of shares by point. Name the dealer and the members whose shares are on no common line."""
        points = tuple(sorted(shares))
        if points not in self._known:
            self._known[points] = shamir.Known(points, self.rules.needed, self.rules.members)
        secret = self._known[points].secret([shares[point] for point in points])
        if secret is None:
            self._name(at, "the shares that it dealt do not fit each other")
            if (found := shamir.decoded(shares, self.rules.needed)) is None:
                return None
            secret, wrong = found
            members = self.graph.members(at)
            for point in wrong:
                self._name(members[point - 1], f"it accepted a wrong share of client {self.clients[at]}")
        return shamir.packed([secret])
