"""`turbopump message`: what it shows, and what its exit code says."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import yaml

from turbopump.blocking import Message, Producer, SendResult
from turbopump.cli import main
from turbopump.testing import BrokerThread

BODIES: list[bytes] = [
    b"plain text",
    b'{"order": 17, "items": ["b\xc3\xa4r"]}',
    bytes(range(256)) * 5,
    b"\x1b[31mred",
    b"",
]


@dataclass
class World:
    """A broker with topic T, and the messages that were sent to its one queue."""

    broker: BrokerThread
    sent: list[SendResult]


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with BrokerThread() as broker:
        broker.create_topic("T", 1)
        broker.create_topic("wide", 2)
        with Producer(broker.namesrv) as producer:
            sent = [
                producer.send(
                    Message(
                        "T",
                        body or b"-",
                        tags="A",
                        keys=["all", f"k{number}"],
                        properties={"colour": "r\x1bd"},
                    )
                )
                for number, body in enumerate(BODIES)
            ]
        yield World(broker, sent)


@dataclass
class Outcome:
    code: int
    out: str
    err: str

    @property
    def messages(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def run(capsys: pytest.CaptureFixture[str], world: World, *arguments: str) -> Outcome:
    capsys.readouterr()
    code = main(["message", *arguments, "-n", world.broker.namesrv])
    shown = capsys.readouterr()
    return Outcome(code, shown.out, shown.err)


@pytest.fixture
def message(world: World, capsys: pytest.CaptureFixture[str]) -> Any:
    return partial(run, capsys, world)


def test_a_message_is_shown_by_either_of_its_ids(world: World, message: Any) -> None:
    sent = world.sent[0]
    for msg_id in (sent.msg_id, sent.offset_msg_id):
        done = message("by-id", "T", msg_id)
        assert (done.code, done.err) == (0, "")
        lines = done.out.splitlines()
        assert lines[0] == f"T@{sent.queue.broker_name}:0 offset 0"
        facts = dict(re.findall(r"^  (\S[\w ]{0,11}?) {2,}(.*)$", done.out, re.MULTILINE))
        assert facts["id"] == sent.msg_id
        assert facts["offset id"] == sent.offset_msg_id
        assert (facts["tags"], facts["keys"]) == ("A", "all k0")
        assert '  property     colour = "r\\u001bd"' in lines
        assert facts["body"] == "10 bytes, text"
        assert lines[-1] == "    plain text"


def test_bodies_are_shown_as_what_they_are(message: Any) -> None:
    shown = [message("by-offset", "T", "0", str(offset)).out for offset in range(4)]
    assert shown[1].split("JSON\n")[1] == (
        '    {\n      "order": 17,\n      "items": [\n        "bär"\n      ]\n    }\n'
    )
    assert "1280 bytes, no text\n    000000  00 01 02 03 " in shown[2]
    assert shown[2].endswith("… and 256 more bytes (--output json has them all)\n")
    assert "no plain text\n    000000  1b 5b 33 31 6d 72 65 64  " in shown[3]
    assert "\x1b" not in "".join(shown), "a terminal must not obey a message"


def test_messages_come_as_the_lines_that_consume_writes(world: World, message: Any) -> None:
    shown = message("by-id", "T", world.sent[1].msg_id, "--output", "json")
    (line,) = shown.messages
    assert shown.out == f"{json.dumps(line, ensure_ascii=False)}\n", "one form of JSON"
    assert json.loads(line["body"]) == {"order": 17, "items": ["bär"]}
    assert (line["topic"], line["queue_id"], line["queue_offset"]) == ("T", 0, 1)
    assert (line["msg_id"], line["offset_msg_id"]) == (
        world.sent[1].msg_id,
        world.sent[1].offset_msg_id,
    )
    assert line["keys"] == ["all", "k1"]
    assert int(line["offset_msg_id"][16:], 16) == line["commit_log_offset"]
    assert line["store_host"].split(":")[0] == "127.0.0.1"
    assert line["reconsume_times"] == 0


def test_messages_come_as_rows_of_csv_and_documents_of_yaml(message: Any) -> None:
    keys = ("by-key", "-t", "T", "all", "--count", "2", "--output")
    heading, *rows = message(*keys, "csv").out.splitlines()
    assert heading.startswith("topic,broker,queue_id,queue_offset,msg_id,")
    assert [row.split(",")[:4] for row in rows] == [["T", "broker-test", "0", n] for n in "34"]
    found = list(yaml.safe_load_all(message(*keys, "yaml").out))
    assert [one["queue_offset"] for one in found] == [3, 4]


def offsets(message: Any, *arguments: str) -> list[int]:
    done = message("by-key", "T", "all", "--output", "json", *arguments)
    return [line["queue_offset"] for line in done.messages]


def test_a_key_gives_its_newest_messages_oldest_first(message: Any) -> None:
    assert offsets(message) == [0, 1, 2, 3, 4]
    assert offsets(message, "--count", "2") == [3, 4]
    assert offsets(message, "--begin", "1h") == [0, 1, 2, 3, 4]
    assert offsets(message, "--end", "1h") == []
    assert offsets(message, "--begin", "2100-01-01") == []
    times = [
        line["store_ms"] for line in message("by-key", "T", "all", "--output", "json").messages
    ]
    assert offsets(message, "--begin", str(times[2]), "--end", str(times[2])) == [
        n for n in range(5) if times[n] == times[2]
    ]


def test_a_time_gives_the_messages_from_then_on(message: Any) -> None:
    lines = message("by-time", "T", "--begin", "1h", "--output", "json").messages
    assert [line["queue_offset"] for line in lines] == [0, 1, 2, 3, 4]
    lines = message(
        "by-time", "T", "--begin", "1970-01-01T00:00:00+00:00", "--count", "2", "--output", "json"
    ).messages
    assert [line["queue_offset"] for line in lines] == [0, 1]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["by-id", "T", "0A0B0C0D0E0F00000000000000000001"],
            "no message '0A0B0C0D0E0F00000000000000000001' in topic 'T'",
        ),
        (["by-key", "T", "unknown"], "no message was found"),
        (
            ["by-offset", "T", "0", "99"],
            "no message at offset 99 of queue T@broker-test:0, which has offsets 0 to 4",
        ),
        (["by-time", "T", "--begin", "2100-01-01"], "no message was found"),
    ],
)
def test_the_code_three_tells_that_there_is_no_such_message(
    message: Any, arguments: list[str], said: str
) -> None:
    for output in ("table", "json", "yaml", "csv"):
        done = message(*arguments, "--output", output)
        assert (done.code, done.out) == (3, "")
        assert done.err.startswith(f"turbopump: {said}")
        assert done.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["by-id", "missing", "x"], 3, "no route to topic 'missing'"),
        (["by-key", "T", "two keys"], 2, "'two keys' must be a key"),
        (["by-key", "T", "k", "--begin", "yesterday"], 2, "'yesterday' is not a time"),
        (["by-offset", "T", "7", "0"], 3, "topic T has no queue 7"),
        (
            ["by-offset", "T", "0", "0", "--broker", "nowhere"],
            3,
            "queue 0 of topic T is not on nowhere, but on broker-test",
        ),
        (["by-offset", "T", "-1", "0"], 2, "-1"),
        (["by-time", "T"], 2, "--begin"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_sentence(
    message: Any, arguments: list[str], code: int, said: str
) -> None:
    done = message(*arguments)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert done.err.count("\n") == 1


def test_an_offset_of_a_queue_of_several_brokers_wants_the_broker(
    monkeypatch: pytest.MonkeyPatch, message: Any
) -> None:
    from turbopump.client.message_finder import MessageFinder
    from turbopump.message.message import MessageQueue

    async def queues(_finder: MessageFinder, topic: str) -> list[MessageQueue]:
        return [MessageQueue(topic, name, 0) for name in ("broker-test", "broker-z")]

    monkeypatch.setattr(MessageFinder, "queues", queues)
    done = message("by-offset", "T", "0", "0")
    assert done.code == 2
    assert "queue 0 of topic T is on broker-test, broker-z: choose one with --broker" in done.err
    assert message("by-offset", "T", "0", "0", "--broker", "broker-test").code == 0


def test_why_a_broker_finds_nothing_by_key_is_told_in_its_words(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with BrokerThread(message_index_enable=False) as broker, Producer(broker.namesrv) as producer:
        sent = producer.send(Message("T", b"body", keys=["key"]))
        for arguments in (["by-key", "T", "key"], ["by-id", "T", sent.msg_id]):
            assert main(["message", *arguments, "-n", broker.namesrv]) == 3
            assert (
                "this broker keeps no index (messageIndexEnable=false)" in capsys.readouterr().err
            )


def test_a_broker_that_cannot_be_asked_is_named_and_the_code_is_one(
    message: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from turbopump.client.message_finder import FoundMessages, MessageFinder

    by_key = MessageFinder.by_key

    async def partly(finder: MessageFinder, *args: Any, **kwargs: Any) -> FoundMessages:
        return FoundMessages(
            (await by_key(finder, *args, **kwargs)).messages, {"broker-z": "cannot connect"}
        )

    monkeypatch.setattr(MessageFinder, "by_key", partly)
    done = message("by-key", "T", "k0", "--output", "json")
    assert done.code == 1
    assert len(done.messages) == 1
    assert done.err == (
        "turbopump: broker-z could not be asked, there may be more messages: cannot connect\n"
    )
