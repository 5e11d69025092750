"""Transcripts of a master: what a slave says and when, what is sent to it, what may be
acknowledged."""

import pytest
from tests.unit.replication.conversation import connected, report, span

from turbopump.errors import ProtocolError
from turbopump.replication.in_sync_slaves import InSyncSlaves
from turbopump.replication.master import BUSY_S, FAR_BEHIND, PAUSE_S, MasterSettings


def test_a_slave_is_sent_the_log_from_its_end_in_batches_that_keep_to_segments() -> None:
    slave = connected(batch=400)
    assert slave.next_transfer(span(2500), 0.0) is None, "it has not said where its log ends"
    assert slave.receive_reports(report(700), span(2500), 0.0)
    sent = [slave.next_transfer(span(2500), 0.0) for _ in range(7)]
    assert sent == [
        (700, 300),
        (1000, 400),
        (1400, 400),
        (1800, 200),
        (2000, 400),
        (2400, 100),
        None,
    ]


def test_an_empty_slave_begins_with_the_segment_that_is_being_written() -> None:
    slave = connected()
    slave.receive_reports(report(0), span(2500), 0.0)
    assert slave.next_transfer(span(2500), 0.0) == (2000, 500)
    assert slave.acked == 0


def test_reports_may_come_in_pieces_and_several_at_once() -> None:
    slave = connected()
    data = report(100, 100, 100)
    assert not slave.receive_reports(data[:5], span(500), 0.0)
    assert slave.receive_reports(data[5:12], span(500), 0.0)
    assert not slave.receive_reports(data[12:15], span(500), 0.0)
    assert slave.receive_reports(data[15:], span(500), 0.0)
    slave.next_transfer(span(500), 0.0)
    assert slave.receive_reports(report(300, 500), span(500), 0.0)
    assert slave.acked == 500


def test_a_start_and_a_silent_time_ends_with_a_heartbeat_that_names_the_next_offset() -> None:
    slave = connected(heartbeat=5.0)
    slave.receive_reports(report(500), span(500), 0.0)
    assert [slave.next_transfer(span(500), now) for now in (0.0, 0.1, 4.9, 5.0, 5.1, 10.0)] == [
        (500, 0),  # so that the slave knows that it is served
        None,
        None,
        (500, 0),
        None,
        (500, 0),
    ]


def test_a_slave_that_says_nothing_is_closed_after_the_housekeeping_interval() -> None:
    slave = connected(housekeeping=20.0)
    slave.receive_reports(report(500), span(500), 3.0)
    assert not slave.is_silent(23.0)
    assert slave.is_silent(23.1)


def test_flow_control_sends_so_many_bytes_in_a_second() -> None:
    slave = connected(rate_max=500, batch=400)
    slave.receive_reports(report(100), span(5000), 0.0)
    sent = [slave.next_transfer(span(5000), now) for now in (0.0, 0.1, 0.9, 1.0, 1.1)]
    assert sent == [(100, 400), (500, 100), None, (600, 400), (1000, 100)]
    assert [slave.sent.per_second(now) for now in (1.5, 2.5, 3.0)] == [500, 500, 0]


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (501, "log ends at 501, but this master's at 500.*Nothing is cut automatically"),
        (99, "log ends at 99, but this master's begins at 100.*empty the slave's store"),
        (-1, "reports offset -1: it does not speak the HA protocol"),
        (0x474554202F204854, "this master's at 500"),
    ],
)
def test_a_slave_that_cannot_be_served_is_refused_in_words(wanted: int, words: str) -> None:
    slave = connected()
    with pytest.raises(ProtocolError, match=words):
        slave.receive_reports(report(wanted), span(500, start=100), 0.0)


def test_an_acknowledgement_of_what_was_not_sent_is_refused() -> None:
    slave = connected()
    slave.receive_reports(report(100), span(500), 0.0)
    assert slave.next_transfer(span(300, written=500), 0.0) == (100, 200)
    slave.receive_reports(report(300), span(500), 0.0)
    with pytest.raises(
        ProtocolError, match="acknowledges offset 301, but was sent the log up to 300"
    ):
        slave.receive_reports(report(301), span(500), 0.0)


def test_a_slave_whose_files_are_deleted_before_it_has_them_is_refused() -> None:
    slave = connected()
    slave.receive_reports(report(100), span(5000), 0.0)
    with pytest.raises(ProtocolError, match="needs the log from 100 on, but it begins at 1000 now"):
        slave.next_transfer(span(5000, start=1000), 0.0)


def replicas(acks: int, catch_up: float = 15.0) -> InSyncSlaves:
    return InSyncSlaves(MasterSettings(acks=acks, catch_up=catch_up))


def test_a_message_is_copied_when_so_many_slaves_have_it() -> None:
    both = replicas(acks=2)
    assert both.alone
    both.record_acknowledgement("a", 500, 500, 0.0)
    assert (both.copied, both.alone) == (0, True)
    both.record_acknowledgement("b", 300, 500, 0.0)
    assert (both.copied, both.alone) == (300, True), "b never had all that there was"
    both.record_acknowledgement("b", 500, 500, 1.0)
    assert (both.copied, both.alone) == (500, False)


def test_two_connections_of_one_slave_count_once() -> None:
    both = replicas(acks=2)
    both.record_acknowledgement("a", 500, 500, 0.0)
    both.record_acknowledgement("a", 500, 500, 0.1)
    assert both.is_in_sync("a", 0.1)
    assert (both.copied, both.alone) == (0, True)


def test_a_slave_that_lost_its_log_does_not_count_for_what_it_had() -> None:
    both = replicas(acks=2)
    both.record_acknowledgement("a", 500, 500, 0.0)
    both.record_begin("a", proved=True, end=500, now=0.1)
    both.record_acknowledgement("b", 500, 500, 0.1)
    assert both.copied == 0
    both.record_acknowledgement("a", 400, 500, 0.2)
    assert both.copied == 400


def test_what_is_copied_never_goes_back() -> None:
    one = replicas(acks=1)
    one.record_acknowledgement("a", 500, 500, 0.0)
    one.record_acknowledgement("a", 200, 500, 0.1)
    assert one.copied == 500


def test_a_slave_that_keeps_up_under_load_stays_in_sync() -> None:
    one = replicas(acks=1, catch_up=1.0)
    end = 1000
    one.record_acknowledgement("a", end, end, 0.0)
    for tick in range(1, 100):
        before, end = end, end + 1000
        one.record_acknowledgement("a", before, end, tick / 10)
        assert not one.alone


def test_a_slave_that_falls_behind_for_long_is_not_waited_for_until_it_has_caught_up() -> None:
    one = replicas(acks=1, catch_up=15.0)
    one.record_acknowledgement("a", 500, 500, 0.0)
    one.update(15.0)
    assert not one.alone
    one.update(15.1)
    assert one.alone
    one.record_acknowledgement("a", 600, 900, 20.0)
    assert one.alone
    one.record_acknowledgement("a", 900, 900, 21.0)
    assert not one.alone


def test_a_slave_far_behind_pauses_between_turns_while_the_log_grows() -> None:
    slave = connected()
    slave.receive_reports(report(700), span(900), 0.0)
    far = 700 + FAR_BEHIND
    assert slave.pause(far, 0.0) == 0, "it is not far behind"
    assert slave.pause(far + 1, 1.0) == PAUSE_S
    assert slave.pause(far + 1, 1.0 + BUSY_S / 2) == PAUSE_S
    assert slave.pause(far + 1, 1.0 + BUSY_S) == 0, "nobody writes"
    assert slave.pause(far + 2, 2.0) == PAUSE_S


def test_a_slave_that_has_proved_its_log_acknowledges_no_more_than_it_was_sent() -> None:
    slave = connected()
    slave.begin_proved(500)
    assert slave.receive_reports(report(300), span(800), 0.0), "less may be on its disk"
    assert (slave.acked, slave.next) == (300, 500)
    assert slave.next_transfer(span(800), 0.0) == (500, 300)
    assert slave.receive_reports(report(800), span(800), 0.0)
    with pytest.raises(ProtocolError, match="was sent the log up to 800"):
        slave.receive_reports(report(801), span(900), 0.0)


def unproved(slaves: InSyncSlaves, acked: int, end: int, now: float, confirmed: int = 0) -> None:
    slaves.record_acknowledgement("a", acked, end, now, confirmed, proved=False)


def test_what_a_slave_says_first_counts_for_nothing_if_it_has_not_proved_it() -> None:
    one = replicas(acks=1)
    one.record_begin("a", proved=False, end=700, now=0.0)
    unproved(one, 600, 500, 0.0)  # SYNC_FLUSH: 500 is durable
    assert (one.copied, one.alone) == (0, True)
    unproved(one, 700, 700, 0.1, confirmed=699)
    assert (one.copied, one.alone) == (0, True), "a message of before still waits"
    unproved(one, 800, 800, 0.2, confirmed=700)
    assert (one.copied, one.alone) == (800, False)


def test_a_slave_that_connects_again_unproved_counts_only_for_what_comes_then() -> None:
    one = replicas(acks=1)
    one.record_begin("a", proved=False, end=0, now=0.0)
    unproved(one, 500, 500, 0.0)
    assert not one.alone
    one.record_begin("a", proved=False, end=600, now=1.0)
    unproved(one, 600, 600, 1.0, confirmed=500)
    assert (one.copied, one.alone) == (500, True)
    one.update(1.5, confirmed=600)
    assert (one.copied, one.alone) == (600, False)


def test_a_connection_that_proves_nothing_takes_nothing_from_one_that_did() -> None:
    one = replicas(acks=1)
    one.record_begin("a", proved=True, end=0, now=0.0)
    one.record_acknowledgement("a", 500, 500, 0.0)
    one.record_begin("a", proved=False, end=500, now=0.1)
    unproved(one, 900, 900, 0.1, confirmed=400)
    assert (one.copied, one.alone) == (500, False)
    one.record_acknowledgement("a", 600, 900, 0.2, 500)
    assert one.copied == 900, "one broker, by two connections"


def test_two_slaves_of_one_address_count_once_proved_or_not() -> None:
    two = replicas(acks=2)
    two.record_begin("a", proved=False, end=0, now=0.0)
    unproved(two, 500, 500, 0.0)
    two.record_acknowledgement("a", 500, 500, 0.0)
    assert two.is_in_sync("a", 0.0, proved=True)
    assert two.is_in_sync("a", 0.0, proved=False)
    assert (two.copied, two.alone) == (0, True)
