"""What is damaged in a log is fetched again from a copy: at a master and at a slave, found by a
reader, by a start and by the scrub. In virtual time."""

import asyncio
from pathlib import Path
from zlib import crc32

import pytest
from tests.loops import in_loop
from tests.unit.broker.replicas import (
    MASTER,
    SLAVE,
    Replicas,
    eventually,
    same_logs,
    until_mended,
    until_topic,
    with_replicas,
)
from tests.unit.broker.talking import Client

from turbopump.broker.broker import Broker
from turbopump.broker.log_repair import AGAIN_S, Range
from turbopump.config.broker_config import FlushDiskType
from turbopump.message.codec import entry_fault
from turbopump.message.entry import CRC_SUFFIX_SIZE
from turbopump.protocol.requests.pull import ViewMessageById
from turbopump.store.repair.scrub import FIRST_REST_S

COUNT = 20
SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH}
BODIES = [b"message %d" % number for number in range(COUNT)]


async def pair(replicas: Replicas) -> tuple[Broker, Broker]:
    """A master and a slave, each with COUNT messages and opened anew, so that reads check them."""
    await replicas.master(**SYNC)
    sender = replicas.client_of(MASTER)
    await sender.create()
    for body in BODIES:
        await sender.send(body)
    slave = await replicas.slave(**SYNC)
    await same_logs(replicas.brokers[MASTER], slave)
    await until_topic(slave, "T")
    for host in (SLAVE, MASTER):
        await replicas.stop(host)
    return await replicas.master(**SYNC), await replicas.slave(**SYNC)


def unit(broker: Broker, number: int) -> tuple[int, int]:
    """Where in the log a message is, and its size."""
    queue = broker.store.queue("T", 0)
    assert queue is not None
    found = queue.unit(number)
    assert found is not None
    return found[:2]


def harm(broker: Broker, number: int, at: int = -30) -> None:
    """Flip a bit of a message."""
    offset, size = unit(broker, number)
    log_file = broker.store.log.files.at(offset)
    assert log_file is not None
    log_file.buffer[offset - log_file.start + at % size] ^= 1


def forge(broker: Broker, number: int, at: int, value: bytes) -> None:
    """Change bytes of a message, and its CRC with them."""
    offset, size = unit(broker, number)
    log_file = broker.store.log.files.at(offset)
    assert log_file is not None
    begin, end = offset - log_file.start, offset - log_file.start + size
    entry = bytearray(log_file.buffer[begin:end])
    entry[at : at + len(value)] = value
    crc = b"%010d" % (crc32(entry[:-CRC_SUFFIX_SIZE]) & 0x7FFFFFFF)
    entry[-11:-1] = crc[::-1]
    assert entry_fault(bytes(entry), offset, crc_required=True) is None
    log_file.buffer[begin:end] = entry


async def bodies(client: Client) -> list[bytes]:
    """Every message that pulls give."""
    return await client.all_bodies()


@pytest.mark.parametrize(
    ("host", "at"), [(MASTER, -30), (SLAVE, 90), (SLAVE, 22)], ids=["CRC", "body", "head"]
)
@in_loop(with_replicas)
async def test_a_reader_gets_what_a_copy_has(replicas: Replicas, /, host: str, at: int) -> None:
    await pair(replicas)
    harm(replicas.brokers[host], 4, at)
    harm(replicas.brokers[host], 5, at)
    assert await bodies(replicas.client_of(host)) == BODIES
    assert replicas.brokers[host].parts.delivering.log_repair.mended == 2
    await same_logs(replicas.brokers[MASTER], replicas.brokers[SLAVE])


@pytest.mark.parametrize(
    ("at", "value", "why"),
    [
        (20, (1 << 40).to_bytes(8), "has the queue offset 1099511627776, and"),
        (20, (1 << 63).to_bytes(8), "has the queue offset 9223372036854775808, and"),
        (20, COUNT.to_bytes(8), "another log: queue offset 19 of T is at"),
        (20, (5).to_bytes(8), "another log: queue offset 5 of T is at"),
        (100, (5).to_bytes(2), "the lengths of body, topic and properties do not add up"),
        (99, b"/", "the topic of its message there has an invalid name"),
    ],
    ids=["far", "negative", "behind the end", "another's", "length of properties", "topic"],
)
@in_loop(with_replicas)
async def test_what_cannot_be_there_is_not_written_though_its_crc_fits(
    replicas: Replicas, /, caplog: pytest.LogCaptureFixture, at: int, value: bytes, why: str
) -> None:
    master, slave = await pair(replicas)
    forge(slave, 15, at, value)
    harm(master, 15)
    assert await bodies(replicas.client_of(MASTER)) == [*BODIES[:15], *BODIES[16:]]
    assert master.parts.delivering.log_repair.mended == 0
    assert why in caplog.text


@in_loop(with_replicas)
async def test_what_both_have_damaged_is_passed_over_and_said(
    replicas: Replicas, /, caplog: pytest.LogCaptureFixture
) -> None:
    for broker in await pair(replicas):
        harm(broker, 4)
    assert await bodies(replicas.client_of(MASTER)) == [*BODIES[:4], *BODIES[5:]]
    assert "cannot be fetched again start=" in caplog.text
    assert "its CRC (property __CRC32#) does not fit its bytes" in caplog.text


@in_loop(with_replicas)
async def test_without_a_copy_a_damaged_message_is_passed_over_as_ever(
    replicas: Replicas, /
) -> None:
    master, _ = await pair(replicas)
    replicas.kill(SLAVE)
    harm(master, 4)
    assert await bodies(replicas.client_of(MASTER)) == [*BODIES[:4], *BODIES[5:]]


@in_loop(with_replicas)
async def test_a_query_by_offset_has_it_fetched(replicas: Replicas, /) -> None:
    master, _ = await pair(replicas)
    harm(master, 7)
    client = replicas.client_of(MASTER)
    offset, _ = unit(master, 7)
    assert (await client.code(ViewMessageById(offset=offset)))[0] != 0
    await until_mended(master, 1)
    assert (await client.code(ViewMessageById(offset=offset)))[0] == 0


@in_loop(with_replicas)
async def test_the_scrub_has_it_fetched(replicas: Replicas, /) -> None:
    master, slave = await pair(replicas)
    for number in range(3, 6):
        harm(slave, number)
    await asyncio.sleep(FIRST_REST_S + 5)
    await until_mended(slave, 3)
    await same_logs(master, slave)


@in_loop(with_replicas)
async def test_a_start_that_finds_damage_has_it_fetched_and_its_unit_written(
    replicas: Replicas, /
) -> None:
    offset, size = unit((await pair(replicas))[1], 4)
    replicas.kill(SLAVE)
    disk = replicas.simulation.disk(SLAVE).mount()
    segment = disk.open_segment(Path("/store/commitlog") / f"{0:020d}")
    segment.buffer[offset + size - 30] ^= 1
    segment.sync()
    replicas.simulation.disk(SLAVE).kill()
    again = await replicas.slave(**SYNC)
    assert again.store.recovery is not None
    assert len(again.store.recovery.damages) == 1
    await until_mended(again, 1)
    await eventually(lambda: unit(again, 4) == (offset, size))
    assert await bodies(replicas.client_of(SLAVE)) == BODIES
    await same_logs(replicas.brokers[MASTER], replicas.brokers[SLAVE])


@in_loop(with_replicas)
async def test_a_damaged_part_is_fetched_when_the_other_broker_is_there_again(
    replicas: Replicas, /
) -> None:
    _, slave = await pair(replicas)
    offset, size = unit(slave, 3)
    harm(slave, 3)
    await replicas.stop(MASTER)
    repair = slave.parts.delivering.log_repair
    assert repair.fetch([Range(offset, offset + size)])
    await replicas.master(**SYNC)
    assert repair.open_from == offset
    began = replicas.simulation.loop.time()
    await until_mended(slave, 1)
    assert replicas.simulation.loop.time() - began < AGAIN_S / 4
    assert repair.open_from is None
