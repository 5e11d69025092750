"""A master that was away and comes back as a slave, with messages of its own: it is a copy or it is
refused, and it counts for nothing before that is known."""

import asyncio
import random
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.unit.broker.replicas import (
    MASTER,
    SLAVE,
    SYNC,
    Replicas,
    eventually,
    log_of,
    same_logs,
    until_fault,
    until_joined,
    until_same_end,
    with_replicas,
)

from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerRole, FlushDiskType
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.replication import (
    NOT_PROVED,
    PROVED,
    ExchangeHAInfo,
    GetBrokerHaStatus,
    HARuntimeInfo,
)
from turbopump.protocol.requests.send import SendMessageReply, SendMessageV2
from turbopump.replication.stream import REPORT, TRANSFER_HEAD
from turbopump.store.files import StorePaths


async def ha_status(replicas: Replicas, host: str) -> HARuntimeInfo:
    client = replicas.client_of(host)
    return await client.remoting.call(client.address, GetBrokerHaStatus())


async def fault(replicas: Replicas, host: str) -> str:
    """Why a slave does not copy, as `cluster ha` says it."""
    client = (await ha_status(replicas, host)).ha_client_runtime_info
    assert client is not None
    return client.fault or ""


async def parted(replicas: Replicas, old: list[bytes], new: list[bytes]) -> tuple[Broker, Broker]:
    """A master has ``old`` alone after some that its slave has; the slave is made the master and
    gets ``new``. Both, the old one as a slave."""
    await replicas.master()
    slave = await replicas.slave()
    client = replicas.client_of(MASTER)
    await client.create()
    for number in range(20):
        await client.send(b"both %d" % number)
    await same_logs(replicas.brokers[MASTER], slave)
    await replicas.stop(SLAVE)
    for body in old:
        await client.send(body)
    replicas.kill(MASTER)
    promoted = await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER)
    client = replicas.client_of(SLAVE)
    for body in new:
        await client.send(body)
    return promoted, await replicas.broker(MASTER, BrokerRole.SLAVE, broker_id=1)


@pytest.mark.parametrize("seed", range(4))
@in_loop(with_replicas)
async def test_a_log_that_ends_where_a_message_of_the_new_master_ends_is_not_its_beginning(
    replicas: Replicas, /, seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    rng = random.Random(seed)
    sizes = [rng.randrange(1, 3000) for _ in range(50)]
    old = [b"o" * size for size in sizes]
    rng.shuffle(sizes)  # other messages, and the last one ends at the same offset
    new = [b"n" * size for size in [*sizes, 100, 200, 300]]
    promoted, back = await parted(replicas, old, new)
    kept = log_of(back.store)
    assert promoted.store.log.end > back.store.log.end
    await until_fault(back.parts.listening.replication.slave, "another log")
    same = next(
        at
        for at, (one, other) in enumerate(zip(kept, log_of(promoted.store), strict=False))
        if one != other
    )
    assert f"from offset {same} on" in await fault(replicas, MASTER)
    assert "turbopump store dump" in await fault(replicas, MASTER)
    assert f"the slave has another log: its bytes from offset {same}" in caplog.text
    assert f"another log: its bytes from offset {same} on differ from those here" in caplog.text
    await asyncio.sleep(60)
    assert log_of(back.store) == kept, "nothing is copied on top, and nothing is cut"
    assert sum("the slave does not copy" in one for one in caplog.messages) == 1
    status = await ha_status(replicas, SLAVE)
    assert (status.in_sync_slave_nums, [one.in_sync for one in status.ha_connection_info]) in (
        (0, []),
        (0, [False]),
    )


@in_loop(with_replicas)
async def test_an_old_master_whose_slave_had_everything_is_its_copy_at_once(
    replicas: Replicas, /
) -> None:
    promoted, back = await parted(replicas, [], [b"x" * 1000] * 50)
    await same_logs(promoted, back)
    status = await ha_status(replicas, SLAVE)
    assert [one.proof for one in status.ha_connection_info] == [PROVED]


@in_loop(with_replicas)
async def test_a_refused_slave_that_is_emptied_copies_everything(replicas: Replicas, /) -> None:
    promoted, back = await parted(replicas, [b"old"], [b"new", b"new"])
    await until_fault(back.parts.listening.replication.slave, "another log")
    await replicas.stop(MASTER)
    back = await replicas.broker(
        MASTER, BrokerRole.SLAVE, broker_id=1, store_path_root_dir="/emptied"
    )
    await same_logs(promoted, back)


@in_loop(with_replicas)
async def test_logs_of_which_no_history_is_kept_are_compared_from_their_begin(
    replicas: Replicas, /
) -> None:
    disks = [replicas.simulation.disk(host) for host in (MASTER, SLAVE)]
    master = await replicas.master()
    client = replicas.client_of(MASTER)
    await client.create()
    slave = await replicas.slave()
    for number in range(60):
        await client.send(b"%d" % number * 10_000)
    await same_logs(master, slave)
    assert len(master.store.log.files.files) > 1
    for host in (MASTER, SLAVE):
        await replicas.stop(host)
    for disk in disks:
        mount = disk.mount()
        mount.remove(StorePaths(Path("/store")).history)
        mount.close()
    master = await replicas.master()
    await replicas.client_of(MASTER).send(b"more")
    await same_logs(master, await replicas.slave())


@in_loop(with_replicas)
async def test_a_slave_that_copied_before_it_could_prove_anything_proves_it_then(
    replicas: Replicas, /
) -> None:
    given = {"ha_master_address": f"{SLAVE}:10912"}
    await replicas.master()
    await replicas.slave()
    client = replicas.client_of(MASTER)
    await client.create()
    await client.send(b"both have it")
    await same_logs(replicas.brokers[MASTER], replicas.brokers[SLAVE])
    await replicas.stop(SLAVE)
    await client.send(b"old" * 10)
    replicas.kill(MASTER)
    promoted = await replicas.broker(SLAVE, BrokerRole.ASYNC_MASTER)
    await replicas.client_of(SLAVE).send(b"new" * 10)
    await replicas.client_of(SLAVE).send(b"new, too")
    back = await replicas.broker(MASTER, BrokerRole.SLAVE, broker_id=1, namesrv_addr="", **given)
    link = back.parts.listening.replication.slave
    assert link is not None
    await same_length(promoted, back)
    assert log_of(promoted.store) != log_of(back.store)
    shown = (await ha_status(replicas, SLAVE)).ha_connection_info
    assert [one.proof for one in shown] == [NOT_PROVED], "nobody says that they are the same"
    told = ExchangeHAInfo(
        master_address=promoted.address, master_ha_address=promoted.parts.listening.ha_address
    )
    assert await replicas.client_of(MASTER).code(told) == (0, "")
    await until_fault(link, "another log")


async def same_length(one: Broker, other: Broker) -> None:
    await until_same_end(one, other)


async def raw_slave(end: int, *, sent: asyncio.Event) -> asyncio.StreamWriter:
    """Something connects as Apache's slave: it says where its log ends, and takes what it is sent
    for its own."""
    reader, writer = await asyncio.open_connection(MASTER, 10912)
    writer.write(REPORT.pack(end))

    async def acknowledge() -> None:
        while True:
            offset, size = TRANSFER_HEAD.unpack(await reader.readexactly(TRANSFER_HEAD.size))
            await reader.readexactly(size)
            writer.write(REPORT.pack(offset + size))
            sent.set()

    task = asyncio.create_task(acknowledge())
    task.add_done_callback(lambda done: done.cancelled() or done.exception())
    return writer


@pytest.mark.parametrize("had_a_slave", [False, True])
@pytest.mark.parametrize("flush", FlushDiskType)
@in_loop(with_replicas)
async def test_sends_under_way_are_not_acknowledged_by_what_a_slave_says_first(
    replicas: Replicas, /, flush: FlushDiskType, had_a_slave: bool
) -> None:
    master = await replicas.master(**SYNC, flush_disk_type=flush)
    client = replicas.client_of(MASTER)
    await client.create()
    if had_a_slave:  # so that sends wait for one
        await replicas.slave(flush_disk_type=flush)
        await until_joined(master)
        replicas.kill(SLAVE)
    request = SendMessageV2(topic="T", queue_id=0)
    sends = [asyncio.create_task(client.ask(request, b"x" * 100 * n)) for n in range(200)]
    await eventually(lambda: master.store.queues.units > 50)
    sent, count = asyncio.Event(), master.store.queues.units
    writer = await raw_slave(master.store.log.end, sent=sent)  # it has no byte of that
    answers = await asyncio.gather(*sends)
    for answer in answers:
        if answer.code == ResponseCode.SUCCESS:
            assert answer.header(SendMessageReply).queue_offset >= count
    async with asyncio.timeout(30):  # one that is gone counts as in sync for 15 s
        while (await client.code(request, b"sent to it"))[0]:
            sent.clear()
            await sent.wait()
    status = await ha_status(replicas, MASTER)
    assert [(one.proof, one.in_sync) for one in status.ha_connection_info] == [(NOT_PROVED, True)]
    writer.close()


@pytest.mark.parametrize("cut", range(1, 8))
@in_loop(with_replicas)
async def test_a_first_report_that_comes_in_two_pieces_is_no_proof(
    replicas: Replicas, /, cut: int
) -> None:
    await replicas.master()
    client = replicas.client_of(MASTER)
    await client.create()
    await client.send(b"x" * 0x1000)
    master = replicas.brokers[MASTER]
    report = REPORT.pack(0xFF)  # the byte that a proof begins with
    reader, writer = await asyncio.open_connection(MASTER, 10912)
    writer.write(report[:cut])
    await asyncio.sleep(0.1)
    writer.write(report[cut:])
    offset, size = TRANSFER_HEAD.unpack(await reader.readexactly(TRANSFER_HEAD.size))
    assert (offset, offset + size) == (0xFF, master.store.log.end)
    writer.close()
