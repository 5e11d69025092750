"""The parts of a SQL92 filter: for each kind of condition, what judges a message by it.

The rule: what cannot be meant is refused when a part is made, what cannot be judged when a message
is. It must not know the grammar. Source: apache/rocketmq ``filter/…/expression/*``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from turbopump.filtering.sql_error import SqlError
from turbopump.filtering.sql_tokens import Tokens
from turbopump.filtering.sql_values import (
    INT_MAX,
    LONG_MAX,
    Long,
    Value,
    double_of,
    order,
    whole_number,
)


class Properties(Protocol):
    """What an expression asks for: the text of a property, None if it is absent. A dict will do."""

    def get(self, name: str, /) -> str | None: ...


Evaluate = Callable[[Properties], Value | None]
Filter = Callable[[Properties], bool]


class Node(NamedTuple):
    """A part of an expression. ``kind``: constant, property, truth (true, false or unknown), or
    negated."""

    kind: str
    evaluate: Evaluate
    value: Value | None = None
    """Of a constant."""
    name: str = ""
    """Of a property."""

    @property
    def is_truth(self) -> bool:
        return self.kind == "truth" or (
            self.kind == "constant" and (self.value is None or isinstance(self.value, bool))
        )


def constant(value: Value | None) -> Node:
    return Node("constant", lambda _properties: value, value)


def _decimal(text: str) -> int:
    value = whole_number(text.rstrip("lL"))
    if value is None or value > LONG_MAX:
        raise SqlError(
            f"{text[:40]} is greater than {LONG_MAX}; write it with a point to compare it as a "
            "floating-point number"
        )
    return value if value <= INT_MAX else Long(value)


def _float(text: str) -> float:
    value = double_of(text)
    if not 0 < value < float("inf"):
        raise SqlError(
            f"{text} is beyond the floating-point numbers that may be written, 4.9E-324 to "
            "1.8E308 (write 0, not 0.0)"
        )
    return value


LITERALS: Final[Mapping[str, Callable[[str], Value | None]]] = {
    "decimal": _decimal,
    "float": _float,
    "TRUE": lambda _text: True,
    "FALSE": lambda _text: False,
    "NULL": lambda _text: None,
}
SIGNS: Final[Mapping[str, Callable[[int, int], bool]]] = {
    ">": operator.gt,
    ">=": operator.ge,
    "<": operator.lt,
    "<=": operator.le,
}
SEARCHES: Final[Mapping[str, Callable[[str, str], bool]]] = {
    "CONTAINS": operator.contains,
    "STARTSWITH": str.startswith,
    "ENDSWITH": str.endswith,
}


def as_truth(node: Node, tokens: Tokens) -> Node:
    """The node as a condition: a property alone is unknown where it is absent, else false, since it
    is text and no truth."""
    if node.is_truth:
        return node
    if node.kind != "property":
        raise SqlError(
            f"before character {tokens.next.at + 1}: a condition should stand here, "
            "not a number or a text"
        )
    value = node.evaluate
    return Node("truth", lambda properties: None if value(properties) is None else False)


def joined(terms: Sequence[Evaluate], *, until: bool) -> Node:
    """Terms from left to right until one decides; an unknown one leaves it open."""

    def evaluate(properties: Properties) -> Value | None:
        outcome: bool | None = not until
        for term in terms:
            value = term(properties)
            if value is until:
                return until
            if value is None:
                outcome = None
        return outcome

    return Node("truth", evaluate)


def inverse(node: Node) -> Node:
    value = node.evaluate

    def evaluate(properties: Properties) -> Value | None:
        outcome = value(properties)
        return None if outcome is None else not outcome

    return Node("truth", evaluate)


def minus(node: Node) -> Node:
    """Numbers only; anything else becomes unknown, a property too."""
    value = node.evaluate

    def evaluate(properties: Properties) -> Value | None:
        outcome = value(properties)
        if outcome is None or isinstance(outcome, (str, bool)):
            return None
        return Long(-outcome) if isinstance(outcome, Long) else -outcome

    return Node("negated", evaluate)


def equal(left: Node, right: Node, tokens: Tokens) -> Node:
    for side in (left, right):
        if side.kind == "constant" and side.value is None:
            raise SqlError(
                f"before character {tokens.next.at + 1}: nothing equals NULL; write "
                "IS NULL or IS NOT NULL"
            )
    if left.kind == right.kind == "constant" and left.is_truth and not right.is_truth:
        raise SqlError(
            f"before character {tokens.next.at + 1}: TRUE or FALSE cannot be compared "
            f"with {right.value!r}"
        )
    value, other = left.evaluate, right.evaluate
    if left.kind == "property" and right.kind == "constant" and isinstance(right.value, str):
        name, text = left.name, right.value

        def equal_text(properties: Properties) -> Value | None:  # the usual case
            held = properties.get(name)
            return None if held is None else held == text

        return Node("truth", equal_text)

    def evaluate(properties: Properties) -> Value | None:
        one, two = value(properties), other(properties)
        if one is None:
            return True if two is None else None
        return two is not None and order(one, two) == 0

    return Node("truth", evaluate)


def is_null(node: Node, negated: bool) -> Node:
    value = node.evaluate
    return Node("truth", lambda properties: (value(properties) is None) is not negated)


def ordered(left: Node, sign: str, right: Node, tokens: Tokens) -> Node:
    for side in (left, right):
        if side.kind == "truth" or (
            side.kind == "constant" and (isinstance(side.value, (str, bool)) or side.value is None)
        ):
            raise SqlError(
                f"before character {tokens.next.at + 1}: only numbers and properties "
                f"can stand beside {sign}"
            )
    value, other, fits = left.evaluate, right.evaluate, SIGNS[sign]
    if left.kind == "property" and right.kind == "constant" and isinstance(right.value, int):
        name, number = left.name, right.value

        def ordered_number(properties: Properties) -> Value | None:  # the usual case
            text = properties.get(name)
            if text is None:
                return None
            if len(text) < 10 and text.isdecimal():  # of either class
                return fits(int(text), number)
            return fits(order(text, number), 0)

        return Node("truth", ordered_number)

    def evaluate(properties: Properties) -> Value | None:
        one = value(properties)
        if one is None:
            return None
        two = other(properties)
        if two is None:
            return None
        if isinstance(one, str) and isinstance(two, str):
            one, two = double_of(one), double_of(two)
        return fits(order(one, two), 0)

    return Node("truth", evaluate)


def between(node: Node, low: Node, high: Node, negated: bool, tokens: Tokens) -> Node:
    if not negated and low.kind == high.kind == "constant":
        numbers = [
            side.value
            for side in (low, high)
            if isinstance(side.value, (int, float)) and not isinstance(side.value, bool)
        ]
        if len(numbers) == 2 and order(numbers[1], numbers[0]) < 0:
            raise SqlError(
                f"before character {tokens.next.at + 1}: BETWEEN {numbers[0]} AND {numbers[1]} "
                "holds nothing; exchange them"
            )
    below, above = ("<", ">") if negated else (">=", "<=")
    first, second = (
        ordered(node, below, low, tokens).evaluate,
        ordered(node, above, high, tokens).evaluate,
    )
    decides = negated

    def evaluate(properties: Properties) -> Value | None:
        one = first(properties)
        if one is decides:
            return decides
        two = second(properties)
        if two is decides:
            return decides
        return None if one is None or two is None else not decides

    return Node("truth", evaluate)


def within(node: Node, texts: list[str], negated: bool, tokens: Tokens) -> Node:
    if node.kind != "property":
        raise SqlError(f"before character {tokens.next.at + 1}: only a property can be IN a list")
    name, wanted = node.name, frozenset(texts)

    def evaluate(properties: Properties) -> Value | None:
        held = properties.get(name)
        return None if held is None else (held in wanted) is not negated

    return Node("truth", evaluate)


def searched(node: Node, search: Callable[[str, str], bool], text: str, negated: bool) -> Node:
    """False for what is absent or no text, and for an empty search, with NOT too."""
    value = node.evaluate

    def evaluate(properties: Properties) -> Value | None:
        held = value(properties)
        return bool(text) and isinstance(held, str) and search(held, text) is not negated

    return Node("truth", evaluate)
