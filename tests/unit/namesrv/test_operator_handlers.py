"""What operators ask a name server: KV configuration, lists of special topics, its own settings."""

import asyncio
import logging
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.unit.namesrv.world import World, play, registered

from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.namesrv import (
    DeleteKvConfig,
    GetHasUnitSubTopicList,
    GetHasUnitSubUnunitTopicList,
    GetKvConfig,
    GetKvListByNamespace,
    GetNamesrvConfig,
    GetRouteInfo,
    GetSystemTopicList,
    GetUnitTopicList,
    KVTable,
    PutKvConfig,
    QueueData,
    RegisterTopicInNamesrv,
    TopicRouteData,
    UpdateNamesrvConfig,
)
from turbopump.protocol.requests.topics import TopicConfig, TopicList

ORDER = "ORDER_TOPIC_CONFIG"
FILE = "/namesrv/kvConfig.json"
STORE = "/namesrv/namesrv.properties"


def put(key: str, value: str) -> PutKvConfig:
    return PutKvConfig(kv_namespace=ORDER, key=key, value=value)


@in_loop(play, kv_config_path=FILE)
async def test_a_text_is_set_read_listed_and_removed(world: World, /) -> None:
    operator = world.peer()
    assert (await operator.ask(put("T", "broker-a:4"))).code == ResponseCode.SUCCESS
    answer = await operator.ask(GetKvConfig(kv_namespace=ORDER, key="T"))
    assert answer.ext == {"value": "broker-a:4"}
    answer = await operator.ask(GetKvListByNamespace(kv_namespace=ORDER))
    assert fastjson.decode(answer.body, KVTable).table == {"T": "broker-a:4"}
    removed = await operator.ask(DeleteKvConfig(kv_namespace=ORDER, key="T"))
    assert removed.code == ResponseCode.SUCCESS
    answer = await operator.ask(GetKvConfig(kv_namespace=ORDER, key="T"))
    assert answer.code == ResponseCode.QUERY_NOT_FOUND
    answer = await operator.ask(GetKvListByNamespace(kv_namespace="none"))
    assert answer.code == ResponseCode.QUERY_NOT_FOUND


@in_loop(play, kv_config_path=FILE)
async def test_a_text_that_was_answered_survives_a_kill(world: World, /) -> None:
    operator = world.peer()
    await operator.ask(put("T", "broker-a:4"))
    assert world.mount.read_file(Path(FILE)) == (
        b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}'
    )
    await world.kill_and_start()
    answer = await world.peer().ask(GetKvConfig(kv_namespace=ORDER, key="T"))
    assert answer.ext == {"value": "broker-a:4"}


@in_loop(play, kv_config_path=FILE)
async def test_a_change_that_is_not_on_the_disk_is_not_called_a_success(world: World, /) -> None:
    world.disk.fail("rename", times=2)
    answer = await world.peer().ask(put("T", "broker-a:4"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "not on the disk" in (answer.remark or "")


@in_loop(play, kv_config_path=FILE)
async def test_the_log_lists_all_texts_every_ten_minutes(
    world: World, /, caplog: pytest.LogCaptureFixture
) -> None:
    await world.peer().ask(put("T", "broker-a:4"))
    line = "KV configuration namespace=ORDER_TOPIC_CONFIG key=T value=broker-a:4"
    with caplog.at_level(logging.INFO, "turbopump.namesrv"):
        await asyncio.sleep(590)
        assert line not in caplog.messages
        await asyncio.sleep(610)
    assert caplog.messages.count(line) == 2


@in_loop(play, order_message_enable=True)
async def test_brokers_and_clients_are_told_of_ordered_topics(world: World, /) -> None:
    operator, broker = world.peer(), world.peer()
    await operator.ask(put("T", "broker-a:4"))
    answer = await broker.register()
    assert fastjson.decode(answer.body, KVTable).table == {"T": "broker-a:4"}
    route = await operator.route("T")
    assert route is not None
    assert route.order_topic_conf == "broker-a:4"


@in_loop(play, return_order_topic_config_to_broker=False)
async def test_brokers_and_clients_are_not_told_unless_it_is_wanted(world: World, /) -> None:
    operator, broker = world.peer(), world.peer()
    await operator.ask(put("T", "broker-a:4"))
    assert (await broker.register()).body == b""
    assert b"broker-a:4" not in (await operator.ask(GetRouteInfo(topic="T"))).body


@in_loop(play)
async def test_special_topics_are_listed(world: World, /) -> None:
    broker = world.peer()
    body = registered(())
    body.topic_config_serialize_wrapper.topic_config_table = {
        name: TopicConfig(topic_name=name, topic_sys_flag=flag)
        for name, flag in {"plain": 0, "unit": 1, "sub": 2, "both": 3}.items()
    }
    await broker.ask(broker.registration(), body.encode())
    for request, topics in (
        (GetUnitTopicList(), ("unit", "both")),
        (GetHasUnitSubTopicList(), ("sub", "both")),
        (GetHasUnitSubUnunitTopicList(), ("sub",)),
    ):
        listed = fastjson.decode((await broker.ask(request)).body, TopicList)
        assert listed.topic_list == topics
    system = fastjson.decode((await broker.ask(GetSystemTopicList())).body, TopicList)
    assert (system.topic_list, system.broker_addr) == (("c", "broker-a"), broker.address)


@in_loop(play)
async def test_a_topic_is_registered_by_hand_on_brokers_that_are_there(world: World, /) -> None:
    broker = world.peer()
    await broker.register()
    queues = [QueueData(broker_name="broker-a", read_queue_nums=3, write_queue_nums=3, perm=6)]
    body = fastjson.encode(TopicRouteData(queue_datas=queues))
    assert (await broker.ask(RegisterTopicInNamesrv(topic="new"), body)).code == 0
    route = await broker.route("new")
    assert route is not None
    assert route.queue_datas == queues
    queues.append(QueueData(broker_name="nobody"))
    body = fastjson.encode(TopicRouteData(queue_datas=queues))
    refused = await broker.ask(RegisterTopicInNamesrv(topic="other"), body)
    assert (refused.code, await broker.route("other")) == (ResponseCode.SYSTEM_ERROR, None)


@in_loop(play)
async def test_hot_settings_change_at_once(world: World, /) -> None:
    operator = world.peer()
    assert (await operator.ask(GetUnitTopicList())).code == ResponseCode.SUCCESS
    changed = await operator.ask(UpdateNamesrvConfig(), b"enableTopicList=false\n")
    assert changed.code == ResponseCode.SUCCESS
    assert "started without a file" in (changed.remark or "")
    assert (await operator.ask(GetUnitTopicList())).code == ResponseCode.SYSTEM_ERROR
    shown = (await operator.ask(GetNamesrvConfig())).body.decode()
    assert "enableTopicList=false\n" in shown
    assert "rocketmqHome=" in shown


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (b"kvConfigPath=/etc/passwd", ResponseCode.NO_PERMISSION, "kvConfigPath cannot be changed"),
        (b"configStorePath=/etc/passwd", ResponseCode.NO_PERMISSION, "configStorePath"),
        (b"rocketmqHome=/tmp", ResponseCode.NO_PERMISSION, "has no effect here"),
        (b"listenPort=1", ResponseCode.NO_PERMISSION, "Keys that can: enableAllTopicList"),
        (b"enableTopicLst=false", ResponseCode.SYSTEM_ERROR, "the nearest is enableTopicList"),
        (b"enableAllTopicList=maybe", ResponseCode.SYSTEM_ERROR, "expected true or false"),
    ],
)
@in_loop(play)
async def test_other_settings_are_refused_and_nothing_changes(
    world: World, /, text: bytes, code: int, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    operator = world.peer()
    before = (await operator.ask(GetNamesrvConfig())).body
    answer = await operator.ask(UpdateNamesrvConfig(), b"enableTopicList=false\n" + text)
    assert answer.code == code
    assert words in (answer.remark or "")
    assert (await operator.ask(GetNamesrvConfig())).body == before


@in_loop(play, config_store_path=STORE)
async def test_changed_settings_are_kept_in_the_file_of_c_whatever_it_says_of_another(
    world: World, /, tmp_path: Path
) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("# ours\nlistenPort=9876\nenableTopicList = true\n")
    world.mount.make_directory(file.parent)
    world.mount.write_file(file, file.read_bytes())
    await world.kill_and_start(file)
    changed = await world.peer().ask(UpdateNamesrvConfig(), b"enableTopicList=false\n")
    assert (changed.code, changed.remark) == (ResponseCode.SUCCESS, None)
    assert world.mount.read_file(file) == b"# ours\nlistenPort=9876\nenableTopicList=false\n"
    assert world.mount.read_file(Path(STORE)) is None


@in_loop(play, config_store_path=STORE)
async def test_without_a_file_of_c_they_are_kept_in_config_store_path(world: World, /) -> None:
    world.mount.make_directory(Path(STORE).parent)
    changed = await world.peer().ask(UpdateNamesrvConfig(), b"enableTopicList=false\n")
    assert (changed.code, changed.remark) == (ResponseCode.SUCCESS, None)
    assert world.mount.read_file(Path(STORE)) == b"enableTopicList=false\n"
