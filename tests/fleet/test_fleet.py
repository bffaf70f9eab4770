"""The fleet file, the device of each client, and the share of a model that fits it."""

import doctest
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import ConfigError
from gossamer.core.random import key
from gossamer.fleet import units
from gossamer.fleet.availability import read_model
from gossamer.fleet.capacity import SHARES, largest_share
from gossamer.fleet.fleet import Device, Fleet, Span
from gossamer.fleet.keys import KEYS
from gossamer.fleet.radio import Density, Link, outage
from gossamer.fleet.units import read_density, read_length, read_power, read_ratio, read_size, read_speed
from helpers.narrow import present
from helpers.paths import ROOT

PAGE = (ROOT / "docs/fleet.md").read_text()
PHONE, SENSOR = Device("phone", 3, 512_000_000, 8e9), Device("sensor", 1, 4_000_000, 5e7)

spans = st.tuples(st.floats(0, 1e3), st.floats(1e-3, 1e3)).map(lambda ends: Span(ends[0], sum(ends)))
positive = st.floats(1e-9, 1e9)
names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(lambda t: t.isprintable() and t.strip())
devices = st.builds(
    lambda power, more, **given: Device(
        power=power, most_power=more and more * (power.high if isinstance(power, Span) else power), **given
    ),
    name=names,
    clients=st.integers(1, 60),
    memory=st.integers(1, 2**63 - 1),
    flops=st.floats(0, exclude_min=True, allow_infinity=False) | st.integers(1, 2**63).map(float),
    power=positive | spans,
    distance=positive | spans,
    bandwidth=positive | spans,
    noise=positive | positive.map(Density) | spans,
    interference=st.just(0.0) | positive | spans,
    threshold=st.just(0.0) | positive | spans,
    exponent=st.floats(0.1, 9.0),
    draw=st.sampled_from(["once", "round"]),
    frequency=positive,
    capacitance=positive,
    more=st.none() | st.floats(1, 1e3),
)
fleets = st.lists(devices, min_size=1, max_size=6, unique_by=lambda device: device.name).map(tuple).map(Fleet)


def needs(share: float) -> int:
    return round(64_000_000 * share)


def counts(fleet: Fleet, clients: int) -> list[int]:
    dealt = Counter(fleet.device(client, clients).name for client in range(clients))
    return [dealt[device.name] for device in fleet.devices]


# The file.


@settings(max_examples=40)
@given(fleet=fleets)
def test_what_is_written_is_read_back(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fleet") / "fleet.toml"
    fleet.write(path)
    assert Fleet.read(path) == Fleet.read(str(path)) == fleet


@settings(max_examples=60)
@given(
    up=positive | spans,
    down=st.none() | positive | spans,
    power=positive | spans,
    latency=st.floats(0, 1e3),
    loss=st.floats(0, 1, exclude_max=True),
    half_batch=st.floats(0, 1e6),
    idle_power=st.just(0.0) | positive,
    model=st.sampled_from(["always", "markov:on=1.5h,off=70s", "daily:from=22:30,to=7h,zones=-5+5.5,jitter=90s"]),
    on_leave=st.sampled_from(["lost", "pause"]),
)
def test_links_are_written_and_read_back(model: str, tmp_path_factory: pytest.TempPathFactory, **given: Any) -> None:
    path = tmp_path_factory.mktemp("fleet") / "fleet.toml"
    fleet = Fleet((Device("line", 1, None, 1e9, availability=read_model(model), **given),))
    fleet.write(path)
    assert Fleet.read(path) == fleet


def test_the_example_is_a_hundred_devices_of_five_kinds() -> None:
    fleet = Fleet.read(ROOT / "examples/fleet.toml")
    assert [device.memory for device in fleet.devices] == [512_000_000, 128_000_000, 32_000_000, 16 * 2**20, 4 * 2**20]
    assert [device.flops for device in fleet.devices] == [8e9, 3e9, 3e8, 2e8, 5e7]
    assert counts(fleet, 100) == [40, 25, 15, 10, 10]


def test_every_mistake_of_a_file_is_listed_with_its_entry(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    path.write_text(
        """
        colour = "red"
        [[device]]
        name = "phone"
        clients = 0
        memory = "12 Mb"
        flops = "fast"
        [[device]]
        clients = true
        memmory = 5
        flops = nan
        [[device]]
        name = "phone"
        clients = 1.5
        memory = 0.5
        flops = -1
        power = "5 dB"
        distance = "10..5 m"
        exponent = 0
        bandwidth = "1 MB"
        noise = "-174 dBm/kHz"
        interference = "-1..5 nW"
        threshold = -1
        draw = "never"
        frequency = true
        capacitance = "1 F"
        most_power = 0
        """
    )
    with pytest.raises(ConfigError) as error:
        Fleet.read(path)
    size = 'memory must be a whole number of bytes such as 64e6, "64 MB" or "2 GiB"'
    speed = 'flops must be operations per second such as 2e9 or "2 GFLOPS"'
    assert [mistake.removeprefix(f"{path}: ") for mistake in error.value.mistakes] == [
        "unknown key 'colour': known: device",
        "device 1 (phone): clients must be a whole number, at least 1, got 0",
        f"device 1 (phone): {size}, got '12 Mb'",
        f"device 1 (phone): {speed}, got 'fast'",
        f"device 2: unknown key 'memmory': did you mean memory? known: {', '.join(sorted(KEYS))}",
        "device 2: name is missing: it must be a text of one line",
        "device 2: clients must be a whole number, at least 1, got True",
        f"device 2: {speed}, got nan",
        "device 3 (phone): clients must be a whole number, at least 1, got 1.5",
        f"device 3 (phone): {size}, got 0.5",
        f"device 3 (phone): {speed}, got -1",
        """device 3 (phone): power must be """
        """watts such as 0.01, "10 mW" or "10 dBm", or a range, "5..20 mW", got '5 dB'""",
        'device 3 (phone): most_power must be watts such as 0.01, "10 mW" or "10 dBm", got 0',
        """device 3 (phone): distance must be metres such as 250, "0.25 km" or a range, "0..500 m", got '10..5 m'""",
        "device 3 (phone): exponent must be a positive number such as 2, got 0",
        """device 3 (phone): bandwidth must be hertz such as 1e6, "1 MHz" or a range, "0.5..2 MHz", got '1 MB'""",
        'device 3 (phone): noise must be watts in the whole band such as 1e-14, a range, "10..20 fW", '
        'or a density, "-174 dBm/Hz", '
        "got '-174 dBm/kHz'",
        'device 3 (phone): interference must be watts such as 5e-8, "50 nW" or a range, "10..110 nW", got \'-1..5 nW\'',
        'device 3 (phone): threshold must be a ratio, at least 0, such as 1.08, "0.33 dB" or a range, "1..2", got -1',
        "device 3 (phone): draw must be once or round, got 'never'",
        'device 3 (phone): frequency must be cycles per second such as 1e9 or "1 GHz", got True',
        "device 3 (phone): capacitance must be a positive number such as 1e-27, got '1 F'",
        "two devices are called 'phone': give each kind a unique name",
    ]
    assert all(mistake.startswith(f"{path}: ") for mistake in error.value.mistakes)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "a fleet must have a device"),
        (b"[device]\nname = 'phone'", "double brackets"),
        (b"device = [1]", "double brackets"),
        (b"[[device]", "is not TOML"),
        (b"\xff\xfe", "is not TOML"),
    ],
)
def test_what_is_no_fleet_is_refused(text: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_bytes(text)
    with pytest.raises(ConfigError, match=rf"fleet\.toml: .*{reason}"):
        Fleet.read(tmp_path / "fleet.toml")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read: No such file"):
        Fleet.read(tmp_path / "none.toml")


def test_mistakes_in_python_are_named() -> None:
    with pytest.raises(ConfigError) as error:
        Device("", 0, cast(Any, "64 MB"), float("inf"))
    assert [mistake.split()[0] for mistake in error.value.mistakes] == [
        "Device.name",
        "Device.clients",
        "Device.flops",
        "Device.memory",
    ]
    with pytest.raises(ConfigError, match=r"Device.name must be a text of one line, got 'two\\nlines'"):
        Device("two\nlines", 1, 1, 1.0)
    with pytest.raises(ConfigError, match="two devices are called 'phone'"):
        Fleet((PHONE, PHONE))
    with pytest.raises(ConfigError, match="must have a device"):
        Fleet(())


# Sizes and speeds.


SIZES: dict[float | str, int] = {
    **{1: 1, 64e6: 64_000_000, "64 MB": 64_000_000, "2GB": 2 * 10**9, "2.3 GB": 2_300_000_000, " 1.5 KiB ": 1536},
    **{"8 MiB": 8 * 2**20, "7 B": 7, "7": 7, "1e3 kB": 10**6, "1 TB": 10**12},
}


@pytest.mark.parametrize(("written", "size"), SIZES.items())
def test_sizes(written: object, size: int) -> None:
    assert read_size(written) == size


@pytest.mark.parametrize(("written", "speed"), [(2, 2.0), (2e9, 2e9), ("2 GFLOPS", 2e9), ("0.1MFLOPS", 1e5)])
def test_speeds(written: object, speed: float) -> None:
    assert read_speed(written) == speed


@pytest.mark.parametrize("written", [0, -1, 0.5, "0.4 B", "MB", "", "64 Mb", "6 4 MB", "nan", 1e30, "1e999999 TB"])
@pytest.mark.parametrize("kind", [str, None])
def test_what_is_no_size_is_refused(written: object, kind: type[str] | None) -> None:
    with pytest.raises(ValueError):
        read_size(kind(written) if kind else written)


@pytest.mark.parametrize("written", [0, -1.0, float("inf"), float("nan"), True, None, [1], "2 GB", "inf", "1e999"])
def test_what_is_no_speed_is_refused(written: object) -> None:
    with pytest.raises(ValueError):
        read_speed(written)


def test_examples_of_units_hold() -> None:
    result = doctest.testmod(units)
    assert result.attempted == 16
    assert result.failed == 0


POWERS = {0.01: 0.01, "10 mW": 0.01, "10 dBm": 0.01, "-20 dBW": 0.01, "50 nW": 5e-8, "50nW": 5e-8, "10 fW": 1e-14}


@pytest.mark.parametrize(("written", "watts"), POWERS.items())
def test_powers(written: object, watts: float) -> None:
    assert read_power(written) == watts


def test_other_quantities_of_a_link() -> None:
    assert read_density("-174 dBm/Hz") == pytest.approx(3.98e-21, rel=1e-3)
    assert read_ratio("0.33 dB") == pytest.approx(1.079, rel=1e-3)
    assert read_length("0.25 km") == 250
    assert read_length(0, zero=True) == 0
    for read, written in ((read_density, 1e-14), (read_density, "1 W"), (read_length, 0), (read_ratio, "3 dBm")):
        with pytest.raises(ValueError):
            read(written)


# Links.


def test_links_have_the_values_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(
        """
        [[device]]
        name = "phone"
        clients = 1
        flops = "1 GFLOPS"
        power = "20 mW"
        distance = "0.25 km"
        bandwidth = "2 MHz"
        noise = "-174 dBm/Hz"
        interference = "50 nW"
        threshold = "3 dB"
        exponent = 3
        """
    )
    found = Fleet.read(tmp_path / "fleet.toml").link(0, 1, 0, key(0), "amplitude")
    noise = Density(read_density("-174 dBm/Hz"))
    assert found == Link(0.02, 250.0, 2e6, noise, 5e-8, read_ratio("3 dB"), "amplitude", 3.0)


@pytest.mark.parametrize(
    ("written", "span"), [("0..500 m", Span(0, 500)), ("0 m .. 0.5 km", Span(0, 500)), ("1..2", Span(1, 2))]
)
def test_ranges_are_written_with_one_unit_or_two(written: str, span: Span) -> None:
    assert KEYS["distance"].read(written) == span


def test_a_range_is_drawn_once_or_in_each_round_and_by_client() -> None:
    once, anew = (Fleet((Device("phone", 5, None, 1e9, draw=when),)) for when in ("once", "round"))
    for fleet, different in ((once, 5), (anew, 15)):
        drawn = {fleet.link(client, 5, number, key(1)).distance for client in range(5) for number in range(3)}
        assert len(drawn) == different
        assert all(0 < distance <= 500 for distance in drawn)
    assert once.link(2, 5, 0, key(1)) == once.link(2, 5, 7, key(1))
    assert once.link(2, 5, 0, key(1)) != once.link(2, 5, 0, key(2)), "another seed, another place"


def test_whatever_a_link_has_may_be_a_range(tmp_path: Path) -> None:
    (tmp_path / "fleet.toml").write_text(
        """
        [[device]]
        name = "phone"
        clients = 1
        flops = "1 GFLOPS"
        draw = "round"
        power = "10..20 dBm"
        distance = "1E2..2E2 m"
        bandwidth = "0.5..2 MHz"
        noise = "10..20 fW"
        interference = 0
        threshold = "0..3 dB"
        """
    )
    fleet = Fleet.read(tmp_path / "fleet.toml")
    links = [fleet.link(0, 1, number, key(4)) for number in range(500)]
    ends = {"power": (0.01, 0.1), "distance": (100, 200), "bandwidth": (5e5, 2e6), "noise": (1e-14, 2e-14)}
    ends["threshold"] = (1, read_ratio("3 dB"))
    for name, (low, high) in ends.items():
        drawn = [(getattr(link, name) - low) / (high - low) for link in links]
        assert 0 <= min(drawn) < 0.02
        assert 0.98 < max(drawn) <= 1
        assert abs(np.mean(drawn) - 0.5) < 0.04, "three standard errors of 500 even draws"
    assert len({link.exponent for link in links}) == 1
    correlations = np.corrcoef([[getattr(link, name) for link in links] for name in ends])
    assert np.abs(correlations - np.eye(len(ends))).max() < 0.18, "no two of them go together"


def test_other_ranges_leave_a_draw_as_it_is() -> None:
    plain = Device("phone", 1, None, 1e9)
    more = replace(plain, power=Span(0.001, 0.01), threshold=Span(0.5, 1.5))
    assert more.link(key(3)).distance == plain.link(key(3)).distance
    assert more.link(key(3)).interference == plain.link(key(3)).interference


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("power = 1e300", "the signal-to-noise ratio cannot be 1e"),
        ("distance = 1e-200", "the signal-to-noise ratio cannot be 1e"),
        ('distance = "0..500 m"\nexponent = 40', "the signal-to-noise ratio cannot be 1e"),
        ("most_power = 1e299", "the signal-to-noise ratio cannot be 1e"),
        ('power = "10..20 mW"\nmost_power = "15 mW"', "most_power must be at least the power, 0.02 W, got 0.015"),
        ('noise = "-174..-170 dBm/Hz"', "noise must be watts in the whole band"),
    ],
)
def test_conflicting_values_are_reported_with_their_entry(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "fleet.toml"
    fine = '[[device]]\nname = "phone"\nclients = 1\nflops = 1e9\n'
    path.write_text(f"{fine}{fine.replace('phone', 'tag')}{text}")
    with pytest.raises(ConfigError) as error:
        Fleet.read(path)
    assert error.value.mistakes[0].startswith(f"{path}: device 2 (tag): {reason}")


def test_ranges_are_drawn_evenly() -> None:
    fleet = Fleet((Device("phone", 1, None, 1e9, draw="round"),))
    links = [fleet.link(0, 1, number, key(4)) for number in range(2000)]
    distance, interference = ([getattr(link, name) for link in links] for name in ("distance", "interference"))
    for drawn, low, high in ((distance, 0, 500), (interference, 1e-8, 1.1e-7)):
        share = sorted((value - low) / (high - low) for value in drawn)
        # The largest distance from the line, of 2000 even draws, passes 0.036 once in a hundred times.
        assert max(abs(value - (rank + 0.5) / 2000) for rank, value in enumerate(share)) < 0.036
        assert 0 <= share[0] < share[-1] <= 1
    assert abs(np.corrcoef(distance, interference)[0, 1]) < 0.07, "one has nothing to do with the other"


def test_a_device_without_a_memory_size_has_no_capacity(tmp_path: Path) -> None:
    fleet = Fleet((PHONE, Device("tag", 1, None, 1e6)))
    for ask in (lambda: fleet.capacities(4, needs), lambda: fleet.memories(4)):
        with pytest.raises(ConfigError) as error:
            ask()
        assert error.value.mistakes == (
            'tag: how much of the model fits is not known without its memory: add it, such as "64 MB"',
        )


def test_a_fleet_names_its_file_and_can_be_read_from_its_name(tmp_path: Path) -> None:
    path = tmp_path / "fleet.toml"
    Fleet((PHONE,)).write(path)
    fleet = Fleet.read(path)
    assert Fleet.of_text(fleet.to_text()) == Fleet.of_text(str(path)) == fleet
    assert fleet.to_text().startswith(f"{path}@")
    path.write_text(path.read_text() + "\n")
    with pytest.raises(ConfigError, match="was changed since the run was started"):
        Fleet.of_text(fleet.to_text())
    assert Fleet((PHONE,)).to_text() == repr(Fleet((PHONE,)))


@pytest.mark.parametrize(("name", "clients", "lost"), [("city", 50, 0.4), ("factory", 25, 0.01), ("sensors", 35, 0.45)])
def test_the_examples_have_the_devices_of_their_comments(name: str, clients: int, lost: float) -> None:
    fleet = Fleet.read(ROOT / f"examples/fleets/{name}.toml")
    assert fleet.clients == clients
    found = [outage(fleet.link(client, clients, 0, key(seed))) for client in range(clients) for seed in range(20)]
    assert sum(found) / len(found) == pytest.approx(lost, abs=0.04)


# Devices of clients.


@given(fleet=fleets)
def test_a_fleet_of_the_listed_size_has_the_listed_devices(fleet: Fleet) -> None:
    wanted = [device.clients for device in fleet.devices]
    assert counts(fleet, sum(wanted)) == wanted


@given(fleet=fleets, clients=st.integers(1, 150))
def test_every_client_has_a_device_and_numbers_are_in_proportion(fleet: Fleet, clients: int) -> None:
    found, total = counts(fleet, clients), sum(device.clients for device in fleet.devices)
    assert sum(found) == clients
    for device, count in zip(fleet.devices, found, strict=True):
        assert abs(count - device.clients * clients / total) < 1
    memories = tuple(fleet.device(client, clients).memory for client in range(clients))
    assert fleet.memories(clients) == memories


@given(fleet=fleets, clients=st.integers(1, 150))
def test_the_kinds_are_evenly_spread(fleet: Fleet, clients: int) -> None:
    """Among any number of first clients, each kind has its share, up to the number of kinds."""
    found = dict(zip([device.name for device in fleet.devices], counts(fleet, clients), strict=True))
    so_far: Counter[str] = Counter()
    for client in range(clients):
        so_far[fleet.device(client, clients).name] += 1
        for name, count in found.items():
            assert abs(so_far[name] - count * (client + 1) / clients) <= len(found)


def test_the_order_is_known() -> None:
    fleet = Fleet((PHONE, SENSOR))
    assert [fleet.device(client, 8).name[0] for client in range(8)] == list("ppspppsp")
    assert [fleet.device(client, 4).name[0] for client in range(4)] == list("ppsp")
    assert counts(fleet, 2) == [2, 0], "1.5 and 0.5: of equals, the earlier one"
    assert counts(fleet, 5) == [4, 1]


@pytest.mark.parametrize(("client", "clients"), [(-1, 4), (4, 4), (0, 0)])
def test_a_client_that_is_not_there_is_refused(client: int, clients: int) -> None:
    with pytest.raises(ConfigError, match="client must be from 0"):
        Fleet((PHONE,)).device(client, clients)


def test_a_fleet_for_nobody_is_refused() -> None:
    with pytest.raises(ConfigError, match="clients must be at least 1"):
        Fleet((PHONE,)).memories(0)


# What fits.


@given(memory=st.integers(4_000_000, 10**8), more=st.integers(0, 10**8))
def test_the_largest_share_that_fits_is_picked(memory: int, more: int) -> None:
    share = largest_share(memory, needs)
    assert needs(share) <= memory
    assert all(needs(larger) > memory for larger in SHARES if larger > share)
    assert largest_share(memory + more, needs) >= share


@given(fleet=fleets, clients=st.integers(1, 50), shares=st.sets(st.sampled_from(SHARES), min_size=1).map(tuple))
def test_each_client_has_what_fits_its_device(fleet: Fleet, clients: int, shares: tuple[float, ...]) -> None:
    small = [device.name for device in fleet.devices if present(device.memory) < needs(min(shares))]
    if small:
        with pytest.raises(ConfigError) as error:
            fleet.capacities(clients, needs, shares)
        assert [mistake.partition(" has ")[0] for mistake in error.value.mistakes] == small
    else:
        wanted = tuple(largest_share(memory, needs, shares) for memory in fleet.memories(clients))
        assert fleet.capacities(clients, needs, shares) == wanted


def test_a_share_is_worked_out_once() -> None:
    asked: list[float] = []

    def noted(share: float) -> int:
        asked.append(share)
        return needs(share)

    assert Fleet((PHONE, SENSOR)).capacities(4, noted) == (1.0, 1.0, 1 / 16, 1.0)
    assert asked == list(SHARES)


def test_a_device_that_is_too_small_is_named_with_what_it_has_and_what_it_takes() -> None:
    fleet = Fleet((PHONE, SENSOR, Device("tag", 2, 20_000, 1e6)))
    with pytest.raises(ConfigError) as error:
        fleet.capacities(6, needs, (1.0, 1 / 8))
    assert error.value.mistakes == tuple(
        f"{name} has {memory} bytes of memory, but training the smallest share, 1/8 of the model, takes 8,000,000: "
        "try a smaller share, batch or model, or leave it out"
        for name, memory in (("sensor", "4,000,000"), ("tag", "20,000"))
    )
    with pytest.raises(ConfigError, match="a device has 10 bytes"):
        largest_share(10, needs)


def test_shares_that_cannot_be_are_refused_once() -> None:
    with pytest.raises(ConfigError) as error:
        Fleet((PHONE, SENSOR)).capacities(4, needs, (0.0, 1.5))
    assert error.value.mistakes == ("shares must be in (0, 1], got 0.0", "shares must be in (0, 1], got 1.5")
    with pytest.raises(ConfigError, match="shares must not be empty"):
        largest_share(10, needs, ())


# The clock.


def test_a_step_takes_its_operations_over_the_speed() -> None:
    assert PHONE.seconds(16e9) == 2.0
    assert PHONE.joules(2.0) == pytest.approx(2.0), "1e-27 x (1 GHz)^2 x 2e9 cycles"
    assert SENSOR.seconds(0) == 0.0
    with pytest.raises(ConfigError, match="must not be negative"):
        PHONE.seconds(-1)


# The page.


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The page's Python, with the page's file in the current folder."""
    monkeypatch.chdir(tmp_path)
    found = dict(block.split("\n", 1) for block in PAGE.split("```")[1::2])
    Path("fleet.toml").write_text(found["toml"])
    return found["python"]


def test_the_page_is_true(code: str) -> None:
    page: dict[str, Any] = {}
    exec(code, page)
    assert [device.name for device in page["fleet"].devices] == ["phone", "sensor node"]
    assert Fleet.read("phones.toml").devices == (page["phone"],)
    assert largest_share(64_000_000, page["needs"]) == 1 / 4
    example = Fleet.read(ROOT / "examples/fleet.toml")
    has = dict(zip(example.memories(100), example.capacities(100, page["needs"]), strict=True))
    assert [has[present(device.memory)] for device in example.devices] == list(SHARES)
    for device, share in zip(example.devices, SHARES, strict=True):
        (row,) = [line for line in PAGE.splitlines() if line.endswith(f"| {device.name} |")]
        assert str(Fraction(share)) in row
        assert f"{page['needs'](share) / 1e6:.1f} MB" in row
    with pytest.raises(ConfigError) as error:
        Fleet((Device("sensor node", 1, 2_000_000, 5e7),)).capacities(1, page["needs"])
    assert str(error.value) in PAGE


def test_the_mistakes_on_the_page_are_answered_as_it_shows(code: str) -> None:
    text = Path("fleet.toml").read_text().replace("512 MB", "512 Mb").replace("flops = 5e7", "flop = 5e7")
    Path("fleet.toml").write_text(text)
    with pytest.raises(ConfigError) as error:
        Fleet.read("fleet.toml")
    assert f"```\n{error.value}\n```" in PAGE
