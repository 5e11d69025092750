"""Messages as lines of JSON, there and back."""

import json
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turbopump.cli.dlq_output import letter_row
from turbopump.cli.json_lines import LineDefaults, body_or_stored, read_message, write_message
from turbopump.client.dead_letters import DeadLetter
from turbopump.errors import MessageError
from turbopump.message.message import Message, ReceivedMessage
from turbopump.message.properties import encode_properties
from turbopump.message.rules import tag_fault


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
        ('{"body":  {"a": [1, null]} }', b'{"a": [1, null]}'),
        ('{"body": 12345678901234567.89}', b"12345678901234567.89"),
        ('{"body": {"x":1.10,"z":-0,"big":1e400}}', b'{"x":1.10,"z":-0,"big":1e400}'),
        ('{"body": 5}', b"5"),
        ('{"body": null}', b"null"),
        ('{"body_base64": "/wA="}', b"\xff\x00"),
        ('{"body": "x", "topic": "T"}', b"x"),
    ],
)
def test_a_body_is_text_or_base64_or_any_json(line: str, body: bytes) -> None:
    message = read_message(line.encode(), "T", number=1).message
    assert (message.topic, message.body) == ("T", body)


@given(
    st.one_of(st.binary(max_size=40), st.binary(max_size=40).map(zlib.compress)),
    st.sampled_from([0, 1, 0x101, 0x201, 0x301, 0x401, 0x701, 0xC0, 0xC1]),
    st.dictionaries(st.text("ab", min_size=1), st.text("é\x01x", min_size=1), max_size=2),
)
def test_any_stored_message_is_a_line_that_is_sent_again(
    stored: bytes, flags: int, properties: dict[str, str]
) -> None:
    """With its body, or with what is stored where that cannot be read."""
    message = received(Message("T", stored), **properties)
    message.sys_flag = flags
    letter = DeadLetter("g", message)
    for line in (write_message(message), msgspec.json.encode(letter_row(letter))):
        sent = read_message(line, "U", number=1).message
        body, fault = body_or_stored(message)
        assert (sent.body, b"body_fault" in line) == (body, fault is not None)
        assert fault is None or fault.startswith("offset 7 of T queue 3 on broker-a: ")
        assert fault is None or body == stored
        assert {name: sent.properties[name] for name in properties} == properties


def test_tags_keys_and_properties_are_taken_along() -> None:
    line = b'{"body": "x", "tags": "A", "keys": ["k1", "k2"], "properties": {"p": "v"}}'
    message = read_message(line, "T", number=1).message
    assert (message.tags, message.keys, message.properties["p"]) == ("A", ["k1", "k2"], "v")
    assert read_message(b'{"body": "x", "keys": "one"}', "T", number=1).message.keys == ["one"]


@pytest.mark.parametrize(
    ("field", "property_"),
    [
        ('"delay_level": 3', ("DELAY", "3")),
        ('"delay": 2.5', ("TIMER_DELAY_MS", "2500")),
        ('"deliver_at": 1795318200001', ("TIMER_DELIVER_MS", "1795318200001")),
        ('"deliver_at": "2026-11-22T03:30:00Z"', ("TIMER_DELIVER_MS", "1795318200000")),
    ],
)
def test_a_time_of_delivery_is_taken_along(field: str, property_: tuple[str, str]) -> None:
    line = f'{{"body": "x", {field}}}'.encode()
    later = LineDefaults(time={"delay": 60})
    for defaults in (LineDefaults(), later):
        read = read_message(line, "T", number=1, defaults=defaults)
        assert read.message.properties == dict([property_])
    read = read_message(b'{"body": "x"}', "T", number=1, defaults=later)
    assert read.message.properties == {"TIMER_DELAY_SEC": "60"}


@pytest.mark.parametrize(
    ("field", "bound"),
    [
        ('"sharding_key": "order 42"', ("order 42", None)),
        ('"sharding_key": 42', (42, None)),
        ('"queue": 3', (None, (None, 3))),
        ('"queue": "broker-a:3"', (None, ("broker-a", 3))),
        ('"properties": {"__SHARDINGKEY": "order 42"}', ("order 42", None)),
    ],
)
def test_a_line_says_where_its_message_goes(field: str, bound: tuple[object, object]) -> None:
    line = f'{{"body": "x", {field}}}'.encode()
    others = [LineDefaults(), LineDefaults(sharding_key="k"), LineDefaults(queue=(None, 7))]
    for defaults in others:
        read = read_message(line, "T", number=1, defaults=defaults)
        assert (read.sharding_key, read.queue) == bound
    reads = [read_message(b'{"body": "x"}', "T", number=1, defaults=one) for one in others]
    assert [(read.sharding_key, read.queue) for read in reads] == [
        (None, None),
        ("k", None),
        (None, (None, 7)),
    ]


def test_what_a_line_does_not_say_the_options_say() -> None:
    defaults = LineDefaults(tags="t", keys=("k1", "k2"), properties={"p": "v", "q": "w"})
    read = read_message(
        b'{"body": "x", "properties": {"p": "own"}}', "T", number=1, defaults=defaults
    )
    message = read.message
    assert (message.tags, message.keys) == ("t", ["k1", "k2"])
    assert message.user_properties == {"p": "own", "q": "w"}
    own = read_message(b'{"body": "x", "tags": "a", "keys": "k"}', "T", number=1, defaults=defaults)
    assert (own.message.tags, own.message.keys) == ("a", ["k"])


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"body": "x", "tag": "A"}', "field 'tag' is not known (did you mean tags?)"),
        ('{"body": "x", "key": "A"}', "field 'key' is not known (did you mean keys?)"),
        ('{"body": "x", "Tags": "A"}', "field 'Tags' is not known (did you mean tags?)"),
        ('{"body": "x", "delayLevel": 3}', "'delayLevel' is not known (did you mean delay_level?)"),
        ('{"body": "x", "anything": {}}', "'anything' is not known; a message has body, "),
        ('{"bodyy": "x"}', "field 'bodyy' is not known (did you mean body?)"),
        ('{"body": "x", "queue_id": 3}', "'queue_id' belongs to a received message"),
        ('{"body": "x", "queue_id": 3}', "give 'queue'"),
        ('{"body": "x", "msg_id": "7F00"}', "'msg_id' belongs to a received message"),
        ('{"body": "x", "topic": "orders"}', "has the topic 'orders', but the command sends to T"),
        ('{"body": "x", "body_base64": "eA=="}', "body and body_base64 are both given"),
        ('{"body": "x", "queue": 3, "sharding_key": "k"}', "both choose the queue"),
        ('{"body": "x", "queue": "first"}', "queue 'first' is not a queue"),
        ('{"body": "x", "delay": 3, "delay_level": 3}', "a message has one time"),
        ('{"body": "x", "delay_level": -1}', "delay_level=-1 is not a level"),
        ('{"body": "x", "deliver_at": "soon"}', "deliver_at 'soon' is not a time"),
        ('{"body": "x", "tags": ["a", "b"]}', "tags must be one text, not array"),
        ('{"body": "x", "properties": {"a": 1}}', "properties must be names and texts, as in"),
        ('{"body": "x", "delay": "5s"}', "delay must be a number of seconds, not str"),
        ('["x"]', 'is not a message: Expected `object`, got `array`; expected {"body"'),
    ],
)
def test_nothing_on_a_line_is_dropped_without_a_word(line: str, words: str) -> None:
    with pytest.raises(MessageError, match=r"^line 12\b") as refused:
        read_message(line.encode(), "T", number=12)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"text",
        b"[]",
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
    st.none() | NAMES.filter(lambda tag: tag_fault(tag) is None),
    st.lists(st.text("abc中-", min_size=1)),
    st.dictionaries(NAMES.map(lambda name: "my-" + name), NAMES),
)
def test_what_consume_writes_produce_reads_as_the_same_message(
    body: bytes, tags: str | None, keys: list[str], properties: dict[str, str]
) -> None:
    sent = Message("T", body, tags=tags, keys=keys)
    sent.properties.update(properties)  # those of other clients may be blank
    again = read_message(write_message(received(sent, UNIQ_KEY="7F00")), "T", number=1).message
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
    again = read_message(line, "T", number=1).message
    assert (again.properties, again.tags) == ({"mine": "1", "TAGS": "t"}, "t")
    with pytest.raises(MessageError, match=r"^line 3: property 'DELAY' belongs to RocketMQ"):
        read_message(b'{"body": "x", "properties": {"DELAY": "3"}}', "T", number=3)


def test_the_sharding_key_of_a_received_message_chooses_its_queue_again() -> None:
    line = write_message(received(Message("T", b"x"), __SHARDINGKEY="order 42"))
    assert json.loads(line)["sharding_key"] == "order 42"
    assert "properties" not in json.loads(line)
    read = read_message(line, "elsewhere", number=1)
    assert (read.message.topic, read.sharding_key, read.queue) == ("elsewhere", "order 42", None)


def test_what_dlq_export_writes_of_a_letter_is_read_too() -> None:
    marks = {"MSG_REGION": "r", "TRACE_ON": "true", "ORIGIN_MESSAGE_ID": "7F00"}
    letter = DeadLetter("billing", received(Message("%DLQ%billing", b"x", tags="t"), **marks))
    read = read_message(msgspec.json.encode(letter_row(letter)), "T", number=1)
    assert (read.message.body, read.message.properties) == (b"x", {"TAGS": "t"})


_NUMBER = st.from_regex(
    r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,4})?", fullmatch=True
)
_JSON = st.recursive(
    _NUMBER | st.sampled_from(["null", "true"]) | st.text().map(json.dumps),
    lambda inner: (
        st.lists(inner).map(lambda items: f"[ {' ,'.join(items)}]")
        | st.dictionaries(st.text().map(json.dumps), inner).map(
            lambda pairs: f"{{{', '.join(f'{name} :{value}' for name, value in pairs.items())} }}"
        )
    ),
)


@given(_JSON)
def test_the_text_of_a_body_that_is_json_is_sent_as_it_is_written(text: str) -> None:
    sent = read_message(f'{{"body": {text} , "tags": "A"}}'.encode(), "T", number=1).message
    assert sent.body.decode() == (json.loads(text) if text.startswith('"') else text)


@pytest.mark.parametrize("line", [b'{"body": "\xff"}', b'{"body": {"a": "\xff"}}'])
def test_a_body_that_is_not_utf_8_is_refused(line: bytes) -> None:
    with pytest.raises(MessageError, match="line 1 is not a message"):
        read_message(line, "T", number=1)


def test_a_line_in_utf_16_is_named() -> None:
    with pytest.raises(MessageError, match="line 1 is UTF-16; the input must be UTF-8"):
        read_message('{"body": "x"}'.encode("utf-16"), "T", number=1)
