"""One side of a mirror: the brokers of a cluster, and reading of their queues.

A broker is asked by its name. Its address is looked up again after a failure, because another
replica may be the master by now. This module must not know why a queue is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, TypeVar

from turbopump.admin.cluster import Servers
from turbopump.client.consumer.pull import PullStatus, ask_to_pull, pull_request
from turbopump.client.consumer.subscription import ALL, tag_subscription
from turbopump.client.message_finder import TOOLS_GROUP
from turbopump.errors import (
    ConnectError,
    MirrorError,
    RemotingError,
    ResponseError,
    StoredMessageError,
)
from turbopump.message.batch import Unpacking
from turbopump.message.entry import queue_offset_of
from turbopump.message.message import MessageQueue
from turbopump.message.pulled import pulled_entries
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Body
from turbopump.protocol.request import ReplyT, Request
from turbopump.protocol.requests.namesrv import MASTER_ID, BrokerData
from turbopump.protocol.requests.offsets import GetMaxOffset, GetMinOffset
from turbopump.protocol.requests.pull import PullMessageReply
from turbopump.remoting.wire import Wire

log = logging.getLogger(__name__)
T = TypeVar("T")

TIMEOUT_S: Final = 10.0
AGAIN_S: Final = 1.0
"""Seconds to wait before a failed request is repeated."""
PULL_COUNT: Final = 128
"""Messages that a pull asks for. Brokers return 32 by default."""
REFUSALS: Final = frozenset(
    {
        ResponseCode.NO_PERMISSION,
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.MESSAGE_ILLEGAL,
        ResponseCode.INVALID_PARAMETER,
    }
)
"""Codes of a refusal that stays: the request was not carried out, and would be refused again."""


class PulledEntries(NamedTuple):
    """Stored messages of one pull, as bytes.

    - ``entries``: good messages in the order of the queue.
    - ``damaged``: number of messages that are left out because their bytes are damaged.
    - ``gone``: True if the queue does not have the wanted offset.
    - ``next_offset``: offset of the next pull.
    - ``first``, ``end``: limits of the queue.
    """

    entries: list[bytes]
    damaged: int
    gone: bool
    next_offset: int
    first: int
    end: int


class MirroredCluster:
    """Brokers of one cluster of a mirror.

    - ``name``: name of the cluster in marks.
    - ``patience_s``: seconds for which a failing request is repeated. None repeats it for ever.
    """

    def __init__(self, servers: Servers, name: str, patience_s: float | None) -> None:
        self.servers = servers
        self.name = name
        self.brokers: dict[str, BrokerData] = {}
        self._patience_s = patience_s

    async def refresh(self) -> None:
        """Ask a name server for the brokers. Raises RemotingError."""
        self.brokers |= (await self.servers.brokers()).broker_addr_table

    def address(self, broker: str, *, master: bool = True) -> str:
        """Return the address of a broker's master. Raises ConnectError if there is none now.

        Without ``master``, another replica will do.
        """
        members = self.brokers[broker].broker_addrs if broker in self.brokers else {}
        address = members.get(MASTER_ID)
        if address is None and not master and members:
            address = members[min(members)]
        if address is None:
            raise ConnectError(f"broker {broker} of cluster {self.name} has no master now")
        return address

    def connection(self, broker: str) -> Wire | None:
        """Return the open connection to the broker's master, or None."""
        return self.servers.connection(self.address(broker))

    async def ask(
        self, broker: str, request: Request[ReplyT], body: Body = b"", *, timeout: float = TIMEOUT_S
    ) -> ReplyT:
        """Ask the master of a broker. Raises RemotingError."""
        return await self.servers.ask(self.address(broker), request, body, timeout=timeout)

    async def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """Return the first offset and the end of a queue. Raises RemotingError."""
        first = GetMinOffset(topic=queue.topic, queue_id=queue.queue_id)
        return (await self.ask(queue.broker_name, first)).offset, await self.end(queue)

    async def end(self, queue: MessageQueue) -> int:
        """Return the offset after the last message of a queue. Raises RemotingError."""
        request = GetMaxOffset(topic=queue.topic, queue_id=queue.queue_id)
        return (await self.ask(queue.broker_name, request)).offset

    async def pull(
        self, queue: MessageQueue, offset: int, count: int = PULL_COUNT, hold_s: float = 0.0
    ) -> PulledEntries:
        """Read messages of a queue from an offset on. Raises RemotingError.

        - ``hold_s``: seconds for which the broker may wait for the first message.
        """
        address = self.address(queue.broker_name, master=False)
        everything = tag_subscription(queue.topic, ALL, 0)
        request = pull_request(TOOLS_GROUP, everything, queue, offset, count, hold_s)
        status, command = await ask_to_pull(self.servers, address, request, hold_s + TIMEOUT_S)
        reply = command.header(PullMessageReply)
        entries: list[bytes] = []
        faults: list[str] = []
        if status is PullStatus.FOUND:
            unpacking = Unpacking()
            for entry in pulled_entries(command.body, lambda bad: faults.append(bad.fault)):
                try:
                    found = unpacking.entries(entry)
                except StoredMessageError as error:
                    faults.append(str(error))
                    continue
                entries += [one for one in found if queue_offset_of(one) >= offset]
        for fault in faults:
            log.error("damaged message left out queue=%s from=%d cause=%s", queue, offset, fault)
        return PulledEntries(
            entries,
            len(faults),
            status is PullStatus.OFFSET_ILLEGAL,
            reply.next_begin_offset,
            reply.min_offset,
            reply.max_offset,
        )

    async def read(self, queue: MessageQueue, begin: int, end: int) -> list[bytes]:
        """Return the stored messages of a queue between two offsets.

        Apache's brokers show a message some ms after it was acknowledged, so the last ones are
        waited for. Raises RemotingError.
        """
        found: list[bytes] = []
        waits = 0
        while begin < end:
            pulled = await self.pull(queue, begin, min(end - begin, PULL_COUNT), hold_s=1.0)
            found += [entry for entry in pulled.entries if queue_offset_of(entry) < end]
            if pulled.next_offset <= begin:
                waits += 1
                if waits > TIMEOUT_S:
                    raise RemotingError(f"{queue} does not show its messages from {begin} to {end}")
            begin = max(begin, pulled.next_offset)
        return found

    async def patiently(self, what: str, work: Callable[[], Awaitable[T]]) -> T:
        """Do work that asks a broker, and repeat it after a failure.

        Raises MirrorError if the broker refuses the request, or if the failures last longer than
        the cluster's patience.
        """
        now = asyncio.get_running_loop().time
        failing_since: float | None = None
        while True:
            try:
                result = await work()
            except RemotingError as error:
                if isinstance(error, ResponseError) and error.code in REFUSALS:
                    raise MirrorError(f"{what}: cluster {self.name} refuses it: {error}") from None
                if failing_since is None:
                    failing_since = now()
                    text = "mirror cannot go on, trying again cluster=%s step=%s cause=%s"
                    log.warning(text, self.name, what, error)
                elif self._patience_s is not None and now() - failing_since > self._patience_s:
                    raise MirrorError(
                        f"{what}: cluster {self.name} failed for {self._patience_s:.0f} s: {error}"
                    ) from None
                await asyncio.sleep(AGAIN_S)
                await self._refresh_quietly()
                continue
            if failing_since is not None:
                log.warning("mirror goes on cluster=%s step=%s", self.name, what)
            return result

    async def _refresh_quietly(self) -> None:
        try:
            await self.refresh()
        except RemotingError as error:
            log.debug("brokers not asked for cluster=%s cause=%s", self.name, error)
