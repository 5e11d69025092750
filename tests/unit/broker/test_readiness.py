"""A broker is ready once its store, a name server and its role are there, and says what is not."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop
from tests.stand_ins import returns
from tests.unit.broker.replicas import MASTER, NAMESRV, Replicas, eventually, with_replicas
from tests.unit.broker.talking import SMALL, converse, watched

from turbopump.broker.broker import Broker
from turbopump.broker.readiness import Readiness
from turbopump.broker.recovery_progress import RecoveryProgress
from turbopump.config.broker_config import BrokerConfig, BrokerRole
from turbopump.disk.disk import Space

NO_NAME_SERVER = "no name server is given (namesrvAddr): clients cannot find this broker"


def reasons(broker: Broker) -> list[str]:
    return broker.readiness.reasons()


def is_ready(broker: Broker) -> bool:
    return not reasons(broker)


def has_reason(broker: Broker, words: str) -> bool:
    return any(words in reason for reason in reasons(broker))


@in_loop(with_replicas)
async def test_a_broker_is_ready_while_a_name_server_has_registered_it(
    replicas: Replicas, /
) -> None:
    broker = await replicas.master()
    assert reasons(broker) == []
    replicas.kill(NAMESRV)
    await eventually(has_reason, broker, "", seconds=1.0)
    assert reasons(broker) == [
        f"the broker is registered with no name server: {NAMESRV}:9876: the connection has ended"
    ]
    await eventually(has_reason, broker, f"name server: cannot connect to {NAMESRV}:9876: ")
    await replicas.name_server()
    await eventually(is_ready, broker)
    stopping = asyncio.ensure_future(replicas.stop(MASTER))
    await eventually(has_reason, broker, "", seconds=1.0)
    assert reasons(broker) == ["the broker is stopping"]
    await stopping
    assert reasons(broker) == ["the broker is stopping"]


@in_loop(with_replicas)
async def test_one_of_several_name_servers_is_enough(replicas: Replicas, /) -> None:
    broker = await replicas.master(namesrv_addr=f"10.0.0.77:9876;{NAMESRV}:9876")
    assert reasons(broker) == []


@in_loop(with_replicas)
async def test_a_slave_is_ready_once_it_knows_its_master_also_if_that_is_gone_later(
    replicas: Replicas, /
) -> None:
    slave = await replicas.slave()
    assert reasons(slave) == [
        "this slave does not know its master: no name server has had a master of "
        "brokerName=broker-a since the start"
    ]
    await replicas.master()
    await eventually(is_ready, slave)
    await replicas.stop(MASTER)
    await asyncio.sleep(60)
    assert reasons(slave) == []


@in_loop(converse)
async def test_without_a_name_server_a_broker_is_never_ready(talk: Any, /) -> None:
    assert reasons(talk.broker) == [NO_NAME_SERVER]


@in_loop(converse)
async def test_a_store_that_accepts_no_messages_is_a_reason(talk: Any, /) -> None:
    store = talk.broker.store
    root = Path(talk.directory) / "commitlog"
    store.space.update_levels({root: Space(total=1 << 30, free=0)})
    full, named = reasons(talk.broker)
    assert full.startswith(f"the store accepts no messages: the disk of {root} is full: 100 % used")
    assert named == NO_NAME_SERVER
    store.space.update_levels({root: Space(total=1 << 30, free=1 << 30)})
    assert reasons(talk.broker) == [NO_NAME_SERVER]


@in_loop(converse)
async def test_a_directory_without_permission_to_write_is_a_reason(
    talk: Any, /, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = talk.broker.parts.stored.disk
    monkeypatch.setattr(disk, "is_writable", returns(False), raising=False)
    root, log, _ = reasons(talk.broker)
    assert root == (
        f"no file can be made in {talk.directory}: its file system is read-only, or its "
        "permissions have changed"
    )
    assert log.startswith(f"no file can be made in {talk.directory}/commitlog: ")


def test_before_and_during_a_recovery_the_share_that_is_done_is_known() -> None:
    told: list[list[str]] = []
    progress = RecoveryProgress(returns(0.0))
    readiness = Readiness(BrokerConfig(broker_role=BrokerRole.ASYNC_MASTER), progress)
    progress.on_progress = lambda: told.append(readiness.reasons())
    assert readiness.reasons() == ["the broker is starting: its store is being opened"]
    for offset in (1000, 1004, 1005, 1700, 2000):
        progress.reached(offset, 2000)
    assert told == [
        [f"the broker is starting: its store is being recovered, {percent} % are done"]
        for percent in (0, 70, 100)
    ]


@in_loop(watched)
async def test_a_broker_that_failed_to_start_and_starts_again_is_as_a_new_one(
    tmp_path: Path,
) -> None:
    broker = Broker(BrokerConfig(store_path_root_dir=str(tmp_path), **SMALL))
    await broker.close()
    assert reasons(broker) == ["the broker is starting: its store is being opened"]
    await broker.start()
    assert reasons(broker) == [NO_NAME_SERVER]
    await broker.close()
    assert reasons(broker) == ["the broker is stopping"]
