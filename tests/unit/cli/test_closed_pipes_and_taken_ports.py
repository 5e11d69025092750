"""Commands whose standard input or output is closed, or read by nobody, and ports that are in each
other's way."""

import shlex
import socket
import subprocess
import sys
from typing import Any

import pytest
from tests.patient import PATIENT
from tests.ports import free_ports
from tests.unit.cli.commands import DEADLINE_S, command_environment


def in_shell(line: str, namesrv: str = "") -> subprocess.CompletedProcess[str]:
    """Run a shell line in which ``turbopump`` stands for the command of this source tree."""
    command = f"{shlex.quote(sys.executable)} {shlex.quote(PATIENT)}"
    environment = command_environment() | ({"NAMESRV_ADDR": namesrv} if namesrv else {})
    return subprocess.run(
        ["bash", "-c", line.replace("turbopump", command)],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env=environment,
        check=False,
    )


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["topic list", "produce orders"])
def test_commands_run_with_closed_standard_streams(
    rocketmq: Any, command: str, closed: str
) -> None:
    empty = "" if "<&-" in closed else "</dev/null"
    done = in_shell(f"turbopump {command} {closed} {empty}", rocketmq.namesrv)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


def test_servers_started_with_closed_streams_stop_cleanly() -> None:
    served = "turbopump dev --namesrv-port 0 --broker-port 0 <&- >> out & pid=$!"
    done = in_shell(
        f'cd "$(mktemp -d)"; : > out; {served}; until grep -q ready out; do sleep 0.05; done; '
        "kill $pid; wait $pid"
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_results_that_nobody_reads_end_produce_with_a_sentence(rocketmq: Any) -> None:
    done = in_shell(
        "seq 20000 | turbopump produce orders --raw --results | head -1; echo ${PIPESTATUS[1]}",
        rocketmq.namesrv,
    )
    assert done.stdout.splitlines()[-1] == "1"
    assert "nobody reads the results any more" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("text", "number"), [(r"\n\nbad\n", 3), (r'{"body":"a"}\n\n \n{"tags":1}\n', 4)]
)
def test_the_line_that_cannot_be_sent_is_counted_with_the_empty_ones(
    rocketmq: Any, text: str, number: int
) -> None:
    done = in_shell(f"printf {shlex.quote(text)} | turbopump produce orders", rocketmq.namesrv)
    assert done.stderr.startswith(f"turbopump: line {number}")
    assert done.returncode == 1


def test_a_taken_vip_port_is_named_as_such() -> None:
    port = free_ports(-2, 0)
    with socket.create_server(("127.0.0.1", port - 2)):
        done = in_shell(f"turbopump dev --namesrv-port 0 --broker-port {port}")
    assert done.returncode == 1
    assert f"the VIP port of a broker on port {port}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_name_server_port_that_the_broker_needs_is_refused() -> None:
    done = in_shell("turbopump dev --namesrv-port 9880 --broker-port 9882")
    assert done.returncode == 2
    assert "--namesrv-port 9880 is one of the broker's ports" in done.stderr
