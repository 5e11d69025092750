"""Tracker of consumer groups. It notifies members of changes, and logs conflicts.

Many changes may come in one run of the event loop, and a group may have thousands of members. So
notices (request 40) are collected, and large groups are notified and checked at intervals.
Heartbeats are decoded in ``handlers/clients.py``. Source: apache/rocketmq
``DefaultConsumerIdsChangeListener``, ``ClientHousekeepingService``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from turbopump.broker.conflicts import find_conflicts
from turbopump.broker.stored import Stored
from turbopump.protocol.command import encode_command, request_command
from turbopump.protocol.requests.assignment import MessageRequestMode
from turbopump.protocol.requests.clients import NotifyConsumerIdsChanged
from turbopump.remoting.turns import Steps
from turbopump.remoting.wire import Wire
from turbopump.repeated_line import RepeatedLine

SMALL_GROUP: Final = 100
"""Maximum members of a group that is checked for conflicts at every heartbeat.

For a larger group the pause between two checks is CHECK_PAUSE_S for each member. A larger group
without conflicts is also checked when a member joins or leaves.
"""
CHECK_PAUSE_S: Final = 0.01
NOTICE_AT_ONCE: Final = 50
"""Maximum members of a group that is notified of each change at once.

For a larger group the pause between two notices is NOTICE_PAUSE_S for each member. Each notified
member requests the whole list, which takes some 0.1 ms.
"""
NOTICE_PAUSE_S: Final = 0.001
NOTICE_PAUSE_MAX_S: Final = 2.0

log = logging.getLogger(__name__)
_no_heartbeat = RepeatedLine(
    log, logging.WARNING, "client sends no heartbeat, closing its connection peer=%s"
)


class Membership:
    """Tracker of the changes and conflicts in all consumer groups of a broker.

    Members are notified when their group changes. Conflicts among them are logged.
    """

    def __init__(self, stored: Stored) -> None:
        self._stored = stored
        self._conflicts: dict[str, tuple[str, ...]] = {}
        """Conflicts found in each group at its last check."""
        self._next_check: dict[str, float] = {}
        """Time from which a large group is due for a check, by name."""
        self._to_notify: set[str] = set()
        self._notified: dict[str, float] = {}
        """Time of the last notice to a large group, by name."""

    def note_heartbeat(self, name: str, now: float, *, changed: bool) -> tuple[str, ...]:
        """Return the conflicts in a consumer group after a heartbeat of one of its members.

        If the heartbeat has ``changed`` the group, its members are notified.
        """
        if changed:
            self.notify_members(name)
        return self._check_conflicts(name, now, changed=changed)

    def note_loss(self, name: str, now: float) -> None:
        """Notify the members of a consumer group that a member has left."""
        self._check_conflicts(name, now, changed=True)
        self.notify_members(name)

    def connection_lost(self, peer: Wire) -> None:
        """Remove a client whose connection has ended from all groups."""
        self._stored.turns.run(peer, self._leave(peer))

    def close_silent(self, now: float, timeout: float) -> None:
        """Close the connections of clients that have sent no heartbeat for ``timeout`` seconds."""
        for peer in self._stored.clients.silent_since(now - timeout):
            _no_heartbeat(peer.peer)
            peer.close()

    def notify_members(self, name: str) -> None:
        """Notify the members of a consumer group of a change.

        A small group is notified in the next run of the event loop, a large one after a pause.
        """
        group = self._stored.clients.groups.get(name)
        if group is None:
            self._notified.pop(name, None)
            return
        if name in self._to_notify:
            return
        # Each notified member requests the list of members. A start of N members, one after the
        # other, would cause N² requests. So changes are collected: those of one turn always, and
        # in a large group those of a pause that grows with the group.
        self._to_notify.add(name)
        loop = asyncio.get_running_loop()
        due = loop.time()
        size = len(group.members)
        if size > NOTICE_AT_ONCE and name in self._notified:
            due = self._notified[name] + min(NOTICE_PAUSE_S * size, NOTICE_PAUSE_MAX_S)
        loop.call_at(due, self._notify_now, name)

    def conflicts_in(self, name: str) -> tuple[str, ...]:
        """Return the present conflicts among the members of a consumer group, as one sentence
        each."""
        group = self._stored.clients.groups.get(name)
        if group is None or group.alike:
            return ()

        def is_popped(topic: str) -> bool:
            return self._stored.request_modes.find(topic, name).mode is MessageRequestMode.POP

        return find_conflicts(name, group.members.values(), is_popped)

    def _leave(self, peer: Wire) -> Steps[None]:
        for name in self._stored.clients.remove_peer(peer):
            self.note_loss(name, peer.now())
            yield

    def _check_conflicts(self, name: str, now: float, *, changed: bool) -> tuple[str, ...]:
        """Return the conflicts in a consumer group, and log each new one.

        A large group that is not due for a check gets the conflicts of the last check. A check
        takes 4 µs per member. If all members are alike, it takes no time.
        """
        # Every member sends a heartbeat each 30 s, and a check looks at all members: N² steps for
        # a group. So a large group is checked at intervals that grow with it, and a member that
        # joins a group without conflicts is checked at once, because it may bring the first one.
        before = self._conflicts.pop(name, ())
        if self._next_check.get(name, 0.0) > now and (before or not changed):
            found = before
        else:
            found = self.conflicts_in(name)
            self._next_check.pop(name, None)
            group = self._stored.clients.groups.get(name)
            if group is not None and len(group.members) > SMALL_GROUP:
                self._next_check[name] = now + len(group.members) * CHECK_PAUSE_S
        if found:
            self._conflicts[name] = found
        for sentence in found:
            if sentence not in before:
                log.warning("consumers in conflict group=%s cause=%s", name, sentence)
        if before and not found:
            log.info("consumers no longer in conflict group=%s", name)
        return found

    def _notify_now(self, name: str) -> None:
        self._to_notify.discard(name)
        self._notified.pop(name, None)
        members = self._stored.clients.members(name)
        if len(members) > NOTICE_AT_ONCE:
            self._notified[name] = asyncio.get_running_loop().time()
        if not self._stored.config.notify_consumer_ids_changed_enable:
            return
        settings = self._stored.tables.groups.get(name)
        if settings is not None and not settings.notify_consumer_ids_changed_enable:
            return
        notice = NotifyConsumerIdsChanged(consumer_group=name)
        # nobody answers it, so its number is of no meaning
        frame = encode_command(request_command(notice, opaque=0, oneway=True))
        for peer in members:
            peer.send_frame(frame)
