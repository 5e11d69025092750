"""What an entry may hold: property text that Apache's length rule allows, ended, with the one CRC
that is its own."""

from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.directory import HOST, Directory, put_batch

from turbopump.errors import MessageError
from turbopump.message.codec import decode_entry, entry_fault
from turbopump.message.entry import CRC_SUFFIX_SIZE
from turbopump.message.properties import PROPERTIES_SIZE_MAX, decode_properties
from turbopump.store.message_store import MessageStore, NewMessage

LONG_TOPIC = "t" * 200


def stored(
    store: MessageStore, properties: bytes, topic: str = "T", *, batch: bool = False
) -> bytes:
    """The entry that a message with these properties becomes."""
    facts: dict[str, Any] = {
        "sys_flag": 0,
        "born_timestamp": 0,
        "born_host": HOST,
        "store_host": HOST,
    }
    if batch:
        placed, _ = put_batch(store, [b"body"], topic, properties=properties)
    else:
        placed = store.put(topic, 0, NewMessage(b"body", properties, 0), **facts)
    entry = store.log.read(placed.offset, placed.log_end - placed.offset)
    assert entry is not None
    return entry


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("with_crc", [False, True])
def test_the_longest_properties_fit_the_signed_length_and_one_byte_more_is_refused(
    tmp_path: Path, with_crc: bool, batch: bool
) -> None:
    store = Directory(tmp_path, segment_size=1 << 17, with_crc=with_crc).open()
    longest = b"p\x01" + b"v" * (store.properties_size_max - 3) + b"\x02"
    entry = stored(store, longest, batch=batch)
    assert entry_fault(entry, 0, crc_required=with_crc) is None
    at = entry.index(longest) - 2
    assert (
        int.from_bytes(entry[at : at + 2])
        == PROPERTIES_SIZE_MAX
        == len(longest) + with_crc * CRC_SUFFIX_SIZE
    )
    end = store.log.end
    with pytest.raises(MessageError, match=f"{len(longest) + 1} bytes.*{len(longest)} are allowed"):
        stored(store, b"p" + longest, batch=batch)
    with pytest.raises(MessageError, match="are allowed"):
        stored(store, b"p\x01" + b"v" * (PROPERTIES_SIZE_MAX - 1), batch=batch)
    assert store.log.end == end
    store.close()


@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize("topic", ["T", LONG_TOPIC])
@pytest.mark.parametrize("with_crc", [False, True])
def test_a_message_that_is_stored_again_gets_a_crc_of_its_own(
    tmp_path: Path, with_crc: bool, topic: str, batch: bool
) -> None:
    first = Directory(tmp_path / "first", with_crc=True).open()
    old = stored(first, b"a\x01b\x02")
    first.close()
    # as a client that keeps it sends it back
    properties = decode_properties(old[old.index(b"a\x01b\x02") :].decode())
    assert list(properties) == ["a", "__CRC32#"]
    text = "".join(
        f"{name}\x01{value}\x02" for name, value in {**properties, "RETRY_TOPIC": "T"}.items()
    )
    store = Directory(tmp_path / "again", with_crc=with_crc).open()
    for again in (text, text[:-1], f"__CRC32#\x01{properties['__CRC32#']}\x02", "a\x01b"):
        offset = store.log.end
        entry = stored(store, again.encode(), topic, batch=batch)
        assert entry_fault(entry, offset, crc_required=with_crc) is None
        assert entry.count(b"__CRC32#") == with_crc
        assert decode_entry(entry).properties.get("RETRY_TOPIC") == (
            "T" if "RETRY_TOPIC" in again else None
        )
    store.close()
    assert Directory(tmp_path / "again", with_crc=with_crc).open().log.end == offset + len(entry)


def test_a_property_that_only_looks_like_a_crc_stays(tmp_path: Path) -> None:
    store = Directory(tmp_path, with_crc=True).open()
    text = b"x__CRC32#\x01y\x02z\x01__CRC32#\x02"
    assert text in stored(store, text)
    store.close()
