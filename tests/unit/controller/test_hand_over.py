"""A mastership is handed over while the master delivers messages of its own all the time: delays,
timers, popped messages that nobody acknowledges, and transactions that are checked.

A message that the master stored after the election would make the third replica cut its log.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest
from tests.loops import in_loop
from tests.unit.broker.popping import Popper
from tests.unit.broker.replica.groups import CONTROLLER, HOSTS
from tests.unit.broker.replicas import eventually
from tests.unit.broker.talking import Client
from tests.unit.broker.transacting import Transactor
from tests.unit.controller.controlled_group import ControlledGroup, with_controller

from turbopump.admin.cluster import Servers
from turbopump.admin.controllers import Controllers
from turbopump.admin.draining import find_broker, hand_mastership_over
from turbopump.broker.broker import Broker
from turbopump.errors import RemotingError, ResponseError
from turbopump.message.properties import encode_properties
from turbopump.protocol.requests.send import TransactionOutcome

SUPERVISOR = "turbopump.broker.replica.replica"
QUICK = {
    "timer_precision_ms": 100,
    "transaction_time_out": 10,
    "transaction_check_interval": 20,
    "channel_expired_timeout": 10**9,
}
WAITING = {"delayed": {"DELAY": "1"}, "timers": {"TIMER_DELAY_MS": "300"}}
"""Properties of the messages of two topics."""


with_own_writes = partial(with_controller, **QUICK)
"""Runs a story with a group whose master delivers, and checks transactions, without a pause."""


class OwnWrites:
    """Clients of one broker that give it much to deliver. ``sent`` has what was acknowledged."""

    def __init__(self, group: ControlledGroup, host: str) -> None:
        self._now_ms = group.simulation.clock(host).now_ms
        self._client = partial(group.client_of, host)
        self.sent: dict[str, list[bytes]] = {"T": [], **{topic: [] for topic in WAITING}}
        self._over = False

    def stop(self) -> None:
        self._over = True

    async def run(self) -> None:
        jobs = [self._send_waiting(topic) for topic in WAITING]
        await asyncio.gather(*jobs, self._pop(), self._transact())

    async def _send_waiting(self, topic: str) -> None:
        properties = encode_properties(WAITING[topic])
        await self._repeat(
            partial(self._send, self._client(), topic=topic, properties=properties), 0.01
        )

    async def _send(self, client: Client, topic: str, properties: str) -> None:
        body = b"%s %d" % (topic.encode(), len(self.sent[topic]))
        await client.send(body, topic=topic, properties=properties)
        self.sent[topic].append(body)

    async def _pop(self) -> None:
        client = self._client()
        popper = Popper(client, self._now_ms, topic="popped")
        for _ in range(5):
            await client.send(b"popped", topic="popped")
        await self._repeat(partial(popper.pop, max_msg_nums=1, invisible_ms=1000), 0.02)

    async def _transact(self) -> None:
        """Most transactions are ended by checks."""
        client = self._client()
        producer = Transactor(client, self._now_ms)
        producer.answer = partial(_outcome, TransactionOutcome.COMMIT)
        await producer.announce()
        await self._repeat(partial(self._prepare, producer), 0.01)

    async def _prepare(self, producer: Transactor) -> None:
        body = b"%d" % len(self.sent["T"])
        await producer.prepare(body)
        self.sent["T"].append(body)

    async def _repeat(self, work: Callable[[], Awaitable[object]], rest: float) -> None:
        while not self._over:
            with suppress(RemotingError, AssertionError):  # an answer may be a refusal
                await work()
            await asyncio.sleep(rest)


def cuts(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Log lines about logs that were cut."""
    found = [one for one in caplog.messages if one.startswith("log cut")]
    assert any(one.startswith("mastership is handed over") for one in caplog.messages)
    return found


def _outcome(outcome: TransactionOutcome, _message: object) -> TransactionOutcome:
    return outcome


@asynccontextmanager
async def writing(group: ControlledGroup) -> AsyncIterator[tuple[Broker, OwnWrites]]:
    """A group in sync whose master has been busy for some time. After the block another one is
    master, and nothing that was acknowledged is lost."""
    first = await group.master_other_than()
    talk = group.client(first)
    for topic in ("T", "popped", *WAITING):
        await talk.create(topic)
    await group.until_in_sync(3)
    own = OwnWrites(group, first.host)
    working = asyncio.ensure_future(own.run())
    await asyncio.sleep(1.5)
    yield first, own
    own.stop()
    await working
    second = await group.master_other_than(first.host)
    producer = Transactor(group.client(second), group.simulation.clock(second.host).now_ms)
    producer.answer = partial(_outcome, TransactionOutcome.COMMIT)
    await producer.announce()
    talk = group.client(second)
    for topic, sent in own.sent.items():
        missing = set(sent)
        async with asyncio.timeout(30.0):
            while missing := missing - set(await talk.all_bodies(topic)):
                await asyncio.sleep(0.5)
    committed = Counter(await talk.all_bodies("T"))
    assert [body for body, count in committed.items() if count > 1] == []


@pytest.mark.parametrize("seed", [1, 2])
@in_loop(with_own_writes)
async def test_a_master_that_stops_stores_nothing_after_the_election(
    group: ControlledGroup, /, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", SUPERVISOR)
    async with writing(group) as (first, _own):
        log = first.store.log
        slaves = [one.broker for host, one in group.replicas.items() if host != first.host]
        began = asyncio.get_running_loop().time()
        await group.stop(first.host)
        assert asyncio.get_running_loop().time() - began < 8.0  # it passes sends on for 5 s
        second = await group.master_other_than(first.host)
        await group.until_in_sync(2)
        assert log.end == second.group_replication.epochs()[-1].start_offset
        brokers = [one.broker for one in group.replicas.values()]
        assert sum(one in slaves for one in brokers) == 1  # only the successor was opened again
    assert cuts(caplog) == []


@pytest.mark.parametrize("seed", [1, 2])
@in_loop(with_own_writes)
async def test_a_master_that_is_drained_stores_nothing_after_the_election(
    group: ControlledGroup, /, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", SUPERVISOR)
    async with writing(group) as (first, _own):
        log = first.store.log
        async with Servers(["10.0.0.9:9876"]) as servers:
            broker = await find_broker(servers, "broker-a")
            await hand_mastership_over(servers, broker)
        second = await group.master_other_than(first.host)
        await group.until_in_sync(3)
        assert log.end == second.group_replication.epochs()[-1].start_offset
    assert cuts(caplog) == []


@in_loop(with_own_writes)
async def test_a_master_that_is_not_replaced_goes_on_with_its_own_writes(
    group: ControlledGroup, /
) -> None:
    """The controller does not hear the successor, which copies all the same."""
    first = await group.master_other_than()
    talk = group.client(first)
    await talk.create("delayed")
    await group.until_in_sync(3)
    successor = next(host for host in HOSTS if host != first.host)
    group.simulation.network.cut(successor, CONTROLLER)
    heard = group.decides.liveness
    await eventually(lambda: group.id_of(successor) not in heard.candidates("broker-a"))
    await talk.send(b"later", topic="delayed", properties=encode_properties({"DELAY": "1"}))
    async with Servers(["10.0.0.9:9876"]) as servers:
        with pytest.raises(ResponseError, match="sends no heartbeats"):
            await Controllers(servers).elect("broker-a", group.id_of(successor))
    assert group.master is first
    await eventually(lambda: first.store.max_offset("delayed", 0) == 1)
    await talk.send(b"now", topic="delayed")
