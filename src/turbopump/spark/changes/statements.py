"""Statements (DDL) among the changes of a database.

A statement that only adds columns, indexes or tables loses nothing if it is skipped: columns come
with the rows. All others are for a person to look at. SQL is recognised by its first words only.
"""

from __future__ import annotations

import re
from typing import Final

from turbopump.spark.changes.change import SKIPPED, NoChange

_COMMENT: Final = re.compile(r"/\*.*?\*/|--[^\n]*\n", re.DOTALL)
_HARMLESS: Final = re.compile(
    r"(create\s+(or\s+replace\s+)?(temporary\s+)?(table|database|schema|((unique|fulltext|spatial)"
    r"\s+)?index|view|user|trigger|procedure|function)|drop\s+(index|view|user|trigger|procedure|"
    r"function)|grant|revoke|flush|analyze|optimize|savepoint|begin|commit|rollback|set)\b",
    re.IGNORECASE,
)
_ALTER: Final = re.compile(
    r"alter\s+table\s+(?:`[^`]*`|[^\s`]+)+\s+(.*)", re.IGNORECASE | re.DOTALL
)
_ADDS: Final = re.compile(r"\s*add\s+(?!primary\b|partition\b)", re.IGNORECASE)
_TRUNCATE: Final = re.compile(r"truncate\b", re.IGNORECASE)


def statement(sql: str, database: str, table: str, *, truncates: bool = False) -> NoChange:
    """Return the result of a message with a statement.

    ``truncates`` is true if the format says that the statement deletes all rows of the table.
    """
    text = _COMMENT.sub(" ", sql).strip()
    if truncates or _TRUNCATE.match(text):
        return NoChange("statement", f"truncate {database}.{table}: {sql}")
    altered = _ALTER.match(text)
    if altered:
        harmless = all(_ADDS.match(clause) for clause in _clauses(altered[1]))
    else:
        harmless = _HARMLESS.match(text) is not None
    return SKIPPED if harmless else NoChange("statement", f"ddl {database}.{table}: {sql}")


def _clauses(text: str) -> list[str]:
    """Split a text at the commas that are outside of parentheses and quotes."""
    found = [""]
    depth, quote = 0, ""
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"`":
            quote = char
        elif char in "()":
            depth += 1 if char == "(" else -1
        elif char == "," and not depth:
            found.append("")
            continue
        found[-1] += char
    return found
