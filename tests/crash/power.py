"""A file system whose power can be cut: ext4 in a file, on a loop device.

`cut` is the ioctl EXT4_IOC_SHUTDOWN without a flush of the journal: what was written and not synced
is gone, and every later write or sync fails, as if the machine were off. It neither tears sectors
nor lies about fsync. Needs root and loop devices.
"""

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import time
from pathlib import Path

EXT4_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
UNMOUNT_SECONDS_MAX = 60.0
EATMYDATA = "libeatmydata.so"


def why_not() -> str | None:
    """Why no power can be cut on this machine, or None."""
    if os.geteuid() != 0:
        return "not root"
    if shutil.which("mkfs.ext4") is None:
        return "no mkfs.ext4 (Debian package e2fsprogs)"
    if not Path("/dev/loop-control").exists():
        return "no loop devices"
    return None


def eatmydata() -> Path | None:
    """The library that makes fsync do nothing; installed from Debian's package if we may."""
    if (found := _library()) is None and os.geteuid() == 0 and shutil.which("apt-get"):
        for command in (
            ["apt-get", "update", "-q"],
            ["apt-get", "install", "-q", "-y", "libeatmydata1"],
        ):
            subprocess.run(command, check=False, capture_output=True, timeout=300)
            if (found := _library()) is not None:
                break
    return found


def _library() -> Path | None:
    for root in ("/usr/lib", "/usr/local/lib", "/lib"):
        for path in sorted(Path(root).glob(f"**/{EATMYDATA}*")):
            return path
    return None


class Ext4:
    """An ext4 of `size` bytes in the file `image`, mounted at `mount` within the `with`."""

    def __init__(self, home: Path, size: int) -> None:
        self.image = home / "ext4.img"
        self.mount_point = home / "ext4"
        self._size = size

    def __enter__(self) -> "Ext4":
        with self.image.open("wb") as file:
            file.truncate(self._size)
        options = "lazy_itable_init=0,lazy_journal_init=0"
        _run("mkfs.ext4", "-q", "-F", "-E", options, str(self.image))
        self.mount_point.mkdir()
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        self.unmount()
        self.image.unlink()

    def mount(self) -> None:
        """After a cut, this replays the journal."""
        _run("mount", "-o", "loop", str(self.image), str(self.mount_point))

    def unmount(self) -> None:
        """Every process that used it must be gone."""
        deadline = time.monotonic() + UNMOUNT_SECONDS_MAX
        while True:
            done = subprocess.run(
                ["umount", str(self.mount_point)], check=False, capture_output=True, text=True
            )
            if done.returncode == 0:
                return
            assert time.monotonic() < deadline, done.stderr
            time.sleep(0.05)

    def cut(self) -> None:
        """The power is gone."""
        fd = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, EXT4_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(fd)


def fill(path: Path) -> None:
    """Write until nothing fits any more."""
    with path.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 16, 1 << 12):
            while True:
                try:
                    file.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    break


def free(path: Path) -> None:
    """Give it back."""
    path.unlink()


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
