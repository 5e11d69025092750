"""The compiled functions do what their plain twins do, for whatever they are given: results, bytes
written, errors.

Where nothing is compiled the same tests run on the plain ones alone (the header of the run says
so): against what is known of them.
"""

import copy
import json
import mmap
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import turbopump.auth.signatures
import turbopump.broker.handlers.send
import turbopump.message.pulled
import turbopump.store.message_store  # noqa: F401  (the imports: every function with a twin is known then)
from turbopump.auth.signatures import signed_in_header
from turbopump.client.consumer.delivery import Delivery
from turbopump.compiled import IS_COMPILED, KIND, TWINS
from turbopump.errors import ProtocolError
from turbopump.message.batch import decode_batch, encode_item
from turbopump.message.codec import decode_entry, encode_entry, entry_fault, without_crc
from turbopump.message.entry import CRC_NAME
from turbopump.message.java import java_hash
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import decode_properties, property_value
from turbopump.store.index.index_file import key_hash
from turbopump.store.queues.checked_entries import entry_fields
from turbopump.store.queues.consume_queue import pack_unit

NAMES = (
    *("write_entry", "send_properties", "key_hash", "put_entries", "send_reply"),
    *(
        "read_batch",
        "write_batch",
        "batch_reply",
        "unread_messages",
        "property_texts",
        "value_after",
    ),
    *("gather", "identified_item", "good_positions"),
    *("outlive_lost_pages", "lost_pages", "signed_in_header", "packed_run"),
)
OF_SPARK = {"split_properties", "walk_entries"}
"""Those of ``turbopump.spark``, if that is loaded: ``tests/spark/test_decode.py`` compares them."""
KINDS = ("plain", "compiled") if IS_COMPILED else ("plain",)
each_kind = pytest.mark.parametrize("kind", KINDS)

int32 = st.integers(-(1 << 31), (1 << 31) - 1)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
any_int = st.one_of(int32, int64, st.integers(-(1 << 70), 1 << 70))
hosts = st.sampled_from([bytes(8), bytes(range(20)), b"", b"12345"])
ascii_text = st.text(st.characters(max_codepoint=127), max_size=40)
odd = st.one_of(
    st.none(), st.integers(), st.binary(max_size=5).map(bytearray), st.text(max_size=3), st.floats()
)
pairs = st.lists(
    st.sampled_from(
        [
            "UNIQ_KEY",
            "TAGS",
            "KEYS",
            "DELAY",
            "TIMER_D",
            "TRAN_MSG",
            "POP_CK",
            "INNER_NUM",
            "D",
            "v",
            "é",
            "\x01",
            "\x02",
        ]
    )
)
property_bytes = st.one_of(
    st.binary(max_size=20),
    pairs.map(lambda found: "\x01v\x02".join(found).encode()),
    st.lists(
        st.sampled_from(
            [
                *(
                    b"UNIQ_KEY\x01u\x02",
                    b"KEYS\x01a  b \x02",
                    b"TAGS\x01t\x02",
                    "KEYS\x01é\x02".encode(),
                    "n\x01é\x02".encode(),
                ),
                *(
                    b"__CRC32#\x011234567890\x02",
                    b"x__CRC32#\x01y\x02",
                    b"n\x01v",
                    b"\xff",
                    b"DELAY\x013\x02",
                ),
            ]
        ),
        max_size=4,
    ).map(b"".join),
)
batches = st.lists(
    st.builds(encode_item, int32, st.binary(max_size=40), property_bytes), max_size=5
).map(b"".join)
cut_batches = st.builds(
    lambda batch, cut, tail: batch[: cut % (len(batch) + 1)] + tail,
    batches,
    st.integers(0),
    st.binary(max_size=9),
)
lying_batches = st.builds(
    lambda batch, at, value: (
        batch[: at % (len(batch) + 1)] + bytes([value]) + batch[at % (len(batch) + 1) + 1 :]
    ),
    batches,
    st.integers(0),
    st.integers(0, 255),
)


def function(name: str, kind: str) -> Callable[..., Any]:
    found = getattr(TWINS[name], kind)
    assert found is not None
    return found  # type: ignore[no-any-return]


def outcome(
    name: str, kind: str, *arguments: Any, buffer: bytearray | None = None
) -> tuple[object, ...]:
    """What a call gives: its result or its error, and the bytes of the buffer, which comes first
    among the arguments."""
    given_buffer = [bytearray(buffer)] if buffer is not None else []
    try:
        result = function(name, kind)(*given_buffer, *arguments)
    except Exception as error:
        return type(error), str(error), *map(bytes, given_buffer)
    return type(result), result, *map(bytes, given_buffer)


def agree(name: str, *arguments: Any, buffer: bytearray | None = None) -> tuple[object, ...]:
    """The outcome that all kinds agree on."""
    outcomes = [outcome(name, kind, *arguments, buffer=buffer) for kind in KINDS]
    assert all(one == outcomes[0] for one in outcomes), (name, arguments, outcomes)
    return outcomes[0]


CUT_FILE = """
import mmap, os, sys
from turbopump.disk.maps import lost_pages, outlive_lost_pages
print(outlive_lost_pages(), lost_pages(), flush=True)
descriptor = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(descriptor, 1 << 20)
memory = mmap.mmap(descriptor, 1 << 20)
os.ftruncate(descriptor, 0)
memory[100:103] = b"abc"
print(memory[100:103], memory[1 << 19 : (1 << 19) + 2], lost_pages())
"""


@each_kind
def test_a_page_that_its_file_no_longer_has_ends_the_process_unless_a_compiled_function_helps(
    kind: str, tmp_path: Path
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CUT_FILE, str(tmp_path / "file")],
        env={**os.environ, "TURBOPUMP_PURE": str(int(kind == "plain"))},
        capture_output=True,
        text=True,
        check=False,
    )
    if kind == "plain":
        assert (done.returncode, done.stdout) == (-signal.SIGBUS, "False 0\n")
    else:
        assert (done.returncode, done.stdout) == (0, "True 0\nb'abc' b'\\x00\\x00' 2\n"), (
            done.stderr
        )


def test_every_function_with_a_twin_is_tested_here() -> None:
    assert set(TWINS) - OF_SPARK == set(NAMES)


def test_either_all_are_compiled_or_none() -> None:
    lacking = [name for name, twins in TWINS.items() if twins.compiled is None]
    assert lacking == ([] if IS_COMPILED else list(TWINS)), (
        "turbopump._hot is of an older source: pip install -e ."
    )


@given(
    st.tuples(int32, int32, int64, int64, int32, int64, hosts, int64, hosts, int32, int64),
    st.binary(max_size=300),
    st.one_of(
        st.binary(max_size=20),
        st.sampled_from([b"t" * 127, b"t" * 128, b"t" * 255, b"t" * 256, b"t" * 70_000]),
    ),
    st.one_of(
        st.binary(max_size=60),
        st.sampled_from([b"p" * 32_000, b"p" * 65_515, b"p" * 65_516, b"p" * 70_000]),
    ),
    st.booleans(),
    st.integers(-3, 900),
)
def test_an_entry_is_written_as_encode_entry_makes_it_or_not_at_all(
    fields: tuple[Any, ...], body: bytes, topic: bytes, properties: bytes, with_crc: bool, at: int
) -> None:
    buffer = bytearray(b"\xee" * 1000)
    rest = (*fields, body, topic, properties, with_crc)
    kind, result, written = agree("write_entry", at, *rest, buffer=buffer)
    if kind is int:
        entry = encode_entry(*rest)
        assert (result, written) == (len(entry), buffer[:at] + entry + buffer[at + len(entry) :])
    else:
        assert written == buffer


@given(
    st.one_of(any_int, odd),
    st.binary(max_size=300),
    st.one_of(ascii_text, st.text(max_size=20)),
    property_bytes,
)
@example(0, b"b", "A" * 65_524, b"\x02")
@example(0, b"b", "A" * 65_525, b"\x02")
def test_an_item_of_a_batch_has_its_id_as_a_property_and_what_comes_behind(
    flag: Any, body: bytes, msg_id: str, more: bytes
) -> None:
    kind, result = agree("identified_item", flag, body, msg_id, more)
    if kind is bytes:
        assert isinstance(result, bytes)
        (item,) = decode_batch(result)
        assert item == (flag, body, b"UNIQ_KEY\x01%b\x02%b" % (msg_id.encode(), more))


@given(odd, odd, odd, odd)
def test_odd_items_of_a_batch_are_refused_alike(
    flag: Any, body: Any, msg_id: Any, more: Any
) -> None:
    for arguments in (
        (flag, b"b", "A", b""),
        (0, body, "A", b""),
        (0, b"b", msg_id, b""),
        (0, b"b", "A", more),
    ):
        agree("identified_item", *arguments)


@given(st.lists(st.one_of(any_int, odd), min_size=11, max_size=11), odd, odd, odd, hosts)
def test_a_field_of_an_entry_that_cannot_be_is_refused_alike(
    values: list[Any], body: Any, topic: Any, text: Any, host: bytes
) -> None:
    values[6], values[8] = host, host
    for arguments in (
        (*values, b"b", b"t", b"", True),
        (*[value if isinstance(value, bytes) else 1 for value in values], body, topic, text, True),
    ):
        agree("write_entry", 0, *arguments, buffer=bytearray(300))


@each_kind
def test_an_entry_in_a_map_can_be_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "map"
    path.write_bytes(bytes(4096))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0) as buffer:
        write = function("write_entry", kind)
        size = write(
            buffer,
            100,
            3,
            0,
            7,
            100,
            0,
            5,
            bytes(8),
            6,
            bytes(8),
            0,
            0,
            b"body" * 300,
            b"T",
            b"a\x01b\x02",
            True,
        )
        entry = buffer[100 : 100 + size]
        assert entry_fault(entry, 100, crc_required=True) is None
        assert decode_entry(entry).body == b"body" * 300
        with pytest.raises(ValueError, match="does not fit"):
            write(
                buffer,
                4096 - size + 1,
                3,
                0,
                7,
                1,
                0,
                5,
                bytes(8),
                6,
                bytes(8),
                0,
                0,
                b"body" * 300,
                b"T",
                b"a\x01b\x02",
                True,
            )
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as buffer,
        pytest.raises(TypeError),
    ):
        write(
            buffer, 100, 3, 0, 7, 100, 0, 5, bytes(8), 6, bytes(8), 0, 0, b"body", b"T", b"", True
        )


@given(
    st.one_of(st.text(max_size=60), pairs.map("".join), pairs.map("\x01v\x02".join)),
    st.binary(max_size=20),
)
@example("UNIQ_KEY\x01a\x02UNIQ_KEY\x01\x02", b"")
@example("xUNIQ_KEY\x01a\x02TAGS\x01t", b"")
@example("KEYS\x01a b\x01c", b"+")
@example("A\x01UNIQ_KEY\x01b\x02", b"+")
def test_what_a_send_needs_of_its_properties(text: str, added: bytes) -> None:
    agree("send_properties", text, added)
    for kind in KINDS:
        try:
            special, unique, tags, keys, stored = function("send_properties", kind)(text, added)
        except UnicodeEncodeError:
            continue
        properties = decode_properties(text)
        assert (unique, tags, keys) == tuple(map(properties.get, ("UNIQ_KEY", "TAGS", "KEYS")))
        assert special or not {"DELAY", "TRAN_MSG", "POP_CK", "TIMER_DELAY_MS"} & set(properties)
        assert stored == (text + ("\x02" if text and text[-1] != "\x02" else "")).encode() + added


@given(odd, odd)
def test_odd_properties_are_refused_alike(text: Any, added: Any) -> None:
    agree("send_properties", text, added)
    agree("send_properties", "a", added)


@given(
    st.one_of(ascii_text, st.text(max_size=20), odd),
    st.one_of(ascii_text, st.text(max_size=20), odd),
)
@example("", "#polygenelubricants")  # whose hash has no positive twin is left to chance elsewhere
def test_the_hash_of_a_key_is_javas(topic: Any, key: Any) -> None:
    agree("key_hash", topic, key)
    if isinstance(topic, str) and isinstance(key, str):
        value = java_hash(f"{topic}#{key}")
        assert function("key_hash", KINDS[-1])(topic, key) == (
            0 if value == -0x8000_0000 else abs(value)
        )


@each_kind
def test_the_hash_without_a_positive_twin_is_0(kind: str) -> None:
    text = _hash_of(0x8000_0000)
    assert java_hash("T#" + text) == -0x8000_0000
    assert function("key_hash", kind)("T", text) == 0


def _hash_of(wanted: int) -> str:
    """Text that, behind ``T#``, has this hash: digits in base 31 that are printable."""
    head = java_hash("T#")
    for size in range(6, 9):
        rest = (wanted - head * 31**size - sum(48 * 31**power for power in range(size))) % (1 << 32)
        digits = []
        for _ in range(size):
            rest, digit = divmod(rest, 31)
            digits.append(chr(48 + digit))
        if rest == 0:
            return "".join(reversed(digits))
    raise AssertionError("none found")


@given(
    st.integers(-1, 12),
    st.integers(-1, 14),
    st.integers(-5, 10_000),
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, 40), st.integers(0, 1 << 62), st.integers(0, 1 << 45)),
            st.tuples(*[st.one_of(any_int, odd)] * 3),
            odd,
        ),
        max_size=9,
    ),
    st.binary(max_size=40),
)
def test_entries_of_an_index_are_written_alike(
    slots: int, number: int, begin_ms: int, entries: list[Any], slot_bytes: bytes
) -> None:
    buffer = bytearray(40) + slot_bytes.ljust(40, b"\0") + bytes(220)  # ten slots, eleven entries
    agree("put_entries", slots, number, begin_ms, entries, buffer=buffer)


@each_kind
def test_entries_with_one_slot_form_a_chain(kind: str) -> None:
    buffer = bytearray(40 + 10 * 4 + 4 * 20)
    assert (
        function("put_entries", kind)(
            buffer, 10, 1, 1000, [(3, 70, 1000), (13, 80, 3500), (4, 90, 4000)]
        )
        == 2
    )
    assert struct.unpack_from(">i", buffer, 40 + 3 * 4) == (2,)
    assert struct.unpack_from(">iqii", buffer, 80 + 2 * 20) == (13, 80, 2, 1)


@given(
    any_int,
    int32,
    any_int,
    any_int,
    st.one_of(ascii_text, st.text(max_size=20), st.from_regex("[0-9A-Z]{32}", fullmatch=True)),
)
def test_the_answer_to_a_send(
    opaque: int, queue_id: int, offset: int, queue_offset: int, unique: str
) -> None:
    agree(
        "send_reply", b'{"head', b"tail}", b"0A0B", opaque, queue_id, offset, queue_offset, unique
    )


@given(st.lists(odd, min_size=8, max_size=8))
def test_odd_parts_of_an_answer_are_refused_alike(values: list[Any]) -> None:
    agree("send_reply", *values)
    agree("batch_reply", *values)
    agree("batch_reply", b"", b"", b"", 1, 2, values[0], 3, "u")


@given(
    any_int,
    int32,
    st.one_of(st.binary(max_size=80), st.binary(min_size=60, max_size=60)),
    any_int,
    st.one_of(ascii_text, odd),
)
def test_the_answer_to_a_batch(
    opaque: int, queue_id: int, units: bytes, queue_offset: int, unique: Any
) -> None:
    agree(
        "batch_reply", b'{"head', b"tail}", b"0A0B", opaque, queue_id, units, queue_offset, unique
    )


@each_kind
def test_the_answer_to_a_batch_names_every_message(kind: str) -> None:
    units = b"".join(struct.pack(">qiq", offset, 100, 0) for offset in (7, 0x1234567890))
    frame = function("batch_reply", kind)(b'{"msgId":"', b"}", b"0A", 5, 3, units, 9, "U1")
    assert frame[8:] == (
        b'{"msgId":"0A0000000000000007,0A0000001234567890","queueId":"3","queueOffset":"9","transactionId":"U1"},'
        b'"flag":1,"language":"PYTHON","opaque":5}'
    )
    assert struct.unpack(">II", frame[:8]) == (len(frame) - 4, len(frame) - 8)
    nameless = function("batch_reply", kind)(b'{"msgId":"', b"}", b"0A", 5, 3, units, 9, None)
    assert nameless[8:] == frame[8:].replace(b',"transactionId":"U1"', b"")


@given(
    st.one_of(batches, cut_batches, lying_batches),
    st.sampled_from(["T", "topic", "té"]),
    st.sampled_from([b"", b"a\x01b\x02", b"+"]),
)
def test_a_batch_is_read_alike_or_refused_alike(data: bytes, topic: str, added: bytes) -> None:
    agree("read_batch", data, topic, added)


@given(odd, odd, odd)
def test_odd_batches_are_refused_alike(data: Any, topic: Any, added: Any) -> None:
    agree("read_batch", data, topic, added)
    agree("read_batch", b"", topic, b"")
    agree("read_batch", encode_item(1, b"b", b"UNIQ_KEY\x01u\x02"), topic, added)


@given(
    batches,
    st.tuples(int32, int64, int64, int32, int64, hosts, int64, hosts),
    st.one_of(
        st.binary(max_size=20), st.sampled_from([b"t" * 127, b"t" * 128, b"t" * 256, b"t" * 70_000])
    ),
    st.booleans(),
    st.one_of(st.integers(-3, 200), st.integers(1000, 2000)),
)
def test_a_batch_is_written_as_entries_side_by_side_or_not_at_all(
    data: bytes, fields: tuple[Any, ...], topic: bytes, with_crc: bool, at: int
) -> None:
    added = b"a\x01b\x02"
    try:
        whole, spans, keys, *_ = function("read_batch", "plain")(data, "T", added)
    except ProtocolError:
        return
    buffer = bytearray(b"\xee" * 2000)
    kind, result, written = agree(
        "write_batch", at, whole, spans, added, keys, *fields, topic, with_crc, buffer=buffer
    )
    if kind is not tuple:
        assert written == buffer
        return
    queue_id, index, offset, *others = fields
    expected, units = b"", []
    for number, item in enumerate(decode_batch(data)):
        text = without_crc(item.properties) if CRC_NAME in item.properties else item.properties
        text += (b"\x02" if text and text[-1] != 2 else b"") + added
        place = (queue_id, item.flag, index + number, offset + len(expected))
        entry = encode_entry(*place, *others, 0, 0, item.body, topic, text, with_crc)
        tags = decode_properties(item.properties.decode(errors="replace")).get("TAGS", "")
        units.append(struct.pack(">qiq", offset + len(expected), len(entry), java_hash(tags)))
        expected += entry
    assert written == buffer[:at] + expected + buffer[at + len(expected) :]
    assert result[0] == b"".join(units)  # type: ignore[index]


@given(
    st.binary(max_size=60),
    st.lists(st.tuples(*[st.one_of(st.integers(-2, 62), int64)] * 5, int64), max_size=3),
    st.lists(st.one_of(st.integers(-1, 4 << 32), odd), max_size=3),
    st.binary(max_size=5),
    st.integers(-1, 300),
)
def test_spans_and_keys_that_cannot_be_are_treated_alike(
    data: bytes, spans: list[tuple[int, ...]], keys: list[Any], rest: bytes, at: int
) -> None:
    packed = b"".join(struct.pack("=6q", *span) for span in spans)
    for text in (packed, packed + rest):
        arguments = (data, text, b"", keys, 1, 2, 3, 4, 5, bytes(8), 6, bytes(8), b"T", True)
        agree("write_batch", at, *arguments, buffer=bytearray(900))


@given(st.lists(st.one_of(odd, any_int), min_size=15, max_size=15), st.integers(0, 14))
def test_odd_parts_of_a_batch_are_refused_alike(values: list[Any], which: int) -> None:
    _, spans, keys, *_ = function("read_batch", "plain")(
        encode_item(1, b"b", b"UNIQ_KEY\x01u\x02"), "T", b""
    )
    data = encode_item(1, b"b", b"UNIQ_KEY\x01u\x02")
    usual: list[Any] = [0, data, spans, b"", keys, 1, 2, 3, 4, 5, bytes(8), 6, bytes(8), b"T", True]
    agree("write_batch", *values, buffer=bytearray(300))
    agree("write_batch", *usual[:which], values[which], *usual[which + 1 :], buffer=bytearray(300))


FIELDS = tuple(sorted(set(ReceivedMessage.__slots__) - {"_entry", "_body", "_properties"}))


def every_field(messages: list[ReceivedMessage]) -> list[tuple[Any, ...]]:
    return [
        (type(message), message.body, *(getattr(message, name) for name in FIELDS))
        for message in messages
    ]


def unread(
    kind: str, data: Any, message_type: type[ReceivedMessage] = Delivery
) -> tuple[list[tuple[Any, ...]], int]:
    messages, at = function("unread_messages", kind)(data, message_type)
    return every_field(messages), at


stored_entries = st.lists(
    st.builds(
        encode_entry,
        *(int32, int32, int64, int64, st.sampled_from([0, 4, 8, 0x10, 0x30, -1 & ~0x3F]), int64),
        *(
            st.sampled_from([bytes(range(8)), bytes(range(20))]),
            int64,
            st.just(bytes(range(8, 16))),
            int32,
            int64,
        ),
        *(
            st.binary(max_size=40),
            st.sampled_from([b"T", b"topic", b"t\xff", b"t" * 127, b"t" * 128, b"t" * 300, b""]),
        ),
        *(property_bytes, st.booleans()),
    ),
    max_size=5,
).map(b"".join)


@given(
    stored_entries,
    st.integers(0),
    st.one_of(st.none(), st.integers(0, 255)),
    st.binary(max_size=100),
)
def test_pulled_entries_are_told_from_damage_alike(
    data: bytes, at: int, value: int | None, tail: bytes
) -> None:
    at %= len(data) + 1
    changed = (data if value is None else data[:at] + bytes([value]) + data[at + 1 :]) + tail
    assert all(unread(kind, changed) == unread("plain", changed) for kind in KINDS)
    agree("good_positions", changed)


@given(
    int32, int64, st.sampled_from(["", "T", "té", "t" * 200]), st.binary(max_size=40), st.booleans()
)
@each_kind
def test_a_message_that_is_read_when_asked_for_is_the_one_that_is_read_at_once(
    kind: str, number: int, offset: int, topic: str, body: bytes, with_crc: bool
) -> None:
    head = (
        number,
        3,
        offset,
        77,
        0,
        1_700_000_000_000,
        b"\x7f\0\0\1\0\0\x2a\x9f",
        offset,
        bytes(8),
        number,
        offset,
    )
    entry = encode_entry(*head, body, topic.encode(), "TAGS\x01é\x02n\x01v\x02".encode(), with_crc)
    assert unread(kind, entry * 2) == (
        every_field([decode_entry(entry, message_type=Delivery)] * 2),
        2 * len(entry),
    )


@given(stored_entries, st.integers(0), st.one_of(st.none(), st.integers(0, 255)))
def test_the_property_texts_of_entries_are_found_alike(
    data: bytes, at: int, value: int | None
) -> None:
    at %= len(data) + 1
    # sizes are good
    if value is None or (
        at < len(data) and not any(begin <= at < begin + 4 for begin in entry_begins(data))
    ):
        agree(
            "property_texts", data if value is None else data[:at] + bytes([value]) + data[at + 1 :]
        )


@given(
    st.lists(
        st.sampled_from(["n", "nn", "n\x01", "v", "\x02", "\x01", "é", "n\x01v\x02", "12"]),
        max_size=12,
    ).map("".join),
    st.sampled_from(["n\x01", "nn\x01", "é\x01", "\x01", "n"]),
)
def test_a_value_is_found_alike(text: str, needle: str) -> None:
    agree("value_after", text, needle)


signed_fields = st.dictionaries(
    st.sampled_from(["AccessKey", "Signature", "_UNIQUE_KEY_QUERY", "a", "ab", "b", "Z", "é", "_"]),
    st.one_of(
        st.sampled_from(["", "ann", 'x\x01y\x02"\\/\n', "é€𝄞", "\ufffe\x7f", "\u2028"]),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    ),
    max_size=9,
)
signed_headers = st.builds(
    lambda fields, raw, spaced, before: json.dumps(
        {"code": 10, **before, "extFields": fields, "flag": 0, "version": 399, "remark": None},
        ensure_ascii=not raw,
        separators=(", ", ": ") if spaced else (",", ":"),
    ).encode("utf-8"),
    signed_fields,
    st.booleans(),
    st.integers(0, 9).map(lambda number: number == 0),
    st.sampled_from([{}, {"language": "GO"}, {"opaque": -7}, {"x": 1.5}, {"x": [{}]}, {"é": "é"}]),
)


@given(signed_headers, st.binary(max_size=9), st.sampled_from([0, 399, 400, -1]))
@example(b'{"extFields":{"AccessKey":"a","Signature":"s","a":"1","a":"2"}}', b"", 400)
@example(b'{"extFields":{"AccessKey":"a","Signature":"s"},"extFields":{}}', b"", 400)
@example(b'{"extFields":{"AccessKey":"a","Signature":"s"}} ', b"", 400)
@example(b'{"extFields":{"AccessKey":"a","Signature":"\\/s"}}', b"x", 400)
@example(b'{"extFields":{"AccessKey":"a","Signature":"s","n":"\\ud834\\udd1e"}}', b"x", 400)
@example(b'{"extFields":{"AccessKey":"a","Signature":"s","n":"\xff"}}', b"x", 400)
@example(b'{"extFields":{"AccessKey":"a","Signature":"s","n":7}}', b"x", 400)
@example(b'{"extFields":{"AccessKey":"a","Signature":"s","n":null}}', b"x", 400)
@example(b'{"code":01,"extFields":{"AccessKey":"a","Signature":"s"}}', b"x", 400)
@example(b'{"code":tru,"extFields":{"AccessKey":"a","Signature":"s"}}', b"x", 400)
@example(b'{"extFields":{"AccessKey":"a","Signature":"s",}}', b"x", 400)
def test_what_a_signature_is_of_is_found_alike(header: bytes, body: bytes, version: int) -> None:
    agree("signed_in_header", header, body, version)


@given(signed_headers, st.integers(0), st.one_of(st.none(), st.integers(0, 255)))
def test_the_signature_in_a_damaged_header_is_found_alike(
    header: bytes, at: int, value: int | None
) -> None:
    at %= len(header) + 1
    tail = b"" if value is None else bytes([value]) + header[at + 1 :]
    agree("signed_in_header", header[:at] + tail, b"body", 400)


def test_a_header_of_many_fields_is_read_alike() -> None:
    for count in (60, 62, 63, 100):
        fields = {f"f{number}": str(number) for number in range(count)}
        signed = {"AccessKey": "ann", "Signature": "s", **fields}
        header = json.dumps({"extFields": signed}, separators=(",", ":")).encode()
        outcome_of = agree("signed_in_header", header, b"", 400)
        assert outcome_of[1] == (
            "ann",
            "s",
            ("ann" + "".join(v for _, v in sorted(fields.items()))).encode(),
        )


@given(odd, odd, odd)
def test_odd_headers_are_refused_alike(header: Any, body: Any, version: Any) -> None:
    agree("signed_in_header", header, body, version)


def entry_begins(data: bytes) -> list[int]:
    begins = [0]
    while begins[-1] < len(data):
        begins.append(begins[-1] + int.from_bytes(data[begins[-1] : begins[-1] + 4]))
    return begins


@each_kind
def test_a_name_that_no_message_has_is_an_error(kind: str) -> None:
    entry = encode_entry(0, 0, 0, 0, 0, 0, bytes(8), 0, bytes(8), 0, 0, b"x", b"T", b"")
    ((message,), _) = function("unread_messages", kind)(entry, Delivery)
    for one in (message, decode_entry(entry, message_type=Delivery)):
        with pytest.raises(AttributeError, match="'Delivery' object has no attribute 'colour'"):
            _ = one.colour
        assert copy.copy(one).body == b"x"


log_entries = st.lists(
    st.tuples(
        int32,
        st.integers(0, 1 << 40),
        st.binary(max_size=40),
        st.sampled_from(["T", "topic", "t" * 200]),
        property_bytes,
    ),
    max_size=5,
)
log_changes = st.lists(st.tuples(st.integers(0), st.integers(0, 255)), max_size=2)


@given(
    log_entries,
    st.booleans(),
    log_changes,
    st.integers(-2, 6),
    st.integers(-2, 7),
    st.sampled_from([0, 1, 1 << 50]),
)
def test_entries_read_of_the_log_are_found_good_alike(
    fields: list[tuple[int, int, bytes, str, bytes]],
    with_crc: bool,
    changes: list[tuple[int, int]],
    first: int,
    end: int,
    start: int,
) -> None:
    data, units = b"", []
    for queue_id, queue_offset, body, topic, properties in fields:
        head = (queue_id, 0, queue_offset, start + len(data), 0, 1, bytes(8), 2, bytes(8), 0, 0)
        entry = encode_entry(*head, body, topic.encode(), properties, with_crc)
        units.append((queue_offset, start + len(data), len(entry)))
        data += entry
    queue_id, _, _, topic, _ = fields[0] if fields else (0, 0, b"", "T", b"")
    wanted = *entry_fields(queue_id & 0xFFFFFFFF, topic), True
    numbers = [queue_offset for queue_offset, _, _ in units][first:end]
    packed = b"".join(pack_unit(offset, size, 0) for _, offset, size in units[first:end])
    assert agree("gather", packed, 100, 1 << 30, data, start, numbers, *wanted)
    if data:
        for at, value in changes:
            data = data[: at % len(data)] + bytes([value]) + data[at % len(data) + 1 :]
    agree("gather", packed, 100, 1 << 30, data, start, numbers, *wanted)
    agree("gather", packed, 100, 1 << 30, data[:-1], start + 1, numbers, *wanted)


@given(
    fields=st.lists(
        st.tuples(
            st.sampled_from([0, 0, 1, -1]),
            st.sampled_from([0, 0, 0, 8, 1, 4, 12, 0x80, 0x40]),
            st.sampled_from([0, 0, 0, 0, 1]),
            st.binary(max_size=300),
            st.sampled_from(["T", "T", "topic", "SCHEDULE_TOPIC_XXXX", "unknown", "tøpic"]),
            property_bytes,
        ),
        max_size=8,
    ),
    with_crc=st.booleans(),
    changes=log_changes,
    at=st.sampled_from([0, 0, 0, 3]),
    short_by=st.sampled_from([0, 0, 1, 200]),
    start=st.sampled_from([0, 1, 1 << 50, 1 << 63]),
)
def test_entries_that_a_slave_takes_together_are_packed_alike(
    fields: list[tuple[int, int, int, bytes, str, bytes]],
    with_crc: bool,
    changes: list[tuple[int, int]],
    at: int,
    short_by: int,
    start: int,
) -> None:
    data, counts = b"", dict[tuple[int, str], int]()
    for queue_id, sys_flag, skipped, body, topic, properties in fields:
        index = counts.get((queue_id, topic), 7) + skipped
        counts[queue_id, topic] = index + 1
        offset = min(start + len(data), (1 << 63) - 1)
        head = (queue_id, 0, index, offset, sys_flag, 1, bytes(8), 2, bytes(8), 0, 0)
        data += encode_entry(*head, body, topic.encode(), properties, with_crc)
    topics = {topic.encode(): topic for _, _, _, _, topic, _ in fields if topic != "unknown"}
    end = at + len(data) - short_by
    for piece in (bytes(at) + data, bytes(at) + data + b"more"):
        agree("packed_run", piece, at, end, start, topics)
    if data:
        for changed, value in changes:
            data = data[: changed % len(data)] + bytes([value]) + data[changed % len(data) + 1 :]
        agree("packed_run", data, 0, end, start, topics)


@each_kind
def test_a_run_has_units_of_each_queue_and_ends_before_an_entry_of_another_kind(kind: str) -> None:
    data, sizes = b"", list[int]()
    for queue_id, index, sys_flag in ((0, 5, 0), (1, 9, 8), (0, 6, 0), (0, 7, 4), (0, 8, 0)):
        head = (queue_id, 0, index, 1000 + len(data), sys_flag, 1, bytes(8), 2, bytes(8), 0, 0)
        properties = b"TAGS\1a\2KEYS\1k l\2" if queue_id else b""
        entry = encode_entry(*head, b"body", b"T", properties, True)
        sizes.append(len(entry))
        data += entry
    size, stored_ms, keys, queues = function("packed_run", kind)(
        data, 0, len(data), 1000, {b"T": "T"}
    )
    assert (size, stored_ms) == (sum(sizes[:3]), 2)
    second, third = 1000 + sizes[0], 1000 + sizes[0] + sizes[1]
    assert keys == [(key_hash("T", "k"), second, 2), (key_hash("T", "l"), second, 2)]
    assert queues == [
        ("T", 0, 5, pack_unit(1000, sizes[0], 0) + pack_unit(third, sizes[2], 0)),
        ("T", 1, 9, pack_unit(second, sizes[1], java_hash("a"))),
    ]


@given(
    sizes=st.lists(st.integers(0, 60), max_size=8),
    order=st.randoms(use_true_random=False),
    count_max=st.integers(-1, 9),
    size_max=st.integers(-1, 1000),
    changes=st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=2),
    unit_changes=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=2),
    start=st.sampled_from([0, 4096, 1 << 40]),
    with_crc=st.booleans(),
)
def test_entries_are_gathered_alike(
    sizes: list[int],
    order: random.Random,
    count_max: int,
    size_max: int,
    changes: list[tuple[int, int]],
    unit_changes: list[tuple[int, int]],
    start: int,
    with_crc: bool,
) -> None:
    """As producers write them: a queue's messages lie apart, here in any order."""
    places = list(range(len(sizes)))
    order.shuffle(places)
    segment, where = bytearray(b"before"), {}
    for number in places:
        head = (3, 0, 7 + number, start + len(segment), 0, 1, bytes(8), 2, bytes(8), 0, 0)
        entry = encode_entry(*head, bytes(sizes[number]), b"T", b"", True)
        where[number] = (start + len(segment), len(entry))
        segment += entry + b"between"
    units = b"".join(pack_unit(*where[number], 0) for number in range(len(sizes)))
    wanted = (start, 7, *entry_fields(3, "T"), with_crc)
    data = b"".join(segment[at - start : at - start + size] for at, size in sorted_by_number(where))
    assert TWINS["gather"].plain(units, 100, 1 << 20, bytes(segment), *wanted) == (data, len(sizes))
    agree("gather", units, count_max, size_max, bytes(segment), *wanted)
    agree("gather", units, 100, 1 << 20, bytes(segment)[:-20], *wanted)
    every_other = b"".join(units[at : at + 20] for at in range(0, len(units), 40))
    numbers = list(range(7, 7 + len(sizes), 2))
    agree("gather", every_other, 100, 1 << 20, bytes(segment), start, numbers, *wanted[2:])
    agree("gather", units, 100, 1 << 20, bytes(segment), start, numbers, *wanted[2:])
    for at, value in unit_changes if units else ():
        units = units[: at % len(units)] + bytes([value]) + units[at % len(units) + 1 :]
    for at, value in changes:
        segment[at % len(segment)] = value
    agree("gather", units, 100, 1 << 20, bytes(segment), *wanted)


def sorted_by_number(where: dict[int, tuple[int, int]]) -> list[tuple[int, int]]:
    return [where[number] for number in sorted(where)]


@each_kind
def test_an_entry_fits_where_its_unit_points_in_its_queue_of_its_topic(kind: str) -> None:
    def entry(at: int, queue_offset: int, topic: bytes = b"T", queue_id: int = 3) -> bytes:
        return encode_entry(
            queue_id,
            0,
            queue_offset,
            at,
            0,
            1,
            bytes(8),
            2,
            bytes(8),
            0,
            0,
            b"body",
            topic,
            b"",
            True,
        )

    size = len(entry(0, 0))

    def gathered(first: bytes, second: bytes, numbers: int | list[int] = 7) -> int:
        units = pack_unit(1000, size, 0) + pack_unit(5000, size, 0)
        buffer = bytes(1000) + first.ljust(4000, b"\0") + second
        fields = entry_fields(3, "T")
        _, count = function("gather", kind)(units, 9, 1 << 20, buffer, 0, numbers, *fields, False)
        assert isinstance(count, int)
        return count

    assert gathered(entry(1000, 7), entry(5000, 8)) == 2
    assert gathered(entry(1000, 7), entry(5000, 8), [7, 8]) == 2
    assert gathered(entry(1000, 7), entry(5000, 9), [7, 9]) == 2, "a filter left out one between"
    assert gathered(entry(1000, 7), entry(5000, 9)) == 1
    assert gathered(entry(1000, 8), entry(5000, 7)) == 0
    for other in (
        entry(5001, 8),
        entry(5000, 9),
        entry(5000, 8, b"U"),
        entry(5000, 8, queue_id=4),
        entry(5000, 8)[:-1],
        b"x",
    ):
        assert gathered(entry(1000, 7), other) == 1


@given(
    st.tuples(
        *(st.one_of(st.binary(max_size=60), odd), any_int, any_int),
        *(st.one_of(st.binary(max_size=120), odd), any_int),
        st.one_of(any_int, st.lists(st.one_of(any_int, odd), max_size=2), odd),
        *(st.one_of(st.just(bytes(4)), odd), st.one_of(st.just(b"\x01T"), odd), st.booleans()),
    )
)
def test_what_is_no_units_is_left_to_the_plain_function(arguments: tuple[Any, ...]) -> None:
    agree("gather", *arguments)


@each_kind
def test_an_entry_is_good_with_its_crc_at_its_place_in_its_queue_of_its_topic(kind: str) -> None:
    def entry(at: int, queue_offset: int, topic: bytes = b"T", with_crc: bool = True) -> bytes:
        return encode_entry(
            3, 0, queue_offset, at, 0, 1, bytes(8), 2, bytes(8), 0, 0, b"body", topic, b"", with_crc
        )

    def good(data: bytes, start: int = 1000) -> int:
        size = len(data) // 2
        units = pack_unit(1000, size, 0) + pack_unit(1000 + size, size, 0)
        fields = entry_fields(3, "T")
        _, count = function("gather", kind)(units, 9, 1 << 20, data, start, 7, *fields, True)
        assert isinstance(count, int)
        return count

    size = len(entry(0, 0))
    whole = entry(1000, 7) + entry(1000 + size, 8)
    assert good(whole) == 2
    for at in range(2 * size):
        for bit in range(8):
            assert good(whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :]) == at // size
    assert good(entry(1000, 7) + entry(1000 + size, 9)) == 1
    assert good(entry(1000, 7) + entry(2000 + size, 8)) == 1
    assert good(entry(1000, 7, b"U") + entry(1000 + size, 8, b"U")) == 0
    assert good(entry(1000, 7, with_crc=False) + entry(1000 + size - 20, 8, with_crc=False)) == 0
    assert good(whole, 1001) == 0


@pytest.mark.skipif(
    os.environ.get("CI") != "true" or os.environ.get("TURBOPUMP_PURE", "0") != "0",
    reason="asked of continuous integration only",
)
def test_where_there_is_a_compiler_the_functions_are_compiled() -> None:
    header = Path(sysconfig.get_path("include"), "Python.h")
    compiler = (sysconfig.get_config_var("CC") or "cc").split()[0]
    assert IS_COMPILED or not header.exists() or shutil.which(compiler) is None, KIND


def test_turbopump_pure_keeps_to_the_plain_functions() -> None:
    script = "from turbopump.compiled import IS_COMPILED, KIND; print(IS_COMPILED, KIND)"
    environment = {**os.environ, "TURBOPUMP_PURE": "1"}
    said = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
    ).stdout
    assert said.strip() == "False plain Python (TURBOPUMP_PURE is set)"


@pytest.mark.parametrize(
    "left_to_the_plain_twin",
    [
        partial(property_value, "n\x01\x02", "n"),
        partial(signed_in_header, b'{"extFields":{"AccessKey":"\\u0061","Signature":"s"}}', b"", 0),
    ],
    ids=["property_value", "signed_in_header"],
)
def test_what_is_left_to_the_plain_twin_leaves_nothing_behind(
    left_to_the_plain_twin: Callable[[], object],
) -> None:
    left_to_the_plain_twin()
    before = sys.getallocatedblocks()
    for _ in range(10_000):
        left_to_the_plain_twin()
    assert sys.getallocatedblocks() - before < 1_000
