"""The channel ``fleet``: constant rates, traces, losses, speed by batch size, and what schedules ask of it."""

import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gossamer import ConfigError, Perfect, Wireless
from gossamer.cli.flags import Flag
from gossamer.cli.run_args import share_fleet
from gossamer.core.availability import ALWAYS
from gossamer.core.random import fold, key
from gossamer.core.specs import parse, spec
from gossamer.core.types import Clock, Flops
from gossamer.fleet.availability import read_model
from gossamer.fleet.fleet import PHONES, Device, Fleet, Span
from gossamer.fleet.links import RateTrace
from gossamer.parts.channels import CHANNELS
from gossamer.parts.channels.links import FleetLinks
from gossamer.testing import check_channel

LINE = Device("line", 2, None, 1e9, up=1e6, down=4e6, latency=0.05, power=0.5, receive_power=0.2)
STEPS = RateTrace((0, 10**9), (1_000_000, 0), 3 * 10**9)


def clock(client: int, number: int = 0, seconds: float = 0.0) -> Clock:
    return Clock(number, 10, client, seconds)


# Links.


def test_it_keeps_the_contract_of_channels() -> None:
    traced = replace(LINE, name="traced", up=None, up_trace=STEPS, loss=0.3)
    mixed = Fleet((LINE, traced, Device("radio", 1, None, 1e9, availability=read_model("markov:on=1min,off=1min"))))
    check_channel(FleetLinks(mixed, retries=2))


def test_a_transfer_takes_latency_and_bits_over_rate() -> None:
    run = FleetLinks(Fleet((LINE,))).fit(2, key(1))
    sent, received = run.send(125_000, clock(0), key(2)), run.receive(125_000, clock(0), key(2))
    assert sent.delivered
    assert sent[1:] == pytest.approx((1.05, 0.5)), "one second of sending at half a watt"
    assert tuple(received) == pytest.approx((0.3, 0.25 * 0.2))


def test_downloads_without_a_rate_are_free() -> None:
    run = FleetLinks(Fleet((replace(LINE, down=None),))).fit(2, key(1))
    assert run.receive(10**9, clock(0), key(2)) == (0.0, 0.0)


def test_a_transfer_over_a_trace_depends_on_when_it_starts() -> None:
    device = replace(LINE, up=None, up_trace=STEPS, down=None, down_trace=STEPS)
    run = FleetLinks(Fleet((device,))).fit(2, key(1))
    assert run.send(62_500, clock(0), key(2)).seconds == 0.55
    assert run.send(62_500, clock(0, seconds=0.75), key(2)).seconds == 2.5 + 0.05, "two seconds of outage"
    assert run.send(62_500, clock(0, seconds=0.75), key(2)).joules == 2.5 * 0.5
    assert run.receive(62_500, clock(0, seconds=1.0), key(2)).seconds == 2.5 + 0.05


def test_uploads_are_lost_at_the_given_rate_and_sent_again() -> None:
    lossy = Fleet((replace(LINE, loss=0.3),))
    once, thrice = FleetLinks(lossy).fit(1, key(1)), FleetLinks(lossy, retries=2).fit(1, key(1))
    single = [once.send(125_000, clock(0), fold(key(3), number)) for number in range(1500)]
    lost = sum(not receipt.delivered for receipt in single) / 1500
    assert abs(lost - 0.3) < 4 * math.sqrt(0.3 * 0.7 / 1500)
    assert {receipt.seconds for receipt in single} == {1.05}, "lost or not"
    several = [thrice.send(125_000, clock(0), fold(key(3), number)) for number in range(1500)]
    assert abs(sum(not receipt.delivered for receipt in several) / 1500 - 0.027) < 4 * math.sqrt(0.027 / 1500)
    assert {round(receipt.seconds, 9) for receipt in several} == {1.05, 2.1, 3.15}
    assert all(receipt.seconds == pytest.approx(3.15) for receipt in several if not receipt.delivered)


def test_attempts_over_a_trace_follow_each_other_after_the_latency() -> None:
    device = replace(LINE, up=None, up_trace=STEPS, loss=0.999)
    run = FleetLinks(Fleet((device,)), retries=1).fit(1, key(1))
    lost = run.send(112_500, clock(0), key(2))
    # 0.9 s, 0.05 s of latency, 0.05 s at the end of the period, 2 s of outage, 0.85 s, and latency again.
    assert not lost.delivered
    assert lost.seconds == pytest.approx(0.9 + 0.05 + 0.05 + 2 + 0.85 + 0.05, abs=1e-9)


@pytest.mark.parametrize("draw", ["once", "round"])
def test_a_range_is_drawn_per_client_or_round(draw: Any) -> None:
    device = replace(LINE, up=Span(1e6, 2e6), latency=0.0, draw=draw)
    run = FleetLinks(Fleet((device,))).fit(5, key(1))
    rates = {125_000 * 8 / run.send(125_000, clock(i, number), key(2)).seconds for i in range(5) for number in (0, 1)}
    assert len(rates) == (5 if draw == "once" else 10)
    assert all(1e6 < rate <= 2e6 for rate in rates)


def test_radio_links_are_those_of_the_wireless_channel() -> None:
    phone = Device("phone", 3, None, 8e9, down_bandwidth=2e7, receive_power=0.1)
    fleet = Fleet((phone, Device("tag", 2, None, 1e8, draw="round")))
    ours, theirs = (kind(fleet, seed=3, retries=1).fit(5, key(1)) for kind in (FleetLinks, Wireless))
    for client in range(5):
        for number in range(4):
            at, now = fold(key(2), client, number), clock(client, number, 12.5)
            assert ours.send(1000, now, at) == theirs.send(1000, now, at)
            assert ours.receive(1000, now, at) == theirs.receive(1000, now, at)
            assert ours.work(Flops(9, 8, 4.0), now, at) == theirs.work(Flops(9, 8, 4.0), now, at)


def test_rates_and_traces_need_no_scipy() -> None:
    code = """
import sys
sys.modules["scipy"] = None
from gossamer.core.random import key
from gossamer.core.types import Clock
from gossamer.fleet.fleet import Device, Fleet
from gossamer.parts.channels.links import FleetLinks
run = FleetLinks(Fleet((Device("line", 1, None, 1e9, up=1e6, loss=0.1),))).fit(1, key(0))
run.send(10, Clock(0, 1, 0), key(0)), run.receive(10, Clock(0, 1, 0), key(0))
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_the_wireless_channel_refuses_what_it_would_not_use() -> None:
    with pytest.raises(ConfigError, match=r"Wireless\.fleet: line has up, which this channel does not use"):
        Wireless(Fleet((LINE,)))


# Computation.


def test_small_batches_are_slow() -> None:
    device = replace(LINE, half_batch=8.0)
    run = FleetLinks(Fleet((device,))).fit(2, key(1))
    assert run.work(Flops(10**9, 10**9, 8.0), clock(0), key(2)).seconds == 2.0, "half of the speed"
    assert run.work(Flops(10**9, 10**9, 32.0), clock(0), key(2)).seconds == 1.25
    assert run.work(Flops(10**9, 10**9), clock(0), key(2)).seconds == 1.0, "unknown"


# What schedules ask.


def test_it_knows_who_is_available_and_what_leaving_costs() -> None:
    away = replace(LINE, name="away", availability=read_model("markov:on=10min,off=10min"), on_leave="pause")
    fleet = Fleet((replace(LINE, idle_power=0.3), away))
    run = FleetLinks(fleet).fit(4, key(1))
    for channel in (Perfect(), Wireless(PHONES).fit(2, key(1))):
        asked = channel.availability(0), channel.pauses(0), channel.idle_power(0)
        assert asked == (ALWAYS, False, 0.0), "its devices never leave"
    here = [client for client in range(4) if fleet.device(client, 4).name == "line"]
    for client in range(4):
        assert run.pauses(client) == (client not in here)
        assert run.idle_power(client) == (0.3 if client in here else 0.0)
        assert (run.availability(client) is ALWAYS) == (client in here)
    others = [client for client in range(4) if client not in here]
    first, second = ([run.availability(client).interval(i * 10**12) for i in range(20)] for client in others)
    assert first != second, "each client has its own times"
    again = FleetLinks(fleet).fit(4, key(1)).availability(others[0])
    assert [again.interval(i * 10**12) for i in range(20)] == first, "which follow from the run's key"
    other = FleetLinks(fleet).fit(4, key(2)).availability(others[0])
    assert [other.interval(i * 10**12) for i in range(20)] != first


# The command line.


@pytest.mark.parametrize(
    ("given", "channel"),
    [
        ({"schedule": "sync", "fleet": "a.toml"}, "fleet:fleet=a.toml"),
        ({"schedule": "sync"}, "fleet:sample:phones"),
        ({"schedule": "sync", "channel": "perfect"}, "perfect"),
        ({"schedule": "sync", "channel": "fleet:retries=2", "fleet": "a.toml"}, "fleet:fleet=a.toml,retries=2"),
        ({"schedule": "none", "channel": "wireless", "fleet": "a.toml"}, "wireless:fleet=a.toml"),
        ({"schedule": "none"}, None),
        ({"channel": "fleet", "fleet": "a,b.toml"}, 'fleet:"fleet=a,b.toml"'),
    ],
)
@pytest.mark.parametrize("own", [False, True])
def test_a_fleet_is_handed_to_the_channel(given: dict[str, str], channel: str | None, own: bool) -> None:
    given, fleet = {**given}, given.get("fleet")
    flags = [Flag("fleet", str, None, "", "FILE")] if own else []
    assert share_fleet(given, flags) == []
    assert given.get("channel") == channel
    assert given.get("fleet") == (fleet if own else None), "a method with the flag keeps it"


def test_a_fleet_without_a_channel_that_uses_it_is_refused() -> None:
    for given in ({"fleet": "a.toml"}, {"fleet": "a.toml", "schedule": "sync", "channel": "perfect"}):
        assert "--fleet has no effect here" in share_fleet(given, [])[0]
    both = {"fleet": "a.toml", "channel": "fleet:b.toml"}
    assert share_fleet(both, []) == ["--channel and --fleet both name a fleet: choose one"]


def test_a_spec_of_the_channel_is_read_and_written(tmp_path: Path) -> None:
    fleet = Fleet((replace(LINE, availability=read_model("markov:1h,2h")),))
    fleet.write(tmp_path / "a.toml")
    found = parse(f"fleet:{tmp_path / 'a.toml'},retries=2", CHANNELS, "channel")
    assert found == FleetLinks(fleet, retries=2)
    assert parse(spec(found, CHANNELS), CHANNELS, "channel") == found
