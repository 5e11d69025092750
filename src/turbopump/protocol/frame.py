"""Frames: the boundaries between commands.

::

    offset       size       field
    0            4          totalLen = 4 + headerLen + bodyLen (does not count itself)
    4            1          serialize type: 0 JSON, 1 ROCKETMQ
    5            3          headerLen
    8            headerLen  header (protocol/command.py)
    8+headerLen  the rest   body

All integers big-endian. Source: apache/rocketmq ``NettyDecoder``, ``RemotingCommand``. No I/O here:
bytes in, frames out. The reader allocates nothing for bytes that have not arrived. After a bad
length the reader keeps the error and accepts no more bytes.
"""

from __future__ import annotations

import struct
from typing import Final

import msgspec

from turbopump.errors import FrameError

FRAME_SIZE_MAX: Final = 16_777_216
"""Maximum size of a frame in bytes, totalLen + 4. RocketMQ:
``com.rocketmq.remoting.frameMaxLength``."""

PART_OVERHEAD: Final = 64
"""Estimated bytes of memory for each received piece of an unfinished frame, besides its content. A
peer may send its frame two bytes at a time."""

_LENGTHS: Final = struct.Struct(">II").unpack_from

TLS_HANDSHAKE: Final = 0x1603
"""First two bytes of a TLS connection. No frame has this length."""
JSON: Final = 0
ROCKETMQ: Final = 1


class Frame(msgspec.Struct, frozen=True, gc=False):
    """Received frame, cut into its header bytes and its body bytes.

    ``serialize_type`` is the form of the header, ``JSON`` or ``ROCKETMQ``.
    """

    serialize_type: int
    header: bytes
    body: bytes


class FrameReader:
    """Reader that cuts a byte stream into frames.

    - ``error``: reason why the stream cannot be read further, or None. Frames before the invalid
      one are still returned.
    - ``held``: bytes of memory that the unfinished frame uses.

    Each frame costs one slice for the header and one for the body.
    """

    __slots__ = ("_missing", "_parts", "error", "held", "size_max")

    def __init__(self, size_max: int = FRAME_SIZE_MAX) -> None:
        self.size_max = size_max
        self.error: FrameError | None = None
        self.held = 0
        self._parts: list[bytes] = []
        self._missing = 0

    def feed(self, data: bytes) -> list[Frame]:
        """Read the next bytes of the stream, and return the frames that are now complete.

        After an invalid frame, ``error`` is set and later bytes are ignored.
        """
        if self.error is not None:
            return []
        # An unfinished frame stays in pieces until it is complete: joining it at every read would
        # copy a frame of n reads n times. Its lengths are checked as soon as they are there, so a
        # peer cannot make the reader collect bytes for a frame that it will refuse.
        if self._parts:
            self._parts.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                self.held += len(data) + PART_OVERHEAD
                return []
            data = b"".join(self._parts)
            self._parts = []
            self.held = 0
        frames: list[Frame] = []
        at, size = 0, len(data)
        while size - at >= 8:
            total, mark = _LENGTHS(data, at)
            header_size = mark & 0xFFFFFF
            if total + 4 > self.size_max or header_size > total - 4 or mark > 0x1FFFFFF:
                self._refuse(total, mark)
                return frames
            end = at + 4 + total
            if end > size:
                self._keep(data[at:], end - size)
                return frames
            body_at = at + 8 + header_size
            frames.append(Frame(mark >> 24, data[at + 8 : body_at], data[body_at:end]))
            at = end
        if at < size:
            self._keep_lengths(data[at:])
        return frames

    def drop(self) -> None:
        """Discard the unfinished frame. The reader may not be used afterwards."""
        self._parts = []
        self.held = 0

    def _keep_lengths(self, rest: bytes) -> None:
        """Keep the beginning of a frame whose two lengths are not complete yet.

        If the first length is complete and invalid, the frame is refused at once.
        """
        if len(rest) < 4:
            self._keep(rest, 4 - len(rest))
            return
        total = int.from_bytes(rest[:4])
        if 4 <= total <= self.size_max - 4:
            self._keep(rest, 8 - len(rest))
        else:
            self._refuse(total, 0)

    def _keep(self, rest: bytes, missing: int) -> None:
        self._parts = [rest]
        self._missing = missing
        self.held = len(rest) + PART_OVERHEAD

    def _refuse(self, total: int, mark: int) -> None:
        header_size = mark & 0xFFFFFF
        if total >> 16 == TLS_HANDSHAKE:
            why = "it begins as TLS does, which this port does not speak: tls.server.mode=disabled,"
            why += " or no certificate in tls.server.certPath"
        elif mark >> 24 > ROCKETMQ:
            why = f"serialize type {mark >> 24} is neither 0 (JSON) nor 1 (ROCKETMQ)"
        elif total + 4 > self.size_max:
            why = f"{total + 4} bytes are more than the {self.size_max} allowed"
        else:
            why = f"a header of {header_size} bytes does not fit into {total} bytes"
        self.error = FrameError(f"bad frame: {why}")


def frame_head(header_size: int, body_size: int, serialize_type: int = JSON) -> bytes:
    """Return the first 8 bytes of a frame: its lengths, and the form of its header."""
    return ((4 + header_size + body_size) << 32 | serialize_type << 24 | header_size).to_bytes(8)
