"""Which tags a subscription names, and which a message may have."""

import pytest

from turbopump import Message, Sql, Tags
from turbopump.client.consumer.subscription import ALL, Wanted, subscription_to
from turbopump.errors import ConfigError, MessageError
from turbopump.filtering.tag import parse_tags


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        ("a > 2", r"did you mean the filter Sql\('a > 2'\)\?"),
        ("price > 1 AND region = 'eu'", r"did you mean the filter Sql\("),
        ("A,B", r"did you mean 'A \|\| B'\?"),
        ("A, B || C", r"did you mean 'A \|\| B \|\| C'\?"),
        ("A|B", r"did you mean 'A \|\| B'\?"),
        ("A OR B", r"did you mean 'A \|\| B'\?"),
        ("A;B", r"did you mean 'A \|\| B'\?"),
        ("new book", "'new book' is not a usual tag"),
    ],
)
def test_a_subscription_that_would_match_nothing_is_refused(expression: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"is not a list of tags: {meant}.*takes it literally"):
        subscription_to("orders", expression, 1)


@pytest.mark.parametrize(
    ("wanted", "expression", "tags"),
    [
        ("*", "*", ()),
        ("", "*", ()),
        ("new || changed", "new || changed", ("new", "changed")),
        ("order-created:v2/eu", "order-created:v2/eu", ("order-created:v2/eu",)),
        ("订单", "订单", ("订单",)),
        (Tags(["A,B"]), "A,B", ("A,B",)),
        (Tags(["a > 2", "new book", "a > 2"]), "a > 2 || new book", ("a > 2", "new book")),
        (Tags("OR"), "OR", ("OR",)),
    ],
)
def test_what_is_subscribed_to_is_what_a_broker_reads(
    wanted: Wanted, expression: str, tags: tuple[str, ...]
) -> None:
    subscription = subscription_to("orders", wanted, 1)
    assert (subscription.expression, subscription.tags) == (expression, tags)
    assert parse_tags(subscription.expression) == frozenset(tags)
    assert subscription_to("orders", subscription.wanted, 1) == subscription


def test_a_filter_is_wanted_as_it_was_given() -> None:
    assert subscription_to("orders", Sql("a > 2"), 1).wanted == Sql("a > 2")
    assert subscription_to("orders", ALL, 1).wanted == ALL


NOT_NAMED = [
    ("a || b", "separates tags"),
    ("||", "separates tags"),
    ("*", "means every message"),
    (" new", "has blanks at its ends"),
    ("new\t", "has blanks at its ends"),
]


@pytest.mark.parametrize(("tag", "why"), NOT_NAMED)
def test_a_tag_that_no_subscription_can_name_is_not_sent(tag: str, why: str) -> None:
    with pytest.raises(MessageError, match=f"{why}.*no consumer could ask for it"):
        Message("orders", b"", tags=tag)


@pytest.mark.parametrize(("tag", "why"), [*NOT_NAMED, ("", "is empty")])
def test_nor_is_it_among_literal_tags(tag: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Tags(["new", tag])


def test_literal_tags_name_one_at_least() -> None:
    with pytest.raises(ConfigError, match="names no tag"):
        Tags([])


@pytest.mark.parametrize("tag", ["A,B", "a > 2", "new book", "|", "订单", "%"])
def test_other_odd_tags_are_sent(tag: str) -> None:
    assert Message("orders", b"", tags=tag).tags == tag
