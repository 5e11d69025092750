"""The load generator measures nothing that it has not checked: each kind of wrong answer ends it
with its own sentence."""

import struct
from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from bench import generator
from bench.cases import CASES, TOPIC_QUEUES, Case
from bench.generator import LoadError, LoadResult
from bench.tests.scripted_broker import Answer, Header, reply, scripted_broker

SEND, BATCH, PULL = (
    Case(mode, mode, mode=mode, outstanding=8, body_size=100, count=4)
    for mode in ("send", "batch", "pull")
)


def good_sends() -> Answer:
    """Answers sends and batches with growing offsets, as a broker does."""
    next_offset: Counter[str] = Counter()

    def answer(request: Header, body: bytes) -> bytes:
        queue = request["extFields"]["e"]
        place = request["extFields"]["b"] + queue
        offset = next_offset[place]
        next_offset[place] += 4 if request["code"] == 320 else 1
        return reply(request, {"queueId": queue, "queueOffset": str(offset), "msgId": "7F"})

    return answer


def run(case: Case, answer: Answer, limit: int = 200) -> list[tuple[Header, bytes]]:
    with scripted_broker(answer) as broker:
        assert (
            generator.fill(broker.port, [*case.arguments(), "--limit", str(limit)], core=0) >= limit
        )
        return broker.requests


def complaint(case: Case, answer: Answer) -> str:
    with scripted_broker(answer) as broker, pytest.raises(LoadError) as caught:
        generator.fill(broker.port, [*case.arguments(), "--limit", "200"], core=0)
    return str(caught.value)


def test_a_send_has_the_fields_of_apaches_java_client() -> None:
    header, body = run(SEND, good_sends())[0]
    fields = header.pop("extFields")
    assert header == {
        "code": 310, "flag": 0, "language": "JAVA", "opaque": 1, "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    }  # fmt: skip
    assert len(fields.pop("g")) == 13
    unique_id = fields.pop("i").removeprefix("UNIQ_KEY\x01").removesuffix("\x02WAIT\x01true\x02")
    assert len(bytes.fromhex(unique_id)) == 16
    assert unique_id.startswith("7F000001")
    assert fields == {
        "a": "bench", "b": "bench-send", "c": "TBW102", "d": "8", "e": "0", "f": "0", "h": "0",
        "j": "0", "k": "false", "m": "false", "n": "broker-a",
    }  # fmt: skip
    assert len(body) == 100


def test_every_message_has_an_id_of_its_own_and_the_queues_take_turns() -> None:
    requests = run(SEND, good_sends(), limit=1000)
    assert len({header["extFields"]["i"] for header, _ in requests}) == len(requests) == 1000
    assert set(Counter(header["extFields"]["e"] for header, _ in requests).values()) == {
        1000 // TOPIC_QUEUES
    }


def test_sends_to_many_topics_go_round_them_and_after_each_round_to_the_next_queue() -> None:
    with scripted_broker(good_sends()) as broker:
        arguments = [*SEND.arguments(), "--topics", "300", "--limit", "2400"]
        assert generator.fill(broker.port, arguments, core=0) == 2400
        sent = [header["extFields"] for header, _ in broker.requests]
    places = [(fields["b"], fields["e"]) for fields in sent]
    assert places[:301] == [*((f"bench-send-{n}", "0") for n in range(300)), ("bench-send-0", "1")]
    assert len(set(places)) == 2400


def test_an_offset_given_out_twice_is_noticed_in_any_of_many_topics() -> None:
    def answer(request: Header, _body: bytes) -> bytes:
        return reply(request, {"queueId": request["extFields"]["e"], "queueOffset": "5"})

    arguments = [*SEND.arguments(), "--topics", "20", "--limit", "161"]
    with scripted_broker(answer) as broker, pytest.raises(LoadError, match="given out twice"):
        generator.fill(broker.port, arguments, core=0)


def test_a_batch_body_holds_whole_messages_with_their_own_ids() -> None:
    header, body = run(BATCH, good_sends())[0]
    assert (header["code"], header["extFields"]["m"]) == (320, "true")
    ids = set()
    for _ in range(4):
        size, magic, crc, flag, body_size = struct.unpack_from(">5i", body)
        assert (magic, crc, flag, body_size) == (0, 0, 0, 100)
        properties = body[22 + body_size : size].decode()
        assert struct.unpack_from(">h", body, 20 + body_size)[0] == len(properties)
        ids.add(dict(pair.split("\x01") for pair in properties.split("\x02")[:-1])["UNIQ_KEY"])
        body = body[size:]
    assert body == b""
    assert len(ids) == 4


def test_a_measured_window_counts_what_was_answered_in_it() -> None:
    with scripted_broker(good_sends()) as broker:
        result = generator.measure_load(
            broker.port, SEND.arguments(), core=0, seconds=0.2, settle=0.05
        )
        assert 0 < result.messages == result.requests <= len(broker.requests)
    assert 0 < result.p50_us <= result.p99_us <= result.p999_us <= result.max_us * 1.01
    # it begins when the settling is seen to be over, which is late on a busy machine
    assert 0.1 < result.seconds < 1.0


def test_a_refusal_ends_the_run_with_the_brokers_words() -> None:
    assert '"code":2,' in complaint(SEND, lambda request, _: reply(request, {}, code=2))


def test_an_answer_to_nobodys_request_ends_the_run() -> None:
    fields = {"queueId": "0", "queueOffset": "0"}
    assert "opaque=77" in complaint(SEND, lambda request, _: reply(request, fields, opaque=77))


def test_an_offset_given_out_twice_ends_the_run() -> None:
    def answer(request, _):  # type: ignore[no-untyped-def]
        return reply(request, {"queueId": request["extFields"]["e"], "queueOffset": "5"})

    assert "queueOffset=5 of queueId=0 was given out twice" in complaint(SEND, answer)


def test_a_message_that_was_acknowledged_but_has_no_offset_ends_the_run() -> None:
    given: Counter[str] = Counter()

    def answer(request: Header, body: bytes) -> bytes:
        queue = request["extFields"]["e"]
        given[queue] += 1
        offset = 3000 if given[queue] == 4 else given[queue] - 1
        return reply(request, {"queueId": queue, "queueOffset": str(offset)})

    assert "their offsets span 3001" in complaint(SEND, answer)


def test_an_answer_for_another_queue_ends_the_run() -> None:
    assert "another queue" in complaint(
        SEND, lambda request, _: reply(request, {"queueId": "9", "queueOffset": "0"})
    )


def test_an_answer_that_is_cut_short_ends_the_run() -> None:
    def answer(request: Header, body: bytes) -> bytes:
        raise BrokenPipeError

    assert "closed the connection" in complaint(SEND, answer)


def stored_message(queue: int, offset: int, body: bytes) -> bytes:
    """An entry as store.md 1.1 has it, with IPv4 hosts and no properties."""
    head = struct.pack(">IIiiqqiqqqqiq", 0xDAA320A7, 0, queue, 0, offset, 0, 0, 0, 0, 0, 0, 0, 0)
    entry = head + struct.pack(">i", len(body)) + body + b"\x0abench-pull" + struct.pack(">h", 0)
    return struct.pack(">i", len(entry) + 4) + entry


def pulls(body: bytes, *, end: int = 10) -> Answer:
    """Answers pulls from queues of `end` messages that all have this body."""

    def answer(request: Header, _: bytes) -> bytes:
        fields = request["extFields"]
        queue, offset = int(fields["queueId"]), int(fields["queueOffset"])
        stop = min(end, offset + int(fields["maxMsgNums"]))
        messages = b"".join(stored_message(queue, each, body) for each in range(offset, stop))
        return reply(
            request,
            {"nextBeginOffset": str(stop), "minOffset": "0", "maxOffset": str(end)},
            messages,
        )

    return answer


def pull(answer: Answer) -> Counter[tuple[str, str]]:
    """The (queue, offset) pairs that a short window asked for."""
    with scripted_broker(answer) as broker:
        generator.measure_load(broker.port, PULL.arguments(), core=0, seconds=0.1, settle=0.02)
        fields = [header["extFields"] for header, _ in broker.requests]
    assert {each["subscription"] for each in fields} == {"*"}
    return Counter((each["queueId"], each["queueOffset"]) for each in fields)


def payload() -> bytes:
    """Return the body that the generator sends, and expects in its pulls."""
    return run(SEND, good_sends(), limit=1)[0][1]


def test_pulls_walk_each_queue_to_its_end_and_begin_again() -> None:
    asked = pull(pulls(payload()))
    assert set(asked) == {
        (str(queue), offset) for queue in range(TOPIC_QUEUES) for offset in ("0", "4", "8")
    }


def test_pulls_that_read_once_walk_each_queue_to_its_end_and_stop_there() -> None:
    arguments = [*PULL.arguments(), "--once"]
    with scripted_broker(pulls(payload())) as broker:
        out = generator.finish_load(generator.start_load(broker.port, arguments, core=0))
        fields = [header["extFields"] for header, _ in broker.requests]
    asked = sorted((each["queueId"], each["queueOffset"]) for each in fields)
    assert asked == sorted((str(q), at) for q in range(TOPIC_QUEUES) for at in ("0", "4", "8"))
    result = msgspec.json.decode(out, type=LoadResult)
    assert (result.messages, result.requests) == (10 * TOPIC_QUEUES, 3 * TOPIC_QUEUES)
    assert 0 < result.p50_us <= result.p99_us


def test_reading_once_needs_a_pull_for_each_queue() -> None:
    arguments = [*replace(PULL, outstanding=4).arguments(), "--once"]
    with scripted_broker(pulls(payload())) as broker, pytest.raises(LoadError, match="each queue"):
        generator.finish_load(generator.start_load(broker.port, arguments, core=0))


def test_a_pulled_message_with_another_body_ends_the_run() -> None:
    with pytest.raises(
        LoadError, match=r"the body of queueId=\d queueOffset=0 is not what was sent"
    ):
        pull(pulls(b"x" * 100))


def test_a_pulled_message_of_another_place_ends_the_run() -> None:
    body = payload()

    def answer(request: Header, _: bytes) -> bytes:
        fields = {"nextBeginOffset": "1", "minOffset": "0", "maxOffset": "10"}
        return reply(request, fields, stored_message(int(request["extFields"]["queueId"]), 7, body))

    with pytest.raises(LoadError, match=r"got queueId=\d queueOffset=7"):
        pull(answer)


def test_each_case_of_the_table_is_one_that_the_generator_takes() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
    for case in CASES:
        if case.mode != "pull" and case.connections == 1:
            plain = replace(case, count=4 if case.mode == "batch" else 1, tls=False)
            run(plain, good_sends())
