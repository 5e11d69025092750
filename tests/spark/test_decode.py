"""Vectors and the plain twin read the same rows out of the same bytes."""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import zlib
from functools import partial
from itertools import takewhile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.spark.plain_twin import rows
from tests.spark.stored_messages import property_bytes, stored_message

from turbopump.compiled import TWINS
from turbopump.errors import StoredMessageError
from turbopump.message.batch import encode_item, inner_entries
from turbopump.spark import decode as decode_module
from turbopump.spark.decode import decode
from turbopump.spark.entries import entries_between
from turbopump.spark.options import COLUMN_NAMES, arrow_schema


def vector_rows(raw: bytes, columns: tuple[str, ...] = COLUMN_NAMES) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    for batch in decode(raw, "broker-a", columns):
        batch.validate(full=True)
        assert batch.schema == arrow_schema(columns)
        listed = batch.to_pylist(maps_as_pydicts="strict" if "properties" in columns else None)
        found += (tuple(row[name] for name in columns) for row in listed)
    return found


PROPERTY_NAME = st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "WAIT", "ключ", "a", ""])
PROPERTIES = st.one_of(
    st.dictionaries(
        st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "x"]), st.text("ab é", min_size=1), max_size=4
    ).map(property_bytes),
    st.dictionaries(st.sampled_from(["KEYS", "TAGS"]), st.text("ab", min_size=1)).map(
        lambda p: property_bytes(p, ended=False)
    ),
    st.lists(st.tuples(PROPERTY_NAME, st.sampled_from(["", "v", "w\x01x"]))).map(
        lambda pairs: b"".join(f"{name}\x01{value}\x02".encode() for name, value in pairs)
    ),
    st.lists(
        st.sampled_from([b"a", b"KEYS", b"\x01", b"\x02", b"\xff", "é".encode()]), max_size=12
    ).map(b"".join),
)
HOST = st.sampled_from(
    [("127.0.0.1", 1), ("255.0.1.2", 65535), ("::1", 10911), ("2001:db8::5:0", 7)]
)
BODY = st.one_of(
    st.binary(max_size=40).map(lambda body: (body, 0)),
    st.binary(max_size=40).map(lambda body: (zlib.compress(body), 1)),
    st.binary(max_size=40).map(lambda body: (zlib.compress(body), 0x301)),
    st.tuples(st.binary(max_size=40), st.sampled_from([1, 0x101, 0x201, 0x301, 0x401, 0x701])),
)
MESSAGE = st.builds(
    lambda body, **fields: stored_message(body[0], sys_flag=body[1], **fields),
    BODY,
    topic=st.sampled_from(["T", "a-topic", "x" * 200]),
    properties=PROPERTIES,
    queue_id=st.integers(0, 2**31 - 1),
    queue_offset=st.integers(0, 2**63 - 1),
    commit_log_offset=st.integers(0, 2**63 - 1),
    flag=st.integers(-(2**31), 2**31 - 1),
    born_ms=st.integers(0, 2**42),
    stored_ms=st.integers(0, 2**42),
    born_host=HOST,
    store_host=HOST,
    reconsume_times=st.integers(0, 99),
    prepared=st.integers(0, 2**63 - 1),
    v2=st.just(True),
)


@examples(300)
@given(st.lists(MESSAGE, max_size=8))
def test_vectors_read_the_rows_that_the_plain_twin_reads(messages: list[bytes]) -> None:
    raw = b"".join(messages)
    assert vector_rows(raw) == list(rows(raw, "broker-a"))


def test_version_1_and_2_entries_may_follow_each_other() -> None:
    raw = (
        stored_message(topic="one")
        + stored_message(topic="two", v2=True)
        + stored_message(b"", topic="t" * 127)
    )
    assert vector_rows(raw) == list(rows(raw, "broker-a"))


ITEMS = st.lists(
    st.builds(encode_item, st.integers(-9, 9), st.binary(max_size=30), PROPERTIES),
    min_size=1,
    max_size=6,
)


def inner_batch(items: list[bytes], compressed: bool, **fields: Any) -> bytes:
    body = zlib.compress(b"".join(items)) if compressed else b"".join(items)
    return stored_message(body, sys_flag=192 | (0x301 if compressed else 0), **fields)


INNER_BATCH = st.builds(
    inner_batch,
    ITEMS,
    st.booleans(),
    topic=st.sampled_from(["T", "a-topic"]),
    properties=PROPERTIES,
    queue_id=st.integers(0, 2**31 - 1),
    queue_offset=st.integers(0, 2**62),
    commit_log_offset=st.integers(0, 2**63 - 1),
    born_host=HOST,
    store_host=HOST,
    v2=st.booleans(),
)


@examples(300)
@given(st.lists(st.one_of(MESSAGE, INNER_BATCH), max_size=8))
def test_inner_batches_are_the_rows_that_plain_code_takes_them_apart_into(
    messages: list[bytes],
) -> None:
    apart = b"".join(one for message in messages for one in inner_entries(message))
    assert vector_rows(b"".join(messages)) == list(rows(apart, "broker-a"))


@pytest.mark.parametrize("column", COLUMN_NAMES)
def test_each_column_can_be_asked_alone(column: str) -> None:
    raw = b"".join(
        stored_message(
            f"b{i}".encode(), properties=property_bytes({"TAGS": f"t{i}"}), queue_offset=i
        )
        for i in range(3)
    )
    assert vector_rows(raw, (column,)) == list(rows(raw, "broker-a", (column,)))


def test_columns_come_in_the_order_asked() -> None:
    (batch,) = decode(stored_message(b"hello", queue_id=3), "b", ("body", "brokerName", "queueId"))
    assert batch.to_pylist() == [{"body": b"hello", "brokerName": "b", "queueId": 3}]


def test_a_repeated_property_takes_its_last_value() -> None:
    raw = stored_message(properties=b"UNIQ_KEY\x01first\x02TAGS\x01t\x02UNIQ_KEY\x01last\x02") * 2
    (batch,) = decode(raw, "b", ("msgId", "properties"))
    assert (
        batch.to_pylist()
        == [{"msgId": "last", "properties": [("TAGS", "t"), ("UNIQ_KEY", "last")]}] * 2
    )


def test_only_rows_inside_the_asked_queue_offsets_are_kept() -> None:
    raw = b"".join(stored_message(queue_offset=offset) for offset in (4, 5, 6, 7, 9))
    (batch,) = decode(raw, "b", ("queueOffset",), queue_offsets=range(5, 8))
    assert batch.column(0).to_pylist() == [5, 6, 7]
    assert list(decode(raw, "b", ("queueOffset",), queue_offsets=range(20, 30))) == []


def test_large_decompressed_bodies_are_split_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_module, "BATCH_BODY_SIZE_MAX", 2500)
    packed = zlib.compress(bytes(1000))
    raw = b"".join(
        stored_message(packed, sys_flag=1, queue_offset=i) for i in range(5)
    ) + stored_message(b"z", queue_offset=5)
    batches = list(decode(raw, "b", ("queueOffset", "body")))
    assert [batch.column(0).to_pylist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]
    assert [len(body) for batch in batches for body in batch.column(1).to_pylist()] == [
        1000
    ] * 5 + [1]


def outcomes(name: str, *arguments: Any) -> list[Any]:
    """Return the result of the plain function, and of the compiled one if there is one."""
    plain, compiled = TWINS[name]
    return [function(*arguments) for function in (plain, compiled) if function is not None]


@examples()
@given(
    st.lists(
        st.one_of(
            st.lists(
                st.sampled_from([b"\x01", b"\x02", b"a", b"KEYS", b"a\x01b\x02", b"KEYS\x01k\x02"]),
                max_size=8,
            ).map(b"".join),
            st.just(b"a\x01b\x02KEYS\x01k\x02"),
        ),
        max_size=6,
    ),
    st.integers(0, 3),
)
def test_properties_are_split_alike_by_vectors_and_compiled(
    texts: list[bytes], skipped: int
) -> None:
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int32)[skipped:]
    data = np.frombuffer(b"".join(texts), np.uint8)
    if len(ends):
        data = data[int(ends[0]) :]
        first, *others = outcomes("split_properties", data, ends - ends[0])
        assert others in ([], [first])


@examples()
@given(
    st.lists(st.integers(80, 130).map(lambda size: struct.pack(">i", size).ljust(size, b"x"))),
    st.integers(0, 200),
    st.integers(0, 500),
    st.integers(0, 200),
)
def test_entries_are_walked_alike_by_the_plain_and_the_compiled_function(
    entries: list[bytes], begin: int, limit: int, cut: int
) -> None:
    whole = b"".join(entries)
    raw = memoryview(whole[: len(whole) - cut] if cut < len(whole) else whole)
    first, *others = outcomes("walk_entries", raw, min(begin, len(raw)), limit)
    assert others in ([], [first])
    positions, sizes, end = entries_between(raw, 0, len(raw))
    found = [raw[at : at + size].tobytes() for at, size in zip(positions, sizes, strict=True)]
    assert found == list(takewhile(lambda each: len(each) > 90, entries))[: len(found)]
    assert end == sum(sizes.tolist())


def test_no_bytes_are_no_batches() -> None:
    assert list(decode(b"", "b")) == []


def test_the_crc_that_the_broker_stores_is_no_property_of_the_message() -> None:
    crc = b"__CRC32#\x010123456789\x02"
    raw = b"".join(
        stored_message(properties=each)
        for each in (b"a\x01b\x02" + crc, crc, b"c\x01d\x02", b"", b"e\x01" + b"f" * 30)
    )
    (batch,) = decode(raw, "b", ("properties",))
    assert [dict(each) for each in batch.column(0).to_pylist()] == [
        {"a": "b"},
        {},
        {"c": "d"},
        {},
        {"e": "f" * 30},
    ]


def put_bytes(at: int, value: bytes, raw: bytes) -> bytes:
    return raw[:at] + value + raw[at + len(value) :]


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda raw: raw[:-1], "ends at byte"),
        (lambda raw: raw + b"\x00", "ends at byte"),
        (partial(put_bytes, 0, struct.pack(">i", 12)), "size 12"),
        (partial(put_bytes, 0, struct.pack(">i", -5)), "size -5"),
        (partial(put_bytes, 4, b"\xcb\xd4\x31\x94"), "magic 0xcbd43194"),
        (partial(put_bytes, 84, struct.pack(">i", 2**31 - 1)), "its body"),
        (partial(put_bytes, 84, struct.pack(">i", -1)), "its body"),
        (lambda raw: raw[:-5] + b"\xff" + raw[-4:], "its (topic|properties)"),
        (partial(put_bytes, 36, struct.pack(">i", 48)), "its"),
    ],
)  # fmt: skip
def test_damaged_bytes_are_refused_with_their_place(damage, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(StoredMessageError, match=said):
        list(decode(stored_message() + damage(stored_message(b"x", topic="TT")), "b"))


def test_a_batch_in_one_entry_becomes_a_row_for_each_message() -> None:
    batch = b"".join(
        encode_item(number, b"%d" % number, property_bytes({"UNIQ_KEY": f"ID{number}"}))
        for number in range(4)
    )
    inner = stored_message(
        batch,
        topic="T",
        sys_flag=64 | 128,
        queue_offset=7,
        properties=property_bytes({"INNER_NUM": "4"}),
    )
    raw = (
        stored_message(b"before", queue_offset=6)
        + inner
        + stored_message(b"behind", queue_offset=11)
    )
    (rows,) = decode(raw, "b", ("queueOffset", "body", "msgId", "flag"), queue_offsets=range(8, 12))
    assert rows.to_pydict() == {
        "queueOffset": [8, 9, 10, 11],
        "body": [b"1", b"2", b"3", b"behind"],
        "msgId": ["ID1", "ID2", "ID3", None],
        "flag": [1, 2, 3, 0],
    }


@pytest.mark.parametrize("counted", [None, 1, 3])
@pytest.mark.parametrize(
    ("body", "flags", "fault"),
    [
        (b"no batch", 0, "message at byte 0 is cut off"),
        (b"", 0, "has 0 messages, but the broker has counted "),
        (b"no zlib", 0x301, "a compressed body cannot be read"),
        (zlib.compress(b"no batch"), 0x301, "message at byte 0 is cut off"),
        (zlib.compress(encode_item(0, b"x", b"") * 2), 0x301, "has 2 messages, but the broker"),
    ],
)
def test_a_batch_that_cannot_be_taken_apart_has_a_row_for_each_of_its_offsets(
    body: bytes, flags: int, fault: str, counted: int | None
) -> None:
    if "has 2" in fault and counted is None:
        return  # nobody knows better
    number = {} if counted is None else {"INNER_NUM": str(counted)}
    batch = stored_message(
        body,
        sys_flag=192 | flags,
        queue_offset=5,
        properties=property_bytes({"KEYS": "k", **number}),
    )
    end = 5 + (counted or 1)
    good = inner_batch([encode_item(0, b"in", b"")], True, queue_offset=end + 1, topic="U")
    raw = stored_message(b"before", queue_offset=4) + batch
    raw += stored_message(b"behind", queue_offset=end) + good
    (found,) = decode(raw, "b", ("queueOffset", "topic", "body", "keys", "bodyFault"))
    rows = [tuple(row.values()) for row in found.to_pylist()]
    assert rows[0] == (4, "T", b"before", None, None)
    whole = zlib.decompress(body) if body[:1] == b"x" else body
    assert rows[1][:4] == (5, "T", whole, "k")
    assert {(row[1], row[2], row[3]) for row in rows[2:-2]} <= {("T", b"", None)}
    assert [row[0] for row in rows] == [*range(4, end + 2)]
    for row in rows[1:-2]:
        assert row[4].startswith("the inner batch cannot be unpacked: ")
        assert fault in row[4]
    assert rows[-2:] == [(end, "T", b"behind", None, None), (end + 1, "U", b"in", None, None)]


@examples(200)
@given(st.data())
def test_flipped_bytes_never_escape_as_anything_but_a_refusal(data: st.DataObject) -> None:
    raw = bytearray(
        b"".join(
            stored_message(properties=property_bytes({"TAGS": "t", "KEYS": "k"})) for _ in range(3)
        )
    )
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        batches = list(decode(bytes(raw), "b"))
    except StoredMessageError:
        return
    for batch in batches:
        batch.validate(full=True)
        assert batch.num_rows > 0


A_WORKER_OF_A_READ = """
import sys
import pyspark.sql.worker.plan_data_source_read, pyspark.worker
sparks = set(sys.modules)
from turbopump.spark import batch, stream
from turbopump.spark.decode import decode
from turbopump.spark.options import COLUMN_NAMES, read_options
options = read_options({"nameServer": "127.0.0.1:9", "topic": "T"})
(found,) = decode(sys.stdin.buffer.read(), "broker-a", COLUMN_NAMES)
ours = set(sys.modules) - sparks
print(found.num_rows, *sorted(ours & {"asyncio", "ssl", "concurrent.futures", "pandas"}))
"""


def test_a_read_brings_neither_asyncio_nor_pandas_into_a_new_worker() -> None:
    raw = stored_message(properties=property_bytes({"KEYS": "k", "x": "y"})) + stored_message(
        zlib.compress(b"body"), sys_flag=1, store_host=("::1", 1)
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", A_WORKER_OF_A_READ]
    answer = subprocess.run(command, input=raw, env=environment, stdout=subprocess.PIPE, check=True)
    assert answer.stdout.split() == [b"2"]
