"""Mixed pairs whose master is away: our slave of Apache's master, and Apache's slave of ours. Each
delivers a delayed message to another master, and the master that comes back does not do it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

from tests.interop.apache import properties_text
from tests.interop.broker_pairs import TOPIC, apache_slave, client_of, eventually, has, our_broker
from tests.interop.our_servers import turbopump
from tests.loops import in_loop
from tests.unit.broker.talking import Client

from turbopump.message.properties import encode_properties
from turbopump.protocol.requests.offsets import GetMaxOffset, OffsetReply

PROBE = "probe"
SOON, LATE = 1, 2
ACTS: dict[str, str | int | bool] = {
    "enableSlaveActingMaster": True,
    "enableRemoteEscape": True,
    "messageDelayLevel": "15s 90s",
    "brokerNotActiveTimeoutMillis": 3000,
}
ASKS: dict[str, str | int | bool] = {"totalReplicas": 2, "brokerIP2": "127.0.0.1"}
"""Without a number of replicas Apache's master asks no slave before it starts. It waits until a
slave connects to its HA port from the host that the slave has registered."""


@contextmanager
def our_name_server(directory: Path) -> Iterator[str]:
    conf = directory / "namesrv.conf"
    conf.write_text(properties_text({"supportActingMaster": True, "listenPort": 0}))
    arguments = ["namesrv", "-c", str(conf), "--log-file", str(directory / "namesrv.log")]
    with turbopump(arguments, r"ready namesrv=(\S+)", directory) as (names,):
        yield names


@asynccontextmanager
async def other_master(directory: Path, names: str) -> AsyncIterator[Client]:
    """Another master of the cluster, with the topic."""
    with our_broker(directory, names, brokerName="broker-b", **ACTS) as address:
        async with client_of(address) as client:
            await client.create(TOPIC)
            yield client


async def send_delayed(client: Client, body: bytes, level: int) -> None:
    text = encode_properties({"UNIQ_KEY": body.decode(), "DELAY": str(level)})
    await client.send(body, topic=TOPIC, properties=text)


async def holds(client: Client, bodies: list[bytes]) -> bool:
    return await client.all_bodies(TOPIC) == bodies


async def has_both(client: Client) -> bool:
    """Whether a broker has one message at each of the two delay levels."""
    ends = []
    for queue_id in (0, 1):
        answer = await client.ask(GetMaxOffset(topic="SCHEDULE_TOPIC_XXXX", queue_id=queue_id))
        ends.append(answer.header(OffsetReply).offset if answer.code == 0 else 0)
    return ends == [1, 1]


async def has_probe(client: Client) -> bool:
    """Whether a slave copies already."""
    answer = await client.ask(GetMaxOffset(topic=PROBE, queue_id=0))
    return answer.code == 0 and answer.header(OffsetReply).offset == 1


@in_loop
async def test_our_slave_acts_for_apache_s_master_which_takes_over_when_it_is_back(
    tmp_path: Path,
) -> None:
    names_of = our_name_server(tmp_path)
    settings = {**ACTS, **ASKS, "brokerRole": "ASYNC_MASTER", "brokerId": 0}
    with names_of as names, apache_slave("5.3.3", tmp_path / "apache", names, **settings) as apache:
        async with (
            other_master(tmp_path / "other", names) as other,
            client_of(apache.broker) as master,
        ):
            await eventually("Apache's broker", partial(created, master))
            ours = our_broker(tmp_path / "ours", names, brokerRole="SLAVE", brokerId=1, **ACTS)
            with ours as address:
                async with client_of(address) as slave:
                    await send_delayed(master, b"soon", SOON)
                    await send_delayed(master, b"late", LATE)
                    await eventually("the copies", partial(has_both, slave))
                    apache.kill_broker()
                    await eventually("the delivery", partial(has, other, 1))
                    assert await holds(other, [b"soon"])
                    apache.start_broker(wait=False)
                    await eventually("the late one", partial(has, master, 1))
                    await asyncio.sleep(5)
                    assert await holds(master, [b"late"])
                    assert await holds(other, [b"soon"])
            assert "acts in its place" in (tmp_path / "ours" / "broker.log").read_text()


async def created(client: Client) -> bool:
    await client.create(TOPIC)
    return True


@in_loop
async def test_apache_s_slave_acts_for_our_master_which_takes_over_when_it_is_back(
    tmp_path: Path,
) -> None:
    with our_name_server(tmp_path) as names:
        async with other_master(tmp_path / "other", names) as other:
            ours = partial(our_broker, tmp_path / "ours", names, **ACTS)
            with apache_slave("5.3.3", tmp_path / "apache", names, **ACTS) as apache:
                async with client_of(apache.broker) as slave:
                    with ours() as address:
                        async with client_of(address) as master:
                            await master.create(TOPIC)
                            await master.create(PROBE)
                            await master.send(b"probe", topic=PROBE)
                            await eventually("a copy", partial(has_probe, slave))
                            await send_delayed(master, b"soon", SOON)
                            await send_delayed(master, b"late", LATE)
                            await eventually("the copies", partial(has_both, slave))
                    await eventually("the delivery", partial(has, other, 1))
                    assert await holds(other, [b"soon"])
                    with ours() as address:
                        async with client_of(address) as master:
                            await eventually("the late one", partial(has, master, 1))
                            await asyncio.sleep(5)
                            assert await holds(master, [b"late"])
                            assert await holds(other, [b"soon"])
