"""The real disk behind the seam: files whole or not at all, locks, and work beside the owner's
thread."""

import asyncio
import errno
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.loops import in_loop
from tests.stand_ins import does_nothing, raises

from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import StoreError, StoreLockedError
from turbopump.store.files import StorePaths, segment_name, segment_offset


@pytest.fixture
def disk() -> SystemDisk:
    return SystemDisk()


def test_a_segment_is_zeroes_of_its_size_and_keeps_what_is_written(
    disk: SystemDisk, tmp_path: Path
) -> None:
    segment = disk.create_segment(tmp_path / "a", 10_000)
    assert segment.read(0, 20_000) == bytes(10_000)
    segment.populate(4000, 100_000)
    assert segment.read(0, 10_000) == bytes(10_000), "asking for pages changes nothing"
    segment.buffer[100:105] = b"hello"
    segment.sync()
    disk.rename_segment(segment, tmp_path / "b")
    assert segment.path == tmp_path / "b"
    segment.close()
    again = disk.open_segment(tmp_path / "b")
    assert (again.size, again.read(100, 5)) == (10_000, b"hello")
    again.close()
    with pytest.raises(FileExistsError):
        disk.create_segment(tmp_path / "b", 10)


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="the system takes no advice")
def test_how_far_the_system_reads_ahead_in_a_file_is_said_of_that_file(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = disk.create_segment(tmp_path / "a", 10_000)
    said: list[tuple[int, int, int]] = []
    monkeypatch.setattr(
        os, "posix_fadvise", lambda _fd, at, size, advice: said.append((at, size, advice))
    )
    segment.read_ahead(enabled=False)
    segment.read_ahead(enabled=True)
    assert said == [(0, 0, os.POSIX_FADV_RANDOM), (0, 0, os.POSIX_FADV_NORMAL)]
    assert segment.read_cold(0, 10_000) == bytes(10_000)
    segment.close()
    monkeypatch.undo()
    segment.read_ahead(enabled=False)  # of a file that is closed it says nothing


def test_a_segment_that_does_not_fit_leaves_no_file(
    disk: SystemDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "turbopump.disk.system_disk._allocate",
        raises(OSError(errno.ENOSPC, "No space left on device")),
    )
    with pytest.raises(OSError, match="No space left"):
        disk.create_segment(tmp_path / "a", 10_000)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_cannot_be_mapped_and_says_so(disk: SystemDisk, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with pytest.raises(StoreError, match="cannot be mapped"):
        disk.open_segment(tmp_path / "empty")


def test_a_file_is_replaced_in_one_step_and_the_old_one_is_kept(
    disk: SystemDisk, tmp_path: Path
) -> None:
    path = tmp_path / "t.json"
    (tmp_path / "t.json.bak.tmp").write_bytes(b"left over from a kill")
    (tmp_path / "t.json.tmp").write_bytes(b"left over from a kill, and longer than what comes")
    for data in (b"one", b"two", b"three"):
        disk.replace_file(path, data)
    assert {each.name: each.read_bytes() for each in tmp_path.iterdir()} == {
        "t.json": b"three",
        "t.json.bak": b"two",
    }


def test_what_is_not_there_is_none_or_nothing(disk: SystemDisk, tmp_path: Path) -> None:
    nowhere = tmp_path / "no" / "such"
    assert disk.file_size(nowhere) is None
    assert disk.read_file(nowhere) is None
    assert disk.list_directory(nowhere) == []
    (tmp_path / "file").write_bytes(b"12345")
    assert disk.list_directory(tmp_path / "file") == []
    assert disk.file_size(tmp_path / "file") == 5
    disk.remove(nowhere)
    disk.make_directory(tmp_path / "d" / "e")
    disk.remove(tmp_path / "d" / "e")
    disk.remove(tmp_path / "file")
    assert disk.list_directory(tmp_path) == ["d"]
    assert disk.list_directory(tmp_path / "d") == []
    assert disk.space(tmp_path).total >= disk.space(tmp_path).free > 0
    assert disk.modified_ms(tmp_path) > 1_600_000_000_000


def test_a_lock_holds_against_this_process_and_others_until_released(
    disk: SystemDisk, tmp_path: Path
) -> None:
    path = tmp_path / "lock"
    try_it = [
        sys.executable,
        "-c",
        "import fcntl, sys\n"
        "file = open(sys.argv[1], 'r+b')\n"
        "try: fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)\n"
        "except OSError: sys.exit(7)",
        str(path),
    ]
    lock = disk.lock(path)  # (reading the file here would drop the lock: POSIX)
    with pytest.raises(StoreLockedError, match="is in use by another broker"):
        SystemDisk().lock(path)
    assert subprocess.run(try_it, timeout=30, check=False).returncode == 7, (
        "as Apache's broker would find it"
    )
    assert lock.found == b""
    lock.mark(b"mark")
    assert subprocess.run(try_it, timeout=30, check=False).returncode == 7
    lock.release()
    lock.release()
    assert path.read_bytes() == b"mark"
    assert subprocess.run(try_it, timeout=30, check=False).returncode == 0
    disk.lock(path).release()


def test_a_lock_that_another_process_holds_is_refused(disk: SystemDisk, tmp_path: Path) -> None:
    path = tmp_path / "lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, sys\nfile = open(sys.argv[1], 'w+b')\nfcntl.lockf(file, "
            "fcntl.LOCK_EX)\nprint(flush=True)\nsys.stdin.read()",
            str(path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        with pytest.raises(StoreLockedError, match="stop that broker or choose another directory"):
            disk.lock(path)
        holder.communicate(timeout=30)
    disk.lock(path).release()


def work(workers: list[int]) -> None:
    workers.append(threading.get_ident())
    raise OSError(errno.EIO, "broken")


@in_loop
async def test_work_is_done_in_another_thread_and_told_in_the_owner_s(tmp_path: Path) -> None:
    loop = asyncio.get_running_loop()
    disk = SystemDisk(loop.call_soon_threadsafe)
    told: asyncio.Future[tuple[int, OSError | None]] = loop.create_future()
    workers: list[int] = []

    disk.start(
        partial(work, workers), lambda error: told.set_result((threading.get_ident(), error))
    )
    thread, error = await told
    assert thread == threading.get_ident() != workers[0]
    assert error is not None
    assert error.errno == errno.EIO
    disk.close()


def note_again(
    disk: SystemDisk, told: list[tuple[str, OSError | None]], error: OSError | None
) -> None:
    told.append(("first", error))
    disk.start(does_nothing, lambda error: told.append(("started by it", error)))


@in_loop
async def test_closing_the_disk_tells_of_everything_that_was_started_before_it_returns(
    tmp_path: Path,
) -> None:
    loop = asyncio.get_running_loop()
    disk = SystemDisk(loop.call_soon_threadsafe)
    segment = disk.create_segment(tmp_path / "a", 4096)
    told: list[tuple[str, OSError | None]] = []

    disk.start_sync([segment], partial(note_again, disk, told))
    disk.close()
    assert told == [("first", None), ("started by it", None)]
    with pytest.raises(RuntimeError, match="the disk is closed"):
        disk.start(does_nothing, lambda error: told.append(("late", error)))
    disk.close()
    segment.close()
    await asyncio.sleep(0)
    assert len(told) == 2, "nothing is told twice"


def test_a_map_closed_meanwhile_is_an_error_not_a_crash(disk: SystemDisk, tmp_path: Path) -> None:
    segment = disk.create_segment(tmp_path / "a", 4096)
    segment.close()
    told: list[OSError | None] = []
    disk.start(partial(segment.populate, 0, 10), told.append)
    assert isinstance(told[0], OSError)


def test_names_of_files_are_built_and_read_in_one_place(tmp_path: Path) -> None:
    assert segment_name(6_000_000) == "00000000000006000000"
    assert segment_offset(segment_name(2**62)) == 2**62
    for name in ("", "1", "0" * 19, "0" * 21, "0" * 19 + "x", "٠" * 20, "00000000000006000000.tmp"):
        assert segment_offset(name) is None
    paths = StorePaths(tmp_path)
    assert paths.consume_queue("T", 3) == tmp_path / "consumequeue" / "T" / "3"
    assert StorePaths(tmp_path, (Path("/elsewhere"),)).commit_log == Path("/elsewhere")
    for topic in ("", ".", "..", "a/b", "../x", "a\0"):
        with pytest.raises(StoreError, match="cannot be a directory name"):
            paths.consume_queue(topic, 0)
    assert os.sep not in segment_name(0)


@pytest.fixture(params=[0, 0o022, 0o027, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def test_what_is_made_is_never_open_to_every_user_whatever_the_umask(
    disk: SystemDisk, tmp_path: Path, umask: int
) -> None:
    root = tmp_path / "above" / "store"
    disk.make_directory(root)
    disk.make_directory(root)
    disk.create_segment(root / "segment", 4096).close()
    disk.create_sparse(root / "sparse", 4096).close()
    disk.write_file(root / "note", b"x")
    for _ in range(2):  # the second time there is a file to be kept
        disk.replace_file(root / "table", b"x")
        disk.replace_file(root / "accounts", b"x", private=True)
    disk.lock(root / "lock").release()
    found = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
        for path in tmp_path.rglob("*")
    }
    private = {"above/store/accounts", "above/store/accounts.bak"}
    assert len(found) == 10
    for name, mode in found.items():
        if name in private:
            assert mode == 0o600
        else:
            directory = (tmp_path / name).is_dir()
            assert mode == (0o750 if directory else 0o640) & ~umask, name


def test_a_file_that_was_there_keeps_its_mode(disk: SystemDisk, tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"old")
    path.chmod(0o644)
    disk.replace_file(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
