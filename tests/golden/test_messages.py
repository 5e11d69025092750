"""Stored entries as Apache's commit log lays them out, batches, ids and tag hashes."""

from __future__ import annotations

import ipaddress

import pytest
from tests.golden.recorded import Recorded, of_kind

from turbopump.errors import StoredMessageError
from turbopump.message.batch import BatchItem, decode_batch, encode_batch
from turbopump.message.codec import (
    body_crc32,
    decode_entries,
    decode_entry,
    encode_entry,
    encode_host,
)
from turbopump.message.entry import CRC_SUFFIX_SIZE, MAGIC_BLANK
from turbopump.message.ids import UniqueIds, decode_offset_msg_id, offset_msg_id
from turbopump.message.java import tags_code
from turbopump.message.message import Message, ReceivedMessage
from turbopump.message.properties import decode_properties, encode_properties


def host(text: str) -> tuple[str, int]:
    """(ip, port) of the index's `hex:port`."""
    ip, port = text.split(":")
    return str(ipaddress.ip_address(bytes.fromhex(ip))), int(port)


def encoded_again(message: ReceivedMessage, properties: bytes, *, with_crc: bool = False) -> bytes:
    return encode_entry(
        queue_id=message.queue_id,
        flag=message.flag,
        queue_offset=message.queue_offset,
        physical_offset=message.commit_log_offset,
        sys_flag=message.sys_flag,
        born_timestamp=message.born_timestamp,
        born_host=encode_host(*message.born_host),
        store_timestamp=message.store_timestamp,
        store_host=encode_host(*message.store_host),
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        body=message.stored_body,
        topic=message.topic.encode(),
        properties=properties,
        with_crc=with_crc,
    )


@pytest.mark.parametrize("recorded", of_kind("stored"))
def test_an_entry_of_apaches_commit_log_is_read_field_by_field(recorded: Recorded) -> None:
    message = decode_entry(recorded.bytes)
    assert message.topic == recorded["topic"]
    assert message.queue_id == recorded["queueId"]
    assert message.flag == recorded["flag"]
    assert message.queue_offset == recorded["queueOffset"]
    assert message.commit_log_offset == recorded["physicalOffset"]
    assert message.sys_flag == recorded["sysFlag"]
    assert message.born_timestamp == recorded["bornTimestamp"]
    assert message.born_host == host(recorded["bornHost"])
    assert message.store_timestamp == recorded["storeTimestamp"]
    assert message.store_host == host(recorded["storeHost"])
    assert message.reconsume_times == recorded["reconsumeTimes"]
    assert message.prepared_transaction_offset == recorded["preparedTransactionOffset"]
    assert message.body_crc == recorded["bodyCrc"]
    assert message.stored_body.hex() == recorded["storedBody"]
    assert message.body.hex() == recorded["body"]
    assert message.offset_msg_id == recorded["offsetMsgId"]
    assert message.store_size == len(recorded.bytes)


@pytest.mark.parametrize("recorded", of_kind("stored"))
def test_the_properties_of_an_entry_are_those_that_apache_reads(recorded: Recorded) -> None:
    """RocketMQ reads a property with an empty value as absent, and so do we; the entry's own CRC,
    which it shows, we do not."""
    message = decode_entry(recorded.bytes)
    assert message.properties == {
        k: v for k, v in (recorded["properties"] or {}).items() if k != "__CRC32#"
    }
    assert tags_code(message.tags or "") == recorded["tagsCode"]


@pytest.mark.parametrize("recorded", of_kind("stored"))
def test_an_entry_is_written_back_to_the_same_bytes(recorded: Recorded) -> None:
    message = decode_entry(recorded.bytes)
    properties = recorded["propertiesText"].encode()
    assert encoded_again(message, properties, with_crc=recorded["wholeCrc"]) == recorded.bytes


@pytest.mark.parametrize("recorded", of_kind("stored"))
def test_any_bit_flipped_in_a_body_is_noticed(recorded: Recorded) -> None:
    message = decode_entry(recorded.bytes)
    at = recorded.bytes.find(message.stored_body) if message.stored_body else -1
    for position in range(at, at + len(message.stored_body), 7):
        damaged = bytearray(recorded.bytes)
        damaged[position] ^= 1 << position % 8
        with pytest.raises(StoredMessageError):
            decode_entry(bytes(damaged))


@pytest.mark.parametrize("recorded", of_kind("stored"))
def test_an_entry_cut_short_anywhere_is_refused(recorded: Recorded) -> None:
    for size in range(len(recorded.bytes)):
        with pytest.raises(StoredMessageError):
            decode_entry(recorded.bytes[:size])


def test_the_whole_message_checksum_is_the_last_property() -> None:
    (recorded,) = [p.values[0] for p in of_kind("stored") if p.values[0]["wholeCrc"]]
    covered = recorded.bytes[:-CRC_SUFFIX_SIZE]
    name, digits = recorded.bytes[-CRC_SUFFIX_SIZE:-1].split(b"\x01")
    assert (name, int(digits[::-1])) == (b"__CRC32#", body_crc32(covered))
    assert "__CRC32#" not in decode_entry(recorded.bytes).properties, (
        "it belongs to the bytes, not to the message"
    )


@pytest.mark.parametrize("recorded", of_kind("blank"))
def test_the_rest_of_a_segment_begins_with_its_length_and_the_blank_magic(
    recorded: Recorded,
) -> None:
    data = recorded.bytes
    assert int.from_bytes(data[:4]) == recorded["size"] == len(data)
    assert int.from_bytes(data[4:8]) == MAGIC_BLANK
    with pytest.raises(StoredMessageError):
        decode_entry(data)


@pytest.mark.parametrize("recorded", of_kind("batch"))
def test_a_batch_is_taken_apart_and_put_together_to_the_same_bytes(recorded: Recorded) -> None:
    items = decode_batch(recorded.bytes)
    assert [facts(item) for item in items] == recorded["messages"]
    messages = [
        Message.as_it_is(
            "TopicTest", item.body, decode_properties(item.properties.decode()), item.flag
        )
        for item in items
    ]
    assert encode_batch(messages) == recorded.bytes


def facts(item: BatchItem) -> dict[str, object]:
    properties = decode_properties(item.properties.decode())
    return {"flag": item.flag, "body": item.body.hex(), "properties": properties}


@pytest.mark.parametrize("recorded", of_kind("stored-batch"))
def test_a_batch_rests_in_the_log_as_one_entry_per_message(recorded: Recorded) -> None:
    """RocketMQ 4.8 to 5.3.3 append the batch's own properties to each message's."""
    data = recorded.bytes
    messages = list(decode_entries(data))
    assert [m.queue_offset for m in messages] == [
        recorded["queueOffset"] + n for n in range(len(messages))
    ]
    assert [m.body.hex() for m in messages] == [m["body"] for m in recorded["messages"]]
    appended = decode_properties(recorded["batchProperties"])
    assert [m.properties for m in messages] == [
        m["properties"] | appended for m in recorded["messages"]
    ]
    texts = [
        encode_properties(m["properties"]) + recorded["batchProperties"]
        for m in recorded["messages"]
    ]
    assert (
        b"".join(encoded_again(m, t.encode()) for m, t in zip(messages, texts, strict=True)) == data
    )
    at = recorded["physicalOffset"]
    for message in messages:
        assert message.commit_log_offset == at
        at += message.store_size


@pytest.mark.parametrize("recorded", of_kind("offset-msg-id"))
def test_an_offset_message_id_says_where_the_message_is(recorded: Recorded) -> None:
    ip, port, offset = decode_offset_msg_id(recorded["id"])
    assert ipaddress.ip_address(ip).packed.hex() == recorded["host"]
    assert (port, offset) == (recorded["port"], recorded["offset"])
    assert offset_msg_id(ip, port, offset) == recorded["id"]


class StoppedClock:
    """A clock that stands at one moment of a month, in the machine's own zone as Java counts it."""

    def __init__(self, now_ms: int) -> None:
        self.at = now_ms

    def now_ms(self) -> int:
        return self.at

    def monotonic(self) -> float:
        return 0.0


@pytest.mark.parametrize("recorded", of_kind("unique-id"))
def test_a_unique_id_has_apaches_parts_in_apaches_order(recorded: Recorded) -> None:
    first_of_march_2026_utc = 1_772_323_200_000
    ids = UniqueIds(
        StoppedClock(first_of_march_2026_utc + recorded["sinceMonthMs"]),
        ip=str(ipaddress.ip_address(bytes.fromhex(recorded["host"]))),
        token=recorded["loader"],
        pid=recorded["pid"],
    )
    made = next(
        unique for unique in iter(ids.next, None) if unique.endswith(f"{recorded['counter']:04X}")
    )
    assert made == recorded["id"]


@pytest.mark.parametrize("recorded", of_kind("tags-code"))
def test_tag_codes_and_checksums_are_javas(recorded: Recorded) -> None:
    assert tags_code(recorded["text"]) == recorded["tagsCode"]
    assert body_crc32(recorded["text"].encode()) == recorded["crc32"]
