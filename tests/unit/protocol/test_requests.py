"""Every declared request and reply, walked over: what goes out as header fields comes back the
same."""

import msgspec
import pytest
from tests.unit.protocol.headers import REPLIES, REQUESTS, filled, sample

from turbopump.errors import HeaderError
from turbopump.protocol.codes import RequestCode
from turbopump.protocol.request import Header, Request, header_from_ext
from turbopump.protocol.requests.clients import UnregisterClient
from turbopump.protocol.requests.offsets import (
    GetMaxOffset,
    QueryConsumerOffset,
    UpdateConsumerOffset,
)
from turbopump.protocol.requests.pull import PullMessage
from turbopump.protocol.requests.send import SendBatchMessage, SendMessage, SendMessageV2
from turbopump.protocol.requests.topics import CreateTopic


@pytest.mark.parametrize("type_", REQUESTS + REPLIES, ids=lambda type_: type_.__name__)
def test_a_header_with_every_field_set_comes_back_from_its_strings(type_: type[Header]) -> None:
    header = filled(type_)
    ext = header.to_ext()
    assert len(ext) == len(msgspec.structs.fields(type_))
    assert all(type(value) is str for value in ext.values())
    assert header_from_ext(type_, ext) == header


@pytest.mark.parametrize("type_", REQUESTS + REPLIES, ids=lambda type_: type_.__name__)
def test_fields_that_may_be_absent_are_not_needed_and_not_written(type_: type[Header]) -> None:
    required = {
        field.name: sample(field.type, number)
        for number, field in enumerate(msgspec.structs.fields(type_))
        if field.required
    }
    header = type_(**required)
    assert header_from_ext(type_, type_(**required).to_ext()) == header
    assert "None" not in header.to_ext().values()


@pytest.mark.parametrize("type_", REQUESTS, ids=lambda type_: type_.__name__)
def test_each_missing_required_field_is_named(type_: type[Header]) -> None:
    for field in msgspec.structs.fields(type_):
        ext = filled(type_).to_ext()
        del ext[field.encode_name]
        if not field.required:
            assert getattr(header_from_ext(type_, ext), field.name) in (field.default, None)
            continue
        with pytest.raises(HeaderError, match=f"field {field.name}.* is missing"):
            header_from_ext(type_, ext)


@pytest.mark.parametrize("type_", REQUESTS + REPLIES, ids=lambda type_: type_.__name__)
def test_numbers_beyond_java_s_width_count_as_absent_where_nothing_is_guessed_then(
    type_: type[Header],
) -> None:
    for field in msgspec.structs.fields(type_):
        value = getattr(filled(type_), field.name)
        if isinstance(value, bool) or not isinstance(value, int):
            continue
        for beyond in (str(2**63), str(-(2**63) - 1), "9" * 5000):
            ext = {**filled(type_).to_ext(), field.encode_name: beyond}
            if field.required or (issubclass(type_, Request) and field.default is not None):
                with pytest.raises(
                    HeaderError, match=f"field {field.name}.* has the unusable value '"
                ):
                    header_from_ext(type_, ext)
            else:
                assert getattr(header_from_ext(type_, ext), field.name) == field.default


def test_every_request_has_its_own_code() -> None:
    codes = [type_.code for type_ in REQUESTS]
    assert len(REQUESTS) > 20
    assert len(set(codes)) == len(codes)
    assert all(RequestCode(code) for code in codes)


def test_names_on_the_wire_are_apache_s() -> None:
    send = SendMessageV2(
        producer_group="g", topic="T", queue_id=1, properties="p", batch=True, broker_name="b"
    ).to_ext()
    assert send == {
        "a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": "0", "h": "0",
        "i": "p", "m": "true", "n": "b",
    }  # fmt: skip
    assert issubclass(SendBatchMessage, SendMessageV2)
    assert set(UnregisterClient(client_id="c", consumer_group="g").to_ext()) == {
        "clientID",
        "consumerGroup",
    }
    common = GetMaxOffset(
        topic="T", queue_id=0, namespace="n", namespaced=True, bname="b", oneway=False, logical=True
    )
    assert common.to_ext() == {
        "topic": "T", "queueId": "0", "ns": "n", "nsd": "true", "bname": "b",
        "oway": "false", "lo": "true",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("7", 7),
        (" 7 ", 7),
        ("-1", -1),
        ("x", None),
        ("", None),
        ("1.5", None),
        ("true", None),
        ("9" * 30, None),
    ],
)
def test_a_value_that_does_not_parse_counts_as_absent(sent: str, read: int | None) -> None:
    ext = {"consumerGroup": "g", "topic": "T", "queueId": sent}
    assert header_from_ext(UpdateConsumerOffset, ext).queue_id == read


@pytest.mark.parametrize(
    ("sent", "read"),
    [("true", True), ("TRUE", True), ("false", False), ("1", True), ("perhaps", None)],
)
def test_a_boolean_is_read_as_clients_write_it(sent: str, read: bool | None) -> None:
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "setZeroIfNotFound": sent}
    assert header_from_ext(QueryConsumerOffset, ext).set_zero_if_not_found is read


def test_numbers_and_booleans_may_come_bare_and_unknown_fields_are_passed_over() -> None:
    ext = {
        "topic": 5,
        "queueId": 3,
        "defaultTopic": True,
        "batch": False,
        "OnsChannel": "ALIYUN",
        "Signature": "",
    }
    header = header_from_ext(SendMessage, ext)
    assert (header.topic, header.queue_id, header.default_topic, header.batch) == (
        "5",
        3,
        "true",
        False,
    )


def test_what_a_4_9_client_leaves_out_takes_its_default() -> None:
    ext = {"consumerGroup": "g", "topic": "T", "queueId": "0", "queueOffset": "5"}
    pull = header_from_ext(PullMessage, ext)
    assert (pull.max_msg_nums, pull.sys_flag, pull.expression_type, pull.max_msg_bytes) == (
        32,
        0,
        None,
        None,
    )
    topic = header_from_ext(
        CreateTopic, {"topic": "T", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6"}
    )
    assert (topic.read_queue_nums, topic.attributes, topic.order) == (4, None, False)
