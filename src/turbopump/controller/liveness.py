"""Table of the replicas that are alive: their heartbeats, and the connections that carry them.

A replica is alive from its first heartbeat until it is silent for the time that it asked for, its
connection ends, or it registers again. The numbers of a heartbeat belong to its connection: those
of a newer connection replace them, also by a lower offset, because the process may be a new one
with a shorter log. A heartbeat that arrives late on an older connection is ignored.

Time comes in as a value, in seconds. Connections are known by numbers, which grow. The master is
unknown here. RocketMQ (`DefaultBrokerHeartbeatManager`): the reported offset of a replica does not
go down until the replica is removed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

import msgspec

from turbopump.controller.election import Candidate

REPLICAS_MAX: Final = 1000
"""Maximum number of replicas whose heartbeats come over one connection."""
LOST_MAX: Final = 10_000
"""Maximum number of lost replicas that are remembered."""


class ReplicaKey(NamedTuple):
    """Name of a replica: its broker name, and its id from the controller."""

    broker_name: str
    id: int


class Beat(msgspec.Struct, frozen=True):
    """Content of a heartbeat.

    - ``timeout``: seconds of silence after which the replica counts as dead.
    """

    candidate: Candidate
    address: str
    timeout: float


class _Live(msgspec.Struct):
    """Replica that is alive. ``heard`` is the time of the last heartbeat."""

    beat: Beat
    connection: int
    heard: float


class Liveness:
    """Table of live replicas."""

    def __init__(self) -> None:
        self._live: dict[str, dict[int, _Live]] = {}
        self._newest: dict[ReplicaKey, int] = {}
        """Number of the newest connection that a replica has used."""
        self._carried: dict[int, dict[ReplicaKey, None]] = {}
        """Replicas by the connection over which they were last heard."""
        self._lost: dict[ReplicaKey, float] = {}
        """Lost replicas, each with the time when it was surely alive last."""

    def note_heartbeat(self, key: ReplicaKey, connection: int, beat: Beat, now: float) -> bool:
        """Note a heartbeat. Return False if it is ignored, because a newer connection is known or
        the connection carries too many replicas."""
        if not self._use(key, connection):
            return False
        replicas = self._live.setdefault(key.broker_name, {})
        replicas[key.id] = _Live(beat, connection, now)
        self._lost.pop(key, None)
        return True

    def note_registration(self, key: ReplicaKey, connection: int) -> None:
        """Forget what a replica reported over other connections before it registered.

        Another process may have reported them.
        """
        live = self._live.get(key.broker_name, {}).get(key.id)
        if self._use(key, connection) and live is not None and live.connection != connection:
            self._remove(key)

    def end_connection(self, connection: int, now: float) -> list[ReplicaKey]:
        """Remove the replicas that were heard over a connection which has ended, and return
        them."""
        ended = []
        for key in self._carried.pop(connection, {}):
            if self._newest.get(key) != connection:
                continue
            del self._newest[key]
            if self._remove(key):
                ended.append(key)
                self._note_lost(key, now)
        return ended

    def expire(self, now: float) -> list[tuple[ReplicaKey, int]]:
        """Remove the replicas that have been silent for too long.

        Return each with the number of its connection, which should be closed.
        """
        silent = [
            (ReplicaKey(name, id_), live)
            for name, replicas in self._live.items()
            for id_, live in replicas.items()
            if now > live.heard + live.beat.timeout
        ]
        for key, live in silent:
            self._remove(key)
            self._note_lost(key, live.heard)
        return [(key, live.connection) for key, live in silent]

    def forget(self, key: ReplicaKey) -> None:
        """Forget a replica that has been cleaned."""
        self._remove(key)
        self._lost.pop(key, None)

    def excuse(self, seconds: float) -> None:
        """Count a time as no silence, because this process did not run and read no heartbeats."""
        for replicas in self._live.values():
            for live in replicas.values():
                live.heard += seconds

    def candidates(self, broker_name: str) -> dict[int, Candidate]:
        """Return the live replicas of a broker name by id."""
        replicas = self._live.get(broker_name, {})
        return {id_: live.beat.candidate for id_, live in replicas.items()}

    def addresses(self, broker_name: str) -> dict[int, str]:
        """Return the addresses of the live replicas of a broker name, by id."""
        replicas = self._live.get(broker_name, {})
        return {id_: live.beat.address for id_, live in replicas.items()}

    def timeout(self, broker_name: str) -> float:
        """Return the longest time for which a replica of this broker name may be silent, in
        seconds. Without a live replica the time is infinite."""
        replicas = self._live.get(broker_name)
        if not replicas:
            return float("inf")
        return max(live.beat.timeout for live in replicas.values())

    def lost_at(self, key: ReplicaKey) -> float | None:
        """Return the time when the connection of a replica ended, or when it was heard last before
        its heartbeats ended. Return None if it is alive, or was never heard."""
        return self._lost.get(key)

    def all_heard_since(self, broker_name: str, ids: Iterable[int], time: float) -> bool:
        """Return True if each of these replicas that is alive has sent a heartbeat after a
        time."""
        replicas = self._live.get(broker_name, {})
        return all(replicas[id_].heard > time for id_ in ids if id_ in replicas)

    def counts(self) -> dict[str, int]:
        """Return the number of live replicas by broker name."""
        return {name: len(replicas) for name, replicas in self._live.items()}

    def _use(self, key: ReplicaKey, connection: int) -> bool:
        """Return True if this is the newest connection that the replica uses."""
        newest = self._newest.get(key, connection)
        if connection < newest:
            return False
        carried = self._carried.setdefault(connection, {})
        if key not in carried and len(carried) >= REPLICAS_MAX:
            return False
        if newest != connection and newest in self._carried:
            self._carried[newest].pop(key, None)
        carried[key] = None
        self._newest[key] = connection
        return True

    def _remove(self, key: ReplicaKey) -> bool:
        replicas = self._live.get(key.broker_name, {})
        if replicas.pop(key.id, None) is None:
            return False
        if not replicas:
            del self._live[key.broker_name]
        return True

    def _note_lost(self, key: ReplicaKey, time: float) -> None:
        if len(self._lost) >= LOST_MAX:
            del self._lost[next(iter(self._lost))]
        self._lost[key] = time
