"""Stored messages made for tests, byte by byte from the ruler, so that they depend on nothing under
test."""

from __future__ import annotations

import struct
import zlib
from ipaddress import ip_address


def stored_message(
    body: bytes = b"body",
    *,
    topic: str | bytes = "T",
    properties: bytes = b"",
    queue_id: int = 0,
    queue_offset: int = 0,
    commit_log_offset: int = 0,
    flag: int = 0,
    sys_flag: int = 0,
    born_ms: int = 1_700_000_000_123,
    stored_ms: int = 1_700_000_000_456,
    born_host: tuple[str, int] = ("127.0.0.1", 40000),
    store_host: tuple[str, int] = ("127.0.0.1", 10911),
    reconsume_times: int = 0,
    prepared: int = 0,
    v2: bool = False,
) -> bytes:
    """One entry as a CommitLog holds it."""
    topic_bytes = topic.encode() if isinstance(topic, str) else topic
    sys_flag |= (16 if ":" in born_host[0] else 0) | (32 if ":" in store_host[0] else 0)
    rest = b"".join(
        (
            struct.pack(
                ">IiiiqqiQ",
                0xDAA320AB if v2 else 0xDAA320A7, zlib.crc32(body) & 0x7FFFFFFF, queue_id, flag,
                queue_offset, commit_log_offset, sys_flag, born_ms,
            ),
            ip_address(born_host[0]).packed, struct.pack(">i", born_host[1]),
            struct.pack(">q", stored_ms),
            ip_address(store_host[0]).packed, struct.pack(">i", store_host[1]),
            struct.pack(">iqi", reconsume_times, prepared, len(body)), body,
            len(topic_bytes).to_bytes(2 if v2 else 1), topic_bytes,
            len(properties).to_bytes(2), properties,
        )
    )  # fmt: skip
    return struct.pack(">i", len(rest) + 4) + rest


def property_bytes(properties: dict[str, str], *, ended: bool = True) -> bytes:
    """Properties as Apache writes them; without the last separator as its 4.9 clients do."""
    text = "\x02".join(f"{name}\x01{value}" for name, value in properties.items())
    return (text + ("\x02" if ended and text else "")).encode()
