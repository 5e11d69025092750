"""The one check of a stored entry: every bit of it counts."""

import pytest

from turbopump.message.codec import decode_entry, encode_entry, encode_host, entry_fault

POSITION = 1 << 33
V4, V6 = encode_host("10.0.0.1", 10911), encode_host("2001:db8::1", 10911)


def entry(
    *,
    with_crc: bool,
    born: bytes = V4,
    store: bytes = V4,
    topic: bytes = b"orders",
    properties: bytes = b"TAGS\x01a\x02",
) -> bytes:
    return encode_entry(
        queue_id=3,
        flag=5,
        queue_offset=77,
        physical_offset=POSITION,
        sys_flag=(16 if len(born) == 20 else 0) | (32 if len(store) == 20 else 0),
        born_timestamp=1_700_000_000_000,
        born_host=born,
        store_timestamp=1_700_000_000_001,
        store_host=store,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"some body",
        topic=topic,
        properties=properties,
        with_crc=with_crc,
    )


KINDS = {
    "plain": {},
    "v6 hosts": {"born": V6, "store": V6},
    "long topic": {"topic": b"t" * 200},
    "no properties": {"properties": b""},
}


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("with_crc", [False, True])
def test_a_whole_entry_has_no_fault(kind: str, with_crc: bool) -> None:
    data = entry(with_crc=with_crc, **KINDS[kind])
    assert entry_fault(data, POSITION, crc_required=with_crc) is None
    assert entry_fault(data) is None
    assert decode_entry(data).body == b"some body"


@pytest.mark.parametrize("kind", list(KINDS))
def test_every_single_flipped_bit_is_a_fault(kind: str) -> None:
    data = entry(with_crc=True, **KINDS[kind])
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert entry_fault(bytes(flipped), POSITION, crc_required=True) is not None, f"bit {bit}"


def test_without_a_whole_entry_crc_lengths_place_and_body_are_covered() -> None:
    """What Apache's check covers by default: not the queue offset, the times, the hosts or the
    texts."""
    data = entry(with_crc=False)
    body = data.index(b"some body")
    covered = [*range(12), *range(28, 36), *range(84, body + 9 + 1)]
    for byte in covered:
        for bit in range(8):
            flipped = bytearray(data)
            flipped[byte] ^= 1 << bit
            assert entry_fault(bytes(flipped), POSITION) is not None, f"byte {byte} bit {bit}"


def test_a_missing_crc_is_a_fault_only_where_it_is_required() -> None:
    data = entry(with_crc=False)
    assert entry_fault(data, POSITION) is None
    assert entry_fault(data, POSITION, crc_required=True) == (
        "its CRC (property __CRC32#) is missing"
    )


def test_an_entry_in_another_place_or_cut_is_a_fault() -> None:
    data = entry(with_crc=True)
    assert "is not its position" in (entry_fault(data, POSITION + 1) or "")
    for size in range(len(data)):
        assert entry_fault(data[:size], POSITION) is not None
    assert entry_fault(data + b"\0", POSITION) is not None
