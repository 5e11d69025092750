"""The plain twin of ``turbopump.spark.decode``: one message at a time, one tuple per row. The truth
that the vectors must agree with, and the reader that ``measure_read.py`` compares CPU with. Written
from the byte ruler in docs, not from the vectorised code."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import Any

from turbopump.errors import StoredMessageError
from turbopump.message.compression import decompress
from turbopump.spark.options import COLUMN_NAMES

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_HEAD = struct.Struct(">iIiiiqqiq")
_HOST_V4, _HOST_V6 = struct.Struct(">4si"), struct.Struct(">16si")
_TAIL = struct.Struct(">iqi")


def rows(
    raw: bytes, broker_name: str, columns: Sequence[str] = COLUMN_NAMES
) -> Iterator[tuple[Any, ...]]:
    """One tuple per stored message, in the order of ``columns``."""
    at = 0
    while at < len(raw):
        row = message(raw, at, broker_name)
        at += row["storeSize"]
        yield tuple([row[name] for name in columns])


def message(raw: bytes, begin: int, broker_name: str) -> dict[str, Any]:
    size, magic, crc, queue_id, flag, queue_offset, commit_log_offset, sys_flag, born = (
        _HEAD.unpack_from(raw, begin)
    )
    at = begin + _HEAD.size
    born_host, at = _host(raw, at, v6=bool(sys_flag & 16))
    (stored,) = struct.unpack_from(">q", raw, at)
    host_at = at + 8
    store_host, at = _host(raw, host_at, v6=bool(sys_flag & 32))
    host_bytes = raw[host_at:at]
    reconsume_times, prepared, body_size = _TAIL.unpack_from(raw, at)
    at += _TAIL.size
    body, fault = _body(bytes(raw[at : at + body_size]), sys_flag)
    at += body_size
    width = 2 if magic == 0xDAA320AB else 1
    topic_size = int.from_bytes(raw[at : at + width])
    at += width
    topic = bytes(raw[at : at + topic_size]).decode(errors="replace")
    at += topic_size
    (properties_size,) = struct.unpack_from(">H", raw, at)
    at += 2
    properties = _properties(bytes(raw[at : at + properties_size]).decode(errors="replace"))
    assert at + properties_size == begin + size
    return {
        "topic": topic,
        "brokerName": broker_name,
        "queueId": queue_id,
        "queueOffset": queue_offset,
        "commitLogOffset": commit_log_offset,
        "msgId": properties.get("UNIQ_KEY"),
        "offsetMsgId": (host_bytes + commit_log_offset.to_bytes(8)).hex().upper(),
        "keys": properties.get("KEYS"),
        "tags": properties.get("TAGS"),
        "body": body,
        "properties": properties,
        "flag": flag,
        "sysFlag": sys_flag,
        "bodyCrc": crc,
        "bornTimestamp": _EPOCH + timedelta(milliseconds=born),
        "storeTimestamp": _EPOCH + timedelta(milliseconds=stored),
        "bornHost": born_host,
        "storeHost": store_host,
        "reconsumeTimes": reconsume_times,
        "preparedTransactionOffset": prepared,
        "storeSize": size,
        "bodyFault": fault,
    }


def _body(stored: bytes, sys_flag: int) -> tuple[bytes, str | None]:
    try:
        return (decompress(stored, sys_flag) if sys_flag & 1 else stored), None
    except StoredMessageError as error:
        return stored, str(error)


def _host(raw: bytes, at: int, *, v6: bool) -> tuple[str, int]:
    layout = _HOST_V6 if v6 else _HOST_V4
    packed, port = layout.unpack_from(raw, at)
    address = str(ip_address(packed))
    return (f"[{address}]:{port}" if v6 else f"{address}:{port}"), at + layout.size


def _properties(text: str) -> dict[str, str]:
    properties = {}
    for piece in text.split("\x02"):
        name, _, value = piece.partition("\x01")
        if name and value and name != "__CRC32#":
            properties[name] = value
    return properties
