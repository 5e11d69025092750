"""The command line of turbopump, but it waits longer than users would for a disk, and for servers,
that other tests keep busy: `python tests/patient.py ARGUMENTS`. A broker whose disk took two
seconds for a new topic would say that the topic is not on the disk, one that stood still for a
second would say so, and a command whose answer took three would fail."""

import sys
from collections.abc import Callable
from operator import setitem
from pathlib import Path
from typing import Any

PATIENT = str(Path(__file__))
DISK_S, ANSWER_S = 30.0, 60.0


def main() -> None:
    from turbopump.cli import main as command_line

    wait_for_servers()
    if sys.argv[1:2] in (["broker"], ["dev"]):
        from turbopump.broker import broker, housekeeping, saved_table

        saved_table.SAVE_WAIT_S = DISK_S  # type: ignore[misc]
        housekeeping.STALL_S = ANSWER_S  # type: ignore[misc]
        broker.FIRST_REGISTRATION_S = ANSWER_S
    sys.exit(command_line())


def wait_for_servers(set_item: Callable[[dict[str, Any], str, Any], None] = setitem) -> None:
    """Connections, and calls that are given no time, have ANSWER_S from now on."""
    from turbopump.remoting.client import RemotingClient

    for method, name in (
        (RemotingClient.__init__, "connect_timeout"),
        (RemotingClient.call, "timeout"),
        (RemotingClient.exchange, "timeout"),
    ):
        assert method.__kwdefaults__ is not None
        assert name in method.__kwdefaults__
        set_item(method.__kwdefaults__, name, ANSWER_S)


if __name__ == "__main__":
    main()
