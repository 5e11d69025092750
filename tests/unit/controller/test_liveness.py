"""Which replicas are alive, and what is known of their logs."""

from __future__ import annotations

from turbopump.controller.election import Candidate
from turbopump.controller.liveness import REPLICAS_MAX, Beat, Liveness, ReplicaKey

A1, A2 = ReplicaKey("a", 1), ReplicaKey("a", 2)
OLD, NEW, NEWEST = 1, 2, 3


def beat(key: ReplicaKey, max_offset: int = 0, timeout: float = 3.0) -> Beat:
    return Beat(Candidate(key.id, 4, max_offset), f"10.0.0.{key.id}:10911", timeout)


def offset(table: Liveness, key: ReplicaKey) -> int | None:
    found = table.candidates(key.broker_name).get(key.id)
    return None if found is None else found.max_offset


def test_a_replica_is_alive_until_it_was_silent_for_its_own_time() -> None:
    table = Liveness()
    table.note_heartbeat(A1, OLD, beat(A1), 10.0)
    table.note_heartbeat(A2, NEW, beat(A2, timeout=10.0), 10.0)
    assert table.expire(13.0) == []
    assert table.expire(13.1) == [(A1, OLD)]
    assert table.candidates("a").keys() == {2}
    assert (table.lost_at(A1), table.lost_at(A2)) == (10.0, None)
    assert table.timeout("a") == 10.0


def test_an_ended_connection_is_death_at_once() -> None:
    table = Liveness()
    table.note_heartbeat(A1, OLD, beat(A1), 10.0)
    assert table.end_connection(OLD, 10.5) == [A1]
    assert table.candidates("a") == {}
    assert table.lost_at(A1) == 10.5
    table.note_heartbeat(A1, NEW, beat(A1), 11.0)
    assert table.lost_at(A1) is None


def test_replicas_that_are_alive_have_sent_a_heartbeat_since_a_time() -> None:
    table = Liveness()
    table.note_heartbeat(A1, OLD, beat(A1), 10.0)
    table.note_heartbeat(A2, NEW, beat(A2), 10.5)
    assert table.all_heard_since("a", (1, 2, 3), 9.9)
    assert not table.all_heard_since("a", (1, 2), 10.0)
    assert table.all_heard_since("a", (2,), 10.0)


def test_what_is_known_goes_down_with_a_new_connection() -> None:
    table = Liveness()
    table.note_heartbeat(A1, OLD, beat(A1, 500), 10.0)
    table.note_heartbeat(A1, NEW, beat(A1, 300), 10.1)
    assert offset(table, A1) == 300
    assert table.end_connection(OLD, 0.0) == []  # it carries nobody any more
    assert offset(table, A1) == 300


def test_what_is_known_is_forgotten_at_a_registration() -> None:
    table = Liveness()
    table.note_heartbeat(A1, OLD, beat(A1, 500), 10.0)
    table.note_registration(A1, NEW)
    assert offset(table, A1) is None
    assert not table.note_heartbeat(A1, OLD, beat(A1, 500), 10.1)  # was on its way
    assert table.end_connection(OLD, 0.0) == []
    assert table.note_heartbeat(A1, NEW, beat(A1, 300), 10.2)
    assert offset(table, A1) == 300
    assert table.end_connection(NEW, 0.0) == [A1]


def test_a_heartbeat_of_the_same_connection_stays_known_at_a_registration() -> None:
    table = Liveness()
    table.note_heartbeat(A1, OLD, beat(A1, 500), 10.0)
    table.note_registration(A1, OLD)
    assert offset(table, A1) == 500


def test_a_time_in_which_nothing_was_read_counts_as_no_silence() -> None:
    table = Liveness()
    table.note_heartbeat(A1, OLD, beat(A1), 10.0)
    table.excuse(30.0)
    assert table.expire(43.0) == []
    assert table.expire(43.1) == [(A1, OLD)]


def test_one_connection_carries_a_bounded_number_of_replicas() -> None:
    table = Liveness()
    for id_ in range(REPLICAS_MAX):
        assert table.note_heartbeat(ReplicaKey("a", id_), OLD, beat(A1), 10.0)
    assert not table.note_heartbeat(ReplicaKey("a", REPLICAS_MAX), OLD, beat(A1), 10.0)
    assert table.counts() == {"a": REPLICAS_MAX}
    assert len(table.end_connection(OLD, 0.0)) == REPLICAS_MAX
    assert table.counts() == {}


def test_a_cleaned_replica_is_forgotten() -> None:
    table = Liveness()
    table.note_heartbeat(A1, OLD, beat(A1), 10.0)
    table.forget(A1)
    assert table.candidates("a") == {}
    assert table.end_connection(OLD, 0.0) == []
