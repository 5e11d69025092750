"""The columns of a row that is read: names, order and Arrow types.

The one rule: this table is the promise to users (docs/spark.md). Columns may be added at its end,
never renamed, retyped or reordered. It must not know how a column is made (``decode``) or what
Spark calls its types (``source``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa

from turbopump.errors import ConfigError
from turbopump.spark.suggestion import did_you_mean

_INSTANT: Final = pa.timestamp("us", tz="UTC")

READ_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("brokerName", pa.string()),
        ("queueId", pa.int32()),
        ("queueOffset", pa.int64()),
        ("commitLogOffset", pa.int64()),
        ("msgId", pa.string()),
        ("offsetMsgId", pa.string()),
        ("keys", pa.string()),
        ("tags", pa.string()),
        ("body", pa.binary()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("flag", pa.int32()),
        ("sysFlag", pa.int32()),
        ("bodyCrc", pa.int32()),
        ("bornTimestamp", _INSTANT),
        ("storeTimestamp", _INSTANT),
        ("bornHost", pa.string()),
        ("storeHost", pa.string()),
        ("reconsumeTimes", pa.int32()),
        ("preparedTransactionOffset", pa.int64()),
        ("storeSize", pa.int32()),
    ]
)
COLUMN_NAMES: Final[tuple[str, ...]] = tuple(READ_SCHEMA.names)


def column_names(text: str) -> tuple[str, ...]:
    """The column names in a comma-separated list, in their own order and with their exact spelling
    (case does not matter in ``text``).

    Raises ConfigError for an unknown name (with the nearest known one), a repeated one, or an empty
    list.
    """
    spelled = {name.lower(): name for name in COLUMN_NAMES}
    names: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name = spelled.get(part.lower())
        if name is None:
            raise ConfigError(
                f"there is no column {part!r}{did_you_mean(part, COLUMN_NAMES)}; columns: "
                f"{', '.join(COLUMN_NAMES)}"
            )
        if name in names:
            raise ConfigError(f"column {name!r} is listed twice")
        names.append(name)
    if not names:
        raise ConfigError("the option columns names no column; leave it out to read them all")
    return tuple(names)


def arrow_schema(names: Iterable[str]) -> pa.Schema:
    """These columns as the Arrow schema that Spark compares batches against, exactly."""
    return pa.schema([READ_SCHEMA.field(name) for name in names])
