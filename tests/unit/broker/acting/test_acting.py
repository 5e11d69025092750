"""The master of a cluster dies while messages wait in it. Its slave delivers each to another
master, once, and the master that comes back does not deliver them again."""

import asyncio

import pytest
from tests.loops import in_loop
from tests.unit.broker.acting_cluster import ACTS, OTHER, ActingCluster, at
from tests.unit.broker.popping import Popper
from tests.unit.broker.replicas import (
    MASTER,
    NAMESRV,
    SECOND_SLAVE,
    SLAVE,
    Replicas,
    a_round_later,
    eventually,
    same_logs,
    with_replicas,
)
from tests.unit.broker.transacting import Transactor

from turbopump.protocol.requests.send import TransactionOutcome


@in_loop(with_replicas)
async def test_brokers_that_send_nothing_stay_registered_by_their_heartbeats(
    replicas: Replicas, /, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = ActingCluster(replicas)
    await cluster.start(broker_not_active_timeout_millis=2000)
    await asyncio.sleep(60)
    assert "broker expired" not in caplog.text
    assert not cluster.acting.acted
    replicas.simulation.network.cut(MASTER, NAMESRV)
    await asyncio.sleep(10)
    assert "broker expired broker=broker-a id=0" in caplog.text
    assert not cluster.acting.acted, "the slave still copies from its master"


@in_loop(with_replicas)
async def test_delayed_messages_come_to_another_master_once(replicas: Replicas, /) -> None:
    cluster = ActingCluster(replicas)
    await cluster.start()
    await at(cluster.master, b"soon", DELAY=1)
    await at(cluster.master, b"late", DELAY=2)
    await cluster.copied()
    replicas.kill(MASTER)
    await cluster.until_acting()
    await eventually(lambda: cluster.stored(OTHER) == [b"soon"])
    await cluster.start_master()
    await cluster.until_following()
    await asyncio.sleep(30)
    assert cluster.stored(OTHER) == [b"soon"]
    assert cluster.stored(MASTER) == [b"late"]


@in_loop(with_replicas)
async def test_timers_fire_at_another_master_once(replicas: Replicas, /) -> None:
    cluster = ActingCluster(replicas)
    await cluster.start()
    due = cluster.now_ms()
    await at(cluster.master, b"past", TIMER_DELIVER_MS=due + 1500)
    await eventually(lambda: cluster.stored(MASTER) == [b"past"])
    due = cluster.now_ms()
    await at(cluster.master, b"soon", TIMER_DELIVER_MS=due + 10_000)
    await at(cluster.master, b"late", TIMER_DELIVER_MS=due + 60_000)
    await cluster.copied()
    replicas.kill(MASTER)
    await cluster.until_acting()
    await eventually(lambda: cluster.stored(OTHER) == [b"soon"])
    await asyncio.sleep(5)
    await cluster.start_master()
    await cluster.until_following()
    await asyncio.sleep(90)
    assert cluster.stored(OTHER) == [b"soon"]
    assert cluster.stored(MASTER) == [b"past", b"late"]


@in_loop(with_replicas)
async def test_an_open_transaction_is_asked_about_by_another_master(replicas: Replicas, /) -> None:
    cluster = ActingCluster(replicas)
    await cluster.start()
    producer = Transactor(cluster.master, cluster.now_ms)
    await producer.announce()
    ended = await producer.prepare(b"committed")
    await producer.end(ended, TransactionOutcome.COMMIT)
    ended = await producer.prepare(b"rolled back")
    await producer.end(ended, TransactionOutcome.ROLLBACK)
    await producer.prepare(b"open")
    await cluster.copied()
    replicas.kill(MASTER)
    moved = Transactor(cluster.other, cluster.now_ms)
    moved.answer = lambda _message: TransactionOutcome.COMMIT
    await moved.announce()
    await eventually(lambda: cluster.stored(OTHER) == [b"open"], seconds=60)
    assert [asked.message.body for asked in moved.asked] == [b"open"]
    await cluster.start_master()
    again = Transactor(replicas.client_of(MASTER), cluster.now_ms)
    again.answer = lambda _message: TransactionOutcome.COMMIT
    await again.announce()
    await cluster.until_following()
    await asyncio.sleep(30)
    assert again.asked == []
    assert cluster.stored(MASTER) == [b"committed"]


@in_loop(with_replicas)
async def test_popped_messages_without_acknowledgement_come_to_another_master(
    replicas: Replicas, /
) -> None:
    cluster = ActingCluster(replicas)
    await cluster.start()
    for number in range(4):
        await cluster.master.send(b"%d" % number)
    popper = Popper(cluster.master, cluster.now_ms)
    popped = await popper.pop(invisible_ms=15_000)
    assert len(popped) == 4
    await popper.ack(popped[0])
    await cluster.copied()
    replicas.kill(MASTER)
    await cluster.until_acting()
    popper = Popper(cluster.slave, cluster.now_ms)
    assert await popper.ack(popped[1]) == 0
    retried = "%RETRY%g_T"
    await eventually(lambda: len(cluster.stored(OTHER, retried)) == 2)
    assert sorted(cluster.stored(OTHER, retried)) == [b"2", b"3"]
    await cluster.start_master()
    await cluster.until_following()
    await asyncio.sleep(60)
    assert cluster.stored(MASTER, retried) == []
    assert sorted(cluster.stored(OTHER, retried)) == [b"2", b"3"]


@in_loop(with_replicas)
async def test_an_acknowledgement_at_the_slave_reaches_the_master_that_is_back(
    replicas: Replicas, /
) -> None:
    cluster = ActingCluster(replicas)
    await cluster.start()
    for number in range(2):
        await cluster.master.send(b"%d" % number)
    popper = Popper(cluster.master, cluster.now_ms)
    popped = await popper.pop(invisible_ms=60_000)
    await cluster.copied()
    replicas.kill(MASTER)
    await cluster.until_acting()
    assert await Popper(cluster.slave, cluster.now_ms).ack(popped[0]) == 0
    await cluster.start_master()
    await cluster.until_following()
    await asyncio.sleep(90)
    assert cluster.stored(MASTER, "%RETRY%g_T") == [b"1"]
    assert cluster.stored(OTHER, "%RETRY%g_T") == []


@in_loop(with_replicas)
async def test_without_another_master_everything_waits_for_the_master(
    replicas: Replicas, /
) -> None:
    cluster = ActingCluster(replicas)
    await cluster.start(enable_remote_escape=False)
    await at(cluster.master, b"delayed", DELAY=1)
    await at(cluster.master, b"timed", TIMER_DELIVER_MS=cluster.now_ms() + 5000)
    await cluster.copied()
    replicas.kill(MASTER)
    await cluster.until_acting()
    await asyncio.sleep(30)
    assert cluster.stored(OTHER) == []
    await cluster.start_master()
    await eventually(lambda: sorted(cluster.stored(MASTER)) == [b"delayed", b"timed"])


@in_loop(with_replicas)
async def test_another_slave_goes_on_where_the_first_one_died(replicas: Replicas, /) -> None:
    cluster = ActingCluster(replicas)
    await cluster.start()
    await replicas.slave(SECOND_SLAVE, **ACTS)
    due = cluster.now_ms()
    for seconds in (5, 40):
        await at(cluster.master, b"%d" % seconds, TIMER_DELIVER_MS=due + seconds * 1000)
    await at(cluster.master, b"level 1", DELAY=1)
    await at(cluster.master, b"level 2", DELAY=2)
    await cluster.copied()
    await same_logs(cluster.broker(MASTER), cluster.broker(SECOND_SLAVE))
    await a_round_later(cluster.broker(SECOND_SLAVE))
    replicas.kill(MASTER)
    await eventually(lambda: sorted(cluster.stored(OTHER)) == [b"5", b"level 1"])
    await asyncio.sleep(5)
    second = cluster.broker(SECOND_SLAVE).acting
    assert second is not None
    assert not second.active
    replicas.kill(SLAVE)
    await eventually(lambda: second.active)
    await eventually(lambda: len(cluster.stored(OTHER)) >= 3)
    assert sorted(cluster.stored(OTHER)) == [b"5", b"level 1", b"level 2"]
    await replicas.slave(**ACTS)
    await cluster.until_acting()
    assert not second.active
    await eventually(lambda: len(cluster.stored(OTHER)) >= 4, seconds=60)
    await asyncio.sleep(10)
    assert sorted(cluster.stored(OTHER)) == [b"40", b"5", b"level 1", b"level 2"]


@in_loop(with_replicas)
async def test_the_work_goes_on_after_a_restart_of_the_slave(replicas: Replicas, /) -> None:
    cluster = ActingCluster(replicas)
    await cluster.start()
    due = cluster.now_ms()
    for seconds in (5, 30):
        await at(cluster.master, b"%d" % seconds, TIMER_DELIVER_MS=due + seconds * 1000)
    await at(cluster.master, b"level 1", DELAY=1)
    await at(cluster.master, b"level 2", DELAY=2)
    await cluster.copied()
    replicas.kill(MASTER)
    await eventually(lambda: sorted(cluster.stored(OTHER)) == [b"5", b"level 1"])
    await asyncio.sleep(3)
    replicas.kill(SLAVE)
    await replicas.slave(**ACTS)
    await eventually(lambda: len(cluster.stored(OTHER)) >= 4, seconds=60)
    await asyncio.sleep(10)
    assert sorted(cluster.stored(OTHER)) == [b"30", b"5", b"level 1", b"level 2"]
