"""`turbopump produce`: what a line makes of a message, what is said of lines that are not sent, and
what the exit code says of messages that are stored, but perhaps not yet on the disk."""

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.stand_ins import returns

from turbopump.blocking import PullConsumer
from turbopump.cli import main
from turbopump.config.broker_config import FlushDiskType
from turbopump.disk import mapped_segments, system_disk
from turbopump.message.message import ReceivedMessage
from turbopump.testing import BrokerThread

Produce = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        yield running


@pytest.fixture
def topic(broker: BrokerThread, request: pytest.FixtureRequest) -> str:
    """A topic of four queues, named as the test."""
    name: str = request.node.originalname or request.node.name
    broker.create_topic(name, 4)
    return name


@pytest.fixture
def produce(
    broker: BrokerThread,
    topic: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> Produce:
    """Runs `turbopump produce TOPIC OPTIONS` with this input: its exit code, standard output and
    standard error."""

    def run(text: str | bytes, *options: str) -> tuple[int, str, str]:
        file = tmp_path / "input"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        with file.open() as standard_input:
            monkeypatch.setattr("sys.stdin", standard_input)
            code = main(["produce", topic, *options, "-n", broker.namesrv])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def stored(broker: BrokerThread, topic: str) -> dict[int, list[ReceivedMessage]]:
    """The messages of each queue of a topic."""
    found = {}
    with PullConsumer(broker.namesrv, group="look") as consumer:
        for queue in consumer.queues(topic):
            messages = consumer.pull(queue, 0).messages
            if messages:
                found[queue.queue_id] = list(messages)
    return found


def test_what_a_line_gives_is_stored_with_its_message(
    broker: BrokerThread, topic: str, produce: Produce
) -> None:
    line = {"body": "x", "tags": "A", "keys": ["k1"], "properties": {"p": "v"}, "queue": 2}
    assert produce(json.dumps(line)) == (0, "", f"sent 1 message to {topic}\n")
    ((queue, (message,)),) = stored(broker, topic).items()
    assert queue == 2
    assert (message.body, message.tags, message.keys) == (b"x", "A", ["k1"])
    assert message.properties["p"] == "v"


def test_what_the_options_give_is_stored_with_messages_that_say_nothing_else(
    broker: BrokerThread, topic: str, produce: Produce
) -> None:
    options = "--tags A --keys k1 --keys k2 --property p=a=b --property q=w --sharding-key 42"
    assert produce("one\ntwo\n", "--raw", *options.split())[0] == 0
    ((_, messages),) = stored(broker, topic).items()
    assert [message.body for message in messages] == [b"one", b"two"]
    for message in messages:
        assert (message.tags, message.keys) == ("A", ["k1", "k2"])
        assert message.properties["__SHARDINGKEY"] == "42"
        assert {"p": "a=b", "q": "w"}.items() <= message.user_properties.items()


def test_messages_of_one_key_are_stored_in_the_order_of_the_input(
    broker: BrokerThread, topic: str, produce: Produce
) -> None:
    lines = [{"body": str(number), "sharding_key": f"k{number % 5}"} for number in range(300)]
    assert produce("".join(json.dumps(line) + "\n" for line in lines))[0] == 0
    numbers = [
        [int(message.body) for message in messages] for messages in stored(broker, topic).values()
    ]
    assert numbers != []
    for queue in numbers:
        for key in range(5):
            of_key = [number for number in queue if number % 5 == key]
            assert of_key == sorted(of_key)


def test_messages_come_later_where_a_delay_is_given(
    broker: BrokerThread, topic: str, produce: Produce
) -> None:
    assert produce("later\n", "--raw", "--delay", "3600")[0] == 0
    assert produce("later\n", "--raw", "--delay-level", "18")[0] == 0
    assert produce("later\n", "--raw", "--deliver-at", "2999-01-01T00:00:00")[0] == 1
    assert produce('{"body": "now", "delay": 0}\n', "--delay", "3600")[0] == 0
    with PullConsumer(broker.namesrv, group="look") as consumer:
        bodies = [
            message.body
            for queue in consumer.queues(topic)
            for message in consumer.pull(queue, 0, wait=1).messages
        ]
    assert bodies == [b"now"]


def test_what_consume_and_message_write_is_produced_again(
    broker: BrokerThread, topic: str, produce: Produce, capsys: pytest.CaptureFixture[str]
) -> None:
    line = {"body_base64": "/wA=", "tags": "A", "keys": ["k"], "properties": {"p": "v"}}
    _, results, _ = produce(json.dumps(line) + "\n", "--results")
    id_ = json.loads(results)["msg_id"]
    assert main(["consume", topic, "--count", "1", "-n", broker.namesrv]) == 0
    consumed = capsys.readouterr().out
    assert main(["message", "by-id", topic, id_, "--output", "json", "-n", broker.namesrv]) == 0
    found = capsys.readouterr().out
    assert produce(consumed + found) == (0, "", f"sent 2 messages to {topic}\n")
    messages = [one for queue in stored(broker, topic).values() for one in queue]
    assert len(messages) == 3
    for message in messages:
        assert (message.body, message.tags, message.keys) == (b"\xff\x00", "A", ["k"])
        assert message.properties["p"] == "v"


def test_lines_before_one_that_is_no_message_are_sent_and_counted(
    broker: BrokerThread, topic: str, produce: Produce
) -> None:
    lines = '{"body": "1"}\n{"body": "2"}\n{"body": "3", "tag": "A"}\n{"body": "4"}\n'
    code, out, err = produce(lines, "--results")
    assert code == 1
    assert err.startswith("turbopump: line 3: the field 'tag' is not known (did you mean tags?)")
    assert err.endswith("; 2 messages are sent\n")
    assert [json.loads(line)["line"] for line in out.splitlines()] == [1, 2]
    bodies = [one.body for queue in stored(broker, topic).values() for one in queue]
    assert sorted(bodies) == [b"1", b"2"]


def test_a_message_that_is_too_large_is_named_with_what_was_sent(
    topic: str, produce: Produce
) -> None:
    code, _, err = produce(f"small\n{'x' * 5_000_000}\nlast\n", "--raw")
    assert code == 1
    assert "line 2 was not sent: the body has 5000000 bytes; at most 4194304 are allowed" in err
    assert "1 message is sent" in err or "2 messages are sent" in err
    assert err.count("\n") == 1


def test_the_whole_input_can_be_one_body(
    broker: BrokerThread, topic: str, produce: Produce
) -> None:
    picture = bytes(range(256)) + b"\n\r\n\n"
    assert produce(picture, "--whole") == (0, "", f"sent 1 message to {topic}\n")
    ((message,),) = stored(broker, topic).values()
    assert message.body == picture


@pytest.mark.parametrize("options", [(), ("--raw",)])
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_byte_order_mark_before_the_first_line_is_left_out(
    broker: BrokerThread, topic: str, produce: Produce, options: tuple[str, ...], end: bytes
) -> None:
    line = b"1.10" if options else b'{"body": 1.10}'
    assert produce(b"\xef\xbb\xbf" + line + end, *options)[0] == 0
    assert {one.body for some in stored(broker, topic).values() for one in some} == {b"1.10"}


def test_a_blank_line_is_a_body_where_lines_are_bodies(
    broker: BrokerThread, topic: str, produce: Produce
) -> None:
    assert produce("  \n\n", "--raw")[2] == f"sent 1 message to {topic}\n"
    ((message,),) = stored(broker, topic).values()
    assert message.body == b"  "


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--queue 9", "has no queue 9; it has broker-test:0 to broker-test:3"),
        ("--queue broker-b:1", "has no queue broker-b:1; it has broker-test:0 to broker-test:3"),
    ],
)
def test_a_queue_that_is_not_there_is_answered_with_those_that_are(
    produce: Produce, options: str, words: str
) -> None:
    code, _, err = produce("x\n", "--raw", *options.split())
    assert (code, words in err) == (3, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--raw --whole", "--raw and --whole do not go together"),
        ("--delay 1 --delay-level 1", "--delay, --delay-level and --deliver-at do not go together"),
        ("--queue 1 --sharding-key k", "--queue and --sharding-key both choose the queue"),
        ("--queue first", "'first' is not a queue: expected its number, or BROKER:NUMBER"),
        ("--property p", "'p': expected NAME=VALUE"),
        ("--property DELAY=3", "property 'DELAY' belongs to RocketMQ: give delay_level="),
        ("--delay nan", "nan is not a number"),
        ("--deliver-at 15m", "'15m' is not a time: expected 2026-11-21T08:30:00, ms since 1970"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    options: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["produce", "T", *options.split()]) == 2
    assert words in capsys.readouterr().err


def test_messages_that_may_not_be_on_the_disk_are_told_and_are_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    released = threading.Event()
    lines = tmp_path / "lines"
    lines.write_text("one\ntwo\n")
    with BrokerThread(flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout=20) as broker:
        broker.create_topic("T", 1)
        monkeypatch.setattr(mapped_segments, "_fdatasync", lambda _fd: released.wait(60))
        monkeypatch.setattr(system_disk.KernelSyncs, "start", returns(False))
        with lines.open() as standard_input:
            monkeypatch.setattr("sys.stdin", standard_input)
            code = main(["produce", "T", "--raw", "-n", broker.namesrv])
        released.set()
    shown = capsys.readouterr().err
    assert code == 1
    assert "sent 2 messages to T" in shown
    assert "2 with FLUSH_DISK_TIMEOUT" in shown
