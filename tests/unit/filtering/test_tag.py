"""Tag expressions and the judge of codes that they make."""

import pytest

from turbopump.filtering.tag import code_filter, parse_tags, tag_codes
from turbopump.message.java import java_hash


@pytest.mark.parametrize(
    ("expression", "tags"),
    [
        (None, set()),
        ("", set()),
        ("  ", set()),
        ("*", set()),
        (" * ", set()),
        ("A", {"A"}),
        ("A || B", {"A", "B"}),
        ("A||B|| ", {"A", "B"}),
    ],
)
def test_an_expression_names_tags_or_everything(expression: str | None, tags: set[str]) -> None:
    assert parse_tags(expression) == tags


@pytest.mark.parametrize("expression", ["||", " || || "])
def test_an_expression_that_names_nothing_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="names no tag"):
        parse_tags(expression)


def test_codes_are_judged_by_membership_and_everything_needs_no_judge() -> None:
    accept = code_filter(tag_codes({"A", "B"}))
    assert accept is not None
    assert accept(java_hash("A"))
    assert not accept(java_hash("C"))
    assert not accept(0)
    assert code_filter(frozenset()) is None
