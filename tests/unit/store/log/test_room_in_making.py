"""The next file of the log is made beside the loop: who needs it sooner is told to come again, if
somebody tells when."""

import errno
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.unit.store.directory import Directory, bodies, put, put_batch

from turbopump.disk.disk import Done
from turbopump.disk.mapped_segments import MappedSegment
from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import RoomInMakingError
from turbopump.store.message_store import MessageStore


class SlowDisk(SystemDisk):
    """What should run beside the owner's thread runs when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[Callable[[], None]] = []
        self.error: OSError | None = None

    def start(self, operation: Callable[[], None], done: Done) -> None:
        self.waiting.append(partial(SystemDisk.start, self, operation, done))

    def create_segment(self, path: Path, size: int) -> MappedSegment:
        if self.error is not None:
            raise self.error
        return super().create_segment(path, size)

    def run(self) -> None:
        waiting, self.waiting = self.waiting, []
        for one in waiting:
            one()


def opened(tmp_path: Path) -> tuple[MessageStore, SlowDisk]:
    directory, disk = Directory(tmp_path), SlowDisk()
    return MessageStore.open(
        directory.config, disk, directory.clock, directory.failures.append
    ), disk


def fill(store: MessageStore) -> int:
    """Put messages until there is no room for another; how many."""
    for number in range(100):
        before = store.log.end
        try:
            put(store, b"%03d" % number + b"x" * 900)
        except RoomInMakingError:
            assert store.log.end == before, "nothing has changed"
            return number
    raise AssertionError("there always was room")


def test_a_message_that_needs_a_file_in_the_making_is_refused_until_it_is_there(
    tmp_path: Path,
) -> None:
    store, disk = opened(tmp_path)
    told: list[str] = []
    store.log.files.on_spare = partial(told.append, "there is room")
    count = fill(store)
    with pytest.raises(RoomInMakingError):
        put_batch(store, [b"x" * 900] * 2)
    assert told == []
    disk.run()
    assert told == ["there is room"]
    put(store, b"behind" * 150)
    assert bodies(store)[count:] == [b"behind" * 150]
    assert store.log.files.files[-1].start == store.log.segment_size
    store.close()


def test_a_file_that_could_not_be_made_is_tried_again_by_who_needs_it(tmp_path: Path) -> None:
    store, disk = opened(tmp_path)
    told: list[str] = []
    store.log.files.on_spare = partial(told.append, "try it")
    fill(store)
    disk.error = OSError(errno.EIO, "the device is gone")
    disk.run()
    assert told == ["try it"]
    with pytest.raises(Exception, match=r"device is gone|Input/output error"):
        put(store, b"x" * 900)
    disk.error = None
    store.close()


def test_without_anybody_to_tell_the_file_is_made_on_the_spot(tmp_path: Path) -> None:
    store, _ = opened(tmp_path)
    sent = [b"%03d" % number + b"x" * 900 for number in range(20)]
    for body in sent:
        put(store, body)
    assert bodies(store) == sent
    store.close()
