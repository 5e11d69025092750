"""Many entries at a time are read as one at a time: the quick way never takes what the careful one
would not, nor reads it otherwise."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzzing import examples
from tests.stand_ins import returns
from tests.unit.store.directory import Directory, put

from turbopump.message.codec import encode_entry, encode_host, entry_fault
from turbopump.message.properties import SysFlag
from turbopump.store.log import scanner as scanner_module
from turbopump.store.log.parsed_entry import ParsedEntry, parse_entry, parse_usual_entries
from turbopump.store.log.scanner import EntryWalk

HOST, HOST_V6 = encode_host("127.0.0.1", 10911), encode_host("::1", 10911)
BASE = 7000

messages = st.fixed_dictionaries(
    {
        "queue_id": st.sampled_from([0, 3, 2**31 - 1, -1]),
        "flag": st.integers(-5, 5),
        "queue_offset": st.sampled_from([0, 1, 2**40, -1]),
        "sys_flag": st.sampled_from([0, 1, 4, 8, 12, 0x10, 0x20, 0x30]),
        "body": st.binary(max_size=40),
        "topic": st.sampled_from(
            [b"T", b"other", b"%RETRY%g", b"a" * 127, b"b" * 128, b"/", b"\xff", b""]
        ),
        "properties": st.sampled_from(
            [b"", b"TAGS\x01a\x02", b"UNIQ_KEY\x01u\x02KEYS\x01k l\x02", b"x\x01\xff\x02"]
        ),
        "with_crc": st.booleans(),
    }
)


def entries(parts: list[dict[str, Any]]) -> bytes:
    data = b""
    for part in parts:
        sys_flag = part["sys_flag"]
        data += encode_entry(
            physical_offset=BASE + len(data),
            born_timestamp=1,
            born_host=HOST_V6 if sys_flag & SysFlag.BORN_HOST_V6 else HOST,
            store_timestamp=1_700_000_000_000,
            store_host=HOST_V6 if sys_flag & SysFlag.STORE_HOST_V6 else HOST,
            reconsume_times=0,
            prepared_transaction_offset=0,
            **part,
        )
    return data


def one_by_one(data: bytes, *, crc_required: bool) -> Iterator[ParsedEntry]:
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4])
        entry = data[at : at + size]
        if (
            len(entry) < size
            or entry_fault(entry, BASE + at, crc_required=crc_required) is not None
        ):
            return
        mark = parse_entry(entry, BASE + at)
        if mark is None:
            return
        yield mark
        at += size


@given(
    st.lists(messages, max_size=6),
    st.lists(st.tuples(st.integers(0, 5000), st.integers(0, 7)), max_size=2),
    st.integers(0, 200),
    st.booleans(),
)
@examples(600)
def test_what_the_quick_way_takes_the_careful_one_takes_and_reads_the_same(
    parts: list[dict[str, Any]], flips: list[tuple[int, int]], cut: int, crc_required: bool
) -> None:
    data = bytearray(entries(parts))
    for at, bit in flips:
        if data:
            data[at % len(data)] ^= 1 << bit
    piece = bytes(data[: max(len(data) - cut, 0)])
    topics = {name: name.decode() for name in (b"T", b"other", b"%RETRY%g", b"a" * 127)}
    quick = parse_usual_entries(piece, 0, len(piece), BASE, lambda _offset: crc_required, topics)
    careful = list(one_by_one(piece, crc_required=crc_required))
    assert quick == careful[: len(quick)]


def test_the_quick_way_takes_all_of_the_usual_kind_and_stops_where_it_may_not_go_on() -> None:
    usual = {
        "queue_id": 1,
        "flag": 0,
        "queue_offset": 5,
        "sys_flag": 0,
        "body": b"x" * 30,
        "topic": b"T",
    }
    for with_crc in (True, False):
        parts = [{**usual, "properties": b"TAGS\x01a\x02", "with_crc": with_crc}] * 5
        data = entries(parts)
        marks = parse_usual_entries(
            data, 0, len(data), BASE, lambda _offset, required=with_crc: required, {b"T": "T"}
        )
        assert marks == list(one_by_one(data, crc_required=with_crc))
        assert len(marks) == 5
        assert (
            len(parse_usual_entries(data, 0, len(data) - 1, BASE, returns(False), {b"T": "T"})) == 4
        )
        assert parse_usual_entries(data, 0, len(data), BASE, returns(False), {}) == [], (
            "a name it has not seen"
        )


def test_a_walk_takes_the_quick_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    store = Directory(tmp_path, segment_size=1 << 16, with_crc=True).open()
    for number in range(200):
        put(store, b"x" * number, topic="TUV"[number % 3])
    judged = 0
    plain = EntryWalk._item_of

    def counting(*args: Any) -> Any:
        nonlocal judged
        judged += 1
        return plain(*args)

    monkeypatch.setattr(EntryWalk, "_item_of", counting)
    walked = list(EntryWalk(store.log).entries())
    assert judged <= 3, "one for each name"
    monkeypatch.setattr(scanner_module, "parse_usual_entries", lambda *_args: [])
    assert list(EntryWalk(store.log).entries()) == walked
    assert len(walked) == 200
    assert judged >= 200
    store.close()
