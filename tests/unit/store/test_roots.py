"""A store whose files lie in several places: where new ones go, and what is refused when one of the
places is missing."""

import errno
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.world.disk import SimulatedDisk
from tests.simulation.world.loop import SimulatedLoop
from tests.simulation.world.simulation import SimulatedClock
from tests.stand_ins import does_nothing
from tests.unit.store.directory import HOST, Directory, bodies, put
from tests.unit.store.retained import ALWAYS, clean, flush

from turbopump.disk.system_disk import SystemDisk
from turbopump.errors import StoreClosedError, StoreDamagedError, StoreError
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.store_config import StoreConfig

BODIES = [b"%03d " % number + b"x" * 900 for number in range(24)]
"""Four to a segment of 4096: six segments."""


class Spread(Directory):
    """A store with its log in ``a`` and ``b`` below ``top``."""

    def __init__(self, top: Path, *names: str, **paths: Any) -> None:
        super().__init__(top / "store")
        self.top = top
        self.roots = tuple(top / name for name in names or ("a", "b"))
        self.paths = StorePaths(top / "store", self.roots, **paths)
        self.config = replace(self.config, paths=self.paths, retention=ALWAYS)

    def segments(self, name: str) -> list[int]:
        """Numbers of the segments in a root."""
        return sorted(int(path.name) // 4096 for path in (self.top / name).iterdir())

    def filled(self) -> MessageStore:
        store = self.open()
        for body in BODIES:
            put(store, body)
        flush(store)
        return store


def test_new_segments_go_round_the_roots_and_a_start_finds_them_all(tmp_path: Path) -> None:
    directory = Spread(tmp_path)
    directory.filled().close()
    assert (directory.segments("a"), directory.segments("b")) == ([0, 2, 4], [1, 3, 5])
    assert not (tmp_path / "store" / "commitlog").exists()
    again = directory.open()
    assert again.recovery is not None
    assert (again.recovery.clean, again.recovery.entries) == (True, 0)
    assert bodies(again) == BODIES
    again.close()
    other_way_round = Spread(tmp_path, "b", "a")
    store = other_way_round.open()
    for body in BODIES[:4]:
        put(store, body)
    store.close()
    assert directory.segments("a")[-1] == 6, (
        "as Apache's broker would have it, whatever the order in which they are named"
    )


def test_a_kill_loses_nothing_of_any_root(tmp_path: Path) -> None:
    directory = Spread(tmp_path / "one")
    store = directory.filled()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    store.close()
    twin = Spread(tmp_path / "two")
    found = twin.open()
    assert found.recovery is not None
    assert not found.recovery.clean
    assert bodies(found) == BODIES
    found.close()


def test_no_new_segment_goes_into_a_root_that_is_nearly_full_unless_all_are(tmp_path: Path) -> None:
    directory = Spread(tmp_path)
    store = directory.open()
    store.space.full_roots = frozenset({tmp_path / "a"})
    for body in BODIES:
        put(store, body)
    assert directory.segments("a") == []
    store.space.full_roots = frozenset({tmp_path / "a", tmp_path / "b"})
    for body in BODIES:
        put(store, body)
    assert directory.segments("a") == [8, 10], "the spare that became number 6 was there before"
    store.close()
    again = directory.open()
    assert bodies(again) == BODIES * 2
    again.close()


def test_read_only_roots_are_read_and_get_nothing_new(tmp_path: Path) -> None:
    Spread(tmp_path).filled().close()
    directory = Spread(tmp_path, "b", "c", read_only_commit_logs=(tmp_path / "a",))
    store = directory.open()
    assert bodies(store) == BODIES
    for body in BODIES:
        put(store, body)
    assert directory.segments("a") == [0, 2, 4]
    assert len(directory.segments("c")) == 3
    assert bodies(store) == BODIES * 2
    store.close()
    named_twice = Spread(tmp_path, "a", "b", "c", read_only_commit_logs=(tmp_path / "a",)).open()
    assert bodies(named_twice) == BODIES * 2
    named_twice.close()
    with pytest.raises(StoreError, match="d in readOnlyCommitLogStorePaths is no directory"):
        Spread(tmp_path, "b", "c", read_only_commit_logs=(tmp_path / "a", tmp_path / "d")).open()


def unmount(root: Path) -> None:
    root.rename(root.with_name("elsewhere"))


def unmount_to_a_mount_point(root: Path) -> None:
    unmount(root)
    root.mkdir()


@pytest.mark.parametrize("take", [unmount, unmount_to_a_mount_point])
@pytest.mark.parametrize("root", ["a", "b"])
@pytest.mark.parametrize("count", [3, 8, 24])
@pytest.mark.parametrize("killed", [False, True])
def test_a_root_that_is_missing_refuses_the_start_and_nothing_is_changed(
    tmp_path: Path, take: Callable[[Path], None], root: str, count: int, killed: bool
) -> None:
    wanted = BODIES[:count]
    here = tmp_path / "one"
    store = Spread(here).open()
    for body in wanted:
        put(store, body)
    flush(store)
    if killed:
        shutil.copytree(here, tmp_path / "two")
        here = tmp_path / "two"
        known = here / "store" / "turbopump.json"  # it names directories by their paths
        known.write_text(known.read_text().replace(str(tmp_path / "one"), str(here)))
    store.close()
    directory = Spread(here)
    if not directory.segments(root):
        return  # with three messages there is nothing in b that could be missed
    before = {
        path: path.read_bytes()
        for path in here.rglob("*")
        if path.is_file() and path.name != "lock"
    }
    take(here / root)
    with pytest.raises(StoreDamagedError, match=r"mounted\?"):
        directory.open()
    if (here / root).exists():
        (here / root).rmdir()
    (here / "elsewhere").rename(here / root)
    after = {
        path: path.read_bytes()
        for path in here.rglob("*")
        if path.is_file() and path.name != "lock"
    }
    assert after == before
    again = directory.open()
    assert bodies(again) == wanted
    again.close()


def test_a_root_that_the_configuration_no_longer_names_refuses_the_start(tmp_path: Path) -> None:
    directory = Spread(tmp_path)
    directory.filled().close()
    for left in ("a", "b"):
        with pytest.raises(StoreDamagedError, match=r"mounted\?"):
            Spread(tmp_path, left).open()
    (tmp_path / "b").rename(tmp_path / "moved")
    moved = Spread(tmp_path, "a", "moved").open()
    assert bodies(moved) == BODIES
    moved.close()


def test_a_single_log_directory_that_is_missing_refuses_the_start_too(tmp_path: Path) -> None:
    directory = Directory(tmp_path)
    store = directory.open()
    put(store, b"precious")
    store.close()
    directory.paths.commit_log.rename(tmp_path / "elsewhere")
    with pytest.raises(
        StoreDamagedError, match=r"commitlog is not there, but the log has segments"
    ):
        directory.open()
    (tmp_path / "elsewhere").rename(directory.paths.commit_log)
    again = directory.open()
    assert again.recovery is not None
    assert again.recovery.clean, "the refused start has left no abort file"
    assert bodies(again) == [b"precious"]
    again.close()


def test_the_same_segment_in_two_roots_is_refused(tmp_path: Path) -> None:
    directory = Spread(tmp_path)
    directory.filled().close()
    name = f"{2 * 4096:020d}"
    shutil.copy(tmp_path / "a" / name, tmp_path / "b" / name)
    with pytest.raises(
        StoreDamagedError,
        match=rf"a/{name} and .*b/{name} are the same part of "
        r"the log: move the one",
    ):
        directory.open()


def test_a_root_that_retention_has_emptied_is_not_missed(tmp_path: Path) -> None:
    directory = Spread(tmp_path)
    store = directory.open()
    for body in BODIES[:5]:
        put(store, body)
    flush(store)
    assert (directory.segments("a"), directory.segments("b")) == ([0], [1])
    store.close()
    store = directory.open()
    os.utime(tmp_path / "a" / f"{0:020d}", (0, 0))
    clean(store)
    assert (directory.segments("a"), directory.segments("b")) == ([], [1])
    store.close()
    (tmp_path / "a").rmdir()
    again = directory.open()
    assert bodies(again) == BODIES[4:5]
    again.close()


def test_segments_of_every_root_are_deleted_in_the_order_of_the_log(tmp_path: Path) -> None:
    directory = Spread(tmp_path)
    store = directory.filled()
    for name in ("a", "b"):
        for path in (tmp_path / name).iterdir():
            os.utime(path, (0, 0))
    clean(store)
    assert (directory.segments("a"), directory.segments("b")) == ([], [5])
    store.close()
    again = directory.open()
    assert bodies(again) == BODIES[20:]
    again.close()


def test_a_directory_that_cannot_be_used_is_named_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(
        StoreError,
        match=r"file/log cannot be made \(Not a directory\): see "
        r"storePathCommitLog",
    ):
        Spread(tmp_path, "file/log").open()
    with pytest.raises(StoreError, match="see storePathConsumeQueue"):
        Spread(tmp_path, consume_queue_directory=tmp_path / "file").open()
    with monkeypatch.context() as patched:
        patched.setattr(SystemDisk, "is_writable", lambda _disk, path: path != tmp_path / "b")
        with pytest.raises(
            StoreError, match="b is not writable for this user, or lies on a read-only file system"
        ):
            Spread(tmp_path).open()
    Spread(tmp_path).open().close()


ELSEWHERE = {
    "consume_queue_directory": ("storePathConsumeQueue", "consumequeue"),
    "index_directory": ("storePathIndex", "index"),
    "checkpoint_file": ("storeCheckpoint", "checkpoint"),
    "abort_file": ("abortFile", "abort"),
}


def test_queues_indexes_checkpoint_and_abort_file_may_lie_elsewhere(tmp_path: Path) -> None:
    places = {
        field: tmp_path / "elsewhere" / f"my {name}" for field, (_, name) in ELSEWHERE.items()
    }
    directory = Spread(tmp_path, **places)
    directory.config = replace(directory.config, index_slots=10, index_entries=8)
    store = directory.open()
    for number, body in enumerate(BODIES):
        message = NewMessage(body, b"", 0, keys=str(number))
        store.put("T", 0, message, sys_flag=0, born_timestamp=0, born_host=HOST, store_host=HOST)
    assert places["abort_file"].exists()
    left = {path.name.removesuffix(".bak") for path in (tmp_path / "store").iterdir()}
    assert left == {"config", "lock", "turbopump.json", "turbopump.queues.json"}
    store.close()
    assert [field for field, path in places.items() if not path.exists()] == ["abort_file"]
    again = directory.open()
    assert again.recovery is not None
    assert (again.recovery.clean, again.recovery.entries, again.recovery.rebuilt) == (
        True,
        0,
        False,
    )
    assert bodies(again) == BODIES
    again.close()


@pytest.mark.parametrize("field", ELSEWHERE)
def test_what_lies_at_the_usual_place_is_not_passed_over(tmp_path: Path, field: str) -> None:
    key, name = ELSEWHERE[field]
    usual = Spread(tmp_path)
    usual.config = replace(usual.config, index_slots=10, index_entries=8)
    store = usual.open()
    message = NewMessage(b"body", b"", 0, keys="key")
    store.put("T", 0, message, sys_flag=0, born_timestamp=0, born_host=HOST, store_host=HOST)
    store.close()
    (tmp_path / "store" / "abort").write_bytes(b"1")
    moved = Spread(tmp_path, **{field: tmp_path / "elsewhere" / name})
    with pytest.raises(
        StoreError,
        match=rf"{key} names .*, but the store has .*{name}: move it "
        rf"there, or leave {key} out",
    ):
        moved.open()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "store" / name).rename(tmp_path / "elsewhere" / name)
    found = moved.open()
    assert bodies(found) == [b"body"]
    found.close()


def test_segments_at_the_usual_place_are_not_passed_over_either(tmp_path: Path) -> None:
    usual = Directory(tmp_path / "store")
    store = usual.open()
    put(store, b"precious")
    store.close()
    (tmp_path / "store" / "turbopump.json").unlink()
    (tmp_path / "store" / "turbopump.json.bak").unlink()
    with pytest.raises(
        StoreError,
        match=r"commitlog has segments, but storePathCommitLog leaves "
        r"it out",
    ):
        Spread(tmp_path).open()
    (tmp_path / "linked").symlink_to(usual.paths.commit_log)
    for left in (
        Spread(tmp_path, "linked"),
        Spread(tmp_path, "a", read_only_commit_logs=(usual.paths.commit_log,)),
    ):
        found = left.open()
        assert bodies(found) == [b"precious"]
        found.close()


class Disks:
    """A store with its log on two simulated disks, each a file system of its own, mounted where the
    roots are."""

    def __init__(self, sizes: tuple[int, int]) -> None:
        self.loop = SimulatedLoop(1)
        clock = SimulatedClock(self.loop)
        self.disk = SimulatedDisk(self.loop, random.Random(1), clock)
        self.roots = (Path("/one"), Path("/two"))
        self.disk.capacities = dict(zip(self.roots, sizes, strict=True))
        self.clock = clock
        self.config = StoreConfig(
            StorePaths(Path("/store"), self.roots), segment_size=4096, queue_file_size=2000
        )
        self.store = self.open()

    def open(self) -> MessageStore:
        return MessageStore.open(self.config, self.disk.mount(), self.clock, does_nothing)

    def run(self, seconds: float = 0.1) -> None:
        self.loop.call_later(seconds, self.loop.stop)
        self.loop.run_forever()

    def names(self, root: str) -> list[str]:
        return sorted(path.name for path in self.disk.files if path.parent == Path(root))


def test_roots_that_are_disks_of_their_own_get_their_next_segment_ahead_by_its_own_name() -> None:
    disks = Disks((1 << 20, 1 << 20))
    for number, body in enumerate(BODIES):
        put(disks.store, body)
        disks.run()
        spare = len(disks.names("/one")) + len(disks.names("/two")) - number // 4 - 1
        assert spare == 1
    assert [name for name in disks.disk.files if name.parent == Path("/")] == []
    disks.disk.kill()
    disks.store = disks.open()
    assert bodies(disks.store) == BODIES
    put(disks.store, b"next")
    disks.store.close()
    assert bodies(disks.open()) == [*BODIES, b"next"]


def test_a_full_root_leaves_the_log_to_the_other_and_only_two_full_ones_refuse_sends() -> None:
    disks = Disks((2 * 4096, 4 * 4096))
    sent = []
    no_room = r"no space for 4096 bytes in /(one|two)"
    with pytest.raises(StoreClosedError, match=no_room):  # noqa: PT012
        for number in range(100):
            put(disks.store, b"%d " % number + b"x" * 900)
            sent.append(number)
            disks.run()
    assert len(sent) == 6 * 4
    assert (len(disks.names("/one")), len(disks.names("/two"))) == (2, 4)
    disks.run(1)
    with pytest.raises(StoreClosedError, match="no space"):
        put(disks.store, b"refused")
    disks.disk.capacities[disks.roots[1]] += 4096
    disks.store.space.check_space()
    disks.run(1)
    put(disks.store, b"taken")
    assert [int(body.split()[0]) for body in bodies(disks.store)[:-1]] == sent


def test_an_error_of_one_root_is_told_if_the_other_has_none_left_either() -> None:
    disks = Disks((4096, 4096))
    for body in BODIES[:8]:
        put(disks.store, body)
    disks.disk.fail("create", errno.EIO, times=10)
    with pytest.raises(OSError, match="Input/output error"):
        put(disks.store, BODIES[8])


def test_a_replica_does_not_start_without_the_first_files_of_its_log(tmp_path: Path) -> None:
    """It would join the set, and might be elected, without messages that all others have."""
    directory = Directory(tmp_path, is_replica=True)
    store = directory.open()
    for _ in range(5):
        put(store, b"x" * 2000)
    store.close()
    segments_of(directory)[0].unlink()
    with pytest.raises(StoreDamagedError, match="began at 0, and begins at 4096"):
        directory.open()


def test_a_replica_whose_retention_was_killed_starts(tmp_path: Path) -> None:
    directory = Directory(tmp_path, is_replica=True)
    store = directory.open()
    for _ in range(5):
        put(store, b"x" * 2000)
    store.provenance.note_start(4096)
    before = killed(directory, tmp_path / "before the removal")
    segments_of(directory)[0].unlink()
    after = killed(directory, tmp_path / "after it")
    for one in (before, after):
        one.open().close()
    assert len(segments_of(before)) == len(segments_of(after)) + 1


def killed(directory: Directory, root: Path) -> Directory:
    """What a start finds after a kill now, with the records of its own place."""
    twin = directory.copy(root)
    known = twin.paths.provenance.read_text()
    twin.paths.provenance.write_text(known.replace(str(directory.paths.root), str(root)))
    return twin


def segments_of(directory: Directory) -> list[Path]:
    return sorted(directory.paths.commit_log.iterdir())
