"""Copies of stored messages, and their marks."""

from __future__ import annotations

from typing import Any

import pytest

from turbopump.admin.mirror.origin import MarkWriter, Origin, copied, decode_mark, origin_of
from turbopump.message.batch import decode_batch
from turbopump.message.codec import encode_entry, encode_host
from turbopump.message.properties import LZ4, SysFlag, decode_properties


def entry(properties: bytes, **fields: Any) -> bytes:
    """A stored message at offset 17 of queue 3."""
    given: dict[str, Any] = {
        "queue_id": 3,
        "flag": -5,
        "queue_offset": 17,
        "physical_offset": 4096,
        "sys_flag": 0,
        "born_timestamp": 1000,
        "born_host": encode_host("10.1.2.3", 999),
        "store_timestamp": 2000,
        "store_host": encode_host("10.9.9.9", 10911),
        "reconsume_times": 0,
        "prepared_transaction_offset": 0,
        "body": b"body",
        "topic": b"orders",
        "properties": properties,
        "with_crc": True,
    }
    return encode_entry(**{**given, **fields})


def pairs(text: bytes) -> dict[str, str]:
    return decode_properties(text.decode())


def test_a_copy_has_what_the_sender_gave_and_nothing_of_the_source_broker() -> None:
    sent = b"UNIQ_KEY\x01ID\x02TAGS\x01paid\x02KEYS\x01a b\x02price\x017\x02WAIT\x01true\x02"
    added = (
        b"MSG_REGION\x01r\x02TRACE_ON\x01true\x02CLUSTER\x01c\x02DELAY\x013\x02TRAN_MSG\x01true\x02"
    )
    copy = copied(entry(sent + added))
    assert (copy.offset, copy.born_timestamp, copy.flag, copy.body) == (17, 1000, -5, b"body")
    assert copy.properties == sent + b"__BORNHOST\x0110.1.2.3:999\x02"


def test_a_message_without_an_id_gets_that_of_its_position() -> None:
    assert pairs(copied(entry(b"")).properties)["UNIQ_KEY"] == "0A09090900002A9F0000000000001000"


def test_hosts_of_ip_6_and_bytes_that_are_no_utf_8_stay() -> None:
    copy = copied(
        entry(
            b"UNIQ_KEY\x01ID\x02TAGS\x01\xb2\xe2\x02",
            born_host=encode_host("fe80::1", 7),
            sys_flag=SysFlag.BORN_HOST_V6 | SysFlag.COMPRESSED | LZ4 | SysFlag.TRANSACTION_COMMIT,
        )
    )
    assert copy.sys_flag == SysFlag.COMPRESSED | LZ4
    assert copy.body == b"body"
    assert copy.properties == b"UNIQ_KEY\x01ID\x02TAGS\x01\xb2\xe2\x02__BORNHOST\x01[fe80::1]:7\x02"


def test_the_messages_of_a_batch_name_their_originals_and_their_born_times() -> None:
    first = copied(entry(b"UNIQ_KEY\x01A\x02"))
    second = copied(
        entry(
            b"UNIQ_KEY\x01B\x02MIRRORED_FROM\x01x/b/0/5/0 y\x02",
            queue_offset=19,
            born_timestamp=1001,
        )
    )
    items = decode_batch(MarkWriter("c", "broker-a", 3).batch([first, second], 40))
    one, other = (pairs(item.properties) for item in items)
    assert one["MIRRORED_FROM"] == "c/broker-a/3/17/0/40"
    assert other["MIRRORED_FROM"] == "c/broker-a/3/19/2/40 x y"
    assert "BORN_TIMESTAMP" not in one
    assert other["BORN_TIMESTAMP"] == "1001"


def test_a_born_time_that_was_kept_before_stays() -> None:
    first = copied(entry(b"UNIQ_KEY\x01A\x02", born_timestamp=5))
    second = copied(entry(b"UNIQ_KEY\x01B\x02BORN_TIMESTAMP\x0177\x02__BORNHOST\x01h\x02"))
    _, item = decode_batch(MarkWriter("c", "b", 3).batch([first, second], None))
    assert item.properties.count(b"BORN_TIMESTAMP") == item.properties.count(b"__BORNHOST") == 1
    assert pairs(item.properties)["BORN_TIMESTAMP"] == "77"


@pytest.mark.parametrize(
    ("text", "origin"),
    [
        ("c/b/3/17/2", Origin("c", "b", 3, 17, 2)),
        ("c/b/3/17/2/40", Origin("c", "b", 3, 17, 2, 40)),
        ("c/b/3/17/2 d e", Origin("c", "b", 3, 17, 2, None, ("d", "e"))),
        ("c/b/3/17", None),
        ("c/b/3/x/2", None),
        ("", None),
    ],
)
def test_a_mark_is_read_or_is_none(text: str, origin: Origin | None) -> None:
    assert decode_mark(text) == origin
    stored = entry(f"UNIQ_KEY\x01ID\x02MIRRORED_FROM\x01{text}\x02".encode())
    assert origin_of(stored) == origin


def test_a_mark_inside_another_property_is_none() -> None:
    assert origin_of(entry(b"MY_MIRRORED_FROM\x01c/b/3/17/2\x02UNIQ_KEY\x01I\x02")) is None
