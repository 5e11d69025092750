"""Questions to a group of replicas and its controller: who is the master, who is in sync, whose log
has which bytes.

The one rule: it is asked by requests and read from files, so that the answer is the same for
Apache's servers and for ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, Self

from tests.interop.replica_groups import BROKER_NAME, CLUSTER, ReplicaGroup
from tests.unit.broker.talking import Client

from turbopump.errors import TurbopumpError
from turbopump.protocol import fastjson
from turbopump.protocol.requests.controller import (
    ElectMaster,
    EpochCache,
    GetEpochCache,
    GetReplicaInfo,
    MasterReply,
    SyncStateSet,
)
from turbopump.protocol.requests.offsets import (
    GetMaxOffset,
    OffsetReply,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.send import SendMessageReply, SendMessageV2

PATIENCE_S: Final = 60.0
TOPIC: Final = "replicated"
GROUP: Final = "g"


@dataclass(frozen=True, slots=True)
class GroupState:
    """What the controller decided. ``master`` is an index of the group; None: there is none."""

    master: int | None
    epoch: int
    in_sync: frozenset[int]


class GroupClient:
    """A client of each replica and of the controller; each message has a number."""

    def __init__(self, group: ReplicaGroup) -> None:
        self.group = group
        self.replicas = [Client(group.address(index)) for index in range(len(group.sides))]
        self.controller = Client(f"127.0.0.1:{group.controller_ports[0]}")
        self.acknowledged: list[int] = []
        self._number = 0

    @classmethod
    @asynccontextmanager
    async def of(cls, group: ReplicaGroup) -> AsyncIterator[Self]:
        """One whose connections are closed at the end."""
        client = cls(group)
        try:
            yield client
        finally:
            for one in (*client.replicas, client.controller):
                await one.close()

    async def state(self) -> GroupState:
        """Raises TurbopumpError while the controller does not answer."""
        answer = await self.controller.ask(GetReplicaInfo(broker_name=BROKER_NAME), timeout=5.0)
        assert answer.code == 0, answer
        header = answer.header(MasterReply)
        members = fastjson.decode(answer.body, SyncStateSet).sync_state_set
        address = header.master_address
        master = self.group.index_of(address) if address else None
        return GroupState(master, header.master_epoch or 0, frozenset(members))

    async def whole(self) -> GroupState:
        """Wait until every replica is in the sync state set and has a new message confirmed.

        A slave must know that: the thread of Apache's 5.3.3 that makes messages readable does not
        end its loop while the confirm offset is before the end of the log, so a slave whose master
        goes away then is never in sync again.
        """
        await self.until("all are in sync", self._is_whole)
        await self.send(1)
        await self.until_all_confirm()
        return await self.until("all are in sync", self._is_whole)

    def _is_whole(self, state: GroupState) -> bool:
        return state.master is not None and len(state.in_sync) == len(self.group.sides)

    async def elect(self, index: int) -> GroupState:
        """Have the controller make this replica the master, as `mqadmin electMaster` does, and wait
        until the group is whole again."""
        asked = ElectMaster(
            cluster_name=CLUSTER,
            broker_name=BROKER_NAME,
            broker_id=self.group.identity(index),
            designate_elect=True,
        )
        answer = await self.controller.ask(asked)
        assert answer.code == 0, answer
        return await self.whole()

    async def another_master(self, than: int) -> GroupState:
        return await self.until("another master", lambda state: state.master not in (None, than))

    async def until(self, what: str, is_so: Callable[[GroupState], bool]) -> GroupState:
        """Ask the controller again and again until its answer is so."""
        deadline = time.monotonic() + PATIENCE_S
        state: GroupState | None = None
        while time.monotonic() < deadline:
            with suppress(TurbopumpError):
                state = await self.state()
                if is_so(state):
                    return state
            await asyncio.sleep(0.05)
        raise AssertionError(f"not within {PATIENCE_S} s: {what}: {state}\n{self.group.tails()}")

    async def send(self, count: int, topic: str = TOPIC) -> list[int]:
        """Send so many messages, each until some replica acknowledges it; where each is in the
        log."""
        return [await self._send_one(topic) for _ in range(count)]

    async def _send_one(self, topic: str) -> int:
        deadline = time.monotonic() + PATIENCE_S
        refusals: dict[str, int] = {}
        while time.monotonic() < deadline:
            for client in self.replicas:
                self._number += 1
                request = SendMessageV2(
                    topic=topic, queue_id=0, default_topic="TBW102", producer_group="p"
                )
                try:
                    answer = await client.ask(request, b"%d" % self._number, timeout=5.0)
                except TurbopumpError as error:
                    refusals[type(error).__name__] = refusals.get(type(error).__name__, 0) + 1
                    continue
                if answer.code == 0:
                    self.acknowledged.append(self._number)
                    # the last 8 bytes of the id, in hexadecimal
                    return int(answer.header(SendMessageReply).msg_id[-16:], 16)
                why = f"{answer.code} {answer.remark}"
                refusals[why] = refusals.get(why, 0) + 1
            await asyncio.sleep(0.05)
        raise AssertionError(f"nothing was acknowledged: {refusals}\n{self.group.tails()}")

    async def commit(self, offset: int) -> None:
        """Commit an offset of the group on the master."""
        master = (await self.state()).master
        assert master is not None
        request = UpdateConsumerOffset(
            consumer_group=GROUP, topic=TOPIC, queue_id=0, commit_offset=offset
        )
        await self.replicas[master].join("c1", GROUP)
        code, remark = await self.replicas[master].code(request)
        assert code == 0, remark

    async def until_all_have_offset(self, offset: int) -> None:
        """Wait until each replica has the committed offset: Apache's slaves copy it each 10 s."""
        async with asyncio.timeout(PATIENCE_S):
            while {await self.offset(i) for i in range(len(self.replicas))} != {offset}:
                await asyncio.sleep(0.2)

    async def until_all_confirm(self) -> None:
        """Wait until each replica counts as many confirmed messages as the master does."""
        asked = GetMaxOffset(topic=TOPIC, queue_id=0)
        async with asyncio.timeout(PATIENCE_S):
            while True:
                answers = [await client.ask(asked) for client in self.replicas]
                if len({(one.code, one.header(OffsetReply).offset) for one in answers}) == 1:
                    return
                await asyncio.sleep(0.2)

    async def lost(self, index: int) -> list[int]:
        """Numbers that were acknowledged and that a reader of this master does not see."""
        bodies = await self.replicas[index].all_bodies(TOPIC)
        return sorted(set(self.acknowledged) - {int(body) for body in bodies})

    async def max_offset(self, index: int) -> int:
        """The end of a replica's log."""
        answer = await self.replicas[index].ask(GetEpochCache())
        assert answer.code == 0, answer
        return fastjson.decode(answer.body, EpochCache).max_offset

    async def epochs(self, index: int) -> list[tuple[int, int]]:
        """The epochs that a replica has in its file, and where each begins."""
        answer = await self.replicas[index].ask(GetEpochCache())
        assert answer.code == 0, answer
        cache = fastjson.decode(answer.body, EpochCache)
        return [(entry.epoch, entry.start_offset) for entry in cache.epoch_list]

    async def offset(self, index: int) -> int | None:
        """The committed offset of the group on a replica."""
        asked = QueryConsumerOffset(consumer_group=GROUP, topic=TOPIC, queue_id=0)
        answer = await self.replicas[index].ask(asked)
        return answer.header(OffsetReply).offset if answer.code == 0 else None


def log_bytes(group: ReplicaGroup, index: int, end: int) -> bytes:
    """The log of a replica from its start to an offset."""
    files = sorted(
        path for path in (group.store(index) / "commitlog").iterdir() if path.stem.isdigit()
    )
    return b"".join(path.read_bytes() for path in files)[:end]


def forget_from(group: ReplicaGroup, index: int, offset: int) -> None:
    """Make the log of a replica that was killed as a power cut leaves it: of what was not synced,
    from `offset` on, there is nothing but zeros."""
    for path in (group.store(index) / "commitlog").iterdir():
        if not path.stem.isdigit():
            continue
        keep = max(0, offset - int(path.stem))
        size = path.stat().st_size
        if keep < size:
            with path.open("r+b") as file:
                file.truncate(keep)
                file.truncate(size)
