"""Which methods work with updates from several versions of the model, and which schedules fit a run."""

from typing import Any

import pytest

from gossamer import METHODS, ConfigError, Delta, Method, Options, fedavg, fedmrn, simulate
from gossamer.engines.simulation import Simulation
from gossamer.parts.samplers import PowerOfChoice
from helpers import recorder
from helpers.toy_devices import ToyDevices

NO_CHANGES = "does not send changes of the model, which can be scaled by their staleness"
EXCHANGES = "its rounds have several exchanges"
COMMON_KEY = "its codec has a key that all clients of a round share"
REFUSED = {
    **dict.fromkeys(("local", "fedpm", "klms", "fedsparsify", "fedavg-pruned"), NO_CHANGES),
    **dict.fromkeys(("perm", "perm-two-stage"), EXCHANGES),
    **dict.fromkeys(("onebit-cs", "onebit-cs-paper"), COMMON_KEY),
}
"""Methods that need all updates of a round to be from one version, with the reason; docs/schedules.md has the table."""
POOLED = "schedule is for clients on devices, and this method pools all samples"
MIXING = ("fedbuff:buffer=2,concurrency=3", "fedasync", "deadline:3s,late=fold")


def prepared(method: Method, schedule: str, **options: Any) -> Simulation:
    """Check a run, as it is done before the first round."""
    given: dict[str, Any] = {"schedule": schedule, "channel": ToyDevices(), **options}
    return Simulation(method, recorder.task(), Options(**given))


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_cannot_mix_versions_are_refused_with_the_reason(name: str) -> None:
    method = METHODS[name]()
    if name == "centralised":
        for schedule in (*MIXING, "sync"):
            with pytest.raises(ConfigError) as caught:
                prepared(method, schedule)
            assert str(caught.value) == POOLED
    elif name in REFUSED:
        for schedule in MIXING:
            with pytest.raises(ConfigError, match=rf"{REFUSED[name]}: use sync, or deadline with late=drop$"):
                prepared(method, schedule)
        prepared(method, "sync")
    else:
        prepared(method, MIXING[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name in METHODS if name != "centralised"])
def test_all_other_methods_run(name: str) -> None:
    schedules = ("sync", "deadline:3s,over=1.5", *(() if name in REFUSED else MIXING))
    for schedule in schedules:
        devices = ToyDevices(leaving=True, lossy=True, speed=1e7, rate=3e4)
        found = simulate(METHODS[name](), recorder.task(), rounds=4, per_round=2, schedule=schedule, channel=devices)
        assert not any(record["failures"] for record in found.metrics)
        assert any("folded" in record["tasks"]["outcome"] for record in found.metrics)


def test_parts_that_belong_to_one_round_are_refused() -> None:
    with pytest.raises(ConfigError, match="its downlink continues from the version that a client holds"):
        prepared(fedmrn().with_parts(down=Delta()), "fedbuff:concurrency=2")
    with pytest.raises(ConfigError, match=EXCHANGES):
        prepared(fedavg().with_parts(sampler=PowerOfChoice(4)), "fedasync", per_round=2)
    for schedule in ("sync", "deadline:3s"):
        prepared(fedmrn().with_parts(down=Delta()), schedule)
        prepared(fedavg().with_parts(sampler=PowerOfChoice(4)), schedule, per_round=2)


@pytest.mark.parametrize(
    ("schedule", "slots"), [("fedbuff:concurrency=6", 6), ("fedasync:concurrency=9", 9), ("deadline:1s,over=1.3", 7)]
)
def test_more_clients_in_training_than_there_are_is_refused(schedule: str, slots: int) -> None:
    with pytest.raises(ConfigError, match=rf"lets {slots} clients train at once, and there are 5"):
        prepared(fedavg(), schedule)


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        ("fedbuf", "fedbuff"),
        ("deadline", "write it as deadline:AFTER"),
        ("deadline:0s", "0s"),
        ("deadline:soon", "soon"),
        ("deadline:1s,late=keep", "late must be one of drop, fold"),
        ("deadline:1s,over=0.9", "over must be at least 1"),
        ("fedbuff:buffer=0", "buffer must be at least 1"),
        ("fedbuff:concurrency=0", "concurrency must be at least 1"),
        ("fedbuff:staleness=-1", "exponent must not be negative"),
        ("fedbuff:staleness=hinge/1", "hinge/SLOPE/AFTER"),
        ("fedbuff:max_staleness=-1", "max_staleness must not be negative"),
        ("fedasync:mix=0", "mix must be in"),
        ("fedasync:mix=1.5", "mix must be in"),
    ],
)
def test_wrong_schedules_are_refused_by_name(schedule: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Options(schedule=schedule)  # type: ignore[arg-type]
