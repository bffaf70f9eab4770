"""The client's side of SecAgg: what it answers in each phase, and the requests that it refuses.

The client believes nothing that the server says about others. What it needs of them, they have signed: their keys of
the round with their long-term keys, and all later statements with a key of the round.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from gossamer.core.bits import bits, expect_bits
from gossamer.core.errors import PayloadError
from gossamer.core.secure import Member, Roster, SumSegment
from gossamer.core.types import Payload, State
from gossamer.core.untrusted import check_names
from gossamer.core.wire import expect
from gossamer.parts.secure import primitives, rules, shamir
from gossamer.parts.secure.primitives import PUBLIC, SEED, SIGNATURE, SIGNED, expect_bytes, pieces, raw, tensor
from gossamer.parts.secure.rules import CHECK, CONSENT, KEYS, PHASES, SHARES, TRAIN, UNMASK, Graph, Place, Rules
from gossamer.parts.secure.shamir import BOX, HASHES, deal, fits

PHASE = "phase"
"""The entry of a scratch with the number of phases that are answered."""

RulesOf = Callable[[int], Rules]
"""Returns the sizes for a number of clients. Raises ``PayloadError`` if the client takes no part in such a round."""

LIST = ("mask_keys", "share_keys", "sign_keys")


def make_keys(member: Member, request: Payload) -> tuple[Payload, State]:
    """Answer ``keys`` with three signed public keys. The scratch of an earlier round does not matter."""
    check_names(request, ("nonce", "roster"))
    place = Place(member.topic, expect_bytes(request, "nonce", SEED), expect_bytes(request, "roster", PUBLIC))
    if place.roster != member.roster.digest:
        raise PayloadError("the server has another roster of clients and keys than this client: it takes no part")
    mask, share, sign = shamir.packed(shamir.drawn(1)), primitives.fresh(), primitives.fresh()
    public = _public_keys(place.nonce, mask, share, sign)
    signature = member.sign(place.keys_claim(member.client, b"".join(public)))
    answer = {name.removesuffix("s"): tensor(key) for name, key in zip(LIST, public, strict=True)}
    scratch = {"topic": member.topic, "nonce": place.nonce, "roster": place.roster}
    secrets = {"mask_seed": mask, "share_seed": share, "sign_seed": sign}
    kept = {name: tensor(value) for name, value in (scratch | secrets).items()}
    return answer | {"signature": tensor(signature)}, kept | {PHASE: torch.tensor([PHASES.index(KEYS) + 1])}


def _public_keys(nonce: bytes, mask: bytes, share: bytes, sign: bytes) -> tuple[bytes, bytes, bytes]:
    keys = (primitives.private_key(mask, nonce, "mask"), primitives.private_key(share, nonce, "share"))
    one, two = map(primitives.public_bytes, keys)
    return one, two, primitives.public_bytes(primitives.signing_key(sign, nonce))


def share_secrets(member: Member, request: Payload, scratch: State, rules_of: RulesOf) -> tuple[Payload, State]:
    """Answer ``shares``: a dealing of both secrets, with the values of each neighbour in a sealed box."""
    clients, keys = _read_list(member, request, scratch, rules_of)
    listed = _place(scratch).listed(
        clients, *keys.values(), expect_bytes(request, "signatures", SIGNATURE * len(clients))
    )
    sizes, at = rules_of(len(clients)), clients.index(member.client)
    graph = sizes.graph(listed)
    members, others = graph.members(at), graph.neighbours(at)
    self_seed = shamir.packed(shamir.drawn(1))
    dealing = deal(
        rules.dealer_context(listed, member.client), self_seed, raw(scratch["mask_seed"]), sizes.needed, sizes.members
    )
    plain = dict(zip(members, dealing.plain, strict=True))
    public = {name: [each[PUBLIC * other : PUBLIC * other + PUBLIC] for other in others] for name, each in keys.items()}
    private = _private(scratch, "share")
    secrets = [primitives.agree(private, key) for key in public["share_keys"]]
    boxes = zip(others, secrets, strict=True)
    sealed = [primitives.seal(secret, listed, member.client, clients[other], plain[other]) for other, secret in boxes]
    kept = {
        "clients": torch.tensor(clients),
        "listed": tensor(listed),
        "sign_keys": tensor(keys["sign_keys"]),
        "mask_keys": tensor(b"".join(public["mask_keys"])),
        "box_secrets": tensor(b"".join(secrets)),
        "self_seed": tensor(self_seed),
        "own_share": tensor(plain[at][:SEED]),
        PHASE: torch.tensor([PHASES.index(SHARES) + 1]),
    }
    answer = {"sealed": b"".join(sealed), "hashes": dealing.hashes, "line": dealing.line}
    return {name: tensor(value) for name, value in answer.items()}, scratch | kept


def _read_list(
    member: Member, request: Payload, scratch: State, rules_of: RulesOf
) -> tuple[list[int], dict[str, bytes]]:
    """Return the clients of the round and their keys. Refuse a list with anything that its clients have not signed."""
    check_names(request, ("clients", *LIST, "signatures"))
    array = request.get("clients")
    count = 0 if array is None else array.numel()
    clients: list[int] = expect(request, "clients", torch.int64, count).tolist()
    if clients != sorted(set(clients)) or (clients and clients[0] < 0):
        shown = ", ".join(map(str, clients[:8])) + (", ..." if len(clients) > 8 else "") or "none"
        raise PayloadError(f"the list must have different clients in ascending order, got {shown}")
    rules_of(count)
    keys = {name: expect_bytes(request, name, PUBLIC * count) for name in LIST}
    signatures = expect_bytes(request, "signatures", SIGNATURE * count)
    place, split = _place(scratch), {name: pieces(each, PUBLIC) for name, each in keys.items()}
    seeds = [raw(scratch[name]) for name in ("mask_seed", "share_seed", "sign_seed")]
    own = [each[clients.index(member.client)] for each in split.values()] if member.client in clients else []
    if own != list(_public_keys(place.nonce, *seeds)):
        raise PayloadError("this client is not in the list with the keys that it sent")
    if len({*split["mask_keys"], *split["share_keys"]}) < 2 * count:
        raise PayloadError("two clients have the same public key")
    joined = tuple(b"".join(each) for each in zip(*split.values(), strict=True))
    if (wrong := _unsigned(member.roster, place, tuple(clients), joined, signatures)) is not None:
        raise PayloadError(f"the keys of client {wrong} are not signed with its key on the roster")
    return clients, keys


@lru_cache(maxsize=4)
def _unsigned(
    roster: Roster, place: Place, clients: tuple[int, ...], keys: tuple[bytes, ...], signatures: bytes
) -> int | None:
    """Return a client whose signature of its keys is not valid; none if all are. Simulated clients share the answer."""
    given = zip(clients, keys, pieces(signatures, SIGNATURE), strict=True)
    wrong = (client for client, own, sign in given if not roster.verify(client, place.keys_claim(client, own), sign))
    return next(wrong, None)


def _place(scratch: State) -> Place:
    return Place(*(raw(scratch[name]) for name in ("topic", "nonce", "roster")))


def _private(scratch: State, name: str) -> Any:
    """Return the private X25519 key for masks or for shares."""
    return primitives.private_key(raw(scratch[f"{name}_seed"]), raw(scratch["nonce"]), name)


class _Seat:
    """This client's place in the list of a round, as its scratch says."""

    def __init__(self, client: int, scratch: State, rules_of: RulesOf) -> None:
        self.client, self.scratch = client, scratch
        self.clients: list[int] = scratch["clients"].tolist()
        self.listed, self.rules = raw(scratch["listed"]), rules_of(len(self.clients))
        self.graph: Graph = self.rules.graph(self.listed)
        self.at = self.clients.index(client)
        self.others = self.graph.neighbours(self.at)

    def expect_sound(self, request: Payload, name: str, what: str) -> Tensor:
        """Return flags of clients in a request. Refuse them if they are too few, or would leave a group alone."""
        there = expect_bits(request, name, len(self.clients))
        if not there[self.at]:
            raise PayloadError(f"this client is not among those that {what}")
        if (left := int(there.sum())) < self.rules.fewest:
            raise PayloadError(f"{left} of {len(self.clients)} clients {what}, {self.rules.fewest} are needed")
        if problem := self.graph.sound(there.numpy(), self.rules.needed):
            raise PayloadError(f"of the clients that {what}, {problem}")
        return there

    def sign(self, claim: bytes) -> Tensor:
        """Return the signature of a claim with the key of this round."""
        private = primitives.signing_key(raw(self.scratch["sign_seed"]), raw(self.scratch["nonce"]))
        return tensor(primitives.sign(private, claim))

    def check_signed(self, claim: bytes, there: Tensor, request: Payload, what: str) -> None:
        """Refuse a request unless its signatures are those of a claim by each of these clients."""
        places = torch.nonzero(there).flatten().tolist()
        signatures = expect_bytes(request, "signatures", SIGNED * len(places))
        if (wrong := _unsigned_claim(raw(self.scratch["sign_keys"]), tuple(places), claim, signatures)) is not None:
            raise PayloadError(f"client {self.clients[wrong]} has not signed {what}")


@lru_cache(maxsize=8)
def _unsigned_claim(keys: bytes, places: tuple[int, ...], claim: bytes, signatures: bytes) -> int | None:
    """Return a place whose signature of a claim is not valid; none if all are. Simulated clients share the answer."""
    public, found = pieces(keys, PUBLIC), pieces(signatures, SIGNED)
    given = zip(places, found, strict=True)
    return next((at for at, signature in given if not primitives.signed_by(public[at], claim, signature)), None)


def check_shares(member: Member, request: Payload, scratch: State, rules_of: RulesOf) -> tuple[Payload, State]:
    """Answer ``check``: of which neighbours the shares are good. Only those are kept."""
    check_names(request, ("dealt", "sealed", "hashes", "lines"))
    seat = _Seat(member.client, scratch, rules_of)
    dealt = expect_bits(request, "dealt", len(seat.others)).tolist()
    dealers = [other for other, there in zip(seat.others, dealt, strict=True) if there]
    boxes, hashes = (
        pieces(expect_bytes(request, name, size * len(dealers)), size)
        for name, size in (("sealed", BOX), ("hashes", HASHES))
    )
    lines = shamir.elements(expect_bytes(request, "lines", 2 * SEED * len(dealers)))
    if lines is None:
        raise PayloadError("'lines' has a number that is not in the field")
    secrets = dict(zip(seat.others, pieces(raw(scratch["box_secrets"]), PUBLIC), strict=True))
    good, shares = dict.fromkeys(seat.others, False), []
    for number, dealer in enumerate(dealers):
        sender, point = seat.clients[dealer], seat.graph.point(dealer, seat.at)
        plain = primitives.unseal(secrets[dealer], seat.listed, sender, member.client, boxes[number])
        context, (d, z) = rules.dealer_context(seat.listed, sender), lines[2 * number : 2 * number + 2]
        if plain is not None and fits(context, point, plain, hashes[number], d, z):
            good[dealer] = True
            shares.append(plain[: 2 * SEED])
    answer = {"good": bits(torch.tensor([good[dealer] for dealer in dealers], dtype=torch.bool))}
    kept = {"good": bits(torch.tensor(list(good.values()), dtype=torch.bool)), "shares": tensor(b"".join(shares))}
    return answer, scratch | kept | {PHASE: torch.tensor([PHASES.index(CHECK) + 1])}


def mask(
    values: Tensor,
    segments: Sequence[SumSegment],
    client: int,
    request: Payload,
    models: bytes,
    scratch: State,
    rules_of: RulesOf,
) -> Payload:
    """Return the values with the self mask and the masks shared with the neighbours that have completed the setup."""
    check_names(request, ("completed",))
    seat = _Seat(client, scratch, rules_of)
    completed = seat.expect_sound(request, "completed", "have completed the setup")
    rings = primitives.rings(segments, len(seat.clients))
    common = rules.common_digest(seat.listed, bits(completed), rules.inputs_digest(rings, segments, models))
    lanes = primitives.lanes_of(values, segments, rings)
    primitives.add_mask(lanes, primitives.self_mask(raw(scratch["self_seed"]), common, client), 1)
    private = _private(scratch, "mask")
    for other, public in zip(seat.others, pieces(raw(scratch["mask_keys"]), PUBLIC), strict=True):
        if completed[other]:
            key = primitives.pair_mask(private, public, common, client, seat.clients[other])
            primitives.add_mask(lanes, key, primitives.pair_sign(client, seat.clients[other]))
    primitives.reduce(lanes, rings)
    return {
        "masked": primitives.packed(lanes, rings),
        "common": tensor(common),
        "signature": seat.sign(rules.upload_claim(common)),
    }


def agree(member: Member, request: Payload, scratch: State, rules_of: RulesOf) -> tuple[Payload, State]:
    """Answer ``consent``: sign the list of survivors, each of whom has signed an upload from the same inputs.

    The client's own signature is among them, and it signs one upload per round. So the request tells it no less than
    what it has trained and sent.
    """
    check_names(request, ("completed", "inputs", "survivors", "signatures"))
    seat = _Seat(member.client, scratch, rules_of)
    completed = expect_bits(request, "completed", len(seat.clients))
    survivors = seat.expect_sound(request, "survivors", "have sent an upload")
    if bool((survivors & ~completed).any()):
        raise PayloadError("a client that has not completed the setup is called a survivor")
    packed = bits(completed)
    common = rules.common_digest(seat.listed, packed, expect_bytes(request, "inputs", PUBLIC))
    seat.check_signed(
        rules.upload_claim(common), survivors, request, "an upload from the same list, model and kind of values"
    )
    kept = {"completed": packed, "survivors": bits(survivors), "common": tensor(common)}
    kept |= {PHASE: torch.tensor([PHASES.index(CONSENT) + 1])}
    return {"signature": seat.sign(rules.consent_claim(common, bits(survivors)))}, scratch | kept


def reveal(member: Member, request: Payload, scratch: State, rules_of: RulesOf) -> tuple[Payload, State]:
    """Answer ``unmask``: one share per neighbour, of the secret that removes masks. The scratch is spent afterwards.

    Only one list of survivors can have a quorum. So all clients reveal shares of the same secret of each client.
    """
    check_names(request, ("signers", "signatures"))
    seat = _Seat(member.client, scratch, rules_of)
    signers, common = expect_bits(request, "signers", len(seat.clients)), raw(scratch["common"])
    if (agreed := int(signers.sum())) < seat.rules.quorum:
        raise PayloadError(f"{agreed} clients have signed the list of survivors, {seat.rules.quorum} are needed")
    seat.check_signed(rules.consent_claim(common, scratch["survivors"]), signers, request, "the list of survivors")
    flags = {name: expect_bits(scratch, name, len(seat.clients)) for name in ("completed", "survivors")}
    kept, good = iter(pieces(raw(scratch["shares"]), 2 * SEED)), expect_bits(scratch, "good", len(seat.others)).tolist()
    mask_keys = pieces(raw(scratch["mask_keys"]), PUBLIC)
    shares, pairs, private = [raw(scratch["own_share"])], list[bytes](), _private(scratch, "mask")
    for other, public, there in zip(seat.others, mask_keys, good, strict=True):
        share = next(kept) if there else b""
        if not flags["completed"][other]:
            continue
        if flags["survivors"][other]:
            shares.append(share[:SEED])
        else:
            shares.append(share[SEED:])
            pairs.append(primitives.pair_mask(private, public, common, member.client, seat.clients[other]))
    answer = {"shares": tensor(b"".join(shares)), "pairs": tensor(b"".join(pairs))}
    return answer, {PHASE: torch.tensor([len(PHASES)])}


def check_phase(phase: str, scratch: State) -> None:
    """Raise ``PayloadError`` unless the scratch is that of a client which has answered all earlier phases, once."""
    done, at = int(scratch[PHASE]) if PHASE in scratch else 0, PHASES.index(phase)
    before = PHASES.index(TRAIN) if phase == CONSENT else at  # an upload does not change the scratch
    if done > before:
        raise PayloadError(f"a second request in the phase {phase!r}: each one is answered once")
    if done < before:
        raise PayloadError(f"a request in the phase {phase!r}, before {PHASES[done]!r} was answered")


STEPS = {SHARES: share_secrets, CHECK: check_shares, CONSENT: agree, UNMASK: reveal}
"""What answers each phase after the first."""
