"""Both header forms, both directions: what we write, what real clients send, and what is
refused."""

import json
import struct
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.metered_loop import cpu_seconds_of

from turbopump.errors import HeaderError
from turbopump.protocol.codes import CURRENT_VERSION, LanguageCode, RequestCode
from turbopump.protocol.command import (
    EXT_FIELDS_MAX,
    Command,
    decode_command,
    encode_command,
    request_command,
)
from turbopump.protocol.frame import JSON, ROCKETMQ, Frame, FrameReader
from turbopump.protocol.requests.offsets import GetMaxOffset
from turbopump.protocol.requests.pull import PullMessage

INT32 = st.integers(-(2**31), 2**31 - 1)
INT16 = st.integers(-(2**15), 2**15 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def read(header: object, body: bytes = b"") -> Command:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    return decode_command(Frame(JSON, data, body))


def only_frame(data: bytes) -> Frame:
    (frame,) = FrameReader().feed(data)
    return frame


def fields(command: Command) -> tuple[object, ...]:
    return (
        command.code,
        command.opaque,
        command.flag,
        command.language,
        command.version,
        command.remark,
        command.ext,
        command.body,
        command.serialize_type,
    )


commands = st.builds(
    Command,
    INT16,
    opaque=INT32,
    flag=INT32,
    language=st.sampled_from([language.value for language in LanguageCode]),
    version=INT16,
    remark=st.none() | TEXT.filter(bool),
    ext=st.none() | st.dictionaries(TEXT, TEXT.filter(bool), min_size=1, max_size=5),
    body=st.binary(max_size=50),
    serialize_type=st.sampled_from([JSON, ROCKETMQ]),
)


@given(commands)
def test_a_command_comes_back_as_it_went_in_either_form(command: Command) -> None:
    assert fields(decode_command(only_frame(encode_command(command)))) == fields(command)


# --- JSON ---


def test_a_json_header_has_sorted_keys_and_no_nulls() -> None:
    command = request_command(GetMaxOffset(topic="T", queue_id=3), opaque=7)
    header = only_frame(encode_command(command)).header
    assert header == (
        b'{"code":30,"extFields":{"topic":"T","queueId":"3"},"flag":0,"language":"PYTHON","opaque":7,'
        b'"serializeTypeCurrentRPC":"JSON","version":%d}' % CURRENT_VERSION
    )


def test_a_request_without_fields_has_no_ext_fields() -> None:
    assert b"extFields" not in encode_command(Command(106))


def test_numbers_and_booleans_among_the_header_fields_become_strings() -> None:
    sent = {
        "code": 11,
        "extFields": {
            "queueId": 3,
            "oway": True,
            "x": False,
            "ratio": 1.5,
            "list": [1, "a"],
            "none": None,
        },
    }
    assert read(sent).ext == {
        "queueId": "3",
        "oway": "true",
        "x": "false",
        "ratio": "1.5",
        "list": '[1,"a"]',
    }


@pytest.mark.parametrize(
    ("sent", "language"),
    [
        ("JAVA", 0),
        ("CPP", 1),
        ("GO", 9),
        (1, 1),
        (12, 12),
        ("KLINGON", LanguageCode.OTHER),
        (None, LanguageCode.OTHER),
        (True, 7),
    ],
)
def test_a_language_may_be_a_name_a_number_or_unknown(sent: object, language: int) -> None:
    assert read({"code": 1, "language": sent}).language == language


def test_everything_but_the_code_may_be_absent() -> None:
    command = read({"code": 34}, b"x")
    assert fields(command) == (34, 0, 0, LanguageCode.OTHER, 0, None, None, b"x", JSON)
    assert not command.is_response
    assert not command.is_oneway


def test_numbers_may_come_as_strings_and_unknown_keys_are_passed_over() -> None:
    command = read(
        {"code": "34", "opaque": "5", "flag": "2", "version": "401", "OnsChannel": "ALIYUN"}
    )
    assert (command.code, command.opaque, command.is_oneway, command.version) == (34, 5, True, 401)


def test_of_a_key_given_twice_the_last_counts() -> None:
    command = read(b'{"code":10,"code":11,"extFields":{"a":"1","a":"2"}}')
    assert (command.code, command.ext) == (11, {"a": "2"})


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b'"code"',
        b"{}",
        b'{"code":null}',
        b'{"code":"x"}',
        b'{"code":1.5}',
        b'{"code":NaN}',
        b'{"code":1,"extFields":{"a":NaN}}',
        b'{"code":1,"extFields":{"a":Infinity}}',
        b'{"code":1,"extFields":[]}',
        b'{"code":1,"opaque":{}}',
        b'{"code":1}{"code":2}',
        b'{"code":1,"remark":"\\ud800"}',
        b'{"code":' + b"9" * 5_000_000 + b"}",
        b'{"code":1,"extFields":{"a":' + b"9" * 5_000_000 + b"}}",
        b'{"code":1,"extFields":{"a":1e999}}',
        b'{"code":1,"extFields":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
        b'{"code":1,"language":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}",
    ],
    ids=lambda header: header[:30].decode("latin-1"),
)
def test_what_is_no_header_is_refused_with_one_kind_of_error(header: bytes) -> None:
    with pytest.raises(HeaderError, match="bad JSON header"):
        read(header)


def test_a_number_beyond_java_is_no_header_field_of_ours_but_breaks_nothing() -> None:
    assert read(b'{"code":1,"extFields":{"a":' + b"9" * 40 + b"}}").ext == {"a": "9" * 40}


@pytest.mark.parametrize("key", ["code", "opaque", "flag", "version"])
@pytest.mark.parametrize("value", [2**31, -(2**31) - 1, 10**30])
def test_a_header_number_beyond_java_s_int_is_refused(key: str, value: int) -> None:
    with pytest.raises(HeaderError, match="bad JSON header"):
        read({"code": 1, key: value})


def test_ten_thousand_header_fields_are_read_and_one_more_is_refused() -> None:
    many = {str(number): "" for number in range(EXT_FIELDS_MAX)}
    assert read({"code": 1, "extFields": many}).ext == many
    with pytest.raises(HeaderError, match="10001 header fields are more than the 10000 allowed"):
        read({"code": 1, "extFields": {**many, "x": ""}})


def refused(header: Any) -> None:
    with pytest.raises(HeaderError, match="more than the 10000 header fields"):
        read(header)


def test_a_header_of_a_million_fields_is_refused_before_they_are_read() -> None:
    header = b'{"code":1,"extFields":{%b"b":""}}' % (b'"a":"",' * 500_000)

    assert cpu_seconds_of(partial(refused, header)) < 0.01
    with pytest.raises(HeaderError, match="a header of 5000000 bytes, more than 4194304"):
        read(header.ljust(5_000_000))


def test_line_separators_and_control_characters_are_written_as_fastjson_does() -> None:
    header = only_frame(encode_command(Command(1, remark="a\u2028b\x7fc\x80é"))).header
    assert "\\u2028" in header.decode()
    assert read(header).remark == "a\u2028b\x7fc\x80é"


# --- ROCKETMQ ---


def binary(
    *,
    code: int = 11,
    remark: bytes = b"",
    ext: bytes = b"",
    remark_size: int | None = None,
    ext_size: int | None = None,
) -> bytes:
    fixed = struct.pack(
        ">hBhiii", code, 9, 401, 42, 0, len(remark) if remark_size is None else remark_size
    )  # code, language, version, opaque, flag
    return fixed + remark + struct.pack(">i", len(ext) if ext_size is None else ext_size) + ext


def pair(key: bytes, value: bytes) -> bytes:
    return struct.pack(">h", len(key)) + key + struct.pack(">i", len(value)) + value


@pytest.mark.parametrize(
    "frame",
    [
        b'{"code":1,"remark":"\xff","extFields":{"a":"\xc3(","\xff":1}}',
        binary(remark=b"\xff", ext=pair(b"a", b"\xc3(") + pair(b"\xff", b"1")),
    ],
    ids=["JSON", "ROCKETMQ"],
)
def test_bytes_that_are_no_utf8_are_read_as_java_reads_them(frame: bytes) -> None:
    command = decode_command(Frame(ROCKETMQ if frame[0] == 0 else JSON, frame, b""))
    assert command.remark == "\ufffd"
    assert command.ext == {"a": "\ufffd(", "\ufffd": "1"}


def test_a_binary_header_is_read_field_by_field() -> None:
    header = binary(remark="ü".encode(), ext=pair(b"topic", b"T") + pair(b"queueId", b"0"))
    command = decode_command(Frame(ROCKETMQ, header, b"body"))
    assert fields(command) == (
        11,
        42,
        0,
        LanguageCode.GO,
        401,
        "ü",
        {"topic": "T", "queueId": "0"},
        b"body",
        ROCKETMQ,
    )


def test_a_binary_header_is_written_field_by_field() -> None:
    command = Command(
        11,
        opaque=42,
        language=9,
        version=401,
        remark="ü",
        ext={"topic": "T", "queueId": "0"},
        serialize_type=ROCKETMQ,
    )
    header = only_frame(encode_command(command)).header
    assert header == binary(remark="ü".encode(), ext=pair(b"topic", b"T") + pair(b"queueId", b"0"))


def test_an_empty_value_in_a_binary_header_is_absent() -> None:
    command = decode_command(Frame(ROCKETMQ, binary(ext=pair(b"a", b"") + pair(b"b", b"1")), b""))
    assert command.ext == {"b": "1"}


GOOD = binary(remark=b"remark", ext=pair(b"topic", b"T") + pair(b"queueId", b"12"))


@pytest.mark.parametrize("size", range(len(GOOD)))
def test_a_binary_header_cut_anywhere_is_refused(size: int) -> None:
    with pytest.raises(HeaderError, match="bad ROCKETMQ header"):
        decode_command(Frame(ROCKETMQ, GOOD[:size], b""))


@pytest.mark.parametrize(
    "header",
    [
        binary(remark_size=-1),
        binary(remark_size=2**31 - 1),
        binary(ext=b"\xff\xff" + b"\0" * 20),
        binary(ext=b"\x00\x01a" + b"\xff\xff\xff\xff" + b"\0" * 20),
        binary(ext=b"\x00\x01a" + b"\x7f\xff\xff\xff" + b"\0" * 20),
        binary(ext=b"\x00"),
        binary(ext=b"", ext_size=1000),
    ],
)
def test_a_binary_header_whose_lengths_or_texts_lie_is_refused(header: bytes) -> None:
    with pytest.raises(HeaderError, match="bad ROCKETMQ header"):
        decode_command(Frame(ROCKETMQ, header, b""))


def test_bytes_that_are_no_utf_8_are_replaced_in_nested_values_too() -> None:
    header = (
        b'{"code":310,"extFields":{"a\xcb":"b\xcb","nested":{"c\xcb":["d\xcb",1,null]},"e":null}}'
    )
    assert decode_command(Frame(JSON, header, b"")).ext == {
        "a\ufffd": "b\ufffd",
        "nested": '{"c\ufffd":["d\ufffd",1,null]}',
    }


@pytest.mark.parametrize("value", [b"", b"v"])
@pytest.mark.parametrize("same_name", [True, False])
def test_a_binary_header_of_too_many_fields_is_refused(value: bytes, same_name: bool) -> None:
    ext = b"".join(
        pair(b"0" if same_name else b"%d" % number, value) for number in range(EXT_FIELDS_MAX + 1)
    )
    with pytest.raises(HeaderError, match="more than 10000 header fields"):
        decode_command(Frame(ROCKETMQ, binary(ext=ext), b""))


@given(st.binary(max_size=80))
def test_random_bytes_as_a_header_are_read_or_refused_and_nothing_else(data: bytes) -> None:
    for form in (JSON, ROCKETMQ):
        try:
            command = decode_command(Frame(form, data, b""))
        except HeaderError:
            continue
        assert isinstance(command.code, int)


def test_codes_beyond_sixteen_bits_do_not_travel_in_a_binary_header() -> None:
    with pytest.raises(
        HeaderError, match="code 200050 does not fit the 16 bits of a ROCKETMQ header"
    ):
        encode_command(Command(200050, serialize_type=ROCKETMQ))
    assert read(only_frame(encode_command(Command(200050))).header).code == 200050


@pytest.mark.parametrize("form", [JSON, ROCKETMQ])
def test_a_typed_request_survives_either_form(form: int) -> None:
    pull = PullMessage(
        consumer_group="g", topic="T", queue_id=1, queue_offset=2**40, subscription="a || b"
    )
    command = request_command(pull, b"body", opaque=9, oneway=True)
    command.serialize_type = form
    received = decode_command(only_frame(encode_command(command)))
    assert received.header(PullMessage) == pull
    assert (received.code, received.opaque, received.is_oneway, received.body) == (
        RequestCode.PULL_MESSAGE,
        9,
        True,
        b"body",
    )


def test_a_command_shows_itself_without_its_body() -> None:
    assert repr(Command(10, opaque=1, body=b"12345")) == (
        "<request code=10 opaque=1 remark=None ext=None body=5 B>"
    )
    assert "<response" in repr(Command(0, flag=1))


def test_a_header_is_msgspec_s_own_json_where_the_two_agree() -> None:
    header = only_frame(encode_command(Command(0, flag=1, ext={"a": "é\n"}))).header
    assert msgspec.json.decode(header)["extFields"] == {"a": "é\n"}
