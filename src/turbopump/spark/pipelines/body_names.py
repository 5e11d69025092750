"""Names of the table columns that are made from message bodies.

A column has the name of its field, a new name (``field AS column``), or a name with a prefix.
Alternatively, one struct contains all fields. The names are fixed when a lake is made, and are
stored in its definition. The decoding of bodies does not use them. Kinds of bodies are unknown
here.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from turbopump.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from turbopump.spark.pipelines.lake import Bodies

_NAME: Final = r"(?:`(?:[^`]|``)+`|\w+)"
_RENAMED: Final = re.compile(rf"\s*({_NAME})\s+as\s+({_NAME})\s+(?=\S)", re.IGNORECASE)
_PIECE: Final = re.compile(r"`(?:[^`]|``)*`|'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|.", re.DOTALL)


def without_names(ddl: str) -> tuple[str, dict[str, str]]:
    """Split Spark's DDL into plain DDL and the new names of fields.

    For ``date AS day date, n int``, the result is ``date date, n int`` and ``{"date": "day"}``.
    """
    parts = [""]
    depth = 0
    for piece in _PIECE.findall(ddl):
        depth += (piece in ("<", "(")) - (piece in (">", ")"))
        if piece == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += piece
    names = {}
    for at, part in enumerate(parts):
        found = _RENAMED.match(part)
        if found is not None:
            names[_plain(found[1])] = _plain(found[2])
            parts[at] = f"{found[1]} {part[found.end() :]}"
    return ", ".join(parts) if names else ddl, names


def _plain(name: str) -> str:
    return name[1:-1].replace("``", "`") if name.startswith("`") else name


def named(
    bodies: Bodies, fields: Sequence[str], names: Mapping[str, str], prefix: str, struct: str
) -> Bodies:
    """Return a definition of bodies with added column names.

    Raises ConfigError if there is a prefix and a struct, or an empty name.
    """
    if prefix and struct:
        raise ConfigError("a prefix and a struct exclude each other: give one of them")
    columns = tuple(names.get(field, f"{prefix}{field}") for field in fields)
    if columns == tuple(fields):
        columns = ()
    return msgspec.structs.replace(bodies, columns=columns, struct=struct)


def named_columns(fields: Sequence[pa.Field], bodies: Bodies) -> list[pa.Field]:
    """Return the table columns for these fields of a body."""
    columns = [
        field.with_name(name) for field, name in zip(fields, _names(fields, bodies), strict=True)
    ]
    if not bodies.struct:
        return columns
    # Rows that fit have every required field, so fields inside the struct are declared nullable.
    return [pa.field(bodies.struct, pa.struct([each.with_nullable(True) for each in columns]))]


def renamed(rows: pa.Table, fields: Sequence[pa.Field], bodies: Bodies) -> pa.Table:
    """Rename the columns of the body as in the table. They are the last columns of ``rows``.

    If another column has the same name, the column of the body replaces it. (A lake without
    ``bodyFault`` may have a field of that name.)
    """
    before = rows.num_columns - len(fields)
    given = rows.columns[before:]
    columns = named_columns(fields, bodies)
    if bodies.struct:
        (column,) = columns
        parts: list[Any] = [_whole(each) for each in given]
        given = [pa.StructArray.from_arrays(parts, fields=list(column.type))]
    found = dict(zip(rows.column_names[:before], rows.columns[:before], strict=True))
    found |= {each.name: values for each, values in zip(columns, given, strict=True)}
    return pa.table(found)


def _names(fields: Sequence[pa.Field], bodies: Bodies) -> Sequence[str]:
    return bodies.columns or [each.name for each in fields]


def _whole(column: pa.ChunkedArray) -> Any:
    found = column.combine_chunks()
    return pa.concat_arrays(found.chunks) if isinstance(found, pa.ChunkedArray) else found
