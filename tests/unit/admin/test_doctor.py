"""What the doctor finds. Name servers, brokers and consumers are real, and so is what is wrong."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from tests.loops import in_loop
from tests.ports import free_ports
from tests.stand_ins import raises, returns

from turbopump import ConsumeFrom, Producer, PushConsumer
from turbopump.admin.broker_figures import BrokerFigures
from turbopump.admin.cluster import Servers
from turbopump.admin.doctor import Diagnosis, Level, examine_cluster
from turbopump.admin.doctor.diagnosis import Findings
from turbopump.admin.doctor.runtime_figures import judge_runtime
from turbopump.broker.broker import Broker
from turbopump.cli import main
from turbopump.clock import Clock, SystemClock
from turbopump.config.broker_config import BrokerConfig, BrokerRole
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.disk import mapped_segments, system_disk
from turbopump.namesrv.server import NameServer
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests import clients
from turbopump.protocol.requests.groups import CreateGroup, SubscriptionGroupConfig
from turbopump.protocol.requests.namesrv import DeleteTopicInNamesrv, RegisterBroker, WipeWritePerm
from turbopump.protocol.requests.statistics import GetBrokerRuntimeInfo
from turbopump.protocol.requests.topics import CreateTopic
from turbopump.remoting.client import RemotingClient
from turbopump.remoting.response import Refusal, refusal
from turbopump.testing.broker_in_loop import PATIENT, SMALL_FILES, BrokerThread, running_broker


@pytest.fixture(autouse=True)
def _a_busy_machine_is_not_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turbopump.admin.doctor.brokers.SLOW_MS", 60_000)


class World:
    """Servers that run until the end of a test."""

    def __init__(self, stack: AsyncExitStack) -> None:
        self._stack = stack
        self.client = RemotingClient()

    async def name_server(self, **config: Any) -> str:
        """Starts one; its address."""
        server = NameServer(NamesrvConfig(listen_port=0, **config))
        self._stack.push_async_callback(server.close)
        _, port = await server.start()
        return f"127.0.0.1:{port}"

    async def broker(self, namesrv: str, *, clock: Clock | None = None, **config: Any) -> str:
        """Starts one that is `broker-a`, or as the configuration says; its address."""
        authorise = config.pop("authorise", None)
        directory = self._stack.enter_context(tempfile.TemporaryDirectory())
        given = {"broker_name": "broker-a", **SMALL_FILES, **PATIENT, **config}
        settings = BrokerConfig(
            namesrv_addr=namesrv, listen_port=0, store_path_root_dir=directory, **given
        )
        broker = Broker(settings, clock=clock, authorise=authorise)
        self._stack.push_async_callback(broker.close)
        await broker.start()
        return f"127.0.0.1:{broker.port}"

    async def topic(self, broker: str, topic: str, read: int = 2, write: int = 2) -> None:
        wanted = CreateTopic(topic=topic, read_queue_nums=read, write_queue_nums=write)
        await self.client.call(broker, wanted)

    async def consumer(self, namesrv: str, **settings: Any) -> PushConsumer:
        """Joins the group `billing`."""
        defaults = {"group": "billing", "topic": "orders", "consume_from": ConsumeFrom.FIRST}
        consumer = PushConsumer(namesrv, **{**defaults, **settings})
        self._stack.push_async_callback(consumer.close)
        await consumer.start()
        return consumer


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        made = World(stack)
        stack.push_async_callback(made.client.close)
        yield made


async def examined(
    *name_servers: str, topic: str | None = None, group: str | None = None
) -> list[Diagnosis]:
    async with Servers(list(name_servers)) as servers:
        findings = await examine_cluster(servers, SystemClock(), topic, group)
        return [finding for finding in findings if not of_this_machine(finding.message)]


def of_this_machine(says: str) -> bool:
    """Whether it is about the disk on which the tests run, which may be nearly full."""
    return re.match(r"its disk is \d+ % full: from 75 %", says) is not None


def wrong(findings: list[Diagnosis]) -> list[tuple[str, str]]:
    """Whom it is about, and what is wrong; each says what to do."""
    found = [finding for finding in findings if finding.level is Level.WRONG]
    assert [finding for finding in found if not finding.fix] == []
    return [(finding.subject, finding.message) for finding in found]


def only(findings: list[Diagnosis]) -> Diagnosis:
    """The one thing that is wrong."""
    (finding,) = [finding for finding in findings if finding.level is Level.WRONG]
    assert finding.fix
    return finding


async def fill(namesrv: str, topic: str = "orders", count: int = 3) -> None:
    async with Producer(namesrv) as producer:
        for number in range(count):
            await producer.send(topic, str(number))


@in_loop
async def test_where_nothing_is_wrong_that_is_said_of_each() -> None:
    async with running_broker() as running:
        await running.create_topic("orders", 2)
        await fill(running.namesrv)
        async with PushConsumer(
            running.namesrv, group="billing", topic="orders", consume_from=ConsumeFrom.FIRST
        ) as consumer:
            for _ in range(3):
                (await consumer.take(1))[0].done()
            await consumer.commit(acknowledged=True)
            found = await examined(running.namesrv, topic="orders", group="billing")
    assert [finding.level for finding in found] == [Level.OK] * 4
    name_server, broker, topic, group = (finding.message for finding in found)
    assert name_server == "RocketMQ 5.3.3 (PYTHON), knows 1 broker"
    assert broker.startswith(f"{running.broker_address} answers in ")
    assert "; RocketMQ 5.3.3, clock 0 s off, disk " in broker
    assert topic == "2 queues on broker-test, 3 messages stored"
    assert group == "1 consumer, no lag"


# --- name servers


@in_loop
async def test_a_name_server_that_is_not_there() -> None:
    address = f"127.0.0.1:{free_ports(0)}"
    finding = only(await examined(address))
    assert finding.subject == f"name server {address}"
    assert finding.message == f"cannot connect to {address}: Connection refused"
    assert "turbopump namesrv" in finding.fix


@in_loop
async def test_a_broker_that_is_given_as_a_name_server() -> None:
    async with running_broker() as running:
        finding = only(await examined(running.broker_address))
    assert "is not a name server; it answers like a broker" in finding.message
    assert "-n" in finding.fix


@in_loop
async def test_no_broker_is_registered() -> None:
    async with world() as servers:
        address = await servers.name_server()
        finding = only(await examined(address))
    assert (finding.subject, finding.message) == ("brokers", "no broker is registered")
    assert f"turbopump broker -n '{address}'" in finding.fix


@in_loop
async def test_name_servers_that_know_different_brokers() -> None:
    async with world() as servers:
        first, second = await servers.name_server(), await servers.name_server()
        broker = await servers.broker(first)
        await servers.broker(f"{first};{second}", broker_name="broker-b")
        finding = only(await examined(first, second))
    assert finding.subject == f"name server {second}"
    assert finding.message == f"it does not know the broker broker-a ({broker}), which others know"


# --- brokers


@in_loop
async def test_a_broker_whose_address_cannot_be_reached() -> None:
    async with world() as servers:
        namesrv, port = await servers.name_server(), free_ports(0)
        await servers.broker(namesrv, advertised_port=port)
        finding = only(await examined(namesrv))
    assert finding.subject == "broker broker-a"
    assert finding.message == (
        f"it advertises 127.0.0.1:{port}: cannot connect to 127.0.0.1:{port}: Connection refused"
    )
    assert "--advertise" in finding.fix


@in_loop
async def test_a_broker_at_whose_address_another_server_answers() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        await servers.broker(namesrv, advertised_port=int(namesrv.rpartition(":")[2]))
        finding = only(await examined(namesrv))
    assert "is answered by another server, which is not a broker" in finding.message


@in_loop
async def test_two_brokers_that_tell_clients_one_address() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        broker = await servers.broker(namesrv)
        port = int(broker.rpartition(":")[2])
        await servers.broker(namesrv, broker_name="broker-b", advertised_port=port)
        finding = only(await examined(namesrv))
    assert finding.subject == "broker broker-b"
    assert f"{broker} is answered by a different broker" in finding.message


@in_loop
async def test_a_broker_without_its_master() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        slave = RegisterBroker(
            broker_name="broker-s", broker_addr="127.0.0.1:1", cluster_name="c", broker_id=1
        )
        await servers.client.call(namesrv, slave)
        found = wrong(await examined(namesrv))
    says = "it has no master now: consumers read from its slaves, and sends fail"
    assert ("broker broker-s", says) in found
    assert any(subject == "broker broker-s, slave 1" for subject, _ in found)


def outward_address() -> str:
    """An address of this machine that others may reach; none is sent to."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


@pytest.mark.skipif(outward_address().startswith("127."), reason="needs a network")
@in_loop
async def test_an_address_that_is_every_clients_own_machine() -> None:
    async with world() as servers:
        local = await servers.name_server(bind_address="0.0.0.0")
        await servers.broker(local)
        namesrv = local.replace("127.0.0.1", outward_address())
        assert wrong(await examined(local)) == []
        finding = only(await examined(namesrv))
    assert "which every client takes for its own machine" in finding.message
    assert "brokerIP1" in finding.fix


class Ahead(SystemClock):
    """Ninety seconds ahead."""

    def now_ms(self) -> int:
        return super().now_ms() + 90_000


@in_loop
async def test_a_clock_that_is_ahead() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        await servers.broker(namesrv, clock=Ahead())
        finding = only(await examined(namesrv))
    assert finding.message.startswith("its clock is 90 s ahead of this machine's")
    assert "timedatectl" in finding.fix


@in_loop
async def test_a_full_disk() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        await servers.broker(namesrv, disk_free_space_min=1 << 60)
        async with asyncio.timeout(30):
            while not wrong(found := await examined(namesrv)):
                pass
        finding = only(found)
    assert finding.message.startswith("it refuses sends: the disk of ")
    assert "fileReservedTime" in finding.fix


@in_loop
async def test_a_disk_that_cannot_be_written_to(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        broker = await servers.broker(namesrv)
        await servers.topic(broker, "orders")
        monkeypatch.setattr(mapped_segments, "_fdatasync", raises(OSError(5, "Input/output error")))
        monkeypatch.setattr(system_disk.KernelSyncs, "start", returns(False))
        await fill(namesrv, count=1)
        async with asyncio.timeout(30):
            while not (found := wrong(await examined(namesrv))):
                pass
        monkeypatch.undo()  # or it could not be closed
    assert found[0][1].startswith("it refuses sends: ")
    assert "Input/output error" in found[0][1]


@in_loop
async def test_a_broker_that_takes_no_messages_yet() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        later = SystemClock().now_ms() + 3_600_000
        await servers.broker(namesrv, start_accept_send_request_time_stamp=later)
        finding = only(await examined(namesrv))
    assert re.match(r"it accepts no sends for another 3[56]\d\d s", finding.message)


def deny(request: object, _context: object) -> Refusal | None:
    if isinstance(request, GetBrokerRuntimeInfo):
        return refusal(ResponseCode.NO_PERMISSION, "not you")
    return None


@in_loop
async def test_a_request_that_is_denied() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        await servers.broker(namesrv, authorise=deny)
        finding = only(await examined(namesrv))
    assert "not you" in finding.message
    assert "credentials" in finding.fix


@pytest.mark.parametrize(
    ("figures", "says"),
    [
        (
            {"bootTimestamp": "0", "runtime": "[ 1 days, 0 hours, 0 minutes, 0 seconds ]"},
            "its clock is 86400 s behind",
        ),
        ({"commitLogDiskRatio": "0.93"}, "its disk is 93 % full: from 90 % on"),
        ({"remainHowManyDataToFlush": "1.5 GiB"}, "1536 MiB are not flushed yet"),
        ({"dispatchBehindBytes": str(1 << 30)}, "1024 MiB of its log are not visible"),
        ({"sendThreadPoolQueueHeadWaitTimeMills": "900"}, "sends wait 900 ms"),
    ],
)
def test_what_apaches_brokers_say_of_themselves_is_judged(
    figures: dict[str, str], says: str
) -> None:
    found = Findings("broker b")
    judge_runtime(found, BrokerFigures.read(figures), 2 * 86_400_000.0)
    assert only(found.diagnoses).message.startswith(says)


# --- a topic


@in_loop
async def test_a_topic_that_does_not_exist() -> None:
    async with running_broker() as running:
        await running.create_topic("orders")
        finding = only(await examined(running.namesrv, topic="ordesr"))
    assert (finding.subject, finding.message) == (
        "topic ordesr",
        "it does not exist (did you mean orders?)",
    )
    assert finding.fix == f"turbopump topic create ordesr -n '{running.namesrv}'"


@in_loop
async def test_a_topic_that_the_name_server_has_forgotten() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        broker = await servers.broker(namesrv)
        await servers.topic(broker, "orders")
        await servers.client.call(namesrv, DeleteTopicInNamesrv(topic="orders"))
        finding = only(await examined(namesrv, topic="orders"))
    assert (
        finding.message
        == f"{broker} has it, and no name server knows it: the broker cannot register"
    )


@pytest.mark.parametrize(
    ("read", "write", "says"),
    [
        (
            1,
            3,
            "on broker-a 2 queues with messages cannot be read (readQueueNums=1 writeQueueNums=3)",
        ),
        (0, 0, "on broker-a it has no queue"),
    ],
)
@in_loop
async def test_a_topic_whose_queues_do_not_fit(read: int, write: int, says: str) -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        broker = await servers.broker(namesrv)
        await servers.topic(broker, "orders", read, write)
        finding = only(await examined(namesrv, topic="orders"))
    assert finding.message == says
    assert finding.fix.startswith("turbopump topic alter orders --")


@pytest.mark.parametrize(("perm", "what"), [(4, "sent to"), (2, "read from")])
@in_loop
async def test_a_topic_that_may_not_be_used(perm: int, what: str) -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        broker = await servers.broker(namesrv)
        await servers.client.call(broker, CreateTopic(topic="orders", perm=perm), timeout=60)
        finding = only(await examined(namesrv, topic="orders"))
    assert finding.message == f"it cannot be {what} on broker-a (perm {perm})"
    assert finding.fix == f"turbopump topic alter orders --perm 6 -n '{namesrv}'"


@in_loop
async def test_a_broker_from_which_the_permission_to_write_was_wiped() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        broker = await servers.broker(namesrv)
        await servers.topic(broker, "orders")
        await servers.client.call(namesrv, WipeWritePerm(broker_name="broker-a"))
        finding = only(await examined(namesrv, topic="orders"))
    assert "the permission is removed at the name server" in finding.message
    assert "turbopump broker drain broker-a --undo" in finding.fix


@in_loop
async def test_a_topic_that_is_not_on_every_broker() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        broker = await servers.broker(namesrv)
        other = await servers.broker(namesrv, broker_name="broker-b")
        await servers.topic(broker, "orders")
        found = await examined(namesrv, topic="orders")
    assert wrong(found) == []
    (note,) = [finding for finding in found if finding.level is Level.NOTE]
    assert note.message == f"it is not on {other}"
    assert "--if-not-exists" in note.fix


# --- a group


@in_loop
async def test_a_group_that_no_broker_knows() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        broker = await servers.broker(namesrv)
        billing = fastjson.encode(SubscriptionGroupConfig(group_name="billing"))
        await servers.client.call(broker, CreateGroup(), billing)
        finding = only(await examined(namesrv, group="biling"))
    assert finding.message == "no broker knows it (did you mean billing?)"


@in_loop
async def test_a_group_that_may_consume_nothing() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        broker = await servers.broker(namesrv)
        config = SubscriptionGroupConfig(group_name="billing", consume_enable=False)
        await servers.client.call(broker, CreateGroup(), fastjson.encode(config))
        finding = only(await examined(namesrv, group="billing"))
    assert finding.message == f"{broker} forbids it to consume (consumeEnable=false)"


@in_loop
async def test_messages_that_wait_while_no_consumer_runs() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        await servers.topic(await servers.broker(namesrv), "orders")
        await fill(namesrv)
        consumer = await servers.consumer(namesrv)
        (await consumer.take(1))[0].done()
        await consumer.commit(acknowledged=True)
        await consumer.close()
        finding = only(await examined(namesrv, topic="orders", group="billing"))
    assert finding.message == "lag 2, and no consumer of the group is running"


@in_loop
async def test_consumers_that_subscribe_to_something_else() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        broker = await servers.broker(namesrv)
        await servers.topic(broker, "orders")
        await servers.topic(broker, "ordered")
        await servers.consumer(namesrv, topic="ordered")
        finding = only(await examined(namesrv, topic="orders", group="billing"))
    assert finding.message == (
        "its consumers do not subscribe to orders (did you mean ordered?); "
        "they subscribe to: ordered"
    )


@in_loop
async def test_consumers_that_do_not_agree() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        await servers.topic(await servers.broker(namesrv), "orders")
        await servers.consumer(namesrv, tags="A")
        await servers.consumer(namesrv, tags="B")
        found = await examined(namesrv, group="billing")
    assert wrong(found) != []
    assert all("turbopump consumer status billing" in one.fix for one in found if one.fix)


@in_loop
async def test_a_consumer_that_is_known_to_one_broker_alone_and_tells_nothing() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        broker = await servers.broker(namesrv)
        other = await servers.broker(namesrv, broker_name="broker-b")
        subscription = clients.SubscriptionData(topic="orders", sub_string="*")
        consumer = clients.ConsumerData(
            group_name="billing",
            consume_type=clients.ConsumeType.CONSUME_PASSIVELY,
            message_model=clients.MessageModel.CLUSTERING,
            subscription_data_set=(subscription,),
        )
        heartbeat = clients.HeartbeatData(client_id="bare", consumer_data_set=(consumer,))
        await servers.client.call(broker, clients.Heartbeat(), fastjson.encode(heartbeat))
        found = wrong(await examined(namesrv, group="billing"))
    said = [says for _, says in found]
    assert (
        f"the broker {other} does not know the consumer bare, which therefore reads nothing from it"
        in said
    )
    assert any(says.startswith("the consumer bare does not answer: ") for says in said)


def dead_letters(findings: list[Diagnosis]) -> list[Diagnosis]:
    return [finding for finding in findings if finding.message == "it has 1 dead letter"]


@in_loop
async def test_dead_letters_are_a_note() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        await servers.topic(await servers.broker(namesrv), "orders")
        await fill(namesrv, count=1)
        consumer = await servers.consumer(namesrv)
        (await consumer.take(1))[0].retry(level=-1)
        await consumer.commit(acknowledged=True)
        async with asyncio.timeout(30):
            while not (notes := dead_letters(await examined(namesrv, group="billing"))):
                pass
    assert notes[0].fix == f"turbopump dlq show billing -n '{namesrv}'"
    assert notes[0].level is Level.NOTE


# --- the command


def test_the_exit_code_says_whether_all_is_well(
    rocketmq: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "-n", rocketmq.namesrv]) == 0
    assert capsys.readouterr().out.endswith("no problem found\n")
    assert main(["doctor", "-n", rocketmq.namesrv, "-t", "orders", "--group", "billing"]) == 1
    told = capsys.readouterr()
    assert "WRONG  topic orders: it does not exist\n       -> turbopump topic create" in told.out
    assert told.out.endswith("2 problems\n")
    assert told.err == ""


def test_programs_get_one_json_value(
    rocketmq: BrokerThread, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "-n", rocketmq.namesrv, "-t", "orders", "--output", "json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert answer["healthy"] is False
    levels = [one["level"] for one in answer["findings"] if not of_this_machine(one["message"])]
    assert levels == ["ok", "ok", "wrong"]
    assert answer["findings"][-1]["subject"] == "topic orders"


# --- masters and slaves


@in_loop
async def test_a_master_without_the_slave_that_it_waits_for() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        await servers.broker(namesrv, broker_role=BrokerRole.SYNC_MASTER, in_sync_replicas=2)
        finding = only(await examined(namesrv))
    assert finding.subject == "broker broker-a"
    assert finding.message.startswith("it waits for 1 slave (inSyncReplicas=2) and has 0")
    assert "turbopump broker -c FILE with brokerName=broker-a" in finding.fix


@in_loop
async def test_a_sync_master_without_the_key_waits_for_a_slave() -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        await servers.broker(namesrv, broker_role=BrokerRole.SYNC_MASTER)
        assert only(await examined(namesrv)).message.startswith("it waits for 1 slave")


@pytest.mark.parametrize("listed", ["", "10.0.0.6"])
@in_loop
async def test_an_ha_port_that_gives_the_log_to_anyone(listed: str) -> None:
    async with world() as servers:
        namesrv = await servers.name_server()
        await servers.broker(
            namesrv, bind_address="0.0.0.0", broker_ip1="127.0.0.1", ha_allowed_peers=listed
        )
        found = await examined(namesrv)
    notes = [one for one in found if "gives all messages to anyone" in one.message]
    assert [(one.level, one.subject) for one in notes] == [(Level.NOTE, "broker broker-a")] * (
        not listed
    )
    assert all("name the slaves' addresses in haAllowedPeers" in one.fix for one in notes)


@in_loop
async def test_two_masters_of_one_name_that_different_name_servers_know() -> None:
    async with world() as servers:
        one, other = await servers.name_server(), await servers.name_server()
        first, second = await servers.broker(one), await servers.broker(other)
        found = wrong(await examined(one, other))
    rivals = " and ".join(
        sorted((f"{first} (according to {one})", f"{second} (according to {other})"))
    )
    assert ("broker broker-a", f"it has two masters: {rivals}") in found
