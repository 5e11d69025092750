"""The role of a master: the state of each slave, the next bytes to send, and the confirmed offset.

Values in, values out: offsets, bytes of reports and times (monotonic seconds) come in; bytes to
send, refusals and acknowledgements come out. Sockets, files and the loop are unknown here. Source:
apache/rocketmq ``DefaultHAConnection``, ``DefaultHAService``, ``GroupTransferService``,
``FlowMonitor``; differences are noted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

from turbopump.errors import ProtocolError
from turbopump.replication.stream import ByteRate, ReportReader

FAR_BEHIND: Final = 16 * 1024 * 1024
"""In bytes. Sends do not wait for a slave that is this far behind."""
PAUSE_S: Final = 0.001
BUSY_S: Final = 0.1
"""Seconds after a growth of the log in which the master counts as busy."""


@dataclass(frozen=True, slots=True)
class MasterSettings:
    """Settings of a master. Times are seconds, sizes are bytes. ``acks``: slaves that must have a
    message before it is acknowledged; 0: no waiting. ``rate_max`` 0: no flow control."""

    heartbeat: float = 5.0
    housekeeping: float = 20.0
    batch: int = 32 * 1024
    rate_max: int = 0
    acks: int = 0
    catch_up: float = 15.0


class LogSpan(NamedTuple):
    """Offsets of a master's log: it can be sent up to ``end``; ``written`` is its real end."""

    start: int
    end: int
    written: int
    segment_size: int


class Transfer(NamedTuple):
    """Bytes of the log to send next: first offset and size; size 0: a heartbeat."""

    offset: int
    size: int


@dataclass(slots=True, eq=False)
class SlaveConnection:
    """A slave's connection as its master sees it. ``slave``: who that is; two connections of one
    slave have the same. ``now`` at its start."""

    settings: MasterSettings
    slave: str
    now: float
    acked: int = -1
    """Up to where the slave has the log; -1: it has not said so."""
    next: int | None = None
    """The offset that is sent next; None before its first report."""
    proved: bool = False
    """True if its log was found to be the beginning of this one (``comparison.py``)."""
    last_read: float = 0.0
    last_write: float = 0.0
    sent: ByteRate = field(init=False)
    _reports: ReportReader = field(default_factory=ReportReader)
    _written: int = 0
    _grew: float = float("-inf")

    def __post_init__(self) -> None:
        self.last_read = self.now
        self.sent = ByteRate(self.now)
        self.last_write = self.now - self.settings.heartbeat  # so that it hears it is served

    def begin_proved(self, offset: int) -> None:
        """Start sending at ``offset``: the slave has proved its log up to there. The proof
        acknowledges nothing yet, for fewer bytes may be on its disk."""
        self.next, self.proved = offset, True

    def received(self, data: bytes, log: LogSpan, now: float) -> bool:
        """Take a slave's reports; whether there was one. The same offset once more counts too: a
        slave that has everything is in sync while nothing is sent.

        Raises ProtocolError for one that cannot be: it asks for what is not there any more, or not
        there yet, or acknowledges what it was not sent. RocketMQ believes any number.
        """
        self.last_read = now
        offsets = self._reports.feed(data)
        if not offsets:
            return False
        had = self.next
        if had is None:
            self.next = self._first(offsets[0], log)
            had = max(self.next, offsets[0])
        if max(offsets) > had:
            raise ProtocolError(
                f"the slave acknowledges {max(offsets)}, and was sent the log up to {had}"
            )
        self.acked = max(self.acked, *offsets)
        return True

    def _first(self, wanted: int, log: LogSpan) -> int:
        """Return the first offset to send to a slave that reports this end of its log."""
        if wanted == 0:
            # RocketMQ: from the start of the file that is being written; what is older is not sent
            return max(log.written - log.written % log.segment_size, log.start)
        if wanted > log.written:
            raise ProtocolError(
                f"the slave's log ends at {wanted}, but this master's at {log.written}: "
                "the master was restored from an older copy, or lost its tail; nothing "
                "is cut automatically. Make the slave the master, or empty the slave's "
                "store so that it is copied again"
            )
        if wanted < log.start:
            raise ProtocolError(
                f"the slave wants the log from {wanted} on, but this master's begins at "
                f"{log.start}: older files were deleted; empty the slave's store so that "
                "it is copied again"
            )
        return wanted

    def transfer(self, log: LogSpan, now: float) -> Transfer | None:
        """Return the next transfer, or None. The returned bytes count as sent."""
        if self.next is None:
            return None
        if self.next < log.start:
            raise ProtocolError(
                f"the slave is at {self.next}, and the log begins at {log.start} by now: its files "
                "were deleted before the slave had them"
            )
        left = log.end - self.next
        if left > 0:
            # never over the end of a segment, as a file is read in one piece
            here = log.segment_size - (self.next - log.start) % log.segment_size
            size = self._allowed(min(left, here, self.settings.batch), now)
            if size > 0:
                sent = Transfer(self.next, size)
                self.next += size
                self.last_write = now
                return sent
        elif now - self.last_write >= self.settings.heartbeat:
            self.last_write = now
            return Transfer(self.next, 0)
        return None

    def pause(self, written: int, now: float) -> float:
        """For how long, in seconds, others have the master to themselves after a turn's worth was
        sent; the log ends at ``written`` now. A slave that is far behind gets a turn a millisecond
        while somebody writes to the log, so that senders notice it less."""
        if written > self._written:
            self._written, self._grew = written, now
        is_far = self.next is not None and written - self.next > FAR_BEHIND
        return PAUSE_S if is_far and now - self._grew < BUSY_S else 0.0

    def _allowed(self, size: int, now: float) -> int:
        self.sent.begin(now)
        if self.settings.rate_max:
            size = max(min(size, self.settings.rate_max - self.sent.in_this_second), 0)
        self.sent.in_this_second += size
        return size

    def is_silent(self, now: float) -> bool:
        """Return True if the slave has been silent for too long and must be closed."""
        return now - self.last_read > self.settings.housekeeping


@dataclass(slots=True)
class _Progress:
    acked: int = -1
    caught_up: float = float("-inf")
    """When it had last all that there was."""
    report: float = 0.0
    end_at_report: int = 0
    counts_from: int = 0
    """The slave counts once everything before this offset is confirmed without it."""


class Replicas:
    """Acknowledged offsets of all slaves. A slave is in sync if it had all of the log at some
    moment of the last ``catch_up`` seconds.

    A slave that has not proved its log counts only for messages that were stored after it
    connected: those were sent to it whole. Older messages are confirmed by other slaves first, or,
    if there are none, answered as messages that no slave has.
    """

    def __init__(self, settings: MasterSettings) -> None:
        self._settings = settings
        self._slaves: dict[tuple[str, bool], _Progress] = {}
        """By slave, and whether it has proved its log: a connection that has not must not change
        what is known of one that has."""
        self.copied = 0
        """Up to where ``acks`` slaves have the log."""
        self.alone = settings.acks > 0
        """True if too few slaves are in sync to wait for them."""

    def begins(self, slave: str, *, proved: bool, end: int, now: float) -> None:
        """A slave has a new connection: it may have been emptied, or have lost its power. The log
        ends at ``end``."""
        if not proved:
            self._slaves[slave, False] = _Progress(
                -1, report=now, end_at_report=end, counts_from=end
            )
        elif (slave, True) in self._slaves:
            self._slaves[slave, True].acked = -1

    def acknowledged(
        self,
        slave: str,
        acked: int,
        end: int,
        now: float,
        confirmed: int = 0,
        *,
        proved: bool = True,
    ) -> None:
        """A slave has the log up to ``acked``; the log ends at ``end``, and is ``confirmed``."""
        one = self._slaves.setdefault((slave, proved), _Progress())
        # Under load a slave never has all of what there is by now: it counts what there was when
        # it reported before. Apache Kafka judges its followers so.
        if acked >= end:
            one.caught_up = now
        elif acked >= one.end_at_report and one.acked >= 0:
            one.caught_up = max(one.caught_up, one.report)
        one.acked = max(one.acked, acked)
        one.report, one.end_at_report = now, end
        self.look(now, confirmed)

    def is_in_sync(self, slave: str, now: float, *, proved: bool = True) -> bool:
        one = self._slaves.get((slave, proved))
        return one is not None and self._keeps_up(one, now)

    def _keeps_up(self, one: _Progress, now: float) -> bool:
        return not one.counts_from and now - one.caught_up <= self._settings.catch_up

    def in_sync(self, now: float) -> int:
        """Count the slaves in sync."""
        return len({slave for (slave, _), one in self._slaves.items() if self._keeps_up(one, now)})

    def look(self, now: float, confirmed: int = 0) -> None:
        """Work out what is copied, and whether enough slaves are in sync; forget those that were
        not for long. ``confirmed``: senders of what lies before have their answers."""
        wanted, catch_up = self._settings.acks, self._settings.catch_up
        acked = dict[str, int]()
        in_sync = set[str]()
        gone = None
        for key, one in self._slaves.items():
            if now - one.report > 4 * catch_up:
                gone = key
                continue
            if one.counts_from:
                if confirmed < one.counts_from:
                    continue
                one.counts_from = 0
            slave = key[0]
            if one.acked > acked.get(slave, -2):
                acked[slave] = one.acked
            if now - one.caught_up <= catch_up:
                in_sync.add(slave)
        if gone is not None:
            del self._slaves[gone]  # the next one in the next round
        if not wanted:
            return
        if len(acked) >= wanted:
            self.copied = max(self.copied, sorted(acked.values())[-wanted])
        self.alone = len(in_sync) < wanted
