"""A batch is stored as its messages would be one by one, whole or not at all."""

from pathlib import Path

import pytest
from tests.unit.store.directory import HOST, Directory, bodies

from turbopump.errors import ProtocolError
from turbopump.message.batch import BatchItem, encode_item
from turbopump.message.java import tags_code
from turbopump.store.message_store import MessageStore, NewMessage, PutResult
from turbopump.store.packed_batch import pack_batch

ADDED = b"MSG_REGION\x01r\x02"
ITEMS = [
    BatchItem(7, b"first", b"UNIQ_KEY\x01U1\x02TAGS\x01red\x02KEYS\x01k1  k2\x02"),
    BatchItem(-1, b"", b""),
    BatchItem(0, b"third", b"KEYS\x01k2\x02UNIQ_KEY\x01U3"),
    BatchItem(0, b"x" * 300, "n\x01ü\x02KEYS\x01kü\x02TAGS\x01grün\x02".encode()),
    BatchItem(1, b"plain", "n\x01ü\x02UNIQ_KEY\x01U5\x02".encode()),
]
WHERE = {"sys_flag": 0, "born_timestamp": 5, "born_host": HOST, "store_host": HOST}


def opened(root: Path, *, with_crc: bool = True, **config: int) -> MessageStore:
    return Directory(root, with_crc=with_crc, index_slots=10, index_entries=100, **config).open()


def joined(items: list[BatchItem]) -> bytes:
    return b"".join([encode_item(*item) for item in items])


def put_packed(store: MessageStore, items: list[BatchItem], topic: str = "T") -> PutResult:
    placed, _ = store.put_batch(topic, 0, pack_batch(joined(items), topic, ADDED), **WHERE)  # type: ignore[arg-type]
    return placed


def put_singly(store: MessageStore, item: BatchItem, topic: str) -> None:
    text = item.properties.decode()
    found = dict(pair.split("\x01") for pair in text.split("\x02") if pair)
    stored = item.properties + (b"\x02" if text and text[-1] != "\x02" else b"") + ADDED
    code = tags_code(found["TAGS"]) if "TAGS" in found else 0
    message = NewMessage(
        item.body, stored, code, item.flag, found.get("UNIQ_KEY"), found.get("KEYS")
    )
    store.put(topic, 0, message, **WHERE)  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", ["T", "t" * 130])
@pytest.mark.parametrize("with_crc", [False, True])
def test_the_files_are_the_same_as_of_messages_sent_one_by_one(
    tmp_path: Path, with_crc: bool, topic: str
) -> None:
    files = []
    for name in ("batch", "singly"):
        store = opened(tmp_path / name, with_crc=with_crc, segment_size=1 << 16)
        for _ in range(3):  # 15 units, of which a file of the queue holds 10
            if name == "batch":
                put_packed(store, ITEMS, topic)
            else:
                for item in ITEMS:
                    put_singly(store, item, topic)
        queue = store.queue(topic, 0)
        assert queue is not None
        assert queue.end.value == queue.max_index == 15
        assert store.index is not None
        assert store.index.end_offset >= 0
        index = store.index.files[-1]
        entries = index.segment.read(0, index.segment.size)
        files.append(
            (store.log.read(0, store.log.end), queue.units(0, 10), queue.units(10, 5), entries)
        )
        store.close()
    assert files[0] == files[1]


def test_each_message_of_a_batch_is_found_by_its_keys(tmp_path: Path) -> None:
    store = opened(tmp_path)
    put_packed(store, ITEMS)
    assert store.index is not None
    store.index.write_waiting()
    expected = {"U1": 1, "k1": 1, "k2": 2, "U3": 1, "kü": 1, "U5": 1, "k3": 0, "": 0}
    entries = store.index.files[-1].count - 1
    assert entries == sum(expected.values())
    store.close()


def test_a_batch_of_a_full_queue_file_goes_on_in_the_next(tmp_path: Path) -> None:
    store = opened(tmp_path, segment_size=1 << 16)
    put_packed(store, [BatchItem(0, b"%d" % number, b"") for number in range(25)])
    put_packed(store, [BatchItem(0, b"%d" % number, b"") for number in range(25, 30)])
    assert bodies(store) == [b"%d" % number for number in range(30)]
    store.close()


@pytest.mark.parametrize(
    ("spoilt", "why"),
    [
        (encode_item(*ITEMS[0])[:-1], "impossible lengths|go past its end"),
        (b"\0" * 21, "is cut off"),
        (encode_item(*ITEMS[1]).replace(b"\0\0\0\x16", b"\0\0\0\x15"), "impossible lengths"),
    ],
)
def test_a_batch_with_one_bad_message_is_refused_whole(spoilt: bytes, why: str) -> None:
    good = encode_item(*ITEMS[0])
    for data in (spoilt, good + spoilt):
        with pytest.raises(ProtocolError, match=why):
            pack_batch(data, "T", ADDED)


def test_what_may_ask_for_more_than_to_be_stored_is_told() -> None:
    batch = pack_batch(joined([*ITEMS, BatchItem(0, b"later", b"DELAY\x013\x02")]), "T", ADDED)
    assert (batch.special, batch.count) == (["DELAY\x013\x02"], 6)
    assert pack_batch(joined(ITEMS), "T", ADDED).special == []


@pytest.mark.parametrize(
    ("item", "most", "says"),
    [
        (encode_item(0, b"b", b""), 32_767, "a batch has at most 32767 messages; send this one in"),
        (
            encode_item(0, b"b", b"KEYS\x01" + b"k " * 16_000 + b"\x02"),
            4,
            "the messages of a batch have at most 65536 keys; send this one in parts",
        ),
    ],
    ids=["messages", "keys"],
)
def test_a_batch_has_a_number_of_messages_and_of_keys(item: bytes, most: int, says: str) -> None:
    assert pack_batch(item * most, "T", ADDED).count == most
    with pytest.raises(ProtocolError, match=says):
        pack_batch(item * (most + 1), "T", ADDED)
