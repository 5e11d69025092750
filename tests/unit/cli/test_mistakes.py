"""What a command says to who mistyped something: it names the mistake, and never passes it off as
an answer."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from turbopump.cli.dlq_output import open_export
from turbopump.cli.entry import main
from turbopump.protocol import fastjson
from turbopump.protocol.requests.groups import CreateGroup, SubscriptionGroupConfig
from turbopump.remoting.client import RemotingClient

MISTAKES = [
    (
        "topic create a/b",
        "Invalid value for 'TOPIC': the topic name 'a/b' holds a character outside",
    ),
    ("produce a/b", "Invalid value for 'TOPIC': the topic name 'a/b' holds a character outside"),
    (
        "consume a/b --idle 1",
        "Invalid value for 'TOPIC': the topic name 'a/b' holds a character outside",
    ),
    ("consume orders --group a/b --idle 1", "the group name 'a/b' holds a character outside"),
    ("consume orders --idle nan", "Invalid value for '--idle': nan is not a number"),
    ("consume orders --idle soon", "Invalid value for '--idle': 'soon' is not a number"),
    ("consume orders --count few", "Invalid value for '--count': 'few' is not a whole number"),
    ("consume orders --tags A --sql a=1 --idle 1", "--tags and --sql do not go together"),
    ("dlq resend billing --all --rate nan", "Invalid value for '--rate': nan is not a number"),
    ("message by-key orders 42 --begin 1h --end 2h", "is after --end"),
    (
        "message by-time orders --begin 2000 --end 1000",
        "--begin 1970-01-01T00:00:02.000Z is after --end 1970-01-01T00:00:01.000Z",
    ),
    ("message by-time orders --begin 99999999999999999999", "'99999999999999999999' is not a time"),
    ("offset clone billing billing", "SOURCE and TARGET are both billing"),
    (
        "offset reset g T --begin --broker a:1;b:1",
        "Invalid value for '-b' / '--broker': 'a:1;b:1' is not one broker: expected its name, ",
    ),
    ("offset show", "turbopump offset show: Missing argument 'GROUP'; see turbopump offset show"),
    ("offset show -g billing billing", "Got unexpected extra argument (billing)"),
    ("message by-offset -t orders 3", "turbopump message by-offset: Missing argument 'OFFSET'"),
    ("offset reset g -t T", "turbopump offset reset: give one of --begin, --end, --time, --offset"),
    ("dlq resend -g g --all --output csv", "'csv' is not one of 'table', 'json', 'yaml'"),
    ("topic list -n nowhere", "name server address 'nowhere' has no port"),
]


@pytest.mark.parametrize(("command", "words"), MISTAKES)
def test_a_mistake_is_named_and_the_code_is_two(
    command: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(command.split()) == 2
    told = capsys.readouterr()
    assert words in told.err
    assert told.err.count("\n") == 1
    assert told.out == ""


@pytest.mark.parametrize("command", ["dev", "broker"])
@pytest.mark.parametrize(
    ("data", "words"),
    [("", "--data is empty"), ("~/mq", "--data ~/mq: the shell did not replace ~ by the home")],
)
def test_what_a_shell_left_of_a_directory_is_not_made_below_this_one(
    command: str,
    data: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([command, "--data", data]) == 2
    assert words in capsys.readouterr().err
    assert os.listdir() == []


def test_a_file_is_no_store_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "file"
    file.touch()
    assert main(["store", "inspect", str(file)]) == 2
    assert capsys.readouterr().err == f"turbopump: {file} is not a directory\n"


def test_an_address_that_this_machine_has_not_is_named(run: Callable[..., Any]) -> None:
    done = run(
        "namesrv", "--port", "0", "--host", "192.0.2.1", "--insecure", "--log-level", "error"
    )
    assert done.returncode == 1
    assert done.stderr == (
        "turbopump: cannot listen on 192.0.2.1:0: this machine has no such address; use one of "
        "its addresses, or 0.0.0.0 for all\n"
    )


def test_who_answers_but_is_another_server_is_named_as_such(
    rocketmq: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    broker = rocketmq.broker_address
    assert main(["topic", "list", "-n", broker]) == 1
    assert (
        f"{broker} is not a name server; it answers like a broker (request type 206 not supported)"
        in capsys.readouterr().err
    )
    assert main(["topic", "create", "T", "-n", rocketmq.namesrv, "--broker", rocketmq.namesrv]) == 1
    assert f"{rocketmq.namesrv} does not know this request" in capsys.readouterr().err


def test_a_refused_connection_is_told_in_the_systems_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["topic", "list", "-n", "127.0.0.1:1"]) == 1
    assert capsys.readouterr().err == (
        "turbopump: cannot reach a name server: cannot connect to 127.0.0.1:1: Connection "
        "refused. "
        "Check -n, NAMESRV_ADDR, and that a name server is running (`turbopump dev` starts one, "
        "`turbopump doctor` shows more)\n"
    )


def test_the_topics_of_a_cluster_that_is_not_there_are_an_error(
    rocketmq: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["topic", "list", "-n", rocketmq.namesrv, "--cluster", "nowhere"]) == 3
    assert (
        "cluster nowhere does not exist; the name server knows: DefaultCluster"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize("command", ["offset show nobody", "offset clone nobody billing"])
@pytest.mark.parametrize("output", ["table", "json"])
def test_a_group_that_is_nowhere_is_not_said_to_be_up_to_date(
    run_here: Callable[..., Any], rocketmq: Any, command: str, output: str
) -> None:
    done = run_here(*command.split(), "-n", rocketmq.namesrv, "--output", output)
    assert done.returncode == 3
    assert "the group nobody has no" in done.stderr
    assert "behind by" not in done.stdout


async def make_group(rocketmq: Any) -> None:
    client = RemotingClient()
    group = fastjson.encode(SubscriptionGroupConfig(group_name="billing"))
    await client.call(rocketmq.broker_address, CreateGroup(), group)
    await client.close()


@pytest.mark.parametrize("command", ["consumer show", "offset show", "consumer status"])
def test_a_group_that_is_nowhere_is_answered_with_the_nearest_name(
    rocketmq: Any, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    rocketmq.run(make_group(rocketmq))
    assert main([*command.split(), "biling", "-n", rocketmq.namesrv]) == 3
    assert "the group biling (did you mean billing?)" in capsys.readouterr().err


def test_a_topic_of_rocketmqs_own_is_not_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["topic", "delete", "TBW102", "--yes", "-n", "127.0.0.1:1"]) == 1
    assert "TBW102 is a topic of RocketMQ's own" in capsys.readouterr().err


def test_where_no_broker_is_there_nobody_says_that_there_are_no_dead_letters(
    start: Callable[..., Any], run: Callable[..., Any]
) -> None:
    namesrv = (
        "127.0.0.1:" + start("namesrv", "--port", "0").wait_for(r"^ready namesrv=\S+:(\d+)$")[1]
    )
    done = run("dlq", "list", "-n", namesrv)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"turbopump: no broker is registered at the name server {namesrv}"
    )
    assert done.stdout == ""


def test_an_export_that_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "dead.jsonl"
    file.write_text("yesterday's\n")
    with pytest.raises(RuntimeError), open_export(file, "jsonl"):
        raise RuntimeError
    assert file.read_text() == "yesterday's\n"
    with open_export(file, "jsonl"):
        pass
    assert file.read_text() == ""
    assert os.listdir(tmp_path) == [file.name]


def test_an_export_says_which_file_could_not_be_made(tmp_path: Path) -> None:
    file = tmp_path / "none" / "dead.jsonl"
    with pytest.raises(FileNotFoundError) as raised, open_export(file, "jsonl"):
        pass
    assert raised.value.filename == str(file)


@pytest.mark.parametrize("group", ["consumer", "message", "offset", "dlq", "store", "topic"])
def test_what_the_commands_of_a_group_do_is_told_in_whole_sentences(
    group: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([group, "--help"]) == 0
    assert "..." not in capsys.readouterr().out.replace("[ARGS]...", "")
