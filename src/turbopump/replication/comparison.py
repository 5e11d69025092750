"""Comparison of a slave's log with its master's log. It comes before the copying of new bytes.

A turbopump slave proves that its log is the beginning of its master's log, byte for byte. The
master asks for digests and compares them with its own.

::

    slave to master    8 PROVE   8 start   8 end   4 count   count × (16 id   8 until)
    master to slave    8 offset   4 size      size > 0: send the digest of these bytes
    slave to master    32 digest              SHA-256
    master to slave    8 offset   4 verdict   0: equal, the log is sent from offset on
                       4 count   count × (16 id   8 until)
                                              then as in stream.py, or the connection ends

Numbers are big-endian. ``start`` and ``end`` are offsets of the slave's log; the slave's history
follows (``history.py``).

The master first compares all bytes after the last point at which the histories agree, and
``BEFORE_SIZE`` bytes before that point. Diverged logs differ at the very end, so this check detects
a wrong history. In that case the master compares everything that both logs have. A range that
differs is halved until its first different byte is found.

The first byte tells the master which kind of slave connects: Apache's slave sends an offset first,
and PROVE would be a negative offset.

Values in, values out. Sockets, files and the loop are unknown here.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

from turbopump.errors import ProtocolError
from turbopump.replication.history import ID_SIZE, KNOWN_MAX, KnownLog, common_until
from turbopump.replication.master import LogSpan, ahead_refusal, too_old_refusal
from turbopump.replication.stream import ReceivedBytes

PROVE: Final = b"\xffTPHP\0\0\1"
DIGEST_SIZE: Final = 32
RANGE_SIZE: Final = 1024 * 1024
"""Maximum number of bytes in one compared range."""
BEFORE_SIZE: Final = 1024 * 1024
"""Number of bytes compared before the offset up to which the histories agree."""

_GREETING: Final = struct.Struct(">8sqq")
_HEAD: Final = struct.Struct(">qi")
_COUNT: Final = struct.Struct(">i")
_KNOWN: Final = struct.Struct(f">{ID_SIZE}sq")


class Verdict(IntEnum):
    """Verdict on a slave's log, compared with its master's log.

    The verdict decides what the ``offset`` of the outcome means:

    - ``EQUAL``: the master sends the log from this offset on.
    - ``DIFFERS``: the offset of the first different byte.
    - ``AHEAD``: the end of the master's log, which is shorter than the slave's.
    - ``TOO_OLD``: the start of the master's log, which the slave's log does not reach.
    """

    EQUAL = 0
    DIFFERS = -1
    AHEAD = -2
    TOO_OLD = -3


class Range(NamedTuple):
    """Range of the log: ``size`` bytes, beginning at ``offset``."""

    offset: int
    size: int


class Outcome(NamedTuple):
    """Outcome of a comparison, together with the history of the master's log."""

    verdict: Verdict
    offset: int
    known: tuple[KnownLog, ...]


def _take_history(came: ReceivedBytes, after: int) -> tuple[KnownLog, ...] | None:
    """Remove a history from the received bytes and return it. Return None while bytes of it are
    missing.

    - ``after``: the number of bytes before the history, which are removed too.

    Raises ProtocolError if the history is invalid.
    """
    if len(came.rest) < after + _COUNT.size:
        return None
    (count,) = _COUNT.unpack_from(came.rest, after)
    if not 0 <= count <= KNOWN_MAX:
        raise ProtocolError(f"a history has {count} entries: the peer does not compare logs")
    data = came.take(after + _COUNT.size + count * _KNOWN.size)
    if data is None:
        return None
    return tuple(KnownLog(*one) for one in _KNOWN.iter_unpack(data[after + _COUNT.size :]))


def _history(known: Sequence[KnownLog]) -> bytes:
    return _COUNT.pack(len(known)) + b"".join(_KNOWN.pack(*one) for one in known)


class MasterComparison:
    """Comparison of two logs, on the master's side of one connection.

    - ``end``: the end of the slave's log.
    - ``asked``: the range whose digest is needed from both sides, or None.
    - ``found``: the result, or None while the comparison runs.
    """

    def __init__(self, known: Sequence[KnownLog]) -> None:
        self._known = tuple(known)
        self._came = ReceivedBytes()
        self._log: LogSpan | None = None
        self._first = self._base = self._at = self.end = 0
        self._differs_before: int | None = None
        self._theirs: bytes | None = None
        self._own: bytes | None = None
        self.asked: Range | None = None
        self.found: Outcome | None = None

    @property
    def rest(self) -> bytes:
        """Bytes received after the end of the comparison."""
        return self._came.rest

    def received(self, data: bytes, log: LogSpan) -> bytes:
        """Process received bytes. Return the bytes to send to the slave.

        The call may change ``asked`` and ``found``. Raises ProtocolError for invalid data.
        """
        self._came.rest += data
        if self.found is not None:
            return b""
        if self._log is None:
            if not PROVE.startswith(self._came.rest[: len(PROVE)]):
                raise ProtocolError("the slave does not speak the HA protocol")
            head = self._came.rest[: _GREETING.size]
            known = _take_history(self._came, _GREETING.size)
            if known is None:
                return b""
            _, start, self.end = _GREETING.unpack(head)
            self._log = log
            return self._start(start, known, log)
        if self.asked is not None and self._theirs is None:
            self._theirs = self._came.take(DIGEST_SIZE)
        elif self.rest:
            raise ProtocolError("the slave sent a digest that was not requested")
        return self._compare_digests()

    def set_digest(self, digest: bytes) -> bytes:
        """Set the master's digest of the range ``asked``. Return the bytes to send to the slave."""
        self._own = digest
        return self._compare_digests()

    def _start(self, start: int, known: Sequence[KnownLog], log: LogSpan) -> bytes:
        if not 0 <= start <= self.end:
            raise ProtocolError(f"the slave's log begins at {start} and ends at {self.end}")
        if self.end == 0:
            return self._finish(Verdict.EQUAL, log.start)  # an empty slave gets the whole log
        if self.end > log.written:
            return self._finish(Verdict.AHEAD, log.written)
        self._base = max(start, log.start)
        same = min(common_until(known, self._known), self.end)
        if self.end < self._base or (self.end == self._base and same < self.end):
            return self._finish(Verdict.TOO_OLD, log.start)  # nothing can be compared
        self._first = self._at = max(self._base, same - BEFORE_SIZE)
        return self._request_next()

    def _request_next(self) -> bytes:
        """Return a request for the digest of the next range. If everything is compared, return the
        result."""
        log = self._log
        assert log is not None
        self._theirs = self._own = None
        if self._at == self._differs_before:
            self._differs_before = None  # damage that was repaired during the search
        if self._at >= self.end:
            return self._finish(Verdict.EQUAL, self.end)
        if self._differs_before is not None:
            size = (self._differs_before - self._at + 1) // 2
        else:
            # a range must not cross the end of a segment
            here = log.segment_size - (self._at - log.start) % log.segment_size
            size = min(RANGE_SIZE, self.end - self._at, here)
        self.asked = Range(self._at, size)
        return _HEAD.pack(self._at, size)

    def _compare_digests(self) -> bytes:
        """Compare the digests of both sides. Return the next request, or the result.

        Return no bytes while a digest is missing.
        """
        # After an equal range the comparison continues behind it. A range that differs is halved by
        # ``_request_next``, down to the first different byte. If this is the very first byte that
        # was compared, the histories were wrong about the bytes before it. Then all bytes that both
        # logs have are compared, from the first one on.
        asked = self.asked
        if asked is None or self._theirs is None or self._own is None:
            return b""
        if self._theirs == self._own:
            self._at += asked.size
        elif asked.size > 1:
            self._differs_before = asked.offset + asked.size
        elif self._at > self._first or self._first == self._base:
            return self._finish(Verdict.DIFFERS, self._at)
        else:
            self._first = self._at = self._base
            self._differs_before = None
        return self._request_next()

    def _finish(self, verdict: Verdict, offset: int) -> bytes:
        self.asked = None
        self.found = Outcome(verdict, offset, self._known)
        return _HEAD.pack(offset, verdict) + _history(self._known)


class SlaveComparison:
    """Comparison of two logs, on the slave's side of one connection.

    - ``start``, ``end``: the first and the last offset of the slave's log.
    - ``known``: the history of the slave's log.
    - ``found``: the result, or None while the comparison runs.
    """

    def __init__(self, start: int, end: int, known: Sequence[KnownLog]) -> None:
        self.start, self.end = start, end
        self._known = tuple(known)
        self._came = ReceivedBytes()
        self.found: Outcome | None = None

    @property
    def rest(self) -> bytes:
        """Bytes received after the end of the comparison."""
        return self._came.rest

    def begin(self) -> bytes:
        """Return the first bytes that a slave sends in a comparison.

        These are PROVE, the ends of the slave's log, and its history.
        """
        return _GREETING.pack(PROVE, self.start, self.end) + _history(self._known)

    def received(self, data: bytes) -> Range | Outcome | None:
        """Process received bytes. Return the next request of the master, or its result.

        A request is a range whose digest the master wants. Return None if more bytes must arrive.
        Raises ProtocolError for invalid data.
        """
        self._came.rest += data
        if self.found is not None or len(self.rest) < _HEAD.size:
            return None
        offset, size = _HEAD.unpack_from(self.rest)
        if size > 0:
            if not (self.start <= offset <= self.end - size and size <= RANGE_SIZE):
                raise ProtocolError(
                    f"the master requests a digest of {size} bytes at {offset}, but the "
                    f"log here has {self.start} to {self.end}"
                )
            self._came.take(_HEAD.size)
            return Range(offset, size)
        try:
            verdict = Verdict(size)
        except ValueError:
            raise ProtocolError(
                f"the master sent verdict {size}, which is unknown: it does not compare logs"
            ) from None
        known = _take_history(self._came, _HEAD.size)
        if known is not None:
            self.found = Outcome(verdict, offset, known)
        return self.found


_NOTHING_IS_CUT: Final = "Nothing is cut automatically"


def masters_refusal(found: Outcome, end: int) -> str:
    """Return the reason why a master refuses a slave, with advice for the operator.

    - ``end``: the end of the slave's log.
    """
    at = found.offset
    if found.verdict is Verdict.AHEAD:
        return ahead_refusal(end, at)
    if found.verdict is Verdict.TOO_OLD:
        return too_old_refusal(end, at)
    return (
        f"the slave has another log: its bytes from offset {at} up to {end} differ from "
        f"this master's. {_NOTHING_IS_CUT}: save the messages that only the slave has "
        "(turbopump store dump), then empty its store so that it is copied again"
    )


def slaves_refusal(found: Outcome, master: str, end: int) -> str:
    """Return the reason why a slave refuses its master, with advice for the operator.

    - ``end``: the end of the slave's log.
    """
    at = found.offset
    if found.verdict is Verdict.AHEAD:
        return (
            f"the log here ends at {end}, but that of the master at {master} at {at}: the "
            "master was restored from an older copy, or lost its tail. "
            f"{_NOTHING_IS_CUT}: make this slave the master, or empty this store so that "
            "it is copied again"
        )
    if found.verdict is Verdict.TOO_OLD:
        return (
            f"the log here ends at {end}, but that of the master at {master} begins at "
            f"{at}: older files were deleted; empty this store so that it is copied again"
        )
    return (
        f"the master at {master} has another log: its bytes from offset {at} on differ "
        f"from those here, where the log ends at {end}. Either this store has messages "
        f"that the master never had, or the master lost some. {_NOTHING_IS_CUT}: save the "
        "messages here (turbopump store dump), then empty this store so that it is "
        "copied again. If one of the two is damaged there (turbopump store verify), it "
        "is repaired from the other automatically"
    )
