"""Our clients against Apache's 5.3.3 broker with access control on: signed requests are taken, others refused with a remedy.

On the way, what only a real broker can show: a new topic made before its first message, each kind of compression, traces.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from tests.interop.apache import NEWEST, ApacheCluster
from tests.interop.conftest import skipping_without_tools
from tests.interop.our_clients import read_all

from turbopump import AutoBatch, Credentials, Message, Producer, PullConsumer, PushConsumer
from turbopump.client.offset_store import ConsumeFrom
from turbopump.client.trace import TRACE_TOPIC
from turbopump.errors import SendError

USER = Credentials("rocketmq", "12345678")
SETTINGS: dict[str, str | int | bool] = {
    "authenticationEnabled": True,
    "authenticationProvider": "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": USER.access_key, "password": USER.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": USER.access_key, "secretKey": USER.secret_key}),
    "authorizationEnabled": True,
    "authorizationProvider": "org.apache.rocketmq.auth.authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider",
    "traceTopicEnable": True,
    "waitTimeMillsInSendQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}
PATIENCE = 60.0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheCluster]:
    made = ApacheCluster(NEWEST, directory=tmp_path_factory.mktemp("guarded"), heap="384m", broker_config=SETTINGS)
    with skipping_without_tools():
        try:
            made.start()
            yield made
        finally:
            made.kill()


def test_signed_requests_of_every_kind_are_taken(cluster: ApacheCluster) -> None:
    async def story() -> None:
        topic, body = "guarded", b"a letter \xc3\xbc " * 1000
        settings = {"credentials": USER, "send_timeout": PATIENCE}
        async with (
            Producer(cluster.namesrv, trace=True, **settings) as producer,  # type: ignore[arg-type]
            Producer(cluster.namesrv, auto_batch=AutoBatch(), **settings) as batching,  # type: ignore[arg-type]
            PullConsumer(cluster.namesrv, group="reader", credentials=USER) as reader,
        ):
            assert producer.client_id == reader.client_id
            assert len(await producer.publish_queues(topic)) == 4  # the topic was made just now
            sent = [await producer.send(topic, b"plain", keys="k1", properties={"name": "grün"})]
            for kind in ("zlib", "lz4", "zstd"):
                async with Producer(cluster.namesrv, compression=kind, **settings) as other:  # type: ignore[arg-type]
                    sent.append(await other.send(topic, body))
            sent.append(await producer.send_batch([Message(topic, f"b{i}") for i in range(3)]))
            sent += await asyncio.gather(*(batching.send(topic, f"a{i}") for i in range(20)))
            await producer.send_oneway(topic, b"oneway")
            received = await read_all(reader, topic, 4 + 3 + 20 + 1)
            bodies = sorted(message.body for message in received)
            assert bodies == sorted(
                [b"plain", body, body, body, b"oneway", *(b"b%d" % i for i in range(3)), *(b"a%d" % i for i in range(20))]
            )
            places = {(message.queue_id, message.queue_offset): message.msg_id for message in received}
            for result in sent[5:]:
                assert places[result.queue.queue_id, result.queue_offset] == result.msg_id
        async with PushConsumer(
            cluster.namesrv, group="traces", topic=TRACE_TOPIC, credentials=USER, consume_from=ConsumeFrom.FIRST
        ) as traces:
            async with asyncio.timeout(PATIENCE):
                async for message in traces:
                    if sent[0].msg_id in message.keys:
                        fields = message.body.decode().split("\x02")[0].split("\x01")
                        assert (fields[0], fields[2], fields[4], fields[5]) == ("Pub", "DefaultRegion", topic, sent[0].msg_id)
                        assert fields[12] == sent[0].offset_msg_id
                        break

    asyncio.run(story())


@pytest.mark.parametrize("credentials", [None, Credentials("rocketmq", "wrong"), Credentials("nobody", "12345678")])
def test_who_is_not_let_in_learns_what_to_check(cluster: ApacheCluster, credentials: Credentials | None) -> None:
    async def story() -> None:
        async with Producer(cluster.namesrv, credentials=credentials, send_timeout=PATIENCE, retries=0) as producer:
            with pytest.raises(SendError, match="credentials") as caught:
                await producer.send("guarded-too", b"x")
            assert "12345678" not in str(caught.value)

    asyncio.run(story())
