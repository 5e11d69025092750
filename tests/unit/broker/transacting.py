"""A producer of transactions, down at the level of requests, and a broker that can be restarted, in
virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from tests.simulation.world.simulation import Simulation, simulate
from tests.stand_ins import does_nothing
from tests.unit.broker.talking import SMALL, Client

from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerConfig
from turbopump.message.codec import decode_entry
from turbopump.message.ids import decode_offset_msg_id
from turbopump.message.message import ReceivedMessage
from turbopump.message.properties import encode_properties
from turbopump.protocol.command import Command
from turbopump.protocol.requests.send import (
    CheckTransactionState,
    EndTransaction,
    SendMessageReply,
    TransactionOutcome,
)
from turbopump.remoting.router import HELD, Ready, RequestContext

HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
OP = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
GIVEN_UP = "TRANS_CHECK_MAX_TIME_TOPIC"
GROUP = "CID_RMQ_SYS_TRANS"
BROKER = "10.0.0.1"


_PATIENT: dict[str, Any] = {
    "channel_expired_timeout": 10**9,
    "server_channel_max_idle_time_seconds": 10**6,
}
"""The producers here announce themselves once."""


class Asked:
    """A question of the broker's, as it came, and when (loop time)."""

    def __init__(self, request: CheckTransactionState, body: bytes, at: float) -> None:
        self.request = request
        self.message: ReceivedMessage = decode_entry(body)
        self.at = at


class Transactor:
    """Sends half messages and ends them. ``answer`` decides on each question; None: say nothing."""

    def __init__(self, client: Client, now_ms: Callable[[], int], group: str = "sellers") -> None:
        self.client = client
        self._now_ms = now_ms
        self.group = group
        self.asked: list[Asked] = []
        self.answer: Callable[[ReceivedMessage], TransactionOutcome | None] = does_nothing
        client.remoting.router.add(CheckTransactionState, self._take)

    async def announce(self, client_id: str = "seller-1") -> None:
        await self.client.heartbeat(
            {"clientID": client_id, "producerDataSet": [{"groupName": self.group}]}
        )

    async def prepare(
        self,
        body: bytes = b"x",
        topic: str = "T",
        sys_flag: int = 4,
        born_ms: int | None = None,
        **properties: str,
    ) -> SendMessageReply:
        """Send a half message, born now unless ``born_ms`` is given."""
        text = encode_properties(
            {"TRAN_MSG": "true", "PGROUP": self.group, "UNIQ_KEY": f"U{body.hex()}", **properties}
        )
        born = self._now_ms() if born_ms is None else born_ms
        return await self.client.send(
            body, topic=topic, sys_flag=sys_flag, properties=text, born_timestamp=born
        )

    def ending(self, half: SendMessageReply, outcome: int, **fields: Any) -> EndTransaction:
        values: dict[str, Any] = {
            "topic": "T",
            "producer_group": self.group,
            "tran_state_table_offset": half.queue_offset,
            "commit_log_offset": decode_offset_msg_id(half.msg_id)[2],
            "commit_or_rollback": outcome,
            "from_transaction_check": False,
            "msg_id": "U",
            "transaction_id": "U",
            **fields,
        }
        return EndTransaction(**values)

    async def end(self, half: SendMessageReply, outcome: int, **fields: Any) -> Command:
        return await self.client.ask(self.ending(half, outcome, **fields))

    async def _take(self, request: CheckTransactionState, context: RequestContext) -> Ready:
        asked = Asked(request, context.body, asyncio.get_running_loop().time())
        self.asked.append(asked)
        outcome = self.answer(asked.message)
        if outcome is not None:
            answer = EndTransaction(
                topic=request.topic,
                producer_group=self.group,
                tran_state_table_offset=request.tran_state_table_offset,
                commit_log_offset=request.commit_log_offset,
                commit_or_rollback=outcome,
                from_transaction_check=True,
                msg_id=request.msg_id,
                transaction_id=request.transaction_id,
            )
            await self.client.remoting.send_oneway(self.client.address, answer)
        return HELD


class World:
    """A broker on a simulated disk. ``stop`` and ``start`` may be called any number of times."""

    def __init__(self, simulation: Simulation, config: dict[str, Any]) -> None:
        self.simulation = simulation
        self.broker: Broker
        self._config = config
        self._over: asyncio.Event
        self._server: asyncio.Future[None] | None = None

    async def start(self) -> None:
        self.simulation.boot(BROKER)
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        over = self._over = asyncio.Event()

        async def serve() -> None:
            fields: dict[str, Any] = {
                **SMALL,
                **_PATIENT,
                "bind_address": BROKER,
                "listen_port": 10911,
                **self._config,
            }
            disk, clock = self.simulation.disk(BROKER).mount(), self.simulation.clock(BROKER)
            self.broker = Broker(
                BrokerConfig(store_path_root_dir=str(Path("/store")), **fields),
                disk=disk,
                clock=clock,
            )
            await self.broker.start()
            ready.set_result(None)
            await over.wait()
            await self.broker.close()

        self._server = self.simulation.process(BROKER).start(serve())
        await ready

    async def stop(self) -> None:
        """Cleanly."""
        self._over.set()
        assert self._server is not None
        await self._server
        self.simulation.end(BROKER, power_cut=False)

    def kill(self, *, power_cut: bool = False) -> None:
        assert self._server is not None
        self._server.add_done_callback(lambda done: done.exception())
        self.simulation.end(BROKER, power_cut=power_cut)

    def configure(self, **config: Any) -> None:
        """Settings from the next start on."""
        self._config |= config

    def client(self) -> Client:
        return Client(f"{BROKER}:10911")

    def transactor(self, group: str = "sellers") -> Transactor:
        return Transactor(self.client(), self.simulation.clock(BROKER).now_ms, group)

    def offset(self, topic: str) -> int | None:
        """Where CID_RMQ_SYS_TRANS stands."""
        return self.broker.tables.offsets.find(GROUP, topic, 0)


def in_a_world(
    story: Callable[[World], Coroutine[Any, Any, None] | Awaitable[None]],
    seed: int = 1,
    **config: Any,
) -> None:
    """Run ``story`` with a started broker."""

    simulate(seed, lambda simulation: _in_a_world(simulation, story, config))


async def play(
    story: Callable[[World], Coroutine[Any, Any, None] | Awaitable[None]], world: World
) -> None:
    await story(world)


async def _in_a_world(
    simulation: Simulation,
    story: Callable[[World], Coroutine[Any, Any, None] | Awaitable[None]],
    config: dict[str, Any],
) -> None:
    world = World(simulation, config)
    await world.start()

    await simulation.boot("10.0.0.2").start(play(story, world))
    await world.stop()
