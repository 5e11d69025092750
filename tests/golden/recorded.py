"""The recorded bytes and what their index says of them. One rule: read only; `record` writes
them."""

from __future__ import annotations

import enum
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

DATA = Path(__file__).parent / "data"
FIVE = "5.3.3"
FOUR = "4.9.7"
POLICIES = "5.4.0"

DERIVED = {"minTimeStampStr", "maxTimeStampStr", "consumeTimeStampStr"}
"""Members that Apache's objects compute when asked and hold no field for."""


@dataclass(frozen=True)
class Recorded:
    """One entry of an index: `fields` is what Apache's objects held when `bytes` were made from
    them."""

    apache: str
    name: str
    kind: str
    fields: dict[str, Any]

    @property
    def bytes(self) -> bytes:
        return (DATA / self.apache / self.fields["file"]).read_bytes()

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]


def _load() -> list[Recorded]:
    found = []
    for apache in (FIVE, FOUR, POLICIES):
        index = json.loads((DATA / apache / "index.json").read_text("ascii"))
        assert index["apache"] == apache
        found += [
            Recorded(apache, entry["name"], entry["kind"], entry) for entry in index["entries"]
        ]
    return found


ALL = _load()


def of_kind(*kinds: str, apache: str | None = None) -> list[Any]:
    """Test parameters: every entry of these kinds, named after its file. There is always at least
    one."""
    found = [entry for entry in ALL if entry.kind in kinds and apache in (None, entry.apache)]
    assert found, f"nothing recorded of kind {kinds} by Apache {apache or 'at all'}"
    return [pytest.param(entry, id=f"{entry.apache}-{entry.name}") for entry in found]


def described(value: Any) -> Any:
    """A body of ours in the form of the index: objects by wire name, nulls left out, other maps as
    pairs."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, msgspec.Struct):
        members = (
            (field.encode_name, getattr(value, field.name))
            for field in msgspec.structs.fields(value)
        )
        return {
            name: described(member)
            for name, member in members
            if member is not None and name not in DERIVED
        }
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: described(item) for key, item in value.items()}
        return [[described(key), described(item)] for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [described(item) for item in value]
    return value
