"""Frames between replicas: their bytes, and readers that take any pieces."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbopump.errors import ProtocolError
from turbopump.replication.auto_switch import (
    MasterFrames,
    MasterHandshake,
    SlaveFrames,
    SlaveHandshake,
    TransferHead,
    encode_report,
)
from turbopump.replication.epochs import EpochList, list_of

SHAKE = MasterHandshake(7000, list_of([(1, 0), (3, 5000)]))
HEAD = TransferHead(4990, 10, 1, 0, 4000)


def test_frames_have_the_bytes_of_apaches() -> None:
    """By the layouts in AutoSwitchHAClient and AutoSwitchHAConnection."""
    assert SlaveHandshake(from_last_file=True, async_learner=False, replica_id=2).encode() == (
        bytes.fromhex("00000001 0001 0000 0000000000000002")
    )
    assert SHAKE.encode() == bytes.fromhex(
        "00000001 00000018 0000000000001b58 00000003"
        "00000001 0000000000000000 00000003 0000000000001388"
    )
    assert encode_report(7000) == bytes.fromhex("00000002 0000000000001b58")
    assert HEAD.encode() == bytes.fromhex(
        "00000002 0000000a 000000000000137e 00000001 0000000000000000 0000000000000fa0"
    )


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    ends = sorted({cut % (len(data) + 1) for cut in cuts} | {len(data)})
    return [data[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


@given(cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_a_master_reads_frames_in_any_pieces(cuts: list[int]) -> None:
    shake = SlaveHandshake(from_last_file=False, async_learner=True, replica_id=3)
    data = shake.encode() + encode_report(0) + encode_report(1 << 40)
    reader = SlaveFrames()
    assert [one for piece in pieces_of(data, cuts) for one in reader.feed(piece)] == [0, 1 << 40]
    assert reader.handshake == shake


@given(cuts=st.lists(st.integers(0, 10_000), max_size=20))
def test_a_slave_reads_frames_in_any_pieces(cuts: list[int]) -> None:
    second = TransferHead(5000, 0, 3, 5000, 4500)
    data = SHAKE.encode() + HEAD.encode() + b"0123456789" + second.encode()
    reader = MasterFrames()
    heads = list[MasterHandshake | TransferHead]()
    log = b""
    for piece in pieces_of(data, cuts):
        for one in reader.feed(piece):
            if isinstance(one, memoryview):
                log += one
            else:
                heads.append(one)
    assert (heads, log, reader.frames) == ([SHAKE, HEAD, second], b"0123456789", 2)


def test_a_new_master_without_a_log_has_no_epochs() -> None:
    frame = MasterHandshake(0, EpochList()).encode()
    assert frame == bytes.fromhex("00000001 00000000 0000000000000000 ffffffff")
    assert MasterFrames().feed(frame) == [MasterHandshake(0, EpochList())]


def test_a_master_with_a_thousand_epochs_is_understood() -> None:
    known = list_of((number, number * 10) for number in range(1000))
    assert MasterFrames().feed(MasterHandshake(9999, known).encode())[0] == (9999, known)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"\0\0\0\0\0\0\x1b\x58", "not in controller mode"),  # a plain slave wants offset 7000
        (b"\xffTPHP\0\0\1", "not in controller mode"),
    ],
)
def test_a_slave_that_speaks_another_protocol_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(ProtocolError, match=text):
        SlaveFrames().feed(data)


def test_a_master_that_speaks_another_protocol_is_refused() -> None:
    with pytest.raises(ProtocolError, match="not in controller mode"):
        MasterFrames().feed(b"\0\0\0\0\0\0\x1b\x58\0\0\0\0")
    with pytest.raises(ProtocolError, match="bytes of epochs"):
        MasterFrames().feed(bytes.fromhex("00000001 00000017 0000000000001b58 00000003"))
    reader = MasterFrames()
    reader.feed(SHAKE.encode())
    with pytest.raises(ProtocolError, match="sends -1 bytes"):
        reader.feed(HEAD._replace(size=-1).encode())
