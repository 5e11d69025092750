"""The table of proofs tells how far this machine went with each file of a release."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from release.proofs import Proof, faults, load, rows, save, table
from release.proving import contents_fault
from release.targets import HERE, WORKFLOW_ONLY

PAGE = Path(__file__).parents[3] / "docs" / "guide" / "install.md"
TESTED = Proof("linux", "3.11", "a.whl", "0a", True, "compiled", "9 passed")


def test_a_system_is_one_row_with_all_its_versions() -> None:
    assert rows([TESTED, replace(TESTED, python="3.12"), Proof("mac", "3.11")]) == [
        ("`linux`", "3.11, 3.12", "here, twice with the same bytes", "here: compiled", "here"),
        ("`mac`", "3.11", *["by the workflow only"] * 3),
    ]


def test_a_row_counts_the_versions_that_were_proved() -> None:
    built = replace(TESTED, python="3.12", functions="", tests="")
    assert rows([TESTED, built, Proof("linux", "3.13")]) == [
        (
            "`linux`",
            "3.11, 3.12, 3.13",
            "here, twice with the same bytes (2 of 3)",
            "here: compiled (1 of 3)",
            "here (1 of 3)",
        )
    ]


def test_a_failed_proof_is_a_fault_and_a_missing_interpreter_is_none() -> None:
    failed = Proof("linux", "3.12", fault="no such header")
    differs = replace(TESTED, is_same=False)
    assert faults([TESTED, Proof("mac", "3.11"), failed, differs]) == [
        "linux for CPython 3.12: no such header",
        "a.whl: two builds gave different bytes",
    ]
    assert rows([failed, TESTED]) == [("`linux`", "3.12, 3.11", *["FAILED"] * 3)]


def test_proofs_are_kept_for_the_release_check(tmp_path: Path) -> None:
    save([TESTED, Proof("mac", "3.11")], tmp_path / "out" / "wheels.json")
    assert load(tmp_path / "out" / "wheels.json") == [TESTED, Proof("mac", "3.11")]


def test_the_page_has_a_row_for_each_system() -> None:
    found = re.findall(r"^\| `(\w+)` \| 3\.11", PAGE.read_text("utf-8"), re.MULTILINE)
    assert found == ["sdist", "any", *HERE, *WORKFLOW_ONLY]


def test_the_table_is_markdown() -> None:
    assert table([TESTED]).splitlines() == [
        "| file | CPython | built | installed | tests run |",
        "|---|---|---|---|---|",
        "| `linux` | 3.11 | here, twice with the same bytes | here: compiled | here |",
    ]


@pytest.mark.parametrize(
    ("names", "is_compiled", "fault"),
    [
        (["turbopump/a.py", "turbopump/_hot.so", "turbopump-0.1.0.dist-info/RECORD"], True, None),
        (["turbopump/a.py", "pyspark_rocketmq/__init__.py"], False, None),
        (["turbopump/a.py"], True, "it has the compiled modules []"),
        (["turbopump/_hot.so"], False, "it has the compiled modules ['turbopump/_hot.so']"),
        (["turbopump/hot/_hot.pyx"], False, "turbopump/hot/_hot.pyx is not for users"),
        (["tests/conftest.py"], False, "tests/conftest.py is not for users"),
        (
            ["turbopump-0.1.0.data/data/a.md"],
            False,
            "turbopump-0.1.0.data/data/a.md is not for users",
        ),
    ],
)
def test_a_wheel_has_what_users_need_and_nothing_else(
    names: list[str], is_compiled: bool, fault: str | None
) -> None:
    assert contents_fault(names, is_compiled) == fault
