"""kill -9 of a SYNC_MASTER under load, then its slave is made the master by hand: nothing that was
acknowledged is lost, and nothing that was read is gone."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from tests.crash.broker_process import BrokerProcess
from tests.crash.replica_pair import BOTH, MASTER, PATIENCE_S, SLAVE, all_bodies, in_sync
from tests.unit.broker.talking import Client

from turbopump.errors import TurbopumpError
from turbopump.message.codec import decode_entries
from turbopump.protocol.requests.send import SendMessageV2

OUTSTANDING = 16
NEW = [b"%d" % number for number in range(500)]


class Seen:
    """What was acknowledged to senders, and what a reader has read."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.acknowledged: set[bytes] = set()
        self.read: set[bytes] = set()

    async def send(self, sender: int) -> None:
        """Until the broker is gone."""
        number = 0
        with suppress(TurbopumpError):
            while True:
                body = b"%d of %d" % (number, sender)
                number += 1
                answer = await self._client.ask(SendMessageV2(topic="T", queue_id=0), body)
                if answer.code == 0:
                    self.acknowledged.add(body)

    async def follow(self) -> None:
        """Read at the end of the queue, until the broker is gone."""
        offset = 0
        with suppress(TurbopumpError):
            while True:
                answer, header = await self._client.pull(offset, suspend_ms=1000)
                self.read |= {message.body for message in decode_entries(answer.body)}
                offset = header.next_begin_offset

    async def until(self, count: int) -> None:
        """Until so many are acknowledged."""
        async with asyncio.timeout(PATIENCE_S):
            while len(self.acknowledged) < count:
                await asyncio.sleep(0.01)


async def killed(home: Path, rng: random.Random) -> tuple[Seen, set[bytes]]:
    """What was seen of a master that was killed, and what its slave has as the master."""
    async with BrokerProcess(home / "m", home / "m-store", MASTER) as master:
        await master.start()
        await master.create_topic("T", 1)
        names = master.namesrv
        async with BrokerProcess(home / "s", home / "s-store", SLAVE, namesrv=names) as slave:
            await slave.start()
            client = Client(master.address)
            await in_sync(client)
            seen = Seen(client)
            work = [asyncio.create_task(seen.send(number)) for number in range(OUTSTANDING)]
            work.append(asyncio.create_task(seen.follow()))
            await seen.until(rng.randrange(200, 1500))
            await master.kill()
            await asyncio.gather(*work)
            await client.close()
            await slave.stop()
        async with BrokerProcess(home / "p", home / "s-store", BOTH, namesrv=names) as promoted:
            await promoted.start()
            reader = Client(promoted.address)
            try:
                return seen, await all_bodies(reader)
            finally:
                await reader.close()


def test_nothing_acknowledged_or_read_is_lost_with_the_master(
    tmp_path: Path, rng: random.Random, full: bool, measured: Callable[[str], None]
) -> None:
    kills, acknowledged = (50 if full else 1), 0
    for number in range(kills):
        seen, kept = asyncio.run(killed(tmp_path / str(number), rng))
        assert seen.acknowledged <= kept
        assert seen.read <= kept
        acknowledged += len(seen.acknowledged)
    measured(
        f"{kills} kills of a SYNC_MASTER, its slave made the master: {acknowledged} acknowledged, "
        "0 lost, 0 read and gone"
    )


async def killed_with_a_new_topic(home: Path) -> tuple[int, set[bytes], set[bytes]]:
    """How many of 500 sends to a topic that they made were acknowledged; what the slave gives of it
    when the master is killed at once, and what it gives as the master."""
    async with BrokerProcess(home / "m", home / "m-store", MASTER) as master:
        await master.start()
        await master.create_topic("T", 1)
        names = master.namesrv
        async with BrokerProcess(home / "s", home / "s-store", SLAVE, namesrv=names) as slave:
            await slave.start()
            client, reader = Client(master.address), Client(slave.address)
            await in_sync(client)
            sends = (
                client.ask(SendMessageV2(topic="new", queue_id=0, default_topic="TBW102"), body)
                for body in NEW
            )
            answers = await asyncio.gather(*sends)
            await master.kill()
            try:
                served = await all_bodies(reader, "new")
            finally:
                await asyncio.gather(client.close(), reader.close())
            await slave.stop()
        async with BrokerProcess(home / "p", home / "s-store", BOTH, namesrv=names) as promoted:
            await promoted.start()
            reader = Client(promoted.address)
            try:
                kept = await all_bodies(reader, "new")
            finally:
                await reader.close()
    return sum(answer.code == 0 for answer in answers), served, kept


def test_a_slave_serves_a_topic_that_was_made_just_before_its_master_was_killed(
    tmp_path: Path, full: bool, measured: Callable[[str], None]
) -> None:
    kills = 20 if full else 1
    for number in range(kills):
        acknowledged, served, kept = asyncio.run(killed_with_a_new_topic(tmp_path / str(number)))
        assert acknowledged == len(NEW)
        assert served == kept == set(NEW)
    measured(f"{kills} kills after 500 sends to a new topic: the slave served all of them at once")
