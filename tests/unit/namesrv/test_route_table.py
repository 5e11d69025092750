"""The route table alone: registrations, questions and times in, values out."""

from functools import partial

from tests.unit.namesrv.registrations import MASTER, OTHER, SECOND_SLAVE, SLAVE, registration

from turbopump.namesrv.route_table import (
    Accepted,
    BrokerIdentity,
    Incomplete,
    Occupied,
    RouteTable,
    SmallestIdChange,
    Superseded,
)
from turbopump.protocol.requests.namesrv import QueueData
from turbopump.protocol.requests.topics import TopicQueueMappingInfo


def queues_of(table: RouteTable, topic: str) -> dict[str | None, int]:
    route = table.route(topic)
    return (
        {}
        if route is None
        else {queue.broker_name: queue.write_queue_nums for queue in route.queue_datas}
    )


def perms_of(table: RouteTable, topic: str) -> dict[str | None, int]:
    route = table.route(topic)
    return {} if route is None else {queue.broker_name: queue.perm for queue in route.queue_datas}


def addresses_of(table: RouteTable, topic: str) -> dict[int, str]:
    route = table.route(topic)
    return (
        {}
        if route is None
        else {
            key: value
            for broker in route.broker_datas
            for key, value in broker.broker_addrs.items()
        }
    )


def test_a_registered_broker_is_in_the_route_of_each_of_its_topics() -> None:
    table = RouteTable()
    assert table.register(registration(MASTER, {"T": 4, "U": 8}), "c1", 0.0) == Accepted()
    assert queues_of(table, "T") == {"broker-a": 4}
    assert queues_of(table, "U") == {"broker-a": 8}
    assert addresses_of(table, "T") == {0: "10.0.0.1:10911"}
    assert table.route("V") is None


def test_two_brokers_share_a_topic() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    table.register(registration(OTHER, {"T": 2, "W": 2}), "c2", 0.0)
    assert queues_of(table, "T") == {"broker-a": 4, "broker-b": 2}
    assert sorted(table.topics()) == ["T", "U", "W"]


def test_a_first_registration_with_a_single_topic_is_refused_and_leaves_no_trace() -> None:
    table = RouteTable()
    assert table.register(registration(MASTER, {"T": 4}), "c1", 0.0) == Incomplete()
    assert table.cluster_info().broker_addr_table == {}
    assert table.data_version("c", MASTER.address) is None


def test_a_single_changed_topic_of_a_registered_broker_is_taken_and_others_stay() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    assert table.register(registration(MASTER, {"T": 6}, version=2), "c1", 1.0) == Accepted()
    assert queues_of(table, "T") == {"broker-a": 6}
    assert queues_of(table, "U") == {"broker-a": 4}


def test_a_broker_without_topics_is_registered() -> None:
    table = RouteTable()
    assert table.register(registration(MASTER, {}), "c1", 0.0) == Accepted()
    assert table.member_group("c", "broker-a").broker_addrs == {0: MASTER.address}


def test_under_a_version_already_seen_only_new_topics_count() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    table.register(registration(MASTER, {"T": 9, "U": 4, "V": 3}), "c1", 1.0)
    assert queues_of(table, "T") == {"broker-a": 4}
    assert queues_of(table, "V") == {"broker-a": 3}


def test_topics_missing_from_a_registration_stay_unless_configured_otherwise() -> None:
    for delete, left in ((False, {"broker-a": 4}), (True, {})):
        table = RouteTable(delete_missing_topics=delete)
        table.register(registration(MASTER), "c1", 0.0)
        table.register(registration(MASTER, {"T": 4, "V": 1}, version=2), "c1", 1.0)
        assert queues_of(table, "U") == left
        assert queues_of(table, "T") == {"broker-a": 4}


def test_topics_missing_from_a_registration_that_says_it_is_partial_always_stay() -> None:
    table = RouteTable(delete_missing_topics=True)
    table.register(registration(MASTER), "c1", 0.0)
    table.register(registration(MASTER, {"V": 1}, version=2, partial=True), "c1", 1.0)
    assert set(table.topics()) == {"T", "U", "V"}
    table.register(registration(MASTER, {"V": 1}, version=3), "c1", 2.0)
    assert set(table.topics()) == {"V"}


def test_a_slave_of_four_x_brings_no_topics() -> None:
    table = RouteTable()
    table.register(registration(SLAVE, acting_master=None), "c1", 0.0)
    assert table.route("T") is None
    assert table.member_group("c", "broker-a").broker_addrs == {1: SLAVE.address}


def test_only_the_smallest_slave_of_five_x_brings_topics_while_there_is_no_master() -> None:
    table = RouteTable()
    table.register(registration(SLAVE, {"T": 4, "U": 4}), "c1", 0.0)
    table.register(registration(SECOND_SLAVE, {"T": 4, "X": 4}), "c2", 0.0)
    assert queues_of(table, "T") == {"broker-a": 4}
    assert table.route("X") is None


def test_a_slave_is_told_its_live_master_and_where_to_replicate_from() -> None:
    table = RouteTable()
    assert table.register(registration(SLAVE), "c1", 0.0) == Accepted()
    table.register(registration(MASTER), "c2", 0.0)
    assert table.register(registration(SLAVE), "c1", 1.0) == Accepted(
        MASTER.address, "10.0.0.1:10912"
    )


def test_an_address_has_one_id_so_that_a_slave_can_become_the_master() -> None:
    table = RouteTable()
    table.register(registration(SLAVE), "c1", 0.0)
    promoted = BrokerIdentity("c", "broker-a", 0, SLAVE.address)
    table.register(registration(promoted, version=2), "c1", 1.0)
    assert table.member_group("c", "broker-a").broker_addrs == {0: SLAVE.address}
    assert queues_of(table, "T") == {"broker-a": 4}


def test_a_broker_renamed_at_its_address_leaves_nothing_of_its_old_name() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    table.register(registration(BrokerIdentity("c", "renamed", 0, MASTER.address)), "c2", 1.0)
    assert list(table.cluster_info().broker_addr_table) == ["renamed"]
    assert queues_of(table, "T") == {"renamed": 4}


def test_of_two_owners_of_an_id_the_one_with_the_newer_state_stays() -> None:
    table = RouteTable()
    rival = BrokerIdentity("c", "broker-a", 0, "10.0.0.7:10911")
    table.register(registration(MASTER, state_version=5), "c1", 0.0)
    assert table.register(registration(rival, state_version=4), "c2", 1.0) == Superseded(
        MASTER.address
    )
    assert addresses_of(table, "T") == {0: MASTER.address}
    assert table.data_version("c", rival.address) is None


def test_a_name_moves_to_another_address_when_its_owner_is_gone_or_says_so_itself() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    moved = BrokerIdentity("c", "broker-a", 0, "10.0.0.7:10911")
    assert table.register(registration(moved, version=9), "c2", 1.0) == Occupied(MASTER, "c1")
    assert addresses_of(table, "T") == {0: MASTER.address}
    assert table.connection_lost("c2") == []
    assert table.register(registration(moved), "c1", 2.0) == Accepted()
    assert addresses_of(table, "T") == {0: moved.address}
    assert table.connection_lost("c1") == [moved]
    assert table.register(registration(MASTER), "c2", 3.0) == Accepted()
    assert table.register(registration(moved, state_version=1), "c3", 4.0) == Accepted(), (
        "a controller has chosen it"
    )
    assert addresses_of(table, "T") == {0: moved.address}


def test_a_broker_is_forgotten_after_its_own_time_out_and_its_connection_is_named() -> None:
    table = RouteTable()
    table.register(registration(MASTER, timeout_ms=10_000), "c1", 0.0)
    table.register(registration(OTHER), "c2", 0.0)
    assert table.expire(10.0) == []
    assert table.expire(10.001) == [(MASTER, "c1")]
    assert queues_of(table, "T") == {"broker-b": 4}
    assert table.expire(120.0) == []
    assert table.expire(120.001) == [(OTHER, "c2")]
    assert table.topics() == ()
    assert table.cluster_info().cluster_addr_table == {}


def test_a_heartbeat_or_a_registration_renews_the_belief() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    assert table.heartbeat("c", MASTER.address, 100.0)
    assert table.expire(219.0) == []
    table.register(registration(MASTER), "c1", 219.0)
    assert table.expire(338.0) == []
    assert table.expire(340.0) == [(MASTER, "c1")]
    assert not table.heartbeat("c", MASTER.address, 341.0)


def test_a_lost_connection_takes_every_broker_that_registered_over_it() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    table.register(registration(OTHER), "c1", 0.0)
    assert table.connection_lost("c1") == [MASTER, OTHER]
    assert table.topics() == ()


def test_the_loss_of_a_connection_that_was_replaced_takes_nothing() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "old", 0.0)
    table.register(registration(MASTER), "new", 1.0)
    assert table.connection_lost("old") == []
    assert queues_of(table, "T") == {"broker-a": 4}


def test_after_a_lost_connection_the_same_version_restores_the_route() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    table.connection_lost("c1")
    table.register(registration(MASTER), "c2", 1.0)
    assert queues_of(table, "T") == {"broker-a": 4}


def test_unregistering_needs_the_same_id_and_the_same_connection() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    assert not table.unregister(MASTER, "another")
    assert not table.unregister(BrokerIdentity("c", "broker-a", 1, MASTER.address), "c1")
    assert not table.unregister(BrokerIdentity("c", "broker-z", 0, MASTER.address), "c1")
    assert queues_of(table, "T") == {"broker-a": 4}
    assert table.unregister(MASTER, "c1")
    assert table.route("T") is None
    assert not table.unregister(MASTER, "c1")


def test_topics_stay_as_long_as_one_replica_of_the_broker_is_there() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    table.register(registration(SLAVE), "c2", 0.0)
    table.unregister(MASTER, "c1")
    assert addresses_of(table, "T") == {1: SLAVE.address}
    table.unregister(SLAVE, "c2")
    assert table.route("T") is None


def test_an_acting_master_is_shown_under_id_zero_without_write_permission() -> None:
    table = RouteTable(support_acting_master=True)
    table.register(registration(MASTER, acting_master=True), "c1", 0.0)
    table.register(registration(SLAVE, acting_master=True), "c2", 0.0)
    assert addresses_of(table, "T") == {0: MASTER.address, 1: SLAVE.address}
    table.unregister(MASTER, "c1")
    assert addresses_of(table, "T") == {0: SLAVE.address}
    assert perms_of(table, "T") == {"broker-a": 4}
    assert table.member_group("c", "broker-a").broker_addrs == {1: SLAVE.address}


def test_the_route_by_which_apache_s_brokers_look_for_their_master_shows_no_acting_one() -> None:
    table = RouteTable(support_acting_master=True)
    topic = "rmq_sys_SYNC_BROKER_MEMBER_broker-a"
    table.register(registration(SLAVE, {topic: 1, "T": 1}, acting_master=True), "c1", 0.0)
    assert addresses_of(table, topic) == {1: SLAVE.address}
    assert addresses_of(table, "T") == {0: SLAVE.address}


def test_the_brokers_of_a_name_are_told_which_of_them_has_the_smallest_id() -> None:
    table = RouteTable(support_acting_master=True)
    said: list[SmallestIdChange] = []
    table.on_smallest_id = said.append
    for broker, connection in ((MASTER, "c0"), (SLAVE, "c1"), (SECOND_SLAVE, "c2")):
        table.register(registration(broker, acting_master=True), connection, 0.0)
    table.unregister(SLAVE, "c1")
    assert said == []
    table.register(registration(SLAVE, acting_master=True), "c1", 0.0)
    table.connection_lost("c0")
    away = SmallestIdChange("broker-a", 1, SLAVE.address, MASTER.address, None, ("c2", "c1"))
    assert said == [away]
    table.register(registration(MASTER, acting_master=True), "c3", 0.0)
    back = SmallestIdChange("broker-a", 0, MASTER.address, None, "10.0.0.1:10912", ("c2", "c1"))
    assert said == [away, back]


def test_brokers_that_nobody_acts_for_are_told_nothing() -> None:
    table = RouteTable(support_acting_master=True)
    said: list[SmallestIdChange] = []
    table.on_smallest_id = said.append
    table.register(registration(MASTER), "c1", 0.0)
    table.register(registration(SLAVE), "c2", 0.0)
    table.unregister(MASTER, "c1")
    table.register(registration(MASTER), "c1", 0.0)
    assert said == []


def test_without_the_setting_a_slave_keeps_its_own_id() -> None:
    table = RouteTable()
    table.register(registration(SLAVE, acting_master=True), "c1", 0.0)
    assert addresses_of(table, "T") == {1: SLAVE.address}
    assert perms_of(table, "T") == {"broker-a": 4}


def test_write_permission_is_taken_until_it_is_given_back_whatever_the_broker_registers() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    assert table.wipe_write_perm("broker-a") == 2
    assert perms_of(table, "T") == {"broker-a": 4}
    table.register(registration(MASTER), "c1", 1.0)
    table.register(registration(MASTER, {"T": 8, "U": 4, "new": 1}, version=2), "c1", 2.0)
    table.set_queues("by hand", [QueueData(broker_name="broker-a", perm=6)])
    for topic in ("T", "U", "new", "by hand"):
        assert perms_of(table, topic) == {"broker-a": 4}
    assert queues_of(table, "T") == {"broker-a": 8}
    assert table.add_write_perm("broker-a") == 4
    assert perms_of(table, "new") == {"broker-a": 6}
    table.register(registration(MASTER, version=3), "c1", 3.0)
    assert perms_of(table, "T") == {"broker-a": 6}
    assert table.wipe_write_perm("nobody") == 0


def test_new_topics_can_inherit_from_a_broker_that_was_given_write_permission_back() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    table.set_queues("TBW102", [QueueData(broker_name="broker-a", perm=7)])
    table.wipe_write_perm("broker-a")
    assert perms_of(table, "TBW102") == {"broker-a": 5}
    table.add_write_perm("broker-a")
    assert perms_of(table, "TBW102") == {"broker-a": 7}


def test_a_broker_that_comes_back_can_be_written_to_again() -> None:
    table = RouteTable()
    for leave in (
        partial(table.connection_lost, "c1"),
        partial(table.unregister, MASTER, "c1"),
        partial(table.expire, 1000.0),
    ):
        for slave in (False, True):
            table.register(registration(MASTER), "c1", 0.0)
            if slave:
                table.register(registration(SLAVE), "c2", 900.0)
            table.wipe_write_perm("broker-a")
            leave()
            table.register(registration(MASTER), "c1", 1000.0)
            assert perms_of(table, "T") == {"broker-a": 6}


def test_the_loss_of_a_slave_leaves_write_permission_taken() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    table.register(registration(SLAVE), "c2", 0.0)
    table.wipe_write_perm("broker-a")
    table.connection_lost("c2")
    table.register(registration(MASTER, version=2), "c1", 1.0)
    assert perms_of(table, "T") == {"broker-a": 4}


def test_topics_are_listed_by_cluster() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    table.register(
        registration(BrokerIdentity("d", "broker-d", 0, "10.0.1.1:1"), {"T": 1, "X": 1}), "c2", 0.0
    )
    assert sorted(table.topics_of_cluster("d")) == ["T", "X"]
    assert sorted(table.topics_of_cluster("c")) == ["T", "U"]
    assert table.topics_of_cluster("e") == ()
    assert table.cluster_info().cluster_addr_table == {"c": ("broker-a",), "d": ("broker-d",)}


def test_filter_servers_stand_in_the_route_by_address() -> None:
    table = RouteTable()
    table.register(registration(MASTER, filter_servers=["10.0.0.1:30000"]), "c1", 0.0)
    route = table.route("T")
    assert route is not None
    assert route.filter_server_table == {MASTER.address: ["10.0.0.1:30000"]}


def test_static_topic_mappings_come_and_go_with_their_broker() -> None:
    table = RouteTable()
    wanted = registration(MASTER)
    wanted.topics.topic_queue_mapping_info_map["T"] = TopicQueueMappingInfo(
        topic="T", bname="broker-a"
    )
    table.register(wanted, "c1", 0.0)
    table.register(registration(OTHER), "c2", 0.0)
    route = table.route("T")
    assert route is not None
    assert list(route.topic_queue_mapping_by_broker or {}) == ["broker-a"]
    table.unregister(MASTER, "c1")
    route = table.route("T")
    assert route is not None
    assert route.topic_queue_mapping_by_broker is None


def test_a_route_does_not_change_under_its_reader() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    before = addresses_of(table, "T")
    table.register(registration(SLAVE), "c2", 0.0)
    assert before == {0: MASTER.address}


def test_a_deleted_topic_has_no_route_until_a_broker_that_has_it_says_so_again() -> None:
    table = RouteTable()
    table.register(registration(MASTER), "c1", 0.0)
    table.register(registration(BrokerIdentity("d", "broker-d", 0, "10.0.0.7:10911")), "c2", 0.0)
    assert table.delete_topic("T", "d") == 1
    assert (queues_of(table, "T"), queues_of(table, "U")) == (
        {"broker-a": 4},
        {"broker-a": 4, "broker-d": 4},
    )
    assert table.delete_topic("T") == 1
    assert "T" not in table.topics()
    assert (table.delete_topic("T"), table.delete_topic("U", "nowhere")) == (0, 0)
    table.register(registration(MASTER, version=2), "c1", 1.0)
    assert queues_of(table, "T") == {"broker-a": 4}
