"""The bits of a message's ``sysFlag`` (apache/rocketmq ``MessageSysFlag``, ``CompressionType``)."""

from __future__ import annotations

from typing import Final


class SysFlag:
    """What the store must know of a message. Plain ints: ``int & IntFlag`` would cost 0.7 µs,
    several times per message."""

    COMPRESSED: Final = 0x1
    MULTI_TAGS: Final = 0x2
    TRANSACTION_PREPARED: Final = 0x4
    TRANSACTION_COMMIT: Final = 0x8
    BORN_HOST_V6: Final = 0x10
    STORE_HOST_V6: Final = 0x20
    NEED_UNWRAP: Final = 0x40
    INNER_BATCH: Final = 0x80


TRANSACTION_MASK: Final = 0xC
"""Both transaction bits; both set means rolled back."""

COMPRESSION_MASK: Final = 0x700
LZ4: Final = 0x100
ZSTD: Final = 0x200
ZLIB: Final = 0x300
"""Compression type; 0 together with COMPRESSED is zlib too (clients before 5.0)."""
