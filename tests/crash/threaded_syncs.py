"""The command line of turbopump, with every sync a call of the C library's ``fdatasync``, so that a
preloaded library can take its place: the kernel, asked to sync by itself, would."""

import sys

from tests.stand_ins import returns

from turbopump.disk.kernel_syncs import KernelSyncs


def main() -> None:
    from turbopump.cli import main as command_line

    KernelSyncs.start = returns(False)  # type: ignore[method-assign, assignment]
    sys.exit(command_line())


if __name__ == "__main__":
    main()
