"""The command line of turbopump, with the time of every fdatasync written to the file that
TURBOPUMP_SYNC_TIMES names.

A line `begun` when one begins and a line `ended` when it ends, each with the monotonic clock, which
all processes of a machine share.
"""

import os
import sys
import time
from typing import Any


def main() -> None:
    from turbopump.cli import main as command_line

    fd = os.open(os.environ["TURBOPUMP_SYNC_TIMES"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    plain = os.fdatasync

    def timed(file: Any) -> None:
        os.write(fd, f"begun {file} {time.monotonic()}\n".encode())
        try:
            plain(file)
        finally:
            os.write(fd, f"ended {file} {time.monotonic()}\n".encode())

    os.fdatasync = timed  # type: ignore[assignment]
    sys.exit(command_line())


def longest(text: str, until: float) -> float:
    """Seconds of the longest fdatasync in such a file; one that had not ended counts until
    `until`."""
    begun: dict[str, float] = {}
    found = 0.0
    for line in text.splitlines():
        what, file, at = line.split()
        if what == "begun":
            begun[file] = float(at)
        elif file in begun:
            found = max(found, min(float(at), until) - begun.pop(file))
    return max([found, *(until - at for at in begun.values())])


if __name__ == "__main__":
    main()
