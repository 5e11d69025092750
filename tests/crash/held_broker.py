"""The command line of turbopump with a broker that waits, or whose disk fails, while a file is
there: `python held_broker.py ARGUMENTS`.

The files are in the directory that the variable HELD_BY names: ``recovery`` holds the recovery of
the store half-way, ``closing`` its closing, and ``refusing`` makes each sync of the log fail. A
broker that waits, or has failed a sync, leaves the file ``reached``. Its one rule: without the
files, the broker is one as any other.
"""

import errno
import os
import sys
import time
from pathlib import Path

HELD_BY = "HELD_BY"
RECOVERY, CLOSING, REFUSING, REACHED = "recovery", "closing", "refusing", "reached"


def main() -> None:
    from turbopump.broker.recovery_progress import RecoveryProgress
    from turbopump.cli import main as command_line
    from turbopump.disk.mapped_segments import MappedSegment
    from turbopump.store.message_store import MessageStore

    files = Path(os.environ[HELD_BY])
    reached, close, sync = RecoveryProgress.reached, MessageStore.close, MappedSegment.sync

    def reach(progress: RecoveryProgress, offset: int, end: int) -> None:
        reached(progress, offset, end)
        if progress.percent is not None and 0 < progress.percent < 100:
            wait_for_the_end_of(files / RECOVERY)

    def close_later(store: MessageStore) -> None:
        wait_for_the_end_of(files / CLOSING)
        close(store)

    def refuse(segment: MappedSegment) -> None:
        if (files / REFUSING).exists():
            (files / REACHED).touch()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        sync(segment)

    RecoveryProgress.reached = reach  # type: ignore[method-assign]
    MessageStore.close = close_later  # type: ignore[method-assign]
    MappedSegment.sync = refuse  # type: ignore[method-assign]
    sys.exit(command_line())


def wait_for_the_end_of(file: Path) -> None:
    """Block this thread until the file is gone."""
    while file.exists():
        (file.parent / REACHED).touch()
        time.sleep(0.01)


if __name__ == "__main__":
    main()
