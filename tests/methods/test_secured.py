"""``secured``: what changes so that uploads add up, and which methods are refused, with the reason."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from torch import Tensor

from gossamer import methods
from gossamer.core.errors import ConfigError
from gossamer.core.method import Method
from gossamer.core.secure import Member, Roster, SecureAggregation, SecureRound, SumSegment
from gossamer.core.types import Layout, Payload, State
from gossamer.methods import METHODS, secure_changes, secured
from gossamer.parts.codecs import (
    CommonMaskedNoise,
    Dense,
    Eden,
    Feedback,
    FixedPoint,
    OneBit,
    OnWeights,
    SampledMask,
    StochasticSign,
    Ternary,
)
from gossamer.parts.downlinks import Delta
from gossamer.parts.samplers import PowerOfChoice
from gossamer.parts.servers import Mean, Median, Robust, SumThenDecode
from gossamer.parts.views import MagnitudePruned
from gossamer.testing import bound


@dataclass(frozen=True)
class Stub(SecureAggregation):
    """A protocol that no test runs."""

    def check_cohort(self, clients: int) -> None: ...

    def begin(
        self, clients: Sequence[int], segments: Sequence[SumSegment], topic: bytes, roster: Roster, models: bytes
    ) -> SecureRound:
        raise NotImplementedError

    def answer(self, phase: str, member: Member, request: Payload, scratch: State) -> tuple[Payload, State]:
        raise NotImplementedError

    def protect(
        self,
        values: Tensor,
        segments: Sequence[SumSegment],
        client: int,
        request: Payload,
        models: bytes,
        scratch: State,
    ) -> Payload:
        raise NotImplementedError


SECURABLE = (
    "fedavg",
    "fedsgd",
    "fedprox",
    "fedavgm",
    "fedadagrad",
    "fedadam",
    "fedyogi",
    "fedavg-tuned",
    "ditto",
    "per-fedavg",
    "pfedme",
    "fedmrn",
    "fedmrns",
    "fedpm",
    "ffa-lora",
    "klms",
    "lora",
    "signsgd",
    "z-signfedavg",
    "terngrad",
    "onebit-cs",
    "onebit-cs-paper",
)


@pytest.mark.parametrize("name", SECURABLE)
def test_uploads_of_a_secured_method_add_up(name: str) -> None:
    method, changes = secure_changes(METHODS[name](), Stub())
    assert method.training.secure == Stub()
    assert changes
    found = bound(method.training)
    assert found.server.unsummable() == ""
    layout = Layout.of(found.outline)
    assert sum(segment.size for segment in found.codec.sum_segments(layout)) == found.codec.sum_size(layout)
    again, nothing = secure_changes(method, Stub())
    assert again == method
    assert nothing == []


@pytest.mark.parametrize("name", sorted(METHODS.keys() - set(SECURABLE)))
def test_every_other_method_is_refused_with_a_reason(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^secure aggregation: "):
        secured(METHODS[name](), Stub())


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        (methods.topk(), "TopK sends floats, scales or indices"),
        (methods.eden(), "Eden sends floats, .* use FixedPoint"),
        (methods.drive(), "Drive sends floats"),
        (methods.fedspa(), "PersonalMask.* gives clients different parts"),
        (methods.perm(), "several exchanges per round"),
        (methods.ifca(), "Clusters needs every update"),
        (methods.scaffold(), "ScaffoldSGD sends .* beside the update"),
        (methods.fednova(), "FedNova needs every update"),
        (methods.local(), "clients send no update"),
        (methods.heterofl(), "different parts"),
        (methods.fedavg().with_parts(server=Robust(Median())), "Robust needs every update"),
        (methods.fedavg().with_parts(sampler=PowerOfChoice()), "asks each client for its loss"),
        (methods.fedpm().with_parts(down=Delta()), "sends the uploads on"),
        (methods.onebit_cs(ratio=(0.5, 0.2)), "MagnitudePruned.* gives clients different parts"),
    ],
)
def test_refusals_name_the_part(method: Method, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        secured(method, Stub())


def test_only_what_does_not_add_up_is_changed() -> None:
    method, changes = secure_changes(methods.fedavg(lr=0.2, server_lr=0.5), Stub())
    assert method.codec == FixedPoint()
    assert method.server == Mean("uniform", server_lr=0.5)
    assert changes == [
        f"codec: {Dense()} becomes {FixedPoint()}",
        f"server: {Mean(server_lr=0.5)} becomes {Mean('uniform', server_lr=0.5)}",
    ]
    fixed = OnWeights(StochasticSign(0.03), other=FixedPoint(8))
    method, changes = secure_changes(methods.signsgd(weights="uniform").with_parts(codec=fixed), Stub())
    assert method.codec == fixed
    assert changes == []


def test_scales_are_multiples_of_the_learning_rate() -> None:
    def inner(method: Method) -> object:
        codec = secured(method, Stub()).codec
        assert isinstance(codec, OnWeights)
        assert codec.other == FixedPoint()
        return codec.codec

    for small, large in ((methods.signsgd(lr=0.1), methods.signsgd(lr=0.2)),):
        one, two = inner(small), inner(large)
        assert isinstance(one, StochasticSign)
        assert isinstance(two, StochasticSign)
        assert two.scale == pytest.approx(2 * float(one.scale))
    assert isinstance(inner(methods.terngrad()), Ternary)
    assert inner(methods.signsgd(scale=0.03)) == StochasticSign(0.03)
    assert inner(methods.signsgd(scale=0.03, feedback=True)) == Feedback(StochasticSign(0.03))
    masks = inner(methods.fedmrns(alpha=0.04))
    assert isinstance(masks, CommonMaskedNoise)
    assert masks.signed
    assert masks.alpha == 0.04
    assert not masks.coded
    assert isinstance(secured(methods.fedmrn(), Stub()).server, SumThenDecode)


def test_measurements_keep_their_view_and_lose_their_second_signs() -> None:
    codec = secured(methods.onebit_cs_paper(), Stub()).codec
    assert isinstance(codec, OnWeights)
    assert isinstance(codec.codec, OneBit)
    assert codec.codec.retain == "change"
    assert codec.codec.length == 0.5
    assert isinstance(secured(methods.onebit_cs(), Stub()).view, MagnitudePruned)


def test_models_in_place_of_changes_have_larger_limits() -> None:
    codec = secured(methods.fedpm(coded=True), Stub()).codec
    assert isinstance(codec, OnWeights)
    assert codec.codec == SampledMask()
    assert isinstance(codec.other, FixedPoint)
    assert codec.other.limit > 1


def test_all_reasons_are_given_at_once() -> None:
    method = methods.fedavg().with_parts(codec=OnWeights(Eden()), server=Robust(Median()))
    with pytest.raises(ConfigError) as error:
        secured(method, Stub())
    assert len(error.value.mistakes) == 2
