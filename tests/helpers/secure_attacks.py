"""An active server with colluding clients, against honest clients, and what it could open of their uploads.

``Client`` runs the code of a client, as an engine does: it keeps the scratch, makes one upload per scratch, and notes
what it has sent. ``opened`` knows all secrets, and computes from what was sent which sums the server can compute: masks
whose keys it does not know are as good as random numbers.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gossamer.core.bits import unbits
from gossamer.core.errors import PayloadError
from gossamer.core.secure import SumSegment
from gossamer.core.types import Payload, State
from gossamer.parts.secure import SecAgg, primitives, shamir
from gossamer.parts.secure.primitives import raw, rings, tensor
from gossamer.parts.secure.rules import (
    Graph,
    Place,
    Rules,
    common_digest,
    consent_claim,
    dealer_context,
    flags,
    inputs_digest,
    quorum,
    upload_claim,
)
from gossamer.parts.secure.shamir import challenge
from helpers.secure_rounds import MODELS, PEOPLE, TOPIC, member

SEGMENTS = [SumSegment(3, 5)]
LIST = ("clients", "mask_keys", "share_keys", "sign_keys", "signatures")


@dataclass
class Session:
    """What an honest client did with the keys of one ``keys`` phase."""

    client: int
    scratch: State
    answers: dict[str, Payload] = field(default_factory=dict)
    completed: list[bool] = field(default_factory=list)  # of its upload
    common: bytes = b""  # of its upload
    told: State | None = None  # its scratch before it revealed shares
    spent: State | None = None  # its scratch since then

    @property
    def listed(self) -> bytes:
        return raw(self.scratch["listed"]) if "listed" in self.scratch else b""


class Client:
    """A client, honest or not, which keeps what it has sent."""

    def __init__(self, protocol: SecAgg, number: int) -> None:
        self.protocol, self.number = protocol, number
        self.sessions: list[Session] = []
        self.values = torch.randint(0, 6, (3,), generator=torch.Generator().manual_seed(number))

    @property
    def now(self) -> Session:
        return self.sessions[-1]

    def ask(self, phase: str, request: Payload, models: bytes = MODELS) -> Payload:
        """Return the answer to a request. Raises ``PayloadError``, and nothing else, if it is refused."""
        before = (self.now.spent or self.now.scratch) if self.sessions else {}
        if phase == "train":
            if self.sessions and "train" in self.now.answers:
                raise PayloadError("a second upload: the engine refuses it")
            answer = self.protocol.protect(self.values, SEGMENTS, self.number, request, models, before)
            self.now.completed = unbits(request["completed"], len(before["clients"])).tolist()
            self.now.common = raw(answer["common"])
        else:
            answer, scratch = self.protocol.answer(phase, member(self.number), request, before)
            if phase == "keys":
                self.sessions.append(Session(self.number, scratch))
            if phase == "unmask":
                self.now.told, self.now.spent = before, scratch
            else:
                self.now.scratch = scratch
        self.now.answers[phase] = answer
        return answer


class Server:
    """An active server. It may ask any client anything; these are the requests that it can make from what it has."""

    def __init__(self, protocol: SecAgg, honest: Iterable[int], colluding: Iterable[int] = ()) -> None:
        self.protocol = protocol
        self.honest = {number: Client(protocol, number) for number in honest}
        self.colluding = {number: Client(protocol, number) for number in colluding}
        self.all = {**self.honest, **self.colluding}
        self.place = Place(TOPIC, primitives.fresh(), PEOPLE.digest)

    def keys(self) -> Payload:
        return {"nonce": tensor(self.place.nonce), "roster": tensor(self.place.roster)}

    def list_of(self, clients: Sequence[int]) -> Payload:
        """The list of these clients, with their last keys."""
        answers = [self.all[client].now.answers["keys"] for client in clients]
        names = ("mask_key", "share_key", "sign_key", "signature")
        listed = {f"{name}s": torch.cat([answer[name] for answer in answers]) for name in names}
        return {"clients": torch.tensor(clients), **listed}

    def digest(self, listed: Payload) -> bytes:
        return self.place.listed(listed["clients"].tolist(), *(raw(listed[name]) for name in LIST[1:]))

    def rules(self, listed: Payload) -> Rules:
        return self.protocol.rules(len(listed["clients"]))

    def check(self, listed: Payload, client: int) -> Payload:
        """The request of ``check``, honestly made from the dealings for a list."""
        clients: list[int] = listed["clients"].tolist()
        rules, graph = self.rules(listed), self.rules(listed).graph(self.digest(listed))
        me = clients.index(client)
        others = graph.neighbours(me)
        found: dict[str, list[bytes]] = {"sealed": [], "hashes": [], "lines": []}
        dealt = []
        for number, other in enumerate(others):
            session = self.all[clients[other]].now
            if "shares" not in session.answers or session.listed != self.digest(listed):
                continue
            dealt.append(number)
            answer, members = session.answers["shares"], graph.members(other)
            at = graph.neighbours(other).index(me)
            point = members.index(me) + 1
            hashes = raw(answer["hashes"])
            context = dealer_context(self.digest(listed), clients[other])
            line = shamir.elements(raw(answer["line"]))
            assert line is not None
            z = shamir.spread(line, rules.members)[point - 1]
            found["sealed"].append(raw(answer["sealed"])[64 * at : 64 * at + 64])
            found["hashes"].append(hashes[96 * (point - 1) : 96 * point])
            found["lines"].append(shamir.packed([challenge(context, hashes), z]))
        return {"dealt": flags(dealt, len(others)), **{name: tensor(b"".join(each)) for name, each in found.items()}}

    def inputs(self, listed: Payload, models: bytes = MODELS) -> bytes:
        return inputs_digest(rings(SEGMENTS, len(listed["clients"])), SEGMENTS, models)

    def common(self, listed: Payload, completed: Iterable[int], models: bytes = MODELS) -> bytes:
        return common_digest(self.digest(listed), self.bits(listed, completed), self.inputs(listed, models))

    def bits(self, listed: Payload, clients: Iterable[int]) -> Tensor:
        places = listed["clients"].tolist()
        return flags([places.index(client) for client in clients if client in places], len(places))

    def signature(self, client: int, kind: str, claim: bytes, common: bytes) -> bytes:
        """A signature of a claim: colluding clients sign anything, of others the server has what they sent."""
        if client in self.colluding:
            scratch = self.colluding[client].now.scratch
            private = primitives.signing_key(raw(scratch["sign_seed"]), raw(scratch["nonce"]))
            return primitives.sign(private, claim)
        answers = self.honest[client].now.answers
        return raw(answers[kind]["signature"]) if kind in answers else bytes(64)

    def consent(
        self, listed: Payload, completed: Iterable[int], survivors: Sequence[int], models: bytes = MODELS
    ) -> Payload:
        common = self.common(listed, completed, models)
        signed = [self.signature(client, "train", upload_claim(common), common) for client in sorted(survivors)]
        return {
            "completed": self.bits(listed, completed),
            "inputs": tensor(self.inputs(listed, models)),
            "survivors": self.bits(listed, survivors),
            "signatures": tensor(b"".join(signed)),
        }

    def unmask(
        self,
        listed: Payload,
        completed: Iterable[int],
        survivors: Iterable[int],
        signers: Sequence[int],
        models: bytes = MODELS,
    ) -> Payload:
        common = self.common(listed, completed, models)
        claim = consent_claim(common, self.bits(listed, survivors))
        signed = [self.signature(client, "consent", claim, common) for client in sorted(signers)]
        return {"signers": self.bits(listed, signers), "signatures": tensor(b"".join(signed))}

    def setup(self, clients: Sequence[int], asked: Iterable[int] | None = None) -> Payload:
        """Run the setup honestly with these clients, or with those of them that are asked; return the list."""
        for client in clients:
            self.all[client].ask("keys", self.keys())
        listed = self.list_of(clients)
        for client in asked or clients:
            self.all[client].ask("shares", listed)
        for client in asked or clients:
            self.all[client].ask("check", self.check(listed, client))
        return listed

    def opened(self) -> list[set[int]]:
        """Return the groups of honest clients whose sums the server can compute by now, each a smallest one."""
        sessions = [session for client in self.honest.values() for session in client.sessions]
        uploads = [each for each in sessions if each.common and self._known(each, sessions, "self")]
        groups = []
        for common in {each.common for each in uploads}:
            those = {each.client: each for each in uploads if each.common == common}
            hidden = {client: self._hidden(each, sessions) for client, each in those.items()}
            while those:
                group, waiting = set[int](), [next(iter(those))]
                while waiting:
                    if (at := waiting.pop()) in group or at not in those:
                        continue
                    group.add(at)
                    waiting.extend(hidden[at])
                if all(hidden[client] <= group for client in group):
                    groups.append(group)
                those = {client: each for client, each in those.items() if client not in group}
        return groups

    def _hidden(self, upload: Session, sessions: list[Session]) -> set[int]:
        """The partners of an upload with whom it shares a mask that the server does not know."""
        if self._known(upload, sessions, "key"):
            return set()
        clients, graph, at = _seat(self.protocol, upload)
        found = set()
        for place in graph.neighbours(at):
            other = clients[place]
            if not upload.completed[place] or other in self.colluding:
                continue
            keys = raw(upload.scratch["mask_keys"])
            number = graph.neighbours(at).index(place)
            key = keys[32 * number : 32 * number + 32]
            theirs = next(each for each in sessions if raw(each.answers["keys"]["mask_key"]) == key)
            if self._known(theirs, sessions, "key") or self._told_pair(theirs, upload):
                continue
            found.add(other)
        return found

    def _told_pair(self, teller: Session, upload: Session) -> bool:
        if teller.told is None or raw(teller.told["common"]) != upload.common:
            return False
        clients, graph, at = _seat(self.protocol, teller)
        place = clients.index(upload.client)
        survivors = unbits(teller.told["survivors"], len(clients))
        completed = unbits(teller.told["completed"], len(clients))
        return place in graph.neighbours(at) and bool(completed[place]) and not survivors[place]

    def _known(self, owner: Session, sessions: list[Session], kind: str) -> bool:
        """Whether the server has enough shares of one of an honest client's secrets."""
        if "shares" not in owner.answers:
            return False
        clients, graph, at = _seat(self.protocol, owner)
        members = {clients[place] for place in graph.members(at)}
        holders = members.intersection(self.colluding)
        for teller in sessions:
            if teller.told is None or teller.listed != owner.listed or teller.client not in members:
                continue
            if teller.client == owner.client:
                holders |= {teller.client} if kind == "self" and teller is owner else set()
                continue
            survivors = bool(unbits(teller.told["survivors"], len(clients))[at])
            completed = bool(unbits(teller.told["completed"], len(clients))[at])
            if completed and survivors == (kind == "self"):
                holders.add(teller.client)
        return len(holders) >= self.protocol.rules(len(clients)).needed

    def smallest(self) -> float:
        """The size of the smallest group that the server can open, less the bound that the protocol promises."""
        least = float("inf")
        for group in self.opened():
            session = next(
                each for client in group for each in self.honest[client].sessions if each.common and each.listed
            )
            clients: list[int] = session.scratch["clients"].tolist()
            bad = len(set(clients).intersection(self.colluding))
            least = min(least, len(group) - (quorum(len(clients), self.protocol.bounds) - bad))
        return least


def _seat(protocol: SecAgg, session: Session) -> tuple[list[int], Graph, int]:
    clients: list[int] = session.scratch["clients"].tolist()
    graph = protocol.rules(len(clients)).graph(session.listed)
    return clients, graph, clients.index(session.client)
