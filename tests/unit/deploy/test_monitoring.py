"""Boards and alerts of deploy/monitoring name metrics that exist and pages that are there.

tests/interop/test_prometheus.py evaluates them.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from turbopump.admin.exporter.cluster_metrics import FAMILIES
from turbopump.documentation import page_url

yaml = pytest.importorskip("yaml", reason="needs the extra turbopump[acl-import]")

ROOT = Path(__file__).parents[3]
MONITORING = ROOT / "deploy" / "monitoring"
RUNBOOK = ROOT / "docs" / "guide" / "alerts.md"
METRIC = re.compile(r"\b(?:rocketmq|turbopump)_\w+")


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


def test_the_names_of_the_exporter_on_its_board_and_in_its_alerts_exist() -> None:
    known = {family.name for family in FAMILIES}
    text = (MONITORING / "alerts-exporter.yml").read_text("utf-8")
    for panel in json.loads((MONITORING / "grafana-exporter.json").read_text("utf-8"))["panels"]:
        text += " ".join(target["expr"] for target in panel.get("targets", ()))
    named = {name for name in METRIC.findall(text) if name.startswith("rocketmq_")}
    assert named - known == set()
    assert len(named) > 40


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
