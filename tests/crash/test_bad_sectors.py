"""Sectors that a real device cannot read: a start is refused and says so, `turbopump store
set-apart` tells what is lost and lets it start.

The device is a loop device whose file was cut off behind it: the kernel answers EIO for what lies
there, to reads and, by SIGBUS, to maps. A segment lies across the cut, and nothing else of the
store does.
"""

import fcntl
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.crash import power
from tests.unit.store.directory import Directory, bodies, put

FIBMAP = 1
BLOCK = 4096
SEGMENT = 1 << 20
MESSAGES = 2600
VICTIM = f"{SEGMENT:020}"
START = """
import json, sys
from pathlib import Path
from tests.crash.test_bad_sectors import given
print(json.dumps(given(Path(sys.argv[1]))))
"""

pytestmark = pytest.mark.skipif(
    power.why_not() is not None, reason=f"bad sectors not run: {power.why_not()}"
)


def given(root: Path) -> list[int]:
    """The numbers of all messages that a store opened there gives."""
    store = Directory(root, segment_size=SEGMENT).open()
    numbers = sorted(
        int(body.split(b" ")[0]) for queue_id in (0, 1) for body in bodies(store, queue_id=queue_id)
    )
    store.close()
    return numbers


def killed_store(home: Path) -> Path:
    directory = Directory(home / "before", segment_size=SEGMENT)
    store = directory.open()
    for number in range(MESSAGES):
        put(store, b"%d " % number + b"x" * 900, queue_id=number % 2)
    twin = directory.copy(home / "killed")
    store.close()
    return twin.paths.root


def run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    return subprocess.run(
        [sys.executable, *command],
        check=False,
        capture_output=True,
        text=True,
        env=environment,
        timeout=120,
    )


def system(*command: str | Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout.strip()


def fill(path: Path, size: int) -> None:
    """Take up to so many bytes of room."""
    try:
        with path.open("wb") as file:
            for _ in range(0, size, 1 << 16):
                file.write(bytes(1 << 16))
                file.flush()
    except OSError:
        return  # it is full


def blocks(path: Path) -> list[int]:
    """Where on its device each block of a file lies."""
    with path.open("rb") as file:
        count = -(-path.stat().st_size // BLOCK)
        return [
            struct.unpack("i", fcntl.ioctl(file, FIBMAP, struct.pack("i", number)))[0]
            for number in range(count)
        ]


@contextmanager
def unreadable_from(home: Path, source: Path, first_bad: int) -> Iterator[Path]:
    """A copy of the store on a device that cannot read the victim's blocks from ``first_bad`` on.
    Free room is where it can."""
    image, mount = home / "image", home / "mount"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(64 << 20)
    system("mkfs.ext4", "-q", "-F", "-b", str(BLOCK), "-O", "^has_journal,^resize_inode", image)
    device = system("losetup", "-f", "--show", image)
    try:
        system("mount", device, mount)
        try:
            root = mount / "killed"
            shutil.copytree(
                source,
                root,
                ignore=lambda _directory, names: [name for name in names if name == VICTIM],
            )
            fill(mount / "room", 8 << 20)
            fill(mount / "low", 32 << 20)
            os.sync()
            victim = root / "commitlog" / VICTIM
            shutil.copyfile(source / "commitlog" / VICTIM, victim)
            os.sync()
            fill(mount / "high", 64 << 20)
            (mount / "room").unlink()
            os.sync()
            places = blocks(victim)
            others = [
                max(blocks(path)) for path in root.rglob("*") if path.is_file() and path != victim
            ]
            if places != list(range(places[0], places[0] + len(places))) or max(others) > places[0]:
                pytest.skip("bad sectors not run: the file system lays files out otherwise")
            system("umount", mount)
            os.truncate(image, places[first_bad] * BLOCK)
            system("mount", device, mount)
            with victim.open("rb") as file:
                try:
                    os.pread(file.fileno(), BLOCK, first_bad * BLOCK)
                except OSError:
                    yield root
                    return
            pytest.skip("bad sectors not run: a loop device reads behind the end of its file")
        finally:
            # Lazily: a process of a run that was interrupted may still have files open there.
            subprocess.run(["umount", "--lazy", mount], check=False, capture_output=True)
    finally:
        subprocess.run(["losetup", "-d", device], check=False, capture_output=True)


@pytest.mark.parametrize(
    "first_bad", [0, 100], ids=["a whole segment", "from the middle of a segment on"]
)
def test_a_killed_store_on_a_device_with_bad_sectors_starts_once_they_are_set_apart(
    tmp_path: Path, first_bad: int, measured: Callable[[str], None]
) -> None:
    with unreadable_from(tmp_path, killed_store(tmp_path), first_bad) as root:
        segment = root / "commitlog" / VICTIM
        refused = run("-c", START, str(root))
        assert refused.returncode == 1, (
            f"the start ended with {refused.returncode}: {refused.stderr}"
        )
        assert "Input/output error between bytes" in refused.stderr
        assert f"'{segment}'" in refused.stderr
        told = run("-m", "turbopump", "store", "set-apart", "--output", "json", str(root))
        assert told.returncode == 1, told.stderr
        report = json.loads(told.stdout)
        (unread,) = report["unreadable"]
        assert (unread["offset"], unread["end"]) == (SEGMENT + first_bad * BLOCK, 2 * SEGMENT)
        started = run("-c", START, str(root))
        assert started.returncode == 0, started.stderr
        missing = set(range(MESSAGES)) - set(json.loads(started.stdout))
        lost = {
            offset * 2 + one["queue"]
            for one in report["lost"]
            for offset in range(one["queue_offset"], one["end"])
        }
        assert missing == lost
        assert report["kept"][0]["file"] == str(segment)
        measured(
            f"{unread['end'] - unread['offset']:,} unreadable bytes, {len(lost)} of "
            f"{MESSAGES:,} messages lost, each told"
        )
