"""Queues are divided exactly as Apache's own classes did (recorded by tests/golden/recorder)."""

from __future__ import annotations

import pytest
from tests.golden.recorded import Recorded, of_kind
from tests.stand_ins import returns

from turbopump.client.allocation import (
    STRATEGIES,
    Strategy,
    allocate_average,
    allocate_by_configuration,
    allocate_by_machine_room,
    allocate_consistent_hash,
    allocate_nearby,
)
from turbopump.message.message import MessageQueue

BROKERS = ("broker-a", "room-1@broker-b", "room-2@broker-c", "room-3@", "a@b@c")


def room_of_queue(queue: MessageQueue) -> str:
    return queue.broker_name.split("@")[0] if "@" in queue.broker_name else "nowhere"


BY_NAME: dict[str, Strategy] = {
    **STRATEGIES,
    "MACHINE_ROOM": allocate_by_machine_room({"room-1", "room-3", "a"}),
    "MACHINE_ROOM_NEARBY-AVG": allocate_nearby(
        allocate_average, room_of_queue, lambda client: client[:6]
    ),
}


@pytest.mark.parametrize("recorded", of_kind("allocation"))
def test_each_client_gets_what_apaches_strategy_gives_it(recorded: Recorded) -> None:
    queues = sorted(
        MessageQueue("Orders", broker, number)
        for broker in BROKERS
        for number in range(recorded["queuesEach"])
    )
    shares: dict[str, list[str]] = recorded["shares"]
    clients = sorted(shares)
    strategy = BY_NAME[recorded["strategy"]]
    ours = {
        client: [f"{q.broker_name}:{q.queue_id}" for q in strategy(queues, clients, client)]
        for client in clients
    }
    assert ours == shares


def test_configured_queues_are_ours_whoever_else_is_there() -> None:
    ours = [MessageQueue("Orders", "broker-a", 3)]
    assert allocate_by_configuration(ours)([], ["x", "y"], "y") == ours


def test_a_retry_topic_is_shared_by_all_members_unless_its_queues_are_configured() -> None:
    retry = [MessageQueue("%RETRY%billing", "broker-a", n) for n in range(2)]
    ours = [MessageQueue("Orders", "broker-a", 3)]
    assert allocate_by_configuration(ours)(retry, ["x", "y"], "y") == retry[1:]
    assert allocate_by_configuration([*ours, retry[0]])(retry, ["x", "y"], "y") == [*ours, retry[0]]


def test_a_ring_without_points_gives_nothing() -> None:
    assert allocate_consistent_hash(0)([MessageQueue("Orders", "broker-a", 3)], ["x"], "x") == []


def test_a_broker_without_a_room_is_named() -> None:
    strategy = allocate_nearby(allocate_average, returns(""), returns("here"))
    with pytest.raises(ValueError, match=r"no machine room is known for .*broker-a"):
        strategy([MessageQueue("Orders", "broker-a", 3)], ["x"], "x")
