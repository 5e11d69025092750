"""Transcripts of the two roles between replicas."""

import pytest

from turbopump.errors import ProtocolError
from turbopump.replication.auto_switch import (
    MasterFrames,
    MasterHandshake,
    SlaveHandshake,
    TransferHead,
    encode_report,
)
from turbopump.replication.epochs import EpochList, list_of
from turbopump.replication.master import LogSpan, MasterSettings, Transfer
from turbopump.replication.replica_master import ReplicaConnection
from turbopump.replication.replica_slave import OwnLog, ReplicaMaster
from turbopump.replication.slave import SlaveSettings

SEGMENT = 1000
EPOCHS = list_of([(1, 0), (3, 500)])
SHAKE = SlaveHandshake(from_last_file=False, async_learner=False, replica_id=2)


def span(end: int, start: int = 0) -> LogSpan:
    return LogSpan(start, end, end, SEGMENT)


def connected(**settings: object) -> ReplicaConnection:
    return ReplicaConnection(MasterSettings(**settings), EPOCHS, 0.0)  # type: ignore[arg-type]


def begun(at: int, log: LogSpan, shake: SlaveHandshake = SHAKE) -> ReplicaConnection:
    """A slave has said that its log ends at ``at``."""
    one = connected()
    one.receive(shake.encode() + encode_report(at), log, 0.0)
    return one


def test_a_master_answers_a_handshake_with_its_end_and_epochs() -> None:
    one = connected()
    said, reported = one.receive(SHAKE.encode(), span(900), 0.0)
    assert (said, reported) == (MasterHandshake(900, EPOCHS).encode(), False)
    assert one.next_transfer(span(900), 0.0) is None
    assert one.receive(encode_report(450), span(900), 0.1) == (b"", True)
    assert (one.next, one.acked) == (450, 450)


def test_a_transfer_crosses_no_epoch_and_no_file() -> None:
    one = begun(450, span(1800))
    one.confirmed = 420
    found = []
    while (sent := one.next_transfer(span(1800), 0.0)) is not None:
        found.append(sent)
    assert found == [Transfer(450, 50), Transfer(500, 500), Transfer(1000, 800)]
    heads = [TransferHead(450, 50, 1, 0, 420), TransferHead(500, 500, 3, 500, 420)]
    assert [one.head_of(sent) for sent in found[:2]] == [head.encode() for head in heads]


def test_a_heartbeat_tells_of_the_newest_epoch_and_the_confirmed_offset() -> None:
    one = begun(500, span(500))
    one.confirmed = 500
    sent = one.next_transfer(span(500), 0.0)
    assert sent == Transfer(500, 0)
    assert one.head_of(sent) == TransferHead(500, 0, 3, 500, 500).encode()
    assert one.next_transfer(span(500), 4.9) is None
    assert one.next_transfer(span(500), 5.0) == Transfer(500, 0)


@pytest.mark.parametrize(("from_last_file", "first"), [(False, 1000), (True, 3000)])
def test_an_empty_slave_gets_the_whole_log_or_the_last_file(
    from_last_file: bool, first: int
) -> None:
    shake = SHAKE._replace(from_last_file=from_last_file)
    assert begun(0, span(3500, start=1000), shake).next == first


def test_a_slave_whose_next_bytes_were_deleted_is_told_what_to_do() -> None:
    with pytest.raises(ProtocolError, match="replica 2 needs the log from 800 on, but this master"):
        begun(800, span(3500, start=1000))
    one = begun(1000, span(3500, start=1000))
    with pytest.raises(ProtocolError, match="older files were deleted before they were sent"):
        one.next_transfer(span(3500, start=2000), 0.0)


def test_a_slave_that_did_not_cut_its_log_is_refused() -> None:
    with pytest.raises(ProtocolError, match="ends at 901, but this master's at 900"):
        begun(901, span(900))


def test_an_acknowledgement_of_bytes_that_were_not_sent_is_refused() -> None:
    one = begun(450, span(900))
    with pytest.raises(ProtocolError, match="acknowledges offset 451"):
        one.receive(encode_report(451), span(900), 0.0)


def slave(
    end: int, epochs: EpochList = EPOCHS, *, start: int = 0, master_epoch: int = 3
) -> ReplicaMaster:
    return ReplicaMaster(SlaveSettings(), SHAKE, OwnLog(start, end, epochs, master_epoch), 0.0)


def test_a_slave_whose_log_is_a_beginning_copies_from_its_end() -> None:
    one = slave(450, list_of([(1, 0)]))
    assert one.begin() == SHAKE.encode()
    assert not one.compared
    one.received(MasterHandshake(900, EPOCHS).encode(), 0.1)
    assert one.compared
    assert one.epochs == EPOCHS
    assert one.next_report(450, 0.1) == encode_report(450)
    assert not one.accepted
    one.received(TransferHead(450, 3, 1, 0, 400).encode() + b"abc", 0.2)
    assert one.accepted
    assert (one.to_store(), one.confirmed) == ((450, b"abc"), 400)


def test_a_slave_with_other_messages_must_be_cut_first() -> None:
    one = slave(700, list_of([(1, 0), (2, 500)]))
    one.received(MasterHandshake(900, EPOCHS).encode(), 0.1)
    assert (one.cut_to, one.compared) == (500, False)


def test_an_empty_slave_begins_where_the_master_says() -> None:
    one = slave(0, EpochList())
    one.received(MasterHandshake(3900, EPOCHS).encode(), 0.0)
    assert one.next_report(0, 0.0) == encode_report(0)
    one.received(TransferHead(1000, 3, 3, 500, 900).encode() + b"abc", 0.1)
    assert one.to_store() == (1000, b"abc")


def test_an_apache_master_without_a_log_sends_a_heartbeat_of_offset_minus_1() -> None:
    one = slave(0, EpochList())
    one.received(MasterHandshake(0, list_of([(1, 0)])).encode(), 0.0)
    one.received(TransferHead(-1, 0, 1, 0, 0).encode(), 0.1)
    one.received(TransferHead(0, 3, 1, 0, 0).encode() + b"abc", 0.2)
    assert one.to_store() == (0, b"abc")


def test_an_apache_master_that_is_elected_again_begins_an_epoch_on_an_open_connection() -> None:
    one = slave(600)
    one.received(MasterHandshake(600, EPOCHS).encode(), 0.0)
    one.received(TransferHead(600, 3, 4, 600, 0).encode() + b"abc", 0.1)
    assert one.epochs == list_of([(1, 0), (3, 500), (4, 600)])


def test_bytes_that_do_not_continue_the_log_are_refused() -> None:
    one = slave(600)
    one.received(MasterHandshake(900, EPOCHS).encode(), 0.0)
    with pytest.raises(ProtocolError, match="sent offset 601, but the slave's log continues at 6"):
        one.received(TransferHead(601, 3, 3, 500, 0).encode() + b"abc", 0.1)


def test_an_older_master_is_not_followed() -> None:
    one = slave(700, list_of([(1, 0), (3, 500)]), master_epoch=4)
    with pytest.raises(ProtocolError, match="it is an older master"):
        one.received(MasterHandshake(900, list_of([(1, 0)])).encode(), 0.0)


def test_a_master_without_epochs_is_not_followed() -> None:
    with pytest.raises(ProtocolError, match="no epochs yet"):
        slave(0, EpochList()).received(MasterHandshake(0, EpochList()).encode(), 0.0)


@pytest.mark.parametrize(
    ("own", "start", "text"),
    [
        (EpochList(), 0, "has no epochs"),
        (list_of([(2, 0)]), 0, "shares no epoch with the master's: here 2-0, there 1-0, 3-500"),
        (list_of([(1, 0), (2, 500)]), 600, "begins at 600, and agrees with the master's only up t"),
    ],
)
def test_a_log_that_has_nothing_in_common_stays_and_the_text_says_what_to_do(
    own: EpochList, start: int, text: str
) -> None:
    one = slave(700, own, start=start)
    with pytest.raises(ProtocolError, match=text) as refused:
        one.received(MasterHandshake(900, EPOCHS).encode(), 0.0)
    assert "copied again" in str(refused.value)
    assert one.cut_to is None


def test_both_roles_understand_each_other() -> None:
    log = bytes(range(200)) * 5
    master, copy = connected(batch=70), slave(120, list_of([(1, 0)]))
    said, _ = master.receive(copy.begin(), span(1000), 0.0)
    copy.received(said, 0.0)
    stored = log[:120]
    while (report := copy.next_report(len(stored), 0.0)) is not None:
        master.receive(report, span(1000), 0.0)
        while (sent := master.next_transfer(span(1000), 0.0)) is not None:
            data = master.head_of(sent) + log[sent.offset : sent.offset + sent.size]
            for at in range(0, len(data), 11):
                copy.received(data[at : at + 11], 0.0)
            piece = copy.to_store()
            assert piece is not None
            stored += piece[1]
            copy.record_stored(len(stored), 1)
    assert stored == log
    assert master.acked == 1000
    assert MasterFrames().feed(said) == [MasterHandshake(1000, EPOCHS)]
