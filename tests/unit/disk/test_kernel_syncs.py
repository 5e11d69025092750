"""Syncs that a thread of the kernel's makes: told of in the owner's loop, with their errors, and
refused at once where that cannot be."""

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.file_descriptors import is_readable
from tests.loops import in_loop
from tests.stand_ins import does_nothing

from turbopump.disk import kernel_syncs, mapped_segments
from turbopump.disk.kernel_syncs import AT_ONCE_MAX, KernelSyncs, Loop
from turbopump.disk.system_disk import SystemDisk


class Watched:
    """An event loop of which the test is the turn."""

    def __init__(self) -> None:
        self.readers: dict[int, Callable[[], None]] = {}

    def add_reader(self, fd: int, callback: Callable[[], None]) -> None:
        self.readers[fd] = callback

    def remove_reader(self, fd: int) -> None:
        del self.readers[fd]


@pytest.fixture
def loop() -> Watched:
    return Watched()


@pytest.fixture
def syncs(loop: Watched, fd: int) -> Iterator[KernelSyncs]:
    made = opened(loop, fd)
    yield made
    made.close()


def opened(loop: Loop, fd: int) -> KernelSyncs:
    """Syncs that have been used once."""
    made = KernelSyncs(loop)
    if not made.start(fd, does_nothing):
        pytest.skip("the kernel does not sync for us here")
    assert is_readable(made._ended, 30)
    made._report()
    return made


@pytest.fixture
def fd(tmp_path: Path) -> Iterator[int]:
    number = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.pwrite(number, b"x" * 10_000, 0)
    yield number
    os.close(number)


class Answering:
    """In place of the C library: every sync has ended with `result`."""

    def __init__(self, syncs: KernelSyncs, result: int) -> None:
        self._syncs = syncs
        self._result = result

    def syscall(self, number: int, *_: Any) -> int:
        if number == self._syncs._submit:
            os.eventfd_write(self._syncs._ended, 2)
            return 1
        assert number == self._syncs._events
        kernel_syncs._EVENT.pack_into(
            self._syncs._found, 0, self._syncs._number, 0, self._result, 0
        )
        return len(self._syncs._under_way)


@in_loop
async def test_the_owners_loop_is_told_when_a_sync_has_ended(fd: int, tmp_path: Path) -> None:
    running = asyncio.get_running_loop()
    syncs = opened(running, fd)
    for _ in range(3 * AT_ONCE_MAX):
        told: asyncio.Future[OSError | None] = running.create_future()
        assert syncs.start(fd, told.set_result)
        assert await asyncio.wait_for(told, 30) is None
    syncs.close()


def test_a_sync_that_failed_is_told_with_its_error(
    syncs: KernelSyncs, loop: Watched, fd: int
) -> None:
    real = syncs._libraries
    answering = Answering(syncs, -errno.EIO)
    syncs._libraries = answering, answering
    told: list[OSError | None] = []
    assert syncs.start(fd, told.append)
    syncs._report()
    syncs._report()  # a false alarm
    assert len(told) == 1
    assert isinstance(told[0], OSError)
    assert told[0].errno == errno.EIO
    assert told[0].strerror == os.strerror(errno.EIO)
    syncs._libraries = real


def test_syncs_that_were_never_used_are_closed_like_others(loop: Watched) -> None:
    KernelSyncs(loop).close()


def test_closing_waits_for_what_was_begun_and_tells_of_it(
    syncs: KernelSyncs, loop: Watched, fd: int
) -> None:
    told: list[tuple[int, OSError | None]] = []
    for number in range(AT_ONCE_MAX):
        assert syncs.start(fd, lambda error, number=number: told.append((number, error)))  # type: ignore[misc]
    assert not syncs.start(fd, does_nothing), "one too many is refused"
    syncs.close()
    assert sorted(told) == [(number, None) for number in range(AT_ONCE_MAX)]
    assert not loop.readers


def test_what_cannot_be_synced_is_refused_at_once(syncs: KernelSyncs, loop: Watched) -> None:
    reading, writing = os.pipe()
    for fd in (reading, -1, 1 << 20):
        assert not syncs.start(fd, does_nothing)
    os.close(reading)
    os.close(writing)
    (callback,) = loop.readers.values()
    callback()  # a false alarm: nothing has ended


@pytest.mark.parametrize("lacking", ["machine", "call", "system"])
def test_where_the_kernel_does_not_do_it_everything_is_refused(
    loop: Watched, fd: int, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    if lacking == "machine":
        monkeypatch.setattr(kernel_syncs, "_NUMBERS", {})
    elif lacking == "call":
        monkeypatch.setattr(kernel_syncs, "_NUMBERS", {os.uname().machine: (9999,) * 4})
    else:
        monkeypatch.setattr("sys.platform", "darwin")
    syncs = KernelSyncs(loop)
    for _ in range(2):
        assert not syncs.start(fd, does_nothing)
    assert not loop.readers
    syncs.close()


async def sync(
    disk: SystemDisk, running: asyncio.AbstractEventLoop, *segments: Any
) -> OSError | None:
    told: asyncio.Future[OSError | None] = running.create_future()
    disk.start_sync(segments, told.set_result)
    return await asyncio.wait_for(told, 30)


def again(disk: SystemDisk, one: Any, told: list[str], _error: OSError | None) -> None:
    told.append("first")
    disk.start_sync([one], lambda _error: told.append("begun by it"))


@in_loop
async def test_the_disk_lets_the_kernel_sync_single_files_and_a_thread_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = asyncio.get_running_loop()
    disk = SystemDisk(running.call_soon_threadsafe, running)
    one, other = (disk.create_segment(tmp_path / name, 4096) for name in "ab")
    opened(running, one.fd).close()
    in_threads: list[int] = []
    monkeypatch.setattr(mapped_segments, "_fdatasync", in_threads.append)

    assert await sync(disk, running, one) is None
    assert in_threads == []
    assert await sync(disk, running, one, other) is None
    assert len(in_threads) == 2
    told: list[str] = []

    disk.start_sync([one], partial(again, disk, one, told))
    disk.close()
    assert told == ["first", "begun by it"]
    with pytest.raises(RuntimeError, match="the disk is closed"):
        disk.start_sync([one], does_nothing)
    one.close()
    other.close()


@in_loop
async def test_a_file_that_the_kernel_refuses_is_left_to_a_thread(tmp_path: Path) -> None:
    running = asyncio.get_running_loop()
    disk = SystemDisk(running.call_soon_threadsafe, running)
    segment = disk.create_segment(tmp_path / "a", 4096)
    segment.close()
    told: asyncio.Future[OSError | None] = running.create_future()
    disk.start_sync([segment], told.set_result)
    error = await asyncio.wait_for(told, 30)
    assert error is not None
    assert error.errno == errno.EBADF
    disk.close()
