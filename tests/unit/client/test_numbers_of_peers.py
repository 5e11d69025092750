"""Answers of a name server and of brokers with any numbers in them: each is taken, or refused with
the one error, within a moment and without much memory."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.unit.client.scripted_answers import entry, reply

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.pop import PoppedDelivery, popped_messages
from turbopump.client.consumer.pull import pulled_messages
from turbopump.client.topic_route import topic_route
from turbopump.errors import BodyError, MessageError, TurbopumpError
from turbopump.message.batch import COUNT_MAX
from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.requests.clients import MEMBERS_MAX
from turbopump.protocol.requests.namesrv import (
    ROUTE_QUEUES_MAX,
    BrokerData,
    QueueData,
    TopicRouteData,
)
from turbopump.protocol.requests.offsets import QUEUE_OFFSET_MAX
from turbopump.protocol.requests.topics import QUEUES_MAX

PAGE = Path(__file__).parents[3] / "docs" / "explanations" / "limits.md"
EXAMPLES = 150
CPU_S = 2.0
MEMORY = 256 << 20
T = TypeVar("T")

COUNTS = st.one_of(
    st.sampled_from([-(2**31), -1, 0, 1, 4, QUEUES_MAX, QUEUES_MAX + 1, 2**31 - 1]),
    st.integers(-(2**31), 2**31 - 1),
)
OFFSETS = st.one_of(
    st.sampled_from([-(2**63), -1, 0, 1, 2**31, 2**62, 2**63 - 1]), st.integers(-(2**63), 2**63 - 1)
)
NAMES = st.sampled_from(["a", "b", "c", ""])
QUEUE = MessageQueue("T", "b", 0)


def test_the_page_of_limits_names_the_bounds() -> None:
    text = PAGE.read_text()
    for bound in (QUEUES_MAX, ROUTE_QUEUES_MAX, MEMBERS_MAX, COUNT_MAX, QUEUE_OFFSET_MAX):
        assert f"{bound:,}" in text


def in_bounds(action: Callable[[], T], *errors: type[TurbopumpError]) -> T | None:
    """What it gives, or None for one of these errors."""
    tracemalloc.start()
    began = time.process_time()
    try:
        return action()
    except errors:
        return None
    finally:
        spent, (_, peak) = time.process_time() - began, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert spent < CPU_S * 4  # tracing takes most of it
        assert peak < MEMORY


@st.composite
def routes(draw: Any) -> TopicRouteData:
    queues = st.builds(
        QueueData,
        broker_name=NAMES,
        read_queue_nums=COUNTS,
        write_queue_nums=COUNTS,
        perm=st.integers(0, 7),
    )
    parts = draw(st.lists(st.tuples(NAMES, st.one_of(COUNTS.map(str), st.text(max_size=3)))))
    addresses = st.dictionaries(OFFSETS, st.just("h:1"), max_size=3)
    return TopicRouteData(
        order_topic_conf=draw(
            st.sampled_from([None, ";".join(f"{name}:{count}" for name, count in parts)])
        ),
        queue_datas=draw(st.lists(queues, max_size=6)),
        broker_datas=draw(
            st.lists(st.builds(BrokerData, broker_name=NAMES, broker_addrs=addresses), max_size=4)
        ),
    )


@examples(60)
@given(routes())
def test_routes(data: TopicRouteData) -> None:
    body = fastjson.encode(data)
    taken = in_bounds(lambda: topic_route("T", fastjson.decode(body, TopicRouteData)), BodyError)
    counts = [(one.read_queue_nums, one.write_queue_nums) for one in data.queue_datas]
    if any(not 0 <= count <= QUEUES_MAX for pair in counts for count in pair):
        assert taken is None


@examples(EXAMPLES)
@given(offset=OFFSETS, following=OFFSETS, stored=st.lists(OFFSETS, max_size=4))
def test_answers_to_pulls(offset: int, following: int, stored: list[int]) -> None:
    body = b"".join(entry(one, b"x") for one in stored)
    found = in_bounds(partial(pulled_messages, body, QUEUE, offset, following, Delivery))
    assert found is not None
    assert [one.queue_offset for one in found[0]] == stored


@examples(EXAMPLES)
@given(
    stored=st.lists(OFFSETS, max_size=4),
    kinds=st.lists(st.tuples(st.integers(0, 3), COUNTS, st.lists(OFFSETS, max_size=4)), max_size=4),
)
def test_answers_to_pops(stored: list[int], kinds: list[tuple[int, int, list[int]]]) -> None:
    body = b"".join(entry(one, b"x") for one in stored)
    text = ";".join(f"{kind} {queue} {','.join(map(str, some))}" for kind, queue, some in kinds)
    in_bounds(lambda: popped_messages(body, reply(text), QUEUE, PoppedDelivery), MessageError)
