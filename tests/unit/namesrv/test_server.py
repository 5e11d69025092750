"""A whole name server in virtual time: brokers register over connections, fall silent, are cut off;
clients ask."""

import asyncio
import random
import zlib
from typing import Any, TypeVar

import pytest
from tests.loops import in_loop
from tests.ports import free_ports
from tests.unit.namesrv.world import HOST, NAMESRV, World, play, registered
from tests.unit.protocol.compressed_registration import encode_compressed

from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.errors import ConfigError, ResponseError
from turbopump.message.codec import body_crc32
from turbopump.namesrv.server import NameServer
from turbopump.protocol import fastjson
from turbopump.protocol.codes import V3_0_11, V5_0_0, ResponseCode
from turbopump.protocol.command import Command, encode_command
from turbopump.protocol.requests.namesrv import (
    AddWritePerm,
    BrokerHeartbeat,
    BrokerMemberGroupBody,
    ClusterInfo,
    DeleteTopicInNamesrv,
    GetAllTopicList,
    GetBrokerClusterInfo,
    GetBrokerMemberGroup,
    GetRouteInfo,
    GetTopicsByCluster,
    QueryDataVersion,
    QueryDataVersionReply,
    RegisterBrokerBody,
    UnregisterBroker,
    WipeWritePerm,
)
from turbopump.protocol.requests.topics import DataVersion, TopicList
from turbopump.remoting.client import RemotingClient

T = TypeVar("T")


def four_x_form(body: RegisterBrokerBody) -> bytes:
    """A compressed registration as a 4.x broker writes it: without the (here empty) section of
    mappings, a count of four bytes."""
    return zlib.compress(zlib.decompress(encode_compressed(body))[:-4])


@in_loop(play)
async def test_a_registered_broker_is_found_by_topic(world: World, /) -> None:
    broker = world.peer()
    answer = await broker.register()
    assert (answer.code, answer.ext, answer.body) == (ResponseCode.SUCCESS, None, b"")
    route = await world.peer().route("T")
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == ["broker-a"]
    assert route.broker_datas[0].broker_addrs == {0: broker.address}


@in_loop(play)
async def test_a_registration_that_wants_no_answer_is_taken(world: World, /) -> None:
    broker = world.peer()
    body = registered(("T", "U")).encode()
    await broker.tell(broker.registration(body_crc32=body_crc32(body)), body)
    await asyncio.sleep(1)
    route = await broker.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: broker.address}


@in_loop(play)
async def test_new_clients_get_standard_json_and_old_ones_what_they_can_read(
    world: World, /
) -> None:
    broker = world.peer()
    await broker.register()
    client = world.peer()
    quoted, bare = b'"brokerAddrs":{"0":', b'"brokerAddrs":{0:'
    assert quoted in (await client.ask(GetRouteInfo(topic="T"), version=401)).body
    assert bare in (await client.ask(GetRouteInfo(topic="T"), version=400)).body
    asked = GetRouteInfo(topic="T", accept_standard_json_only=True)
    assert quoted in (await client.ask(asked, version=400)).body
    assert bare in (await client.ask(GetBrokerClusterInfo())).body


@in_loop(play)
async def test_a_missing_route_names_its_cause(world: World, /) -> None:
    client = world.peer()
    answer = await client.ask(GetRouteInfo(topic="nowhere"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "nowhere" in (answer.remark or "")
    assert "No broker is registered" in (answer.remark or "")
    await world.peer().register()
    answer = await client.ask(GetRouteInfo(topic="nowhere"))
    assert answer.code == ResponseCode.TOPIC_NOT_EXIST
    assert "autoCreateTopicEnable" in (answer.remark or "")


@in_loop(play)
async def test_a_silent_broker_is_forgotten_and_disconnected_after_its_time_out(
    world: World, /
) -> None:
    broker, client = world.peer(), world.peer()
    await broker.register(heartbeat_timeout_millis=12_000)
    await asyncio.sleep(11)
    assert await client.route("T") is not None
    await asyncio.sleep(5)
    assert await client.route("T") is None
    assert (broker.host, HOST) not in set(world.network.connections())


@in_loop(play)
async def test_without_a_time_out_of_its_own_a_broker_has_two_minutes(world: World, /) -> None:
    broker, client = world.peer(), world.peer()
    await broker.register()
    await asyncio.sleep(60)
    await client.route("T")
    await asyncio.sleep(59)
    assert await client.route("T") is not None
    await asyncio.sleep(7)
    assert await client.route("T") is None


@in_loop(play)
async def test_heartbeats_and_version_queries_keep_a_broker(world: World, /) -> None:
    broker, client = world.peer(), world.peer()
    await broker.register(heartbeat_timeout_millis=10_000)
    identity: dict[str, Any] = {
        "cluster_name": "c",
        "broker_addr": broker.address,
        "broker_name": "broker-a",
    }
    for _ in range(3):
        await asyncio.sleep(8)
        assert (await broker.ask(BrokerHeartbeat(**identity))).code == ResponseCode.SUCCESS
        await asyncio.sleep(8)
        await broker.ask(QueryDataVersion(**identity), fastjson.encode(DataVersion(counter=1)))
    assert await client.route("T") is not None


@in_loop(play, scan_not_active_broker_interval=30_000)
async def test_the_scan_interval_is_the_configuration_s(world: World, /) -> None:
    broker, client = world.peer(), world.peer()
    await broker.register(heartbeat_timeout_millis=1_000)
    await asyncio.sleep(29)
    assert await client.route("T") is not None
    await asyncio.sleep(2)
    assert await client.route("T") is None


@in_loop(play)
async def test_a_broker_that_loses_its_connection_is_forgotten_at_once(world: World, /) -> None:
    broker, client = world.peer(), world.peer()
    await broker.register()
    broker.disconnect()
    await asyncio.sleep(1)
    assert await client.route("T") is None


@in_loop(play)
async def test_a_second_broker_of_a_name_is_refused_while_the_first_one_answers(
    world: World, /
) -> None:
    first, second, client = world.peer(), world.peer(), world.peer()
    await first.register()
    answer = await second.register(("T", "V"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert answer.remark == (
        f"a live broker at {first.address} has the name broker-a and id 0: stop it, or set another "
        "brokerName or brokerId here"
    )
    route = await client.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: first.address}
    assert await client.route("V") is None
    first.disconnect()
    assert (await second.register(("T", "V"))).code == ResponseCode.SUCCESS
    assert await client.route("V") is not None


@in_loop(play)
async def test_a_broker_whose_machine_is_gone_loses_its_name_within_seconds(
    world: World, /
) -> None:
    first, second, client = world.peer(), world.peer(), world.peer()
    await first.register()
    world.network.silence(first.host)
    begun = world.loop.time()
    assert (await second.register(timeout=10.0)).code == ResponseCode.SUCCESS
    assert world.loop.time() - begun < 4
    route = await client.route("T")
    assert route is not None
    assert route.broker_datas[0].broker_addrs == {0: second.address}


@in_loop(play)
async def test_only_the_connection_that_registered_a_broker_can_unregister_it(
    world: World, /
) -> None:
    broker, stranger = world.peer(), world.peer()
    await broker.register()
    leaving = UnregisterBroker(
        broker_name="broker-a", broker_addr=broker.address, cluster_name="c", broker_id=0
    )
    assert (await stranger.ask(leaving)).code == ResponseCode.SUCCESS
    assert await stranger.route("T") is not None
    assert (await broker.ask(leaving)).code == ResponseCode.SUCCESS
    assert await stranger.route("T") is None


@in_loop(play)
async def test_a_version_query_says_whether_to_register_again(world: World, /) -> None:
    broker = world.peer()
    identity: dict[str, Any] = {
        "cluster_name": "c",
        "broker_addr": broker.address,
        "broker_name": "broker-a",
    }
    version = fastjson.encode(DataVersion(counter=1))
    answer = await broker.ask(QueryDataVersion(**identity), version)
    assert (answer.header(QueryDataVersionReply).changed, answer.body) == (True, b"")
    await broker.register()
    answer = await broker.ask(QueryDataVersion(**identity), version)
    assert answer.header(QueryDataVersionReply).changed is False
    assert fastjson.decode(answer.body, DataVersion) == DataVersion(counter=1)
    answer = await broker.ask(QueryDataVersion(**identity), fastjson.encode(DataVersion(counter=2)))
    assert answer.header(QueryDataVersionReply).changed is True


@in_loop(play)
async def test_a_slave_is_told_its_master(world: World, /) -> None:
    master, slave = world.peer(), world.peer()
    await master.register(ha_server_addr="10.0.0.1:10912")
    answer = await slave.register(broker_id=1)
    assert answer.ext == {"masterAddr": master.address, "haServerAddr": "10.0.0.1:10912"}
    group = fastjson.decode(
        (await slave.ask(GetBrokerMemberGroup(cluster_name="c", broker_name="broker-a"))).body,
        BrokerMemberGroupBody,
    ).broker_member_group
    assert group is not None
    assert group.broker_addrs == {0: master.address, 1: slave.address}


@in_loop(play)
async def test_topics_and_clusters_are_listed(world: World, /) -> None:
    broker, client = world.peer(), world.peer()
    await broker.register()
    answer = await client.ask(GetAllTopicList())
    assert fastjson.decode(answer.body, TopicList).topic_list == ("T", "U")
    answer = await client.ask(GetTopicsByCluster(cluster="c"))
    assert fastjson.decode(answer.body, TopicList).topic_list == ("T", "U")
    info = fastjson.decode((await client.ask(GetBrokerClusterInfo())).body, ClusterInfo)
    assert info.cluster_addr_table == {"c": ("broker-a",)}
    assert info.broker_addr_table["broker-a"].broker_addrs == {0: broker.address}


@in_loop(play, enable_all_topic_list=False, enable_topic_list=False)
async def test_lists_can_be_disabled(world: World, /) -> None:
    for request in (GetAllTopicList(), GetTopicsByCluster(cluster="c")):
        answer = await world.peer().ask(request)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("disable")


@in_loop(play, need_wait_for_service=True, wait_seconds_for_service=10)
async def test_routes_can_be_held_back_after_the_start(world: World, /) -> None:
    broker, client = world.peer(), world.peer()
    await broker.register()
    answer = await client.ask(GetRouteInfo(topic="T"))
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith("name server not ready")
    await asyncio.sleep(10)
    assert await client.route("T") is not None


@in_loop(play)
async def test_write_permission_is_wiped_and_added(world: World, /) -> None:
    broker, operator = world.peer(), world.peer()
    await broker.register()
    assert (await operator.ask(WipeWritePerm(broker_name="broker-a"))).ext == {
        "wipeTopicCount": "2"
    }
    route = await operator.route("T")
    assert route is not None
    assert route.queue_datas[0].perm == 4
    assert (await operator.ask(AddWritePerm(broker_name="broker-a"))).ext == {"addTopicCount": "2"}
    assert (await operator.ask(DeleteTopicInNamesrv(topic="T", cluster_name=""))).code == 0
    assert await operator.route("T") is None


@pytest.mark.parametrize(
    ("four_x", "version"),
    [(False, V5_0_0), (True, V5_0_0 - 1)],
    ids=["5.x with mappings", "4.x without"],
)
@in_loop(play)
async def test_a_compressed_registration_is_read_as_its_sender_s_version_writes_it(
    world: World, /, four_x: bool, version: int
) -> None:
    broker = world.peer()
    made = registered(("T", "U"))
    body = four_x_form(made) if four_x else encode_compressed(made)
    answer = await broker.ask(broker.registration(compressed=True), body, version=version)
    assert answer.code == ResponseCode.SUCCESS
    assert await broker.route("U") is not None


@in_loop(play)
async def test_a_registration_of_three_point_zero_is_the_topics_alone(world: World, /) -> None:
    broker = world.peer()
    body = fastjson.encode(registered(("T", "U")).topic_config_serialize_wrapper)
    assert (
        await broker.ask(broker.registration(), body, version=V3_0_11 - 1)
    ).code == ResponseCode.SUCCESS
    assert await broker.route("U") is not None


@in_loop(play)
async def test_a_registration_without_body_is_a_broker_without_topics(world: World, /) -> None:
    broker = world.peer()
    assert (await broker.ask(broker.registration())).code == ResponseCode.SUCCESS
    info = fastjson.decode((await broker.ask(GetBrokerClusterInfo())).body, ClusterInfo)
    assert list(info.broker_addr_table) == ["broker-a"]


@pytest.mark.parametrize(
    ("header", "body", "remark"),
    [
        ({"body_crc32": 1}, b"{}", "crc32 not match"),
        ({}, b"{", "Failed to decode RegisterBrokerBody"),
        ({}, b'{"topicConfigSerializeWrapper":7}', "Failed to decode RegisterBrokerBody"),
        ({"compressed": True}, b"not zlib", "Failed to decode RegisterBrokerBody"),
        (
            {"compressed": True},
            zlib.compress(b"\x7f\xff\xff\xff{}"),
            "Failed to decode RegisterBrokerBody",
        ),
        ({"compressed": True}, four_x_form(registered(("T", "U"))), "Failed to decode"),
        ({"broker_addr": "somewhere"}, b"", "brokerAddr 'somewhere' is not HOST:PORT"),
        ({"broker_addr": "h:99999"}, b"", "brokerAddr 'h:99999' is not HOST:PORT"),
        ({}, registered(("T",)).encode(), "register broker failed"),
    ],
)
@in_loop(play)
async def test_a_bad_registration_is_answered_with_code_one_and_changes_nothing(
    world: World, /, header: dict[str, Any], body: bytes, remark: str
) -> None:
    broker = world.peer()
    answer = await broker.ask(broker.registration(**header), body)
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert (answer.remark or "").startswith(remark)
    info = fastjson.decode((await broker.ask(GetBrokerClusterInfo())).body, ClusterInfo)
    assert info.broker_addr_table == {}


async def call(code: int, ext: dict[str, str]) -> Command:
    connection = await RemotingClient().connect(NAMESRV)
    frame = encode_command(Command(code, opaque=9, ext=ext, body=b"{{{"))
    return await connection.start_call(9, frame, 3.0)


@pytest.mark.parametrize(
    ("code", "ext", "answer_code", "words"),
    [
        (103, {"brokerName": "b", "brokerAddr": "h:1", "clusterName": "c"}, 1, "brokerId"),
        (
            103,
            {"brokerName": "b", "brokerAddr": "h:1", "clusterName": "c", "brokerId": "x"},
            1,
            "brokerId",
        ),
        (105, {}, 1, "topic"),
        (322, {"brokerName": "b", "brokerAddr": "h:1", "clusterName": "c"}, 1, "JSON"),
        (4711, {}, 3, "4711 not supported"),
    ],
)
@in_loop(play)
async def test_a_bad_request_gets_a_code_and_a_sentence(
    world: World, /, code: int, ext: dict[str, str], answer_code: int, words: str
) -> None:
    answer = await world.loop.create_process("10.0.0.77").start(call(code, ext))
    assert answer.code == answer_code
    assert words in (answer.remark or "")
    assert "Traceback" not in (answer.remark or "")


@in_loop
async def test_a_real_port_is_served_and_taken_only_once() -> None:
    server, second, client = NameServer(), NameServer(), RemotingClient()
    try:
        host, port = await server.start("127.0.0.1", 0)
        with pytest.raises(ResponseError, match="nowhere"):
            await client.call(f"{host}:{port}", GetRouteInfo(topic="nowhere"))
        with pytest.raises(ConfigError, match=f"port {port}"):
            await second.start("127.0.0.1", port)
    finally:
        await client.close()
        await second.close()
        await server.close()
    await server.close()


def garbled(body: bytes, chance: random.Random) -> bytes:
    """The body with a few of its bytes changed, cut out, doubled or put in."""
    data = bytearray(body)
    for _ in range(chance.randrange(1, 6)):
        at = chance.randrange(len(data) + 1)
        way = chance.randrange(4)
        if way == 0:
            data[at : at + 1] = bytes([chance.randrange(256)])
        elif way == 1:
            del data[at : at + chance.randrange(9)]
        elif way == 2:
            data[at:at] = data[at : at + chance.randrange(30)]
        else:
            data[at:at] = chance.choice(
                [
                    b"{",
                    b"[",
                    b'"',
                    b"null",
                    b"1e999",
                    b"-9999999999999999999999",
                    b"\xff\xff",
                    b"NaN",
                ]
            )
    return bytes(data)


@in_loop(play)
async def test_garbled_registrations_are_answered_and_harm_nobody(world: World, /) -> None:
    chance = random.Random(5)
    good, bad = world.peer(), world.peer()
    await good.register(("T", "U"), name="good")
    plain, packed = registered(("A", "B")).encode(), encode_compressed(registered(("A", "B")))
    codes = set()
    for number in range(300):
        compressed = number % 2 == 1
        body = (
            zlib.compress(garbled(zlib.decompress(packed), chance))
            if compressed
            else garbled(plain, chance)
        )
        answer = await bad.ask(bad.registration(name="bad", compressed=compressed), body)
        codes.add(answer.code)
        assert "Traceback" not in (answer.remark or "")
    assert codes == {ResponseCode.SUCCESS, ResponseCode.SYSTEM_ERROR}
    route = await good.route("T")
    assert route is not None
    assert "good" in [queue.broker_name for queue in route.queue_datas]
    assert (await good.ask(GetBrokerClusterInfo())).code == ResponseCode.SUCCESS


@in_loop
async def test_a_name_server_is_ready_while_it_serves() -> None:
    server = NameServer(NamesrvConfig(health_port=free_ports(0)))
    assert server.unready_reasons() == ["the name server is starting"]
    await server.start(port=0)
    assert server.unready_reasons() == []
    _, writer = await asyncio.open_connection("127.0.0.1", server.config.health_port)
    writer.close()
    await server.close()
    assert server.unready_reasons() == ["the name server is stopping"]
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", server.config.health_port)
