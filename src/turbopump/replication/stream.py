"""Byte stream between a master and its slave on the HA port.

::

    slave to master    8 offset     first: the end of its log, from which on it wants bytes;
                                    then: the end of what it has (an acknowledgement)
    master to slave    8 offset of the first byte   4 size n   n bytes of the log as they are
                       n = 0 is a heartbeat

Numbers are big-endian. There is no other framing: n bytes may begin and end anywhere in an entry.
Source: apache/rocketmq ``DefaultHAConnection``, ``DefaultHAClient``.
"""

from __future__ import annotations

import struct
from typing import Final

from turbopump.errors import ProtocolError

TRANSFER_HEAD: Final = struct.Struct(">qi")
REPORT: Final = struct.Struct(">q")
TRANSFER_SIZE_MAX: Final = 1 << 30
"""Maximum number of bytes in a frame. A frame that claims more is invalid."""


class ByteRate:
    """Counter of bytes per second. The result is for the last whole second.

    - ``now``: the start of the first second.
    """

    def __init__(self, now: float) -> None:
        self.in_this_second = 0
        self._last_second = 0
        self._second = now

    def begin(self, now: float) -> None:
        """Start a new second if the last one is over."""
        elapsed = now - self._second
        if elapsed >= 1.0:
            self._last_second = self.in_this_second if elapsed < 2.0 else 0
            self._second = now
            self.in_this_second = 0

    def per_second(self, now: float) -> int:
        elapsed = now - self._second
        if elapsed >= 2.0:
            return 0
        return self.in_this_second if elapsed >= 1.0 else self._last_second


class ReportReader:
    """Decoder of the reports that a slave sends to its master."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[int]:
        """Return the offsets of all complete reports. Raises ProtocolError for a negative
        offset."""
        data = self._rest + data
        whole = len(data) - len(data) % REPORT.size
        self._rest = data[whole:]
        offsets = [offset for (offset,) in REPORT.iter_unpack(data[:whole])]
        if any(offset < 0 for offset in offsets):
            raise ProtocolError(
                f"the slave reports offset {min(offsets)}: it does not speak the HA protocol"
            )
        return offsets


class TransferReader:
    """Decoder of the frames from a master. The frames contain its log.

    - ``position``: the next offset of the log, or None before the first frame if any start is
      accepted.
    - ``frames``: the number of decoded frames.
    """

    def __init__(self, position: int | None) -> None:
        self.position = position
        self.frames = 0
        self._left = 0
        self._head = b""

    def feed(self, data: bytes) -> list[memoryview]:
        """Decode received bytes. Return the contained bytes of the log, in pieces.

        Raises ProtocolError if a frame does not continue at the end of the frame before.
        """
        found: list[memoryview] = []
        at = 0
        end = len(data)
        view = memoryview(data)
        while at < end:
            if self._left:
                piece = view[at : at + self._left]
                found.append(piece)
                at += len(piece)
                self._left -= len(piece)
                assert self.position is not None
                self.position += len(piece)
                continue
            missing = TRANSFER_HEAD.size - len(self._head)
            self._head += data[at : at + missing]
            at += missing
            if len(self._head) == TRANSFER_HEAD.size:
                self._begin(*TRANSFER_HEAD.unpack(self._head))
                self._head = b""
        return found

    def _begin(self, offset: int, size: int) -> None:
        if not 0 <= size <= TRANSFER_SIZE_MAX or offset < 0:
            raise ProtocolError(
                f"the master sends {size} bytes at offset {offset}: it does not speak the "
                "HA protocol"
            )
        if self.position is None:
            self.position = offset
        if offset != self.position:
            raise ProtocolError(
                f"the master sent offset {offset}, but the slave's log continues at {self.position}"
            )
        self._left = size
        self.frames += 1


class ReceivedBytes:
    """Buffer of received bytes. A caller takes pieces from its start.

    - ``rest``: the bytes that were not taken yet.
    """

    def __init__(self) -> None:
        self.rest = b""

    def take(self, size: int) -> bytes | None:
        """Remove and return the first ``size`` bytes. Return None if fewer bytes have arrived."""
        if len(self.rest) < size:
            return None
        taken = self.rest[:size]
        self.rest = self.rest[size:]
        return taken
