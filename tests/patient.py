"""The command line of turbopump, but it waits longer than users would for a disk, and for servers,
that other tests keep busy: `python tests/patient.py ARGUMENTS`. A broker whose disk took two
seconds for a new topic would say that the topic is not on the disk, and a command whose answer took
three would fail."""

import sys
from pathlib import Path

PATIENT = str(Path(__file__))
DISK_S, ANSWER_S = 30.0, 60.0


def main() -> None:
    from turbopump.cli import main as command_line
    from turbopump.remoting.client import RemotingClient

    for method in (RemotingClient.call, RemotingClient.exchange):
        assert method.__kwdefaults__ is not None
        method.__kwdefaults__["timeout"] = ANSWER_S
    if sys.argv[1:2] in (["broker"], ["dev"]):
        from turbopump.broker import broker, saved_table

        saved_table.SAVE_WAIT_S = DISK_S  # type: ignore[misc]
        broker.FIRST_REGISTRATION_S = ANSWER_S
    sys.exit(command_line())


if __name__ == "__main__":
    main()
