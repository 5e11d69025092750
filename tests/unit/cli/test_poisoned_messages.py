"""One message whose body cannot be read stops no command: not those that read, nor `produce` of
what they have written."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.unit.client.poisoned_messages import BAD_BATCHES, GOOD, POISON, send_poison
from tests.unit.client.stored_batches import serve_batches_in

from turbopump.cli import main
from turbopump.testing import BrokerThread

Run = Callable[..., subprocess.CompletedProcess[str]]
BODIES = [body for bad, _ in POISON.values() for body in (bad, GOOD)]
COUNT = str(len(BODIES))


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with BrokerThread() as running:
        for topic in ("orders", "again", "%DLQ%billing"):
            running.create_topic(topic)
        running.run(send_poison(running.broker_address, "orders"))
        dead = "RETRY_TOPIC\x01orders\x02ORIGIN_MESSAGE_ID\x01" + "AB" * 16 + "\x02"
        running.run(send_poison(running.broker_address, "%DLQ%billing", properties=dead))
        serve_batches_in(running, *BAD_BATCHES, topic="batches")
        yield running


@pytest.fixture
def command(
    broker: BrokerThread, run_here: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Run:
    """Runs it to a good end."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))

    def run(text: str, standard_input: str = "") -> subprocess.CompletedProcess[str]:
        done = run_here(*text.split(), "-n", broker.namesrv, text=standard_input)
        assert done.returncode == 0, done
        return done

    return run


def bodies(lines: list[dict[str, Any]]) -> list[bytes]:
    """Of each line, in the order of the queue."""
    lines = sorted(lines, key=lambda line: line["queue_offset"])
    for line in lines:
        bad = line["msg_id"][0] == "P"
        assert ("body_fault" in line) == bad
        if bad:
            where = f"offset {line['queue_offset']} of "
            assert line["body_fault"].startswith(where)
            assert " queue 0 on broker-test: " in line["body_fault"]
    return [
        base64.b64decode(line["body_base64"]) if "body_base64" in line else line["body"].encode()
        for line in lines
    ]


def rows(output: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.splitlines()]


READS = [
    f"consume orders --group readers --count {COUNT}",
    f"consume orders --count {COUNT}",
    f"consume orders --queue 0 --offset 0 --count {COUNT}",
    f"message by-time orders --begin 1h --count {COUNT} --output json",
]


@pytest.mark.parametrize("read", READS)
def test_readers_write_a_line_for_each_message(command: Run, read: str) -> None:
    assert bodies(rows(command(read).stdout)) == BODIES


@pytest.mark.parametrize("read", READS[:3])
def test_bodies_alone_are_as_they_are_stored_and_a_warning_names_the_message(
    broker: BrokerThread, read: str, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    arguments = f"{read.replace('readers', 'raw')} --raw -n {broker.namesrv}"
    assert main(arguments.split()) == 0
    written, said = capsysbinary.readouterr()
    assert written == b"".join(body + b"\n" for body in BODIES)
    assert said.count(b"writing the stored bytes") == len(POISON)
    assert b"offset 0 of orders queue 0 on broker-test: a compressed body cannot" in said


@pytest.mark.parametrize(
    "choice", ["by-id orders P0", "by-key orders key0", "by-offset orders 0 0"]
)
def test_one_such_message_is_shown(command: Run, choice: str) -> None:
    (line,) = rows(command(f"message {choice} --output json").stdout)
    assert bodies([line]) == [BODIES[0]]
    assert "cannot be read" in command(f"message {choice}").stdout


def test_dead_letters_are_listed_exported_produced_and_resent(command: Run, tmp_path: Path) -> None:
    assert bodies(rows(command("dlq show billing --count 99 --output json").stdout)) == BODIES
    lines, parquet = tmp_path / "letters.jsonl", tmp_path / "letters.parquet"
    command(f"dlq export billing {lines}")
    assert bodies(rows(lines.read_text())) == BODIES
    command(f"dlq export billing {parquet}")
    assert pq.read_table(parquet)["body"].to_pylist() == BODIES
    command("produce again", lines.read_text())
    consumed = command(f"consume orders --count {COUNT}").stdout
    command("produce again", consumed)
    sent = rows(command(f"consume again --count {2 * len(BODIES)}").stdout)
    assert not [line for line in sent if "body_fault" in line]
    found = sorted(
        base64.b64decode(line["body_base64"]) if "body_base64" in line else line["body"].encode()
        for line in sent
    )
    assert found == sorted(2 * BODIES)
    assert {line["properties"]["k"] for line in sent if "k" in line.get("properties", {})} == {
        "a\x01b"
    }
    command("dlq resend billing --all")


def test_a_line_without_its_body_says_what_to_do(broker: BrokerThread, run_here: Run) -> None:
    line = json.dumps({"died_ms": 1, "body_fault": "a compressed body cannot be read"})
    done = run_here("produce", "again", "-n", broker.namesrv, text=line)
    assert done.returncode == 1
    assert "its body could not be read" in done.stderr


@pytest.mark.parametrize("form", ["--group b", "--queue 0"])
def test_a_batch_that_cannot_be_taken_apart_is_left_out_with_a_warning(
    command: Run, form: str
) -> None:
    done = command(f"consume batches {form} --count 4")
    assert [line["body"] for line in rows(done.stdout)] == ["in", "in", "one", "two"]
    assert "topic=batches broker=broker-test queue=0 offset=0 cause=" in done.stderr
