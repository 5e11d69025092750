"""A broker in the test's own loop, and clients that talk to it over real connections."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from tests.loops import on_a_client_s_host
from tests.patient import ANSWER_S
from tests.simulation.world.simulation import Simulation
from tests.stand_ins import does_nothing

from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerConfig
from turbopump.message.batch import encode_batch
from turbopump.message.codec import decode_entries
from turbopump.message.message import Message, ReceivedMessage
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.command import Command
from turbopump.protocol.request import Request
from turbopump.protocol.requests.clients import (
    ConsumerIdList,
    GetConsumerListByGroup,
    Heartbeat,
    NotifyConsumerIdsChanged,
)
from turbopump.protocol.requests.pull import PullMessage, PullMessageReply, PullSysFlag
from turbopump.protocol.requests.send import SendMessageReply, SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.router import HELD, Outcome, RequestContext, Router
from turbopump.testing.broker_in_loop import PATIENT

SMALL: dict[str, Any] = {
    "broker_name": "broker-a",
    "mapped_file_size_commit_log": 1 << 20,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_hash_slot_num": 100,
    "max_index_num": 1000,
    "listen_port": 0,
    "disk_free_space_min": 1 << 20,
    **PATIENT,
}


class Talk:
    """One broker, and by default one client of it."""

    def __init__(self, broker: Broker, directory: Path) -> None:
        self.broker = broker
        self.directory = directory
        self.client = Client(broker.address)
        self.clients = [self.client]

    def another(self) -> "Client":
        """A client with a connection of its own."""
        self.clients.append(Client(self.broker.address))
        return self.clients[-1]


class Client:
    """What the tests ask of a broker; ``noticed`` are the groups it was told to balance again."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.noticed: list[str] = []
        router = Router()
        router.add(NotifyConsumerIdsChanged, self._note)
        self.remoting = RemotingClient(router, connect_timeout=ANSWER_S)

    def _note(self, notice: NotifyConsumerIdsChanged, _context: RequestContext) -> Outcome[None]:
        self.noticed.append(notice.consumer_group)
        return HELD

    async def ask(
        self, request: Request[Any], body: bytes = b"", timeout: float = ANSWER_S
    ) -> Command:
        return await self.remoting.exchange(self.address, request, body, timeout=timeout)

    async def code(self, request: Request[Any], body: bytes = b"") -> tuple[int, str]:
        """Code and remark of the answer."""
        answer = await self.ask(request, body)
        return answer.code, answer.remark or ""

    async def send(
        self, body: bytes = b"x", topic: str = "T", queue_id: int = 0, **fields: Any
    ) -> SendMessageReply:
        """Send, and expect it to be stored."""
        answer = await self.ask(SendMessageV2(topic=topic, queue_id=queue_id, **fields), body)
        assert answer.code == ResponseCode.SUCCESS, answer
        return answer.header(SendMessageReply)

    async def create(self, topic: str = "T", queues: int = 1, **fields: Any) -> None:
        answer = await self.ask(
            CreateTopic(topic=topic, read_queue_nums=queues, write_queue_nums=queues, **fields)
        )
        assert answer.code == ResponseCode.SUCCESS, answer

    async def pull(self, offset: int = 0, **fields: Any) -> tuple[Command, PullMessageReply]:
        answer = await self.ask(pull(offset, **fields))
        return answer, answer.header(PullMessageReply)

    async def messages(self, offset: int = 0, **fields: Any) -> list[ReceivedMessage]:
        """What one pull gives."""
        answer, _ = await self.pull(offset, **fields)
        return list(decode_entries(answer.body))

    async def all_bodies(self, topic: str = "T", queue_id: int = 0) -> list[bytes]:
        """Every message of a queue."""
        found: list[bytes] = []
        offset = 0
        while True:
            answer, header = await self.pull(offset, topic=topic, queue_id=queue_id)
            found += [message.body for message in decode_entries(answer.body)]
            if header.next_begin_offset <= offset:
                return found
            offset = header.next_begin_offset

    async def heartbeat(self, body: dict[str, Any] | bytes) -> Command:
        return await self.ask(
            Heartbeat(), body if isinstance(body, bytes) else fastjson.encode(body)
        )

    async def join(
        self, client_id: str, group: str = "g", *subscriptions: dict[str, Any], **more: Any
    ) -> Command:
        """A heartbeat of a consumer, as a Java client sends it."""
        return await self.heartbeat(
            {"clientID": client_id, "consumerDataSet": [consumer(group, *subscriptions, **more)]}
        )

    async def members(self, group: str = "g") -> list[str]:
        answer = await self.ask(GetConsumerListByGroup(consumer_group=group))
        return (
            list(fastjson.decode(answer.body, ConsumerIdList).consumer_id_list or ())
            if answer.code == 0
            else []
        )

    async def close(self) -> None:
        await self.remoting.close()


def pull(
    offset: int = 0, *, suspend_ms: int = 0, tags: str | None = "*", flags: int = 0, **fields: Any
) -> PullMessage:
    """A pull that carries its own subscription, unless ``tags`` is None; held if ``suspend_ms``."""
    flags |= (PullSysFlag.SUSPEND if suspend_ms else 0) | (
        PullSysFlag.SUBSCRIPTION if tags is not None else 0
    )
    values: dict[str, Any] = {
        "consumer_group": "g",
        "topic": "T",
        "queue_id": 0,
        "subscription": tags,
        **fields,
    }
    return PullMessage(
        queue_offset=offset, sys_flag=flags, suspend_timeout_millis=suspend_ms, **values
    )


def subscription(
    topic: str = "T", expression: str = "*", version: int = 1, **more: Any
) -> dict[str, Any]:
    return {
        "topic": topic,
        "subString": expression,
        "subVersion": version,
        "expressionType": "TAG",
        **more,
    }


def consumer(group: str, *subscriptions: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "groupName": group,
        "consumeType": "CONSUME_PASSIVELY",
        "messageModel": "CLUSTERING",
        "consumeFromWhere": "CONSUME_FROM_LAST_OFFSET",
        "subscriptionDataSet": list(subscriptions) or [subscription()],
        **more,
    }


@asynccontextmanager
async def talking(
    directory: Path, make: Callable[..., Broker] = Broker, **config: Any
) -> AsyncIterator[Talk]:
    """A started broker on ``directory``; everything is closed after the block. ``make`` puts in
    another disk or clock."""
    broker = make(BrokerConfig(store_path_root_dir=str(directory), **{**SMALL, **config}))
    await broker.start()
    talk = Talk(broker, directory)
    try:
        yield talk
    finally:
        for client in talk.clients:
            await client.close()
        await broker.close()


async def main(config: Any, story: Callable[[Talk], Awaitable[None]], tmp_path: Path) -> None:
    async with talking(tmp_path, **config) as talk:
        await story(talk)


def converse(story: Callable[[Talk], Awaitable[None]], tmp_path: Path, **config: Any) -> None:
    """Run a story with a broker on ``tmp_path``; whatever reaches the loop's exception handler
    fails the test."""

    watched(partial(main, config, story, tmp_path))


def take_nothing(broker: Broker, cause: str) -> None:
    """Sends are refused from now on as by a full disk, whatever room the broker's next look finds,
    or one that is under way."""
    broker.store.space.update_levels = does_nothing  # type: ignore[method-assign]
    broker.store.space.refusal = cause


async def run_watched(story: Callable[[], Awaitable[None]], uncaught: list[dict[str, Any]]) -> None:
    asyncio.get_running_loop().set_exception_handler(
        lambda _loop, context: uncaught.append(context)
    )
    await story()
    await asyncio.sleep(0)


def watched(story: Callable[[], Awaitable[None]]) -> None:
    """``asyncio.run``, but nothing may be left to the loop's exception handler."""
    uncaught: list[dict[str, Any]] = []

    asyncio.run(run_watched(story, uncaught))
    assert uncaught == []


SERVER = "10.0.0.1"
"""The broker's host, in a simulation."""


async def with_broker(
    config: Any,
    scene: Callable[[Talk, Simulation], Coroutine[Any, Any, None]],
    simulation: Simulation,
) -> None:
    async with simulated_broker(simulation, **config) as talk:
        await scene(talk, simulation)


def in_virtual_time(
    scene: Callable[[Talk, Simulation], Coroutine[Any, Any, None]], **config: Any
) -> None:
    """A broker on a host of a simulated network; ``scene(talk, simulation)`` runs on another."""

    on_a_client_s_host(partial(with_broker, config, scene))


def with_disk(simulation: Simulation, *args: Any, **kwargs: Any) -> Broker:
    disk, clock = simulation.disk(SERVER).mount(), simulation.clock(SERVER)
    return Broker(*args, **kwargs, disk=disk, clock=clock)


@asynccontextmanager
async def simulated_broker(simulation: Simulation, **config: Any) -> AsyncIterator[Talk]:
    """A started broker on SERVER, for a story on another host; closed after the block."""
    ready: asyncio.Future[Talk] = asyncio.get_running_loop().create_future()
    over = asyncio.Event()

    async def serve() -> None:
        settings = {"bind_address": SERVER, "listen_port": 10911, **config}
        async with talking(Path("/store"), make=partial(with_disk, simulation), **settings) as talk:
            ready.set_result(talk)
            await over.wait()

    server = simulation.boot(SERVER).start(serve())
    talk = await ready
    talk.clients.remove(talk.client)
    talk.client = Client(talk.broker.address)
    yield talk
    over.set()
    await server


def batch_of(*bodies: bytes, tags: str = "ab") -> bytes:
    return encode_batch(
        [
            Message(
                "B",
                body,
                tags=tags[number % len(tags)],
                properties={"UNIQ_KEY": f"ID-{body.decode()}"},
                flag=number,
            )
            for number, body in enumerate(bodies)
        ]
    )
