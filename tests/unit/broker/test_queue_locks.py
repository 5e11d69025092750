"""Locks on queues: the pure table, and the broker that keeps its holders through restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from tests.loops import in_loop
from tests.simulation.one_broker import HOST, OneBroker, with_one_broker
from tests.unit.broker.talking import Client, Talk, converse

from turbopump.broker.queue_locks import CLEAN_UP_MAX, LIFE_S, LOCKS_MAX, RELIANCE_S, QueueLocks
from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.command import encode_command, request_command
from turbopump.protocol.requests.assignment import (
    LockBatchMq,
    LockBatchRequestBody,
    LockBatchResponseBody,
    UnlockBatchMq,
)

ONE, TWO = MessageQueue("T", "broker-a", 0), MessageQueue("T", "broker-a", 1)


# --- the table
# -----------------------------------------------------------------------------------------------


def test_a_queue_has_one_holder_who_renews_and_others_wait_until_it_expires() -> None:
    locks = QueueLocks(0.0)
    assert set(locks.lock("g", [ONE, TWO], "a", 0.0)) == {ONE, TWO}
    assert set(locks.lock("g", [ONE], "a", 50.0)) == {ONE}
    assert set(locks.lock("g", [ONE, TWO], "b", LIFE_S)) == {TWO}
    assert set(locks.lock("g", [ONE], "b", 50.0 + LIFE_S - 0.001)) == set()
    assert set(locks.lock("g", [ONE], "b", 50.0 + LIFE_S)) == {ONE}
    assert set(locks.lock("g", [ONE], "a", 50.0 + LIFE_S)) == set()


def test_groups_lock_the_same_queue_beside_one_another() -> None:
    locks = QueueLocks(0.0)
    assert set(locks.lock("g", [ONE], "a", 0.0)) == set(locks.lock("h", [ONE], "b", 0.0)) == {ONE}


def test_only_the_holder_unlocks_and_then_the_next_gets_the_queue_at_once() -> None:
    locks = QueueLocks(0.0)
    locks.lock("g", [ONE], "a", 0.0)
    locks.unlock("g", [ONE], "b")
    assert set(locks.lock("g", [ONE], "b", 1.0)) == set()
    locks.unlock("g", [ONE, TWO], "a")
    assert set(locks.lock("g", [ONE], "b", 1.0)) == {ONE}


def test_a_renewal_is_no_change_and_a_new_holder_is_one() -> None:
    locks = QueueLocks(0.0)
    assert locks.lock("g", [ONE], "a", 0.0) == {ONE: 1}
    assert locks.lock("g", [ONE, TWO], "a", 20.0) == {ONE: 1, TWO: 2}
    assert locks.changes == 2
    assert locks.lock("g", [ONE], "a", 20.0 + LIFE_S + 1) == {ONE: 1}, (
        "its own expired lock is its own still"
    )


def test_holders_from_before_a_restart_renew_and_keep_their_queues_for_a_minute() -> None:
    locks = QueueLocks(100.0, {("g", ONE): "a"})
    assert set(locks.lock("g", [ONE, TWO], "b", 100.0)) == {TWO}
    assert set(locks.lock("g", [ONE], "b", 159.0)) == set()
    assert set(locks.lock("g", [ONE], "a", 159.0)) == {ONE}
    assert set(locks.lock("g", [ONE], "b", 160.0)) == set()


def test_while_the_holders_are_not_known_nothing_is_granted() -> None:
    locks = QueueLocks(5.0, closed_until=5.0 + RELIANCE_S)
    assert locks.lock("g", [ONE], "a", 34.9) == {}
    assert set(locks.lock("g", [ONE], "a", 35.0)) == {ONE}


def test_the_table_has_a_bound_and_forgets_what_has_expired() -> None:
    locks = QueueLocks(0.0)
    many = [MessageQueue("T", "broker-a", i) for i in range(LOCKS_MAX + 5)]
    assert len(locks.lock("g", many, "a", 0.0)) == LOCKS_MAX
    assert set(locks.lock("g", [ONE], "a", 1.0)) == {ONE}
    assert locks.lock("h", [ONE], "a", 1.0) == {}
    assert set(locks.lock("h", [ONE], "a", LIFE_S)) == {ONE}
    for _ in range(LOCKS_MAX // 2 // CLEAN_UP_MAX):
        locks.lock("h", [ONE], "a", LIFE_S)
    assert len(locks) <= LOCKS_MAX // 2
    locks.lock("h", [ONE], "a", 2 * LIFE_S)
    assert (locks.holder("g", ONE), locks.holder("h", ONE)) == ("a", "a")


# --- the broker
# -----------------------------------------------------------------------------------------------


async def lock(
    client: Client, client_id: str, queues: Sequence[MessageQueue] = (ONE,), group: str = "g"
) -> list[MessageQueue]:
    body = fastjson.encode(
        LockBatchRequestBody(consumer_group=group, client_id=client_id, mq_set=tuple(queues))
    )
    answer = await client.ask(LockBatchMq(), body)
    assert answer.code == 0, answer
    return sorted(fastjson.decode(answer.body, LockBatchResponseBody).locked)


def unlocking(client_id: str, queues: Sequence[MessageQueue] = (ONE,)) -> bytes:
    return fastjson.encode(
        LockBatchRequestBody(consumer_group="g", client_id=client_id, mq_set=tuple(queues))
    )


@in_loop(converse)
async def test_clients_lock_renew_and_unlock_also_oneway(talk: Talk, /) -> None:
    client = talk.client
    await client.create("T", queues=2)
    assert await lock(client, "a", [ONE, TWO]) == [ONE, TWO]
    assert await lock(client, "b", [ONE, TWO]) == []
    await client.ask(UnlockBatchMq(), unlocking("a"))
    assert await lock(client, "b", [ONE, TWO]) == [ONE]
    connection = await client.remoting.connect(client.address)
    connection.send_frame(
        encode_command(
            request_command(UnlockBatchMq(), unlocking("a", [TWO]), opaque=9, oneway=True)
        )
    )
    assert await lock(client, "b", [ONE, TWO]) == [ONE, TWO]
    assert await client.code(LockBatchMq(), b"{}") == (
        1,
        "a lock needs consumerGroup and clientId in its body",
    )
    code, remark = await client.code(LockBatchMq(), b"nonsense")
    assert code != 0
    assert "the body cannot be read as LockBatchRequestBody" in remark


@in_loop(with_one_broker)
async def test_after_a_kill_the_holder_renews_at_once_and_another_waits_a_minute(
    world: OneBroker, /
) -> None:
    await world.client.create("T", queues=2)
    assert await lock(world.client, "a") == [ONE]
    world.kill()
    await world.up()
    assert await lock(world.client, "b", [ONE, TWO]) == [TWO]
    assert await lock(world.client, "a", [ONE, TWO]) == [ONE]
    await asyncio.sleep(59)
    assert await lock(world.client, "b") == []
    await asyncio.sleep(1.1)
    assert await lock(world.client, "b") == [ONE]


@in_loop(with_one_broker)
async def test_what_was_unlocked_before_a_clean_stop_is_free_after_it(world: OneBroker, /) -> None:
    await world.client.create("T", queues=2)
    await lock(world.client, "a", [ONE, TWO])
    await world.client.ask(UnlockBatchMq(), unlocking("a"))
    await world.stop()
    await world.up()
    assert await lock(world.client, "b", [ONE, TWO]) == [ONE]


@in_loop(with_one_broker)
async def test_a_store_with_unknown_holders_grants_nothing_for_half_a_minute(
    world: OneBroker, /
) -> None:
    await world.client.create("T", queues=2)
    await lock(world.client, "a")
    await world.stop()
    disk = world.simulation.disk(HOST).mount()
    for name in ("queueLocks.json", "queueLocks.json.bak"):
        disk.remove(Path("/store/config") / name)
    disk.sync_directory(Path("/store/config"))
    world.simulation.disk(HOST).kill()
    await world.up()
    assert await lock(world.client, "a") == []
    await world.stop()
    await world.up()
    assert await lock(world.client, "a") == []
    await asyncio.sleep(RELIANCE_S)
    assert await lock(world.client, "a") == [ONE]


@in_loop(with_one_broker)
async def test_a_damaged_table_is_not_believed_for_its_copy_may_name_another_holder(
    world: OneBroker, /
) -> None:
    await world.client.create("T", queues=2)
    await lock(world.client, "a")
    await lock(world.client, "b", [TWO])
    await world.stop()
    disk = world.simulation.disk(HOST).mount()
    disk.write_file(Path("/store/config/queueLocks.json"), b'{"locks":[{"clie')
    world.simulation.disk(HOST).kill()
    await world.up()
    assert await lock(world.client, "a") == []
    await asyncio.sleep(RELIANCE_S)
    assert await lock(world.client, "c", [ONE, TWO]) == [ONE, TWO]


@in_loop(converse)
async def test_nobody_fills_the_memory_with_long_names(talk: Talk, /) -> None:
    code, remark = await talk.client.code(LockBatchMq(), unlocking("x" * 2000))
    assert (code, remark) == (1, "a clientId is at most 1024 characters long")
    await talk.client.create("T")
    assert await lock(talk.client, "a", [MessageQueue("T", "b" * 300, 0), ONE]) == [ONE]


@in_loop(converse)
async def test_only_queues_that_the_broker_has_are_locked(talk: Talk, /) -> None:
    await talk.client.create("T", queues=2)
    others = [MessageQueue("T", "broker-a", number) for number in (2, -1)]
    others.append(MessageQueue("U", "broker-a", 0))
    assert await lock(talk.client, "a", [*others, ONE, TWO]) == [ONE, TWO]


@in_loop(with_one_broker)
async def test_a_holder_that_the_disk_does_not_know_is_not_told_that_it_holds_the_queue(
    world: OneBroker, /
) -> None:
    await world.client.create("T", queues=2)
    await asyncio.sleep(1)
    assert await lock(world.client, "a", [ONE]) == [ONE]
    world.simulation.disk(HOST).fail("rename", times=20)
    assert await lock(world.client, "a", [ONE, TWO]) == [ONE]
    await asyncio.sleep(20)
    assert await lock(world.client, "a", [ONE, TWO]) == [ONE, TWO]
