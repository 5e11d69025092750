"""Tables of docs/reference/client-settings.md: `python -m tests.unit.client.settings_page` writes
them anew.

One rule: a row says what its field says in the settings class: name, default, unit, text. The page
chooses the order of rows and the words around them.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Collection, Mapping
from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path
from textwrap import dedent
from typing import Any, Final

from turbopump.client.consumer.settings import (
    LitePullConsumerSettings,
    PushConsumerSettings,
    SimpleConsumerSettings,
)
from turbopump.client.idempotence.consumer import IdempotenceSettings
from turbopump.client.sending.accumulator import AutoBatch
from turbopump.client.sending.back_pressure import BackPressure
from turbopump.client.sending.queue_chooser import LatencyFaults
from turbopump.client.sending.settings import ProducerSettings, TransactionProducerSettings
from turbopump.client.settings import ClientSettings, GroupSettings

PAGE: Final = Path(__file__).parents[3] / "docs" / "reference" / "client-settings.md"
EVERY_CLIENT: Final = {*ClientSettings.keys(), "namespace"}
SECTIONS: Final[Mapping[str, tuple[type, Collection[str]]]] = {
    "Every client": (GroupSettings, {"group"}),
    "Producer": (ProducerSettings, EVERY_CLIENT),
    "AutoBatch": (AutoBatch, ()),
    "BackPressure": (BackPressure, ()),
    "LatencyFaults": (LatencyFaults, ()),
    "TransactionProducer": (
        TransactionProducerSettings,
        {*ProducerSettings.keys()} - {"group", "topics"},
    ),
    "PushConsumer": (PushConsumerSettings, EVERY_CLIENT),
    "LitePullConsumer": (LitePullConsumerSettings, EVERY_CLIENT),
    "PullConsumer": (GroupSettings, EVERY_CLIENT),
    "SimpleConsumer": (SimpleConsumerSettings, EVERY_CLIENT),
    "IdempotentConsumer": (IdempotenceSettings, ()),
}
"""Heading -> settings class, and its fields that are in another section."""
OF_THIS_MACHINE: Final = {(ProducerSettings, "group"): "the program's name with `-producer`"}

_ROW: Final = re.compile(r"\| `(\w+)` \|")
_HEADING: Final = re.compile(r"###? (\w.*)")
_PAGE_NAME: Final = re.compile(r"docs/([\w/-]+)\.md(?:#([\w-]+))?")


def rows() -> dict[str, dict[str, str]]:
    """Rows of every section, by the names of settings."""
    return {
        title: {
            known.name: row(kind, known) for known in fields(kind) if known.name not in elsewhere
        }
        for title, (kind, elsewhere) in SECTIONS.items()
    }


def row(kind: type, known: Field[Any]) -> str:
    default = OF_THIS_MACHINE.get((kind, known.name)) or shown_default(known)
    return f"| `{known.name}` | {default} | {shown_text(texts(kind)[known.name])} |"


def texts(kind: type) -> dict[str, str]:
    """Texts below the fields of a class, and below those it inherits."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        (node,) = ast.parse(dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for field, text in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                assert isinstance(field.target, ast.Name)
                assert isinstance(text.value, ast.Constant)
                found[field.target.id] = " ".join(text.value.value.split())
    return found


def shown_default(known: Field[Any]) -> str:
    value = known.default
    if value is MISSING:
        return "required"
    if value is None or value == ():
        return "none"
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, Enum):
        return f"`{value}`"
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    if isinstance(value, Collection):
        return ", ".join(map(str, sorted(value)))
    rule = known.metadata.get("rule")
    unit = f" {rule.unit}" if rule is not None and rule.unit else ""
    if unit == " bytes" and value % 1024**2 == 0:
        return f"{value // 1024**2} MiB"
    return f"{value:,}{unit}" if isinstance(value, int) else f"{value:,g}{unit}"


def link(found: re.Match[str]) -> str:
    page, anchor = found.groups()
    title = (anchor or page.split("/")[-1]).replace("-", " ")
    file = "" if page == "reference/client-settings" else f"../{page}.md"
    return f"[{title}]({file}{'#' + anchor if anchor else ''})"


def shown_text(text: str) -> str:
    """Markdown of a text: code in single backticks, pages as links."""

    return _PAGE_NAME.sub(link, text.replace("``", "`").replace("|", r"\|"))


def page(text: str) -> str:
    """The page with its rows as they should be; AssertionError for a setting without a row, or a
    row without a setting."""
    left = rows()
    wanted: dict[str, str] | None = None
    lines = []
    for line in text.splitlines():
        heading, found = _HEADING.match(line), _ROW.match(line)
        if heading is not None and (line.startswith("## ") or heading[1] in left):
            wanted = left.get(heading[1])
        if found is not None and wanted is not None:
            lines.append(wanted.pop(found[1]))
        else:
            lines.append(line)
    assert {title: list(rest) for title, rest in left.items() if rest} == {}, "without a row"
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
