"""Sync state set of a master: what it confirms, and what it asks the controller for."""

from hypothesis import given
from hypothesis import strategies as st

from turbopump.replication.sync_state_set import EVERYTHING, LOST_S, SyncStateSet

A, B, C = 1, 2, 3


def of(*ids: int) -> frozenset[int]:
    return frozenset(ids)


def alone(
    *,
    epoch_start: int = 100,
    confirmed: int = 80,
    own_end: int = 100,
    size_min: int = 1,
    catch_up: float = 15.0,
) -> SyncStateSet:
    """Master A right after its election."""
    one = SyncStateSet(A, epoch_start, confirmed, catch_up=catch_up, size_min=size_min)
    one.note_own_end(own_end, 0.0)
    one.set_members(of(A), 5, 0.0)
    return one


def with_two(*, size_min: int = 1) -> SyncStateSet:
    """Master A, and B in the set. Both have 100."""
    one = alone(size_min=size_min)
    one.connect(B, 0.0, learner=False)
    one.acknowledge(B, 100, 100, 0.0)
    assert one.next_request(0.0) == of(A, B)
    one.set_members(of(A, B), 6, 0.0)
    return one


def test_before_the_controller_has_sent_a_set_nothing_is_confirmed_or_asked() -> None:
    one = SyncStateSet(A, 100, 80, catch_up=15.0, size_min=2)
    one.note_own_end(100, 0.0)
    assert (one.confirmed, one.next_request(0.0), one.is_writable) == (80, None, False)


def test_a_set_that_may_have_one_member_confirms_all_that_an_elected_master_has() -> None:
    one = alone()
    assert one.confirmed == 100
    assert one.is_writable


def test_an_elected_master_confirms_nothing_before_the_set_has_enough_members() -> None:
    one = alone(size_min=2)
    assert (one.confirmed, one.is_writable) == (80, False)
    full = with_two(size_min=2)
    assert (full.confirmed, full.is_writable) == (100, True)
    full.disconnect(B)
    full.next_request(1.0)
    full.set_members(of(A), 7, 1.0)
    full.note_own_end(150, 0.0)
    assert (full.confirmed, full.is_writable) == (100, False)


def test_a_slave_is_asked_for_when_it_has_all_that_is_confirmed_and_the_start_of_the_epoch() -> (
    None
):
    one = alone(epoch_start=100, own_end=100)
    one.connect(B, 0.0, learner=False)
    one.acknowledge(B, 90, 100, 0.0)
    assert one.next_request(0.0) is None
    one.acknowledge(B, 100, 100, 1.0)
    assert one.next_request(1.0) == of(A, B)
    assert one.next_request(1.0) is None, "it waits for the answer"


def test_under_load_the_confirmed_offset_waits_for_a_slave_that_joins() -> None:
    """Without that, the slave of a master alone in its set would never have all confirmed."""
    one = alone()
    one.connect(B, 0.0, learner=False)
    one.acknowledge(B, 100, 200, 0.0)
    one.note_own_end(300, 0.0)
    assert one.confirmed == 300
    one.acknowledge(B, 200, 300, 0.1)
    assert one.next_request(0.1) is None
    one.note_own_end(400, 0.0)
    assert one.confirmed == 300
    one.acknowledge(B, 300, 400, 0.2)
    assert one.next_request(0.2) == of(A, B)


def test_a_slave_that_does_not_join_in_time_does_not_count_any_more() -> None:
    one = alone()
    one.connect(B, 0.0, learner=False)
    one.acknowledge(B, 100, 200, 0.0)
    one.note_own_end(300, 0.0)
    one.acknowledge(B, 200, 300, 0.1)
    one.next_request(0.1)
    one.next_request(1.2)
    one.note_own_end(400, 0.0)
    assert one.confirmed == 400


def test_a_learner_is_never_asked_for() -> None:
    one = alone()
    one.connect(B, 0.0, learner=True)
    one.acknowledge(B, 100, 100, 0.0)
    assert one.next_request(0.0) is None


def test_a_member_that_is_asked_for_counts_before_the_answer() -> None:
    one = alone()
    one.connect(B, 0.0, learner=False)
    one.acknowledge(B, 100, 100, 0.0)
    one.next_request(0.0)
    one.note_own_end(150, 0.0)
    assert one.confirmed == 100
    one.acknowledge(B, 130, 150, 0.1)
    assert one.confirmed == 130


def test_a_member_that_left_counts_until_the_controller_has_taken_it_out() -> None:
    one = with_two()
    one.disconnect(B)
    one.note_own_end(150, 0.0)
    assert one.next_request(1.0) == of(A)
    assert one.confirmed == 100
    one.set_members(of(A), 7, 1.0)
    assert one.confirmed == 150


def test_a_request_without_an_answer_stays_open_until_a_newer_set_comes() -> None:
    one = alone()
    one.connect(B, 0.0, learner=False)
    one.acknowledge(B, 100, 100, 0.0)
    assert one.next_request(0.0) == of(A, B)
    one.disconnect(B)
    one.note_own_end(150, 0.0)
    one.repeat_request(0.5)
    one.set_members(of(A), 5, 1.0)  # as before: the request may still be on its way
    assert one.confirmed == 100
    assert one.next_request(1.0) == of(A), "the answer shows what became of the lost request"
    one.set_members(of(A), 6, 1.0)
    assert one.confirmed == 150


def test_a_lost_request_stays_open_after_a_later_one_is_refused() -> None:
    one = alone()
    one.connect(B, 0.0, learner=False)
    one.acknowledge(B, 100, 100, 0.0)
    one.next_request(0.0)
    one.repeat_request(0.0)
    one.note_own_end(150, 0.0)
    one.next_request(1.0)
    one.request_refused()
    assert one.confirmed == 100
    one.disconnect(B)
    assert one.next_request(120.0) == of(A)
    one.request_refused()
    assert one.next_request(120.1) is None, "TCP has given the lost one up"
    assert one.confirmed == 150


def test_a_refused_request_does_not_count() -> None:
    one = alone()
    one.connect(B, 0.0, learner=False)
    one.acknowledge(B, 100, 100, 0.0)
    one.next_request(0.0)
    one.note_own_end(150, 0.0)
    one.request_refused()
    assert one.confirmed == 150


def test_a_replica_that_the_controller_does_not_know_is_asked_for_again_once_it_reconnects() -> (
    None
):
    one = alone()
    for slave in (B, C):
        one.connect(slave, 0.0, learner=False)
        one.acknowledge(slave, 100, 100, 0.0)
    assert one.next_request(0.0) == of(A, B, C)
    one.request_refused(unknown=True)
    assert one.next_request(0.1) == of(A, B), "one after the other shows which one it is"
    one.request_refused(unknown=True)
    assert one.next_request(0.2) == of(A, C)
    one.set_members(of(A, C), 6, 0.2)
    assert one.next_request(0.3) is None
    one.disconnect(B)
    one.connect(B, 0.4, learner=False)
    one.acknowledge(B, 100, 100, 0.4)
    assert one.next_request(0.4) == of(A, B, C)


def test_a_slow_member_is_dropped_after_the_time_to_catch_up() -> None:
    one = with_two()
    one.note_own_end(500, 0.0)
    one.acknowledge(B, 110, 500, 14.0)
    one.acknowledge(B, 120, 900, 15.0)
    assert one.next_request(15.0) is None
    assert one.next_request(15.1) == of(A)


def test_a_member_that_lags_by_a_round_trip_stays() -> None:
    one = with_two()
    end = 100
    for second in range(60):
        one.note_own_end(end + 50, float(second))
        one.acknowledge(B, end, end + 50, float(second))
        end += 50
    assert one.next_request(60.0) is None


def test_a_member_with_the_whole_log_stays_while_nothing_is_stored() -> None:
    """Apache's slaves report an unchanged offset each 5 s only."""
    one = alone(catch_up=3.0)
    one.connect(B, 0.0, learner=False)
    one.acknowledge(B, 100, 100, 0.0)
    one.next_request(0.0)
    one.set_members(of(A, B), 6, 0.0)
    assert one.next_request(15.0) is None
    one.acknowledge(B, 100, 100, 15.0)
    one.note_own_end(150, 22.0)
    assert one.next_request(25.0) is None, "it has had 3 s for the new message"
    assert one.next_request(25.1) == of(A)


def test_a_member_that_never_connected_is_dropped_after_the_time_to_catch_up() -> None:
    one = alone()
    one.set_members(of(A, C), 6, 10.0)
    assert one.next_request(25.0) is None
    assert one.next_request(25.1) == of(A)


def test_a_member_that_comes_back_with_less_than_is_confirmed_is_dropped_at_once() -> None:
    one = with_two()
    one.connect(B, 1.0, learner=False)
    one.acknowledge(B, 90, 100, 1.0)
    assert one.confirmed == 100
    assert one.next_request(1.0) == of(A)


def test_a_member_that_connects_again_leaves_the_set_before_it_joins_again() -> None:
    """The controller does not elect a process that has started since it joined."""
    one = with_two()
    one.disconnect(B)
    one.connect(B, 1.0, learner=False)
    one.acknowledge(B, 100, 100, 1.0)
    assert one.next_request(1.0) == of(A)
    one.set_members(of(A), 7, 1.1)
    assert one.next_request(1.2) == of(A, B)


def test_a_member_that_connects_again_confirms_nothing_before_its_first_report() -> None:
    one = with_two()
    one.connect(B, 1.0, learner=False)
    one.note_own_end(150, 0.0)
    assert one.confirmed == 100


def test_an_older_set_is_ignored() -> None:
    one = with_two()
    one.set_members(of(A), 5, 1.0)
    assert one.ids == of(A, B)


def test_fewer_acknowledgements_may_be_counted() -> None:
    one = with_two()
    one.note_own_end(200, 0.0)
    one.acknowledge(B, 150, 200, 1.0)
    assert [one.acked_by(count) for count in (0, 1, 2)] == [EVERYTHING, 150, 150]


_IDS = st.sampled_from([B, C])
_EVENTS = st.one_of(
    st.tuples(st.just("grow"), st.integers(1, 50)),
    st.tuples(st.just("connect"), _IDS, st.integers(0, 60)),
    st.tuples(st.just("disconnect"), _IDS),
    st.tuples(st.just("copy"), _IDS, st.integers(1, 100)),
    st.tuples(st.just("ask"), st.integers(0, 20)),
    st.tuples(st.sampled_from(["apply", "answer", "refuse", "lose", "poll"])),
)


@given(events=st.lists(_EVENTS, max_size=60), size_min=st.integers(1, 2))
def test_what_is_confirmed_is_on_each_member_whenever_the_controller_elects(
    events: list[tuple[str | int, ...]], size_min: int
) -> None:
    """The controller may apply a request at any moment, and its answers may be lost."""
    one = alone(size_min=size_min)
    end, now, before = 100, 0.0, one.confirmed
    has = {A: 100, B: 0, C: 0}
    """The bytes that each replica has for ever. Nothing loses its log in this story."""
    connected = set[int]()
    controller = (of(A), 5)
    requests = list[tuple[frozenset[int], int]]()
    asked_at = dict[int, float]()
    waiting: tuple[frozenset[int], int] | None = None
    for name, *values in events:
        now += 0.1
        numbers = [value for value in values if isinstance(value, int)]
        if name == "grow":
            end += numbers[0]
            has[A] = end
            one.note_own_end(end, now)
        elif name == "connect":
            connected.add(numbers[0])
            one.connect(numbers[0], now, learner=False)
            one.acknowledge(numbers[0], has[numbers[0]], end, now)
        elif name == "disconnect":
            connected.discard(numbers[0])
            one.disconnect(numbers[0])
        elif name == "copy" and numbers[0] in connected:
            has[numbers[0]] = min(has[numbers[0]] + numbers[1], end)
            one.acknowledge(numbers[0], has[numbers[0]], end, now)
        elif name == "ask":
            now += numbers[0]
            if (wanted := one.next_request(now)) is not None:
                waiting = (wanted, one.set_epoch)
                requests.append(waiting)
                asked_at[id(waiting)] = now
        elif name == "apply" and requests:
            request = requests.pop(0)
            wanted, based_on = request
            if based_on == controller[1] and now - asked_at[id(request)] <= LOST_S:
                controller = (wanted, based_on + 1)
        elif name == "answer" and waiting is not None and controller[1] > waiting[1]:
            one.set_members(*controller, now)
            waiting = None
        elif name == "refuse" and waiting is not None and waiting in requests:
            requests.remove(waiting)
            one.request_refused()
            waiting = None
        elif name == "lose" and waiting is not None:
            one.repeat_request(now)
            waiting = None
        elif name == "poll":
            one.set_members(*controller, now)
        assert one.confirmed >= before, "it went back"
        before = one.confirmed
        assert all(has[member] >= one.confirmed for member in controller[0]), (events, controller)
