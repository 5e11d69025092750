"""Mixed pairs: our slave of Apache's master, Apache's slave of ours, each then made the master by
hand. Names are Apache's settings; both ends have the usual ones."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.interop.broker_pairs import (
    SEGMENT,
    TOPIC,
    apache_slave,
    client_of,
    eventually,
    has,
    our_broker,
)
from tests.interop.our_servers import turbopump
from tests.interop.patient_apache import patient_apache
from tests.loops import in_loop
from tests.unit.broker.talking import Client
from tests.unit.remoting.certificates import Pair

from turbopump.protocol.requests.offsets import (
    OffsetReply,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.send import SendMessageV2

VERSIONS = pytest.mark.parametrize("version", ["5.3.3", "4.9.7"])
COUNT = 40
BODY = b"x" * 60_000


async def send_some(client: Client, first: int) -> None:
    """Messages of 60 KB with their numbers."""
    for number in range(first, first + COUNT):
        await client.send(b"%d " % number + BODY, topic=TOPIC)


async def has_offset(client: Client, offset: int) -> bool:
    asked = QueryConsumerOffset(consumer_group="g", topic=TOPIC, queue_id=0)
    answer = await client.ask(asked)
    return answer.code == 0 and answer.header(OffsetReply).offset == offset


async def numbers(client: Client) -> list[int]:
    return [int(body.split()[0]) for body in await client.all_bodies(TOPIC)]


async def commit(client: Client, offset: int) -> None:
    await client.join("c1")
    code, remark = await client.code(
        UpdateConsumerOffset(consumer_group="g", topic=TOPIC, queue_id=0, commit_offset=offset)
    )
    assert code == 0, remark


def same_files(one: Path, other: Path) -> bool:
    """Whether two logs have the same bytes, as far as the shorter row of files goes."""
    files = sorted(path.name for path in (one / "commitlog").iterdir() if path.name.isdigit())
    others = {path.name for path in (other / "commitlog").iterdir() if path.name.isdigit()}
    shared = [name for name in files if name in others]
    assert shared
    return all(
        (one / "commitlog" / name).read_bytes() == (other / "commitlog" / name).read_bytes()
        for name in shared[:-1]  # of the last one only a part is written
    )


async def is_refused_by_apache(ours: Any) -> bool:
    return "has another log: at offset" in (ours / "broker.log").read_text()


@VERSIONS
@in_loop
async def test_our_slave_of_apache_s_master_has_its_log_and_offsets_and_becomes_the_master(
    tmp_path: Path, version: str
) -> None:
    with patient_apache(
        version, tmp_path / "apache", mappedFileSizeCommitLog=SEGMENT * 4
    ) as apache:
        async with client_of(apache.broker) as master:
            await master.create(TOPIC)
            await send_some(master, 0)
            await send_some(master, COUNT)  # more than a file
            ours = tmp_path / "ours"
            with our_broker(ours, apache.namesrv, brokerRole="SLAVE", brokerId=1) as address:
                async with client_of(address) as slave:
                    await eventually("the first ones", partial(has, slave, 2 * COUNT))
            # it comes back with a log, which is compared
            with our_broker(ours, apache.namesrv, brokerRole="SLAVE", brokerId=1) as address:
                async with client_of(address) as slave:
                    await send_some(master, 2 * COUNT)
                    await commit(master, 7)
                    await eventually("the messages", partial(has, slave, 3 * COUNT))
                    await eventually("the offset", partial(has_offset, slave, 7))
                    assert await numbers(slave) == await numbers(master)
                apache.kill_broker()
            assert same_files(ours / "store", apache.store)
        assert "has the same messages" in (ours / "broker.log").read_text()
        with our_broker(ours, apache.namesrv) as address:
            async with client_of(address) as promoted:
                assert await has_offset(promoted, 7)
                await promoted.send(b"%d " % (3 * COUNT), topic=TOPIC)
                found = await numbers(promoted)
        assert found == list(range(3 * COUNT + 1))
        apache.start_broker()
        async with client_of(apache.broker) as master:
            await eventually("Apache's broker", partial(has, master, 3 * COUNT))
            await master.send(b"another one, and a longer one", topic=TOPIC)
            await master.send(b"so that its log goes on to where ours ends", topic=TOPIC)
        with our_broker(ours, apache.namesrv, brokerRole="SLAVE", brokerId=1):
            await eventually("the refusal", partial(is_refused_by_apache, ours))


async def is_acknowledged(in_sync: SendMessageV2, master: Any) -> bool:
    return (await master.code(in_sync, b"probe"))[0] == 0


@VERSIONS
@in_loop
async def test_apache_s_slave_of_our_sync_master_has_its_log_and_offsets_and_becomes_the_master(
    tmp_path: Path, version: str
) -> None:
    logs = ["--log-file", str(tmp_path / "namesrv.log")]
    names_of = turbopump(["namesrv", "--port", "0", *logs], r"ready namesrv=(\S+)", tmp_path)
    with names_of as (names,), apache_slave(version, tmp_path / "apache", names) as apache:
        ours, pair = tmp_path / "ours", Pair(tmp_path)
        # with a certificate a first byte is awaited there, which Apache's slave sends after 5 s
        tls = {"tls.server.certPath": pair.certificate, "tls.server.keyPath": pair.key}
        with our_broker(ours, names, brokerRole="SYNC_MASTER", **tls) as address:
            async with client_of(address) as master, client_of(apache.broker) as slave:
                await master.create(TOPIC)
                in_sync = SendMessageV2(topic="probe", queue_id=0, default_topic="TBW102")

                await eventually(
                    "a send that the slave has", partial(is_acknowledged, in_sync, master)
                )
                await send_some(master, 0)
                await commit(master, 7)
                await eventually("the messages", partial(has, slave, COUNT))
                await eventually("the offset", partial(has_offset, slave, 7))
        apache.stop_broker()
        assert same_files(apache.store, ours / "store")
        apache.broker_config.update(brokerRole="ASYNC_MASTER", brokerId=0)
        apache.write_configuration()
        apache.start_broker(wait=False)
        async with client_of(apache.broker) as promoted:
            await eventually("Apache's broker", partial(has, promoted, COUNT))
            assert await has_offset(promoted, 7)
            await promoted.send(b"%d " % COUNT, topic=TOPIC)
            assert await numbers(promoted) == list(range(COUNT + 1))


async def is_refused(ours: Any) -> bool:
    text = (ours / "broker.log").read_text()
    return "is Apache's, which speaks no TLS there: name 127.0.0.1 in" in text


@VERSIONS
@in_loop
async def test_our_slave_with_tls_speaks_plain_text_to_apache_s_master_that_it_names(
    tmp_path: Path, version: str
) -> None:
    slave: dict[str, str | int | bool] = {"brokerRole": "SLAVE", "brokerId": 1}
    # Apache's main port has TLS, with a certificate that is built in
    slave |= {"tls.enable": True, "tls.client.authServer": False}
    ours = tmp_path / "ours"
    log, address = {"mappedFileSizeCommitLog": SEGMENT * 4}, {"brokerIP2": "127.0.0.1"}
    with patient_apache(version, tmp_path / "apache", **log, **address) as apache:
        async with client_of(apache.broker) as master:
            await master.create(TOPIC)
            await send_some(master, 0)

            with our_broker(ours, apache.namesrv, **slave):
                await eventually("the line in the log", partial(is_refused, ours))
            slave["haAllowedPeers"] = "127.0.0.1"
            with our_broker(ours, apache.namesrv, **slave) as address:
                async with client_of(address) as copy:
                    await eventually("the messages", partial(has, copy, COUNT))


@pytest.mark.parametrize(("version", "code"), [("4.9.7", 11), ("5.3.3", 0)])
@in_loop
async def test_a_sync_master_alone_and_without_in_sync_replicas_answers_as_apache_4_s(
    tmp_path: Path, version: str, code: int
) -> None:
    send = SendMessageV2(topic=TOPIC, queue_id=0)
    with patient_apache(version, tmp_path / "apache", brokerRole="SYNC_MASTER") as apache:
        async with client_of(apache.broker) as client:
            await client.create(TOPIC)
            assert (await client.code(send, b"alone"))[0] == code
            await eventually("the message, which is stored", partial(has, client, 1))
            ours = our_broker(
                tmp_path / "ours", apache.namesrv, brokerName="ours", brokerRole="SYNC_MASTER"
            )
            with ours as address:
                async with client_of(address) as other:
                    await other.create(TOPIC)
                    assert (await other.code(send, b"alone"))[0] == 11
                    assert await has(other, 1)
