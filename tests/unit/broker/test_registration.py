"""A broker and its name servers: registered before it says so, again and again, and gone when it
stops."""

import asyncio
import socket
from functools import partial
from pathlib import Path

from tests.loops import in_loop
from tests.ports import free_ports
from tests.unit.broker.registering import BROKER, NAME_SERVERS, World, tell
from tests.unit.broker.talking import talking
from tests.waits import until

from turbopump.broker.registration import KEEPALIVE, keep_alive
from turbopump.config.broker_config import BrokerRole
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.namesrv.server import NameServer
from turbopump.protocol import fastjson
from turbopump.protocol.requests.clients import Heartbeat
from turbopump.protocol.requests.namesrv import (
    AddWritePerm,
    PutKvConfig,
    RegisterBroker,
    RegisterBrokerBody,
    RegisterBrokerReply,
    WipeWritePerm,
)
from turbopump.protocol.requests.replication import ExchangeHAInfo, ExchangeHAInfoReply
from turbopump.protocol.requests.send import SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic, DataVersion, DeleteTopic
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.response import Response
from turbopump.remoting.router import HELD, Outcome, RequestContext, Router
from turbopump.remoting.server import RemotingServer


@in_loop(tell)
async def test_a_topic_is_routed_by_every_name_server_before_its_creation_is_answered(
    world: World, /
) -> None:
    for host in NAME_SERVERS:
        await world.start_name_server(host)
    await world.start_broker()
    for host in NAME_SERVERS:
        assert await world.route(host, "TBW102") == [("broker-a", 8)]
    for number in range(3):
        topic = f"T{number}"
        answer = await world.ask(
            f"{BROKER}:10911", CreateTopic(topic=topic, read_queue_nums=3, write_queue_nums=3)
        )
        assert answer.code == 0
        for host in NAME_SERVERS:
            assert await world.route(host, topic) == [("broker-a", 3)]
    sent = await world.ask(f"{BROKER}:10911", SendMessageV2(topic="by-sending", queue_id=0), b"x")
    assert sent.code == 0
    assert await world.route(NAME_SERVERS[0], "by-sending") == [("broker-a", 4)]


@in_loop(tell)
async def test_a_broker_without_any_name_server_serves_and_registers_when_one_comes(
    world: World, /
) -> None:
    assert await world.start_broker() < 10
    sent = await world.ask(f"{BROKER}:10911", SendMessageV2(topic="T", queue_id=0), b"x")
    assert sent.code == 0
    await asyncio.sleep(100)
    await world.start_name_server(NAME_SERVERS[0])
    await asyncio.sleep(5)
    assert await world.route(NAME_SERVERS[0], "T") == [("broker-a", 4)]
    await world.start_name_server(NAME_SERVERS[1])
    await asyncio.sleep(5)
    assert await world.route(NAME_SERVERS[1], "T") == [("broker-a", 4)]


@in_loop(tell)
async def test_a_name_server_that_lost_its_memory_learns_everything_again(world: World, /) -> None:
    for host in NAME_SERVERS:
        await world.start_name_server(host)
    await world.start_broker()
    await world.ask(
        f"{BROKER}:10911", CreateTopic(topic="T", read_queue_nums=3, write_queue_nums=3)
    )
    world.simulation.end(NAME_SERVERS[0], power_cut=False)
    assert await world.route(NAME_SERVERS[1], "T") == [("broker-a", 3)]
    await world.start_name_server(NAME_SERVERS[0])
    assert await world.route(NAME_SERVERS[0], "T") == []
    await asyncio.sleep(2)
    assert await world.route(NAME_SERVERS[0], "T") == [("broker-a", 3)]


@in_loop(tell)
async def test_a_name_server_that_comes_back_at_another_address_is_found_by_its_name(
    world: World, /
) -> None:
    names = world.simulation.network.names
    names["namesrv.example"] = NAME_SERVERS[:1]
    await world.start_name_server(NAME_SERVERS[0])
    await world.start_broker(["namesrv.example"])
    await world.create("T")
    assert await world.route("namesrv.example", "T") == [("broker-a", 3)]
    world.simulation.end(NAME_SERVERS[0], power_cut=False)
    await asyncio.sleep(0.5)
    names["namesrv.example"] = NAME_SERVERS  # the old address may be told of for a while
    world.simulation.network.silence(NAME_SERVERS[0])
    await world.start_name_server(NAME_SERVERS[1])
    await asyncio.sleep(5)
    assert await world.route(NAME_SERVERS[1], "T") == [("broker-a", 3)]
    await world.create("U")
    assert await world.route("namesrv.example", "U") == [("broker-a", 3)]


@in_loop(tell)
async def test_a_drained_broker_stays_so_while_it_gets_new_topics_and_groups(
    world: World, /
) -> None:
    for host in NAME_SERVERS:
        await world.start_name_server(host)
    await world.start_broker()
    await world.create("T0")
    for host in NAME_SERVERS:
        assert (await world.ask(f"{host}:9876", WipeWritePerm(broker_name="broker-a"))).code == 0
    await world.create("T1")
    beat = {"clientID": "c", "consumerDataSet": [{"groupName": "g"}]}
    assert (await world.ask(f"{BROKER}:10911", Heartbeat(), fastjson.encode(beat))).code == 0
    await asyncio.sleep(70)
    for host in NAME_SERVERS:
        for topic in ("T0", "T1", "%RETRY%g"):
            assert await world.permission(host, topic) == 4
        assert (await world.ask(f"{host}:9876", AddWritePerm(broker_name="broker-a"))).code == 0
        assert await world.permission(host, "T1") == 6


@in_loop(tell)
async def test_a_broker_learns_from_a_name_server_which_topics_are_ordered(world: World, /) -> None:
    await world.start_name_server(NAME_SERVERS[0])
    await world.start_broker()
    await world.create("T0")
    put = PutKvConfig(kv_namespace="ORDER_TOPIC_CONFIG", key="T0", value="broker-a:3")
    assert (await world.ask(f"{NAME_SERVERS[0]}:9876", put)).code == 0
    await world.create("T1")
    topics = world.broker.tables.topics
    assert [topics.find(topic).order for topic in ("T0", "T1")] == [True, False]


class RecordingNameServer:
    """Takes every registration, and says what was in it."""

    def __init__(self, world: World, host: str) -> None:
        self.registrations: list[tuple[bool, DataVersion, list[str]]] = []
        """Of each whether it was partial, its version and its topics but the system's."""
        self.ha_addresses: set[str | None] = set()
        self.answers = True
        self._process = world.simulation.boot(host)
        self._host = host

    async def start(self) -> None:
        router = Router()
        router.add(RegisterBroker, self._register)
        await self._process.start(RemotingServer(router).listen(self._host, 9876))

    def _register(
        self, request: RegisterBroker, context: RequestContext
    ) -> Outcome[RegisterBrokerReply]:
        body = RegisterBrokerBody.decode(context.body).topic_config_serialize_wrapper
        topics = [name for name in body.topic_config_table if name[0] == "T" and name != "TBW102"]
        assert (len(body.topic_config_table) > len(topics)) is not bool(request.partial)
        self.ha_addresses.add(request.ha_server_addr)
        self.registrations.append((bool(request.partial), body.data_version, topics))
        return Response(RegisterBrokerReply()) if self.answers else HELD


@in_loop(tell)
async def test_a_slave_announces_no_ha_address(world: World, /) -> None:
    recording = RecordingNameServer(world, NAME_SERVERS[0])
    await recording.start()
    await world.start_broker(broker_role=BrokerRole.SLAVE, broker_id=1)
    assert recording.ha_addresses == {""}


@in_loop(tell)
async def test_a_master_whose_ha_port_is_taken_announces_none(world: World, /) -> None:
    recording = RecordingNameServer(world, NAME_SERVERS[0])
    await recording.start()
    other = RemotingServer(Router())
    await world.simulation.loop.create_process(BROKER).start(other.listen(BROKER, 10912))
    await world.start_broker()
    assert recording.ha_addresses == {""}
    answer = await world.ask(f"{BROKER}:10911", ExchangeHAInfo())
    told = answer.header(ExchangeHAInfoReply)
    assert (told.master_address, told.master_ha_address) == (f"{BROKER}:10911", None)


@in_loop(tell)
async def test_a_name_server_that_has_all_topics_hears_of_the_new_ones_only_many_at_once(
    world: World, /
) -> None:
    recording = RecordingNameServer(world, NAME_SERVERS[0])
    await recording.start()
    await world.start_broker()
    ((partial, version, topics),) = recording.registrations
    assert (partial, topics) == (False, [])
    await world.create("T0")
    assert [one[::2] for one in recording.registrations[1:]] == [(True, ["T0"])]
    assert recording.registrations[1][1].counter > version.counter
    await asyncio.gather(*(world.create(f"T{number}") for number in range(1, 50)))
    later = recording.registrations[2:]
    assert len(later) < 10
    assert all(partial for partial, _, _ in later)
    assert {topic for _, _, topics in later for topic in topics} == {
        f"T{number}" for number in range(1, 50)
    }
    await asyncio.sleep(31)
    partial, version, topics = recording.registrations[-1]
    assert (partial, len(topics)) == (False, 50), "every 30 s everything"
    assert version == later[-1][1], "nothing has changed"


@in_loop(tell)
async def test_after_a_registration_without_an_answer_everything_follows_with_a_newer_version(
    world: World, /
) -> None:
    recording = RecordingNameServer(world, NAME_SERVERS[0])
    await recording.start()
    await world.start_broker(register_broker_timeout_mills=1000)
    await world.create("T0")
    recording.answers = False
    await world.create("T1")
    recording.answers = True
    await asyncio.sleep(5)
    kinds = [(partial, topics) for partial, _, topics in recording.registrations[-3:]]
    assert kinds == [(True, ["T0"]), (True, ["T1"]), (False, ["T0", "T1"])]
    versions = [version for _, version, _ in recording.registrations[-2:]]
    assert versions[1].counter > versions[0].counter
    await world.create("T2")
    assert recording.registrations[-1][::2] == (True, ["T2"])


@in_loop(tell)
async def test_a_deleted_topic_makes_the_next_registration_a_full_one(world: World, /) -> None:
    recording = RecordingNameServer(world, NAME_SERVERS[0])
    await recording.start()
    await world.start_broker()
    for topic in ("T0", "T1"):
        await world.create(topic)
    assert (await world.ask(f"{BROKER}:10911", DeleteTopic(topic="T0"))).code == 0
    assert recording.registrations[-1][::2] == (False, ["T1"])


@in_loop(tell)
async def test_clients_see_no_queue_to_write_to_on_a_broker_that_may_only_be_read(
    world: World, /
) -> None:
    await world.start_name_server(NAME_SERVERS[0])
    await world.start_broker(broker_permission=4)
    await world.ask(
        f"{BROKER}:10911", CreateTopic(topic="T", read_queue_nums=3, write_queue_nums=3, perm=6)
    )
    assert {await world.permission(NAME_SERVERS[0], topic) for topic in ("T", "TBW102")} == {4}
    topics = world.broker.tables.topics
    assert [topics.find(topic).perm for topic in ("T", "TBW102")] == [6, 7], (
        "the broker's own table is as it was"
    )


@in_loop(tell)
async def test_a_creation_is_answered_though_one_name_server_is_silent(world: World, /) -> None:
    for host in NAME_SERVERS:
        await world.start_name_server(host)
    await world.start_broker()
    world.simulation.end(NAME_SERVERS[1], power_cut=True)
    for number in range(3):
        begun = world.simulation.loop.time()
        request = CreateTopic(topic=f"T{number}", read_queue_nums=3, write_queue_nums=3)
        assert (await world.ask(f"{BROKER}:10911", request)).code == 0
        assert await world.route(NAME_SERVERS[0], f"T{number}") == [("broker-a", 3)]
        assert world.simulation.loop.time() - begun < 3


@in_loop(tell)
async def test_a_start_waits_three_seconds_for_a_name_server_that_never_answers(
    world: World, /
) -> None:
    await world.start_name_server(NAME_SERVERS[0])
    mute = world.simulation.boot(NAME_SERVERS[1])
    await mute.start(world.simulation.loop.create_server(asyncio.Protocol, NAME_SERVERS[1], 9876))
    assert await world.start_broker() < 3.5
    await world.ask(
        f"{BROKER}:10911", CreateTopic(topic="T", read_queue_nums=3, write_queue_nums=3)
    )
    assert await world.route(NAME_SERVERS[0], "T") == [("broker-a", 3)]


@in_loop(tell)
async def test_a_broker_that_stops_is_gone_from_the_routes_and_comes_back_with_its_topics(
    world: World, /
) -> None:
    for host in NAME_SERVERS:
        await world.start_name_server(host)
    await world.start_broker()
    await world.ask(
        f"{BROKER}:10911", CreateTopic(topic="T", read_queue_nums=3, write_queue_nums=3)
    )
    await world.stop_broker()
    for host in NAME_SERVERS:
        assert await world.route(host, "T") == []
    world.simulation.end(BROKER, power_cut=False)
    await world.start_broker()
    for host in NAME_SERVERS:
        assert await world.route(host, "T") == [("broker-a", 3)]


@in_loop(tell)
async def test_a_broker_closed_while_it_registers_stops_quietly(
    world: World, /, tmp_path: Path
) -> None:
    await world.start_name_server(NAME_SERVERS[0])
    await world.start_broker()
    world.simulation.network.silence(NAME_SERVERS[0])
    begun = world.simulation.loop.time()
    await world.stop_broker()
    assert world.simulation.loop.time() - begun < 5
    assert not list(tmp_path.iterdir())


@in_loop
async def test_routes_are_whole_again_after_a_real_name_server_has_started_again(
    tmp_path: Path,
) -> None:
    config = NamesrvConfig(kv_config_path=str(tmp_path / "kv.json"))
    server, port = NameServer(config), free_ports(0)
    await server.start("127.0.0.1", port)
    async with talking(tmp_path / "store", namesrv_addr=f"127.0.0.1:{port}") as talk:
        await talk.client.create("T", 3)
        for _ in range(3):
            await server.close()
            server = NameServer(config)
            await server.start("127.0.0.1", port)
            await until(partial(server.table.route, "T"))
            assert set(server.table.topics()) == set(talk.broker.tables.topics.names())
    await server.close()


@in_loop
async def test_the_system_watches_whether_a_name_server_s_machine_is_there(tmp_path: Path) -> None:
    server, remoting = NameServer(NamesrvConfig(kv_config_path=str(tmp_path))), RemotingClient()
    _, port = await server.start("127.0.0.1", 0)
    connection = await remoting.connect(f"127.0.0.1:{port}")
    keep_alive(connection)
    assert connection.transport is not None
    end = connection.transport.get_extra_info("socket")
    assert end.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):
            assert end.getsockopt(socket.IPPROTO_TCP, getattr(socket, name)) == value
    await remoting.close()
    await server.close()
