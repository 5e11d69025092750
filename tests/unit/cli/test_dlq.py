"""`turbopump dlq`: what it shows, sends and writes, and what its exit code says."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from turbopump.blocking import Message, Producer, PullConsumer
from turbopump.cli import main
from turbopump.client.dead_letters import DeadLetter, DeadLetters, InDoubt, ResendReport, resending
from turbopump.client.dead_letters.resending import ResendOutcome as SendOutcome
from turbopump.client.dead_letters.resending import send_once
from turbopump.testing import BrokerThread

BODIES = [b'{"order": 0}', b"plain", bytes(range(16)), b"\x1b[31mred"]


@pytest.fixture
def broker() -> Iterator[BrokerThread]:
    """A broker with the dead letters of group ``billing``, which came from ``orders``."""
    with BrokerThread() as broker:
        broker.create_topic("orders", 2)
        broker.create_topic("%DLQ%billing", 1)
        with Producer(broker.namesrv) as producer:
            for number, body in enumerate(BODIES):
                properties = {
                    "RETRY_TOPIC": "orders",
                    "price": str(number),
                    "ORIGIN_MESSAGE_ID": "AB" * 16,
                }
                message = Message("%DLQ%billing", body, tags="t", keys=[f"k{number}"])
                message.properties.update(properties)
                producer.send(message)
        yield broker


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines()]


def run(broker: BrokerThread, capfd: pytest.CaptureFixture[str], *arguments: str) -> Outcome:
    capfd.readouterr()
    code = main(["dlq", *arguments, "-n", broker.namesrv])
    return Outcome(code, *capfd.readouterr())


@pytest.fixture
def dlq(
    broker: BrokerThread,
    capfd: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Any:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    return partial(run, broker, capfd)


def arrived(broker: BrokerThread, topic: str = "orders") -> list[bytes]:
    with PullConsumer(broker.namesrv, group="looker") as consumer:
        return sorted(
            message.body
            for queue in consumer.queues(topic)
            for message in consumer.pull(queue, consumer.min_offset(queue)).messages
        )


def test_groups_are_listed_with_their_counts_and_ages(dlq: Any) -> None:
    done = dlq("list")
    assert (done.code, done.err) == (0, "")
    heading, row = done.out.splitlines()
    assert heading.split() == ["GROUP", "LETTERS", "OLDEST", "NEWEST"]
    assert row.split()[:2] == ["billing", "4"]
    ((found,),) = (row["groups"] for row in dlq("list", "--output", "json").rows)
    assert (found["group"], found["count"]) == ("billing", 4)
    assert found["oldest_ms"] <= found["newest_ms"]


def test_letters_are_shown_with_attempts_origin_reason_and_body(dlq: Any) -> None:
    done = dlq("show", "billing", "broker-test:0:0")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "broker-test:0:0"
    for line in (
        "  origin       orders",
        "  attempts     0",
        "  reason       unknown",
        "  property     price = 0",
    ):
        assert line in lines
    assert lines[-4:] == ["  body         12 bytes, JSON", "    {", '      "order": 0', "    }"]
    assert [
        row["keys"]
        for row in dlq("show", "billing", "--sql", "price >= 2", "--output", "json").rows
    ] == [["k2"], ["k3"]]
    assert len(dlq("show", "billing", "--count", "3", "--output", "json").rows) == 3
    assert "\x1b" not in dlq("show", "billing").out, "nothing that a terminal would obey"


def test_every_letter_that_is_named_is_shown(dlq: Any) -> None:
    places = [f"broker-test:0:{number}" for number in range(4)]
    done = dlq("show", "billing", *places, "--count", "2")
    assert (done.code, done.err) == (0, "")
    assert [line for line in done.out.splitlines() if line in places] == places


def test_what_is_not_there_is_said_with_code_three(dlq: Any) -> None:
    done = dlq("show", "nobody")
    assert done.code == 3
    assert "group 'nobody' has no dead letters" in done.err
    done = dlq("show", "billing", "broker-test:0:77", "broker-test:0:1")
    assert (done.code, len(done.out) > 0) == (3, True)
    assert "no dead letter has the id broker-test:0:77" in done.err
    assert dlq("resend", "billing", "--sql", "price > 100").code == 3


def test_letters_are_resent_once_however_often_it_is_asked(dlq: Any, broker: BrokerThread) -> None:
    done = dlq("resend", "billing", "--all", "--dry-run")
    assert (done.code, done.out) == (
        0,
        "4 dead letters of billing would be resent\n  4 to orders\n",
    )
    assert arrived(broker) == []
    done = dlq("resend", "billing", "--sql", "price < 2")
    assert (done.code, done.out, done.err) == (
        0,
        "2 dead letters of billing resent\n  2 to orders\n",
        "",
    )
    assert arrived(broker) == sorted(BODIES[:2])
    (report,) = dlq("resend", "billing", "--all", "--output", "json").rows
    assert (report["sent"], report["already"], report["targets"]) == (2, 2, {"orders": 2})
    assert (
        dlq("resend", "billing", "broker-test:0:3").out.splitlines()[1] == "  1 were resent before"
    )
    assert arrived(broker) == sorted(BODIES)


def test_letters_go_to_the_retry_topic_if_told(dlq: Any, broker: BrokerThread) -> None:
    done = dlq("resend", "billing", "--all", "--to", "retry")
    assert done.code == 1
    assert "no consumer of the group has made it" in done.err
    broker.create_topic("%RETRY%billing", 1)
    assert dlq("resend", "billing", "--all", "--to", "retry", "--rate", "1000").code == 0
    assert arrived(broker, "%RETRY%billing") == sorted(BODIES)


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_damaged_journal_is_named(dlq: Any, tmp_path: Path, more: list[str]) -> None:
    journal = tmp_path / "billing.journal"
    journal.write_text('{"run":"1","at":1}\nrubbish\n{"done":[]}\n')
    done = dlq("resend", "billing", "--all", "--journal", str(tmp_path), *more)
    assert done.code == 1
    assert f"{journal} is damaged in line 2" in done.err


@pytest.mark.parametrize("choice", [[], ["--all", "--sql", "price > 1"], ["some-id", "--all"]])
def test_one_choice_is_wanted(dlq: Any, choice: list[str]) -> None:
    done = dlq("resend", "billing", *choice)
    assert done.code == 2
    assert "nothing selected: give ids" in done.err
    assert dlq("resend", "billing", "--sql", "price >").code == 2


def test_letters_are_exported_as_json_lines_and_parquet(dlq: Any, tmp_path: Path) -> None:
    rows = dlq("export", "billing", "-").rows
    assert [row.get("body", "").encode() or None for row in rows[:2]] == BODIES[:2]
    assert [row["properties"]["price"] for row in rows] == ["0", "1", "2", "3"]
    target = tmp_path / "dead.jsonl"
    assert (
        dlq("export", "billing", str(target), "--sql", "price = 3").err
        == f"1 dead letters of billing written to {target}\n"
    )
    assert json.loads(target.read_text())["body"] == "\x1b[31mred"
    parquet = pytest.importorskip("pyarrow.parquet")
    assert dlq("export", "billing", str(tmp_path / "dead.parquet")).code == 0
    table = parquet.read_table(tmp_path / "dead.parquet").to_pylist()
    assert [row["body"] for row in table] == BODIES
    assert dict(table[1]["properties"])["price"] == "1"
    assert dlq("export", "billing", "-", "--format", "parquet").code == 2
    unknown = dlq("export", "billing", str(tmp_path / "dead.csv"))
    assert (unknown.code, (tmp_path / "dead.csv").exists()) == (2, False)
    assert (
        "dead.csv does not say in which form: let it end in .jsonl or .parquet, or give --format"
        in unknown.err
    )


# --- interrupted
# -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_an_export_that_is_interrupted_leaves_the_file_as_it_was_and_says_so(
    dlq: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    if kind == "parquet":
        pytest.importorskip("pyarrow.parquet")
    letters = DeadLetters.letters

    async def interrupted(
        self: DeadLetters, group: str, wanted: Any = None
    ) -> AsyncIterator[DeadLetter]:
        async for letter in letters(self, group, wanted):
            if letter.message.queue_offset == 2:
                signal.raise_signal(signal.SIGINT)
                await asyncio.sleep(0)
            yield letter

    monkeypatch.setattr(DeadLetters, "letters", interrupted)
    target = tmp_path / f"dead.{kind}"
    target.write_text("precious")
    done = dlq("export", "billing", str(target))
    assert (done.code, done.err) == (130, f"turbopump: interrupted: {target} is as it was\n")
    assert target.read_text() == "precious"
    assert sorted(tmp_path.iterdir()) == [target], "nor is anything left beside it"
    done = dlq("export", "billing", "-")
    assert (done.code, done.err) == (130, "turbopump: interrupted: after 2 dead letters\n")


def test_a_resend_that_is_interrupted_says_what_it_has_sent(
    dlq: Any, broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def interrupted(instance: Any, letter: DeadLetter, queue: Any) -> SendOutcome:
        if letter.message.queue_offset > 0:
            signal.raise_signal(signal.SIGINT)
            await asyncio.sleep(0)
        return await send_once(instance, letter, queue)

    with monkeypatch.context() as patch:
        patch.setattr(resending, "send_once", interrupted)
        done = dlq("resend", "billing", "--all")
    assert done.code == 130
    assert "interrupted: 1 dead letters of billing resent so far" in done.err
    assert dlq("resend", "billing", "--all").code == 0
    assert arrived(broker) == sorted(BODIES)


def test_what_cannot_be_looked_for_is_told_with_what_to_do(
    dlq: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    async def in_doubt(*arguments: object, **options: object) -> ResendReport:
        asked.append(options["in_doubt"])
        return ResendReport(
            "billing", already=1, in_doubt=3, out_of_sight={"orders@broker-a:1": "no such queue"}
        )

    monkeypatch.setattr("turbopump.cli.dlq.resend", in_doubt)
    done = dlq("resend", "billing", "--all")
    assert done.code == 1
    assert "  3 may or may not have been sent\n" in done.out, "no run finds out by itself"
    assert (
        "orders@broker-a:1, where letters may have been sent, cannot be read: no such queue"
        in done.err
    )
    assert "--in-doubt send sends those letters again" in done.err
    dlq("resend", "billing", "--all", "--in-doubt", "sent")
    assert asked == [InDoubt.LEAVE, InDoubt.SENT]
