"""SQL92 filters judge as Apache's own classes did (recorded by tests/golden/recorder), and say what
is wrong with a bad one."""

from __future__ import annotations

import json
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.metered_loop import TURN_MAX_S, cpu_seconds_of

from turbopump.filtering.sql92 import (
    DEPTH_MAX,
    NoVerdictError,
    SqlError,
    compile_judge,
    compile_sql,
)
from turbopump.filtering.sql_tokens import LENGTH_MAX

RECORDED: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "golden/data/5.3.3/filters.bin").read_bytes()
)
WORDS = {True: "true", False: "false", None: "null"}


def outcomes(expression: str) -> str | list[str]:
    try:
        judge = compile_judge(expression)
    except SqlError:
        return "refused"
    found = []
    for message in RECORDED["messages"]:
        try:
            found.append(WORDS[judge(message)])  # type: ignore[index]
        except NoVerdictError:
            found.append("error")
    return found


def test_every_recorded_filter_has_apaches_outcome_for_every_message() -> None:
    filters = RECORDED["filters"]
    assert len(filters) >= 700
    different = [
        one["expression"] for one in filters if outcomes(one["expression"]) != one["outcomes"]
    ]
    assert different == []


def test_only_true_matches() -> None:
    matches = compile_sql("price > 100")
    assert matches({"price": "101"})
    assert not matches({"price": "99"})
    assert not matches({})  # unknown
    assert not matches({"price": "dear"})  # cannot be judged


@pytest.mark.parametrize(
    ("expression", "says"),
    [
        (
            "a >",
            "at character 4: a property, a literal or a bracket should stand here, not the end",
        ),
        (
            "a = 'x",
            'at character 5: "\'" begins no word of a SQL92 filter; a string begins here and '
            "does not end: close it with '",
        ),
        ("a ? 1", "at character 3: '?' begins no word of a SQL92 filter"),
        ("a = NULL", "before character 9: nothing equals NULL; write IS NULL or IS NOT NULL"),
        ("a IN (1)", "at character 7: a text in single quotes should stand here, not '1'"),
        ("5", "before character 2: a condition should stand here, not a number or a text"),
        ("a > 'x'", "before character 8: > needs numbers or properties on both sides"),
        ("a BETWEEN 5 AND 1", "before character 18: BETWEEN 5 AND 1 holds nothing; exchange them"),
    ],
)
def test_a_bad_filter_is_told_where_and_what(expression: str, says: str) -> None:
    with pytest.raises(SqlError) as caught:
        compile_sql(expression)
    assert str(caught.value) == says


def test_brackets_have_a_depth_that_python_can_bear() -> None:
    assert compile_sql("(" * DEPTH_MAX + "a = '1'" + ")" * DEPTH_MAX)({"a": "1"})
    for deep in ("(" * 100_000, "NOT " * 100_000, "-" * 100_001 + "1"):
        with pytest.raises(SqlError):
            compile_sql(deep + "a = '1'")


def test_long_chains_are_no_deeper_than_short_ones() -> None:
    many = " OR ".join(f"a = '{number}'" for number in range(1000))
    assert compile_sql(many)({"a": "999"})
    assert not compile_sql(many)({"a": "1000"})


def test_a_list_of_thousands_is_taken() -> None:
    many = ", ".join(f"'it''s {number}'" for number in range(8000))
    assert compile_sql(f"a IN ({many}) AND b = 'x'")({"a": "it's 7999", "b": "x"})
    assert not compile_sql(f"a IN ({many} /* more */ , 'y')")({"a": "it's 8000"})


def test_a_filter_has_a_length_and_a_number_of_words() -> None:
    with pytest.raises(SqlError, match="the filter has 131073 characters, the maximum is 131072"):
        compile_sql("a = 1" + " " * (LENGTH_MAX - 4))
    with pytest.raises(
        SqlError, match="more than 4000 words; use a list for the values of one property"
    ):
        compile_sql(" OR ".join(["a = 1"] * 1001))


def read(expression: str) -> None:
    with suppress(SqlError):
        compile_judge(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "a IN ('" + "', '" * 32_000 + "')",
        "a IN (" + "'" * 130_000,
        " OR ".join("a = 1" for _ in range(1000)),
        " OR ".join("(" * 60 + "a=1" + ")" * 60 for _ in range(31)),
        " OR ".join("NOT " * 59 + "a" for _ in range(64)),
        " OR ".join("-" * 59 + "1 = a" for _ in range(1000)),
        " OR ".join("-" * 59 + "1 = a" for _ in range(1000)) + "\n",
        "/**/" * 32_000 + "a = 1",
        "/*" + "*" * 131_000,
    ],
    ids=["list", "quotes", "chain", "brackets", "not", "signs", "comment", "comments", "stars"],
)
def test_whatever_is_written_is_read_within_a_turn_of_the_loop(expression: str) -> None:
    assert cpu_seconds_of(partial(read, expression)) <= TURN_MAX_S


@given(
    st.text(alphabet="ab1.5'()=<>,- \n\tNOTANDORINULL/*", max_size=40),
    st.dictionaries(st.sampled_from("ab"), st.text(max_size=4)),
)
def test_whatever_is_written_is_a_filter_or_an_sql_error(
    expression: str, message: dict[str, str]
) -> None:
    try:
        matches = compile_sql(expression)
    except SqlError:
        return
    assert matches(message) in (True, False)


@pytest.mark.parametrize(
    ("expression", "price", "matches"),
    [
        ("price > 5", "1" * 5000, False),  # beyond an int: cannot be judged
        ("price > 5000000000", "1" * 5000, False),
        ("price > 5", "0" * 5000 + "7", True),
        ("price < 5", "-" + "0" * 5000 + "7", True),
        ("price > 5.5", "1" * 5000, True),  # infinite
        ("price > 5.5", "1" * 30_000 + "x", False),
        ("price > 5", "0x" + "f" * 30_000, False),
    ],
)
def test_a_property_of_any_length_is_judged(expression: str, price: str, matches: bool) -> None:
    assert compile_sql(expression)({"price": price}) is matches


def test_a_literal_of_any_length_is_refused_in_a_short_sentence() -> None:
    with pytest.raises(SqlError, match="is greater than 9223372036854775807") as caught:
        compile_sql("price > " + "1" * 5000)
    assert len(str(caught.value)) < 200


def test_conditions_of_conditions_have_a_depth_that_python_can_bear() -> None:
    assert not compile_sql("a IS NULL" + " IS NULL" * DEPTH_MAX)({"a": "1"})
    for deep in (
        "a IS NULL" + " IS NULL" * 1500,
        "a" + " = b" * 1500,
        "a" + " CONTAINS 'x'" * 1500,
    ):
        with pytest.raises(SqlError, match="join conditions with AND and OR"):
            compile_sql(deep)


def test_a_filter_is_compiled_once() -> None:
    assert compile_sql("price > 41") is compile_sql("price > 41")
