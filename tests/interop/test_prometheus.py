"""Boards and alerts of deploy/monitoring, evaluated by a real Prometheus on a live cluster."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from tests.interop.monitored_cluster import (
    MONITORING,
    Prometheus,
    a_moment_ago,
    monitored_cluster,
    prometheus,
    tool,
    traffic,
)
from tests.interop.our_clients import PATIENCE_SECONDS
from tests.interop.tools import skipping_without_tools
from tests.loops import in_loop

THRESHOLD = re.compile(r"\s*(?:==|!=|>=|<=|>|<)\s*(?:bool\s+)?[\d.]+(?:\s*[*/]\s*[\d.]+)*")
OF_DEAD_LETTERS = {"RocketMQDeadLetters", "RocketMQNewDeadLetters"}
OF_A_SLAVE_THAT_HAS_GONE = {"RocketMQBrokerDown", "RocketMQServerDown"}
OF_A_BUSY_MACHINE = {"RocketMQLoopStalls", "RocketMQFlushSlow"}


def panel_queries() -> Iterator[tuple[str, str]]:
    """Name and expression of each query of each board, with Grafana's variables replaced."""
    for file in sorted(MONITORING.glob("grafana-*.json")):
        for panel in json.loads(file.read_text("utf-8"))["panels"]:
            for target in panel.get("targets", ()):
                expression = target["expr"].replace("$__rate_interval", "1m")
                expression = re.sub(r"\$\w+", ".*", expression)
                yield f"{file.name}: {panel['title']}", expression


def rule_expressions() -> Iterator[tuple[str, str]]:
    """Name and expression of each alert, without its thresholds."""
    for file in sorted(MONITORING.glob("alerts-*.yml")):
        for group in yaml.safe_load(file.read_text("utf-8"))["groups"]:
            for rule in group["rules"]:
                expression = a_moment_ago(THRESHOLD.sub("", rule["expr"]))
                yield f"{file.name}: {rule['alert']}", expression


async def until(question: Callable[[], str]) -> None:
    """Ask in a thread until the answer is empty. The last answer is the failure."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        try:
            answer = ""
            while answer := await asyncio.to_thread(question):
                await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            pytest.fail(answer)


def empty_ones(server: Prometheus) -> str:
    """Names and queries that have no series now, one a line."""
    queries = [*panel_queries(), *rule_expressions()]
    return "\n".join(f"{name}: {query}" for name, query in queries if not server.count(query))


def targets_down(server: Prometheus) -> str:
    with suppress(OSError):
        active = server.ask("targets")["activeTargets"]
        return "\n".join(
            f"{one['scrapeUrl']}: {one['health']} {one['lastError']}"
            for one in active
            if one["health"] != "up"
        )
    return "Prometheus does not answer yet"


def other_alerts_than(server: Prometheus, wanted: set[str]) -> str:
    """The difference between the alerts that fire and the wanted ones, or nothing."""
    firing = {alert["labels"]["alertname"] for alert in server.ask("alerts")["alerts"]}
    difference = (firing ^ wanted) - OF_A_BUSY_MACHINE
    return f"firing: {sorted(firing)}, wanted: {sorted(wanted)}" if difference else ""


def sick_rules(server: Prometheus) -> str:
    rules = [rule for group in server.ask("rules")["groups"] for rule in group["rules"]]
    return "\n".join(
        f"{rule['name']}: {rule.get('lastError', rule['health'])}"
        for rule in rules
        if rule["health"] != "ok"
    )


@in_loop
async def test_panels_and_alerts_have_series_on_a_live_cluster_and_fire_when_they_should(
    tmp_path: Path, summary: list[str]
) -> None:
    with (
        skipping_without_tools(),
        monitored_cluster(tmp_path) as cluster,
        prometheus(tmp_path / "prometheus", cluster) as server,
    ):
        await until(lambda: targets_down(server))
        async with traffic(cluster):
            await until(lambda: empty_ones(server))
            await until(lambda: sick_rules(server))
            await until(lambda: other_alerts_than(server, OF_DEAD_LETTERS))
            await asyncio.to_thread(cluster.slave.close)
            expected = OF_DEAD_LETTERS | OF_A_SLAVE_THAT_HAS_GONE
            await until(lambda: other_alerts_than(server, expected))
        found = f"{len([*panel_queries()])} queries of boards, {len([*rule_expressions()])} alerts"
        summary.append(f"Prometheus: {found}, all with series")


def promtool(*command: str) -> None:
    """Run Prometheus' own tool, which must find nothing wrong."""
    with skipping_without_tools():
        done = subprocess.run(
            [tool("promtool"), *command], capture_output=True, text=True, timeout=60
        )
    assert done.returncode == 0, done.stderr


def test_prometheus_own_tool_accepts_the_example_and_the_alerts() -> None:
    promtool("check", "rules", *map(str, MONITORING.glob("alerts-*.yml")))
    promtool("check", "config", str(MONITORING / "prometheus.yml"))


def test_alerts_fire_in_each_case_of_a_table() -> None:
    promtool("test", "rules", str(Path(__file__).parent / "alerts.test.yml"))
