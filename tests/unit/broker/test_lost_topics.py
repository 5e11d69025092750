"""Topics whose messages survived although topics.json did not know them when the power failed."""

import asyncio
import logging
import shutil
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.patient import ANSWER_S
from tests.unit.broker.talking import Talk, talking, watched

from turbopump.broker.background import wait_for
from turbopump.message.properties import encode_properties
from turbopump.protocol.codes import ResponseCode
from turbopump.protocol.requests.topics import DeleteTopic, TopicConfig


def tables(root: Path) -> list[Path]:
    return [root / "config" / name for name in ("topics.json", "topics.json.bak")]


def topic_of(talk: Talk, name: str) -> TopicConfig | None:
    return talk.broker.tables.topics.find(name)


@in_loop(watched)
async def test_topics_that_only_the_log_knows_are_made_again_and_their_messages_are_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    root = tmp_path / "store"
    async with talking(root) as talk:
        await talk.client.create("Known")
        await talk.client.send(b"known", "Known")
    for path in tables(root):
        shutil.copy(path, kept)
    async with talking(root) as talk:
        await talk.client.create("Lost", 20)
        await talk.client.create("%RETRY%group", 1)
        await talk.client.create("Empty", 3)
        for queue_id in (0, 11):
            await talk.client.send(b"%d" % queue_id, "Lost", queue_id)
        await talk.client.send(b"again", "%RETRY%group")
    for path in tables(root):
        shutil.copy(kept / path.name, path)
    with caplog.at_level(logging.WARNING, "turbopump.broker.lost_topics"):
        async with talking(root) as talk:
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
        async with talking(root) as talk:
            assert await talk.client.all_bodies(topic="Lost", queue_id=11) == [b"11", b"more"]
    told = [
        record.getMessage()
        for record in caplog.records
        if record.name == "turbopump.broker.lost_topics"
    ]
    assert told == [
        "topic with messages was missing in topics.json and is restored topic=%RETRY%group "
        "queues=1",
        "topic with messages was missing in topics.json and is restored topic=Lost queues=12",
    ]


@in_loop(watched)
async def test_without_any_table_topics_with_messages_return_with_the_default_queue_number(
    tmp_path: Path,
) -> None:
    async with talking(tmp_path) as talk:
        await talk.client.create("T", 2)
        await talk.client.send(b"one")
    for path in tables(tmp_path):
        path.unlink()
    async with talking(tmp_path) as talk:
        config = topic_of(talk, "T")
        assert config is not None
        assert config.read_queue_nums == talk.broker.config.default_topic_queue_nums
        system = topic_of(talk, "SCHEDULE_TOPIC_XXXX")
        assert system is not None
        assert system.read_queue_nums == 18
        assert await talk.client.all_bodies() == [b"one"]


@pytest.mark.parametrize("noted", [True, False])
@in_loop(watched)
async def test_a_deleted_topic_does_not_come_back_from_the_log(tmp_path: Path, noted: bool) -> None:
    async with talking(tmp_path) as talk:
        await talk.client.create("T")
        await talk.client.send(b"one")
        assert await talk.client.code(DeleteTopic(topic="T")) == (ResponseCode.SUCCESS, "")
    shutil.rmtree(tmp_path / "consumequeue")
    if not noted:
        for note in tmp_path.glob("turbopump.queues.json*"):
            note.unlink()
    async with talking(tmp_path) as talk:
        written_again = talk.broker.store.max_offset("T", 0) == 1
        assert written_again is not noted, (
            "its queues come back only where nobody noted that they were deleted"
        )
        assert topic_of(talk, "T") is None


@in_loop(watched)
async def test_a_topic_whose_last_message_cannot_be_read_comes_back(tmp_path: Path) -> None:
    async with talking(tmp_path) as talk:
        await talk.client.create("T")
        for number in range(3):
            await talk.client.send(b"%d" % number)
    for path in tables(tmp_path):
        path.unlink()
    (segment,) = (tmp_path / "commitlog").iterdir()
    data = bytearray(segment.read_bytes())
    data[data.rfind(b"2\x01T")] ^= 0x40
    segment.write_bytes(data)
    async with talking(tmp_path) as talk:
        assert topic_of(talk, "T") is not None
        assert await talk.client.all_bodies() == [b"0", b"1"]


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize(
    "wait", [{"DELAY": "1"}, {"TIMER_DELAY_MS": "1", "UNIQ_KEY": "U"}], ids=["delay", "timer"]
)
@in_loop(watched)
async def test_a_topic_whose_first_message_has_waited_is_made_again_when_it_comes(
    tmp_path: Path, wait: dict[str, str], deleted: bool
) -> None:
    delays = {"message_delay_level": "2s"}
    async with talking(tmp_path, **delays) as talk:
        await talk.client.create("T", 12)
        await talk.client.send(b"waits", queue_id=9, properties=encode_properties(wait))
        if deleted:
            await talk.client.code(DeleteTopic(topic="T"))
    if not deleted:
        for path in tables(tmp_path):
            path.unlink()
    async with talking(tmp_path, **delays) as talk:
        queue = talk.broker.store.queues.find_or_make("T", 9)
        async with asyncio.timeout(ANSWER_S):
            await wait_for((queue.end, 1))
        assert queue.end.value == 1
        config = topic_of(talk, "T")
        if deleted:
            assert config is None, "a topic that was deleted stays so"
        else:
            assert config is not None
            assert config.read_queue_nums == 10
            assert await talk.client.all_bodies(queue_id=9) == [b"waits"]
