"""Messages as lines of JSON, there and back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbopump.cli.json_lines import read_message, write_message
from turbopump.errors import MessageError
from turbopump.message.message import Message, ReceivedMessage
from turbopump.message.properties import encode_properties


def received(message: Message, **properties: str) -> ReceivedMessage:
    """The message as a broker would hand it out, with the properties that producer and broker
    add."""
    return ReceivedMessage(
        topic=message.topic,
        stored_body=message.body,
        properties_text=encode_properties({**message.properties, **properties}),
        queue_id=3,
        queue_offset=7,
        commit_log_offset=1000,
        flag=0,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        born_host=("127.0.0.1", 1),
        store_timestamp=1_700_000_000_001,
        store_host=("127.0.0.1", 10911),
        reconsume_times=0,
        prepared_transaction_offset=0,
        body_crc=0,
        store_size=200,
        broker_name="broker-a",
    )


@pytest.mark.parametrize(
    ("line", "body"),
    [
        ('{"body": "text"}', b"text"),
        ('{"body": "中"}', "中".encode()),
        ('{"body": {"a": [1, null]}}', b'{"a":[1,null]}'),
        ('{"body": 5}', b"5"),
        ('{"body": null}', b"null"),
        ('{"body_base64": "/wA="}', b"\xff\x00"),
        ('{"body": "x", "queue_id": 3, "anything": {}}', b"x"),
    ],
)
def test_a_body_is_text_or_base64_or_any_json(line: str, body: bytes) -> None:
    message = read_message(line.encode(), "T", number=1)
    assert (message.topic, message.body) == ("T", body)


def test_tags_keys_and_properties_are_taken_along() -> None:
    line = b'{"body": "x", "tags": "A", "keys": ["k1", "k2"], "properties": {"p": "v"}}'
    message = read_message(line, "T", number=1)
    assert (message.tags, message.keys, message.properties["p"]) == ("A", ["k1", "k2"], "v")
    assert read_message(b'{"body": "x", "keys": "one"}', "T", number=1).keys == ["one"]


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"text",
        b"[]",
        b'{"bodyy": "x"}',
        b'{"body_base64": "*"}',
        b'{"body": "x", "tags": 5}',
        b'{"body": "\xff"}',
        b"{" * 5000,
    ],
)
def test_a_line_that_is_no_message_is_refused_with_its_number(line: bytes) -> None:
    with pytest.raises(MessageError, match=r"^line 12\b") as refused:
        read_message(line, "T", number=12)
    assert "\n" not in str(refused.value)


def test_a_line_says_where_the_message_is_and_leaves_out_what_the_broker_added() -> None:
    message = Message("T", "hello", tags="A", keys="k", properties={"p": "v"})
    line = json.loads(
        write_message(received(message, UNIQ_KEY="7F00", CLUSTER="c", WAIT="true", MSG_REGION="r"))
    )
    assert line == {
        "topic": "T",
        "broker": "broker-a",
        "queue_id": 3,
        "queue_offset": 7,
        "msg_id": "7F00",
        "born_ms": 1_700_000_000_000,
        "store_ms": 1_700_000_000_001,
        "tags": "A",
        "keys": ["k"],
        "properties": {"p": "v"},
        "body": "hello",
    }


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), min_size=1)


@given(
    st.binary(),
    st.none() | NAMES,
    st.lists(st.text("abc中-", min_size=1)),
    st.dictionaries(NAMES.map(lambda name: "my-" + name), NAMES),
)
def test_what_consume_writes_produce_reads_as_the_same_message(
    body: bytes, tags: str | None, keys: list[str], properties: dict[str, str]
) -> None:
    sent = Message("T", body, tags=tags, keys=keys)
    sent.properties.update(properties)  # those of other clients may be blank
    again = read_message(write_message(received(sent, UNIQ_KEY="7F00")), "T", number=1)
    assert (again.body, again.tags, again.keys, again.properties) == (
        sent.body,
        sent.tags,
        sent.keys,
        sent.properties,
    )


def test_a_line_of_a_message_is_read_back_without_broker_properties_and_checked() -> None:
    marks = {
        "UNIQ_KEY": "U",
        "MSG_REGION": "R",
        "TRACE_ON": "true",
        "DELAY": "3",
        "ORIGIN_MESSAGE_ID": "O",
        "mine": "1",
    }
    line = write_message(received(Message("T", b"x", tags="t"), **marks))
    again = read_message(line, "T", number=1)
    assert (again.properties, again.tags) == ({"mine": "1", "TAGS": "t"}, "t")
    with pytest.raises(MessageError, match=r"^line 3: property 'DELAY' is RocketMQ's own"):
        read_message(b'{"body": "x", "properties": {"DELAY": "3"}}', "T", number=3)
