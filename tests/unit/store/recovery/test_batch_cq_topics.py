"""A store of Apache's with a BatchCQ topic: it opens, other topics are served, and what Apache's
broker needs of that topic stays as it was."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.stand_ins import returns
from tests.unit.store.apache_batches import (
    TOPIC,
    batch_files,
    leave_as_apache,
    make_store,
    put_inner,
    write_topics,
)
from tests.unit.store.directory import Directory, TestClock, put

from turbopump.broker.topics import QueueKinds
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import MessageError
from turbopump.message.codec import decode_entries
from turbopump.store.copied_log import CopiedLog
from turbopump.store.message_store import MessageStore

BATCHES = [[b"%d.%d" % (number, part) for part in range(number % 4 + 1)] for number in range(25)]


@pytest.fixture
def directory(tmp_path: Path) -> Directory:
    made = Directory(tmp_path / "store", with_crc=True)
    make_store(made, BATCHES)
    return made


def opened(directory: Directory) -> MessageStore:
    """As a broker opens it, which knows the topics of its table."""
    disk = SystemDisk()
    return directory.open_on(disk, is_batch=QueueKinds(disk, directory.paths).is_batch)


def bodies(store: MessageStore, topic: str = "T") -> list[bytes]:
    found: list[bytes] = []
    offset = store.min_offset(topic, 0)
    while offset < store.max_offset(topic, 0):
        result = store.get(topic, 0, offset, 32)
        found += [entry.body for entry in decode_entries(result.data)]
        offset = result.next_offset
    return found


PLAIN = [b"%d" % number for number in range(len(BATCHES))]


def check_served(store: MessageStore, end: int) -> None:
    assert bodies(store) == PLAIN
    assert store.queue(TOPIC, 0) is None
    assert store.log.end == end
    assert not store.recovery or not store.recovery.damages


def test_it_opens_and_serves_other_topics_and_leaves_the_files_of_batches_alone(
    directory: Directory,
) -> None:
    files = batch_files(directory.paths)
    store = opened(directory)
    end = store.log.end
    check_served(store, end)
    put(store, b"more")
    store.close()
    assert batch_files(directory.paths) == files
    store = opened(directory)
    assert bodies(store) == [*PLAIN, b"more"]
    assert store.recovery is not None
    assert (store.recovery.rebuilt, store.recovery.mismatch) == (False, None)
    store.close()
    assert batch_files(directory.paths) == files
    assert not (directory.paths.consume_queues / TOPIC).exists()


@pytest.mark.parametrize("lost", ["abort", "consumequeue", "topics.json", "batchconsumequeue"])
def test_it_opens_after_a_kill_and_without_files_that_the_log_replaces(
    directory: Directory, lost: str
) -> None:
    paths = directory.paths
    paths.abort.write_bytes(b"")  # as Apache's broker leaves it when it is killed
    if lost == "topics.json":
        paths.table("topics").unlink()
    elif lost != "abort":
        shutil.rmtree(paths.root / lost)
    files = batch_files(paths)
    store = opened(directory)
    check_served(store, store.log.end)
    store.close()
    assert batch_files(paths) == files


def test_nothing_can_be_stored_in_such_a_topic(directory: Directory) -> None:
    store = opened(directory)
    end = store.log.end
    with pytest.raises(MessageError, match=r"topic=B is a BatchCQ topic .* does not serve"):
        put(store, b"x", TOPIC)
    assert store.log.end == end
    store.close()


def test_a_queue_that_was_begun_before_its_topic_was_known_is_removed(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "store")
    store = directory.open()
    put(store, b"alone", TOPIC)
    put(store, b"0")
    store.close()
    write_topics(directory.paths)
    store = opened(directory)
    assert store.queue(TOPIC, 0) is None
    assert bodies(store) == [b"0"]
    store.close()
    assert not (directory.paths.consume_queues / TOPIC).exists()
    store = opened(directory)
    assert store.recovery is not None
    assert store.recovery.mismatch is None
    store.close()


def test_a_topic_that_is_deleted_takes_apache_s_files_with_it_and_can_be_made_anew(
    directory: Directory,
) -> None:
    store = opened(directory)
    deleted: list[object] = []
    store.delete_queues(TOPIC, deleted.append)
    store.close()
    assert deleted == [0]
    assert batch_files(directory.paths) == {}
    assert not (directory.paths.batch_consume_queues / TOPIC).exists()
    directory.paths.table("topics").unlink()
    store = directory.open(is_batch=returns(False))
    assert put(store, b"anew", TOPIC).queue_offset == 0
    store.close()
    shutil.rmtree(directory.paths.consume_queues)
    store = directory.open(is_batch=returns(False))
    assert bodies(store, TOPIC) == [b"anew"]
    assert bodies(store) == PLAIN
    store.close()


def test_a_slave_copies_the_messages_and_gives_them_no_queue(
    directory: Directory, tmp_path: Path
) -> None:
    master = opened(directory)
    twin = Directory(tmp_path / "slave", is_copy=True)
    slave = twin.open(is_batch=lambda topic: topic == TOPIC)
    copied = slave.copied
    assert copied is not None
    copy_log(master, copied)
    check_served(slave, master.log.end)
    assert copied.faults == []
    for offset in range(0, master.log.end, 4096):
        assert slave.log.read(offset, 100) == master.log.read(offset, 100)
    slave.close()
    master.close()


def copy_log(master: MessageStore, copied: CopiedLog) -> None:
    at = 0
    while at < master.log.end:
        size = min(master.log.segment_end(at), master.log.end) - at
        data = master.log.read(at, size)
        assert data is not None
        copied.append(at, data)
        at += size


def test_retention_trims_the_log_with_such_messages(tmp_path: Path) -> None:
    directory = Directory(tmp_path / "store")
    store = directory.open()
    for number in range(30):
        put(store, b"%d" % number + b"x" * 200)
        put_inner(store, [b"a" * 200, b"b" * 200])
    store.close()
    leave_as_apache(directory.paths)
    segments = sorted(directory.paths.commit_log.iterdir())
    for segment in segments[:2]:
        segment.unlink()
    files = batch_files(directory.paths)
    clock = TestClock()
    assert clock.now
    store = opened(directory)
    assert store.log.start == 2 * 4096
    found = bodies(store)
    assert found
    assert [body.rstrip(b"x") for body in found] == [b"%d" % n for n in range(30)][-len(found) :]
    store.close()
    assert batch_files(directory.paths) == files
