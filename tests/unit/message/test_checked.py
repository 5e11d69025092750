"""The messages of a pull's answer: damage costs the message it hit, wherever it hit it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import examples

from turbopump.message.codec import encode_entry, encode_host
from turbopump.message.pulled import DamagedEntry, pulled_entries

HOST = encode_host("127.0.0.1", 10911)


def entry(number: int, body: bytes, *, with_crc: bool = True) -> bytes:
    return encode_entry(
        3, 0, number, 1000 * number, 0, 1, HOST, 2, HOST, 0, 0, body, b"T", b"a\x01b\x02", with_crc
    )


ENTRIES = [entry(number, b"%d " % number * 10) for number in range(5)]
ANSWER = b"".join(ENTRIES)


def read(data: bytes) -> tuple[list[bytes], list[DamagedEntry]]:
    damaged: list[DamagedEntry] = []
    return list(pulled_entries(data, damaged.append)), damaged


def test_a_whole_answer_is_its_messages() -> None:
    assert read(ANSWER) == (ENTRIES, [])
    assert read(b"") == ([], [])


@pytest.mark.parametrize("index", range(5))
def test_any_flipped_bit_costs_one_message_and_no_other(index: int) -> None:
    start = sum(map(len, ENTRIES[:index]))
    for at in range(len(ENTRIES[index])):
        for bit in range(8):
            data = bytearray(ANSWER)
            data[start + at] ^= 1 << bit
            good, damaged = read(bytes(data))
            # the name of the CRC: then the body's is what is checked
            if at >= len(ENTRIES[index]) - 20 and not damaged:
                assert good[index][:-20] == ENTRIES[index][:-20]
                continue
            assert good == [each for each in ENTRIES if each is not ENTRIES[index]]
            assert [(one.begin, one.end) for one in damaged] == [
                (start, start + len(ENTRIES[index]))
            ]


def test_a_damaged_message_says_its_own_queue_offset_where_that_can_be_read() -> None:
    data = bytearray(ANSWER)
    data[len(ENTRIES[0]) + 92] ^= 1
    _, (damaged,) = read(bytes(data))
    assert damaged.queue_offset == 1
    assert damaged.fault == "its CRC (property __CRC32#) does not fit its bytes"


def test_an_answer_cut_short_or_of_nonsense_ends() -> None:
    for size in range(1, len(ANSWER)):
        good, damaged = read(ANSWER[:size])
        assert good == ENTRIES[: len(good)]
        whole = sum(map(len, good))
        assert [(one.begin, one.end) for one in damaged] == (
            [(whole, size)] if size > whole else []
        )
    assert read(b"\xda\xa3\x20" * 50)[0] == []


def test_a_stored_message_inside_a_body_is_not_taken_for_one_of_the_answer() -> None:
    outer = entry(7, entry(8, b"inner"))
    data = bytearray(ENTRIES[0] + outer + ENTRIES[1])
    data[len(ENTRIES[0]) + 20] ^= 1  # in the outer one's head
    good, damaged = read(bytes(data))
    assert good == [ENTRIES[0], ENTRIES[1]]
    assert len(damaged) == 1


@given(st.binary(max_size=400), st.lists(st.integers(0, 4), max_size=4))
@examples(200)
def test_good_messages_behind_any_bytes_are_found(noise: bytes, numbers: list[int]) -> None:
    wanted = [ENTRIES[number] for number in numbers]
    good, damaged = read(noise + b"".join(wanted))
    assert good[len(good) - len(wanted) :] == wanted
    assert sum(one.end - one.begin for one in damaged) + sum(map(len, good)) == len(noise) + sum(
        map(len, wanted)
    )
