"""Who wrote what: a missing whole-entry CRC is damage in what we wrote, and none in what Apache's
broker did."""

import errno
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.store.directory import HOST, Directory, bodies, put
from tests.unit.store.looked_up import find_by_key, message_at

from turbopump.errors import MessageError
from turbopump.message.entry import CRC_SUFFIX_SIZE
from turbopump.message.properties import PROPERTIES_SIZE_MAX
from turbopump.store.disk import SystemDisk
from turbopump.store.log.commit_log import NewMessage
from turbopump.store.message_store import MessageStore
from turbopump.store.provenance import Provenance


class FailingDisk(SystemDisk):
    """Has no room for the file ``failing``."""

    failing: Path | None = None

    def replace_file(self, path: Path, data: bytes) -> None:
        if path == self.failing:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        super().replace_file(path, data)


def strip_crc_names(directory: Directory) -> None:
    """Spoil the name of every whole-entry CRC: what is left is good to whoever knows no such
    CRC."""
    for path in directory.paths.commit_log.iterdir():
        path.write_bytes(path.read_bytes().replace(b"__CRC32#", b"__XRC32#"))


def as_apache(directory: Directory) -> Directory:
    """The directory as a broker sees it that writes without whole-entry CRCs and knows nothing of
    our file."""
    return Directory(directory.paths.root)


def apache_writes(
    directory: Directory, *texts: bytes, crash: bool = False, version: int = 5
) -> None:
    """What Apache's broker leaves behind: entries without CRC; our file as it was; ``lock`` over
    what the lock file held. If it crashes, an abort file: 5.x writes its process id there, 4.9
    leaves the file as it was."""
    ours = directory.paths.provenance.read_bytes()
    abort = directory.paths.abort.read_bytes() if directory.paths.abort.exists() else b""
    store = as_apache(directory).open()
    for text in texts:
        put(store, text)
    store.close()
    directory.paths.provenance.write_bytes(ours)
    directory.paths.lock.write_bytes(b"lock" + directory.paths.lock.read_bytes()[4:])
    if crash:
        directory.paths.abort.write_bytes(abort if version == 4 else b"4711")


def ours(root: Path) -> Directory:
    return Directory(root, with_crc=True)


def test_entries_end_in_a_crc_over_all_of_them(tmp_path: Path) -> None:
    directory = ours(tmp_path)
    store = directory.open()
    placed = put(store, b"body", tag="TAG")
    entry = store.log.read(placed.offset, placed.log_end - placed.offset)
    assert entry is not None
    assert entry[-CRC_SUFFIX_SIZE:].startswith(b"__CRC32#\x01")
    message = message_at(store.lookup, placed.offset)
    assert message is not None
    assert message.body == b"body"
    store.close()


def test_in_what_we_wrote_a_missing_crc_is_damage(tmp_path: Path) -> None:
    directory = ours(tmp_path / "a")
    store = directory.open()
    for text in (b"one", b"two", b"three"):
        put(store, text)
    twin = directory.copy(tmp_path / "b")
    store.close()
    path = max(twin.paths.commit_log.iterdir())
    data = bytearray(path.read_bytes())
    at = data.index(b"__CRC32#", data.index(b"two"))
    data[at] ^= 1
    path.write_bytes(bytes(data))
    found = twin.open()
    assert found.recovery is not None
    assert [damage.fault for damage in found.recovery.damages] == [
        "its CRC (property __CRC32#) is missing"
    ]
    assert bodies(found) == [b"one", b"three"]
    found.close()


@pytest.mark.parametrize("crash", [False, True], ids=["stopped", "crashed"])
def test_what_apache_appended_to_our_store_needs_no_crc(tmp_path: Path, crash: bool) -> None:
    directory = ours(tmp_path)
    store = directory.open()
    put(store, b"ours")
    end = put(store, b"ours too").log_end
    store.close()
    apache_writes(directory, b"theirs", b"theirs too", crash=crash)

    found = directory.open()
    assert found.recovery is not None
    assert found.recovery.clean is not crash
    assert found.recovery.damages == ()
    assert bodies(found) == [b"ours", b"ours too", b"theirs", b"theirs too"]
    assert found.log.requires_crc(0)
    assert found.log.requires_crc(end - 1)
    assert not found.log.requires_crc(end)
    again_ours = put(found, b"ours again").offset
    assert found.log.requires_crc(again_ours)
    twin = directory.copy(tmp_path.with_name(tmp_path.name + "-killed"))
    found.close()
    strip_crc_names(twin)
    left = twin.open()  # the whole log is read: the checkpoint is too young to be trusted
    assert bodies(left) == [b"theirs", b"theirs too"]
    left.close()


def test_after_our_crash_what_we_wrote_is_known_up_to_its_end(tmp_path: Path) -> None:
    directory = ours(tmp_path / "a")
    store = directory.open()
    put(store, b"before")
    end = put(store, b"crash").log_end
    twin = directory.copy(tmp_path / "b")
    store.close()
    known = Provenance(SystemDisk(), twin.paths.provenance)
    known.load(crashed_here=True, clean=False)
    assert known.requires_crc(0)
    assert known.requires_crc(end)
    found = twin.open()
    assert bodies(found) == [b"before", b"crash"]
    found.close()
    known.load(crashed_here=False, clean=True)
    assert known.requires_crc(end - 1)
    assert not known.requires_crc(end)


@pytest.mark.parametrize("version", [4, 5])
def test_what_apache_wrote_between_its_crash_and_ours_is_kept(tmp_path: Path, version: int) -> None:
    directory = ours(tmp_path / "a")
    store = directory.open()
    put(store, b"ours")
    twin = directory.copy(tmp_path / "b")
    store.close()
    apache_writes(twin, b"theirs", b"theirs too", crash=True, version=version)
    found = twin.open()
    assert bodies(found) == [b"ours", b"theirs", b"theirs too"]
    put(found, b"ours again")
    found.close()
    found = twin.open()
    assert bodies(found) == [b"ours", b"theirs", b"theirs too", b"ours again"]
    found.close()


def test_a_crash_of_ours_that_apache_has_recovered_from_leaves_our_end_unknown(
    tmp_path: Path,
) -> None:
    directory = ours(tmp_path / "a")
    store = directory.open()
    put(store, b"ours")
    twin = directory.copy(tmp_path / "b")
    store.close()
    apache_writes(twin, b"theirs")
    found = twin.open()
    assert found.recovery is not None
    assert found.recovery.damages == ()
    assert bodies(found) == [b"ours", b"theirs"]
    assert not found.log.requires_crc(0)
    found.close()


def test_a_store_written_without_crcs_and_then_with_them_knows_both_ranges(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    store = directory.open()
    end = put(store, b"plain").log_end
    store.close()
    store = ours(tmp_path).open()
    put(store, b"with")
    assert not store.log.requires_crc(0)
    assert store.log.requires_crc(end)
    twin = Directory(tmp_path, with_crc=True).copy(tmp_path.with_name(tmp_path.name + "-killed"))
    store.close()
    strip_crc_names(twin)
    left = twin.open()
    assert bodies(left) == [b"plain"]
    left.close()


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"[]", b"{}", b'{"written": 5}', b'{"written": [5], "indexes": 5}', b"\xff\xfe"],
)
def test_a_file_that_cannot_be_read_says_nothing_and_stops_no_start(
    tmp_path: Path, text: bytes
) -> None:
    directory = ours(tmp_path)
    store = directory.open()
    put(store, b"one")
    store.close()
    for path in tmp_path.glob("turbopump.json*"):
        path.write_bytes(text)
    found = directory.open()
    assert bodies(found) == [b"one"]
    assert not found.log.requires_crc(0)
    found.close()


@pytest.mark.parametrize("with_crc", [True, False], ids=["with CRC", "without"])
@pytest.mark.parametrize("gone", [["abort"], ["abort", "lock"]], ids=" and ".join)
def test_a_crash_is_a_crash_although_its_abort_file_was_removed(
    tmp_path: Path, with_crc: bool, gone: list[str]
) -> None:
    directory = Directory(tmp_path / "a", with_crc=with_crc, index_slots=10, index_entries=40)
    store = directory.open()
    message = NewMessage(b"body", b"KEYS\x01KEY\x02", 0, keys="KEY")
    store.put("T", 0, message, sys_flag=0, born_timestamp=0, born_host=HOST, store_host=HOST)
    twin = directory.copy(tmp_path / "b")
    store.close()
    for name in gone:
        (twin.paths.root / name).unlink()
    found = twin.open()
    assert found.recovery is not None
    assert not found.recovery.clean
    assert [hit.offset for hit in find_by_key(found.lookup, "T", "KEY", 0, 2**62)] == [0]
    found.close()
    again = twin.open()
    assert again.recovery is not None
    assert again.recovery.clean
    again.close()


def test_an_entry_that_goes_without_its_crc_is_noted_before_it_is_written_and_is_no_damage(
    tmp_path: Path,
) -> None:
    directory = ours(tmp_path / "a")
    store = MessageStore.open(
        replace(directory.config, segment_size=1 << 20),
        disk := FailingDisk(),
        directory.clock,
        print,
    )
    end = put(store, b"with").log_end
    store.flusher.flush_all_now()
    full = NewMessage(b"full", b"a\x01".ljust(PROPERTIES_SIZE_MAX - 1, b"i") + b"\x02", 0)
    fields: dict[str, Any] = {
        "sys_flag": 0,
        "born_timestamp": 0,
        "born_host": HOST,
        "store_host": HOST,
    }
    with pytest.raises(MessageError, match="32747 are allowed"):
        store.put("T", 0, full, **fields)
    disk.failing = directory.paths.provenance
    with pytest.raises(OSError, match="No space"):
        store.put("T", 0, full, as_stored=True, **fields)
    assert bodies(store) == [b"with"]
    disk.failing = None
    store.put("T", 0, full, as_stored=True, **fields)
    put(store, b"again with")
    twin = directory.copy(tmp_path / "b")
    twin.config = replace(twin.config, segment_size=1 << 20)
    store.close()
    found = twin.open()
    assert found.recovery is not None
    assert not found.recovery.damages
    assert bodies(found) == [b"with", b"full", b"again with"]
    assert found.log.requires_crc(end - 1)
    assert not found.log.requires_crc(end)
    found.close()
