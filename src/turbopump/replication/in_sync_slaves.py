"""Slaves of a master that count as in sync, and the log offset that enough slaves have.

Values in, values out: offsets and times (monotonic seconds). Sockets are unknown here. Source:
apache/rocketmq ``DefaultHAService.inSyncReplicasNums``, ``GroupTransferService``.
"""

from __future__ import annotations

from dataclasses import dataclass

from turbopump.replication.master import MasterSettings
from turbopump.replication.slave_progress import SlaveProgress


@dataclass(slots=True)
class _Progress(SlaveProgress):
    counts_from: int = 0
    """End of the log when an unproved slave connected, or 0 if the slave counts.

    The slave counts once everything before this offset is confirmed by other slaves.
    """


class InSyncSlaves:
    """Table of the slaves of a master, with the log offset that each has acknowledged.

    A slave is in sync if it had all of the log at some moment of the last ``catch_up`` seconds.

    A slave that has not proved its log counts only for messages stored after it connected, because
    only those were certainly sent to it. Older messages are confirmed by other slaves. Without
    other slaves, their sends are answered as not replicated.
    """

    def __init__(self, settings: MasterSettings) -> None:
        self._settings = settings
        self._slaves: dict[tuple[str, bool], _Progress] = {}
        """State of each slave, by name, and by whether it has proved its log.

        An unproved connection must not change the state of a proved one.
        """
        self.copied = 0
        """Offset up to which at least ``acks`` slaves have the log."""
        self.alone = settings.acks > 0
        """True if fewer than ``acks`` slaves are in sync, so that sends do not wait for slaves."""

    def record_begin(self, slave: str, *, proved: bool, end: int, now: float) -> None:
        """Reset the state of a slave that has connected again. The slave may have lost data.

        - ``end``: the end of the master's log.
        """
        if not proved:
            self._slaves[slave, False] = _Progress(report=now, end_at_report=end, counts_from=end)
        elif (slave, True) in self._slaves:
            self._slaves[slave, True].acked = -1

    def record_acknowledgement(
        self,
        slave: str,
        acked: int,
        end: int,
        now: float,
        confirmed: int = 0,
        *,
        proved: bool = True,
    ) -> None:
        """Record the offset up to which a slave has the log.

        - ``acked``: this offset.
        - ``end``: the end of the master's log.
        - ``confirmed``: the offset up to which sends are answered.
        """
        one = self._slaves.setdefault((slave, proved), _Progress())
        one.acknowledge(acked, end, now)
        self.update(now, confirmed)

    def is_in_sync(self, slave: str, now: float, *, proved: bool = True) -> bool:
        """Return True if a slave is in sync: it had the whole log within the last ``catch_up``
        seconds.

        A slave that does not count yet is not in sync.
        """
        one = self._slaves.get((slave, proved))
        if one is None or one.counts_from:
            return False
        return now - one.caught_up <= self._settings.catch_up

    def update(self, now: float, confirmed: int = 0) -> None:
        """Update the offset that enough slaves have copied. Forget a slave after a long silence.

        - ``confirmed``: the offset up to which sends are answered.
        """
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
            del self._slaves[gone]  # one slave for each call
        if not wanted:
            return
        if len(acked) >= wanted:
            self.copied = max(self.copied, sorted(acked.values())[-wanted])
        self.alone = len(in_sync) < wanted
