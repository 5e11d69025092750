"""Cases that run on our servers and on Apache's: calls of our ``Admin`` that do what operations of
Apache's ``DefaultMQAdminExt`` do.

The one rule: a case knows the methods of ``Admin`` alone, and returns what a caller gets. What
differs from run to run (addresses, times, ids) is named by ``plain_value``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final

import msgspec
from tests.interop.our_clients import CALL_SECONDS

from turbopump import (
    ConsumeFrom,
    Message,
    MessageQueue,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionProducer,
    TransactionState,
)
from turbopump.admin.admin import Admin
from turbopump.auth.signatures import Credentials
from turbopump.errors import ResponseError, TurbopumpError

BROKER: Final = "broker-a"
CLUSTER: Final = "DefaultCluster"
TOPIC: Final = "T"
GIVES_UP_SOON: Final = {
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 1000,
    "transactionCheckMax": 1,
}
"""Settings of a broker that gives up a transaction after some seconds."""
CONTROLLED: Final = frozenset(
    {
        "cleanControllerBrokerData",
        "electMaster",
        "getBrokerEpochCache",
        "getControllerConfig",
        "getControllerMetaData",
        "getInSyncStateData",
        "updateControllerConfig",
    }
)
"""Operations that test_admin_controllers.py tries, because they need controllers."""
PRODUCERS, PULLERS, PUSHERS = "producers", "pullers", "pushers"
"""Groups of the clients that run while cases run."""


@dataclass
class Side:
    """One cluster, its administrator, and clients that run meanwhile."""

    admin: Admin
    namesrv: str
    broker: str
    names: Mapping[str, str]
    producer: Producer
    puller: PullConsumer
    pusher: PushConsumer | None = None
    handler: asyncio.Task[None] | None = None
    kept: dict[str, Any] = field(default_factory=dict)
    """Results that later cases need, such as ids of messages."""

    @property
    def queue(self) -> MessageQueue:
        return MessageQueue(TOPIC, BROKER, 0)

    @property
    def pusher_id(self) -> str:
        assert self.pusher is not None
        return self.pusher.client_id

    async def start_pusher(self) -> None:
        """Start a push consumer of ``TOPIC``, which takes every message."""
        self.pusher = PushConsumer(
            self.namesrv, group=PUSHERS, topic=TOPIC, consume_from=ConsumeFrom.FIRST
        )
        await self.pusher.start()
        self.handler = asyncio.create_task(self._handle(self.pusher))

    async def _handle(self, pusher: PushConsumer) -> None:
        async for message in pusher:
            message.done()

    @asynccontextmanager
    async def undecided(self, message: Message) -> AsyncIterator[None]:
        """Send a half message whose transaction is not decided while the block lasts."""

        def undecided(*_: object) -> TransactionState:
            return TransactionState.UNKNOWN

        async with TransactionProducer(
            self.namesrv, group="undecided", executor=undecided, checker=undecided
        ) as producer:
            await producer.send_in_transaction(message)
            yield

    async def stop_pusher(self) -> None:
        if self.pusher is not None and self.handler is not None:
            await self.pusher.close()
            self.handler.cancel()
            await asyncio.wait([self.handler])


Run = Callable[[Side], Awaitable[object]]


@dataclass(frozen=True)
class Case:
    """Calls of ``Admin``, and the operations of Apache that do the same."""

    operations: tuple[str, ...]
    run: Run


class Cases(dict[str, Case]):
    """Cases by name, in the order in which they run: one may need what an earlier one has made."""

    def case(self, *operations: str) -> Callable[[Run], Run]:
        """Add a function as the case of these operations."""

        def add(run: Run) -> Run:
            assert run.__name__ not in self
            self[run.__name__] = Case(operations, run)
            return run

        return add

    @property
    def operations(self) -> set[str]:
        return {one for case in self.values() for one in case.operations}

    async def outcomes(self, side: Side) -> dict[str, object]:
        """The plain result of each case. An error that a case does not expect is one, too."""
        found: dict[str, object] = {}
        for name, case in self.items():
            try:
                found[name] = plain_value(await case.run(side), side.names)
            except Exception as error:  # the test of this case raises it
                found[name] = error
        return found


@asynccontextmanager
async def side_of(
    namesrv: str, broker: str, root: str, credentials: Credentials | None = None
) -> AsyncIterator[Side]:
    """An administrator and clients of a running cluster."""
    names = {namesrv: "namesrv", broker: "broker", root: "root"}
    async with AsyncExitStack() as stack:
        admin = await stack.enter_async_context(Admin(namesrv, credentials=credentials))
        producer = await stack.enter_async_context(Producer(namesrv, group=PRODUCERS))
        puller = await stack.enter_async_context(PullConsumer(namesrv, group=PULLERS))
        side = Side(admin, namesrv, broker, names, producer, puller)
        try:
            yield side
        finally:
            await side.stop_pusher()


async def prepare(side: Side) -> None:
    """Make ``TOPIC`` with messages, of which a group has consumed some."""
    await side.admin.topics.create(TOPIC, read_queues=2, write_queues=2)
    queue = side.queue
    for number in range(3):
        message = Message(TOPIC, f"body {number}", tags=f"tag{number}", keys=[f"key{number}"])
        side.kept[f"id{number}"] = (await side.producer.send(message, queue=queue)).msg_id
    await side.puller.pull(queue, 0)
    await side.puller.commit(queue, 1)


async def eventual(question: Callable[[], Awaitable[bool]]) -> None:
    """Wait until the answer is yes."""
    async with asyncio.timeout(CALL_SECONDS):
        while not await question():
            await asyncio.sleep(0.05)


async def refused(call: Awaitable[object]) -> object:
    """How a call fails: the kind of error, and the code of the server."""
    try:
        return "done", await call
    except ResponseError as error:
        return "refused", int(error.code)
    except TurbopumpError as error:
        return "failed", type(error).__name__


def only(found: Mapping[str, Any]) -> Any:
    """The value of the only server."""
    (value,) = found.values()
    return value


# --- what differs from run to run

_CHANGING: Final = (
    (r"\b[0-9A-F]{32,}\b", "<id>"),
    (r"\b\d{1,3}(\.\d{1,3}){3}@\S+", "<client id>"),
    (r"127\.0\.0\.1:\d+", "<client>"),
    (r"__CRC32#=\d+", "__CRC32#=<crc>"),
)
_TIMES_MS: Final = range(1_600_000_000_000, 2_200_000_000_000)


def plain_value(value: Any, names: Mapping[str, str]) -> Any:
    """A result without what differs from run to run, as lists, texts and numbers.

    ``names``: what to call addresses and directories of this cluster.
    """
    if isinstance(value, Enum):
        return value.name
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
    elif isinstance(value, msgspec.Struct):
        value = {name: getattr(value, name) for name in value.__struct_fields__}
    if isinstance(value, Mapping):
        pairs = ([plain_value(k, names), plain_value(v, names)] for k, v in value.items())
        return sorted(pairs, key=repr)
    if isinstance(value, list | tuple):
        return [plain_value(one, names) for one in value]
    if isinstance(value, set | frozenset):
        return sorted((plain_value(one, names) for one in value), key=repr)
    if isinstance(value, int) and not isinstance(value, bool):
        return "<ms>" if value in _TIMES_MS else value
    if isinstance(value, bytes | bytearray | memoryview):
        value = bytes(value).decode(errors="replace")
    if isinstance(value, str):
        for known, name in sorted(names.items(), key=lambda pair: -len(pair[0])):
            value = value.replace(known, f"<{name}>")
        for pattern, replacement in _CHANGING:
            value = re.sub(pattern, replacement, value)
        return "<ms>" if value.isdecimal() and int(value) in _TIMES_MS else value
    return value
