"""Comparing as Java does: a property is text, and becomes what it is compared with. A whole number
within ±2³¹ is an ``int``, a larger one a ``Long``; both refuse text that the other's Java class
would refuse.

Source: apache/rocketmq ``ComparisonExpression.__compare``; ``java.lang.Integer.valueOf``,
``Double.valueOf``, ``Double.compareTo``.
"""

from __future__ import annotations

import math
import re
from typing import Final

from turbopump.filtering.sql_error import NoVerdictError

Value = str | int | float | bool
"""Of a property or a literal; ``Long`` is an ``int`` too, and a bool is looked at first."""

INT_MIN, INT_MAX = -(2**31), 2**31 - 1
LONG_MIN, LONG_MAX = -(2**63), 2**63 - 1

DIGITS_MAX: Final = 100
"""More than any of Java's numbers has, and few enough to be made a number of."""
_WHOLE: Final = re.compile(r"[+-]?\d+")
# possessive (``++``): a property of 32 KiB of digits with a letter behind them is judged in one
# pass
_DECIMAL: Final = re.compile(
    r"[+-]?(?:NaN|Infinity|(?:[0-9]++(?:\.[0-9]*+)?|\.[0-9]++)(?:[eE][+-]?[0-9]++)?[fFdD]?)"
)
_HEX: Final = re.compile(
    r"[+-]?0[xX](?:[0-9a-fA-F]++(?:\.[0-9a-fA-F]*+)?|\.[0-9a-fA-F]++)[pP][+-]?[0-9]++[fFdD]?"
)
_TRIMMED: Final = "".join(map(chr, range(33)))
"""What ``String.trim`` takes off."""


class Long(int):
    """A whole number of Java's class Long."""

    __slots__ = ()


def order(left: Value, right: Value) -> int:
    """Below 0, 0 or above, as ``left`` is less than, equal to or greater than ``right``; -1 also
    for what cannot be compared.

    Raises NoVerdictError if text is not the number, or a truth not the text, that it is compared
    with.
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
    if isinstance(left, bool) or isinstance(right, bool):
        return left - right if isinstance(left, bool) and isinstance(right, bool) else -1
    if isinstance(left, int) and isinstance(right, int):
        return (left > right) - (left < right)
    return order_of_doubles(float(left), float(right))


def order_of_doubles(left: float, right: float) -> int:
    """NaN equals itself and is greater than all; -0.0 is less than 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return int(math.copysign(1, left) > math.copysign(1, right)) - int(
            math.copysign(1, left) < math.copysign(1, right)
        )
    return math.isnan(left) - math.isnan(right)


def truth_of(text: str) -> bool:
    return text.lower() == "true"


def number_like(model: float, text: str) -> float:
    """``text`` as a number of the model's class. Raises NoVerdictError."""
    if not isinstance(model, int):
        return double_of(text)
    low, high = (LONG_MIN, LONG_MAX) if isinstance(model, Long) else (INT_MIN, INT_MAX)
    if not _WHOLE.fullmatch(text):
        raise NoVerdictError(f"{text[:40]!r} is no whole number")
    value = whole_number(text)
    if value is None or not low <= value <= high:
        raise NoVerdictError(f"{text[:40]!r} is beyond {low} to {high}")
    return value


def whole_number(text: str) -> int | None:
    """Digits, a sign before them, as a number; None if there are too many for one. (Python itself
    makes none of more than 4,300 digits.)"""
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > DIGITS_MAX:
        return None
    return -int(digits or "0") if text.startswith("-") else int(digits or "0")


def double_of(text: str) -> float:
    """``Double.valueOf``. Raises NoVerdictError."""
    trimmed = text.strip(_TRIMMED)
    if _DECIMAL.fullmatch(trimmed):
        return float(trimmed.rstrip("fFdD") if not trimmed.endswith("Infinity") else trimmed)
    if _HEX.fullmatch(trimmed):
        try:
            return float.fromhex(trimmed.rstrip("fFdD"))
        except OverflowError:
            return math.copysign(math.inf, -1 if trimmed[0] == "-" else 1)
    raise NoVerdictError(f"{text[:40]!r} is no number")
