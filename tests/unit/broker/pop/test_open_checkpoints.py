"""The state machine of POP, fed with records in any order."""

from turbopump.broker.pop.open_checkpoints import OpenCheckpoints
from turbopump.broker.pop.records import Acknowledgement, Checkpoint, PopKey
from turbopump.protocol import fastjson

KEY = PopKey("T", "g", 0, 5, 1000, "b")


def checkpoint(count: int = 3) -> Checkpoint:
    return Checkpoint(
        start_offset=5,
        pop_time=1000,
        invisible_time=500,
        count=count,
        topic="T",
        group="g",
        distances=list(range(count)),
        broker_name="b",
    )


def test_a_checkpoint_is_written_as_apache_writes_it() -> None:
    assert fastjson.encode(checkpoint(2)) == (
        b'{"bm":0,"bn":"b","c":"g","d":[0,1],"it":500,"n":2,"pt":1000,"q":0,"ro":0,"so":5,"t":"T"}'
    )
    assert fastjson.decode(
        b'{"bm":1,"c":"g","it":500,"n":2,"pt":1000,"q":0,"so":5,"t":"T"}', Checkpoint
    ).unacknowledged() == [6]
    assert KEY.unique_id(5, "ck") == "T@0@5@g@1000@b@ck"


def test_acknowledgements_are_written_as_apache_writes_them() -> None:
    assert (
        fastjson.encode(Acknowledgement.of(KEY, [6]))
        == b'{"ao":6,"bn":"b","c":"g","pt":1000,"q":0,"so":5,"t":"T"}'
    )
    assert fastjson.encode(Acknowledgement.of(KEY, [5, 6])) == (
        b'{"ao":-1,"aol":[5,6],"bn":"b","c":"g","pt":1000,"q":0,"so":5,"t":"T"}'
    )


def test_what_is_left_is_what_nobody_acknowledged() -> None:
    opened = OpenCheckpoints("b", 10)
    opened.add_checkpoint(checkpoint(), 10)
    opened.add_acknowledgement(Acknowledgement.of(KEY, [6]), 1500, 11)
    opened.read = 12
    assert opened.ripe_entries(1499) == []
    (entry,) = opened.ripe_entries(1500)
    assert entry.left == [5, 7]
    assert opened.position == 10
    opened.close_entry(entry)
    assert (opened.position, opened.next_time_ms) == (12, None)


def test_a_checkpoint_that_is_wholly_acknowledged_is_closed_at_once() -> None:
    opened = OpenCheckpoints("b", 0)
    opened.add_checkpoint(checkpoint(), 0)
    opened.add_acknowledgement(Acknowledgement.of(KEY, [5, 6, 7]), 1500, 1)
    assert len(opened) == 0


def test_an_acknowledgement_may_come_before_its_checkpoint_and_holds_the_place() -> None:
    opened = OpenCheckpoints("b", 0)
    opened.add_acknowledgement(Acknowledgement.of(KEY, [5]), 1500, 3)
    opened.read = 4
    assert opened.position == 3
    opened.add_checkpoint(checkpoint(), 4)
    (entry,) = opened.ripe_entries(1500)
    assert (entry.left, entry.first) == ([6, 7], 3)


def test_a_checkpoint_that_comes_twice_changes_nothing() -> None:
    opened = OpenCheckpoints("b", 0)
    opened.add_checkpoint(checkpoint(), 0)
    opened.add_acknowledgement(Acknowledgement.of(KEY, [5]), 1500, 1)
    opened.add_checkpoint(checkpoint(), 2)
    assert [entry.left for entry in opened.ripe_entries(1500)] == [[6, 7]]


def test_records_without_a_broker_name_are_of_this_broker() -> None:
    opened = OpenCheckpoints("b", 0)
    record = checkpoint()
    record.broker_name = None
    opened.add_checkpoint(record, 0)
    opened.add_acknowledgement(Acknowledgement.of(KEY, [5, 6, 7]), 1500, 1)
    assert len(opened) == 0
