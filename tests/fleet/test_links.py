"""Rate traces: transfers take what the integral of the rate says, and files of three formats."""

import math
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import ConfigError
from gossamer.core.availability import SECOND
from gossamer.fleet.fleet import Device, Fleet
from gossamer.fleet.links import FixedRate, RateTrace

steps = st.lists(
    st.tuples(st.integers(10**6, 5 * SECOND), st.just(0) | st.integers(10**4, 10**7)), min_size=1, max_size=8
).filter(lambda found: any(rate for _, rate in found))


def made(found: list[tuple[int, int]]) -> RateTrace:
    ends = [sum(length for length, _ in found[: i + 1]) for i in range(len(found))]
    return RateTrace((0, *ends[:-1]), tuple(rate for _, rate in found), ends[-1])


def walked(found: list[tuple[int, int]], bits: int, at: int) -> Fraction:
    """Walk through the steps, one after the other, until the bits are sent; exact."""
    place, left, time = at % sum(length for length, _ in found), Fraction(bits), Fraction(0)
    index = 0
    while place >= found[index][0]:
        place -= found[index][0]
        index += 1
    while left:
        length, rate = found[index]
        here = Fraction(length - place, SECOND)
        if rate * here >= left:
            return time + left / rate
        left -= rate * here
        time += here
        place, index = 0, (index + 1) % len(found)
    return time


@settings(max_examples=60, deadline=None)
@given(found=steps, periods=st.fractions(0, 6, max_denominator=1000), at=st.integers(0, 100 * SECOND))
def test_a_transfer_takes_what_the_trace_says(found: list[tuple[int, int]], periods: Fraction, at: int) -> None:
    bits = int(periods * sum(Fraction(length, SECOND) * rate for length, rate in found))
    seconds = at / SECOND
    assert made(found).sending(bits, seconds) == float(walked(found, bits, round(seconds * SECOND)))


@given(found=steps, at=st.integers(0, 100 * SECOND), times=st.integers(1, 100))
def test_a_transfer_of_whole_periods_takes_whole_periods(found: list[tuple[int, int]], at: int, times: int) -> None:
    """Less, if the last of them ends with an outage."""
    trace, total = made(found), sum(length * rate for length, rate in found)
    periods = times * SECOND // math.gcd(total, SECOND)
    taken, whole = trace.sending(periods * total // SECOND, at / SECOND), periods * trace.period / SECOND
    assert whole - trace.period / SECOND < taken <= whole
    if 0 not in trace.rates:
        assert taken == whole


@given(rate=st.integers(1, 10**9), bits=st.integers(0, 10**12), at=st.floats(0, 1e6))
def test_a_constant_trace_is_a_constant_rate(rate: int, bits: int, at: float) -> None:
    assert RateTrace((0, 7), (rate, rate), 1000).sending(bits, at) == FixedRate(rate).sending(bits, at)


def test_the_mean_rate() -> None:
    assert RateTrace((0, SECOND), (300, 0), 3 * SECOND).mean == 100


# Files.


@pytest.mark.parametrize(
    "content",
    [
        "0,1000000\n10,0\n70,\n",
        "seconds,bits_per_second\r\n0,1e6\r\n10,0\r\n70,\r\n",
        "# a comment\nwhere,bits_per_second,seconds\nx,1000000,0\nx,0,10.0\nx,,70\n",
        '{"seconds": 0, "bits_per_second": 1000000.2}\n{"seconds": 10, "bits_per_second": 0}\n{"seconds": 70}\n',
        "0,1000000\n10,0\n40,0\n",
    ],
)
def test_the_formats_of_rates(content: str, tmp_path: Path) -> None:
    (tmp_path / "rates").write_text(content)
    trace = RateTrace.read(tmp_path / "rates")
    assert trace.period == 70 * SECOND
    assert trace.sending(15_000_000, 0) == 75.0
    assert trace.sending(10_000_000, 0) == 10.0


def test_packets_of_mahimahi(tmp_path: Path) -> None:
    """A line lets 1500 bytes pass: 12 Mbit/s in its millisecond."""
    (tmp_path / "packets").write_text("0\n1\n1\n2\n7\n7\n10\n")
    trace = RateTrace.read(tmp_path / "packets")
    assert trace.period == 10 * SECOND // 1000
    assert trace.times == tuple(SECOND // 1000 * ms for ms in (0, 1, 2, 6, 7, 9))
    assert trace.rates == (36_000_000, 12_000_000, 0, 24_000_000, 0, 12_000_000)
    assert trace.sending(7 * 12_000, 0) == 0.01, "all packets of a period"
    assert trace.sending(5 * 12_000, 0) == 0.0065
    (tmp_path / "even").write_text("".join(f"{ms}\n" for ms in range(1, 101)))
    assert RateTrace.read(tmp_path / "even").rates == (12_000_000,), "one packet in each millisecond"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "has no rates"),
        ("0,5\n", "has one rate and no end"),
        ("1,5\n2,5\n", "line 1: seconds must begin with 0 and increase"),
        ("0,5\n2,5\n2,6\n", "line 3: seconds must begin with 0 and increase"),
        ("0,5\n2,-5\n", "line 2: bits_per_second must be a rate, at least 0, got '-5'"),
        ("0,\n2,5\n", "line 1: bits_per_second must be a rate, at least 0, got None"),
        ("0,5\n2,\n3,5\n", "line 3: follows the end of the trace"),
        ("0,0\n2,0\n", "has only rates of 0, so that no transfer ever ends"),
        ("5\n4\n", "line 2: must be whole milliseconds that do not decrease, got '4'"),
        ("5\n6,1\n", "line 2: must be whole milliseconds"),
        ("0\n0\n", "ends at 0 ms"),
        ('{"seconds": 0}\n[1]\n', "line 1: bits_per_second must be a rate"),
    ],
)
def test_a_wrong_trace_is_refused_with_its_line(content: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text(content)
    (tmp_path / "fleet.toml").write_text('[[device]]\nname="a"\nclients=1\nflops=1e9\nup_trace = "rates.csv"\n')
    with pytest.raises(ConfigError) as error:
        Fleet.read(tmp_path / "fleet.toml")
    start = f"{tmp_path / 'fleet.toml'}: device 1 (a): up_trace: {tmp_path / 'rates.csv'}"
    assert str(error.value).startswith(start)
    assert reason in str(error.value)


def test_a_fleet_notices_that_a_trace_has_changed(tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("0,5\n2,6\n")
    device = Device("a", 1, None, 1e9, up_trace=RateTrace.read(tmp_path / "rates.csv"))
    Fleet((device,)).write(tmp_path / "fleet.toml")
    assert 'up_trace = "rates.csv"' in (tmp_path / "fleet.toml").read_text()
    fleet = Fleet.read(tmp_path / "fleet.toml")
    assert fleet == Fleet((device,)) == Fleet.of_text(fleet.to_text())
    (tmp_path / "rates.csv").write_text("0,5\n2,7\n")
    with pytest.raises(ConfigError, match="was changed since the run was started"):
        Fleet.of_text(fleet.to_text())


def test_a_trace_without_a_file_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a rate trace without a file cannot be written"):
        Fleet((Device("a", 1, None, 1e9, up_trace=RateTrace((0,), (5,), 9)),)).write(tmp_path / "fleet.toml")


# Keys that exclude each other.


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('up = "1 Mbit/s"\nup_trace = "rates.csv"', "up and up_trace both give the rate: choose one"),
        ("up = 1e6\nbandwidth = 1e6", "bandwidth describes a radio link, but up gives the rate: leave one out"),
        ('down = 1e6\ndown_bandwidth = "1 MHz"', "down_bandwidth describes a radio link, but down gives the rate"),
        ("up = 1e6\ndown_bandwidth = 1e6", "down_bandwidth needs a radio link up"),
        ("loss = 0.1", "loss needs up or up_trace"),
        ("up = 1e6\nloss = 1", "loss must be a probability, at least 0 and below 1, got 1"),
        ('up = "1 MB/s"', "up must be bits per second such as 1e6"),
        ("latency = -1", 'latency must be seconds such as 0.05 or "50 ms", got -1'),
        ("half_batch = true", "half_batch must be a number of samples, at least 0, got True"),
        ('on_leave = "never"', "on_leave must be lost or pause, got 'never'"),
        ("up_trace = 5", "up_trace must be the path of a file with a rate trace, got 5"),
        ('up_trace = "none.csv"', "up_trace: "),
    ],
)
def test_contradictions_are_refused(text: str, reason: str, tmp_path: Path) -> None:
    (tmp_path / "rates.csv").write_text("0,5\n2,6\n")
    (tmp_path / "fleet.toml").write_text(f'[[device]]\nname="a"\nclients=1\nflops=1e9\n{text}\n')
    with pytest.raises(ConfigError) as error:
        Fleet.read(tmp_path / "fleet.toml")
    assert error.value.mistakes[0].startswith(f"{tmp_path / 'fleet.toml'}: device 1 (a): {reason}")


def test_contradictions_are_refused_in_python() -> None:
    with pytest.raises(ConfigError, match="Device: distance describes a radio link, but up gives the rate"):
        Device("a", 1, None, 1e9, up=1e6, distance=5.0)
