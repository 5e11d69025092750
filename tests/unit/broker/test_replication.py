"""A master and its slaves: what a slave has, what it answers, what a send waits for."""

import asyncio
import errno
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.unit.broker.replicas import (
    MASTER,
    NAMESRV,
    SECOND_SLAVE,
    SLAVE,
    SYNC,
    Replicas,
    eventually,
    same_logs,
    until_fault,
    until_joined,
    until_stored,
    until_topic,
    with_replicas,
)
from tests.unit.broker.talking import talking
from tests.waits import is_logged

from turbopump.broker.registration import WITHOUT_SLAVE_S
from turbopump.broker.replication_settings import weak_promises
from turbopump.config.broker_config import BrokerConfig, BrokerRole, FlushDiskType
from turbopump.errors import ProtocolError, ReadsRefusedError, TurbopumpError
from turbopump.event_loop import loop_factory
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.namesrv import GetRouteInfo
from turbopump.protocol.requests.replication import ExchangeHAInfo
from turbopump.protocol.requests.send import EndTransaction, SendMessageV2
from turbopump.remoting.router import Router
from turbopump.remoting.server import RemotingServer
from turbopump.replication.ha_port import TURN_SIZE, UNSENT_MAX
from turbopump.replication.stream import REPORT, TRANSFER_HEAD


@in_loop(with_replicas)
async def test_a_slave_that_the_name_server_sends_to_its_master_has_the_same_log(
    replicas: Replicas, /
) -> None:
    master = await replicas.master()
    sender = replicas.client_of(MASTER)
    await sender.create()
    await sender.send(b"before")
    slave = await replicas.slave()
    await until_stored(slave, "T", 1)
    for number in range(40):
        await sender.send(b"m%d" % number * 10_000)
    await same_logs(master, slave)
    assert slave.store.max_offset("T", 0) == 41


@in_loop(with_replicas)
async def test_an_empty_slave_copies_all_files_of_the_log(replicas: Replicas, /) -> None:
    master = await replicas.master()
    sender = replicas.client_of(MASTER)
    await sender.create()
    for number in range(60):
        await sender.send(b"m%d" % number * 10_000)
    assert len(master.store.log.files.files) > 1
    slave = await replicas.slave()
    await same_logs(master, slave)
    assert slave.store.min_offset("T", 0) == 0


@in_loop(with_replicas)
async def test_a_killed_slave_goes_on_where_its_log_ends(replicas: Replicas, /) -> None:
    master = await replicas.master()
    slave = await replicas.slave()
    sender = replicas.client_of(MASTER)
    await sender.create()
    for number in range(5):
        await sender.send(b"one %d" % number)
    await same_logs(master, slave)
    replicas.kill(SLAVE)
    for number in range(5):
        await sender.send(b"two %d" % number)
    await same_logs(master, await replicas.slave())


@in_loop(with_replicas)
async def test_a_slave_takes_no_sends_and_makes_no_topic_for_them(replicas: Replicas, /) -> None:
    await replicas.master()
    slave = await replicas.slave()
    client = replicas.client_of(SLAVE)
    request = SendMessageV2(topic="new", queue_id=0, default_topic="TBW102")
    code, remark = await client.code(request, b"x")
    assert code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "is a slave (brokerRole=SLAVE)" in remark
    assert slave.tables.topics.find("new") is None
    ended = EndTransaction(
        producer_group="p",
        tran_state_table_offset=0,
        commit_log_offset=0,
        commit_or_rollback=8,
        msg_id="x",
        transaction_id="x",
    )
    assert (await client.code(ended))[0] == ResponseCode.SLAVE_NOT_AVAILABLE


@in_loop(with_replicas)
async def test_a_slave_is_in_sync_however_long_nothing_is_sent(replicas: Replicas, /) -> None:
    master = await replicas.master(**SYNC)
    await replicas.slave()
    sender = replicas.client_of(MASTER)
    await sender.create()
    await until_joined(master)
    await sender.send(b"before a quiet time")
    for _ in range(60):
        await asyncio.sleep(1.0)
        assert not master.store.confirmed.alone
    await sender.send(b"after it")


@in_loop(with_replicas)
async def test_a_slave_that_starts_before_its_master_copies_within_seconds_of_its_start(
    replicas: Replicas, /
) -> None:
    slave = await replicas.slave()
    await asyncio.sleep(40.0)
    master = await replicas.master()
    await replicas.client_of(MASTER).create()
    await replicas.client_of(MASTER).send(b"one")
    await until_stored(slave, "T", 1, seconds=5.0)
    await same_logs(master, slave)


@in_loop(with_replicas)
async def test_a_slave_is_told_where_its_master_is(replicas: Replicas, /) -> None:
    master = await replicas.master(namesrv_addr="")
    slave = await replicas.slave(namesrv_addr="")
    await replicas.client_of(MASTER).create()
    await replicas.client_of(MASTER).send(b"one")
    told = ExchangeHAInfo(
        master_address=master.address, master_ha_address=master.parts.listening.ha_address
    )
    assert await replicas.client_of(SLAVE).code(told) == (0, "")
    await same_logs(master, slave)
    await until_topic(slave, "T")


@in_loop(with_replicas)
async def test_a_slave_says_that_the_ha_port_of_its_master_was_taken(
    replicas: Replicas, /, caplog: pytest.LogCaptureFixture
) -> None:
    other = RemotingServer(Router())
    await replicas.simulation.loop.create_process(MASTER).start(other.listen(MASTER, 10912))
    await replicas.master()
    await replicas.slave()
    await asyncio.sleep(100)
    told = [one for one in caplog.messages if "the master accepts no slaves" in one]
    assert told == ["the master accepts no slaves: set its haListenPort to a free port"]
    assert "cannot be reached" not in caplog.text


@pytest.mark.parametrize("flush", FlushDiskType)
@in_loop(with_replicas)
async def test_a_sync_master_answers_when_its_slave_has_the_message(
    replicas: Replicas, /, flush: FlushDiskType
) -> None:
    master = await replicas.master(**SYNC, flush_disk_type=flush)
    slave = await replicas.slave(flush_disk_type=flush)
    sender = replicas.client_of(MASTER)
    await sender.create()
    await until_joined(master)
    for number in range(10):
        await sender.send(b"m%d" % number)
        assert slave.store.max_offset("T", 0) == number + 1
    replicas.kill(SLAVE)
    code, remark = await sender.code(SendMessageV2(topic="T", queue_id=0), b"late")
    assert code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert "within 3000 ms; the message is stored" in remark
    assert master.store.max_offset("T", 0) == 10, "readers do not see what may be lost"
    await eventually(lambda: master.store.confirmed.alone)
    assert master.store.max_offset("T", 0) == 11, "and they do once it is alone"
    code, remark = await sender.code(SendMessageV2(topic="T", queue_id=0), b"alone")
    assert code == ResponseCode.SLAVE_NOT_AVAILABLE
    assert "fewer than 1 slaves are in sync" in remark
    assert master.store.max_offset("T", 0) == 12
    await same_logs(master, await replicas.slave(flush_disk_type=flush))
    await until_joined(master)
    await sender.send(b"again")


@in_loop(with_replicas)
async def test_with_in_sync_replicas_3_a_send_waits_for_two_slaves(replicas: Replicas, /) -> None:
    await replicas.master(broker_role=BrokerRole.SYNC_MASTER, in_sync_replicas=3)
    confirmed = replicas.brokers[MASTER].store.confirmed
    sender = replicas.client_of(MASTER)
    await sender.create()
    send = SendMessageV2(topic="T", queue_id=0)
    assert (await sender.code(send, b"no slave"))[0] == ResponseCode.SLAVE_NOT_AVAILABLE
    one = await replicas.slave()
    await same_logs(replicas.brokers[MASTER], one)
    code, remark = await sender.code(send, b"one slave")
    assert (code, "fewer than 2 slaves" in remark) == (ResponseCode.SLAVE_NOT_AVAILABLE, True)
    two = await replicas.slave(SECOND_SLAVE)
    await eventually(lambda: not confirmed.alone)
    await sender.send(b"two slaves")
    assert [slave.store.max_offset("T", 0) for slave in (one, two)] == [3, 3]
    replicas.kill(SECOND_SLAVE)
    assert (await sender.code(send, b"one again"))[0] == ResponseCode.FLUSH_SLAVE_TIMEOUT


@pytest.mark.parametrize("after_flush", [False, True])
@in_loop(with_replicas)
async def test_a_slave_acknowledges_what_it_has_written_or_what_is_on_its_disk(
    replicas: Replicas, /, after_flush: bool
) -> None:
    master = await replicas.master(**SYNC)
    slave = await replicas.slave(slave_ack_after_flush=after_flush)
    sender = replicas.client_of(MASTER)
    await sender.create()
    await until_joined(master)
    for number in range(3):
        await sender.send(b"%d" % number)
        assert slave.store.log.end == master.store.log.end
        assert (slave.store.durable.value == slave.store.log.end) == after_flush


@in_loop(with_replicas)
async def test_a_slave_that_was_refused_once_comes_again_before_clients_send(
    replicas: Replicas, /
) -> None:
    await replicas.master(**SYNC)
    await replicas.client_of(MASTER).create()
    await replicas.client_of(MASTER).ask(SendMessageV2(topic="T", queue_id=0), b"before")
    slave = await replicas.slave()
    await same_logs(replicas.brokers[MASTER], slave)
    await replicas.stop(MASTER)
    only_proven = {"authentication_enabled": True, "ha_allowed_peers": ""}
    await replicas.master(**SYNC, **only_proven)
    link = slave.parts.listening.replication.slave
    assert link is not None
    await until_fault(link, "the master cannot be asked before its log is copied")
    await replicas.stop(MASTER)
    master = await replicas.master(**SYNC)
    await until_joined(master, seconds=WITHOUT_SLAVE_S / 2)


async def permission(replicas: Replicas, topic: str = "T") -> int:
    """What the name server says that clients may do with a topic: 4 read, 2 write."""
    client = replicas.client_of(NAMESRV, port=9876)
    route = await client.remoting.call(client.address, GetRouteInfo(topic=topic))
    (queues,) = route.queue_datas
    return queues.perm


@in_loop(with_replicas)
async def test_a_restarted_sync_master_is_not_written_to_before_its_slave_is_in_sync(
    replicas: Replicas, /
) -> None:
    await replicas.master(**SYNC)
    await replicas.client_of(MASTER).create()
    assert await permission(replicas) == 6, "a new one has no slave that is about to come back"
    await replicas.slave()
    await until_joined(replicas.brokers[MASTER])
    await replicas.client_of(MASTER).send(b"before")
    for restart in range(3):
        await replicas.stop(MASTER)
        master = await replicas.master(**SYNC)
        assert await permission(replicas) == 4
        await replicas.client_of(MASTER).create(f"T{restart}")
        assert await permission(replicas, f"T{restart}") == 4
        await until_joined(master, seconds=0.5)
        await asyncio.sleep(0.1)
        assert await permission(replicas) == 6
        assert await permission(replicas, f"T{restart}") == 6
    replicas.kill(SLAVE)
    await replicas.stop(MASTER)
    await replicas.master(**SYNC)
    await asyncio.sleep(WITHOUT_SLAVE_S - 0.1)
    assert await permission(replicas) == 4
    await asyncio.sleep(0.2)
    assert await permission(replicas) == 6, (
        "it is better to have a message on one disk than on none"
    )


@in_loop(with_replicas)
async def test_a_slave_whose_disk_is_full_is_not_waited_for_and_goes_on_when_there_is_room(
    replicas: Replicas, /
) -> None:
    master, slave = await replicas.master(**SYNC), await replicas.slave()
    sender, disk = replicas.client_of(MASTER), replicas.simulation.disk(SLAVE)
    await sender.create()
    await until_joined(master)
    await sender.send(b"before")
    disk.fail("create", errno.ENOSPC, times=10_000)
    codes, body = set[int](), b"x" * 100_000
    while ResponseCode.SLAVE_NOT_AVAILABLE not in codes:
        end = slave.store.log.end
        code, _ = await sender.code(SendMessageV2(topic="T", queue_id=0), body)
        codes.add(code)
        assert code != ResponseCode.SUCCESS or slave.store.log.end > end
    assert ResponseCode.FLUSH_SLAVE_TIMEOUT in codes
    assert master.store.log.end > slave.store.log.end
    disk.clear_faults()
    await until_joined(master)
    await sender.send(b"after")
    await same_logs(master, slave)


@in_loop(with_replicas)
async def test_a_slave_that_never_reads_holds_little_and_counts_for_nothing(
    replicas: Replicas, /
) -> None:
    master = await replicas.master(**SYNC)
    slave = await replicas.slave()
    sender = replicas.client_of(MASTER)
    await sender.create()
    await until_joined(master)
    await sender.send(b"before")
    _, writer = await asyncio.open_connection(MASTER, 10912, limit=1)
    writer.write(REPORT.pack(1))
    assert master.parts.listening.replication.master is not None
    slaves = master.parts.listening.replication.master.slaves
    await eventually(lambda: len(slaves) == 2 and slaves[1].connection.acked == 1)
    for _ in range(60):
        await sender.send(b"x" * 100_000)
    assert slaves[1].connection.next is not None
    assert slaves[1].connection.next < master.store.log.end - UNSENT_MAX
    assert slaves[1].unsent <= UNSENT_MAX + TURN_SIZE + TRANSFER_HEAD.size
    replicas.kill(SLAVE)
    code, _ = await sender.code(SendMessageV2(topic="T", queue_id=0), b"the other has it not")
    assert code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    await eventually(lambda: not slaves)
    writer.close()
    slave = await replicas.slave()
    await same_logs(master, slave)


@in_loop(with_replicas)
async def test_a_slave_ahead_of_its_master_is_refused_in_words_and_keeps_its_log(
    replicas: Replicas, /, caplog: pytest.LogCaptureFixture
) -> None:
    master = await replicas.master()
    slave = await replicas.slave()
    sender = replicas.client_of(MASTER)
    await sender.create()
    await sender.send(b"lost by the master")
    await same_logs(master, slave)
    end = slave.store.log.end
    replicas.kill(MASTER)
    master = await replicas.master(store_path_root_dir="/older")
    await eventually(is_logged, caplog, "was restored from an older copy")
    await replicas.client_of(MASTER).create()
    await replicas.client_of(MASTER).send(b"another, and longer than what was lost by the master")
    await eventually(lambda: slave.parts.listening.replication.slave.fault is not None)
    assert (slave.store.log.end, slave.store.max_offset("T", 0)) == (end, 1)


@in_loop(with_replicas)
async def test_an_old_master_with_messages_that_the_new_one_has_not_is_refused_in_words(
    replicas: Replicas, /
) -> None:
    await replicas.master()
    slave = await replicas.slave()
    old = replicas.client_of(MASTER)
    await old.create()
    await old.send(b"both have it")
    await until_stored(slave, "T", 1)
    await replicas.stop(SLAVE)
    await old.send(b"a: the old one alone")
    replicas.kill(MASTER)
    await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER)
    new = replicas.client_of(SLAVE)
    for number in range(2):  # so its log is the longer one, and goes on where that of the old ends
        await new.send(b"%d: the new one alone" % number)
    rejoined = await replicas.broker(MASTER, BrokerRole.SLAVE, broker_id=1)
    link = rejoined.parts.listening.replication.slave
    assert link is not None
    await eventually(lambda: link.fault is not None)
    assert "another log" in str(link.fault)
    assert rejoined.store.max_offset("T", 0) == 2
    replicas.kill(SLAVE)
    await eventually(lambda: "another log" not in str(link.fault))
    assert "another log" in str(link.refusal), "a promotion asks for it when the master is gone"
    assert link.copied_until is None


async def fails_once(
    asks: Any, error: TurbopumpError, failed: asyncio.Event, shakes_hands: bool, by_tls: bool
) -> int | None:
    if failed.is_set():
        return await asks(shakes_hands, by_tls)
    failed.set()
    raise error


@pytest.mark.parametrize("error", [ProtocolError("no answer of a broker"), ReadsRefusedError()])
@in_loop(with_replicas)
async def test_a_slave_that_cannot_find_out_what_its_master_has_tries_again(
    replicas: Replicas, /, error: TurbopumpError
) -> None:
    await replicas.master()
    slave = await replicas.slave()
    link = slave.parts.listening.replication.slave
    assert link is not None
    await eventually(lambda: link.accepted)
    asks, failed = link.begin_at, asyncio.Event()

    link.begin_at = partial(fails_once, asks, error, failed)
    replicas.kill(MASTER)
    await replicas.master()
    await failed.wait()
    await eventually(lambda: link.accepted)


@in_loop(with_replicas)
async def test_a_slave_is_made_the_master_by_its_role_and_takes_messages(
    replicas: Replicas, /
) -> None:
    await replicas.master(**SYNC)
    await replicas.slave()
    sender = replicas.client_of(MASTER)
    await sender.create()
    await until_joined(replicas.brokers[MASTER])
    await sender.send(b"kept")
    replicas.kill(MASTER)
    await replicas.stop(SLAVE)
    await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER)
    client = replicas.client_of(SLAVE)
    await client.create()
    await client.send(b"new")
    assert await client.all_bodies() == [b"kept", b"new"]


@in_loop(with_replicas)
async def test_a_killed_master_comes_back_as_a_slave_and_is_made_the_master_again(
    replicas: Replicas, /
) -> None:
    await replicas.master(**SYNC)
    await replicas.slave()
    await replicas.client_of(MASTER).create()
    await acknowledged(replicas, MASTER, b"by the first")
    replicas.kill(MASTER)
    await replicas.stop(SLAVE)
    await replicas.broker(SLAVE, BrokerRole.SYNC_MASTER, in_sync_replicas=2)
    await replicas.broker(MASTER, BrokerRole.SLAVE, broker_id=1)
    await acknowledged(replicas, SLAVE, b"by the second")
    replicas.kill(SLAVE)
    await replicas.stop(MASTER)
    master = await replicas.master(**SYNC)
    slave = await replicas.slave()
    await acknowledged(replicas, MASTER, b"by the first again")
    await same_logs(master, slave)
    wanted = {b"by the first", b"by the second", b"by the first again"}
    assert wanted == set(await replicas.client_of(SLAVE).all_bodies())


@in_loop(with_replicas)
async def test_what_a_master_lost_with_its_power_is_on_its_slave_which_is_made_the_master(
    replicas: Replicas, /, caplog: pytest.LogCaptureFixture
) -> None:
    await replicas.master(**SYNC)
    await replicas.slave()
    await replicas.client_of(MASTER).create()
    await acknowledged(replicas, MASTER, b"not on the disk of the master")
    replicas.kill(MASTER, power_cut=True)
    master = await replicas.master(**SYNC)
    assert master.store.max_offset("T", 0) == 0
    await eventually(is_logged, caplog, "or lost its tail")
    replicas.kill(MASTER)
    await replicas.stop(SLAVE)
    await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER)
    assert await replicas.client_of(SLAVE).all_bodies() == [b"not on the disk of the master"]


async def acknowledged(replicas: Replicas, host: str, body: bytes) -> None:
    """Send when there is a slave that is waited for."""
    client = replicas.client_of(host)
    await until_joined(replicas.brokers[host])
    await client.send(body)


@in_loop(with_replicas)
async def test_a_sync_master_that_waits_for_nobody_says_so(
    replicas: Replicas, /, caplog: pytest.LogCaptureFixture
) -> None:
    await replicas.master(broker_role=BrokerRole.SYNC_MASTER, in_sync_replicas=1)
    assert "SYNC_MASTER with inSyncReplicas=1 waits for no slave" in caplog.text
    sender = replicas.client_of(MASTER)
    await sender.create()
    await sender.send(b"alone")


def test_a_slave_that_says_too_rarely_that_it_has_everything_is_warned_of() -> None:
    short = BrokerConfig(**SYNC, ha_max_time_slave_not_catchup=5000)
    (said,) = weak_promises(short)
    assert "=5000 is not longer than haSendHeartbeatInterval=5000" in said
    assert weak_promises(BrokerConfig(**SYNC)) == []


@pytest.mark.parametrize(
    ("settings", "warning"),
    [
        ({"enable_remote_escape": True}, "enableRemoteEscape has no effect"),
        ({"enable_slave_acting_master": True}, "this slave delivers nothing"),
        (
            {"enable_slave_acting_master": True, "enable_remote_escape": True, "namesrv_addr": ""},
            "without namesrvAddr",
        ),
    ],
)
def test_a_slave_that_cannot_deliver_while_its_master_is_away_is_warned_of(
    settings: dict[str, Any], warning: str
) -> None:
    slave = {"broker_role": BrokerRole.SLAVE, "broker_id": 1, "namesrv_addr": "10.0.0.9:9876"}
    acts = {"enable_slave_acting_master": True, "enable_remote_escape": True}
    assert weak_promises(BrokerConfig(**slave, **acts)) == []
    said = weak_promises(BrokerConfig(**{**slave, "ha_master_address": "10.0.1.1:1", **settings}))
    assert warning in "\n".join(said)


def test_a_slave_copies_on_the_loop_that_servers_run_on(tmp_path: Path) -> None:
    with asyncio.Runner(loop_factory=loop_factory()) as runner:
        runner.run(copies(tmp_path))


async def copies(directory: Path) -> None:
    """A master and a slave on real sockets."""
    async with talking(directory / "master") as talk:
        settings = {"broker_role": BrokerRole.SLAVE, "broker_id": 1}
        ha = {"ha_master_address": talk.broker.parts.listening.ha_address}
        async with talking(directory / "slave", **settings, **ha) as other:
            await talk.client.create()
            await talk.client.send(b"one")
            async with asyncio.timeout(60):
                while other.broker.store.max_offset("T", 0) < 1:
                    await asyncio.sleep(0.01)
