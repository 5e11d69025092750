"""The workflows run what this repository has, and build the wheels that the table lists."""

from pathlib import Path
from typing import Any

import pytest
from release.pythons import JARS
from release.targets import HERE, WORKFLOW_ONLY
from release.workflow import expected_identifiers
from tests.every_python import VERSIONS

ROOT = Path(__file__).parents[3]


def workflow(name: str) -> Any:
    yaml = pytest.importorskip("yaml")
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text("utf-8"))


def test_the_table_lists_the_wheels_that_the_workflow_builds() -> None:
    listed = {
        f"cp{major}{minor}-{system.split('_')[0]}_{system.split('_', 3)[3]}"
        for system in (*HERE, *WORKFLOW_ONLY)
        for major, minor in VERSIONS
    }
    assert listed == expected_identifiers("linux") | expected_identifiers("macos")


def test_a_module_has_the_suffix_of_its_system_and_interpreter() -> None:
    assert {name: target.suffix((3, 14)) for name, target in HERE.items()} == {
        "manylinux_2_17_x86_64": ".cpython-314-x86_64-linux-gnu.so",
        "manylinux_2_17_aarch64": ".cpython-314-aarch64-linux-gnu.so",
        "musllinux_1_2_x86_64": ".cpython-314-x86_64-linux-musl.so",
        "musllinux_1_2_aarch64": ".cpython-314-aarch64-linux-musl.so",
    }


def test_a_jar_has_the_version_that_is_asked_for() -> None:
    for (major, minor), artifact in JARS.items():
        assert artifact.split(":")[2].startswith(f"{major}.{minor}.")


def test_the_test_workflow_runs_parts_that_make_has() -> None:
    job = workflow("test.yml")["jobs"]["part"]
    makefile = (ROOT / "Makefile").read_text("utf-8")
    parts = job["strategy"]["matrix"]["part"]
    assert [part for part in parts if f"\n{part}:" not in makefile] == []
    assert f"set -- {' '.join(parts)}" in (ROOT / ".ci" / "run").read_text("utf-8")


def test_only_a_tag_publishes_and_only_when_every_file_was_built() -> None:
    jobs = workflow("release.yml")["jobs"]
    publishing = {name for name, job in jobs.items() if "id-token" in str(job["permissions"])}
    assert publishing == {"publish"}
    assert jobs["publish"]["if"] == "github.ref_type == 'tag'"
    assert set(jobs["publish"]["needs"]) == set(jobs) - publishing
