"""`namesrv`, `broker` and `controller`: effective configuration, ready line, signals, logs."""

import json
import re
import resource
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.ports import free_ports

from turbopump.config.broker_config import BrokerConfig, load_broker_config
from turbopump.config.controller_config import ControllerConfig, load_controller_config
from turbopump.config.namesrv_config import NamesrvConfig, load_namesrv_config
from turbopump.config.setting import settings_of
from turbopump.documentation import page_url

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Start = Callable[..., Any]

PRINTED = Path(__file__).parents[1] / "config" / "apache_5_3_3_broker.conf"
"""What Apache's ``BrokerStartup -p`` prints."""
PAGE = page_url("docs/reference/configuration.md")
HEAD = f"# a file for -c; {PAGE} explains each key"
READY = r"^ready namesrv=(127\.0\.0\.1):(\d+)$"


@pytest.mark.parametrize(
    ("command", "config", "load"),
    [
        ("namesrv", NamesrvConfig, load_namesrv_config),
        ("broker", BrokerConfig, load_broker_config),
        ("controller", ControllerConfig, load_controller_config),
    ],
)
def test_p_prints_a_file_that_says_the_same(
    run: Run, tmp_path: Path, command: str, config: Any, load: Any
) -> None:
    first = run(command, "-p", "--port", "1234")
    assert first.returncode == 0
    lines = first.stdout.splitlines()
    assert lines[:4] == [HEAD, "# from the command line", "listenPort=1234", "# from defaults"]
    assert len(lines) == len(list(settings_of(config))) + 3
    conf = tmp_path / "server.conf"
    conf.write_text(first.stdout)
    again = run(command, "-p", "-c", str(conf)).stdout.splitlines()
    assert again[:2] == [HEAD, f"# from {conf}"]
    assert sorted(again[2:]) == sorted(line for line in lines if not line.startswith("#"))
    assert load(conf).listen_port == 1234


@pytest.mark.parametrize(
    ("command", "config", "load"),
    [
        ("namesrv", NamesrvConfig, load_namesrv_config),
        ("broker", BrokerConfig, load_broker_config),
        ("controller", ControllerConfig, load_controller_config),
    ],
)
def test_p_leaves_out_secrets_so_that_its_output_can_be_given_with_c(
    run_here: Run, tmp_path: Path, command: str, config: Any, load: Any
) -> None:
    secrets = [known.key for _, known in settings_of(config) if known.secret]
    assert len(secrets) >= 3
    values = {
        "initAuthenticationUser": '{"username": "admin", "password": "hush"}',
        "innerClientAuthenticationCredentials": '{"accessKey": "in", "secretKey": "hush"}',
        "metricsGrpcExporterHeader": "authorization:hush",
    }
    conf = tmp_path / "server.conf"
    conf.write_text("".join(f"{key}={values.get(key, 'hush')}\n" for key in secrets))
    printed = run_here(command, "-p", "-c", str(conf))
    assert (printed.returncode, "hush" in printed.stdout) == (0, False)
    for key in secrets:
        assert f"# {key} is a secret, and left out here: add it\n" in printed.stdout
    before = load(conf)
    conf.write_text(printed.stdout)
    again = load(conf)
    for name, known in settings_of(config):
        assert getattr(again, name) == ("" if known.secret else getattr(before, name))


def test_p_says_which_values_come_from_the_file_of_tls(run: Run, tmp_path: Path) -> None:
    conf, tls = tmp_path / "broker.conf", tmp_path / "tls.properties"
    conf.write_text(f"tls.config.file={tls}\ntls.enable=false\ntls.server.mode=enforcing\n")
    tls.write_text("tls.enable=true\ntls.server.mode=disabled\n")
    lines = run("broker", "-p", "-c", str(conf)).stdout.splitlines()
    assert lines[: lines.index("# from defaults")] == [
        HEAD,
        f"# from {tls}",
        "tls.server.mode=disabled",
        "tls.enable=true",
        f"# from {conf}",
        f"tls.config.file={tls}",
    ]


def test_the_file_that_apaches_broker_prints_starts_this_one_if_others_may_reach_it(
    run: Run, start: Start, tmp_path: Path
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(re.sub("(?m)^haListenPort=.*", "haListenPort=0", PRINTED.read_text()))
    command = ("broker", "-c", str(conf), "--data", str(tmp_path / "store"), "--port", "0")
    refused = run(*command)
    assert refused.returncode == 2
    assert "--insecure" in refused.stderr
    broker = start(*command, "--insecure")
    address = broker.wait_for(r"^ready broker=(192\.0\.2\.2:\d+)$")[1]
    booted = rf"The broker\[\S+, {address}\] boot success\. serializeType=JSON"
    assert re.fullmatch(booted, broker.lines[0])
    code, _ = broker.stop(signal.SIGTERM)
    assert code == 0


@pytest.mark.parametrize("server", ["broker", "namesrv", "controller"])
def test_metrics_that_strangers_could_read_are_refused(
    run: Run, start: Start, tmp_path: Path, server: str
) -> None:
    conf = tmp_path / "server.conf"
    conf.write_text(
        f"metricsExporterType=PROM\nmetricsPromExporterHost=0.0.0.0\nkvConfigPath={tmp_path}/kv\n"
        f"metricsPromExporterPort=0\nnamesrvMetricsPort=0\nstorePathRootDir={tmp_path}/store\n"
        f"controllerStorePath={tmp_path}/controller\n"
    )
    command = (server, "-c", str(conf), "--port", "0")
    refused = run(*command)
    assert refused.returncode == 2
    assert "turbopump: metricsPromExporterHost=0.0.0.0 can be reached" in refused.stderr
    opened = start(*command, "--insecure", "--log-level", "error")
    opened.wait_for("^ready")
    assert opened.stop()[0] == 0


def test_options_win_over_the_file_of_a_broker(run: Run, tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        "brokerName=from-file\nnamesrvAddr=file:1\nlistenPort=1\nbrokerIP1=file\n"
        "bindAddress=127.0.0.1\n"
    )
    shown = run(
        "broker",
        "-p",
        "-c",
        str(conf),
        "-n",
        "a:1;b:2",
        "--port",
        "0",
        "--data",
        "/d",
        "--advertise",
        "shop.example:80",
    ).stdout.splitlines()
    assert {
        "brokerName=from-file",
        "namesrvAddr=a\\:1;b\\:2",
        "listenPort=0",
        "storePathRootDir=/d",
        "brokerIP1=shop.example",
        "advertisedPort=80",
    } <= set(shown)


def test_an_unknown_key_is_reported_and_stops_nothing(run: Run, tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text("listenPrt=1\n")
    done = run("namesrv", "-p", "-c", str(conf))
    assert done.returncode == 0
    assert done.stderr.endswith(
        f"WARNING turbopump.config unknown key file={conf} key=listenPrt nearest=listenPort\n"
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_name_server_says_that_it_is_ready_and_stops_cleanly(
    start: Start, number: signal.Signals
) -> None:
    server = start("namesrv", "--port", "0")
    host, port = server.wait_for(READY).groups()
    booted = f"The Name Server boot success. serializeType=JSON, address {host}:{port}"
    assert server.lines == [booted, f"ready namesrv={host}:{port}"]
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        code, log = server.stop(number)
        assert connection.recv(1) == b""
    assert code == 0
    assert f"stopping signal={number.name}" in log
    assert " bindAddress=127.0.0.1 listenPort=0 " in log
    assert "Traceback" not in log


def test_a_controller_says_that_it_is_ready_and_keeps_its_file_to_itself(
    start: Start, run: Run, tmp_path: Path
) -> None:
    conf = tmp_path / "controller.conf"
    port = free_ports(0)
    conf.write_text(
        f"controllerDLegerGroup = group1\ncontrollerDLegerPeers = n0-127.0.0.1:{port}\n"
        f"controllerDLegerSelfId = n0\ncontrollerStorePath = {tmp_path}/controller\n"
    )
    controller = start("controller", "-c", str(conf), "--log-level", "info")
    controller.wait_for(f"^ready controller=127.0.0.1:{port}$")
    assert run("controller", "ping", f"127.0.0.1:{port}").returncode == 0
    second = run("controller", "--port", "0", "--data", f"{tmp_path}/controller")
    assert second.returncode == 1
    assert "decisions.json is in use by another controller" in second.stderr
    code, log = controller.stop()
    assert (code, "Traceback" in log) == (0, False)
    assert f"INFO turbopump.controller.server controller ready address=127.0.0.1:{port}" in log


def test_several_controllers_in_a_file_are_refused(run: Run, tmp_path: Path) -> None:
    conf = tmp_path / "controller.conf"
    conf.write_text("controllerDLegerPeers = n0-127.0.0.1:9878;n1-127.0.0.1:9868\n")
    done = run("controller", "-c", str(conf))
    assert done.returncode == 2
    assert "several controllers agree through etcd" in done.stderr
    conf.write_text("controllerDLegerPeers = n0-127.0.0.1:9878\ncontrollerDLegerSelfId = n1\n")
    done = run("controller", "-c", str(conf))
    assert "controllerDLegerSelfId=n1 is not in controllerDLegerPeers" in done.stderr


def test_a_controller_runs_in_a_name_server(start: Start, run: Run, tmp_path: Path) -> None:
    conf = tmp_path / "namesrv.conf"
    port = free_ports(0)
    conf.write_text(
        "listenPort=0\nenableControllerInNamesrv=true\ncontrollerDLegerGroup=group1\n"
        f"controllerDLegerPeers=n0-127.0.0.1:{port}\ncontrollerDLegerSelfId=n0\n"
        f"controllerStorePath={tmp_path}/controller\nkvConfigPath={tmp_path}/kv.json\n"
    )
    server = start("namesrv", "-c", str(conf), "--log-level", "warning")
    found = server.wait_for(rf"^ready namesrv=(127.0.0.1:\d+) controller=127.0.0.1:{port}$")
    assert run("namesrv", "ping", found[1]).returncode == 0
    assert run("controller", "ping", f"127.0.0.1:{port}").returncode == 0
    code, log = server.stop()
    assert code == 0
    assert "unknown key" not in log


def test_a_server_may_open_as_many_files_as_the_system_grants(start: Start) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
    try:
        server = start("namesrv", "--port", "0", "--log-level", "info")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    server.wait_for(READY)
    assert f"open files limit={hard}" in server.stop()[1]


def test_a_port_in_use_is_one_sentence(start: Start, run: Run) -> None:
    port = start("namesrv", "--port", "0").wait_for(READY)[2]
    done = run("namesrv", "--port", port, "--log-level", "error")
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"turbopump: port {port} on 127.0.0.1 is in use by another process"
    )
    assert done.stderr.count("\n") == 1


def test_the_log_goes_where_it_is_told_from_the_level_on(start: Start, tmp_path: Path) -> None:
    file = tmp_path / "server.log"
    server = start("namesrv", "--port", "0", "--log-file", str(file), "--log-level", "info")
    server.wait_for(READY)
    assert server.stop() == (0, "")
    assert "INFO turbopump.namesrv.server name server ready address=127.0.0.1:" in file.read_text()
    quiet = start("namesrv", "--port", "0", "--log-level", "warning")
    quiet.wait_for(READY)
    assert quiet.stop() == (0, "")


def test_a_log_in_json_has_one_object_on_each_line(start: Start, tmp_path: Path) -> None:
    options = ("--log-level", "info", "--log-format", "json")
    server = start("namesrv", "--port", "0", *options)
    port = server.wait_for(READY)[2]
    code, log = server.stop()
    assert code == 0
    lines = [json.loads(line) for line in log.splitlines()]
    assert {"time", "level", "logger", "message"} <= lines[0].keys()
    by_event = {line["message"]: line for line in lines}
    assert by_event["name server ready"]["address"] == f"127.0.0.1:{port}"
    assert by_event["stopping"]["signal"] == "SIGTERM"
    grouped = [line["group"] for line in lines if line["message"] == "configuration"]
    assert {"tls", "access", "health", "server"} <= set(grouped)


def test_a_client_command_logs_in_json_if_asked_for(run: Run) -> None:
    asked = ("-n", f"127.0.0.1:{free_ports(0)}", "--log-format", "json", "--log-level", "debug")
    done = run("produce", "orders", *asked, text='{"body": "x"}\n')
    *lines, failure = done.stderr.splitlines()
    assert failure.startswith("turbopump: ")
    assert any(json.loads(line)["message"] == "client started" for line in lines)


def test_insecure_allows_every_interface(start: Start) -> None:
    server = start("namesrv", "--port", "0", "--host", "0.0.0.0", "--insecure")
    port = int(server.wait_for(r"^ready namesrv=[\d.]+:(\d+)$")[1])
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    assert server.stop()[0] == 0


def test_the_log_is_begun_anew_when_its_file_is_moved_and_sighup_ends_nothing(
    start: Start, tmp_path: Path
) -> None:
    file, moved = tmp_path / "namesrv.log", tmp_path / "namesrv.log.1"
    options = ("--log-level", "info", "--log-file", str(file))
    server = start("namesrv", "--port", "0", *options)
    server.wait_for(READY)
    file.rename(moved)
    server.send(signal.SIGHUP)
    assert server.stop() == (0, "")
    assert "continuing signal=SIGHUP" in file.read_text()
    assert "stopping signal=SIGTERM" in file.read_text()
    assert "name server ready" in moved.read_text()
    assert "SIGHUP" not in moved.read_text()


def test_lines_for_a_log_file_that_cannot_be_made_again_go_to_standard_error(
    start: Start, tmp_path: Path
) -> None:
    directory = tmp_path / "log"
    directory.mkdir()
    file = directory / "namesrv.log"
    server = start("namesrv", "--port", "0", "--log-level", "info", "--log-file", str(file))
    server.wait_for(READY)
    file.unlink()
    directory.rmdir()
    code, log = server.stop()
    assert code == 0
    assert "stopping signal=SIGTERM" in log
    assert "Traceback" not in log
