"""Our clients against Apache's brokers with access control on, 5.3.3's and the older one of 4.9.7:
signed requests are taken, others refused with a remedy.

On the way, what only a real broker can show: a new topic made before its first message, each kind
of compression, traces.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.interop.accounts import ADMIN as USER
from tests.interop.accounts import APACHES_ON
from tests.interop.apache import NEWEST, NEWEST_4, ApacheCluster
from tests.interop.java_consumer import check_read, read_by_java
from tests.interop.our_clients import CALL_SECONDS, PATIENCE_SECONDS, letters, read_all
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop
from tests.waits import until_logged

from turbopump import (
    AutoBatch,
    Credentials,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SendResult,
)
from turbopump.admin.access import accounts_at
from turbopump.admin.cluster import Servers
from turbopump.auth.server_access import ServerAccess
from turbopump.broker.slave_accounts import SlaveAccounts
from turbopump.cli.entry import DENIED
from turbopump.client.consumer.offsets import ConsumeFrom
from turbopump.client.trace import TRACE_TOPIC
from turbopump.config.broker_config import BrokerConfig
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import ResponseError, SendError

SETTINGS: dict[str, str | int | bool] = {
    **APACHES_ON,
    "traceTopicEnable": True,
    "waitTimeMillsInSendQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}


SETTINGS_4: dict[str, str | int | bool] = {
    "aclEnable": True,
    "traceTopicEnable": True,
    "waitTimeMillsInSendQueue": 60_000,
    "osPageCacheBusyTimeOutMills": 60_000,
}
ACCOUNTS_4 = f"""accounts:
- accessKey: {USER.access_key}
  secretKey: '{USER.secret_key}'
  admin: true
  defaultTopicPerm: PUB|SUB
  defaultGroupPerm: SUB
"""


@pytest.fixture(scope="module", params=[NEWEST, NEWEST_4])
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheCluster]:
    old = request.param == NEWEST_4
    settings = SETTINGS_4 if old else SETTINGS
    made = ApacheCluster(
        request.param,
        directory=tmp_path_factory.mktemp("guarded"),
        heap="384m",
        broker_config=settings,
    )
    made.write_configuration()
    if old:
        (made.directory / "conf" / "plain_acl.yml").write_text(ACCOUNTS_4)
    with skipping_without_tools():
        try:
            made.start()
            yield made
        finally:
            made.kill()


@in_loop
async def test_signed_requests_of_every_kind_are_taken(cluster: ApacheCluster) -> None:
    topic, body = "guarded", b"a letter \xc3\xbc " * 1000
    settings = {"credentials": USER, "send_timeout": CALL_SECONDS}
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
            [
                b"plain",
                body,
                body,
                body,
                b"oneway",
                *(b"b%d" % i for i in range(3)),
                *(b"a%d" % i for i in range(20)),
            ]
        )
        places = {(message.queue_id, message.queue_offset): message.msg_id for message in received}
        for result in sent[5:]:
            assert places[result.queue.queue_id, result.queue_offset] == result.msg_id
    async with PushConsumer(
        cluster.namesrv,
        group="traces",
        topic=TRACE_TOPIC,
        credentials=USER,
        consume_from=ConsumeFrom.FIRST,
    ) as traces:
        async with asyncio.timeout(PATIENCE_SECONDS):
            async for message in traces:
                if sent[0].msg_id in message.keys:
                    fields = message.body.decode().split("\x02")[0].split("\x01")
                    assert (fields[0], fields[2], fields[4], fields[5]) == (
                        "Pub",
                        "DefaultRegion",
                        topic,
                        sent[0].msg_id,
                    )
                    assert fields[12] == sent[0].offset_msg_id
                    break


async def send(cluster: ApacheCluster, sent: Any) -> list[SendResult]:
    async with Producer(cluster.namesrv, credentials=USER, send_timeout=CALL_SECONDS) as producer:
        return [await producer.send(message) for message in sent]


def test_javas_signed_consumer_reads_what_we_sent_signed(
    cluster: ApacheCluster, tmp_path: Path
) -> None:
    topic = "guarded-letters"
    sent = letters(topic, 20)

    results = asyncio.run(send(cluster, sent))
    outcome, received = read_by_java(
        "5.3.3", cluster.namesrv, {("-", topic): len(sent)}, tmp_path / "java", USER
    )
    assert received[topic], (outcome.reports, outcome.stderr)
    check_read(sent, received[topic], results)


@pytest.mark.parametrize(
    "credentials", [None, Credentials("rocketmq", "wrong"), Credentials("nobody", "12345678")]
)
@in_loop
async def test_who_is_not_let_in_learns_what_to_check(
    cluster: ApacheCluster, credentials: Credentials | None
) -> None:
    async with Producer(
        cluster.namesrv, credentials=credentials, send_timeout=CALL_SECONDS, retries=0
    ) as producer:
        with pytest.raises(SendError, match="credentials") as caught:
            await producer.send("guarded-too", b"x")
        assert "12345678" not in str(caught.value)


@in_loop
async def test_our_commands_make_a_user_who_then_does_what_the_policy_says(
    cluster: ApacheCluster, tmp_path: Path
) -> None:
    if cluster.version != NEWEST:
        pytest.skip("users and policies can be made by request since 5.3")
    ordinary, password = Credentials("ordinary", "some-secret"), tmp_path / "password"
    password.write_text(ordinary.secret_key)
    for name, user in (("admin", USER), ("wrong", Credentials(USER.access_key, "wrong"))):
        text = f"accessKey: {user.access_key}\nsecretKey: '{user.secret_key}'\n"
        (tmp_path / f"{name}.yml").write_text(text)

    def said(command: str, who: str = "admin") -> tuple[int, str]:
        given = ["-n", cluster.namesrv, "--credentials", str(tmp_path / f"{who}.yml")]
        done = subprocess.run(
            [sys.executable, "-m", "turbopump", *command.split(), *given],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CALL_SECONDS,
        )
        return done.returncode, done.stdout + done.stderr

    assert said("topic create ours --queues 2")[0] == 0
    assert said(f"auth user create ordinary --password-file {password}")[0] == 0
    assert said("auth policy add ordinary --resource Topic:ours --action Pub --action Sub")[0] == 0
    assert said("auth policy add ordinary --resource Group:readers --action Sub")[0] == 0
    users = said("auth user list")[1]
    assert f"ordinary  Normal  enable  {cluster.broker}" in users
    assert "turbopump:" not in users, "a warning without a reason"
    assert ordinary.secret_key not in users
    assert said("auth test --user ordinary --action Pub --topic ours")[0] == 0
    assert said("auth test --user ordinary --action Pub --topic others")[0] == DENIED
    code, why = said("auth user list", "wrong")
    assert code == 1
    assert "check signature failed" in why.lower()

    settings = {"credentials": ordinary, "send_timeout": CALL_SECONDS, "retries": 0}
    async with Producer(cluster.namesrv, **settings) as producer:  # type: ignore[arg-type]
        sent = [(await producer.send("ours", f"{n}")).msg_id for n in range(10)]
        with pytest.raises(SendError, match="others"):
            await producer.send("others", b"x")
    async with PushConsumer(
        cluster.namesrv,
        group="readers",
        topic="ours",
        credentials=ordinary,
        consume_from=ConsumeFrom.FIRST,
    ) as consumer:
        taken: list[str] = []
        while len(taken) < len(sent):  # each queue brings its own
            for message in await consumer.take(10):
                message.done()
                taken.append(message.msg_id)
    assert sorted(taken) == sorted(sent)
    async with PullConsumer(cluster.namesrv, group="others", credentials=ordinary) as reader:
        (queue, *_) = await reader.queues("ours")
        with pytest.raises(ResponseError, match="others"):
            await reader.pull(queue, 0)
    assert said("auth user alter ordinary --disable")[0] == 0
    async with Producer(cluster.namesrv, **settings) as producer:  # type: ignore[arg-type]
        with pytest.raises(SendError, match="disabled"):
            await producer.send("ours", b"x")


@in_loop
async def test_our_slave_of_apaches_master_keeps_its_users_and_says_so(
    cluster: ApacheCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if cluster.version != NEWEST:
        pytest.skip("users can be listed by request since 5.3")
    access = ServerAccess(BrokerConfig(authentication_enabled=True), tmp_path, SystemDisk(), list)
    access.open()
    async with Servers([cluster.namesrv], USER) as servers:
        its = await accounts_at(servers, cluster.broker)
        assert its is not None
        assert its.accounts is not None
        assert (USER.access_key in its.accounts.users, its.passwords) == (True, False)
        copy = SlaveAccounts(access, USER, servers, lambda: cluster.broker)
        copy.start()
        try:
            await until_logged(caplog, "shows no passwords, as Apache's")
        finally:
            await copy.stop()
    assert (access.control.accounts.users, copy.rounds) == ({}, 0)


async def produce(cluster: ApacheCluster) -> None:
    async with Producer(cluster.namesrv, credentials=USER, send_timeout=CALL_SECONDS) as producer:
        for number in range(10):
            await producer.send("sparked", str(number), tags="odd" if number % 2 else "even")


def test_the_spark_source_reads_with_credentials_and_is_refused_without(
    cluster: ApacheCluster, tmp_path: Path
) -> None:
    pytest.importorskip("pyspark")
    from turbopump.spark.batch import BatchReader
    from turbopump.spark.options import read_options
    from turbopump.spark.stream import StreamReader

    asyncio.run(produce(cluster))
    given = {"nameServer": cluster.namesrv, "topic": "sparked", "columns": "body,tags"}
    with pytest.raises(ResponseError) as refused:
        BatchReader(read_options(given, {})).partitions()
    assert USER.secret_key not in str(refused.value)

    keys = {"accessKey": USER.access_key, "secretKey": USER.secret_key}
    for more in ({"tags": "odd"}, {"subscribePattern": "spark.*", "tags": "odd"}):
        chosen = {name: text for name, text in given.items() if name != "topic" or len(more) == 1}
        reader = BatchReader(read_options({**chosen, **keys, **more}))
        found = [
            row["body"]
            for task in reader.partitions()
            for batch in reader.read(task)
            for row in batch.to_pylist()
        ]
        assert sorted(found) == [b"1", b"3", b"5", b"7", b"9"]
    in_file = tmp_path / "keys.yml"
    in_file.write_text("".join(f"{name}: {text}\n" for name, text in keys.items()))
    environment = {"TURBOPUMP_ACCESS_KEY": USER.access_key, "TURBOPUMP_SECRET_KEY": USER.secret_key}
    for options in (
        read_options({**given, "credentialsFile": str(in_file)}, {}),
        read_options(given, environment),
    ):
        reader = BatchReader(options)
        counts = [batch.num_rows for task in reader.partitions() for batch in reader.read(task)]
        assert sum(counts) == 10
    stream = StreamReader(read_options({**given, **keys, "commitGroup": "spark-guarded"}))
    begin = stream.initialOffset()
    stream.commit(begin)
    stream.stop()
    resumed = StreamReader(read_options({**given, **keys, "startingGroup": "spark-guarded"}))
    assert resumed.initialOffset() == begin
