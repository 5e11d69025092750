"""What a start that the disk does not allow says: which file, which bytes, how much room, what to
do."""

import errno
import os
from pathlib import Path

import pytest
from tests.stand_ins import raises
from tests.unit.store.directory import Directory, bodies, put

from turbopump.cli.entry import cause
from turbopump.disk import system_disk
from turbopump.disk.mapped_segments import MappedSegment


def test_an_unreadable_sector_of_the_log_is_named_and_zeros_there_let_the_store_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(tmp_path / "store", segment_size=65536)
    store = directory.open()
    for number in range(30):
        put(store, b"%d " % number + b"x" * 900)
    twin = directory.copy(tmp_path / "killed")
    store.close()
    segment = next(twin.paths.commit_log.iterdir())
    read = MappedSegment.read_cold

    def read_cold(self: MappedSegment, at: int, size: int) -> bytes:
        if self.path == segment and at < 12288 and at + size > 8192:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(self, at, size)

    with monkeypatch.context() as broken:
        broken.setattr(MappedSegment, "read_cold", read_cold)
        with pytest.raises(OSError, match="Input/output error") as refusal:
            twin.open()
    told = cause(refusal.value)
    assert told.startswith(f"{segment}: Input/output error between bytes ")
    assert "conv=noerror,sync" in told
    data = bytearray(segment.read_bytes())
    data[8192:12288] = bytes(4096)
    segment.write_bytes(data)
    found = twin.open()
    assert found.recovery is not None
    assert len(found.recovery.damages) == 1
    kept = bodies(found)
    assert kept[0][:2] == b"0 "
    assert kept[-1][:3] == b"29 "
    assert 30 - len(kept) in range(4, 7)
    found.close()


def test_a_start_without_room_names_the_path_and_the_free_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = Directory(tmp_path / "store")
    directory.open().close()

    with monkeypatch.context() as full:
        full.setattr(
            system_disk.os, "fsync", raises(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        )
        with pytest.raises(OSError, match="No space left on device") as refusal:
            directory.open()
    told = cause(refusal.value)
    assert told.startswith(f"{directory.paths.abort}: No space left on device, ")
    assert "bytes free" in told
    directory.open().close()
