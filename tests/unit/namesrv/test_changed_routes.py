"""Whoever keeps routes must hear of each change: any sequence of what brokers and operators do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.loops import in_loop
from tests.unit.namesrv.registrations import MASTER, OTHER, SECOND_SLAVE, SLAVE, registration
from tests.unit.namesrv.world import World, play

from turbopump.namesrv.encoded_routes import ROUTES_SIZE_MAX, EncodedRoutes
from turbopump.namesrv.route_table import BrokerIdentity, RouteTable
from turbopump.protocol.requests.namesrv import PutKvConfig, QueueData, WipeWritePerm

MOVED = replace(MASTER, address="10.0.0.7:10911")
BROKERS = (MASTER, SLAVE, SECOND_SLAVE, OTHER, MOVED)
TOPICS = ("T", "U", "V")

Act = Callable[[RouteTable], object]


def registers(
    broker: BrokerIdentity, queues: dict[str, int], version: int, acting: bool | None, filters: int
) -> Act:
    return lambda table: table.register(
        registration(
            broker, queues, version=version, acting_master=acting, filter_servers=["f"] * filters
        ),
        broker.address,
        now=version,
    )


def sets(topic: str, broker: BrokerIdentity, count: int) -> Act:
    queues = QueueData(
        broker_name=broker.name, read_queue_nums=count, write_queue_nums=count, perm=6
    )
    return lambda table: table.set_queues(topic, [queues])


brokers, topics, small = st.sampled_from(BROKERS), st.sampled_from(TOPICS), st.integers(1, 3)
acts = st.one_of(
    st.builds(
        registers,
        brokers,
        st.dictionaries(topics, small, max_size=3),
        small,
        st.sampled_from((None, False, True)),
        st.integers(0, 1),
    ),
    st.builds(sets, topics, brokers, small),
    brokers.map(lambda broker: lambda table: table.unregister(broker, broker.address)),
    brokers.map(lambda broker: lambda table: table.connection_lost(broker.address)),
    brokers.map(lambda broker: lambda table: table.wipe_write_perm(broker.name)),
    brokers.map(lambda broker: lambda table: table.add_write_perm(broker.name)),
    topics.map(lambda topic: lambda table: table.delete_topic(topic)),
    st.just(lambda table: table.expire(120_002.5)),
)


def forget(kept: Any, topic: str | None) -> None:
    for name in TOPICS if topic is None else (topic,):
        kept.pop(name, None)


@examples(150)
@given(st.booleans(), st.lists(acts, min_size=1, max_size=6))
def test_a_kept_route_is_the_tables_until_its_topic_is_told_to_have_changed(
    acting: bool, done: list[Act]
) -> None:
    table = RouteTable(support_acting_master=acting, delete_missing_topics=acting)
    for broker in (MASTER, SLAVE, OTHER):
        registers(broker, {"T": 1, "U": 1}, version=1, acting=acting, filters=0)(table)
    kept = {topic: msgspec.json.encode(table.route(topic)) for topic in TOPICS}

    table.on_change = partial(forget, kept)
    for act in done:
        act(table)
        for topic in TOPICS:
            now = msgspec.json.encode(table.route(topic))
            assert kept.setdefault(topic, now) == now


def test_a_broker_that_registers_the_same_again_changes_no_route() -> None:
    table, changes = RouteTable(), list[str | None]()
    table.register(registration(MASTER), MASTER.address, now=1)
    table.on_change = changes.append
    table.register(registration(MASTER), MASTER.address, now=31)
    table.register(registration(MASTER, version=2), MASTER.address, now=61)
    assert changes == []
    table.register(registration(MASTER, {"T": 4, "U": 5}, version=3), MASTER.address, now=91)
    assert changes == ["U"]


@in_loop(play, order_message_enable=True)
async def test_clients_hear_of_a_change_at_once(world: World, /) -> None:
    broker, client = world.peer(), world.peer()
    await broker.register()
    for _ in range(2):
        route = await client.route("T")
        assert route is not None
        assert (route.queue_datas[0].perm, route.order_topic_conf) == (6, None)
    await client.ask(WipeWritePerm(broker_name="broker-a"))
    order = PutKvConfig(kv_namespace="ORDER_TOPIC_CONFIG", key="T", value="broker-a:4")
    await client.ask(order)
    for _ in range(2):
        route = await client.route("T")
        assert route is not None
        assert (route.queue_datas[0].perm, route.order_topic_conf) == (4, "broker-a:4")


def test_encoded_routes_take_no_more_than_their_share_of_memory() -> None:
    routes, body = EncodedRoutes(), bytes(ROUTES_SIZE_MAX // 4)
    keys = [(f"T{number}", True, None) for number in range(6)]
    for key in keys:
        routes.keep_body(key, body)
    assert [routes.find_body(key) is not None for key in keys] == [False] * 4 + [True] * 2
    routes.forget_routes("T5")
    routes.keep_body(keys[0], body)
    assert routes.find_body(keys[0]) == body
    assert routes.find_body(keys[5]) is None
