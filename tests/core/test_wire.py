"""Payload to bytes and back: the format is pinned by hand, and nothing that is not a message gets through."""

import doctest
import pickle
import re
import struct
import zlib
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gossamer import SGD, Clock, Full, compose
from gossamer.core.errors import PayloadError
from gossamer.core.exchange import GLOBAL
from gossamer.core.random import key
from gossamer.core.wire import (
    ALIGNMENT,
    NOTHING,
    Body,
    Frame,
    Message,
    address,
    checksum,
    codec_id,
    expect,
    finite,
    pack,
    read_head,
    read_piece,
    read_sizes,
    sizes,
    unpack,
)
from gossamer.parts.codecs import Dense
from gossamer.testing import bound
from helpers.paths import ROOT

GOLDEN = ROOT / "tests" / "golden"
CODES = {
    torch.uint8: 1,
    torch.int8: 2,
    torch.int16: 3,
    torch.int32: 4,
    torch.int64: 5,
    torch.float16: 6,
    torch.bfloat16: 7,
    torch.float32: 8,
    torch.float64: 9,
}
SECOND = bytes.fromhex(
    "47 53 4d 52 02 01 02 00 03 00 00 00 11 00 00 00 fe 91 7e 9f 00 00 00 00 00 c0 82 40 15 00 00 00"
    "00 00 00 00 15 11 c9 d6 04 62 69 74 73 01 02 05 73 63 61 6c 65 08 01 b1 05 00 00 80 3e"
)
"""A message of the format's second version, as release 0.1 packed it."""
steady = settings(deadline=None, derandomize=True)


def up(**payload: torch.Tensor) -> Message:
    return Message("up", round=3, client=17, codec=codec_id("sign"), weight=600.0, payload=payload, version=3)


def example() -> Message:
    return up(bits=torch.tensor([177, 5], dtype=torch.uint8), scale=torch.tensor([0.25]))


def download() -> Message:
    """A model and a section that all clients get, and a section of the client's own, shaped as the model."""
    common = {"values": torch.tensor([1.0, -2.0]), "@rate": torch.tensor([0.5])}
    own = {"@control.values": torch.tensor([0.25, 3.0])}
    return Message("down", 3, 17, codec_id("dense"), 0.0, own, exchange=1, version=3, common=common)


def same(one: Message, other: Message) -> bool:
    def fields(m: Message) -> tuple[object, ...]:
        weight = struct.pack("<d", m.weight)
        return m.kind, m.round, m.client, m.codec, weight, m.exchange, m.version, sorted(m.common), sorted(m.payload)

    def raw(tensor: torch.Tensor) -> tuple[torch.dtype, list[int]]:
        return tensor.dtype, tensor.clone().view(torch.uint8).tolist()

    return fields(one) == fields(other) and all(raw(one.arrays[n]) == raw(other.arrays[n]) for n in one.arrays)


def resealed(data: bytes, length: int | None = None) -> bytes:
    """The same bytes with a right checksum and, unless one is given, a right length."""
    body = data[47:]
    head = data[:35] + struct.pack("<Q", len(body) if length is None else length)
    return head + struct.pack("<I", zlib.crc32(body + head)) + body


def by_hand(
    table: bytes, arrays: bytes = b"", count: int = 1, kind: int = 1, weight: float = 1.0, common: int = 0
) -> bytes:
    """A sealed message with any table; ``common`` is the number of common arrays."""
    head = struct.pack("<4sBBBHHIIIIdQI", b"GSMR", 3, kind, 0, common, count, 0, 0, 0, 0, weight, 0, 0)
    return resealed(head + table + arrays)


def varint(number: int) -> bytes:
    """LEB128, slow and obvious: cut the binary digits into sevens."""
    digits = f"{number:b}"
    digits = digits.zfill(-(-len(digits) // 7) * 7)
    groups = [int(digits[i : i + 7], 2) for i in range(0, len(digits), 7)][::-1]
    return bytes([group + 128 for group in groups[:-1]] + [groups[-1]])


def slow_pack(m: Message) -> bytes:
    """The format from its description, one value at a time."""
    letters = dict(zip(CODES, "Bbhiqehfd", strict=True))

    def piece(payload: dict[str, torch.Tensor]) -> bytes:
        table, arrays = b"", b""
        for name, tensor in sorted(payload.items()):
            table += bytes([len(name)]) + name.encode("ascii") + bytes([CODES[tensor.dtype]]) + varint(len(tensor))
            plain = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
            arrays += b"".join(struct.pack("<" + letters[tensor.dtype], value) for value in plain.tolist())
        return table + arrays

    kind = {"down": 0, "up": 1}[m.kind]
    head = struct.pack("<4sBBBHH", b"GSMR", 3, kind, m.exchange, len(m.common), len(m.payload))
    numbers = struct.pack("<IIIId", m.round, m.version, m.client, m.codec, m.weight)
    return resealed(head + numbers + bytes(12) + piece(m.common) + piece(m.payload))


def tensors(special: bool) -> st.SearchStrategy[torch.Tensor]:
    """Tensors of any type on the wire; with arbitrary bits if ``special``, else without NaN."""

    def build(dtype: torch.dtype, raw: bytes) -> torch.Tensor:
        whole = bytearray(raw[: len(raw) // dtype.itemsize * dtype.itemsize])
        tensor = torch.frombuffer(whole, dtype=dtype).clone() if whole else torch.empty(0, dtype=dtype)
        return tensor if special or not dtype.is_floating_point else torch.nan_to_num(tensor)

    return st.builds(build, st.sampled_from(list(CODES)), st.binary(max_size=64))


names = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=12).filter("overhead".__ne__)
u32 = st.integers(0, 2**32 - 1)
weights = st.floats(min_value=0, allow_infinity=False)


def messages(special: bool = True) -> st.SearchStrategy[Message]:
    payloads = st.dictionaries(names, tensors(special), max_size=5)
    shared = st.dictionaries(names, tensors(special), max_size=3)
    built = st.builds(
        Message, st.sampled_from(["down", "up"]), u32, u32, u32, weights, payloads, st.integers(0, 255), u32, shared
    )
    return built.filter(lambda message: not message.common.keys() & message.payload.keys())


# The format


def test_the_header_is_as_written_down() -> None:
    data = pack(example())
    assert data[:43].hex(" ") == (
        "47 53 4d 52 03 01 00 "  # magic, version 3, up, the round's first exchange
        "00 00 02 00 "  # no array is common, 2 are the client's own
        "03 00 00 00 03 00 00 00 11 00 00 00 fe 91 7e 9f "  # round 3, version 3, client 17, the CRC-32 of "sign"
        "00 00 00 00 00 c0 82 40 15 00 00 00 00 00 00 00"  # weight 600.0, 21 bytes follow
    )
    assert data[43:47] == struct.pack("<I", zlib.crc32(data[47:] + data[:43]))


def test_the_body_is_as_written_down() -> None:
    assert pack(example())[47:] == b"\x04bits\x01\x02" + b"\x05scale\x08\x01" + bytes([177, 5]) + b"\0\0\x80\x3e"


def test_the_common_piece_comes_before_the_clients_own() -> None:
    data = pack(download())
    assert data[:43].hex(" ") == (
        "47 53 4d 52 03 00 01 "  # magic, version 3, down, the round's second exchange
        "02 00 01 00 "  # 2 arrays are common, 1 is the client's own
        "03 00 00 00 03 00 00 00 11 00 00 00 69 78 eb dd "  # round 3, version 3, client 17, the CRC-32 of "dense"
        "00 00 00 00 00 00 00 00 37 00 00 00 00 00 00 00"  # weight 0.0, 55 bytes follow
    )
    assert data[43:47] == struct.pack("<I", zlib.crc32(data[47:] + data[:43]))
    common = b"\x05@rate\x08\x01" + b"\x06values\x08\x02" + b"\0\0\0\x3f" + b"\0\0\x80\x3f\0\0\0\xc0"
    assert data[47:] == common + b"\x0f@control.values\x08\x02" + b"\0\0\x80\x3e\0\0\x40\x40"


def test_a_message_is_the_sum_of_its_pieces() -> None:
    message = download()
    frame = address(message.head, Body.of(message.payload), Body.of(message.common))
    assert bytes(frame) == frame.head + frame.common + frame.single == pack(message)
    assert len(frame) == len(pack(message))
    assert (len(frame.head), len(frame.common), len(frame.single)) == (47, 29, 26)
    cut = Frame.of(pack(message))
    assert (cut.head, cut.common, cut.single) == (frame.head, frame.common, frame.single)
    assert Frame.of(frame) is frame
    assert same(unpack(frame), message)
    assert read_sizes(frame) == sizes(message)


def test_a_client_s_piece_is_not_copied_and_its_arrays_are_aligned_copies() -> None:
    data = pack(download())
    cut = Frame.of(data)
    assert isinstance(cut.single, memoryview)
    assert cut.single.obj is data
    arrays = read_piece(
        Body.of({"a": torch.ones(3, dtype=torch.uint8), "b": torch.arange(5.0), "c": torch.ones(0)}).data, 3
    )
    assert [array.tolist() for array in arrays.values()] == [[1, 1, 1], [0, 1, 2, 3, 4], []]
    assert all(array.data_ptr() % ALIGNMENT == 0 for array in (arrays["a"], arrays["b"]))
    arrays["a"].zero_()
    assert arrays["b"].tolist() == [0, 1, 2, 3, 4], "arrays do not overlap"


def test_a_common_piece_is_made_and_checked_once() -> None:
    """Two clients get the same bytes; a second check of them is not needed."""
    common, own = Body.of(download().common), Body.of(download().payload)
    head = download().head
    one, two = address(head, own, common), address(head._replace(client=18), NOTHING, common)
    assert one.common is two.common
    assert [unpack(frame).client for frame in (one, two)] == [17, 18]
    arrived = Frame.of(bytes(one))
    assert read_head(one) == read_head(arrived) == read_head(arrived, checksum(one.common)) == (head, (2, 1))
    with pytest.raises(PayloadError, match="message has checksum"):
        read_head(arrived, checksum(bytes(one.common) + b"x"))


def test_a_message_that_leaves_the_process_is_checked_when_it_comes_back() -> None:
    made = address(download().head, Body.of(download().payload), Body.of(download().common))
    for away in (pickle.loads(pickle.dumps(made)), Frame.of(bytes(made)), Frame(made.head, made.common, made.single)):
        assert made.checksum is not None
        assert away.checksum is None
        assert bytes(away) == bytes(made)
        damaged = Frame(away.head, away.common, bytes(away.single[:-1]) + b"?")
        with pytest.raises(PayloadError, match="message has checksum"):
            read_head(damaged)
    cut = Frame.of(bytes(made))
    assert isinstance(cut.single, memoryview)
    assert bytes(pickle.loads(pickle.dumps(cut))) == bytes(made), "views are pickled as bytes"


def test_the_documented_message_is_the_packed_one() -> None:
    block = re.search(r"```hex\n(.*?)```", (ROOT / "docs" / "wire.md").read_text(encoding="utf-8"), re.DOTALL)
    assert block is not None
    lines = [re.match(r"((?:[0-9a-f]{2} )+)", line) for line in block[1].splitlines()]
    assert bytes.fromhex("".join(line[1] for line in lines if line)) == pack(download())


def test_examples_in_the_documentation_hold() -> None:
    result = doctest.testfile(str(ROOT / "docs" / "wire.md"), module_relative=False)
    assert result.attempted > 5
    assert result.failed == 0


def test_a_codec_is_known_by_the_crc_of_its_description() -> None:
    assert codec_id("sign") == 0x9F7E91FE
    assert codec_id("") == 0
    exchange = bound(compose(Full(), SGD(), down=Dense("float16")).training)
    state, clock = {"params": exchange.context.network.initial()}, Clock(0, 1, 0)
    sent = exchange.make_download(state, clock, key(1), GLOBAL, None, None)
    assert unpack(sent.data).codec == codec_id("Dense(dtype='float16')")


def golden_messages() -> dict[str, Message]:
    def t(values: list[float], dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(values, dtype=dtype)

    every = {
        "u8": t([0, 255], torch.uint8),
        "i8": t([-128, 127], torch.int8),
        "i16": t([-(2**15), 2**15 - 1], torch.int16),
        "i32": t([-(2**31), 2**31 - 1], torch.int32),
        "i64": t([-(2**63), 2**63 - 1], torch.int64),
        "f16": t([1.5, -65504.0], torch.float16),
        "bf16": t([1.5, -3.0], torch.bfloat16),
        "f32": t([1.5, float("inf")], torch.float32),
        "f64": t([0.1, -1e300], torch.float64),
        "none": t([], torch.int32),
    }
    dense = t([0.0, -0.0, 1.0, -2.5, 3.4028234663852886e38], torch.float32)
    long = (torch.arange(200) % 251).to(torch.uint8)  # a count of two bytes
    return {
        "common": download(),
        "empty": Message("down", 0, 0, 0, 0.0, {}),
        "dense": Message("up", 41, 7, codec_id("dense"), 600.0, {"values": dense}),
        "sign": example(),
        "every-type": Message("down", 2**32 - 1, 2**32 - 1, 2**32 - 1, 0.125, every, 2**8 - 1, 2**32 - 1),
        "long": Message("up", 1, 2, codec_id("masked-noise"), 1.0, {"bits": long}),
    }


@pytest.mark.parametrize("name", golden_messages())
def test_golden_messages_are_read_and_written_for_ever(name: str) -> None:
    data = (GOLDEN / f"{name}.bin").read_bytes()
    message = golden_messages()[name]
    assert same(unpack(data), message)
    assert pack(message) == data


def test_every_golden_file_is_checked() -> None:
    assert {path.stem for path in GOLDEN.glob("*.bin")} == set(golden_messages())


@steady
@given(messages(special=False))
def test_pack_follows_the_description(message: Message) -> None:
    assert pack(message) == slow_pack(message)


# Round trips and cost


@steady
@given(messages())
def test_what_was_packed_comes_back_bit_for_bit(message: Message) -> None:
    data = pack(message)
    back = unpack(data)
    assert same(back, message)
    assert pack(back) == data


@steady
@given(messages())
def test_sizes_sum_to_the_length(message: Message) -> None:
    found = sizes(message)
    assert set(found) == {*message.arrays, "overhead"}
    assert sum(found.values()) == len(pack(message))
    assert all(found[name] == tensor.numel() * tensor.element_size() for name, tensor in message.arrays.items())
    assert read_sizes(Frame.of(pack(message))) == found


@pytest.mark.parametrize("n", [0, 1, 127, 128, 200_000])
def test_a_dense_vector_costs_little_more_than_its_values(n: int) -> None:
    assert 4 * n < len(pack(up(values=torch.zeros(n)))) <= 4 * n + 64


@pytest.mark.parametrize("count", [0, 1, 127, 128, 16_383, 16_384, 70_000])
def test_counts_are_leb128(count: int) -> None:
    data = pack(up(x=torch.zeros(count, dtype=torch.uint8)))
    assert data[50 : len(data) - count] == varint(count)


def test_order_of_insertion_does_not_matter() -> None:
    one, two = torch.ones(1), torch.zeros(2)
    assert pack(up(a=one, b=two)) == pack(up(b=two, a=one))
    assert list(unpack(pack(up(b=two, a=one))).payload) == ["a", "b"]


def test_tensors_come_back_writable_and_ready_to_view() -> None:
    data = pack(up(a=torch.zeros(3, dtype=torch.uint8), b=torch.arange(5.0), c=torch.zeros(0)))
    payload = unpack(data).payload
    payload["b"].mul_(2)
    assert payload["b"].tolist() == [0, 2, 4, 6, 8]
    assert payload["b"].data_ptr() % 4 == 0
    assert payload["c"].view(torch.uint8).numel() == 0
    assert unpack(data).payload["b"].tolist() == [0, 1, 2, 3, 4]


def test_pack_takes_tensors_as_they_are() -> None:
    strided = torch.arange(6.0)[::2]
    learned = torch.ones(2, requires_grad=True)
    payload = unpack(pack(up(strided=strided, learned=learned))).payload
    assert payload["strided"].tolist() == [0, 2, 4]
    assert payload["learned"].tolist() == [1, 1]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_can_be_unpacked(kind: type) -> None:
    assert same(unpack(kind(pack(example()))), example())


# Refusals of what is packed


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ({"x": torch.zeros(2, 2)}, "'x' must have 1 dimension, got 2"),
        ({"x": torch.tensor(1.0)}, "'x' must have 1 dimension, got 0"),
        ({"x": torch.zeros(2, dtype=torch.bool)}, "'x' is bool, which the wire format does not support"),
        ({"x": torch.zeros(2, dtype=torch.complex64)}, "'x' is complex64"),
        ({"": torch.zeros(1)}, "array name '' must be 1 to 255 printable ASCII"),
        ({"x" * 256: torch.zeros(1)}, "must be 1 to 255 printable ASCII"),
        ({"naïve": torch.zeros(1)}, "array name 'naïve'"),
        ({"a\n": torch.zeros(1)}, r"array name 'a\\n'"),
        ({"overhead": torch.zeros(1)}, "not 'overhead'"),
        ({str(i): torch.zeros(0) for i in range(65_536)}, "at most 65,535 arrays, got 65,536"),
    ],
)
def test_pack_refuses_what_has_no_form(payload: dict[str, torch.Tensor], reason: str) -> None:
    for make in (pack, sizes):
        with pytest.raises(PayloadError, match=reason):
            make(up(**payload))


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("round", -1, "round must be from 0 to 4,294,967,295, got -1"),
        ("client", 2**32, "client must be from 0"),
        ("codec", 2**32, "codec must be from 0"),
        ("exchange", 256, "exchange must be from 0 to 255, got 256"),
        ("version", -1, "version must be from 0 to 4,294,967,295, got -1"),
        ("weight", -1.0, "weight must be finite and at least 0, got -1.0"),
        ("weight", float("nan"), "got nan"),
        ("weight", float("inf"), "got inf"),
        ("kind", "sideways", "kind must be 'down' or 'up', got 'sideways'"),
    ],
)
def test_pack_refuses_a_header_out_of_range(field: str, value: object, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        pack(replace(Message("up", 0, 0, 0, 1.0, {}), **cast(Any, {field: value})))


def test_pack_refuses_an_array_that_is_in_both_pieces() -> None:
    twice = replace(example(), common={"scale": torch.zeros(1)})
    with pytest.raises(PayloadError, match="array 'scale' is in both pieces of the message"):
        pack(twice)


# Refusals of what arrives


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "message holds 0 bytes, a header alone has 47"),
        (pack(example())[:46], "message holds 46 bytes, a header alone has 47"),
        (pack(example())[:67], "message holds 67 bytes, its header says 68"),
        (pack(example()) + b"\0", "message holds 69 bytes, its header says 68"),
        (pack(download())[:60], "message holds 60 bytes, its header says 102"),
        (b"ELF!" + pack(example())[4:], "message begins with b'ELF!', not b'GSMR'"),
        (b"GSMR\x02" + pack(example())[5:], "message has version 2, this release reads version 3"),
        (SECOND, "message has version 2, this release reads version 3"),
        (pack(example())[:-1] + b"\0", "message has checksum [0-9a-f]{8}, its header says ac842dc2"),
        (resealed(pack(example()), length=2**64 - 1), "its header says 18446744073709551662"),
        (by_hand(b"", count=0, kind=2), "message has kind 2"),
        (by_hand(b"", count=0, weight=-1.0), "weight must be finite and at least 0, got -1.0"),
        (by_hand(b"", count=0, weight=float("nan")), "weight must be finite"),
        (by_hand(b"", count=0, weight=float("inf")), "weight must be finite"),
        (by_hand(b"", b"abc", count=0), "arrays hold 3 bytes, the table says 0"),
        (by_hand(b"", count=1), "table runs past the body's 0 bytes"),
        (by_hand(b"\x01a\x08\x00", count=65_535), "table runs past"),
        (by_hand(b"\x09abc"), "table ends inside a name of 9 bytes"),
        (by_hand(b"\x01a"), "table runs past"),
        (by_hand(b"\x01a\x08"), "table runs past"),
        (by_hand(b"\x01a\x08\x80"), "table runs past"),
        (by_hand(b"\x00\x08\x00"), "array name ''"),
        (by_hand(b"\x01\xe9\x08\x00"), "array name 'é' must be 1 to 255 printable ASCII"),
        (by_hand(b"\x01\x07\x08\x00"), r"array name '\\x07'"),
        (by_hand(b"\x08overhead\x08\x00"), "not 'overhead'"),
        (by_hand(b"\x01a\x00\x00"), "'a' has type code 0, known are 1 to 9"),
        (by_hand(b"\x01a\x0a\x00"), "'a' has type code 10"),
        (by_hand(b"\x01a\x08\x02", bytes(7)), "arrays hold 7 bytes, the table says 8"),
        (by_hand(b"\x01a\x08\x02", bytes(9)), "arrays hold 9 bytes, the table says 8"),
        (by_hand(b"\x01a\x09" + varint(2**63 - 1), bytes(8)), "the table says 73,786,976,294,838,206,456"),
        (by_hand(b"\x01a\x09" + varint(2**63), bytes(8)), "a count has more than 63 bits"),
        (by_hand(b"\x01a\x09" + b"\xff" * 50), "a count has more than 63 bits"),
        (by_hand(b"\x01a\x01\x81\x00", b"x"), "count 1 is not encoded in the shortest form"),
        (
            by_hand(b"\x01a\x01\x00\x01a\x01\x00", count=2),
            "array 'a' comes after 'a': names must be in ascending order",
        ),
        (by_hand(b"\x01b\x01\x00\x01a\x01\x00", count=2), "array 'a' comes after 'b'"),
        (by_hand(b"\x01a\x01\x00\x01a\x01\x00", common=1), "array 'a' is in both pieces of the message"),
        (by_hand(b"\x01a\x01\x05", bytes(4), count=0, common=1), "arrays run past the message's 55 bytes"),
        (by_hand(b"\x01a\x01\x05", bytes(6), count=0, common=1), "arrays hold 1 bytes, the table says 0"),
        (by_hand(b"\x01a\x01\x00", common=1), "table runs past the body's 0 bytes"),
        (
            by_hand(b"\x01a\x09" + varint(2**63 - 1), bytes(8), count=0, common=1),
            "arrays run past the message's 67 bytes",
        ),
    ],
)
def test_unpack_refuses_with_a_reason(data: bytes, reason: str) -> None:
    with pytest.raises(PayloadError, match=reason):
        unpack(data)


def test_hand_made_messages_are_otherwise_good() -> None:
    assert unpack(by_hand(b"\x01a\x08\x02", bytes(8))).payload["a"].tolist() == [0, 0]
    assert unpack(by_hand(b"\x01a\x08\x02", bytes(8), count=0, common=1)).common["a"].tolist() == [0, 0]


@steady
@given(messages(), st.data())
def test_no_part_of_a_message_is_a_message(message: Message, data: st.DataObject) -> None:
    whole = pack(message)
    with pytest.raises(PayloadError):
        unpack(whole[: data.draw(st.integers(0, len(whole) - 1))])


@steady
@given(messages(), st.binary(min_size=1, max_size=9))
def test_nothing_may_follow_a_message(message: Message, more: bytes) -> None:
    with pytest.raises(PayloadError):
        unpack(pack(message) + more)


@steady
@given(messages(), st.data())
def test_flipped_bits_are_found(message: Message, data: st.DataObject) -> None:
    altered = bytearray(pack(message))
    # The CRC-32 finds any three flipped bits in messages of this length, not merely most.
    indices = data.draw(st.sets(st.integers(0, 8 * len(altered) - 1), min_size=1, max_size=3))
    for index in indices:
        altered[index // 8] ^= 1 << index % 8
    with pytest.raises(PayloadError):
        unpack(bytes(altered))


def refused_or_faithful(data: bytes) -> None:
    """Whatever is not refused must be a message in its only form."""
    try:
        message = unpack(data)
    except PayloadError:
        return
    assert pack(message) == data


@settings(steady, max_examples=300)
@given(messages(), st.data())
def test_altered_and_resealed_messages_do_no_harm(message: Message, data: st.DataObject) -> None:
    altered = bytearray(pack(message))
    for index in data.draw(st.lists(st.integers(0, len(altered) - 1), min_size=1, max_size=4)):
        altered[index] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(47, len(altered)))
    refused_or_faithful(resealed(bytes(altered[:cut])))


@settings(steady, max_examples=300)
@given(st.integers(0, 4), st.integers(0, 2), st.binary(max_size=60))
def test_random_tables_do_no_harm(count: int, common: int, body: bytes) -> None:
    refused_or_faithful(by_hand(body, count=count, common=common))


@steady
@given(st.binary(max_size=100))
def test_random_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(PayloadError):
        unpack(data)


@steady
@given(st.lists(st.integers(0, 255), max_size=12).map(bytes))
def test_varints_have_one_form(groups: bytes) -> None:
    try:
        count = unpack(by_hand(b"\x01a\x01" + groups)).payload["a"].numel()
    except PayloadError:
        return
    assert groups[: len(varint(count))] == varint(count)


# What codecs ask of a payload


def test_expect_gives_the_tensor() -> None:
    values = torch.zeros(3)
    assert expect({"values": values}, "values", torch.float32, 3) is values


@pytest.mark.parametrize(
    ("payload", "got"),
    [
        ({}, "got an empty payload"),
        ({"scale": torch.zeros(1), "bits": torch.zeros(1)}, "got 'bits', 'scale'"),
        ({"values": torch.zeros(412)}, "got 412 float32 values"),
        ({"values": torch.zeros(389_920, dtype=torch.int8)}, "got 389,920 int8 values"),
        ({"values": torch.zeros(389_920, 1)}, "got 389,920 float32 values in 2 dimensions"),
    ],
)
def test_expect_names_what_it_expected(payload: dict[str, torch.Tensor], got: str) -> None:
    with pytest.raises(PayloadError, match=f"^expected 389,920 float32 values named 'values', {got}$"):
        expect(payload, "values", torch.float32, 389_920)


def test_finite_gives_the_tensor() -> None:
    for values in (torch.zeros(3), torch.zeros(0), torch.ones(2, dtype=torch.int8)):
        assert finite(values, "values") is values


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_finite_counts_what_is_not(dtype: torch.dtype) -> None:
    values = torch.tensor([1.0, float("nan"), float("inf"), float("-inf")], dtype=dtype)
    with pytest.raises(PayloadError, match=r"^'scale' holds 3 of 4 values that are not finite$"):
        finite(values, "scale")
