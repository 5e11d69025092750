"""The command line of turbopump, with every sync a call of the C library's ``fdatasync``, so that a
preloaded library can take its place: the kernel, asked to sync by itself, would."""

import sys

from turbopump.disk.kernel_syncs import KernelSyncs


def never_started(*_: object) -> bool:
    """Leave the sync to a thread. (The program runs as a file, which cannot import ``tests``.)"""
    return False


def main() -> None:
    from turbopump.cli import main as command_line

    KernelSyncs.start = never_started  # type: ignore[method-assign]
    sys.exit(command_line())


if __name__ == "__main__":
    main()
