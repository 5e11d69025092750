"""The command line of turbopump, but it waits longer than users would for a disk, and for servers,
that other tests keep busy: `python tests/patient.py ARGUMENTS`. A broker whose disk took two
seconds for a new topic would say that the topic is not on the disk, one that stood still for a
second would say so, and a command whose answer took three would fail."""

import sys
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from operator import setitem
from pathlib import Path
from typing import Any

PATIENT = str(Path(__file__))
DISK_S, ANSWER_S = 30.0, 60.0


def main() -> None:
    from turbopump.cli import client_loop, serving
    from turbopump.cli import main as command_line

    run_client, serve = client_loop.run_client, serving.serve

    def run_client_patiently(work: Coroutine[Any, Any, Any]) -> Any:
        wait_for_servers()
        return run_client(work)

    def serve_patiently(servers: AbstractAsyncContextManager[None], *more: Any) -> None:
        if sys.argv[1] != "namesrv":
            from turbopump.broker import broker, housekeeping, saved_table

            saved_table.SAVE_WAIT_S = DISK_S  # type: ignore[misc]
            housekeeping.STALL_S = ANSWER_S  # type: ignore[misc]
            broker.FIRST_REGISTRATION_S = ANSWER_S
        serve(servers, *more)

    client_loop.run_client, serving.serve = run_client_patiently, serve_patiently
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
