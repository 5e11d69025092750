"""Boards and alerts of deploy/monitoring name metrics that exist and pages that are there.

tests/interop/test_prometheus.py evaluates them.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from tests.unit.metrics.metrics_page import (
    BROKER,
    EVERY_SERVER,
    NAMESRV,
    exporter_families,
    families_of,
)

from turbopump.documentation import page_url
from turbopump.metrics.family import Family

yaml = pytest.importorskip("yaml", reason="needs the extra turbopump[acl-import]")

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "deploy" / "monitoring"
RUNBOOK = ROOT / "docs" / "guide" / "alerts.md"
METRIC = re.compile(r"\b(?:rocketmq|turbopump|process)_\w+")


def alerts(file: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load(file.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def test_each_alert_has_a_section_of_the_runbook_and_each_section_an_alert() -> None:
    headings = re.findall(r"^## (.*)$", RUNBOOK.read_text("utf-8"), flags=re.MULTILINE)
    sections = {heading.lower().replace(" ", "-") for heading in headings}
    named = set()
    for file in MONITORING.glob("alerts-*.yml"):
        for rule in alerts(file):
            page, _, section = rule["annotations"]["runbook_url"].partition("#")
            assert page == page_url("docs/guide/alerts.md")
            assert rule["labels"]["severity"] in ("page", "ticket")
            named.add(section)
    assert named == sections


def test_prometheus_loads_every_file_of_alerts() -> None:
    config = yaml.safe_load((MONITORING / "prometheus.yml").read_text("utf-8"))
    assert sorted(config["rule_files"]) == sorted(one.name for one in MONITORING.glob("alerts-*"))


def expressions(kind: str) -> str:
    """All expressions of the board and the alerts of one kind of page, as one text."""
    board = json.loads((MONITORING / f"grafana-{kind}.json").read_text("utf-8"))
    rules = alerts(MONITORING / f"alerts-{kind}.yml")
    found = [target["expr"] for panel in board["panels"] for target in panel.get("targets", ())]
    return "\n".join([*found, *(rule["expr"] for rule in rules)])


@pytest.mark.parametrize(
    ("kind", "known", "least"),
    [
        ("exporter", exporter_families(), 40),
        ("brokers", families_of((*BROKER, *NAMESRV, *EVERY_SERVER)), 60),
    ],
)
def test_every_metric_of_a_board_and_its_alerts_exists(
    kind: str, known: list[Family], least: int
) -> None:
    named = {
        re.sub(r"_(?:bucket|count|sum)$", "", one) for one in METRIC.findall(expressions(kind))
    }
    exist = {re.sub(r"_(?:bucket|count|sum)$", "", family.name) for family in known}
    assert named - exist == set()
    assert len(named) > least


@pytest.mark.parametrize(
    "file", sorted(MONITORING.glob("grafana-*.json")), ids=lambda one: one.name
)
def test_panels_of_a_board_do_not_overlap_and_say_what_they_show(file: Path) -> None:
    seen: set[tuple[int, int]] = set()
    for panel in json.loads(file.read_text("utf-8"))["panels"]:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & seen, panel["title"]
        assert max(x for x, _ in cells) < 24
        seen |= cells
        assert panel["type"] == "row" or panel["description"].endswith(".")
