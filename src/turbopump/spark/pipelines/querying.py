"""SQL over topics and lakes. Each name in a query becomes a table on demand.

Only tables that the query names are opened. When Spark reports an unknown table, this module
creates the table and runs the query again. The display of rows is unknown here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.errors import AnalysisException

from turbopump.errors import ConfigError, RouteNotFoundError
from turbopump.spark import archive as lakes_
from turbopump.spark.options import COLUMN_NAMES, did_you_mean, read_options
from turbopump.spark.pipelines.lake import DATA, REJECTED, open_lake
from turbopump.spark.pipelines.running import unlogged_errors
from turbopump.spark.planning import queues_wanted
from turbopump.spark.reading import connected
from turbopump.spark.session import rocketmq_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TABLE_NOT_FOUND: Final = "TABLE_OR_VIEW_NOT_FOUND"


def query(
    text: str,
    *,
    name_server: str,
    lakes: Mapping[str, str | Path] | None = None,
    spark: SparkSession | None = None,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """Run a SQL query over lakes and topics. Return the result as a Spark DataFrame.

    Each lake of ``lakes`` is a table of its name, and ``NAME_rejected`` has its rejected rows. Any
    other table is the topic of that name, read from its beginning to its present end. ``options``
    are further options of the topics' source. A name with characters other than letters, digits and
    ``_`` is written in backticks.

    Raises ConfigError for a table that is neither a lake nor a topic, LakeError for a directory
    that is not a lake, and Spark's AnalysisException for an invalid query.
    """
    spark = spark or rocketmq_session()
    tables: dict[str, DataFrame] = {}
    for name, place in (lakes or {}).items():
        tables[name] = lakes_.rows(spark, place, DATA)
        if open_lake(Path(place)).definition.bodies is not None:
            tables[f"{name}_rejected"] = lakes_.rows(spark, place, REJECTED)
    columns = _columns_named(text)
    made: list[str] = []
    try:
        for name, frame in tables.items():
            _make_table(name, frame)
            made.append(name)
        while True:
            try:
                with unlogged_errors():
                    found = spark.sql(text)
                _check_cases(text, [*tables, *made], name_server, options)
                return found
            except AnalysisException as error:
                topic = _unknown_table(error)
                if topic is None or topic in made:
                    raise
            given = {**(options or {}), "nameServer": name_server, "topic": topic}
            _check_topic(given, sorted(tables))
            given["columns"] = columns
            _make_table(topic, spark.read.format("rocketmq").options(**given).load())
            made.append(topic)
    finally:
        # The DataFrame no longer needs these names, and a later query may want other columns.
        for name in made:
            spark.catalog.dropTempView(name)


def _make_table(name: str, rows: DataFrame) -> None:
    """Make a table of rows. SQL queries can use the table by its name.

    Raises ConfigError if a table of this name exists.
    """
    try:
        rows.createTempView(lakes_.quoted(name))
    except AnalysisException as error:
        raise ConfigError(
            f"the session already has a view {name!r}: drop it, or give the lake another "
            f"name ({error.getCondition()})"
        ) from None


def _check_cases(
    text: str, made: list[str], name_server: str, options: Mapping[str, str] | None
) -> None:
    """Raise ConfigError if a query names two tables whose names differ only in case.

    Spark does not distinguish such names, so both tables would have the rows of the first.
    """
    without_texts = re.sub(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|--.*", " ", text)
    words = {
        tick.replace("``", "`") or word
        for tick, word in re.findall(r"`((?:[^`]|``)+)`|(\w+)", without_texts)
    }
    for name in made:
        for other in sorted(words - {name}):
            if other.lower() == name.lower() and (
                other in made or _is_topic({**(options or {}), "nameServer": name_server}, other)
            ):
                raise ConfigError(
                    f"the query names the tables {name!r} and {other!r}, but Spark ignores the "
                    "case of names: query one at a time, or archive one and give it another name "
                    "by --lake NAME=DIR"
                )


def _is_topic(options: dict[str, str], name: str) -> bool:
    known = read_options({**options, "topic": name})
    with connected(known) as cluster:
        try:
            queues_wanted(cluster, known)
        except RouteNotFoundError:
            return False
    return True


def _unknown_table(error: AnalysisException) -> str | None:
    """If Spark's error is about an unknown table, return the name of the table. Otherwise return
    None."""
    if error.getCondition() != _TABLE_NOT_FOUND:
        return None
    name = (error.getMessageParameters() or {}).get("relationName", "")
    found = re.fullmatch(r"`((?:[^`]|``)+)`", name)
    return found[1].replace("``", "`") if found else None


def _check_topic(options: dict[str, str], tables: list[str]) -> None:
    """Raise ConfigError if the topic in the options does not exist."""
    name = options["topic"]
    if _is_topic(options, name):
        return
    with connected(read_options(options)) as cluster:
        topics = cluster.topics()
    has = f"; lakes: {', '.join(tables)}" if tables else ""
    raise ConfigError(
        f"unknown topic {name!r}{did_you_mean(name, [*topics, *tables])}; topics: "
        f"{', '.join(topics) or 'none'}{has}"
    )


def _columns_named(text: str) -> str:
    """Return those columns of a topic whose names appear in a query's text.

    All columns are returned if the query may use columns without their names: by a star, a natural
    join, or a query without SELECT. Reading fewer columns is several times as fast, and Spark does
    not report the needed columns to a source.
    """
    plain = re.sub(r"\bcount\s*\(\s*\*\s*\)", "", text, flags=re.IGNORECASE)
    words = re.findall(r"\w+", plain.lower())
    whole = "*" in plain or "natural" in words or "|>" in plain or "table" in words
    if whole or "select" not in words or words.count("from") > words.count("select"):
        return ",".join(COLUMN_NAMES)
    named = [name for name in COLUMN_NAMES if name.lower() in words]
    return ",".join(named or ["queueOffset"])
