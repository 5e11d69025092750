"""The fastjson dialect: what is read, what is written, and what is refused within bounds."""

from __future__ import annotations

import time
from enum import IntEnum, StrEnum
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.loops import outcome_of
from tests.stand_ins import raises
from tests.unit.metered_loop import TURN_MAX_S, cpu_seconds_of

from turbopump.errors import BodyError, ProtocolError
from turbopump.message.java import Int32, Int64
from turbopump.message.message import MessageQueue
from turbopump.protocol import fastjson
from turbopump.protocol.fastjson import FastjsonError
from turbopump.protocol.fastjson_read import to_standard


class Colour(StrEnum):
    RED = "RED"
    GREEN = "GREEN"


class Level(IntEnum):
    LOW = 10
    HIGH = 20


class Bean(msgspec.Struct, kw_only=True, rename="camel"):
    broker_addrs: dict[int, str] = msgspec.field(default_factory=dict)
    name: str | None = None
    count: Int32 = 7
    total: Int64 | None = None
    colour: Colour = Colour.RED
    level: Level | None = None
    enabled: bool = False
    rate: float = 0.0
    offsets: dict[MessageQueue, Int64] = msgspec.field(default_factory=dict)
    data: bytes | None = None
    some_list: list[int] = msgspec.field(default_factory=list)
    some_set: tuple[str, ...] = ()
    inner: Bean | None = None


QUEUE = MessageQueue("t", "b", 3)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"brokerAddrs":{0:"a:1",1:"b:2"}}', Bean(broker_addrs={0: "a:1", 1: "b:2"})),
        ('{"brokerAddrs":{"0":"a:1"}}', Bean(broker_addrs={0: "a:1"})),
        ('{"brokerAddrs" : { -1 : "a" , 2\t:"b" } }', Bean(broker_addrs={-1: "a", 2: "b"})),
        ('{"offsets":{{"brokerName":"b","queueId":3,"topic":"t"}:5}}', Bean(offsets={QUEUE: 5})),
        (
            '{"offsets":{{"topic":"t","queueId":"3","brokerName":"b","x":[1]} : "5"}}',
            Bean(offsets={QUEUE: 5}),
        ),
        (
            r'{"offsets":{"{\"brokerName\":\"b\",\"queueId\":3,\"topic\":\"t\"}":5}}',
            Bean(offsets={QUEUE: 5}),
        ),
        (
            '{"offsets":{{"topic":"t}:{\\"","queueId":3,"brokerName":"7:"}:5}}',
            Bean(offsets={MessageQueue('t}:{"', "7:", 3): 5}),
        ),
        ('{"name":"it\'s","count":"12"}', Bean(name="it's", count=12)),
        ('{"name":5,"total":"9223372036854775807"}', Bean(name="5", total=2**63 - 1)),
        ('{"name":true,"enabled":1}', Bean(name="true", enabled=True)),
        ('{"enabled":"true","rate":"1.5"}', Bean(enabled=True, rate=1.5)),
        ('{"colour":1,"level":20}', Bean(colour=Colour.GREEN, level=Level.HIGH)),
        ('{"colour":"GREEN","level":"LOW"}', Bean(colour=Colour.GREEN, level=Level.LOW)),
        ('{"colour":"MAUVE","level":99}', Bean()),
        (
            '{"count":null,"someList":null,"someSet":["a",null],"colour":null}',
            Bean(some_set=("a",)),
        ),
        ('{"count":"","total":"null"}', Bean()),
        ('{"count":1,"count":2,"unknown":{"a":[1,{0:2}]}}', Bean(count=2)),
        ('{"data":"AAH/"}', Bean(data=b"\0\1\xff")),
        ('{"rate":null,"name":"a{0:1"}', Bean(name="a{0:1")),
        ('{"count":3,"inner":{"count":4}}', Bean(count=3, inner=Bean(count=4))),
        ('{"name":"\\ud83d\\ude00\\u0041\\/\\u000B"}', Bean(name="😀A/\v")),
        ("{}", Bean()),
    ],
)
def test_what_peers_send_is_read(text: str, expected: Bean) -> None:
    assert fastjson.decode(text.encode(), Bean) == expected


def test_bytes_that_are_no_utf8_are_read_as_java_reads_them() -> None:
    assert fastjson.decode(b'{"name":"a\xffb"}', Bean) == Bean(name="a\ufffdb")


def test_parse_gives_builtins_with_texts_as_keys() -> None:
    parsed = fastjson.parse(b'{"a":[1,2.5,null,true],"b":{{"topic":"t","queueId":1}:{1:"x"}}}')
    assert parsed["a"] == [1, 2.5, None, True]
    assert parsed["b"] == {'{"topic":"t","queueId":1}': {"1": "x"}}


def test_an_offset_file_with_bare_keys_is_read_as_it_is_once_they_are_quoted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        fastjson, "shape", raises(AssertionError("its values were looked at one by one"))
    )
    text = b'{"offsetTable":{"t,5:\\"{1:@g":{0:5,1:6\n\t\t},"u@g":{-2:7}}}'
    assert fastjson.decode(text, dict[str, dict[str, dict[int, int]]]) == {
        "offsetTable": {'t,5:"{1:@g': {0: 5, 1: 6}, "u@g": {-2: 7}}
    }


def test_the_wire_form_is_what_fastjson_writes() -> None:
    bean = Bean(
        broker_addrs={0: "a:1", 1: "b:2"},
        offsets={QUEUE: 5},
        data=b"\0\1\xff",
        level=Level.HIGH,
        some_list=[1, 2],
        some_set=("x",),
        inner=Bean(name="ü"),
    )
    assert fastjson.encode(bean).decode() == (
        '{"brokerAddrs":{0:"a:1",1:"b:2"},"colour":"RED","count":7,"data":"AAH/","enabled":false,'
        '"inner":{"brokerAddrs":{},"colour":"RED","count":7,"enabled":false,"name":"ü","offsets":{},"rate":0.0,'
        '"someList":[],"someSet":[]},"level":"HIGH",'
        '"offsets":{{"brokerName":"b","queueId":3,"topic":"t"}:5},"rate":0.0,"someList":[1,2],"someSet":["x"]}'
    )


def test_nulls_in_maps_are_left_out_and_in_lists_kept() -> None:
    assert fastjson.encode({"a": None, "b": [None, 1]}) == b'{"b":[null,1]}'
    assert fastjson.encode_indented({"a": None}) == b"{\n}"


def test_the_config_form_breaks_lines_for_lists_and_text_keys_only() -> None:
    value = {"list": [1, [], {}], "set": ("a", "b"), "numbers": {1: 1, 2: 2}, "objects": {QUEUE: 5}}
    assert fastjson.encode_indented(value).decode() == (
        '{\n\t"list":[\n\t\t1,\n\t\t[],\n\t\t{}\n\t],\n\t"set":["a","b"],\n\t"numbers":{1:1,2:2\n\t},\n'
        '\t"objects":{{\n\t\t\t"brokerName":"b",\n\t\t\t"queueId":3,\n\t\t\t"topic":"t"\n\t\t}:5\n\t}\n}'
    )


def test_the_standard_form_is_ascii_json_with_sorted_quoted_keys() -> None:
    text = fastjson.encode_standard({10: "ü", 9: "/", 1: {"b": 1, "a": "😀"}})
    assert text == rb'{"1":{"a":"\uD83D\uDE00","b":1},"9":"\/","10":"\u00FC"}'
    assert msgspec.json.decode(text) == {"1": {"a": "😀", "b": 1}, "9": "/", "10": "ü"}


def test_what_has_no_json_form_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(TypeError, match="object"):
        fastjson.encode({"a": object()})


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"}",
        b"[1",
        b"nul",
        b"{}x",
        b'{"a"}',
        b'{"a":}',
        b'{"a":1 "b":2}',
        b"[1 2]",
        b'"abc',
        b'"\\u12',
        b'"\\q"',
        b"'a",
        b"--1",
        b"/*",
        b"{{}}",
        b"{[1]:2}",
        b'{{"a":{}}:1}',
        b"{a:1}",
        b"{'a':1}",
        b"['a']",
        b"[1,]",
        b'{"a":1,}',
        b'{"a":NaN}',
        b'{"a":1/* a */}',
        b'{"a":1 // a\n}',
        b'["\\x41"]',
        b"\xff\xfe",
        b"\0",
    ],
)
def test_a_text_that_is_none_is_refused(text: bytes) -> None:
    with pytest.raises(FastjsonError):
        fastjson.parse(text)
    with pytest.raises(FastjsonError):
        fastjson.decode(text, Bean)


@pytest.mark.parametrize(
    "text",
    [
        b"[]",
        b"5",
        b'"x"',
        b"null",
        b'{"count":"x"}',
        b'{"count":[]}',
        b'{"count":1.5}',
        b'{"count":2147483648}',
        b'{"total":9223372036854775808}',
        b'{"someList":{}}',
        b'{"brokerAddrs":{"x":"a"}}',
        b'{"brokerAddrs":[1]}',
        b'{"offsets":{"x":5}}',
        b'{"offsets":{{"queueId":"x"}:5}}',
        b'{"data":"*"}',
        b'{"inner":{"inner":{"count":"x"}}}',
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_place(text: bytes) -> None:
    with pytest.raises(FastjsonError, match=r"Bean|MessageQueue"):
        fastjson.decode(text, Bean)


EXHAUSTING = (
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b"{" * 100_000,
    b"[" * 100_000 + b"]" * 100_000,
    b"1" * 5_000_000,
    b'{"count":' + b"9" * 5_000_000 + b"}",
    b'{"rate":1e' + b"9" * 1_000_000 + b"}",
    b"[" + b"0," * 1_500_000 + b"0]",
    b"{" + b"0:0," * 500_000 + b"x:{}}",
    b'"' + b"\\" * 4_000_001,
    b"/" * 8_000_000,
    b" " * (64 * 1024 * 1024 + 1),
)


@pytest.mark.parametrize("text", EXHAUSTING, ids=range(len(EXHAUSTING)))
def test_what_is_built_to_exhaust_is_refused_in_bounded_time(text: bytes) -> None:
    began = time.process_time()
    with pytest.raises(FastjsonError):
        fastjson.decode(text, Bean)
    assert time.process_time() - began < 5


def read(text: bytes) -> None:
    with pytest.raises(FastjsonError):
        fastjson.decode_request(text, Bean)


@pytest.mark.parametrize(
    "text",
    [
        *(text[: 4 << 20] for text in EXHAUSTING),
        b'{"someList":[' + b'{"a":1},' * 600_000,
        b'{"someList":[' + b"{{a:1}:2}," * 6_000,
        b'{"someList":[' + b'"x",' * 16_000 + b"{0:0}]}",
        b'{"brokerAddrs":{' + b"0:0," * 16_000 + b"x:0}}",
        b'{"offsets":{' + b"{}:0," * 13_000 + b'{}:"x"}}',
        b'"' + b'\\"' * 32_000,
        b"{" * 32_000 + b'"' + b'\\"' * 16_000,
        b'{"name":"' + b"\\u0041" * 10_000,
    ],
    ids=range(len(EXHAUSTING) + 8),
)
def test_no_body_of_a_request_takes_longer_than_a_turn_of_the_loop(text: bytes) -> None:
    assert cpu_seconds_of(partial(read, text)) <= TURN_MAX_S


def test_a_request_has_a_number_of_bytes_and_entries() -> None:
    one = b'{"name":"%b"}'
    assert fastjson.decode_request(one % (b"x" * 4_000_000), Bean).name == "x" * 4_000_000
    with pytest.raises(FastjsonError, match="it has 5000011 bytes and 0 entries, and may have 419"):
        fastjson.decode_request(one % (b"x" * 5_000_000), Bean)
    with pytest.raises(FastjsonError, match="of more than 65536 bytes or 2000 entries strict"):
        fastjson.decode_request(b'{0:1,"name":"%b"}' % (b"x" * 70_000), Bean)
    assert fastjson.decode_request(b'{0:1,"name":"x"}', Bean).name == "x"


def test_deep_nesting_in_a_member_nobody_reads_is_harmless() -> None:
    assert fastjson.decode(b'{"unknown":' + b"[" * 50 + b"]" * 50 + b"}", Bean) == Bean()


def test_an_error_is_a_body_error_and_says_where() -> None:
    with pytest.raises(FastjsonError, match=r"\(byte 8\)") as caught:
        fastjson.parse(b'{"a":1, !"b":2}')
    assert isinstance(caught.value, BodyError)
    assert isinstance(caught.value, ProtocolError)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_standard_json_stays_as_it_is(value: Any) -> None:
    text = msgspec.json.encode(value).decode()
    assert to_standard(text) == text
    assert to_standard(msgspec.json.format(text)) == msgspec.json.format(text)


def test_a_large_value_is_encoded_in_many_steps_and_may_change_meanwhile() -> None:
    bean = Bean(offsets={MessageQueue("t", "b", number): number for number in range(1000)})
    whole = fastjson.encode(bean)
    assert outcome_of(fastjson.encode_steps(bean)) == whole
    assert len(list(fastjson.encode_steps(bean))) > 10
    steps = fastjson.encode_steps(bean)
    next(steps)
    for number in range(900, 1000):
        del bean.offsets[MessageQueue("t", "b", number)]
    bean.offsets[MessageQueue("t", "b", 2000)] = 1
    assert sum(1 for _ in steps) > 8


@given(JSON)
def test_what_the_three_forms_say_is_the_same(value: Any) -> None:
    plain = fastjson.parse(fastjson.encode(value))
    assert fastjson.parse(fastjson.encode_indented(value)) == plain
    assert fastjson.parse(fastjson.encode_standard(value)) == plain
    assert outcome_of(fastjson.encode_steps(value)) == fastjson.encode(value)
    assert outcome_of(fastjson.encode_steps(value, standard=True)) == fastjson.encode_standard(
        value
    )


@given(JSON)
def test_the_indented_form_without_its_layout_is_the_wire_form(value: Any) -> None:
    assert fastjson.compact(fastjson.encode_indented(value)) == fastjson.encode(value)


@given(st.dictionaries(st.text(), JSON), st.dictionaries(st.text(), JSON))
def test_a_map_put_together_from_its_entries_is_the_map(
    table: dict[str, Any], other: dict[str, Any]
) -> None:
    entries = [fastjson.encode_entry(key, value) for key, value in table.items()]
    frame = fastjson.encode_indented({"a": 1, "other": other, "table": {}, "z": []})
    whole = {"a": 1, "other": other, "table": table, "z": []}
    if None not in table.values():  # a map leaves them out
        assert fastjson.put_entries(frame, "table", entries) == fastjson.encode_indented(whole)


@given(
    st.dictionaries(
        st.builds(MessageQueue, st.text(), st.text(), st.integers(-(2**31), 2**31 - 1)),
        st.integers(0, 2**62),
    )
)
def test_a_map_with_queues_as_keys_comes_back(table: dict[MessageQueue, int]) -> None:
    for writer in (fastjson.encode, fastjson.encode_indented, fastjson.encode_standard):
        assert fastjson.decode(writer(table), dict[MessageQueue, int]) == table


@given(st.binary(max_size=40) | st.text("{}[]:,'\"\\u01.e-/*nultrfa ", max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused_with_the_one_error(data: bytes) -> None:
    try:
        value = fastjson.parse(data)
    except FastjsonError:
        return
    assert value is None or isinstance(value, dict | list | str | int | float | bool)


@given(st.binary(max_size=40).map(lambda data: b'{"offsets":{' + data + b"}}"))
def test_any_body_is_read_or_refused_with_the_one_error(data: bytes) -> None:
    try:
        bean = fastjson.decode(data, Bean)
    except FastjsonError:
        return
    assert isinstance(bean, Bean)
