"""Options: what is accepted, what it becomes, and the sentence that refuses the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from turbopump.errors import ConfigError
from turbopump.message.message import MessageQueue
from turbopump.spark.options import (
    COLUMN_NAMES,
    EVERY_BROKER,
    OPTIONS,
    options_of_mode,
    read_options,
)
from turbopump.spark.write_options import write_options

NEEDED = {"nameServer": "127.0.0.1:9876", "topic": "T"}


def test_names_are_taken_in_any_case_as_spark_lowers_them() -> None:
    options = read_options(
        {
            "nameserver": "a:1;b:2",
            "SUBSCRIBE": "T2, T1",
            "MAXpartitions": "3",
            "failondataloss": "False",
        }
    )
    assert options.name_servers == ("a:1", "b:2")
    assert options.topics == ("T1", "T2")
    assert options.partitions_max == 3
    assert options.fail_on_data_loss is False


def test_what_is_not_given_has_its_documented_default() -> None:
    options = read_options(NEEDED)
    assert options.columns == COLUMN_NAMES
    assert (
        options.starting,
        options.ending,
        options.starting_timestamp_ms,
        options.ending_timestamp_ms,
    ) == (None,) * 4
    assert (options.offsets_per_trigger_max, options.partitions_max) == (None, None)
    assert (options.pull_batch_size, options.pull_timeout_ms, options.fail_on_data_loss) == (
        1024,
        10_000,
        True,
    )


def test_two_spellings_of_one_option_may_not_differ() -> None:
    assert read_options({**NEEDED, "namesrvAddr": "127.0.0.1:9876"}).name_servers == (
        "127.0.0.1:9876",
    )
    with pytest.raises(ConfigError, match="'topic' and 'subscribe' mean the same thing but differ"):
        read_options({**NEEDED, "subscribe": "U"})


@pytest.mark.parametrize("name", ["pullTimeout", "kafkaConsumer.pollTimeoutMs"])
def test_the_time_of_a_pull_has_the_names_of_other_connectors(name: str) -> None:
    assert read_options({**NEEDED, name: "500"}).pull_timeout_ms == 500


def test_columns_keep_their_order_and_get_their_spelling() -> None:
    assert read_options({**NEEDED, "columns": "BODY, queueid"}).columns == ("body", "queueId")


@pytest.mark.parametrize(
    "form",
    ['{"v":1,"topics":{"T":{"broker-a":{"0":5,"1":-2}}}}', '{"T":{"broker-a":{"0":5,"1":-2}}}'],
)
def test_starting_offsets_are_taken_with_and_without_a_version(form: str) -> None:
    queues = {MessageQueue("T", "broker-a", 0): 5, MessageQueue("T", "broker-a", 1): -2}
    assert read_options({**NEEDED, "startingOffsets": form}).starting == queues


def test_assigned_queues_are_of_one_broker_or_of_every_one() -> None:
    given = '{"T":{"broker-a":[0,2]},"U":[1]}'
    options = read_options({"nameServer": "a:1", "assign": given})
    assert options.assigned == {
        "T": {"broker-a": frozenset({0, 2})},
        "U": {EVERY_BROKER: frozenset({1})},
    }


@pytest.mark.parametrize(
    ("text", "tags"), [("A", ("A",)), ("B || A||A", ("A", "B")), ("*", ()), ("a.b", ("a.b",))]
)
@pytest.mark.parametrize("name", ["tags", "subExpression"])
def test_tags_are_those_of_a_subscription(name: str, text: str, tags: tuple[str, ...]) -> None:
    assert read_options({**NEEDED, name: text}).tags == tags


def ms(text: str) -> int:
    return read_options({**NEEDED, "maxTriggerDelay": text}).trigger_delay_max_ms


def size(text: str) -> int | None:
    return read_options({**NEEDED, "maxBytesPerTrigger": text}).bytes_per_trigger_max


def test_durations_and_sizes_have_units() -> None:
    assert [ms("250"), ms("2s"), ms("15m"), ms("1h")] == [250, 2000, 900_000, 3_600_000]
    assert [size("100"), size("2k"), size("64MB"), size("1 g")] == [100, 2048, 64 << 20, 1 << 30]


def test_headers_that_are_not_included_leave_properties_out() -> None:
    left = read_options({**NEEDED, "includeHeaders": "false"}).columns
    assert left == tuple(name for name in COLUMN_NAMES if name != "properties")
    assert read_options({**NEEDED, "includeHeaders": "true"}).columns == COLUMN_NAMES


def test_options_of_one_mode_are_known() -> None:
    options = read_options({**NEEDED, "commitGroup": "g", "endingOffsets": "latest", "tags": "A"})
    assert options_of_mode(options, "stream") == ["commitGroup"]
    assert options_of_mode(options, "batch") == ["endingOffsets"]
    pushing = read_options({**NEEDED, "filterPushdown": "true"})
    assert options_of_mode(pushing, "batch") == ["filterPushdown"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"subscribePattern": "T.*"}, "'topic' and 'subscribePattern' exclude each other"),
        ({"tags": "A", "sqlfilter": "a = 1"}, "'tags' and 'sqlFilter' exclude each other"),
        ({"sqlFilter": "a ="}, "option sqlFilter: 'a =' is not a SQL92 filter"),
        ({"tags": " || "}, "expected a tag"),
        ({"tags": "A || *"}, "[*] matches every message"),
        ({"tags": "a,b"}, "did you mean .a [|][|] b..*matches such a tag literally"),
        ({"startingGroup": "no good"}, "option startingGroup: the group name 'no good'"),
        ({"startingOffsetsByTimestamp": "5"}, "JSON with ms since 1970"),
        ({"startingOffsetsByTimestampStrategy": "earliest"}, "expected error or latest"),
        ({"maxTriggerDelay": "soon"}, "such as 15m, not 'soon'; units: ms, s, m, min, h, d"),
        ({"maxBytesPerTrigger": "0"}, "such as 64m, not '0'"),
        ({"minPartitions": "5", "maxPartitions": "4"}, "minPartitions 5 is more than max"),
        (
            {"minOffsetsPerTrigger": "5", "maxOffsetsPerTrigger": "4"},
            "minOffsetsPerTrigger 5 is more than maxOffsetsPerTrigger 4",
        ),
        ({"includeHeaders": "false", "columns": "body"}, "use only columns"),
        ({"brokerOfflineStrategy": "wait"}, "expected fail or skip"),
        ({"kafka.bootstrap.servers": "a:1"}, "option of Kafka's own clients.*nameServer"),
        ({"kafka.group.id": "g"}, "in no consumer group; startingGroup .* commitGroup"),
        ({"consumer.group": "g"}, "'consumer.group' does not exist: startingGroup .* commitGroup"),
        ({"group": "g"}, "no consumer group, so the option 'group' does not exist"),
        ({"bootstrap.servers": "a:1"}, "option of Kafka's own clients.*nameServer"),
        ({"groupIdPrefix": "g"}, "in no consumer group, so leave it out; commitGroup"),
        ({"fetchOffset.numRetries": "3"}, "Kafka source: leave it out; offsets are asked"),
        ({"paths": '["T","U"]'}, "load[(][)] has no path argument here"),
        ({"path": "T"}, "load[(][)] has no path argument here: give the topic as the option topic"),
        ({"maxOffsetPerTriger": "1"}, "did you mean 'maxOffsetsPerTrigger'"),
        ({"subscribePatern": "T"}, "did you mean 'subscribePattern'"),
        ({"topik": "T"}, "unknown option 'topik'; did you mean 'topic'"),
        ({"startingoffset": "x"}, "did you mean 'startingOffsets'"),
        ({"checkpointLocation": "/tmp/c"}, "is an option of writeStream: give it there"),
        ({"owner": "me", "option.topic": "T"}, "CREATE TABLE .* FROM t WITH [(]nameServer="),
        ({"xyzzy": "1"}, "unknown option 'xyzzy'; options: nameServer, "),
        ({"nameServer": "nowhere"}, "option nameServer: .*has no port"),
        ({"nameServer": " ; "}, "option nameServer: expected an address"),
        ({"topic": ","}, "option topic: expected a topic"),
        ({"columns": "bodi"}, "unknown column 'bodi'; did you mean 'body'"),
        ({"columns": "value"}, "column 'value' of Spark's Kafka source is body here"),
        ({"columns": "body,BODY"}, "listed twice"),
        ({"columns": ""}, "names no column"),
        ({"maxPartitions": "0"}, "option maxPartitions: expected a whole number from 1"),
        ({"maxOffsetsPerTrigger": "many"}, "not 'many'"),
        ({"startingTimestamp": "-1"}, "option startingTimestamp"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"startingOffsets": "sometime"}, "earliest, latest or JSON"),
        ({"startingOffsets": "{"}, "not JSON"),
        ({"startingOffsets": '{"v":2,"topics":{}}'}, "version 2"),
        ({"startingOffsets": "{}"}, "names no queue: name some, or leave the option out"),
        ({"endingOffsets": '{"v":1,"topics":{}}'}, "names no queue"),
        ({"endingOffsetsByTimestamp": '{"T":{}}'}, "names no queue"),
        ({"startingOffsets": '{"T":{"b":5}}'}, "T, b: expected an object"),
        ({"startingOffsets": '{"T":{"b":{"zero":5}}}'}, "a queue must be a number"),
        ({"startingOffsets": '{"T":{"b":{"0":-3}}}'}, "the offset -3"),
        ({"startingOffsets": '{"T":{"b":{"0":"5"}}}'}, "the offset '5'"),
    ],
)
def test_a_wrong_option_is_refused_in_one_sentence(wrong: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        read_options({**NEEDED, **wrong})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("T.*", "expected JSON such as"),
        ("{}", "expected JSON such as"),
        ('{"T":3}', "T: expected queues as in"),
        ('{"T":{"broker-a":[]}}', "T, broker-a: expected a list of queue numbers"),
        ('{"T":{"broker-a":["0"]}}', "T, broker-a: expected a list of queue numbers"),
    ],
)
def test_wrong_assignments_are_refused(wrong: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"option assign: {said}"):
        read_options({"nameServer": "a:1", "assign": wrong})


def test_a_wrong_pattern_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'\(' is not a regular expression"):
        read_options({"nameServer": "a:1", "subscribePattern": "("})


def test_a_read_without_any_option_may_be_of_a_table() -> None:
    with pytest.raises(
        ConfigError, match=r"set the option nameServer, .* but loses those of CREATE TABLE"
    ):
        read_options({})


def test_the_name_server_is_that_of_the_environment_unless_one_is_given() -> None:
    environment = {"NAMESRV_ADDR": "a:1;b:2"}
    assert read_options({"topic": "T"}, environment).name_servers == ("a:1", "b:2")
    assert write_options({"topic": "T"}, environment).name_servers == ("a:1", "b:2")
    assert read_options({**NEEDED, "nameServer": "c:3"}, environment).name_servers == ("c:3",)
    assert write_options({"namesrvAddr": "c:3"}, environment).name_servers == ("c:3",)
    for read in (read_options, write_options):
        with pytest.raises(ConfigError, match=r"the variable NAMESRV_ADDR: .*has no port"):
            read({"topic": "T"}, {"NAMESRV_ADDR": "nowhere"})
        with pytest.raises(ConfigError, match=r"option nameServer, .* or NAMESRV_ADDR"):
            read({"topic": "T"}, {"NAMESRV_ADDR": " "})


@pytest.mark.parametrize("missing", ["nameServer", "topic"])
def test_what_must_be_given_is_named(missing: str) -> None:
    with pytest.raises(ConfigError, match=f"option {missing}"):
        read_options({name: value for name, value in NEEDED.items() if name != missing})


def test_every_option_and_column_has_its_line_in_the_docs() -> None:
    lines = (Path(__file__).parents[2] / "docs" / "reference" / "spark.md").read_text().splitlines()
    for name in (*OPTIONS, *COLUMN_NAMES):
        assert any(line.startswith("|") and f"`{name}`" in line for line in lines), name
