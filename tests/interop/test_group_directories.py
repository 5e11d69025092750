"""A store directory changes hands between our broker and Apache's: a group of our consumers and
Java's goes on at its place, and the settings of groups hold, after clean stops and after kills,
both ways.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from tests.interop.apache import NEWEST, NEWEST_4
from tests.interop.members import BESIDE, Deliveries, foreign_member, our_member
from tests.interop.our_clients import (
    CALL_SECONDS,
    PATIENCE_SECONDS,
    eventually,
    letter,
    make_groups,
    make_topics,
    patient_producer,
    read_all,
    settled,
)
from tests.interop.patient_apache import PATIENT
from tests.interop.shared_directory import SMALL_FILES, SharedDirectory
from tests.interop.store_ledger import offset_of
from tests.interop.tools import skipping_without_tools

from turbopump import Producer, PullConsumer, SendResult
from turbopump.errors import ResponseError
from turbopump.protocol import fastjson
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.fastjson_read import FastjsonError
from turbopump.protocol.requests.groups import (
    GetAllGroups,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from turbopump.protocol.requests.send import ConsumerSendMsgBack
from turbopump.remoting.client import RemotingClient

TOPIC, GROUP = "handed-over", "handed-over-group"
QUEUES = 4  # as make_topics makes them
ROUND = 20
SETTINGS = {**PATIENT, **SMALL_FILES, "flushConsumerOffsetInterval": 500}
JAVA = {NEWEST: "java-5.3.3", NEWEST_4: "java-4.9.8"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[str]]]:
    """Apache's version -> its directory's story."""
    with ThreadPoolExecutor(len(JAVA)) as pool:
        yield {
            version: pool.submit(run, version, tmp_path_factory.mktemp(version)) for version in JAVA
        }


@pytest.mark.parametrize("version", JAVA)
def test_a_group_goes_on_at_its_place_and_its_settings_hold_when_the_directory_changes_hands(
    version: str, runs: dict[str, Future[str]], summary: list[str]
) -> None:
    with skipping_without_tools():
        detail = runs[version].result()
    summary.append(f"apache-{version:10} {detail}")


def run(version: str, directory: Path) -> str:
    command = BESIDE[JAVA[version]]()
    started = time.monotonic()
    with SharedDirectory(
        version, directory, SETTINGS, only_ours={"enabledAppendPropCRC": True}
    ) as shared:
        turns = Turns(shared, command, directory)
        shared.turn("ours", turns.next, signal.SIGTERM)
        turns.check_file()
        shared.turn("apache", turns.next, signal.SIGKILL)
        shared.turn("ours", turns.next, signal.SIGKILL)
        shared.turn("apache", turns.next, signal.SIGTERM)
        turns.check_file()
        shared.turn("ours", turns.next, signal.SIGTERM)
    return (
        f"{time.monotonic() - started:6.2f} s  a group's places and settings: {len(turns.sent)} "
        f"messages in {turns.count} turns"
    )


class Turns:
    """In each turn the group first gets what was sent when nobody consumed, at the end of the turn
    before, and nothing else of before."""

    def __init__(self, shared: SharedDirectory, command: list[str], directory: Path) -> None:
        self.sent: list[SendResult] = []
        self.count = 0
        self._shared = shared
        self._broker = shared.cluster.broker
        self._offsets = shared.cluster.store / "config" / "consumerOffset.json"
        self._command = command
        self._directory = directory
        self._consumed = 0
        self._groups: list[SubscriptionGroupConfig] = []
        self._dead = 0

    async def next(self, namesrv: str) -> None:
        if self.count == 0:
            await make_topics(namesrv, self._broker, TOPIC)
        async with patient_producer(namesrv) as producer:
            await self._check_groups(namesrv)
            await self._make_groups()
            await self._consume(namesrv, producer)
            await self._send(producer)  # for the next one
        await eventually("the offsets are saved", self.persisted)
        self.count += 1

    # --- places
    # ----------------------------------------------------------------------------------------------

    async def _consume(self, namesrv: str, producer: Producer) -> None:
        """Ours and Java's take turns in being the first, who is alone with what was left."""
        deliveries = Deliveries()
        waiting = set(range(self._consumed, len(self.sent)))
        async with AsyncExitStack() as stack:
            ours = our_member(deliveries, "0.0.0.1", namesrv, TOPIC, GROUP)
            theirs = foreign_member(
                *(f"java-{self.count}", self._command, namesrv, TOPIC, GROUP),
                directory=self._directory,
                said=lambda words: deliveries.read("java", words),
            )
            if self.count % 2:
                await stack.enter_async_context(ours)
                await eventually(
                    "ours consumes what was left", lambda: deliveries.done() == waiting
                )
                stop_theirs = await stack.enter_async_context(theirs)
            else:
                stop_theirs = await stack.enter_async_context(theirs)
                await eventually(
                    "Java's consumes what was left", lambda: deliveries.done() == waiting
                )
                await stack.enter_async_context(ours)
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                last = await self._send(producer)
                await eventually(
                    "all come",
                    lambda: deliveries.done() == set(range(self._consumed, len(self.sent))),
                )
                if deliveries.shared(last, ("0.0.0.1", "java")):
                    break
                assert time.monotonic() < deadline, "they never share the queues"
            await stop_theirs()
            await eventually("ours has the queues of Java's", lambda: len(ours.queues) >= QUEUES)
            await settled(self._broker, TOPIC, len(self.sent), ours)
        assert min(one.number for one in deliveries.all) == self._consumed, (
            "nothing comes that was consumed before"
        )
        self._consumed = len(self.sent)

    async def _send(self, producer: Producer) -> range:
        queues = await producer.publish_queues(TOPIC)
        assert len(queues) == QUEUES
        numbers = range(len(self.sent), len(self.sent) + ROUND)
        for number in numbers:
            self.sent.append(
                await producer.send(letter(TOPIC, number), queue=queues[number % QUEUES])
            )
        return numbers

    def persisted(self) -> bool:
        """Whether the group's places are in the file, which is being replaced now and then."""
        try:
            table = fastjson.decode(self._offsets.read_bytes(), dict[str, object])["offsetTable"]
        except (OSError, FastjsonError, KeyError):
            return False
        assert isinstance(table, dict)
        return sum(table.get(f"{TOPIC}@{GROUP}", {}).values()) == self._consumed

    def check_file(self) -> None:
        """After a clean stop."""
        assert self.persisted(), self._offsets.read_text()

    # --- settings
    # ----------------------------------------------------------------------------------------------

    async def _make_groups(self) -> None:
        """One that may not consume, and one whose messages are dead letters when they are sent back
        for the first time."""
        made = [
            SubscriptionGroupConfig(
                group_name=f"shut-{self.count}",
                consume_enable=False,
                consume_timeout_minute=20 + self.count,
            ),
            SubscriptionGroupConfig(
                group_name=f"strict-{self.count}",
                retry_max_times=0,
                retry_queue_nums=2 + self.count,
                consume_broadcast_enable=False,
                which_broker_when_consume_slowly=3,
                notify_consumer_ids_changed_enable=False,
            ),
        ]
        await make_groups(self._broker, *made)
        self._groups += made

    async def _check_groups(self, namesrv: str) -> None:
        """Those of all turns before: what the broker says of them, and what it does."""
        client = RemotingClient()
        try:
            table = await group_table(client, self._broker)
            for wanted in self._groups:
                assert facts(table[wanted.group_name or ""]) == facts(wanted)
            if self._groups:
                self._dead += 1
            for turn in range(self.count):
                await self._check_shut(namesrv, f"shut-{turn}")
                await self._check_strict(client, namesrv, turn)
        finally:
            await client.close()

    async def _check_shut(self, namesrv: str, group: str) -> None:
        async with PullConsumer(namesrv, group=group) as consumer:
            with pytest.raises(ResponseError) as refused:
                await consumer.pull((await consumer.queues(TOPIC))[0], 0)
        assert refused.value.code == ResponseCode.NO_PERMISSION

    async def _check_strict(self, client: RemotingClient, namesrv: str, turn: int) -> None:
        group = f"strict-{turn}"
        request = ConsumerSendMsgBack(
            offset=offset_of(self.sent[0]), group=group, delay_level=0, origin_topic=TOPIC
        )
        await client.call(self._broker, request, timeout=CALL_SECONDS)
        wanted = self._dead - turn  # one of each turn since
        async with PullConsumer(namesrv, group="undertaker") as reader:
            assert len(await read_all(reader, f"%DLQ%{group}", wanted)) == wanted


async def group_table(client: RemotingClient, broker: str) -> dict[str, SubscriptionGroupConfig]:
    frame = await client.exchange(broker, GetAllGroups(), timeout=CALL_SECONDS)
    return fastjson.decode(frame.body, SubscriptionGroupWrapper).subscription_group_table


def facts(group: SubscriptionGroupConfig) -> tuple[object, ...]:
    """What both lines of Apache's know of a group."""
    return (
        *(
            group.group_name,
            group.consume_enable,
            group.consume_broadcast_enable,
            group.retry_max_times,
            group.retry_queue_nums,
        ),
        *(group.which_broker_when_consume_slowly, group.notify_consumer_ids_changed_enable),
    )
