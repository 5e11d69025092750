"""Rows into the bytes of sends: every kind of row, and every row that cannot be sent."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import count, islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbopump.client.environment import SYSTEM_CLOCK
from turbopump.message.batch import decode_batch
from turbopump.message.ids import UniqueIds
from turbopump.message.message import MessageQueue
from turbopump.message.properties import decode_properties
from turbopump.spark.encode import (
    KEY,
    MARK,
    Encoded,
    PackedRows,
    RowError,
    encode,
    pack_rows,
    unique_ids,
)
from turbopump.spark.write_options import layout, write_options

MAP = pa.map_(pa.string(), pa.string())
TYPES: dict[str, pa.DataType] = {
    "topic": pa.string(),
    "body": pa.binary(),
    "keys": pa.string(),
    "tags": pa.string(),
    "properties": MAP,
    "shardingKey": pa.string(),
    "delayLevel": pa.int32(),
    "deliverAt": pa.timestamp("us", "UTC"),
    "queueId": pa.int32(),
    "flag": pa.int32(),
    "msgId": pa.string(),
    "queueOffset": pa.int64(),
    "brokerName": pa.string(),
}


def queues(topic: str) -> Sequence[MessageQueue]:
    return [MessageQueue(topic, "b", number) for number in range(4)]


def same_ids(wanted: int) -> pa.StringArray:
    return pa.array(["ID"] * wanted, pa.string())


def new_ids(numbers: Any, wanted: int) -> pa.StringArray:
    return pa.array([f"ID{number}" for number in islice(numbers, wanted)], pa.string())


def encoded(rows: dict[str, list[Any]], mark: str | None = None, **options: str) -> Encoded:
    types = {name: TYPES.get(name, pa.string()) for name in rows}
    batch = pa.record_batch({name: pa.array(rows[name], types[name]) for name in rows})
    given_options = {"nameServer": "a:1", **({} if "topic" in rows else {"topic": "T"}), **options}
    numbers = count(1)

    plan = layout(batch.schema, write_options(given_options))
    return encode(batch, plan, queues, partial(new_ids, numbers), mark)


def test_new_ids_are_those_of_the_clients_and_all_differ() -> None:
    source = UniqueIds(SYSTEM_CLOCK, ip="10.0.0.1", token=1, pid=2)
    before = source.next()
    found = unique_ids(source, 70_000)
    more = [*unique_ids(source, 3).to_pylist(), source.next()]
    ids = [before, *found.to_pylist(), *more]
    assert {(len(each), each[:20]) for each in ids} == {(32, before[:20])}
    assert len(set(ids)) == len(ids)
    numbers = [int(each[-4:], 16) for each in ids]
    assert numbers == [(1 + at) & 0xFFFF for at in range(len(ids))]
    assert unique_ids(source, 0).to_pylist() == []
    assert len(unique_ids(UniqueIds(SYSTEM_CLOCK, ip="::1", token=1), 2)[1].as_py()) == 56


Message = tuple[str, bytes, dict[str, str], int]


def messages(packed: PackedRows) -> list[Message]:
    """Return the messages that a broker would make of packed rows."""
    if packed.single is not None:
        text, body, flag = packed.single
        return [(packed.topic, body, decode_properties(text), flag)]
    return [
        (packed.topic, item.body, decode_properties(item.properties.decode()), item.flag)
        for item in decode_batch(bytes(packed.items[: int(packed.ends[-1])]))
    ]


def sent(rows: dict[str, list[Any]], mark: str | None = None, **options: str) -> list[Message]:
    """The messages of all rows, in the order of the rows."""
    found: dict[int, Message] = {}
    for packed in pack_rows(encoded(rows, mark, **options), queues, rows_max=3, size_max=1 << 20):
        found |= dict(zip(packed.rows.tolist(), messages(packed), strict=True))
    return [found[row] for row in sorted(found)]


def test_rows_become_messages_with_all_they_say() -> None:
    assert sent(
        {
            "body": [b"x", b"\xff\x00", "Ω".encode()],
            "topic": ["T", "U", "T"],
            "keys": ["a b", None, ""],
            "tags": [None, "t", ""],
            "shardingKey": [None, None, "s"],
            "flag": [7, None, -1],
            "properties": [[("p", "1"), ("q", "Ω")], None, []],
            "msgId": ["own", None, ""],
        }
    ) == [
        ("T", b"x", {"p": "1", "q": "Ω", "KEYS": "a b", "UNIQ_KEY": "own"}, 7),
        ("U", b"\xff\x00", {"TAGS": "t", "UNIQ_KEY": "ID1"}, 0),
        ("T", "Ω".encode(), {"__SHARDINGKEY": "s", "UNIQ_KEY": "ID2"}, -1),
    ]


def test_keys_may_be_a_list_and_bodies_text() -> None:
    batch = pa.record_batch(
        {"body": pa.array(["Ω", "b"]), "keys": pa.array([["a", "b"], None], pa.list_(pa.string()))}
    )
    plan = layout(batch.schema, write_options({"nameServer": "a:1", "topic": "T"}))
    (packed,) = pack_rows(
        encode(batch, plan, queues, same_ids), queues, rows_max=9, size_max=1 << 20
    )
    assert messages(packed) == [
        ("T", "Ω".encode(), {"KEYS": "a b", "UNIQ_KEY": "ID"}, 0),
        ("T", b"b", {"UNIQ_KEY": "ID"}, 0),
    ]


def test_a_column_goes_before_the_property_of_its_name() -> None:
    was = [("KEYS", "old"), ("TAGS", "old"), ("UNIQ_KEY", "old"), ("mine", "1")]
    read = {"body": [b"x"], "properties": [was], "queueOffset": [0]}
    assert sent(read)[0][2] == dict(was)
    assert sent({**read, "keys": ["new"], "tags": [None], "msgId": [None]})[0][2] == {
        "mine": "1",
        "KEYS": "new",
        "UNIQ_KEY": "ID1",
    }


def test_what_brokers_put_in_is_not_copied() -> None:
    seen = [("MSG_REGION", "r"), ("TRACE_ON", "true"), ("CLUSTER", "c"), ("WAIT", "true")]
    more = [("REAL_TOPIC", "x"), ("DELAY", "3"), (MARK, "q/1/2/3"), (KEY, "k"), ("mine", "1")]
    kept = {"mine": "1", "UNIQ_KEY": "ID1"}
    assert sent({"body": [b"x"], "properties": [seen + more]})[0][2] == kept
    with pytest.raises(RowError, match=r"property 'DELAY' is RocketMQ's own; use the column"):
        sent({"body": [b"x", b"y"], "properties": [[], [("DELAY", "3")]]})


def test_delayed_rows_travel_alone() -> None:
    at = datetime(2030, 1, 1, 0, 0, 0, 1, UTC)  # a microsecond after
    rows = encoded(
        {
            "body": [b"a", b"b", b"c", b"d"],
            "delayLevel": [None, 3, 0, None],
            "deliverAt": [None, None, None, at],
        }
    )
    found = pack_rows(rows, queues, rows_max=9, size_max=1 << 20)
    assert [(packed.single is not None, packed.rows.tolist()) for packed in found] == [
        (False, [0, 2]),
        (True, [1]),
        (True, [3]),
    ]
    assert messages(found[1])[0][2] == {"DELAY": "3", "UNIQ_KEY": "ID2"}
    assert messages(found[2])[0][2]["TIMER_DELIVER_MS"] == "1893456000001"


@pytest.mark.parametrize(
    ("columns", "row", "said"),
    [
        ({"body": [b"x", None]}, 1, "its body is null"),
        ({"body": [b"x", b""]}, 1, "its body is empty"),
        ({"body": [b"x", b"y" * (4 << 20) + b"y"]}, 1, "larger than 4194304 bytes"),
        ({"body": [b"x", b"y"], "topic": ["T", None]}, 1, "its topic is null"),
        ({"body": [b"x", b"y"], "topic": ["T", "a b"]}, 1, "holds a character outside"),
        ({"body": [b"x", b"y"], "topic": ["T", "SCHEDULE_TOPIC_XXXX"]}, 1, "broker itself"),
        ({"body": [b"x", b"y"], "tags": [None, "a\x01"]}, 1, r"U\+0001 or U\+0002"),
        ({"body": [b"x"] * 2, "properties": [[("a", "1")], [("b", "\x02")]]}, 1, r"U\+0001"),
        ({"body": [b"x"] * 2, "properties": [[("a", "1")], [("b", "")]]}, 1, "'b' has no value"),
        ({"body": [b"x"] * 2, "properties": [[], [("b", None)]]}, 1, "'b' has no value"),
        ({"body": [b"x"] * 2, "properties": [[], [("", "v")]]}, 1, "has no name"),
        ({"body": [b"x"] * 2, "tags": ["a", "b" * 32768]}, 1, "more than 32767 bytes"),
        ({"body": [b"x"] * 2, "delayLevel": [1, -1]}, 1, "its delayLevel is out of range"),
        ({"body": [b"x"] * 2, "deliverAt": [None, datetime(1971, 1, 1)]}, 1, "before 1973"),
        (
            {"body": [b"x"], "delayLevel": [1], "deliverAt": [datetime(2031, 1, 1)]},
            0,
            "a message has one time",
        ),
        ({"body": [b"x"] * 2, "queueId": [3, 4]}, 1, "has only the queues 0, 1, 2, 3"),
        ({"body": [b"x"] * 2, "queueId": [3, -4]}, 1, "its queueId is negative"),
    ],
)
def test_a_row_that_cannot_be_sent_is_named(
    columns: dict[str, list[Any]], row: int, said: str
) -> None:
    with pytest.raises(RowError, match=said) as caught:
        encoded(columns)
    assert caught.value.row == row
    assert "body=" in str(caught.value)


def test_equal_keys_go_to_the_queue_that_java_takes_in_their_order() -> None:
    keys = ["k1", "k2", None, "k1", "k2", "Ω"]
    rows = encoded({"body": [b"%d" % n for n in range(6)], "shardingKey": keys})
    assert rows.queue_of.tolist()[:2] == [3366 % 4, 3367 % 4]  # "k1".hashCode() is 3366
    found = pack_rows(rows, queues, rows_max=9, size_max=1 << 20)
    by_queue = {packed.queue: packed.rows.tolist() for packed in found}
    assert by_queue[None] == [2]
    assert by_queue[queues("T")[3366 % 4]] == [0, 3]
    assert by_queue[queues("T")[3367 % 4]] == [1, 4]
    by_column = encoded({"body": [b"x"] * 6, "order": keys}, orderingKey="order")
    assert by_column.queue_of.tolist() == rows.queue_of.tolist()


def test_a_queue_id_goes_before_a_key() -> None:
    rows = encoded({"body": [b"x"] * 2, "queueId": [1, None], "shardingKey": ["k1", "k1"]})
    assert rows.queue_of.tolist() == [1, 3366 % 4]


def test_keys_of_rows_are_put_into_them() -> None:
    origin = {"brokerName": ["b"], "topic": ["T"], "queueId": [1], "queueOffset": [77]}
    (message,) = sent({"body": [b"x"], **origin}, "q/1/0/a", onConflict="skip")
    assert message[2] == {"UNIQ_KEY": "ID1", KEY: "b:T:1:77", MARK: "q/1/0/a"}
    with pytest.raises(RowError, match="its idempotency key is null"):
        sent({"body": [b"x"], "k": [None]}, "q/1/0/a", idempotencyKey="k")


def test_parcels_are_bounded_in_rows_and_bytes_and_can_be_cut() -> None:
    rows = encoded({"body": [b"x" * 100] * 25})
    assert [len(one) for one in pack_rows(rows, queues, rows_max=10, size_max=1 << 20)] == [
        10,
        10,
        5,
    ]
    small = pack_rows(rows, queues, rows_max=10, size_max=300)
    assert [len(one) for one in small] == [2] * 12 + [1]
    assert [len(one) for one in pack_rows(rows, queues, rows_max=10, size_max=1)] == [1] * 25
    (whole,) = pack_rows(rows, queues, rows_max=99, size_max=1 << 20)
    part = whole.part(3, 10).part(2, 5)
    assert part.rows.tolist() == [5, 6, 7]
    assert messages(part) == messages(whole)[5:8]
    keep = np.arange(25) % 2 == 0
    kept = pack_rows(rows, queues, rows_max=99, size_max=1 << 20, keep=keep)
    assert [one.rows.tolist() for one in kept] == [list(range(0, 25, 2))]
    assert messages(kept[0]) == messages(whole)[::2]


texts = st.text(st.characters(exclude_characters="\x01\x02", codec="utf-8"), min_size=1, max_size=8)
names = texts.map(lambda text: f"p{text}")


@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=20),
            st.none() | texts,
            st.none() | st.dictionaries(names, texts, max_size=3),
            st.integers(-(2**31), 2**31 - 1),
            st.none() | st.integers(0, 3),
        ),
        min_size=1,
        max_size=12,
    ),
    st.integers(0, 3),
)
def test_any_rows_come_out_as_they_went_in(rows: list[tuple[Any, ...]], begin: int) -> None:
    """The record batch may be a slice of a larger one."""
    bodies, tags, properties, flags, levels = zip(*rows, strict=True)
    batch = pa.record_batch(
        {
            "body": pa.array(bodies, pa.binary()),
            "tags": pa.array(tags, pa.string()),
            "properties": pa.array([p and list(p.items()) for p in properties], MAP),
            "flag": pa.array(flags, pa.int32()),
            "delayLevel": pa.array(levels, pa.int32()),
        }
    ).slice(begin)
    plan = layout(batch.schema, write_options({"nameServer": "a:1", "topic": "T"}))
    found: dict[int, Message] = {}
    for packed in pack_rows(encode(batch, plan, queues, same_ids), queues, rows_max=5, size_max=99):
        found |= dict(zip(packed.rows.tolist(), messages(packed), strict=True))
    expected = [
        (
            "T",
            body,
            {
                **(own or {}),
                **({"TAGS": tag} if tag else {}),
                **({"DELAY": str(level)} if level else {}),
                "UNIQ_KEY": "ID",
            },
            flag,
        )
        for body, tag, own, flag, level in rows[begin:]
    ]
    assert [found[row] for row in sorted(found)] == expected
