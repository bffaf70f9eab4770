"""The client's side of SecAgg: what it answers in each phase, and the requests that it refuses."""

import torch
from torch import Tensor

from gossamer.core.bits import bits, expect_bits
from gossamer.core.errors import PayloadError
from gossamer.core.types import Payload, State
from gossamer.core.untrusted import check_names
from gossamer.core.wire import expect
from gossamer.parts.secure import primitives
from gossamer.parts.secure.masks import Lane, add_mask
from gossamer.parts.secure.primitives import PUBLIC, SEALED, SEED
from gossamer.parts.secure.rules import KEYS, PHASES, SHARES, Rules, expect_bytes, pieces, raw, tensor

PHASE = "phase"
SPENT = len(PHASES)


def make_keys(nonce: bytes, rules: Rules) -> tuple[Payload, State]:
    """Answer ``keys`` with two new public keys. The scratch of an earlier round does not matter."""
    mask, share = primitives.fresh(), primitives.fresh()
    answer = {
        "mask_key": primitives.public_bytes(primitives.private_key(mask, nonce, "mask")),
        "share_key": primitives.public_bytes(primitives.private_key(share, nonce, "share")),
    }
    secrets = {"nonce": tensor(nonce), "mask_seed": tensor(mask), "share_seed": tensor(share)}
    return {name: tensor(key) for name, key in answer.items()}, {
        PHASE: torch.tensor([PHASES.index(KEYS) + 1]),
        "clients": torch.tensor([rules.clients]),
        **secrets,
    }


def share_secrets(client: int, request: Payload, scratch: State, rules: Rules) -> tuple[Payload, State]:
    """Answer ``shares``: encrypted shares of both secrets to each neighbour, and a commitment to the self mask."""
    known = _read_neighbours(client, request, scratch, rules)
    nonce, seed = raw(scratch["nonce"]), primitives.fresh()
    members = sorted([*known, client])
    seeds, keys = (primitives.split(each, rules.needed, len(members)) for each in (seed, raw(scratch["mask_seed"])))
    shares = {member: one + other for member, one, other in zip(members, seeds, keys, strict=True)}
    secrets = _share_secrets(scratch, {other: public for other, (_, public) in known.items()})
    sealed = [primitives.seal(secrets[other], nonce, client, other, shares[other]) for other in known]
    answer = {
        "sealed": tensor(b"".join(sealed)),
        "commitment": tensor(primitives.commitment(seed, nonce, client)),
    }
    found = {"self_seed": tensor(seed), "own_shares": tensor(shares[client]), **request}
    return answer, scratch | found | {PHASE: torch.tensor([PHASES.index(SHARES) + 1])}


def _read_neighbours(client: int, request: Payload, scratch: State, rules: Rules) -> dict[int, tuple[bytes, bytes]]:
    """Return the two public keys of each neighbour."""
    check_names(request, ("neighbours", "mask_keys", "share_keys"))
    array = request.get("neighbours")
    count = 0 if array is None else array.numel()
    others = expect(request, "neighbours", torch.int64, count).tolist()
    mask, share = (pieces(expect_bytes(request, name, PUBLIC * count), PUBLIC) for name in ("mask_keys", "share_keys"))
    if others != sorted(set(others)) or client in others or (others and others[0] < 0):
        raise PayloadError(f"neighbours must be other clients in ascending order, got {_listed(others)}")
    if not rules.needed <= count + 1 <= rules.degree + 1:
        raise PayloadError(
            f"{count} neighbours, expected {rules.needed - 1} to {rules.degree} in a cohort of {rules.clients:,}"
        )
    own = [primitives.public_bytes(key) for key in _private_keys(scratch)]
    if len({*mask, *share, *own}) < 2 * count + 2:
        raise PayloadError("two clients have the same public key")
    return dict(zip(others, zip(mask, share, strict=True), strict=True))


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:8])) + (", ..." if len(numbers) > 8 else "") or "none"


def _private_keys(scratch: State) -> tuple[object, object]:
    """Return the private keys for masks and for shares."""
    nonce = raw(scratch["nonce"])
    mask, share = (primitives.private_key(raw(scratch[f"{name}_seed"]), nonce, name) for name in ("mask", "share"))
    return mask, share


def _share_secrets(scratch: State, public: dict[int, bytes]) -> dict[int, bytes]:
    """Return the secret that encrypts shares, for each of these clients."""
    _, private = _private_keys(scratch)
    return {other: primitives.agree(private, key) for other, key in public.items()}


def _neighbours(scratch: State) -> list[int]:
    found: list[int] = scratch["neighbours"].tolist()
    return found


def mask(lanes: list[Lane], client: int, request: Payload, scratch: State, rules: Rules) -> None:
    """Add the self mask, and the masks shared with the neighbours that have completed ``shares``."""
    check_names(request, ("completed",))
    others = _neighbours(scratch)
    completed = expect_bits(request, "completed", len(others)).tolist()
    if sum(completed) + 1 < rules.needed:
        raise PayloadError(
            f"{sum(completed)} neighbours have completed 'shares', {rules.needed - 1} are needed: masks of so few"
            " clients could be removed without this client"
        )
    nonce, (private, _) = raw(scratch["nonce"]), _private_keys(scratch)
    add_mask(lanes, primitives.self_mask(raw(scratch["self_seed"]), nonce, client), 1)
    for other, key, there in zip(others, pieces(raw(scratch["mask_keys"]), PUBLIC), completed, strict=True):
        if there:
            sign = primitives.pair_sign(client, other)
            add_mask(lanes, primitives.pair_mask(private, key, nonce, client, other), sign)


def reveal(client: int, request: Payload, scratch: State, rules: Rules) -> tuple[Payload, State]:
    """Answer ``unmask``: for each neighbour, the share of one of its two secrets. The scratch is spent afterwards."""
    check_names(request, ("survivors", "dropped", "sealed"))
    others, nonce = _neighbours(scratch), raw(scratch["nonce"])
    survivors, dropped = (expect_bits(request, name, len(others)) for name in ("survivors", "dropped"))
    _check_lists(others, survivors, dropped, rules)
    named = [at for at, there in enumerate((survivors | dropped).tolist()) if there]
    sealed = pieces(expect_bytes(request, "sealed", SEALED * len(named)), SEALED)
    keys = pieces(raw(scratch["share_keys"]), PUBLIC)
    secrets = _share_secrets(scratch, {others[at]: keys[at] for at in named})
    found = []
    for at, box in zip(named, sealed, strict=True):
        plain = primitives.unseal(secrets[others[at]], nonce, others[at], client, box)
        found.append(None if plain is None else plain[:SEED] if survivors[at] else plain[SEED:])
    shares = [raw(scratch["own_shares"])[:SEED], *(share for share in found if share is not None)]
    readable = bits(torch.tensor([share is not None for share in found], dtype=torch.bool))
    return {"shares": tensor(b"".join(shares)), "readable": readable}, {PHASE: torch.tensor([SPENT])}


def _check_lists(others: list[int], survivors: Tensor, dropped: Tensor, rules: Rules) -> None:
    if bool((both := survivors & dropped).any()):
        who = [other for other, there in zip(others, both.tolist(), strict=True) if there]
        raise PayloadError(
            f"clients called both survivors and dropped: {_listed(who)}; with both secrets the server could unmask them"
        )
    if int(survivors.sum()) + 1 < rules.needed:
        raise PayloadError(
            f"{int(survivors.sum())} neighbours are called survivors, {rules.needed - 1} are needed: the sum would be"
            " of too few clients"
        )


def check_phase(phase: str, scratch: State) -> None:
    """Raise ``PayloadError`` unless the scratch is that of a client which has answered all earlier phases, once."""
    done = int(scratch[PHASE]) if PHASE in scratch else 0
    at = PHASES.index(phase)
    # The scratch does not change in ``train``, so that ``unmask`` follows ``shares``.
    if done == SPENT or done > at:
        raise PayloadError(f"a second request in the phase {phase!r}: each one is answered once")
    if done < min(at, PHASES.index(SHARES) + 1):
        raise PayloadError(f"a request in the phase {phase!r}, before {PHASES[done]!r} was answered")
