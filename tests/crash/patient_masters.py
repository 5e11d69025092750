"""The command line of turbopump, whose masters wait up to a minute for their slaves before clients
send to them all the same (3 s as a rule): other tests may keep a slave from the processor."""

import sys

WITHOUT_SLAVE_S = 60.0


def main() -> None:
    from turbopump.broker import registration
    from turbopump.cli import main as command_line

    registration.WITHOUT_SLAVE_S = WITHOUT_SLAVE_S  # type: ignore[misc]
    sys.exit(command_line())


if __name__ == "__main__":
    main()
