"""The frame of client commands: --watch."""

from __future__ import annotations

import json

import click
import pytest

from turbopump.cli.frame import client_command, show, without_connections
from turbopump.errors import RemotingError


@pytest.fixture
def watched() -> click.Command:
    """A command whose server is away at the second of three answers; then it ends with 2."""
    answers = iter([1, RemotingError("no answer from a:1"), 2, click.UsageError("enough")])

    @client_command(None, "look", without_connections, watch=True)
    async def look(_connections: object, output: str) -> None:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        show(output, {"seen": answer}, [f"{answer} seen"])

    return look


def test_a_watched_command_goes_on_when_a_server_is_away(
    watched: click.Command, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(click.UsageError, match="enough"):
        watched.main(["--watch", "0.1", "--output", "json"], standalone_mode=False)
    shown = capsys.readouterr()
    assert [json.loads(line)["seen"] for line in shown.out.splitlines()] == [1, 2]
    assert shown.err == "turbopump: no answer from a:1\n"


def test_a_watched_command_that_never_got_an_answer_ends() -> None:
    @client_command(None, "look", without_connections, watch=True)
    async def look(_connections: object, output: str) -> None:
        raise RemotingError(f"no answer in the form {output}")

    with pytest.raises(RemotingError, match="form table"):
        look.main(["--watch", "0.1"], standalone_mode=False)


def test_nan_is_no_time_to_watch(watched: click.Command) -> None:
    with pytest.raises(click.BadParameter, match="nan is not a number"):
        watched.main(["--watch", "nan"], standalone_mode=False)
