"""Clients that help the server subtract their own noise: what is left is at least what the guarantee states."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from gossamer.core.codec import Codec, Coding
from gossamer.core.privacy import Participation
from gossamer.core.random import key
from gossamer.core.types import Layout
from gossamer.parts.codecs import DiscreteGaussian, PoissonBinomial, Skellam

CLIENTS, SIZE, CLIP, NOISE = 20, 1 << 14, 1.0, 3.0
LOST, HELPING = 2, 4


def attacked(codec: Codec) -> Tensor:
    """What the server knows about the honest updates, which are all zero, after a round with real noise.

    Two honest clients are lost. Secure aggregation reveals the sum of the others; four of them tell the server what
    they have sent.
    """
    layout, at = Layout.of({"w": torch.zeros(SIZE)}), key(3)
    survivors = range(LOST, CLIENTS)
    sent = [codec.encode(torch.zeros(SIZE), Coding(layout, at, client=client)) for client in survivors]
    values = [codec.to_sum(payload, Coding(layout, at)).double() for payload in sent]
    known = torch.stack(values[-HELPING:]).sum(0)
    honest, count = torch.stack(values).sum(0) - known, len(values) - HELPING
    return codec.from_sum(honest / count, Coding(layout, at)).double() * count


def bound(codec: Any) -> Any:
    network = SimpleNamespace(outline=lambda: {"w": torch.zeros(SIZE)}, secure_noise=True)
    return codec.bind(SimpleNamespace(exchange=SimpleNamespace(codec=codec, secure="a protocol"), network=network))


@pytest.mark.parametrize("kind", [DiscreteGaussian, Skellam])
def test_the_noise_of_honest_clients_is_that_of_the_statement(kind: Any) -> None:
    given = {"clip": CLIP, "noise_multiplier": NOISE, "clients": CLIENTS, "dropouts": LOST / CLIENTS}
    # Four standard deviations of the variance of so many entries.
    error = 4 * math.sqrt(2 / SIZE)
    left = attacked(bound(kind(**given, colluding=HELPING / CLIENTS)))
    assert float(left.var()) >= (NOISE * CLIP) ** 2 * (1 - error)
    naive = attacked(bound(kind(**given)))  # counts the clients that help as honest
    assert float(naive.var()) < (NOISE * CLIP) ** 2 * (1 - error)


def test_the_bits_of_honest_clients_are_those_of_the_statement() -> None:
    """Each honest client's bits have the variance of fair coins; the bits of the others are known."""
    theta, spread = 0.02, 4.0
    given: dict[str, Any] = {"clip": CLIP, "theta": theta, "spread": spread, "dropouts": LOST / CLIENTS}
    codec = bound(PoissonBinomial(**given, colluding=HELPING / CLIENTS))
    left = attacked(codec)
    honest = CLIENTS - LOST - HELPING
    of_coins = honest / 4 * (CLIP * spread / math.sqrt(SIZE) / theta) ** 2
    assert float(left.var()) >= of_coins * (1 - 4 * math.sqrt(2 / SIZE))
    pytest.importorskip("dp_accounting")
    stated = codec.guarantee(Participation(CLIENTS, CLIENTS, "all", 1))
    assert f"sums of {honest} or more honest clients" in stated.protects_from
    assert f"the help of {HELPING} of the {CLIENTS} clients" in stated.protects_from
