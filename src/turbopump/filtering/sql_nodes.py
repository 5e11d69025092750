"""Nodes of a compiled SQL92 filter, one class for each kind of condition.

A constructor refuses an invalid condition; evaluation handles values that cannot be compared. The
grammar is unknown here. Source: apache/rocketmq ``filter/…/expression/*``.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from turbopump.filtering.sql_tokens import NoVerdictError, SqlError, Tokens

# Comparison as in Java: a property is text, and is converted to the type of the other operand. A
# whole number within ±2³¹ is an ``int``, a larger one a ``Long``; each refuses text that its Java
# class would refuse. Source: apache/rocketmq ``ComparisonExpression.__compare``;
# ``java.lang.Integer.valueOf``, ``Double.valueOf``, ``Double.compareTo``.
Value = str | int | float | bool
"""Value of a property or a literal. A ``Long`` is an ``int`` too; check for bool first."""

INT_MIN: Final = -(2**31)
INT_MAX: Final = 2**31 - 1
LONG_MIN: Final = -(2**63)
LONG_MAX: Final = 2**63 - 1

DIGITS_MAX: Final = 100
"""Maximum number of digits that are converted to a number, more than any number of Java has."""
_WHOLE: Final = re.compile(r"[+-]?\d+")
# Possessive (``++``), so that 32 KiB of digits followed by a letter need only one pass.
_DECIMAL: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[fFdD]?)"
)
_HEX: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++[fFdD]?"
)
_TRIMMED: Final = "".join(map(chr, range(33)))
"""Characters that ``String.trim`` removes."""


class Long(int):
    """Whole number of Java's class Long, because it is too large for Java's int."""

    __slots__ = ()


def order(left: Value, right: Value) -> int:
    """Compare two values of an expression as Java does.

    Return a negative number, 0 or a positive number if ``left`` is less than, equal to or greater
    than ``right``. Return −1 for values that cannot be compared. Raise NoVerdictError if text
    cannot be converted to the type of the other value, or if ``left`` is a truth value and
    ``right`` is text.
    """
    if isinstance(left, str):
        if isinstance(right, str):
            return (left > right) - (left < right)
        if isinstance(right, bool):
            return truth_of(left) - right
        left = number_like(right, left)
    elif isinstance(right, str):
        if isinstance(left, bool):
            raise NoVerdictError(
                f"TRUE or FALSE on the left cannot be compared with the text {right!r}"
            )
        right = number_like(left, right)
    if isinstance(left, bool) and isinstance(right, bool):
        return left - right
    if isinstance(left, bool) or isinstance(right, bool):
        return -1
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    return order_of_doubles(float(left), float(right))


def order_of_doubles(left: float, right: float) -> int:
    """Compare two doubles as Java does.

    NaN equals itself and is greater than all other numbers. −0.0 is less than 0.0. The result is
    negative, 0 or positive.
    """
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return int(math.copysign(1, left) - math.copysign(1, right)) // 2
    return math.isnan(left) - math.isnan(right)


def truth_of(text: str) -> bool:
    return text.lower() == "true"


def number_like(model: float, text: str) -> float:
    """Convert text to a number of the same class as ``model``.

    Raise NoVerdictError if the text is not such a number.
    """
    if not isinstance(model, int):
        return double_of(text)
    low = INT_MIN
    high = INT_MAX
    if isinstance(model, Long):
        low = LONG_MIN
        high = LONG_MAX
    if not _WHOLE.fullmatch(text):
        raise NoVerdictError(f"{text[:40]!r} is not a whole number")
    value = signed_number(text)
    if value is None or not low <= value <= high:
        raise NoVerdictError(f"{text[:40]!r} is beyond {low} to {high}")
    return value


def signed_number(text: str) -> int | None:
    """Convert digits with an optional sign to a number, or return None for too many digits.

    The limit is ``DIGITS_MAX``. Python itself refuses more than 4,300 digits.
    """
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > DIGITS_MAX:
        return None
    value = int(digits or "0")
    if text.startswith("-"):
        return -value
    return value


def double_of(text: str) -> float:
    """Convert text to a floating-point number, as Java's ``Double.valueOf`` does.

    Raise NoVerdictError if the text is not a number.
    """
    trimmed = text.strip(_TRIMMED)
    if _DECIMAL.fullmatch(trimmed):
        if trimmed.endswith("Infinity"):
            return float(trimmed)
        return float(trimmed.rstrip("fFdD"))
    if _HEX.fullmatch(trimmed):
        try:
            return float.fromhex(trimmed.rstrip("fFdD"))
        except OverflowError:
            if trimmed.startswith("-"):
                return -math.inf
            return math.inf
    raise NoVerdictError(f"{text[:40]!r} is not a number")


class Properties(Protocol):
    """Source of the property values that a filter reads.

    ``get`` returns the text of a property, or None. A dict suffices.
    """

    def get(self, name: str, /) -> str | None: ...


Evaluate = Callable[[Properties], Value | None]
Filter = Callable[[Properties], bool]


class Node(NamedTuple):
    """Part of a compiled expression.

    - ``kind``: constant, property, truth (true, false or unknown), or negated.
    - ``evaluate``: function that returns the value of this part for the properties of a message.
    """

    kind: str
    evaluate: Evaluate
    value: Value | None = None
    """Value of a constant."""
    name: str = ""
    """Name of a property."""

    @property
    def is_truth(self) -> bool:
        return self.kind == "truth" or (
            self.kind == "constant" and (self.value is None or isinstance(self.value, bool))
        )


def constant(value: Value | None) -> Node:
    return Node("constant", lambda _properties: value, value)


def _decimal(text: str) -> int:
    value = signed_number(text.rstrip("lL"))
    if value is None or value > LONG_MAX:
        raise SqlError(
            f"{text[:40]} is greater than {LONG_MAX}; write it with a point to compare it as a "
            "floating-point number"
        )
    if value > INT_MAX:
        return Long(value)
    return value


def _float(text: str) -> float:
    value = double_of(text)
    if not 0 < value < float("inf"):
        raise SqlError(
            f"{text} is beyond the floating-point numbers that may be written, 4.9E-324 to "
            "1.8E308 (write 0, not 0.0)"
        )
    return value


WORDS: Final[Mapping[str, bool | None]] = {"TRUE": True, "FALSE": False, "NULL": None}
NUMBERS: Final[Mapping[str, Callable[[str], int | float]]] = {"decimal": _decimal, "float": _float}
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
    """Return a part of an expression as a condition.

    A property alone is unknown if it is absent. If it is present, it is false, because it is text
    and not a truth value. Raise SqlError for a number or a text.
    """
    if node.is_truth:
        return node
    if node.kind != "property":
        raise tokens.refused("a condition should stand here, not a number or a text")
    value = node.evaluate
    return Node("truth", lambda properties: None if value(properties) is None else False)


def joined(terms: Sequence[Evaluate], *, until: bool) -> Node:
    """Return a condition that joins other conditions with AND or OR.

    The conditions are evaluated from left to right until the value of one equals ``until``, which
    is then the result. Otherwise, the result is the opposite, or unknown if one of them is unknown.
    """

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
        if outcome is None:
            return None
        return not outcome

    return Node("truth", evaluate)


def minus(node: Node) -> Node:
    """Return a part of an expression that negates a number.

    Other values, properties included, become unknown.
    """
    value = node.evaluate

    def evaluate(properties: Properties) -> Value | None:
        outcome = value(properties)
        if outcome is None or isinstance(outcome, (str, bool)):
            return None
        if isinstance(outcome, Long):
            return Long(-outcome)
        return -outcome

    return Node("negated", evaluate)


def equal(left: Node, right: Node, tokens: Tokens) -> Node:
    for side in (left, right):
        if side.kind == "constant" and side.value is None:
            raise tokens.refused("nothing equals NULL; write IS NULL or IS NOT NULL")
    if left.kind == right.kind == "constant" and left.is_truth and not right.is_truth:
        raise tokens.refused(f"TRUE or FALSE cannot be compared with {right.value!r}")
    value = left.evaluate
    other = right.evaluate
    if left.kind == "property" and right.kind == "constant" and isinstance(right.value, str):
        name = left.name
        text = right.value

        def equal_text(properties: Properties) -> Value | None:  # the usual case
            held = properties.get(name)
            if held is None:
                return None
            return held == text

        return Node("truth", equal_text)

    def evaluate(properties: Properties) -> Value | None:
        one = value(properties)
        two = other(properties)
        if one is None:
            if two is None:
                return True
            return None
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
            raise tokens.refused(f"{sign} needs numbers or properties on both sides")
    value = left.evaluate
    other = right.evaluate
    fits = SIGNS[sign]
    if left.kind == "property" and right.kind == "constant" and isinstance(right.value, int):
        name = left.name
        number = right.value

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
            one = double_of(one)
            two = double_of(two)
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
            raise tokens.refused(
                f"BETWEEN {numbers[0]} AND {numbers[1]} holds nothing; exchange them"
            )
    if negated:
        first = ordered(node, "<", low, tokens).evaluate
        second = ordered(node, ">", high, tokens).evaluate
    else:
        first = ordered(node, ">=", low, tokens).evaluate
        second = ordered(node, "<=", high, tokens).evaluate
    decides = negated

    def evaluate(properties: Properties) -> Value | None:
        one = first(properties)
        if one is decides:
            return decides
        two = second(properties)
        if two is decides:
            return decides
        if one is None or two is None:
            return None
        return not decides

    return Node("truth", evaluate)


def within(node: Node, texts: list[str], negated: bool, tokens: Tokens) -> Node:
    if node.kind != "property":
        raise tokens.refused("only a property can be IN a list")
    name = node.name
    wanted = frozenset(texts)

    def evaluate(properties: Properties) -> Value | None:
        held = properties.get(name)
        if held is None:
            return None
        return (held in wanted) is not negated

    return Node("truth", evaluate)


def searched(node: Node, search: Callable[[str, str], bool], text: str, negated: bool) -> Node:
    """Return a condition that searches for a text in a property.

    The condition is false, also with NOT, if the property is absent or not text, or if the text is
    empty.
    """
    value = node.evaluate

    def evaluate(properties: Properties) -> Value | None:
        held = value(properties)
        return bool(text) and isinstance(held, str) and search(held, text) is not negated

    return Node("truth", evaluate)
