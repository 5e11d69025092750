"""What the client decides without I/O: routes, queues to send to and to share, offsets to commit,
and the bytes of a send."""

from __future__ import annotations

import random
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import examples

from turbopump.client.consumer.delivery import Delivery
from turbopump.client.consumer.process_queue import ProcessQueue, PullLimits
from turbopump.client.consumer.rebalance import queue_change
from turbopump.client.consumer.subscription import tag_subscription
from turbopump.client.environment import Environment, name_server_addresses, program_name
from turbopump.client.sending.outgoing import Outgoing, SendFrames
from turbopump.client.sending.queue_chooser import FaultStrategy, LatencyFaults, RoundRobin
from turbopump.client.topic_route import inherited_route, topic_route
from turbopump.message.codec import decode_entry, encode_entry, encode_host
from turbopump.message.message import MessageQueue
from turbopump.message.queue_shares import allocate_average
from turbopump.protocol.command import decode_command, request_command
from turbopump.protocol.frame import FrameReader
from turbopump.protocol.requests.namesrv import BrokerData, QueueData, TopicRouteData
from turbopump.protocol.requests.send import SendBatchMessage, SendMessageV2, SendReplyMessageV2

A = BrokerData(broker_name="a", broker_addrs={0: "h:1", 1: "h:2"})
B = BrokerData(broker_name="b", broker_addrs={1: "h:3"})
BOTH = TopicRouteData(
    queue_datas=[
        QueueData(broker_name="b", read_queue_nums=2, write_queue_nums=2, perm=6),
        QueueData(broker_name="a", read_queue_nums=3, write_queue_nums=2, perm=6),
    ],
    broker_datas=[A, B],
)


def queues(*pairs: tuple[str, int]) -> list[MessageQueue]:
    return [MessageQueue("t", broker, queue_id) for broker, queue_id in pairs]


@pytest.mark.parametrize(
    ("module", "file", "name"),
    [
        ("shop.billing.__main__", "/x/__main__.py", "shop-billing"),
        ("shop.tool", "/x/tool.py", "shop-tool"),
        (None, "/opt/my shop/send.orders.py", "send-orders"),
        (None, "", "python"),
        (None, "/x/\u20ac.py", "python"),
        (None, "/x/" + "n" * 100, "n" * 64),
    ],
)
def test_a_program_is_called_by_its_module_or_file_in_characters_of_groups(
    monkeypatch: pytest.MonkeyPatch, module: str | None, file: str, name: str
) -> None:
    main = ModuleType("__main__")
    main.__spec__ = None if module is None else ModuleSpec(module, None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    monkeypatch.setattr(sys, "argv", [file])
    assert program_name() == name


def received(offset: int) -> Delivery:
    entry = encode_entry(
        queue_id=0,
        flag=0,
        queue_offset=offset,
        physical_offset=0,
        sys_flag=0,
        born_timestamp=0,
        born_host=encode_host("127.0.0.1", 1),
        store_timestamp=0,
        store_host=encode_host("127.0.0.1", 1),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"x",
        topic=b"t",
        properties=b"",
    )
    message = decode_entry(entry, message_type=Delivery)
    assert isinstance(message, Delivery)
    return message


def test_messages_are_written_to_masters_and_read_from_anybody() -> None:
    route = topic_route("t", BOTH)
    assert list(route.publish_queues) == queues(("a", 0), ("a", 1))
    assert list(route.subscribe_queues) == queues(("a", 0), ("a", 1), ("a", 2), ("b", 0), ("b", 1))
    assert route.master("b") is None
    assert route.readable_address("b") == "h:3"
    assert route.readable_address("a", 1) == "h:2"
    assert route.every_address(slaves=False) == {"h:1"}
    assert route.every_address(slaves=True) == {"h:1", "h:2", "h:3"}


@pytest.mark.parametrize(("perm", "writes", "reads"), [(6, 1, 1), (4, 0, 1), (2, 1, 0), (0, 0, 0)])
def test_permissions_decide_what_a_queue_is_for(perm: int, writes: int, reads: int) -> None:
    data = TopicRouteData(
        queue_datas=[QueueData(broker_name="a", read_queue_nums=1, write_queue_nums=1, perm=perm)],
        broker_datas=[A],
    )
    route = topic_route("t", data)
    assert (len(route.publish_queues), len(route.subscribe_queues)) == (writes, reads)


def test_an_ordered_topic_has_the_queues_it_was_given_once() -> None:
    data = TopicRouteData(
        order_topic_conf="a:2;b:1", queue_datas=BOTH.queue_datas, broker_datas=[A, B]
    )
    assert list(topic_route("t", data).publish_queues) == queues(("a", 0), ("a", 1), ("b", 0))


def test_a_new_topic_inherits_four_queues_at_most() -> None:
    default = TopicRouteData(
        queue_datas=[QueueData(broker_name="a", read_queue_nums=8, write_queue_nums=8, perm=7)],
        broker_datas=[A],
    )
    route = inherited_route("t", topic_route("TBW102", default))
    assert list(route.publish_queues) == queues(("a", 0), ("a", 1), ("a", 2), ("a", 3))
    assert route.inherited


def test_selection_skips_brokers_that_failed_unless_there_is_no_other() -> None:
    data = TopicRouteData(
        queue_datas=[
            QueueData(broker_name=n, read_queue_nums=2, write_queue_nums=2, perm=6) for n in "ab"
        ],
        broker_datas=[A, BrokerData(broker_name="b", broker_addrs={0: "h:3"})],
    )
    route = topic_route("t", data)
    choice = RoundRobin(random.Random(1))
    assert {choice.choose(route, ["a"]).broker_name for _ in range(8)} == {"b"}
    assert {choice.choose(route, ["a", "b"]).broker_name for _ in range(8)} == {"a"}
    assert len({RoundRobin(random.Random(seed)).choose(route) for seed in range(50)}) == 4


def test_when_all_brokers_failed_the_longest_ago_is_next_and_isolation_counts() -> None:
    data = TopicRouteData(
        queue_datas=[
            QueueData(broker_name=n, read_queue_nums=2, write_queue_nums=2, perm=6) for n in "abc"
        ],
        broker_datas=[BrokerData(broker_name=n, broker_addrs={0: "h:1"}) for n in "abc"],
    )
    route = topic_route("t", data)
    faults = FaultStrategy(LatencyFaults(detector=True))
    choice = RoundRobin(random.Random(1), faults)
    assert {choice.choose(route, "cab").broker_name for _ in range(12)} == {"c"}
    assert {choice.choose(route, "cabc").broker_name for _ in range(12)} == {"a"}
    assert {choice.choose(route, "aaa").broker_name for _ in range(12)} == {"b", "c"}
    faults.failed("c", 0.0, connection=True)
    assert {choice.choose(route, "cab").broker_name for _ in range(12)} == {"a"}
    faults.failed("a", 0.0, connection=True)
    faults.failed("b", 0.0, connection=True)
    assert {choice.choose(route, "cab").broker_name for _ in range(12)} == {"c"}  # nobody is better
    alone = topic_route(
        "t", TopicRouteData(queue_datas=data.queue_datas[:1], broker_datas=data.broker_datas[:1])
    )
    assert choice.choose(alone, "aa").broker_name == "a"


@given(st.integers(0, 40), st.integers(1, 12))
def test_average_shares_every_queue_once_and_evenly(count: int, members: int) -> None:
    all_queues = queues(*(("a", i) for i in range(count)))
    clients = [f"c{i:02}" for i in range(members)]
    shares = [allocate_average(all_queues, clients, client) for client in clients]
    assert [queue for share in shares for queue in share] == all_queues
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@pytest.mark.parametrize(
    ("count", "members", "expected"),
    [
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (4, 4, [[0], [1], [2], [3]]),
        (2, 3, [[0], [1], []]),
        (0, 1, [[]]),
    ],
)
def test_average_is_apaches(count: int, members: int, expected: list[list[int]]) -> None:
    all_queues = queues(*(("a", i) for i in range(count)))
    clients = [f"c{i}" for i in range(members)]
    assert [
        [queue.queue_id for queue in allocate_average(all_queues, clients, c)] for c in clients
    ] == expected


def test_a_rebalance_moves_only_what_it_must() -> None:
    all_queues = queues(("a", 0), ("a", 1), ("b", 0), ("b", 1))
    change = queue_change(all_queues, ["y", "x"], "x", queues(("a", 1), ("b", 0)), allocate_average)
    assert list(change.gained) == queues(("a", 0))
    assert list(change.lost) == queues(("b", 0))
    nothing = queue_change(all_queues, ["y"], "x", queues(("a", 1)), allocate_average)
    assert (list(nothing.gained), list(nothing.lost)) == ([], [])


def test_queues_of_other_topics_that_a_strategy_names_are_not_gained() -> None:
    ours = queues(("a", 0))
    elsewhere = [MessageQueue("%RETRY%readers", "a", 0)]
    change = queue_change(elsewhere, ["x"], "x", [], lambda *_: ours)
    assert (list(change.gained), list(change.lost)) == ([], [])


@examples(100)
@given(st.lists(st.integers(0, 5), min_size=1, max_size=60), st.randoms())
def test_the_offset_to_commit_is_the_lowest_that_is_not_done(
    gaps: list[int], chance: random.Random
) -> None:
    # growing, with holes that a filter left
    offsets = [sum(gaps[: i + 1]) + i for i in range(len(gaps))]
    queue = ProcessQueue(0)
    queue.add([received(offset) for offset in offsets], offsets[-1] + 3)
    undone = set(offsets)
    order = offsets[:]
    chance.shuffle(order)
    for offset in order:
        assert queue.commit_offset == min(undone)
        assert queue.in_flight == len(undone)
        queue.done(offset)
        queue.done(offset)  # a second word changes nothing
        undone.discard(offset)
    assert queue.commit_offset == offsets[-1] + 3


def test_pulling_waits_for_messages_bytes_and_span() -> None:
    queue = ProcessQueue(0)
    queue.add([received(0), received(2001)], 2002)
    assert queue.full()
    queue.done(0)
    assert not queue.full()
    for limits in (
        PullLimits(messages=1),
        PullLimits(bytes=50),
        PullLimits(topic_messages=7).divided_by(5),
    ):
        queue.limits = limits
        assert queue.full()


def test_the_queues_of_a_topic_share_its_limits_and_keep_their_own() -> None:
    limits = PullLimits(1000, 1 << 20, 2000, topic_messages=100, topic_bytes=10)
    assert limits.divided_by(4) == (25, 2, 2000, None, None)
    assert limits.divided_by(200)[:2] == (1, 1), "each may have one message"
    assert PullLimits(10, topic_messages=100).divided_by(2).messages == 10


@pytest.mark.parametrize("text", ["*", "", "  "])
def test_no_tags_means_all(text: str) -> None:
    subscription = tag_subscription("t", text, 1)
    assert subscription.wants(received(0))
    assert subscription.data().sub_string == "*"


@pytest.mark.parametrize("type_", [SendMessageV2, SendBatchMessage, SendReplyMessageV2])
@pytest.mark.parametrize("properties", ["", 'KEYS\x01"quoted"\x02TAGS\x01grün\x02'])
def test_a_prepared_send_frame_means_what_the_generic_one_means(
    type_: type[SendMessageV2], properties: str
) -> None:
    queue = MessageQueue("orders", "broker-a", 3)
    batch = type_ is SendBatchMessage
    frames = SendFrames("sellers", code=SendMessageV2.code if batch else type_.code)
    ids = ("id",) if batch else ()
    outgoing = Outgoing("orders", b"body", properties, 1, 9, "id", ids)
    for _ in range(2):  # the second one comes from the kept part
        frame = frames.encode(outgoing, queue, 77, 1234567890123)
    request = type_(
        producer_group="sellers",
        topic="orders",
        queue_id=3,
        sys_flag=1,
        born_timestamp=1234567890123,
        flag=9,
        properties=properties,
        reconsume_times=0,
        unit_mode=False,
        batch=batch,
        broker_name="broker-a",
    )
    generic = request_command(request, b"body", opaque=77)
    (cut,) = FrameReader().feed(frame)
    command = decode_command(cut)
    for name in ("code", "opaque", "flag", "language", "version", "ext", "body"):
        assert getattr(command, name) == getattr(generic, name), name
    assert command.header(type(request)) == request


def test_client_ids_do_not_repeat() -> None:
    environment = Environment(local_ip="127.0.0.1")
    assert len({environment.new_instance_name() for _ in range(1000)}) == 1000


def test_name_servers_come_as_text_or_list_without_repetition() -> None:
    assert name_server_addresses("a:1; b:2;a:1") == ("a:1", "b:2")
    assert name_server_addresses(["b:2", "a:1"]) == ("b:2", "a:1")
