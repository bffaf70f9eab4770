"""The server's side of a round of SecAgg. It adds masked vectors as they arrive, and removes the masks at the end."""

import threading
from collections.abc import Sequence
from hashlib import blake2b

import torch
from torch import Tensor

from gossamer.core.bits import bits, expect_bits
from gossamer.core.errors import PayloadError
from gossamer.core.secure import Ring, SecureRound, TooFewClientsError
from gossamer.core.types import Payload
from gossamer.core.untrusted import check_names
from gossamer.parts.secure import primitives
from gossamer.parts.secure.masks import add_mask, add_packed, joined, reduce, zeros
from gossamer.parts.secure.primitives import PUBLIC, SEALED, SEED, Share
from gossamer.parts.secure.rules import KEYS, PHASES, SHARES, TRAIN, UNMASK, Rules, expect_bytes, pieces, tensor

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


class SecAggRound(SecureRound):
    """One round of SecAgg at the server. See ``gossamer.parts.secure.secagg``.

    Args:
        rules: the sizes of the protocol
        graph: the neighbours of each client
        rings: the rings of the vectors
    """

    def __init__(self, rules: Rules, graph: dict[int, list[int]], rings: Sequence[Ring]) -> None:
        self.rules, self.graph, self.rings = rules, graph, rings
        self.nonce = primitives.fresh()
        self._phase = ""
        self._asked: set[int] = set()
        self._answered = set(graph)
        self._keys: dict[int, tuple[bytes, bytes]] = {}
        self._told: dict[int, list[int]] = {}
        self._sealed: dict[tuple[int, int], bytes] = {}
        self._commitments: dict[int, bytes] = {}
        self._completed: set[int] = set()
        self._survivors: set[int] = set()
        self._shares: dict[int, list[Share]] = {}
        self._suspects: set[int] = set()
        self._lanes = zeros(rings)
        self._total: Tensor | None = None

    def open_phase(self, phase: str) -> list[int]:
        """Begin a phase. A client with too few neighbours left is not asked in ``shares`` and ``train``."""
        if (expected := self._following()) != phase:
            raise ValueError(f"expected the phase {expected!r}, got {phase!r}")
        left = sorted(self._answered)
        if phase in (SHARES, TRAIN):
            left = self._connected(left)
        self._check_quorum(len(left))
        if phase == SHARES:
            there = set(left)
            self._told = {client: [other for other in self.graph[client] if other in there] for client in left}
        elif phase == TRAIN:
            self._completed = set(left)
        elif phase == UNMASK:
            self._survivors = set(left)
            self._check_members()
            self._shares = {client: [] for client in self._completed}
        self._phase, self._asked, self._answered = phase, set(left), set()
        return left

    def _following(self) -> str | None:
        return dict(zip(("", *PHASES), (*PHASES, None), strict=True))[self._phase]

    def _connected(self, clients: list[int]) -> list[int]:
        """Return the clients that have enough neighbours among each other."""
        left = set(clients)
        while few := {client for client in left if len(left.intersection(self.graph[client])) + 1 < self.rules.needed}:
            left -= few
        return sorted(left)

    def _check_quorum(self, left: int) -> None:
        if left >= self.rules.quorum:
            return
        answered = len(self._answered)
        alone = f", of which {left} have enough neighbours left" if answered >= self.rules.quorum else ""
        raise TooFewClientsError(
            f"secure aggregation: {answered} of {self.rules.clients} clients answered in the phase"
            f" {self._phase!r}{alone}; {self.rules.quorum} are needed: {ADVICE}"
        )

    def _check_members(self) -> None:
        """Raise ``TooFewClientsError`` if a secret cannot be reconstructed even if all survivors answer."""
        for client in sorted(self._completed):
            self._check_shares(client, len(self._holders(client).intersection(self._survivors)), TRAIN)

    def _holders(self, client: int) -> set[int]:
        return {client, *self._told[client]}

    def _check_shares(self, client: int, held: int, phase: str) -> None:
        if held < self.rules.needed:
            raise TooFewClientsError(
                f"secure aggregation: {held} of the {self.rules.degree + 1} clients with shares of client {client}"
                f" answered in the phase {phase!r}; {self.rules.needed} are needed: {ADVICE}"
            )

    def request(self, client: int) -> Payload:
        """Return the request of the current phase to a client."""
        if self._phase == KEYS:
            return {"nonce": tensor(self.nonce), "clients": torch.tensor([self.rules.clients])}
        told = self._told[client]
        if self._phase == SHARES:
            mask, share = (b"".join(self._keys[other][which] for other in told) for which in (0, 1))
            return {
                "neighbours": torch.tensor(told, dtype=torch.int64),
                "mask_keys": tensor(mask),
                "share_keys": tensor(share),
            }
        if self._phase == TRAIN:
            return {"completed": _flags(told, self._completed)}
        named = [other for other in told if other in self._completed]
        return {
            "survivors": _flags(told, self._survivors),
            "dropped": _flags(told, self._completed - self._survivors),
            "sealed": tensor(b"".join(self._sealed[other, client] for other in named)),
        }

    def accept(self, client: int, answer: Payload) -> None:
        """Take the answer of a client, if it is well formed and the first one."""
        if client not in self._asked:
            raise PayloadError(f"client {client} was not asked in the phase {self._phase!r}")
        if client in self._answered:
            raise PayloadError(f"a second answer of client {client} in the phase {self._phase!r}")
        {
            KEYS: self._accept_keys,
            SHARES: self._accept_shares,
            TRAIN: self._accept_vector,
            UNMASK: self._accept_secrets,
        }[self._phase](client, answer)
        self._answered.add(client)

    def _accept_keys(self, client: int, answer: Payload) -> None:
        check_names(answer, ("mask_key", "share_key"))
        mask, share = (expect_bytes(answer, name, PUBLIC) for name in ("mask_key", "share_key"))
        trial = primitives.private_key(primitives.fresh(), self.nonce, "trial")
        for key in (mask, share):
            primitives.agree(trial, key)  # a key of low order is refused here
        SEEN.add(mask, share)
        self._keys[client] = mask, share

    def _accept_shares(self, client: int, answer: Payload) -> None:
        check_names(answer, ("sealed", "commitment"))
        told = self._told[client]
        sealed = pieces(expect_bytes(answer, "sealed", SEALED * len(told)), SEALED)
        self._commitments[client] = expect_bytes(answer, "commitment", PUBLIC)
        self._sealed |= {(client, other): box for other, box in zip(told, sealed, strict=True)}

    def _accept_vector(self, client: int, answer: Payload) -> None:
        check_names(answer, ("masked",))
        add_packed(self._lanes, self.rings, answer, "masked")

    def _accept_secrets(self, client: int, answer: Payload) -> None:
        check_names(answer, ("shares", "readable"))
        named = [other for other in self._told[client] if other in self._completed]
        readable = expect_bits(answer, "readable", len(named)).tolist()
        owners = [client, *(other for other, there in zip(named, readable, strict=True) if there)]
        shares = pieces(expect_bytes(answer, "shares", SEED * len(owners)), SEED)
        for owner, share in zip(owners, shares, strict=True):
            self._shares[owner].append((client, share))

    @property
    def summed(self) -> list[int]:
        """The clients that have answered in ``train``."""
        return sorted(self._answered if self._phase == TRAIN else self._survivors)

    def total(self) -> Tensor:
        """Return the sum. All secrets are reconstructed before the first mask is removed."""
        if self._phase != UNMASK:
            raise ValueError(f"the sum is known after the phase 'unmask', not in {self._phase!r}")
        if self._total is None:
            secrets = {client: self._reconstructed(client) for client in sorted(self._completed)}
            for client, secret in secrets.items():
                self._remove_masks(client, secret)
            reduce(self._lanes, self.rings)
            self._total = joined(self._lanes)
        return self._total

    def _reconstructed(self, client: int) -> bytes:
        """Return the self-mask seed of a survivor, or the key seed of a client that was lost after ``shares``."""
        held = self._shares[client]
        self._check_shares(client, len(held), UNMASK)
        members = {member: at for at, member in enumerate(sorted(self._holders(client)))}
        held = sorted(held, key=lambda share: share[0] in self._suspects)
        for chosen in primitives.attempts(held, self.rules.needed):
            secret = primitives.combine((members[member], share) for member, share in chosen)
            if self._fits(client, secret):
                if chosen != held[: self.rules.needed]:
                    self._suspects |= {member for member, _ in held} - {member for member, _ in chosen}
                return secret
        raise TooFewClientsError(
            f"secure aggregation: {len(held)} shares of client {client} arrived, but no {self.rules.needed} of them fit"
            f" what it sent in {SHARES!r}: client {client}, or some of its neighbours, sent wrong shares"
        )

    def _fits(self, client: int, secret: bytes) -> bool:
        if client in self._survivors:
            return primitives.commitment(secret, self.nonce, client) == self._commitments[client]
        return primitives.public_bytes(primitives.private_key(secret, self.nonce, "mask")) == self._keys[client][0]

    def _remove_masks(self, client: int, secret: bytes) -> None:
        """Subtract the self mask of a survivor, or the masks that survivors share with a lost client."""
        if client in self._survivors:
            add_mask(self._lanes, primitives.self_mask(secret, self.nonce, client), -1)
            return
        private = primitives.private_key(secret, self.nonce, "mask")
        for other in self._survivors.intersection(self._told[client]):
            key = primitives.pair_mask(private, self._keys[other][0], self.nonce, client, other)
            add_mask(self._lanes, key, -primitives.pair_sign(other, client))


def _flags(clients: Sequence[int], chosen: set[int]) -> Tensor:
    return bits(torch.tensor([client in chosen for client in clients], dtype=torch.bool))
