"""The files in deploy/ fit together, and to the commands and settings of this version.

`python -m deploy.check` runs them.
"""

import logging
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from turbopump import __version__
from turbopump.cli.entry import main
from turbopump.config.properties import decode
from turbopump.remoting.health_port import LIVE, READY

yaml = pytest.importorskip("yaml", reason="needs the extra turbopump[acl-import]")

DEPLOY = Path(__file__).parents[3] / "deploy"
DOCKER, KUBERNETES, SYSTEMD = DEPLOY / "docker", DEPLOY / "kubernetes", DEPLOY / "systemd"
INSIDE = "/etc/turbopump/"
"""Directory of configuration files in containers and on machines."""


def documents(directory: Path) -> list[dict[str, Any]]:
    files = sorted(directory.glob("*.yaml"))
    return [document for file in files for document in yaml.safe_load_all(file.read_text("utf-8"))]


def services() -> Iterator[tuple[str, dict[str, Any], Path]]:
    """Each service of the Compose files, and the directory of its configuration file."""
    for file in sorted(DOCKER.glob("compose*.yaml")):
        directory = DOCKER / "cluster" if "cluster" in file.name else DOCKER
        for name, service in yaml.safe_load(file.read_text("utf-8"))["services"].items():
            yield name, service, directory


def stateful_sets() -> list[dict[str, Any]]:
    return [document for document in documents(KUBERNETES) if document["kind"] == "StatefulSet"]


def pods() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """The name of each pod, its StatefulSet, and its container."""
    for stateful_set in stateful_sets():
        (container,) = stateful_set["spec"]["template"]["spec"]["containers"]
        for number in range(stateful_set["spec"]["replicas"]):
            yield f"{stateful_set['metadata']['name']}-{number}", stateful_set, container


def commands() -> Iterator[tuple[str, list[str], Path]]:
    """Each server command: a name for it, its arguments, and the directory of its configuration."""
    for name, service, directory in services():
        words = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", service["command"])
        yield f"compose {name}", shlex.split(words), directory
    for name, _, container in pods():
        words = "\n".join(container["args"]).replace("$(POD_NAME)", name)
        words = words.replace("$(NAMESPACE)", "mq")
        yield f"pod {name}", words.split("\n"), KUBERNETES / "config"
    for unit, broker in (("turbopump-namesrv", ""), ("turbopump-broker@", "broker")):
        text = (SYSTEMD / f"{unit}.service").read_text("utf-8")
        (command,) = re.findall(
            r"^ExecStart=/opt/turbopump/bin/turbopump (.*)$", text, re.MULTILINE
        )
        yield f"unit {unit}", shlex.split(command.replace("%i", broker)), SYSTEMD


COMMANDS = {name: (words, directory) for name, words, directory in commands()}


@pytest.mark.parametrize("name", COMMANDS)
def test_each_server_has_options_and_settings_of_this_version(
    name: str, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    words, directory = COMMANDS[name]
    arguments = [word.replace(INSIDE, f"{directory}/") for word in words]
    with caplog.at_level(logging.WARNING, "turbopump.config"):
        assert main([*arguments, "-p"]) == 0
    assert caplog.messages == []
    capsys.readouterr()


def test_containers_and_pods_run_the_image_of_this_version() -> None:
    images = [service["image"] for _, service, _ in services()]
    images += [container["image"] for _, _, container in pods()]
    assert set(images) == {f"turbopump:{__version__}"}


@pytest.mark.parametrize("name", [name for name in COMMANDS if name.startswith("pod")])
def test_a_pod_without_access_control_does_not_start(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, directory = COMMANDS[name]
    assert main([word.replace(INSIDE, f"{directory}/") for word in words]) == 2
    assert "everyone there might do everything" in capsys.readouterr().err


def test_probes_ask_for_the_health_pages() -> None:
    for name, stateful_set, container in pods():
        file = "namesrv" if stateful_set["metadata"]["name"] == "namesrv" else name
        settings = decode((KUBERNETES / f"config/{file}.conf").read_bytes())
        (port,) = [port for port in container["ports"] if port["name"] == "health"]
        assert settings["healthHost"] == "0.0.0.0"
        assert settings["healthPort"] == str(port["containerPort"])
        assert container["livenessProbe"]["httpGet"] == {"path": LIVE, "port": "health"}
        assert container["readinessProbe"]["httpGet"] == {"path": READY, "port": "health"}


def test_each_selector_finds_pods() -> None:
    labels = [each["spec"]["template"]["metadata"]["labels"] for each in stateful_sets()]
    selectors = {
        f"{each['kind']} {each['metadata']['name']}": each["spec"]["selector"]
        for each in documents(KUBERNETES)
    }
    for name, selector in selectors.items():
        wanted = selector.get("matchLabels", selector).items()
        assert [each for each in labels if wanted <= each.items()], name
    assert {f"Service {each['spec']['serviceName']}" for each in stateful_sets()} <= set(selectors)


def test_both_brokers_have_the_same_manifest() -> None:
    a, b = ((KUBERNETES / f"broker-{name}.yaml").read_text("utf-8") for name in "ab")
    start = "apiVersion:"  # the heading names the other file
    assert a[a.index(start) :].replace("broker-a", "broker-b") == b[b.index(start) :]


def test_ports_of_containers_are_those_that_the_servers_listen_on() -> None:
    for name, service, directory in services():
        words = shlex.split(service["command"])
        listening = "9876" if words[0] == "namesrv" else "10911"
        if "-c" in words:
            file = directory / words[words.index("-c") + 1].removeprefix(INSIDE)
            listening = decode(file.read_bytes()).get("listenPort", listening)
        published = [ports.rsplit(":", 1)[1] for ports in service["ports"]]
        assert listening in published, name
        if "healthcheck" in service:
            assert service["healthcheck"]["test"][-1] == f"127.0.0.1:{listening}", name


def test_the_health_check_of_the_image_is_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    dockerfile = (DOCKER / "Dockerfile").read_text("utf-8")
    pings = re.findall(r"exec turbopump (\w+ ping) ;;", dockerfile)
    assert pings == ["namesrv ping", "broker ping"]
    for ping in pings:
        assert main([*ping.split(), "--help"]) == 0
        capsys.readouterr()


def test_what_the_image_is_built_from_gets_to_the_engine() -> None:
    root = DEPLOY.parent
    kept = re.findall(r"^!(.+)$", (root / ".dockerignore").read_text("utf-8"), re.MULTILINE)
    dockerfile = (DOCKER / "Dockerfile").read_text("utf-8")
    copied = [
        name
        for line in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE)
        for name in line.split()
    ]
    assert sorted(copied) == sorted(kept)
    assert all((root / name).exists() for name in copied)
