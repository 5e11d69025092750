"""`turbopump store set-apart`, a process of its own, killed at each of its steps: the original is
there, run again it ends, and all messages are given but those that cannot be read."""

import os
import shutil
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.forks import in_a_fork
from tests.unit.store.bad_sectors import SEGMENT, bad_sectors, filled, segment
from tests.unit.store.directory import Directory, bodies
from tests.unit.store.segments import Plain, RealSegment, replace

from turbopump.disk.system_disk import SystemDisk
from turbopump.store.files import StorePaths
from turbopump.store.repair.setting_apart import set_apart
from turbopump.store.repair.unreadable_sectors import SECTOR

BAD = ((0, 2), (1, 5))
"""Segments, and the sector of each that cannot be read."""
STEPS = (
    *("make_directory", "create_segment", "link", "sync_directory", "rename_segment", "remove"),
    "lock",
)
"""What it has the disk do; syncs of segments, and reads of more than a sector, are steps, too."""


class Killed:
    """Kills this process before its step number ``at``."""

    def __init__(self, at: int) -> None:
        self.left = at

    def step(self) -> None:
        self.left -= 1
        if not self.left:
            os.kill(os.getpid(), signal.SIGKILL)

    def before(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*given: Any, **named: Any) -> Any:
            self.step()
            return plain(*given, **named)

        return stepped


def run(root: Path, kill_at: int) -> None:
    """Set apart what cannot be read of the store, in a process that dies at step ``kill_at``."""
    killed = Killed(kill_at)

    def read_cold(plain: Plain, segment: RealSegment, at: int, size: int) -> Any:
        if size > SECTOR:
            killed.step()
        return plain(segment, at, size)

    def sync(plain: Plain, segment: RealSegment) -> Any:
        killed.step()
        return plain(segment)

    paths = StorePaths(root)
    with pytest.MonkeyPatch.context() as patched, bad_sectors(*originals(root)):
        for step in STEPS:
            patched.setattr(SystemDisk, step, killed.before(getattr(SystemDisk, step)))
        replace(patched, "read_cold", read_cold)
        replace(patched, "sync", sync)
        set_apart(paths, SystemDisk())


def originals(root: Path) -> list[tuple[Path, int]]:
    """The files that hold what cannot be read, wherever they are, and the sector."""
    found = []
    for number, sector in BAD:
        name = f"{number * SEGMENT:020}"
        for path in (*root.glob(f"commitlog/{name}"), *root.glob(f"commitlog.unreadable/{name}*")):
            with path.open("rb") as file:
                file.seek(sector * SECTOR)
                if any(file.read(SECTOR)):
                    found.append((path, sector))
    return found


def work(kill_at: int, root: Path) -> str:
    run(root, kill_at)
    return "it ended"


def ends(root: Path, kill_at: int = 0) -> bool:
    """Run it in a process of its own; False: that was killed."""

    said = in_a_fork(partial(work, kill_at, root))
    assert said in ("", "it ended"), said
    return bool(said)


def given(root: Path) -> set[int]:
    """The numbers of all messages that a store opened there gives."""
    store = Directory(root, segment_size=SEGMENT).open()
    numbers = {
        int(body.split(b" ")[0]) for queue_id in (0, 1) for body in bodies(store, queue_id=queue_id)
    }
    store.close()
    return numbers


@pytest.mark.parametrize("stopped", [True, False], ids=["stopped", "killed"])
def test_killed_at_any_step_and_run_again_it_loses_nothing_that_can_be_read(
    tmp_path: Path, stopped: bool
) -> None:
    directory = filled(tmp_path / "before", stopped=stopped)
    before = {number: segment(directory, number).read_bytes() for number, _ in BAD}
    every = {
        number
        for number in range(150)
        if not any(
            b"%d x" % number in data[sector * SECTOR - 900 : (sector + 1) * SECTOR + 900]
            for (_, sector), data in zip(BAD, before.values(), strict=True)
        )
    }
    step, ended = 0, False
    while not ended:
        step += 1
        root = tmp_path / "store"
        shutil.copytree(directory.paths.root, root)
        ended = ends(root, step)
        for number, data in before.items():
            name = f"{number * SEGMENT:020}"
            there = [*root.glob(f"commitlog*/{name}*")]
            assert root / "commitlog" / name in there, f"killed at step {step}"
            assert data in [path.read_bytes() for path in there], f"killed at step {step}"
        assert ends(root)
        assert not [*root.glob("**/*.copy")], f"killed at step {step}"
        assert every <= given(root), f"killed at step {step}"
        shutil.rmtree(root)
    assert step > 30
