"""Traces of FedScale and FLASH become traces of Gossamer, and a malicious pickle does nothing."""

import json
import os
import pickle
import pickletools
import struct
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import ConfigError
from gossamer.core.availability import SECOND
from gossamer.core.random import key
from gossamer.fleet.availability import read_model
from gossamer.fleet.converters import (
    OPERATIONS,
    ConvertedTrace,
    read_fedscale,
    read_fedscale_capacity,
    read_flash,
    read_pickle,
)
from gossamer.fleet.keys import Span

TRACE: dict[Any, Any] = {
    7: {"active": [10, 100], "inactive": [50, 160], "finish_time": 200, "duration": 90, "model": "x"},
    2: {"active": [0, 30, 5], "inactive": [20, 40, 25], "finish_time": 60, "duration": 30, "model": "y"},
    5: {"active": [9], "inactive": [3], "finish_time": 60, "duration": 0, "model": "z"},
    6: {"active": ["now"], "inactive": [3], "finish_time": 60, "duration": 0, "model": "z"},
}


def converted(trace: ConvertedTrace, path: Path) -> Any:
    path.write_text(trace.csv())
    return read_model(f"trace:{path}")


# Pickles.

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(min_size=1),
    lambda inner: st.lists(inner) | st.dictionaries(st.integers() | st.text(), inner) | st.tuples(inner, inner),
    max_leaves=20,
)


@settings(max_examples=60, deadline=None)
@given(value=plain, protocol=st.integers(0, 5))
def test_containers_and_numbers_are_read(value: Any, protocol: int) -> None:
    assert read_pickle(pickle.dumps(value, protocol)) == value


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize(
    "number", [np.float64(5648.25), np.float32(0.5), np.int64(-7), np.int32(8), np.uint16(9), np.int8(-3)]
)
def test_numbers_of_numpy_are_read(number: Any, protocol: int) -> None:
    found = read_pickle(pickle.dumps({"a": number, "b": [number]}, protocol))
    assert found == {"a": number.item(), "b": [number.item()]}
    assert type(found["a"]) is type(number.item())


class _Evil:
    def __init__(self, *call: Any) -> None:
        self.call = call

    def __reduce__(self) -> Any:
        return self.call


def _pickles(marker: Path) -> dict[str, bytes]:
    """Pickles that would write a file, allocate much memory, or are damaged."""
    command = f"touch {marker}"
    return {
        "system": pickle.dumps(_Evil(os.system, (command,))),
        "nested": pickle.dumps({1: [_Evil(os.system, (command,))]}, 2),
        "eval": pickle.dumps(_Evil(eval, (f"__import__('pathlib').Path({str(marker)!r}).touch()",))),
        "inst": f"(S'{command}'\nios\nsystem\n.".encode(),
        "obj": f"(cos\nsystem\nS'{command}'\no.".encode(),
        "newobj": b"\x80\x02cbuiltins\nlist\n)\x81.",
        "getattr": b"cbuiltins\ngetattr\n.",
        "codec": b"c_codecs\nencode\n(Va\nVrot13\ntR.",
        "build on a function": b"cnumpy\ndtype\n}Va\nI1\nsb.",
        "slots of a function": b"cnumpy\ndtype\n(N}V__call__\nI1\nst\x86b.",
        "byte order": pickle.dumps(np.dtype(">f8")),
        "array": pickle.dumps(np.zeros(3)),
        "object": pickle.dumps(datetime(2020, 1, 1)),
        "memo": b"\x80\x02" + b"]r" + struct.pack("<I", 2**32 - 1) + b".",
        "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 2**62) + b".",
        "long string": b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"a.",
        "persistent": b"Pid\n.",
        "extension": b"\x80\x02\x82\x01.",
        "cut": pickle.dumps([1, 2, 3])[:-2],
        "empty": b"",
        "text": b"client,start,end\n",
    }


@pytest.mark.parametrize("name", sorted(_pickles(Path("x"))))
def test_other_pickles_are_refused_and_do_nothing(name: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    with pytest.raises(ConfigError, match="is not a pickle of containers and numbers alone"):
        read_pickle(_pickles(marker)[name])
    assert not marker.exists()


def test_the_test_pickles_would_have_an_effect(tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    for name in ("system", "eval", "inst", "obj"):
        pickle.loads(_pickles(marker)[name])
        assert marker.exists(), name
        marker.unlink()


@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_a_damaged_pickle_raises_no_other_error(data: Any) -> None:
    whole = bytearray(pickle.dumps(TRACE, data.draw(st.integers(0, 5))))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ConfigError):
        read_pickle(bytes(whole))


def test_the_limit_of_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gossamer.fleet.converters.LARGEST", 10)
    with pytest.raises(ConfigError, match="more than the 10 that are read"):
        read_pickle(pickle.dumps([1, 2, 3, 4, 5]))


# FedScale.


def test_times_of_fedscale_are_those_of_its_own_rule(tmp_path: Path) -> None:
    """A client is active if active <= time % finish_time <= inactive, for any of its times."""
    (tmp_path / "trace").write_bytes(pickle.dumps(TRACE))
    trace = read_fedscale(tmp_path / "trace")
    assert trace.left_out == {"never available": 1, "without valid times": 1}
    assert trace.share == pytest.approx((100 / 200 + 35 / 60) / 2)
    model = converted(trace, tmp_path / "trace.csv")
    for place, name in enumerate((2, 7)):  # in numerical order
        entry, found = TRACE[name], model.of_client(place, key(0))
        for time in range(500):
            now = (time + 0.5) % entry["finish_time"]
            times = zip(entry["active"], entry["inactive"], strict=True)
            active = any(start <= now <= end for start, end in times)
            at = int((time + 0.5) * SECOND)
            assert (found.interval(at).start <= at) == active


def test_a_pickle_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    others: tuple[Any, ...] = ([], {}, {1: {"active": []}}, {(1,): TRACE[7]})
    for value in others:
        (tmp_path / "trace").write_bytes(pickle.dumps(value))
        with pytest.raises(ConfigError, match="is not a dictionary of clients, each with active, inactive"):
            read_fedscale(tmp_path / "trace")
    (tmp_path / "trace").write_bytes(pickle.dumps({5: TRACE[5]}))
    with pytest.raises(ConfigError, match="no client of the trace is ever available: 1 never available"):
        read_fedscale(tmp_path / "trace").csv()


def test_devices_of_fedscale_are_grouped(tmp_path: Path) -> None:
    """Speeds from 10 to 1000 ms per sample, and rates from 1 to 50 Mbit/s."""
    entries = {
        i: {"computation": np.float64(10.0 * 1.0047**i), "communication": 1000.0 + (i * 37 % 1000) * 49}
        for i in range(1000)
    }
    (tmp_path / "capacity").write_bytes(pickle.dumps(entries | {5000: {"computation": 0.0, "communication": 5.0}}))
    fleet = read_fedscale_capacity(tmp_path / "capacity", 1e9)
    assert fleet.clients == 1000
    assert len(fleet.devices) == 30
    speeds = [device.flops for device in fleet.devices]
    groups = [speeds[i : i + 3] for i in range(0, 30, 3)]
    assert all(max(slow) < min(fast) for slow, fast in pairwise(groups)), "from slow to fast"
    slowest = [1e12 / (10.0 * 1.0047**i) for i in range(900, 1000)]
    assert min(slowest) < speeds[0] < max(slowest)
    low, middle, high = (device.up for device in fleet.devices[:3])
    assert isinstance(low, Span)
    assert isinstance(middle, Span)
    assert isinstance(high, Span)
    assert 1e6 <= low.low < low.high <= middle.low < middle.high <= high.low < high.high <= 50e6
    assert all(device.up == device.down for device in fleet.devices)


# FLASH.


def line(seconds: float, state: str) -> str:
    return f"{datetime(2020, 1, 2) + timedelta(seconds=seconds):%Y-%m-%d %H:%M:%S}\t{state}"


def flash(path: Path, devices: dict[str, list[tuple[int, str]]]) -> ConvertedTrace:
    entries = {
        name: {"guid": name, "model": "x", "messages": "\n".join(line(*message) for message in messages) + "\n"}
        for name, messages in devices.items()
    }
    path.write_text(json.dumps(entries))
    return read_flash(path)


def test_a_phone_is_available_while_it_is_locked_charging_and_on_wifi(tmp_path: Path) -> None:
    day = [(0, "screen_off"), (100, "battery_charged_on"), (200, "Wifi"), (300, "screen_lock"), (350, "85.0%")]
    day += [(500, "screen_unlock"), (600, "screen_lock"), (700, "4G"), (800, "wifi"), (850, "phone_on")]
    day += [(900, "battery_charged_off"), (1000, "screen_on")]
    trace = flash(tmp_path / "states.json", {"a": day})
    assert trace.clients == {"a": ([(300, 500), (600, 700), (800, 900)], 1000)}
    assert trace.notes == {"state 'phone_on'": 1}
    assert converted(trace, tmp_path / "trace.csv").of_client(0, key(0)).interval(0) == (300 * SECOND, 500 * SECOND)


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_times_of_flash_are_those_of_its_own_rule(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """FLASH looks up (time - first) % (last - first) + first in the times at which a phone is ready."""
    states = ("screen_lock", "screen_unlock", "wifi", "4g", "battery_charged_on", "battery_charged_off")
    steps = data.draw(st.lists(st.tuples(st.integers(1, 60), st.sampled_from(states)), min_size=12, max_size=40))
    first, messages = data.draw(st.integers(-500, 500)), []
    now = first
    for length, state in steps:
        messages.append((now, state))
        now += length
    ready, held, since = [], {"screen": False, "wifi": False, "battery": False}, None
    for time, state in messages:
        held["wifi" if state == "4g" else state.partition("_")[0]] = state in (states[0], states[2], states[4])
        if all(held.values()):
            since = time if since is None else since
        elif since is not None:
            ready.append((since, time))
            since = None
    folder = tmp_path_factory.mktemp("flash")
    trace = flash(folder / "states.json", {"a": messages})
    last = messages[-1][0]
    if not ready:
        assert trace.left_out == {"never available": 1}
        return
    found = converted(trace, folder / "trace.csv").of_client(0, key(0))
    for second in range(0, 3 * (last - first), 7):
        place = (second + 0.5 - first) % (last - first) + first
        at = int((second + 0.5) * SECOND)
        assert (found.interval(at).start <= at) == any(start <= place <= end for start, end in ready)


def test_phones_without_a_trace_are_left_out_and_others_refused(tmp_path: Path) -> None:
    path = tmp_path / "states.json"
    path.write_text(json.dumps({"a": {"messages": "no tab"}, "b": {"messages": ""}, "c": {}}))
    trace = read_flash(path)
    assert trace.left_out == {"with a line that is not a time and a state": 1, "without messages at two times": 2}
    for content, reason in (
        ("[1]", "is not a JSON object of devices"),
        ("{", "is not JSON"),
        ("{}", "is not a JSON obj"),
    ):
        path.write_text(content)
        with pytest.raises(ConfigError, match=reason):
            read_flash(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_flash(tmp_path / "nowhere")


def test_names_of_clients_may_have_commas(tmp_path: Path) -> None:
    trace = ConvertedTrace()
    trace.add('a,"b"', [(0, 1.5)], 10)
    model = converted(trace, tmp_path / "trace.csv")
    assert list(model.file.clients) == ['a,"b"']


def test_all_operations_are_known_to_pickletools() -> None:
    assert {*OPERATIONS} <= {operation.name for operation in pickletools.opcodes}
