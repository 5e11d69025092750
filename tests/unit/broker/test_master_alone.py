"""A SYNC_MASTER that waits for a slave and has none: what it answers, and what goes on all the
same."""

import asyncio
from functools import partial
from typing import Any

import pytest
from tests.loops import CLIENT, in_loop
from tests.unit.broker.replicas import (
    MASTER,
    NAMESRV,
    Replicas,
    eventually,
    until_joined,
    with_replicas,
)

from turbopump import (
    Message,
    Producer,
    PushConsumer,
    ReceivedMessage,
    SendStatus,
    TransactionProducer,
    TransactionState,
)
from turbopump.broker.registration import WITHOUT_SLAVE_S
from turbopump.config.broker_config import BrokerRole
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.configuration import GetBrokerConfig
from turbopump.protocol.requests.send import SendMessageV2

UNSET: dict[str, Any] = {"broker_role": BrokerRole.SYNC_MASTER}
"""The recipe of Apache 4: without inSyncReplicas."""


@in_loop(with_replicas)
async def test_a_sync_master_without_the_key_stores_and_says_that_no_slave_has_it(
    replicas: Replicas, /
) -> None:
    await replicas.master(**UNSET)
    sender = replicas.client_of(MASTER)
    await sender.create()
    send = SendMessageV2(topic="T", queue_id=0)
    code, remark = await sender.code(send, b"alone")
    assert code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert "fewer than 1 slaves are in sync (inSyncReplicas=2); the message is stored" in remark
    assert await sender.all_bodies() == [b"alone"]
    told = await sender.ask(GetBrokerConfig())
    assert b"inSyncReplicas=2" in told.body.splitlines()
    slave = await replicas.slave()
    await until_joined(replicas.brokers[MASTER])
    await sender.send(b"both")
    assert slave.store.max_offset("T", 0) == 2


@pytest.mark.parametrize("replicas_wanted", [1, 2])
@in_loop(with_replicas)
async def test_a_key_that_is_set_counts_as_with_apache_5(
    replicas: Replicas, /, replicas_wanted: int
) -> None:
    await replicas.master(**UNSET, in_sync_replicas=replicas_wanted)
    sender = replicas.client_of(MASTER)
    await sender.create()
    code, _ = await sender.code(SendMessageV2(topic="T", queue_id=0), b"x")
    wanted = ResponseCode.SUCCESS if replicas_wanted == 1 else ResponseCode.SLAVE_NOT_AVAILABLE
    assert code == wanted


async def handle(taken: Any, message: ReceivedMessage) -> None:
    taken.append(message.body)
    if taken.count(message.body) == 1:
        raise ValueError("once more")


@in_loop(with_replicas)
async def test_clients_go_on_with_a_master_alone(replicas: Replicas, /) -> None:
    """Sends, delays, messages that come again, and a restart. Transactions are rolled back, as by
    Java's clients: their half messages are not as safe as promised."""
    simulation, taken, called = replicas.simulation, list[bytes](), list[bytes]()
    clock, source = simulation.clock(CLIENT), simulation.source("client")
    client: dict[str, Any] = {"clock": clock, "random": source, "local_ip": CLIENT}
    names = f"{NAMESRV}:9876"

    async def execute(message: Message | ReceivedMessage, _arg: object = None) -> TransactionState:
        called.append(message.body)
        return TransactionState.COMMIT

    await replicas.master(**UNSET)
    await replicas.client_of(MASTER).create()
    async with (
        Producer(names, group="p", **client) as producer,
        TransactionProducer(
            names, group="t", executor=execute, checker=execute, **client
        ) as transactions,
        PushConsumer(names, group="g", topic="T", handler=partial(handle, taken), **client),
    ):
        plain = await producer.send("T", b"plain")
        delayed = await producer.send("T", b"delayed", delay_level=1)
        timed = await producer.send("T", b"timed", delay=1)
        half = await transactions.send_in_transaction(Message("T", b"half"))
        statuses = {one.status for one in (plain, delayed, timed, half.sent)}
        assert statuses == {SendStatus.SLAVE_NOT_AVAILABLE}
        assert (half.state, half.told, called) == (TransactionState.ROLLBACK, True, [])
        twice = sorted([b"plain", b"delayed", b"timed"] * 2)
        await eventually(lambda: sorted(taken) == twice, seconds=120)
        await replicas.stop(MASTER)
        await replicas.master(**UNSET)
        await asyncio.sleep(WITHOUT_SLAVE_S + 60)  # clients ask for routes every 30 s
        assert (await producer.send("T", b"later")).status is SendStatus.SLAVE_NOT_AVAILABLE
        await eventually(lambda: taken.count(b"later") == 2, seconds=120)
    assert b"half" not in taken
