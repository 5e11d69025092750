"""Topics whose messages survived although topics.json did not know them when the power failed."""

import logging
import shutil
from pathlib import Path

import pytest
from tests.unit.broker.talking import Talk, converse

from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.topics import DeleteTopic, TopicConfig


def tables(root: Path) -> list[Path]:
    return [root / "config" / name for name in ("topics.json", "topics.json.bak")]


def topic_of(talk: Talk, name: str) -> TopicConfig | None:
    return talk.broker._topics.find(name)


def test_topics_that_only_the_log_knows_are_made_again_and_their_messages_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def begun(talk: Talk) -> None:
        await talk.client.create("Known")
        await talk.client.send(b"known", "Known")

    async def lost(talk: Talk) -> None:
        await talk.client.create("Lost", 20)
        await talk.client.create("%RETRY%group", 1)
        await talk.client.create("Empty", 3)
        for queue_id in (0, 11):
            await talk.client.send(b"%d" % queue_id, "Lost", queue_id)
        await talk.client.send(b"again", "%RETRY%group")

    async def found(talk: Talk) -> None:
        config = topic_of(talk, "Lost")
        assert config is not None
        assert (
            config.read_queue_nums,
            config.write_queue_nums,
            config.readable,
            config.writable,
        ) == (12, 12, True, True)
        retry = topic_of(talk, "%RETRY%group")
        assert retry is not None
        assert retry.write_queue_nums == 1
        assert topic_of(talk, "Empty") is None
        assert await talk.client.all_bodies(topic="Lost", queue_id=11) == [b"11"]
        assert (await talk.client.send(b"more", "Lost", 11)).queue_offset == 1

    kept = tmp_path / "kept"
    kept.mkdir()
    root = tmp_path / "store"
    converse(begun, root)
    for path in tables(root):
        shutil.copy(path, kept)
    converse(lost, root)
    for path in tables(root):
        shutil.copy(kept / path.name, path)
    with caplog.at_level(logging.WARNING, "turbopump.broker.topics"):
        converse(found, root)
        converse(found_again, root)
    told = [
        record.getMessage() for record in caplog.records if record.name == "turbopump.broker.topics"
    ]
    assert told == [
        "topic with messages was not in topics.json, it is made again topic=%RETRY%group queues=1",
        "topic with messages was not in topics.json, it is made again topic=Lost queues=12",
    ]


async def found_again(talk: Talk) -> None:
    assert await talk.client.all_bodies(topic="Lost", queue_id=11) == [b"11", b"more"]


def test_without_any_table_topics_with_messages_return_with_the_default_queue_number(
    tmp_path: Path,
) -> None:
    async def first(talk: Talk) -> None:
        await talk.client.create("T", 2)
        await talk.client.send(b"one")

    async def then(talk: Talk) -> None:
        config = topic_of(talk, "T")
        assert config is not None
        assert config.read_queue_nums == talk.broker.config.default_topic_queue_nums
        system = topic_of(talk, "SCHEDULE_TOPIC_XXXX")
        assert system is not None
        assert system.read_queue_nums == 18
        assert await talk.client.all_bodies() == [b"one"]

    converse(first, tmp_path)
    for path in tables(tmp_path):
        path.unlink()
    converse(then, tmp_path)


@pytest.mark.parametrize("noted", [True, False])
def test_a_deleted_topic_does_not_come_back_from_the_log(tmp_path: Path, noted: bool) -> None:
    async def first(talk: Talk) -> None:
        await talk.client.create("T")
        await talk.client.send(b"one")
        assert await talk.client.code(DeleteTopic(topic="T")) == (ResponseCode.SUCCESS, "")

    async def then(talk: Talk) -> None:
        written_again = talk.broker.store.max_offset("T", 0) == 1
        assert written_again is not noted, (
            "its queues come back only where nobody noted that they were deleted"
        )
        assert topic_of(talk, "T") is None

    converse(first, tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    if not noted:
        for note in tmp_path.glob("turbopump.queues.json*"):
            note.unlink()
    converse(then, tmp_path)


def test_a_topic_whose_last_message_cannot_be_read_comes_back(tmp_path: Path) -> None:
    async def first(talk: Talk) -> None:
        await talk.client.create("T")
        for number in range(3):
            await talk.client.send(b"%d" % number)

    async def then(talk: Talk) -> None:
        assert topic_of(talk, "T") is not None
        assert await talk.client.all_bodies() == [b"0", b"1"]

    converse(first, tmp_path)
    for path in tables(tmp_path):
        path.unlink()
    (segment,) = (tmp_path / "commitlog").iterdir()
    data = bytearray(segment.read_bytes())
    data[data.rfind(b"2\x01T")] ^= 0x40
    segment.write_bytes(data)
    converse(then, tmp_path)
