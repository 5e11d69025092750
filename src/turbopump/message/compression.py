"""Compression of message bodies, and decompression within a limit: zlib stream, LZ4 frame, ZSTD.

``sysFlag`` holds the compression type. Nothing is decompressed beyond ``size_max``, because a body
of a few KiB can expand to gigabytes.
"""

from __future__ import annotations

import zlib
from typing import Final

from turbopump.errors import StoredMessageError
from turbopump.message.properties import COMPRESSION_MASK, LZ4, ZLIB, ZSTD, SysFlag

DECOMPRESSED_SIZE_MAX: Final = 64 * 1024 * 1024
"""Maximum decompressed size in bytes, sixteen times a broker's default maximum for a body."""


def compress(body: bytes, kind: int = ZLIB, level: int = 5) -> tuple[bytes, int]:
    """Return a compressed body and the sysFlag bits that name the compression.

    ``kind`` is ZLIB, LZ4 or ZSTD of ``SysFlag``.
    """
    if kind == ZLIB:
        return zlib.compress(body, level), SysFlag.COMPRESSED | ZLIB
    if kind == LZ4:
        import lz4.frame

        return bytes(lz4.frame.compress(body, compression_level=level)), SysFlag.COMPRESSED | LZ4
    assert kind == ZSTD
    import zstandard

    return zstandard.ZstdCompressor(level=level).compress(body), SysFlag.COMPRESSED | ZSTD


def decompress(data: bytes, sys_flag: int, size_max: int = DECOMPRESSED_SIZE_MAX) -> bytes:
    """Return a body decompressed by the method that ``sys_flag`` names.

    Raise StoredMessageError if the data is damaged, if the result would be longer than ``size_max``
    bytes, or if the method is unknown.
    """
    kind = sys_flag & COMPRESSION_MASK
    try:
        if kind in (ZLIB, 0):
            stream = zlib.decompressobj()
            body = stream.decompress(data, size_max + 1)
            complete = stream.eof
        elif kind == LZ4:
            import lz4.frame

            frame = lz4.frame.LZ4FrameDecompressor()
            body = bytes(frame.decompress(data, size_max + 1))
            complete = frame.eof
        elif kind == ZSTD:
            body, complete = _decompress_zstd(data, size_max)
        else:
            raise StoredMessageError(f"unknown compression type {kind >> 8} in sysFlag {sys_flag}")
    except (zlib.error, RuntimeError, ValueError, OSError) as error:
        raise StoredMessageError(f"a compressed body cannot be read: {error}") from None
    except Exception as error:
        if type(error).__module__.split(".")[0] in ("zstandard", "lz4"):
            raise StoredMessageError(f"a compressed body cannot be read: {error}") from None
        raise
    if len(body) > size_max:
        raise StoredMessageError(f"a compressed body is longer than the {size_max} bytes allowed")
    if not complete:
        raise StoredMessageError("a compressed body ends too early")
    return body


_ZSTD_STEP: Final = 1024
"""Bytes passed to ZSTD in one call. One call can then produce at most 32 MiB (128 KiB for each
block of 4 bytes)."""


def _decompress_zstd(data: bytes, size_max: int) -> tuple[bytes, bool]:
    """Decompress a ZSTD frame. Return the body, and True if the frame is complete.

    The body may be slightly longer than ``size_max``.
    """
    import zstandard

    stream = zstandard.ZstdDecompressor().decompressobj()
    parts = []
    size = 0
    for at in range(0, len(data), _ZSTD_STEP):
        parts.append(stream.decompress(data[at : at + _ZSTD_STEP]))
        size += len(parts[-1])
        if size > size_max or stream.eof:
            break
    return b"".join(parts), stream.eof
