"""The options and columns of a write: what they mean, and that nothing is ignored in silence."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest

from turbopump.errors import ConfigError
from turbopump.spark.write_options import AUTO, WRITE_COLUMNS, WRITE_OPTIONS, layout, write_options

SERVER = {"nameserver": "127.0.0.1:9876"}
BODY = pa.field("body", pa.binary())
ORIGIN = [
    pa.field("topic", pa.string()),
    pa.field("brokerName", pa.string()),
    pa.field("queueId", pa.int32()),
    pa.field("queueOffset", pa.int64()),
]


def test_options_have_their_values() -> None:
    options = write_options(
        {
            "nameserver": "a:1;b:2",
            "topic": "T",
            "idempotencykey": "order",
            "orderingkey": "customer",
            "maxinflight": "4",
            "sendbatchsize": "10",
            "sendtimeoutms": "500",
            "retries": "3",
            "producergroup": "G",
            "accesskey": "me",
            "secretkey": "hush",
            "checkpointlocation": "/somewhere",
        }
    )
    assert options.name_servers == ("a:1", "b:2")
    assert (options.topic, options.idempotency_key, options.ordering_key) == (
        "T",
        "order",
        "customer",
    )
    assert (options.in_flight_max, options.batch_rows_max) == (4, 10)
    assert (options.send_timeout_ms, options.retries, options.producer_group) == (500, 3, "G")
    assert options.credentials is not None
    assert options.credentials.secret_key == "hush"
    assert "hush" not in repr(options)


def test_the_group_may_be_named_as_the_old_connector_does() -> None:
    assert write_options({**SERVER, "group": "G"}).producer_group == "G"


def test_skipping_what_is_there_goes_by_where_rows_came_from() -> None:
    assert write_options(SERVER).idempotency_key is None
    assert write_options({**SERVER, "onConflict": "skip"}).idempotency_key == AUTO
    assert write_options({**SERVER, "onConflict": "append"}).idempotency_key is None
    with pytest.raises(ConfigError, match="onConflict=skip needs a key"):
        write_options({**SERVER, "onConflict": "skip", "idempotencyKey": "none"})


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "no name server is given: set the option nameServer"),
        ({"tpoic": "T"}, "unknown option 'tpoic'; did you mean 'topic'"),
        ({"startingOffsets": "latest"}, "unknown option 'startingOffsets'"),
        ({"kafka.bootstrap.servers": "a:1"}, "brokers are found by the option nameServer"),
        ({"topic": "a b"}, "option topic: the topic name 'a b' holds a character"),
        ({"topic": "SCHEDULE_TOPIC_XXXX"}, "belongs to the broker itself"),
        ({"maxInFlight": "0"}, "option maxInFlight: expected a whole number from 1"),
        ({"onConflict": "replace"}, "option onConflict: expected append or skip"),
        ({"writeId": "a/b"}, "option writeId: expected 1 to 100 printable"),
        ({"accessKey": "me"}, "an accessKey is set without the other"),
        ({"namesrvAddr": "10.0.0.1:1"}, "mean the same thing but differ"),
    ],
)
def test_a_wrong_option_is_told_in_a_sentence(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        write_options({**SERVER, **options} if options else {})


@pytest.mark.parametrize(
    ("fields", "options", "said"),
    [
        ([pa.field("topic", pa.string())], {}, "no column body"),
        ([BODY], {}, "set the option topic, or add a column topic"),
        ([BODY, pa.field("tag", pa.string())], {"topic": "T"}, "did you mean 'tags'? drop it"),
        ([BODY, pa.field("xyz", pa.string())], {"topic": "T"}, "unknown column 'xyz':"),
        ([pa.field("value", pa.binary())], {"topic": "T"}, "Kafka sink is body here: rename it"),
        (
            [BODY, pa.field("key", pa.binary())],
            {"topic": "T"},
            "sink is shardingKey (rows of a key",
        ),
        ([pa.field("body", pa.int64())], {"topic": "T"}, "must be binary or string, not bigint"),
        (
            [BODY, pa.field("deliverAt", pa.timestamp("us"))],
            {"topic": "T"},
            "deliverAt must be timestamp, not timestamp_ntz",
        ),
        ([BODY, pa.field("flag", pa.int64())], {"topic": "T"}, "flag must be int, not bigint"),
        (
            [BODY, pa.field("properties", pa.map_(pa.string(), pa.int32()))],
            {"topic": "T"},
            "properties must be map<string,string>",
        ),
        ([BODY, pa.field("Body", pa.binary())], {"topic": "T"}, "there are two columns 'body'"),
        (
            [BODY],
            {"topic": "T", "idempotencyKey": "auto"},
            "(brokerName, topic, queueId, queueOffset missing)",
        ),
        ([BODY], {"topic": "T", "idempotencyKey": "order"}, "names the column 'order', which"),
        (
            [BODY, pa.field("k", pa.float64())],
            {"topic": "T", "orderingKey": "k"},
            "the column k must be string, binary or a whole number",
        ),
        ([BODY], {"topic": "T", "keepQueueId": "true"}, "needs a column queueId"),
    ],
)
def test_wrong_columns_are_told_before_anything_is_sent(
    fields: list[pa.Field], options: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        layout(pa.schema(fields), write_options({**SERVER, **options}))


def test_columns_of_the_source_are_known_and_its_queue_ids_are_not_kept_unless_asked() -> None:
    schema = pa.schema([BODY, *ORIGIN, pa.field("storeHost", pa.string())])
    assert "queueId" not in layout(schema, write_options(SERVER)).columns
    assert "queueId" in layout(schema, write_options({**SERVER, "keepQueueId": "true"})).columns
    made = pa.schema([BODY, *ORIGIN[:3]])
    assert "queueId" in layout(made, write_options(SERVER)).columns
    key = layout(schema, write_options({**SERVER, "onConflict": "skip"}))
    assert [schema.names[at] for at in key.origin] == [
        "brokerName",
        "topic",
        "queueId",
        "queueOffset",
    ]


def test_the_reference_lists_every_option_and_column_of_a_write() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "spark.md").read_text()
    tables = page.partition("## Write")[2]
    listed = re.findall(r"^\| `(\w+)` \|", tables, re.MULTILINE)
    assert sorted(listed) == sorted([*WRITE_OPTIONS, *WRITE_COLUMNS])
