"""`turbopump dev`, and the client commands against it."""

import csv
import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.loops import in_loop

from turbopump.cli.dev import open_metrics
from turbopump.cli.entry import INCOMPLETE, NOT_FOUND
from turbopump.config.namesrv_config import NamesrvConfig
from turbopump.metrics.family import Metrics
from turbopump.remoting.metrics_port import MetricsPort

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., Any]

READY = r"^ready namesrv=(\S+:\d+) broker=(\S+:\d+)$"
FREE_PORTS = ("--namesrv-port", "0", "--broker-port", "0")


def test_a_banner_names_the_addresses_and_the_directory_and_ready_ends_it(
    start: Start, tmp_path: Path
) -> None:
    dev = start("dev", "--data", str(tmp_path / "data"), *FREE_PORTS, "--advertise", "localhost:80")
    found = dev.wait_for(READY)
    banner = "\n".join(dev.lines)
    assert found[2] == "localhost:80"
    assert f"name server  {found[1]}" in banner
    assert "broker       127.0.0.1:" in banner
    assert "advertised as localhost:80" in banner
    assert str(tmp_path / "data") in banner
    assert dev.stop() == (0, "")


def test_both_servers_show_their_metrics(start: Start) -> None:
    dev = start("dev", *FREE_PORTS)
    dev.wait_for(READY)
    pages = re.findall(r"metrics +(http://\S+)", "\n".join(dev.lines))
    texts = [urllib.request.urlopen(page, timeout=60).read().decode() for page in pages]
    assert len(pages) == 2
    assert 'rocketmq_broker_permission{cluster="DefaultCluster",node_type="broker"' in texts[0]
    assert 'turbopump_namesrv_brokers{node_type="namesrv"} 1' in texts[1]
    assert dev.stop() == (0, "")


@in_loop
async def test_a_busy_port_of_metrics_is_only_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = MetricsPort(NamesrvConfig(), Metrics())
        await open_metrics(port, taken.getsockname()[1])
        assert port.address is None
        assert re.search("no metrics page: .*in use", caplog.text)
        await open_metrics(port, 0)
        assert port.address is not None
        port.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_both_signals_stop_it_cleanly_and_remove_a_temporary_directory(
    start: Start, number: signal.Signals
) -> None:
    dev = start("dev", *FREE_PORTS)
    dev.wait_for(READY)
    directory = next(Path(line.split()[1]) for line in dev.lines if line.strip().startswith("data"))
    assert directory.is_dir()
    assert dev.stop(number) == (0, "")
    assert not directory.exists()


def test_files_start_small(start: Start, run_here: Run, tmp_path: Path) -> None:
    dev = start("dev", "--data", str(tmp_path), *FREE_PORTS)
    namesrv = dev.wait_for(READY)[1]
    assert run_here("produce", "T", "-n", namesrv, "--raw", text="hello\n").returncode == 0
    assert dev.stop() == (0, "")
    assert sum(file.stat().st_size for file in tmp_path.rglob("*") if file.is_file()) < 40 << 20


def test_a_second_start_on_the_same_directory_is_one_sentence(
    start: Start, run: Run, tmp_path: Path
) -> None:
    namesrv, broker = start("dev", "--data", str(tmp_path), *FREE_PORTS).wait_for(READY).groups()
    same_ports = (
        "--namesrv-port",
        namesrv.rpartition(":")[2],
        "--broker-port",
        broker.rpartition(":")[2],
    )
    for command in (
        ("dev", "--data", str(tmp_path), *FREE_PORTS),
        ("dev", "--data", str(tmp_path), *same_ports),
        ("broker", "--data", str(tmp_path), "--port", "0"),
    ):
        done = run(*command, "--log-level", "error")
        assert done.returncode == 1
        assert done.stderr.startswith(
            f"turbopump: the store directory {tmp_path} is in use by another broker"
        )
        assert done.stderr.count("\n") == 1
        assert done.stdout == ""


def test_a_port_in_use_is_one_sentence(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        for ports in (
            ("--namesrv-port", port, "--broker-port", "0"),
            ("--namesrv-port", "0", "--broker-port", port),
        ):
            done = run("dev", *ports)
            assert done.returncode == 1
            assert done.stderr.startswith(
                f"turbopump: port {port} on 127.0.0.1 is in use by another process"
            )
            assert done.stderr.count("\n") == 1


def test_messages_outlive_a_restart_in_a_directory_of_ones_own(
    start: Start, run_here: Run, tmp_path: Path
) -> None:
    for offset in (0, 1):
        dev = start("dev", "--data", str(tmp_path), *FREE_PORTS)
        namesrv = dev.wait_for(READY)[1]
        if offset == 0:
            assert run_here("topic", "create", "T", "-n", namesrv, "--queues", "1").returncode == 0
        done = run_here("produce", "T", "-n", namesrv, "--results", text='{"body": "x"}\n')
        assert json.loads(done.stdout)["queue_offset"] == offset
        assert dev.stop() == (0, "")


def test_a_broker_alone_registers_with_the_name_server_it_is_told(
    start: Start, run_here: Run, tmp_path: Path
) -> None:
    namesrv = (
        "127.0.0.1:" + start("namesrv", "--port", "0").wait_for(r"^ready namesrv=\S+:(\d+)$")[1]
    )
    conf = tmp_path / "broker.conf"
    conf.write_text("brokerName=shop\nbrokerClusterName=market\nmappedFileSizeCommitLog=8388608\n")
    broker = start(
        "broker", "-c", str(conf), "-n", namesrv, "--port", "0", "--data", str(tmp_path / "store")
    )
    broker.wait_for(r"^ready broker=\S+:\d+$")
    made = run_here("topic", "create", "T", "-n", namesrv, "--cluster", "market").stdout
    assert [line.split() for line in made.splitlines()] == [
        ["WHERE", "WHAT", "OLD", "NEW"],
        ["shop", "read", "queues", "-", "8"],
        ["shop", "write", "queues", "-", "8"],
        ["shop", "perm", "-", "6"],
    ]
    found = run_here("topic", "route", "T", "-n", namesrv, "--output", "json")
    assert (found.returncode, found.stderr) == (0, "")
    assert json.loads(found.stdout)["brokers"][0]["broker"] == "shop"
    code, log = broker.stop()
    assert code == 0
    assert " brokerName=shop brokerClusterName=market " in log
    gone = run_here("topic", "route", "T", "-n", namesrv)
    assert gone.returncode == 1
    assert "no broker is registered" in gone.stderr


@pytest.fixture(scope="module")
def namesrv(start_for_module: Start) -> str:
    """The name server of one `turbopump dev` that the tests below share, each with topics of its
    own."""
    return str(start_for_module("dev", *FREE_PORTS).wait_for(READY)[1])


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic that is named after the test."""
    return re.sub(r"\W", "_", request.node.name)


def test_topics_are_created_listed_and_found(run_here: Run, namesrv: str) -> None:
    done = run_here("topic", "create", "orders", "-n", namesrv, "--queues", "3", "--output", "json")
    made = json.loads(done.stdout)
    assert (made["topic"], made["existing"], made["dry_run"]) == ("orders", [], False)
    assert [(one["what"], one["old"], one["new"]) for one in made["changes"]] == [
        ("read queues", None, 3),
        ("write queues", None, 3),
        ("perm", None, 6),
    ]
    listed = run_here("topic", "list", "-n", namesrv)
    assert "orders" in listed.stdout.splitlines()
    assert listed.stdout.splitlines() == sorted(listed.stdout.splitlines())
    assert (
        "orders"
        in json.loads(run_here("topic", "list", "-n", namesrv, "--output", "json").stdout)["topics"]
    )
    (row,) = csv.DictReader(
        run_here("topic", "route", "orders", "-n", namesrv, "--output", "csv").stdout.splitlines()
    )
    assert (row["broker"], row["read_queues"], row["write_queues"]) == ("broker-dev", "3", "3")


def test_what_cannot_be_done_is_one_sentence(run_here: Run, namesrv: str) -> None:
    for arguments, code, words in (
        (
            ("topic", "create", "T", "--cluster", "nowhere"),
            NOT_FOUND,
            "cluster nowhere does not exist; the name server knows: Default",
        ),
        (
            ("topic", "create", "T", "--broker", "127.0.0.1:1"),
            INCOMPLETE,
            "cannot connect to 127.0.0.1:1",
        ),
    ):
        done = run_here(*arguments, "-n", namesrv)
        assert done.returncode == code
        assert words in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_dead_name_server_in_the_list_is_passed_over(run_here: Run, namesrv: str) -> None:
    assert run_here("topic", "list", "-n", f"127.0.0.1:1;{namesrv}").returncode == 0


def test_lines_are_sent_and_the_results_come_in_their_order(
    run_here: Run, namesrv: str, topic: str
) -> None:
    lines = "".join(f'{{"body": "{number}"}}\n' for number in range(200))
    done = run_here("produce", topic, "-n", namesrv, "--results", text=lines + "\n")
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.stderr == f"sent 200 messages to {topic}\n"
    assert [result["line"] for result in results] == list(range(1, 201))
    assert {result["status"] for result in results} == {"SEND_OK"}
    assert len({(result["queue_id"], result["queue_offset"]) for result in results}) == 200


def test_a_bad_line_ends_produce_with_its_number(run_here: Run, namesrv: str, topic: str) -> None:
    done = run_here("produce", topic, "-n", namesrv, text='{"body": "x"}\nnonsense\n')
    assert done.returncode == 1
    assert done.stderr.startswith("turbopump: line 2 is not a message: ")
    assert done.stderr.count("\n") == 1
    done = run_here("produce", "TBW102", "-n", namesrv, text='{"body": ""}\n')
    assert done.returncode == 1
    assert done.stderr.startswith("turbopump: line 1 was not sent: ")
    assert done.stderr.count("\n") == 1


def test_what_is_produced_is_consumed(run: Run, namesrv: str, topic: str) -> None:
    lines = (
        '{"body":"hello","tags":"A","keys":["k1","k2"]}\n'
        '{"body_base64":"/wA=","properties":{"p":"v"}}\n'
    )
    assert run("produce", topic, "-n", namesrv, text=lines).returncode == 0
    done = run("consume", topic, "-n", namesrv, "--count", "2")
    assert done.returncode == 0
    kept = ("body", "body_base64", "tags", "keys", "properties")
    got = [
        {key: value for key, value in json.loads(line).items() if key in kept}
        for line in done.stdout.splitlines()
    ]
    assert sorted(got, key=len) == sorted(
        (json.loads(line) for line in lines.splitlines()), key=len
    )


def test_a_group_goes_on_where_it_ended(run_here: Run, namesrv: str, topic: str) -> None:
    run_here("topic", "create", topic, "-n", namesrv, "--queues", "1")
    run_here("produce", topic, "-n", namesrv, "--raw", text="one\ntwo\nthree\n")
    consume = ("consume", topic, "-n", namesrv, "--raw", "-g", "readers")
    first = run_here(*consume, "--count", "2")
    second = run_here(*consume, "--count", "1")
    assert (first.stdout, second.stdout, second.returncode) == ("one\ntwo\n", "three\n", 0)
    other = run_here("consume", topic, "-n", namesrv, "--raw", "--count", "3", "--group", "another")
    assert other.stdout == "one\ntwo\nthree\n"


def test_only_the_wanted_tags_are_consumed(run_here: Run, namesrv: str, topic: str) -> None:
    run_here("produce", topic, "-n", namesrv, "--raw", "--tags", "A", text="a\n")
    run_here("produce", topic, "-n", namesrv, "--raw", "--tags", "B", text="b\n")
    assert (
        run_here(
            "consume", topic, "-n", namesrv, "--raw", "--tags", "B || C", "--count", "1"
        ).stdout
        == "b\n"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_consumer_leaves_when_it_is_asked_to(
    start: Start, run_here: Run, namesrv: str, topic: str, number: signal.Signals
) -> None:
    run_here("produce", topic, "-n", namesrv, "--raw", text="one\n")
    consume = ("consume", topic, "-n", namesrv, "-g", f"readers-{number}")
    consumer = start(*consume)
    consumer.wait_for('"body": "one"')
    assert consumer.stop(number) == (130, "")
    assert run_here(*consume, "--idle", "1").stdout == ""


def test_a_reader_that_leaves_is_no_failure(
    start: Start, run_here: Run, namesrv: str, topic: str
) -> None:
    run_here("produce", topic, "-n", namesrv, "--raw", text=("x" * 1000 + "\n") * 2000)
    consumer = start("consume", topic, "-n", namesrv)
    consumer.wait_for("x")
    consumer.close_output()
    assert consumer.end() == (0, "")


def test_a_group_of_replicas_replaces_a_killed_master(start: Start, run_here: Run) -> None:
    dev = start("dev", "--replicas", "3", *FREE_PORTS)
    namesrv = dev.wait_for(READY)[1]
    master, pid = dev.wait_for(r"^master is replica (\d) \(pid (\d+)\), epoch 1; ").groups()
    assert run_here("produce", "T", "-n", namesrv, "--raw", text="before\n").returncode == 0
    shown = run_here("controller", "replicas", "-n", namesrv).stdout
    assert re.search(rf"^broker-dev +{master} .* master ", shown, re.MULTILINE)
    os.kill(int(pid), signal.SIGKILL)
    second = dev.wait_for(r"^master is replica (\d) \(pid \d+\), epoch 2; in sync: \d, \d")[1]
    assert second != master
    assert run_here("produce", "T", "-n", namesrv, "--raw", text="after\n").returncode == 0
    read = run_here("consume", "T", "-n", namesrv, "--from", "first", "--count", "2", "--raw")
    assert sorted(read.stdout.split()) == ["after", "before"]
    assert dev.stop() == (0, "")
