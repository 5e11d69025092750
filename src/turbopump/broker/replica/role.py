"""Role of a replica, and its decisions about news from a controller.

Values in, values out: answers and notices of a controller come in, the next role comes out.
Connections, stores and the loop are unknown here. Two rules make a switch safe:

- A process that has just started is master of nothing. The process registers, asks for the present
  epoch, and only then sends heartbeats with the end of its log. Masterships up to that epoch
  (``floor``) were decided by what an earlier process had, which may be more, so they are never
  accepted.
- Only a higher master epoch is followed. News that were late on their way change nothing.

Source: apache/rocketmq ``ReplicasManager``, which accepts an old mastership after a restart.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import Final

from turbopump.protocol.requests.controller import MasterReply, SyncStateSet

MASTER_ID_AT_NAME_SERVERS: Final = 0


class Part(enum.Enum):
    """Part that a replica plays in its group."""

    WAITING = "waiting"
    """The replica knows no master, and serves as a slave without one."""
    SLAVE = "slave"
    MASTER = "master"


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """Answer or notice of a controller about a group.

    - ``master_id``, ``master_address``: the master, or None if there is none.
    - ``master_epoch``: the number of the last election.
    - ``sync_state_set``: the ids of the replicas in sync, or None if the news do not have them.
    """

    master_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set: frozenset[int] | None = None
    set_epoch: int = 0


def news_of(reply: MasterReply, body: SyncStateSet | None, set_epoch: int | None = None) -> News:
    """Return the news in an answer or a notice of a controller.

    The epoch of the set is in the body, or in the header (``set_epoch``).
    """
    ids = None if body is None else frozenset(body.sync_state_set)
    if set_epoch is None:
        set_epoch = 0 if body is None else body.sync_state_set_epoch
    known = bool(reply.master_address) and reply.master_broker_id is not None
    return News(
        master_id=reply.master_broker_id if known else None,
        master_address=reply.master_address if known else None,
        master_epoch=reply.master_epoch or 0,
        sync_state_set=ids or None,
        set_epoch=set_epoch,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """Role of a replica in its group.

    - ``id``: the id of this replica.
    - ``floor``: the epoch of the last election before the first heartbeat of this process.
    - ``master_epoch``: the epoch that this role belongs to.
    - ``sync_state_set``: the replicas in sync, as a master knows them.
    """

    id: int
    part: Part = Part.WAITING
    floor: int = 0
    master_id: int | None = None
    master_address: str | None = None
    master_epoch: int = 0
    sync_state_set: frozenset[int] = frozenset()
    set_epoch: int = 0

    @property
    def is_master(self) -> bool:
        """True if this replica is the master."""
        return self.part is Part.MASTER

    @property
    def id_at_name_servers(self) -> int:
        """Id with which this replica registers at name servers."""
        return MASTER_ID_AT_NAME_SERVERS if self.is_master else self.id

    def is_stale(self, news: News) -> bool:
        """Return True if the news name this replica as the master of an epoch that an earlier
        process may have held."""
        return news.master_id == self.id and news.master_epoch <= self.floor

    def after(self, news: News) -> Role:
        """Return the role after news of a controller. It is equal to this one if nothing changes.

        A master that learns of a later election without a winner is master no more.
        """
        if news.master_epoch < self.master_epoch or self.is_stale(news):
            return self
        if news.master_epoch == self.master_epoch and self.master_id is not None:
            return self._moved(news)._after_new_set(news)
        if news.master_id is None:
            if news.master_epoch == self.master_epoch:
                return self
            return Role(id=self.id, floor=self.floor, master_epoch=news.master_epoch)
        is_own = news.master_id == self.id
        return Role(
            id=self.id,
            part=Part.MASTER if is_own else Part.SLAVE,
            floor=self.floor,
            master_id=news.master_id,
            master_address=news.master_address,
            master_epoch=news.master_epoch,
            sync_state_set=news.sync_state_set or frozenset((news.master_id,)),
            set_epoch=news.set_epoch,
        )

    def _moved(self, news: News) -> Role:
        """Return the role with the master's new address. A master of Apache's may restart so."""
        if self.is_master or news.master_id != self.master_id:
            return self
        return replace(self, master_address=news.master_address)

    def _after_new_set(self, news: News) -> Role:
        if news.sync_state_set is None or news.set_epoch <= self.set_epoch:
            return self
        if self.is_master and self.id not in news.sync_state_set:
            return self  # no controller decides this; a later election will be told
        return replace(self, sync_state_set=news.sync_state_set, set_epoch=news.set_epoch)

    def begins_again(self, before: Role) -> bool:
        """Return True if a broker with the role ``before`` must be opened again for this role.

        A slave that copies from another master, or from none, continues as it is.
        """
        if self.is_master or before.is_master:
            return (self.part, self.master_epoch) != (before.part, before.master_epoch)
        return False
