"""Many queues: what each costs on the disk, and that few of them are mapped at a time."""

from pathlib import Path

import pytest
from tests.file_descriptors import open_count
from tests.unit.store.directory import Directory, bodies, put, put_batch

from turbopump.disk.system_disk import SystemDisk
from turbopump.store.queues.consume_queue import UNIT_SIZE, ConsumeQueue
from turbopump.store.sparse_files import GROWTH_MAX, PAGE, OpenFiles, grown

QUEUE_FILE = 6_000_000
TOPICS = [f"T{number}" for number in range(60)]


def blocks(root: Path) -> int:
    """Bytes that the files below a directory have on the disk."""
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*") if path.is_file())


def maps_of(root: Path) -> int:
    """How many files below a directory this process has mapped."""
    return Path("/proc/self/maps").read_text().count(f"{root}/")


class NarrowDisk(SystemDisk):
    """A system that lets a process map three queues at a time."""

    @property
    def maps_max(self) -> int:
        return 3


@pytest.mark.parametrize(
    ("size", "wanted"),
    [
        (UNIT_SIZE, PAGE),
        (PAGE, 2 * PAGE),
        (PAGE + 1, 2 * PAGE),
        (2 * PAGE + 1, 4 * PAGE),
        (GROWTH_MAX + 1, 2 * GROWTH_MAX),
        (5 * GROWTH_MAX - 1, 5 * GROWTH_MAX),
        (QUEUE_FILE - 1, QUEUE_FILE),
    ],
)
def test_a_file_is_doubled_until_it_grows_by_a_quarter_of_a_mebibyte(
    size: int, wanted: int
) -> None:
    assert grown(size, QUEUE_FILE) == wanted


def test_a_new_queue_takes_a_page_and_no_descriptor(tmp_path: Path) -> None:
    directory = Directory(tmp_path, queue_file_size=QUEUE_FILE, segment_size=1 << 20)
    store = directory.open()
    put(store, b"first")
    before = open_count()
    for topic in TOPICS:
        put(store, b"x", topic)
    assert open_count() == before
    assert blocks(directory.paths.consume_queues) == (len(TOPICS) + 1) * PAGE
    for path in directory.paths.consume_queues.rglob("0" * 20):
        assert path.stat().st_size == QUEUE_FILE, "as Apache's broker expects it"
    store.close()


def test_a_queue_grows_by_as_much_as_it_has(tmp_path: Path) -> None:
    directory = Directory(tmp_path, queue_file_size=QUEUE_FILE, segment_size=1 << 20)
    store = directory.open()
    for number in range(1, 21):
        put_batch(store, [b"x"] * 100)
        taken = blocks(directory.paths.consume_queues)
        assert taken <= 2 * max(number * 100 * UNIT_SIZE, PAGE) + PAGE
    store.close()


def test_of_many_queues_few_are_mapped_and_all_are_written_and_read(tmp_path: Path) -> None:
    directory = Directory(tmp_path, segment_size=1 << 16)
    store = directory.open_on(NarrowDisk())
    for number in range(12):  # ten units fill a queue file
        for topic in TOPICS[:8]:
            put(store, b"%d" % number, topic)
            store.flusher.flush_queues()
            assert maps_of(directory.paths.consume_queues) <= NarrowDisk().maps_max + 1
    wanted = [b"%d" % number for number in range(12)]
    assert all(bodies(store, topic) == wanted for topic in TOPICS[:8])
    store.close()
    again = directory.open()
    assert again.recovery is not None
    assert again.recovery.mismatch is None
    assert all(bodies(again, topic) == wanted for topic in TOPICS[:8])
    again.close()


def test_a_queue_that_is_not_synced_stays_mapped(tmp_path: Path) -> None:
    open_files = OpenFiles(2)
    disk = SystemDisk()
    queues = [
        ConsumeQueue(disk, tmp_path / str(number), "T", number, 200, open_files)
        for number in range(10)
    ]
    for queue in queues:
        queue.make_room(1)
        queue.append(0, 100, 100, 0)
    assert maps_of(tmp_path) == len(queues), "all are dirty"
    dirty = open_files.take_dirty()
    assert len(dirty) == len(queues)
    disk.sync(dirty)
    for _ in range(2):  # they were in use; the second look finds them cold
        disk.sync(open_files.take_dirty())
    assert maps_of(tmp_path) == 2
    assert all(queue.append(1, 101, 100, 0) for queue in queues)
    assert [queue.unit(1) for queue in queues] == [(101, 100, 0)] * len(queues)
    for queue in queues:
        queue.close()
    assert maps_of(tmp_path) == 0
    assert open_files.take_dirty() == []


def test_a_queue_that_was_removed_is_not_synced(tmp_path: Path) -> None:
    open_files = OpenFiles(2)
    queue = ConsumeQueue(SystemDisk(), tmp_path / "0", "T", 0, 200, open_files)
    queue.append(0, 100, 100, 0)
    queue.remove()
    assert open_files.take_dirty() == []
    assert list(tmp_path.iterdir()) == []
