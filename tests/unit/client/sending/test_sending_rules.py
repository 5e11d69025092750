"""What a message carries: compression, namespaces, hooks, signatures; and what its error says. In
virtual time."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from tests.loops import in_loop, simulated
from tests.simulation.world.simulation import Simulation
from tests.unit.client.producers import producer_of
from tests.unit.client.scripted_cluster import ScriptedCluster, refusal, scripted_cluster
from tests.waits import until, until_some

from turbopump.auth.signatures import Credentials, RequestSigner
from turbopump.client.hooks import (
    EndTransactionContext,
    MessageKind,
    SendContext,
    SendHook,
    SendHooks,
)
from turbopump.client.producer import Producer
from turbopump.client.pull_consumer import PullConsumer
from turbopump.client.selectors import by_hash
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.errors import ClientErrorCode, ConfigError, MessageError, SendError
from turbopump.message.codec import decode_entry
from turbopump.message.message import Message, MessageQueue
from turbopump.message.properties import COMPRESSION_MASK, LZ4, ZLIB, ZSTD
from turbopump.protocol.codes import RequestCode, ResponseCode
from turbopump.protocol.command import Command, decode_command
from turbopump.protocol.requests.clients import Heartbeat, UnregisterClient
from turbopump.protocol.requests.namesrv import GetRouteInfo
from turbopump.protocol.requests.send import SendBatchMessage, SendMessageV2
from turbopump.remoting.router import RequestContext

TEXT = bytes(random.Random(1).choices(b"abcdefgh ", k=20_000))


# --- settings
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"send_timeout": "x"}, "send_timeout='x' must be a number of seconds above 0"),
        ({"send_timeout": float("nan")}, "send_timeout=nan must be"),
        ({"send_timeout": True}, "send_timeout=True must be"),
        ({"attempt_timeout": "1"}, "attempt_timeout='1' must be"),
        ({"retries": 1.5}, "retries=1.5 must be a whole number"),
        ({"body_size_max": 0}, "body_size_max=0 must be"),
        ({"body_size_max": "4M"}, "body_size_max='4M' must be"),
        ({"compress_from": -1}, "compress_from=-1 must be"),
    ],
)
def test_a_setting_that_cannot_be_is_refused_in_a_sentence(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        Producer("127.0.0.1:9876", **settings)


@in_loop(simulated)
async def test_a_selector_beside_a_sharding_key_is_refused(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster) as producer:
        with pytest.raises(ConfigError, match="a selector and a sharding_key were given"):
            await producer.send("orders", b"x", selector=by_hash("a"), sharding_key="b")


# --- content
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "flag"), [("zlib", ZLIB), ("lz4", LZ4), ("zstd", ZSTD)])
@pytest.mark.parametrize("level", [None, 1, 9])
@in_loop(simulated)
async def test_bodies_travel_compressed_in_the_kind_and_level_asked_for(
    simulation: Simulation, /, kind: str, flag: int, level: int | None
) -> None:
    settings = {"compression": kind, "compression_level": level}
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, **settings) as producer,
    ):
        result = await producer.send("orders", TEXT)
        ((request, body),) = [
            pair for pair in cluster.broker.received if isinstance(pair[0], SendMessageV2)
        ]
        entry = decode_entry(cluster.broker.entries["orders", result.queue.queue_id][0])
        assert request.sys_flag & COMPRESSION_MASK == flag
        assert len(body) < len(TEXT)
        entry.sys_flag = request.sys_flag  # the scripted broker does not keep it
        assert entry.body == TEXT


async def size_at(cluster: ScriptedCluster, level: int) -> int:
    async with producer_of(cluster, compression_level=level) as producer:
        await producer.send("orders", TEXT)
    return min(
        len(body) for request, body in cluster.broker.received if isinstance(request, SendMessageV2)
    )


@in_loop(simulated)
async def test_a_higher_level_makes_bodies_smaller(simulation: Simulation, /) -> None:
    async with scripted_cluster(simulation) as cluster:
        low = await size_at(cluster, 1)
        assert await size_at(cluster, 9) < low


@pytest.mark.parametrize(
    ("kind", "level"),
    [("gzip", None), ("zlib", 10), ("zlib", -1), ("zstd", 0), ("zstd", 23), ("lz4", 17)],
)
def test_an_unknown_kind_or_level_is_refused(kind: str, level: int | None) -> None:
    with pytest.raises(ConfigError, match="compression"):
        Producer("127.0.0.1:9876", compression=kind, compression_level=level)


# --- namespaces
# -----------------------------------------------------------------------------------------------


@in_loop(simulated)
async def test_a_namespace_wraps_names_on_the_wire_and_users_do_not_see_it(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation, topic="space%orders") as cluster,
        producer_of(cluster, namespace="space", group="sellers") as producer,
    ):
        queue = (await producer.publish_queues("orders"))[2]
        assert queue == MessageQueue("orders", "broker-a", 2)
        assert (await producer.send("orders", b"x", queue=queue)).queue == queue
        assert (
            await producer.send("orders", b"x", selector=lambda queues, _: queues[2])
        ).queue == queue
        assert (
            await producer.send_batch([Message("orders", b"x"), Message("orders", b"y")])
        ).queue.topic == "orders"
        await producer.send_oneway("orders", b"x", queue=queue)
        await until(cluster.broker.has_got, SendMessageV2, 3)
        for request in [
            *cluster.broker.requests(SendMessageV2),
            *cluster.broker.requests(SendBatchMessage),
        ]:
            assert (request.topic, request.producer_group) == ("space%orders", "space%sellers")
            assert "INSTANCE_ID\x01space\x02" in request.properties
        await until_some(cluster.broker.heartbeats)
        assert [data.group_name for data in cluster.broker.heartbeats[-1].producer_data_set] == [
            "space%sellers"
        ]
        with pytest.raises(MessageError, match="at most 127"):
            await producer.send("t" * 125, b"x")


class Wiretap:
    """Every request as it came, from whatever client, to name server and broker."""

    def __init__(self, cluster: ScriptedCluster) -> None:
        self.commands: list[Command] = []
        for server in (cluster.name_server.server, cluster.broker.server):
            assert server is not None
            for type_, handler in server.router.routes.values():
                tapped = self._tapped(handler)
                server.router.routes[int(type_.code)] = (type_, tapped)
            server.router.decoders.clear()

    def _tapped(self, handler):  # type: ignore[no-untyped-def]
        def tapped(request: object, context: RequestContext) -> object:
            self.commands.append(decode_command(context.frame))
            return handler(request, context)

        return tapped

    def codes(self) -> set[int]:
        return {command.code for command in self.commands}

    def has_seen(self, code: RequestCode) -> bool:
        return code in self.codes()


@in_loop(simulated)
async def test_a_namespace_of_the_second_kind_stands_in_every_request(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster:
        tap = Wiretap(cluster)
        async with producer_of(cluster, namespace_v2="space") as producer:
            await producer.send("orders", b"x")
            await until(tap.has_seen, RequestCode.HEART_BEAT)
        assert {
            GetRouteInfo.code,
            SendMessageV2.code,
            Heartbeat.code,
            UnregisterClient.code,
        } <= tap.codes()
        for command in tap.commands:
            assert command.ext is not None
            assert (command.ext["ns"], command.ext["nsd"]) == ("space", "true")


# --- signatures
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", [None, "token"])
@in_loop(simulated)
async def test_every_request_of_every_client_is_signed(
    simulation: Simulation, /, token: str | None
) -> None:
    credentials = Credentials("alice", "secret", token)
    async with scripted_cluster(simulation) as cluster:
        tap = Wiretap(cluster)
        async with (
            producer_of(cluster, credentials=credentials, namespace_v2="space") as producer,
            PullConsumer(
                cluster.name_server.address,
                group="readers",
                credentials=credentials,
                namespace_v2="space",
                **cluster.settings,
            ) as consumer,
        ):
            assert producer.client_id == consumer.client_id
            await producer.send("orders", TEXT, keys="k")
            await producer.send_batch([Message("orders", b"x"), Message("orders", b"y")])
            await producer.send_oneway("orders", b"x")
            queue = (await consumer.queues("orders"))[0]
            await consumer.pull(queue, 0)
            await consumer.commit(queue, 0)
            await until(tap.has_seen, RequestCode.HEART_BEAT)
        signer = RequestSigner(credentials)
        assert len(tap.codes()) >= 7
        for command in tap.commands:
            ext = dict(command.ext or {})
            signature = ext.pop("Signature")
            assert ext["AccessKey"] == "alice"
            assert ext.get("SecurityToken") == token
            assert signer(ext, command.body)["Signature"] == signature


@in_loop(simulated)
async def test_clients_of_other_credentials_share_no_connections_and_need_some(
    simulation: Simulation, /
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, credentials=Credentials("a", "s")) as one,
        producer_of(cluster, credentials=Credentials("b", "s")) as other,
    ):
        assert one.client_id != other.client_id
    with pytest.raises(ConfigError, match="secret_key is empty"):
        Credentials("a", "")


# --- hooks
# -----------------------------------------------------------------------------------------------


class Notes(SendHook):
    def __init__(self) -> None:
        self.said: list[str] = []
        self.contexts: list[SendContext] = []

    def before(self, context: SendContext) -> None:
        self.said.append(f"before {context.queue.broker_name}")
        context.state["n"] = len(self.said)

    def after(self, context: SendContext) -> None:
        self.contexts.append(context)
        self.said.append(f"after {context.queue.broker_name} {'good' if context.result else 'bad'}")


@in_loop(simulated)
async def test_hooks_see_each_attempt_before_and_after(simulation: Simulation, /) -> None:
    notes = Notes()
    async with (
        scripted_cluster(simulation, brokers=2) as cluster,
        producer_of(cluster, hooks=[notes]) as producer,
    ):
        for broker in cluster.brokers:
            broker.script[RequestCode.SEND_MESSAGE_V2].append(refusal(ResponseCode.SYSTEM_BUSY))
        cluster.brokers[1].script[RequestCode.SEND_MESSAGE_V2].clear()
        queue = MessageQueue("orders", "broker-a", 1)
        with pytest.raises(SendError):
            await producer.send("orders", b"x", queue=queue)
        await producer.send(Message("orders", b"x", tags="t", delay_level=3), queue=queue)
        assert notes.said == [
            "before broker-a",
            "after broker-a bad",
            "before broker-a",
            "after broker-a good",
        ]
        failed, done = notes.contexts
        assert isinstance(failed.error, Exception)
        assert done.result is not None
        assert (done.kind, done.properties["TAGS"], done.address) == (
            MessageKind.DELAY,
            "t",
            cluster.broker.address,
        )
        assert (done.state["n"], done.cost_ms >= 0) == (3, True)


@in_loop(simulated)
async def test_hooks_see_the_names_that_the_user_gave(simulation: Simulation, /) -> None:
    """In a namespace they once saw ``north%orders``."""
    notes = Notes()
    async with scripted_cluster(simulation) as cluster:
        cluster.name_server.route("north%orders", cluster.broker)
        async with producer_of(
            cluster, group="sellers", namespace="north", hooks=[notes]
        ) as producer:
            queue = (await producer.publish_queues("orders"))[1]
            await producer.send("orders", b"x", queue=queue)
            await producer.send_batch(
                [Message("orders", b"y"), Message("orders", b"z")], queue=queue
            )
            await producer.send_oneway("orders", b"x", queue=queue)
    assert [(seen.group, seen.topic, seen.queue) for seen in notes.contexts] == [
        ("sellers", "orders", queue)
    ] * 3
    results = [seen.result.queue for seen in notes.contexts if seen.result is not None]
    assert results == [queue] * 2
    assert queue == MessageQueue("orders", "broker-a", 1)
    sent = cluster.broker.requests(SendMessageV2)
    assert [(request.producer_group, request.topic) for request in sent] == [
        ("north%sellers", "north%orders")
    ] * 2


def test_hooks_see_the_names_that_the_user_gave_when_a_transaction_ends() -> None:
    ended: list[EndTransactionContext] = []

    class Hook(SendHook):
        def end_transaction(self, context: EndTransactionContext) -> None:
            ended.append(context)

    told = EndTransactionContext(
        "north%sellers", "north%orders", {}, "a:1", "ID", None, "COMMIT_MESSAGE", from_check=True
    )
    SendHooks([Hook()], "north").end_transaction(told)
    SendHooks([Hook()]).end_transaction(told)
    assert [(context.group, context.topic) for context in ended] == [
        ("sellers", "orders"),
        ("north%sellers", "north%orders"),
    ]


@in_loop(simulated)
async def test_a_hook_may_forbid_and_one_that_fails_changes_nothing(
    simulation: Simulation, /, caplog: pytest.LogCaptureFixture
) -> None:
    class Strict(SendHook):
        def forbid(self, context: SendContext) -> None:
            if "secret" in context.properties:
                raise MessageError("no secrets")

        def before(self, context: SendContext) -> None:
            raise RuntimeError("a bug of mine")

    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, hooks=[Strict()]) as producer,
    ):
        with pytest.raises(MessageError, match="no secrets"):
            await producer.send("orders", b"x", properties={"secret": "1"})
        assert cluster.broker.requests(SendMessageV2) == []
        await producer.send("orders", b"x")
        await producer.send_oneway("orders", b"x")
        await until(cluster.broker.has_got, SendMessageV2, 2)
    assert "a bug of mine" in caplog.text


@pytest.mark.parametrize("odd", [None, 5, ["a"], {5: "x"}, {"x": b"y"}])
@in_loop(simulated)
async def test_a_hook_that_makes_the_properties_something_else_changes_nothing(
    simulation: Simulation, /, odd: Any, caplog: pytest.LogCaptureFixture
) -> None:
    class Odd(SendHook):
        def before(self, context: SendContext) -> None:
            context.properties = odd

    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, hooks=[Odd()]) as producer,
    ):
        result = await producer.send("orders", b"x", properties={"mine": "stays"})
        stored = decode_entry(cluster.broker.entries["orders", result.queue.queue_id][0])
        assert (stored.properties["mine"], stored.msg_id) == ("stays", result.msg_id)
    assert "send hook's properties left out" in caplog.text


@pytest.mark.parametrize("change", [{"UNIQ_KEY": "mine"}, {"UNIQ_KEY": ""}, {}])
@in_loop(simulated)
async def test_a_hook_does_not_change_the_id_that_the_sender_is_told(
    simulation: Simulation, /, change: dict[str, str]
) -> None:
    class Renaming(SendHook):
        def before(self, context: SendContext) -> None:
            context.properties = {"added": "yes", **change}

    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, hooks=[Renaming()]) as producer,
    ):
        result = await producer.send("orders", b"x")
        stored = decode_entry(cluster.broker.entries["orders", result.queue.queue_id][0])
        assert (stored.properties["added"], stored.properties["UNIQ_KEY"]) == ("yes", result.msg_id)


# --- errors
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "remedy"),
    [
        (ResponseCode.TOPIC_NOT_EXIST, "turbopump topic create"),
        (ResponseCode.NO_PERMISSION, "credentials"),
        (ResponseCode.SYSTEM_BUSY, "overloaded"),
        (ResponseCode.SERVICE_NOT_AVAILABLE, "disk space"),
        (ResponseCode.MESSAGE_ILLEGAL, "size, properties"),
    ],
)
@in_loop(simulated)
async def test_an_error_says_what_was_tried_how_long_it_took_what_was_answered_and_what_to_check(
    simulation: Simulation, /, code: int, remedy: str
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster, retries=1) as producer:
        cluster.broker.script[RequestCode.SEND_MESSAGE_V2].extend([refusal(code, "because")] * 2)
        with pytest.raises(SendError) as caught:
            await producer.send("orders", b"x")
        error = caught.value
        text = str(error)
        for part in (
            "'orders'",
            "broker-a",
            cluster.broker.address,
            f"code {int(code)}",
            "because",
            " ms: ",
            remedy,
        ):
            assert part in text
        assert (error.topic, error.code, set(error.brokers)) == ("orders", code, {"broker-a"})
        assert error.spent_ms < 1000


@pytest.mark.parametrize(
    "ext",
    [{}, {"msgId": "x", "queueId": "zz", "queueOffset": "5"}, {"queueId": "0", "queueOffset": "5"}],
)
@pytest.mark.parametrize("hooked", [True, False])
@in_loop(simulated)
async def test_a_good_answer_that_cannot_be_read_is_a_send_error_and_nothing_is_sent_twice(
    simulation: Simulation, /, ext: dict[str, str], hooked: bool
) -> None:
    notes = Notes()
    settings = {"hooks": [notes]} if hooked else {}
    async with (
        scripted_cluster(simulation, brokers=2) as cluster,
        producer_of(cluster, **settings) as producer,
    ):
        for broker in cluster.brokers:
            answer = refusal(ResponseCode.SUCCESS)
            answer.ext = ext
            broker.script[RequestCode.SEND_MESSAGE_V2].extend([answer] * 2)
        for _ in range(2):  # the first makes the connection, the second finds it
            with pytest.raises(
                SendError,
                match=r"cannot be read: .*\. The message is most "
                r"likely stored",
            ) as caught:
                await producer.send("orders", b"x", queue=MessageQueue("orders", "broker-a", 0))
            assert (caught.value.topic, caught.value.brokers, caught.value.code) == (
                "orders",
                ("broker-a",),
                None,
            )
        with pytest.raises(SendError) as caught:
            await producer.send("orders", b"x")
        assert len(caught.value.brokers) == 1
        assert sum(len(broker.requests(SendMessageV2)) for broker in cluster.brokers) == 3
        assert [context.error is None for context in notes.contexts] == [False] * (
            3 if hooked else 0
        )
        assert producer.statistics.given_up == 3


@pytest.mark.parametrize(
    "settings", [{}, {"auto_batch": AutoBatch()}, {"back_pressure": BackPressure()}]
)
@in_loop(simulated)
async def test_what_is_no_queue_selector_or_batch_is_said_to_be_none(
    simulation: Simulation, /, settings: dict[str, Any]
) -> None:
    async with (
        scripted_cluster(simulation) as cluster,
        producer_of(cluster, **settings) as producer,
    ):
        odd: Any = "broker-a:0"
        told = "queue='broker-a:0' must be a MessageQueue; take one of"
        with pytest.raises(TypeError, match=told):
            await producer.send("orders", b"x", queue=odd)
        with pytest.raises(TypeError, match="selector='broker-a:0' must be a function"):
            await producer.send("orders", b"x", selector=odd)
        for batch in (odd, 5, [odd]):
            with pytest.raises(TypeError, match="a batch is a list of Message objects, not"):
                await producer.send_batch(batch)
        with pytest.raises(MessageError, match="recall_handle=5 must be the recall_handle"):
            await producer.recall("orders", 5)  # type: ignore[arg-type]
        assert cluster.broker.entries == {}


@in_loop(simulated)
async def test_a_broker_that_cannot_be_reached_is_named_with_its_advertised_address(
    simulation: Simulation, /
) -> None:
    async with scripted_cluster(simulation) as cluster, producer_of(cluster, retries=0) as producer:
        await producer.publish_queues("orders")
        await asyncio.sleep(1)
        await cluster.broker.stop()
        await asyncio.sleep(1)
        with pytest.raises(SendError, match=r"advertises .brokerIP1") as caught:
            await producer.send("orders", b"x")
        assert cluster.broker.address in str(caught.value)
        assert caught.value.code == ClientErrorCode.CONNECT_BROKER
