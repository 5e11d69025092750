"""A handler of ours that gets lists of messages, over Apache's brokers: without order with messages
that are sent back, in order with lists that fail in place, and popped. Nothing is lost, and
afterwards the group stands at the end of every queue.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
from tests.interop.apache import NEWEST, NEWEST_4, ApacheCluster
from tests.interop.either_servers import Servers, set_mode
from tests.interop.our_clients import (
    committed,
    eventually,
    letters,
    make_topics,
    numbers,
    patient_producer,
    send_all,
)
from tests.interop.patient_apache import patient_apache
from tests.loops import in_loop

from turbopump import ConsumeFrom, PullConsumer, PushConsumer
from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.pop import PoppedDelivery
from turbopump.protocol.requests.assignment import MessageRequestMode
from turbopump.remoting.client import RemotingClient

QUEUES = 4  # as make_topics makes them
LETTERS = 200
BATCH = 10
LEVELS = "1s 1s 1s 1s 1s"


@pytest.fixture(scope="module", params=[NEWEST, NEWEST_4])
def apache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApacheCluster]:
    with patient_apache(
        request.param, tmp_path_factory.mktemp(request.param), messageDelayLevel=LEVELS
    ) as cluster:
        yield cluster


class Lists:
    """What a plain handler got. Every tenth message fails the first time: by itself, or with all of
    its list that are not done yet. ``delay``: in seconds, when one that fails by itself comes again
    (None: as the broker has it), and no list fails as a whole then."""

    def __init__(self, *, in_order: bool = False, delay: float | None = None) -> None:
        self.sizes: list[int] = []
        self.handled: Counter[int] = Counter()
        self.attempts: dict[int, int] = {}
        self.offsets: defaultdict[int, list[int]] = defaultdict(list)
        self.kinds: set[type] = set()
        self._in_order = in_order
        self._delay = delay
        self._running: set[int] = set()

    def __call__(self, messages: list[Delivery]) -> None:
        (queue,) = {message.queue_id for message in messages}
        self.kinds.update(map(type, messages))
        self.sizes.append(len(messages))
        if self._in_order:
            assert queue not in self._running, "one list of a queue at a time"
        self._running.add(queue)
        try:
            for message in messages:
                (number,) = numbers([message])
                self.attempts[number] = message.attempt
                if number % 10 == 0 and message.attempt == 1:
                    if number % 20 == 0 or self._delay is not None:
                        message.retry(self._delay)
                        if self._in_order:
                            return
                        continue
                    raise ZeroDivisionError
                self.handled[number] += 1
                self.offsets[queue].append(message.queue_offset)
                message.done()
        finally:
            self._running.discard(queue)


@pytest.mark.parametrize("way", ["pulled", "in order"])
@in_loop
async def test_lists_over_apaches_broker_and_where_the_group_stands_afterwards(
    way: str, apache: ApacheCluster, summary: list[str]
) -> None:
    started = time.monotonic()
    in_order = way == "in order"
    topic, group = f"lists-{way.replace(' ', '-')}", f"listers-{way.replace(' ', '-')}"
    lists = Lists(in_order=in_order)
    settings: dict[str, Any] = {"ordered": True, "suspend_time": 0.1} if in_order else {}
    await make_topics(apache.namesrv, apache.broker, topic)
    async with patient_producer(apache.namesrv) as producer:
        await send_all(producer, letters(topic, LETTERS))
    async with PushConsumer(
        *(apache.namesrv,),
        group=group,
        topic=topic,
        handler=lists,
        handler_batch=BATCH,
        consume_from=ConsumeFrom.FIRST,
        **settings,
    ):
        await eventually("all are handled", lambda: len(lists.handled) == LETTERS)
    client = RemotingClient()
    try:
        async with PullConsumer(apache.namesrv, group=group) as reader:
            ends = {queue: await reader.max_offset(queue) for queue in await reader.queues(topic)}
        assert sum(ends.values()) == LETTERS
        places = {
            queue: await committed(client, apache.broker, group, topic, queue.queue_id)
            for queue in ends
        }
        assert places == ends
        again = await committed(client, apache.broker, group, f"%RETRY%{group}", 0)
    finally:
        await client.close()
    failed = sum(attempt > 1 for attempt in lists.attempts.values())
    assert again == (0 if in_order else failed)
    assert set(lists.handled) == set(range(LETTERS))
    assert set(lists.handled.values()) == {1}, (
        "what was done before another failed did not come again"
    )
    assert all(lists.attempts[number] >= 2 for number in range(0, LETTERS, 10))
    assert 1 < max(lists.sizes) <= BATCH
    if in_order:
        for offsets in lists.offsets.values():
            assert offsets == list(range(len(offsets)))
    summary.append(f"lists of ours, {way}, {apache.version}: {time.monotonic() - started:.1f} s")


@pytest.mark.parametrize("apache", [NEWEST], indirect=True)
@in_loop
async def test_lists_that_are_popped_from_apaches_broker(
    apache: ApacheCluster, summary: list[str]
) -> None:
    started = time.monotonic()
    topic, group = "lists-popped", "listers-popped"
    lists = Lists(delay=1.0)
    await make_topics(apache.namesrv, apache.broker, topic)
    await set_mode(
        Servers(apache.version, apache.namesrv, apache.broker), topic, group, MessageRequestMode.POP
    )
    async with patient_producer(apache.namesrv) as producer:
        await send_all(producer, letters(topic, LETTERS))
    async with PushConsumer(
        *(apache.namesrv,),
        group=group,
        topic=topic,
        handler=lists,
        handler_batch=BATCH,
        consume_from=ConsumeFrom.FIRST,
        client_rebalance=False,
        pop_invisible_time=120,
    ):
        await eventually("all are handled", lambda: len(lists.handled) == LETTERS)
    assert lists.kinds == {PoppedDelivery}
    assert set(lists.handled.values()) == {1}
    assert {number for number, attempt in lists.attempts.items() if attempt == 2} == set(
        range(0, LETTERS, 10)
    )
    assert 1 < max(lists.sizes) <= BATCH
    summary.append(f"lists of ours, popped, {apache.version}: {time.monotonic() - started:.1f} s")
