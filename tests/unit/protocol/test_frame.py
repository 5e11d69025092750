"""Bytes in, frames out: however the network cuts them, and whatever nonsense comes."""

import itertools
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbopump.protocol.frame import (
    FRAME_SIZE_MAX,
    JSON,
    PART_OVERHEAD,
    ROCKETMQ,
    Frame,
    FrameReader,
    frame_head,
)


def framed(header: bytes, body: bytes = b"", serialize_type: int = JSON) -> bytes:
    return frame_head(len(header), len(body), serialize_type) + header + body


THREE = [
    Frame(JSON, b'{"code":10}', b"body"),
    Frame(ROCKETMQ, b"\x00\x0b", b""),
    Frame(JSON, b"", b"\x00" * 9),
]
STREAM = b"".join(framed(frame.header, frame.body, frame.serialize_type) for frame in THREE)


def test_a_frame_is_length_type_header_length_header_and_body() -> None:
    assert framed(b"head", b"body!", ROCKETMQ) == b"\x00\x00\x00\x0d\x01\x00\x00\x04headbody!"


def test_several_frames_in_one_read_come_out_in_order() -> None:
    reader = FrameReader()
    assert reader.feed(STREAM) == THREE
    assert reader.held == 0


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_frames_cut_anywhere_are_put_together_again(cut: int) -> None:
    reader = FrameReader()
    assert reader.feed(STREAM[:cut]) + reader.feed(STREAM[cut:]) == THREE
    assert reader.error is None
    assert reader.held == 0


def test_frames_that_come_byte_by_byte_are_put_together_again() -> None:
    reader = FrameReader()
    assert [frame for byte in STREAM for frame in reader.feed(bytes([byte]))] == THREE


@given(
    frames=st.lists(
        st.builds(
            Frame, st.sampled_from([JSON, ROCKETMQ]), st.binary(max_size=40), st.binary(max_size=60)
        )
    ),
    cuts=st.lists(st.integers(0, 400)),
)
def test_any_frames_survive_any_cuts(frames: list[Frame], cuts: list[int]) -> None:
    stream = b"".join(framed(frame.header, frame.body, frame.serialize_type) for frame in frames)
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    reader = FrameReader()
    pieces = [stream[start:end] for start, end in itertools.pairwise(places)]
    assert [frame for piece in pieces for frame in reader.feed(piece)] == frames
    assert reader.error is None


@pytest.mark.parametrize(
    ("head", "cause"),
    [
        (
            frame_head(10, 0)[:4] + b"\x00\x00\x00\x0b",
            "a header of 11 bytes does not fit into 14 bytes",
        ),
        (b"\x00\x00\x00\x00\x00\x00\x00\x00", "does not fit into 0 bytes"),
        (b"\x00\x00\x00\x03\x00\x00\x00\x00", "does not fit into 3 bytes"),
        (b"\x00\x00\x00\x04\x02\x00\x00\x00", "serialize type 2"),
        (b"\x00\x00\x00\x04\xff\x00\x00\x00", "serialize type 255"),
        (b"\x00\xff\xff\xfd\x00\x00\x00\x00", "16777217 bytes are more than the 16777216 allowed"),
        (b"\x7f\xff\xff\xff\x00\x00\x00\x00", "more than"),
        (b"\xff\xff\xff\xff\x00\x00\x00\x00", "more than"),
        (b"GET / HTTP/1.1\r\n", "more than|serialize type"),
    ],
)
def test_impossible_lengths_and_types_end_the_stream(head: bytes, cause: str) -> None:
    reader = FrameReader()
    assert reader.feed(head) == []
    assert reader.error is not None
    assert reader.error.args[0].startswith("bad frame: ")
    assert any(part in str(reader.error) for part in cause.split("|"))
    assert reader.feed(STREAM) == [], "nothing more is taken"


def test_the_largest_frame_allowed_is_taken_and_one_byte_more_is_not() -> None:
    body = bytes(FRAME_SIZE_MAX - 8)
    assert FrameReader().feed(framed(b"", body)) == [Frame(JSON, b"", body)]
    refused = FrameReader()
    assert refused.feed(framed(b"", body + b"\0")) == []
    assert refused.error is not None


def test_frames_before_a_bad_one_are_still_given() -> None:
    reader = FrameReader()
    assert reader.feed(STREAM + b"\xff" * 8) == THREE
    assert reader.error is not None


def test_a_bad_head_is_refused_before_its_frame_has_come() -> None:
    reader = FrameReader(size_max=100)
    reader.feed(frame_head(4, 200))
    assert "208" not in str(reader.error)
    assert "212 bytes are more than the 100 allowed" in str(reader.error)


@pytest.mark.parametrize("length", [b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", bytes(4)])
@pytest.mark.parametrize("cut", range(4))
def test_a_length_that_cannot_be_is_refused_before_the_next_one_has_come(
    length: bytes, cut: int
) -> None:
    reader = FrameReader()
    assert reader.feed(length[:cut]) == reader.feed(length[cut:]) == []
    assert reader.error is not None


def test_a_half_frame_costs_no_more_memory_than_its_bytes() -> None:
    announced = frame_head(2, FRAME_SIZE_MAX - 10)
    tracemalloc.start()
    try:
        readers = [FrameReader() for _ in range(100)]
        before = tracemalloc.get_traced_memory()[0]
        for reader in readers:
            assert reader.feed(announced + b"{}and some more") == []
            assert reader.held == 23 + PART_OVERHEAD
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < 100 * 1000, "1.6 GB were announced"
