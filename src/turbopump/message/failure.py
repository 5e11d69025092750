"""Why a consumer could not handle a message, as a property of the copy that comes again or becomes
a dead letter.

::

    TURBOPUMP_FAILURE = attempt SP text           "3 ValueError: no stock": the attempt that failed, counted from 1, and one line

One rule: it says nothing about another attempt: whoever reads it compares the number. Our own;
Apache's clients and brokers carry it along like any property.
"""

from __future__ import annotations

from collections.abc import Mapping
from traceback import format_exception_only
from typing import Final

from turbopump.message.properties import PROPERTIES_SIZE_MAX, encode_properties

CONSUME_FAILURE: Final = "TURBOPUMP_FAILURE"
TEXT_MAX: Final = 300
"""Characters of a text that are kept."""


def failure_text(cause: BaseException | str) -> str:
    """One line without control characters: ``ValueError: no stock``, or what was said."""
    text = cause if isinstance(cause, str) else "".join(format_exception_only(cause))
    printable = "".join(
        character if character.isprintable() else " " for character in text[: 4 * TEXT_MAX]
    )
    line = " ".join(printable.split())
    return line if len(line) <= TEXT_MAX else line[: TEXT_MAX - 1] + "…"


def with_failure(
    properties: Mapping[str, str], failure: str | None, attempt: int
) -> dict[str, str]:
    """The properties with the failure of this attempt, and of no other; without any if there is
    none or it has no room."""
    plain = {name: value for name, value in properties.items() if name != CONSUME_FAILURE}
    if not failure:
        return plain
    told = {**plain, CONSUME_FAILURE: f"{attempt} {failure_text(failure)}"}
    return told if len(encode_properties(told).encode()) <= PROPERTIES_SIZE_MAX // 2 else plain


def failure_of(properties: Mapping[str, str], attempt: int) -> str | None:
    """What the properties say about the failure of this attempt."""
    number, _, text = properties.get(CONSUME_FAILURE, "").partition(" ")
    return text if number == str(attempt) and text else None
