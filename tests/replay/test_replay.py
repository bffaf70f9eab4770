"""The library computes what it computed when it was recorded: models, memories, messages and metrics of every case."""

import inspect
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from gossamer.methods import METHODS
from gossamer.parts import (
    adapters,
    channels,
    codecs,
    downlinks,
    parametrizations,
    samplers,
    schedules,
    servers,
    solvers,
    views,
)
from gossamer.parts.attacks import ATTACKS
from gossamer.parts.servers import robust
from replay.cases import CASES, METHOD_CASES
from replay.compare import compare
from replay.recorder import Fresh, Recording, about, differences, fresh, read, release

PACKAGES = (
    adapters, channels, codecs, downlinks, parametrizations, robust, samplers, schedules, servers, solvers, views,
)  # fmt: skip

NOT_COVERED = {"Peft", "LossProbe"}
"""Parts that no case names: PEFT is an optional package, and its adapter trains the same matrices as ``LoRA``. The loss
probe is part of the sampler ``PowerOfChoice``, which has cases and does not print it."""

NO_PARTS = {"Aggregate", "Coding", "Pool", "Sum"}
"""Values that parts compute with."""


@pytest.fixture(scope="module")
def recorded() -> Recording:
    return read()


@pytest.fixture(scope="module")
def current() -> Fresh:
    if release() != about().get("torch"):
        pytest.skip(f"nothing was recorded with torch {release()}: other releases may round otherwise")
    now = fresh(list(CASES))
    if now.rounding != about()["rounding"]:
        pytest.skip("this CPU rounds otherwise than the one of the record")
    return now


@pytest.mark.parametrize("case", CASES)
def test_replay(current: Fresh, recorded: Recording, case: str) -> None:
    assert case not in current.failed, current.failed[case]
    found = compare(current.played[case], recorded[case])
    if (accepted := differences().get(case)) is None:
        assert not found, str(found)
        return
    assert found, f"{case} is in differences.json, and does not differ"
    if accepted["only"] in ("header", "bits"):
        assert not found.beyond, str(found)
        assert not found.metrics, str(found)
    if accepted["only"] == "header":
        assert {what for _, what in found.messages} == {"header only"}, str(found)


def test_cases_and_records_belong_together(recorded: Recording) -> None:
    assert {*recorded} == {*CASES}
    assert {*differences()} <= {*CASES}


def test_no_method_is_missing() -> None:
    assert {*METHOD_CASES} == {*METHODS}


def test_no_part_is_missing() -> None:
    made = " ".join(f"{case.method()} {case.channel} {case.options}" for case in CASES.values())
    missing = {name for package in PACKAGES for name in parts(package) if f"{name}(" not in made}
    assert missing - NO_PARTS == NOT_COVERED
    assert [name for name in ATTACKS if f"'{name}" not in made] == []


def parts(package: ModuleType) -> Iterator[str]:
    """All parts of a package that may be configured: dataclasses that are not abstract."""
    for name in vars(package).get("__all__", dir(package)):
        part: Any = getattr(package, name)
        if inspect.isclass(part) and hasattr(part, "__dataclass_fields__") and not inspect.isabstract(part):
            yield name
