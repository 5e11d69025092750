"""Sync state set of a master: the replicas that have every confirmed message.

The controller owns the set, and elects the next master from it. The master asks the controller to
change it (request 1001), and confirms messages. These rules hold together:

1. The confirmed offset is the smallest acknowledged offset in the set. It never moves back. It
   moves only while the set has `minInSyncReplicas` members: before that, the controller may still
   elect any member of the last set that had them.
2. A request is open until the controller has refused it, or has sent a set with a higher number.
   An open request may take effect at any moment, also if its answer never comes: a network may
   deliver it late. So meanwhile each replica counts that is in the set or in an open request.
3. A slave is wanted in the set when it has all that is confirmed and the start of this epoch. It is
   not wanted any more when its connection has ended, when it has not caught up for a while, or when
   it came back with less than is confirmed. After the end of a connection it must leave the set
   before it may join again: its process may be a new one, and the controller must learn of that.
4. While producers send, a slave is always a little behind. If only that keeps it out, it counts for
   a moment before it is asked for, so that the confirmed offset waits for it.

So whatever set the controller elects from, each of its members has what was confirmed.

A slave that had the whole log at its last report is caught up as long as nothing is stored, but for
15 s at most: Apache's slaves report no more often than each 5 s.

Values in, values out: ids, offsets and times (monotonic seconds) come in. The controller, sockets
and the loop are unknown here. Source: apache/rocketmq ``AutoSwitchHAService``; differences: rule 2
(a failed request of RocketMQ's counts until the next set, any set), rule 3 (a member that never
connected is dropped after the same time), and a member without a connection does not stop the
counting, it counts with its last acknowledgement.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from turbopump.replication.slave_progress import NEVER, SlaveProgress

EVERYTHING: Final = 1 << 62
"""Offset beyond the end of every log."""
IDLE_S: Final = 15.0
"""Seconds after its last report for which a slave with the whole log counts as caught up."""
LOST_S: Final = 120.0
"""Seconds after which a request without an answer can no longer arrive: TCP has given it up."""
JOIN_S: Final = 1.0
"""Seconds for which the confirmed offset waits for a slave that is about to join."""
JOIN_AGAIN_S: Final = 10.0
"""Seconds after which a slave may try to join again."""


@dataclass(slots=True)
class _Slave(SlaveProgress):
    """Progress of one slave, and its state for the set.

    - ``must_leave``: True after the end of a connection, until the set is without the slave.
    - ``joins_until``, ``joins_from``: the time until which it counts because it is about to join,
      and the time before which that does not begin again.
    - ``unknown``: True after the controller has refused its id, until it connects again.
    """

    connected: bool = False
    learner: bool = False
    must_leave: bool = False
    joins_until: float = NEVER
    joins_from: float = NEVER
    unknown: bool = False


class SyncStateSet:
    """Sync state set of a master, the wanted one, and the offset that the set confirms.

    - ``own_id``: the id of the master itself.
    - ``epoch_start``: offset at which the master's epoch begins.
    - ``confirmed``: offset that was confirmed before.
    - ``catch_up``: seconds for which a slave stays wanted after it last had the whole log.
    - ``size_min``: number of members without which sends are refused and nothing is confirmed.
    """

    def __init__(
        self, own_id: int, epoch_start: int, confirmed: int, *, catch_up: float, size_min: int
    ) -> None:
        self.own_id = own_id
        self.ids: frozenset[int] = frozenset()
        """Members, by the last answer of the controller. Empty before the first one."""
        self.set_epoch = -1
        """Number of the set, which the controller raises with each change."""
        self.confirmed = confirmed
        self._epoch_start = epoch_start
        self._catch_up = catch_up
        self._size_min = size_min
        self._own_end = 0
        self._open: frozenset[int] = frozenset()
        self._joining: frozenset[int] = frozenset()
        self._asked = False
        self._newcomers: frozenset[int] = frozenset()
        """Replicas in the last request that are not in the set."""
        self._one_by_one = False
        """True after a request with an unknown id among several newcomers."""
        self._lost_at: float | None = None
        """Time at which an open request was given up, because no answer had come."""
        self._slaves: dict[int, _Slave] = {}

    @property
    def is_writable(self) -> bool:
        """True if the set has enough members to accept sends."""
        return len(self.ids) >= max(self._size_min, 1)

    @property
    def counted(self) -> frozenset[int]:
        """Replicas whose acknowledgements count: the set, those in open requests, and those that
        are about to join."""
        return self.ids | self._open | self._joining

    def set_members(self, ids: frozenset[int], set_epoch: int, now: float) -> None:
        """Set the members, as the controller says. A set older than the known one is ignored.

        A newer set ends all open requests, because they named the number of the older one.
        """
        if set_epoch < self.set_epoch or self.own_id not in ids:
            return
        if set_epoch > self.set_epoch:
            self._open = frozenset()
            self._asked = self._one_by_one = False
            self._lost_at = None
            for one in ids - self.ids - {self.own_id}:
                slave = self._slaves.setdefault(one, _Slave())
                slave.caught_up = max(slave.caught_up, now)  # time to connect
        self.ids = ids
        self.set_epoch = set_epoch
        for replica_id, slave in self._slaves.items():
            slave.must_leave = slave.must_leave and replica_id in ids
        self._confirm()

    def request_refused(self, *, unknown: bool = False) -> None:
        """Record that the controller has refused the request, so that it never takes effect.

        An earlier request without an answer stays open. Do not call this for an answer that leaves
        open what has become of the request.

        - ``unknown``: True if the controller does not know an id in the request. That replica was
          cleaned, and is not asked for again before it connects anew.
        """
        self._asked = False
        if unknown and len(self._newcomers) == 1:
            for one in self._newcomers:
                self._slaves[one].unknown = True
        self._one_by_one = unknown and len(self._newcomers) > 1
        if self._lost_at is None:
            self._open = frozenset()
            self._confirm()

    def next_request(self, now: float) -> frozenset[int] | None:
        """Return the set to ask the controller for. It is open from now on.

        Return None if the set is as wanted, or if a request waits for its answer. After a request
        without an answer, the set may be the present one: its answer shows what has become of the
        lost request.
        """
        if self._asked or self.set_epoch < 0:
            return None
        if self._lost_at is not None and now - self._lost_at > LOST_S:
            self._lost_at = None
            self._open = frozenset()
        wanted = self._wanted(now)
        is_due = wanted != self.ids or bool(self._open)
        if is_due:
            self._asked = True
            self._open |= wanted
            self._newcomers = wanted - self.ids
        self._joining = self._about_to_join(now)
        self._confirm()
        return wanted if is_due else None

    def repeat_request(self, now: float) -> None:
        """Allow the next request, because the last one got no answer. That one stays open."""
        if self._asked:  # else a newer set has ended the request
            self._asked = False
            self._lost_at = now

    def connect(self, replica_id: int, now: float, *, learner: bool) -> None:
        """Record a new connection of a slave. The slave may have lost data meanwhile."""
        slave = self._slaves.setdefault(replica_id, _Slave())
        slave.connected = True
        slave.learner = learner
        slave.acked = -1
        slave.report = now
        slave.end_at_report = 0
        slave.unknown = False

    def disconnect(self, replica_id: int) -> None:
        """Record the end of a slave's connection."""
        slave = self._slaves.get(replica_id)
        if slave is not None:
            slave.connected = False
            slave.must_leave = replica_id in self.counted
            slave.caught_up = NEVER

    def acknowledge(self, replica_id: int, acked: int, end: int, now: float) -> None:
        """Record the offset up to which a slave has the log.

        - ``end``: the end of the master's log.
        """
        slave = self._slaves.setdefault(replica_id, _Slave())
        slave.acknowledge(acked, end, now)
        if replica_id in self.counted:
            self._confirm()

    def note_own_end(self, end: int, now: float) -> None:
        """Set the end of the master's own log, the durable one under SYNC_FLUSH."""
        if end > self._own_end:
            for slave in self._slaves.values():
                if slave.acked >= self._own_end and now - slave.report <= IDLE_S:
                    slave.caught_up = max(slave.caught_up, now)  # it had everything until now
        self._own_end = end
        self._confirm()

    def acked_by(self, count: int) -> int:
        """Return the offset that ``count`` slaves of the set have acknowledged.

        Return ``confirmed`` if the set has fewer slaves, and ``EVERYTHING`` for 0.
        """
        if not count:
            return EVERYTHING
        ends = sorted(self._acked(one) for one in self.ids - {self.own_id})
        if count > len(ends):
            return self.confirmed
        return max(ends[-count], self.confirmed)

    def _is_fresh(self, slave: _Slave, now: float) -> bool:
        """Return True if a slave had the whole log in the last ``catch_up`` seconds.

        While nothing is stored, the last report may be ``IDLE_S`` old.
        """
        if slave.connected and slave.acked >= self._own_end:
            return now - slave.report <= max(IDLE_S, self._catch_up)
        return now - slave.caught_up <= self._catch_up

    def _acked(self, replica_id: int) -> int:
        if replica_id == self.own_id:
            return self._own_end
        slave = self._slaves.get(replica_id)
        return -1 if slave is None else slave.acked

    def _confirm(self) -> None:
        if self.is_writable:
            least = min(map(self._acked, self.counted))
            self.confirmed = max(self.confirmed, least)

    def _about_to_join(self, now: float) -> frozenset[int]:
        """Return the slaves that are only as far behind as the last messages."""
        found = set[int]()
        for one, slave in self._slaves.items():
            behind = slave.connected and self._epoch_start <= slave.acked < self.confirmed
            fresh = self._is_fresh(slave, now) and not slave.learner
            if one in self.ids or one in self._open or slave.unknown or not (behind and fresh):
                continue
            if now >= slave.joins_from:
                slave.joins_until = now + JOIN_S
                slave.joins_from = now + JOIN_AGAIN_S
            if now <= slave.joins_until:
                found.add(one)
        return frozenset(found)

    def _wanted(self, now: float) -> frozenset[int]:
        found = {self.own_id}
        for one, slave in self._slaves.items():
            if slave.learner or slave.must_leave or not self._is_fresh(slave, now):
                continue
            has_confirmed = slave.connected and slave.acked >= self.confirmed
            if one in self.ids:
                waits = not slave.connected and slave.acked < 0  # it never connected
                if has_confirmed or waits:
                    found.add(one)
            elif has_confirmed and slave.acked >= self._epoch_start and not slave.unknown:
                found.add(one)
        if self._one_by_one:
            newcomers = sorted(found - self.ids)
            found.difference_update(newcomers[1:])
        return frozenset(found)
