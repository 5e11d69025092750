"""Telemetry of all clients of a process: spans and metrics without a line in the program."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.waits import until

pytest.importorskip("opentelemetry.sdk", reason="opentelemetry-sdk is not installed")

from opentelemetry.trace import SpanKind, StatusCode
from tests.loops import in_loop
from tests.unit.client.spans import Spans

import turbopump
from turbopump import (
    ConsumeFrom,
    LitePullConsumer,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    SimpleConsumer,
    blocking,
)
from turbopump.client.instrumentation import TurbopumpInstrumentor, telemetry
from turbopump.client.messaging_attributes import NameStyle
from turbopump.client.open_telemetry import OpenTelemetry
from turbopump.testing import BrokerThread, running_broker

SENT = "messaging.client.sent.messages"
CONSUMED = "messaging.client.consumed.messages"
OPERATION_S = "messaging.client.operation.duration"
PROCESS_S = "messaging.process.duration"
FIRST = ConsumeFrom.FIRST


@pytest.fixture
def instrumented(spans: Spans) -> Iterator[Spans]:
    instrumentor = TurbopumpInstrumentor()
    instrumentor.instrument(
        tracer_provider=spans.provider, meter_provider=spans.meter_provider, skip_dep_check=True
    )
    assert instrumentor.is_instrumented_by_opentelemetry
    yield spans
    instrumentor.uninstrument()
    assert telemetry() is None


def named(spans: Spans, name: str) -> list[Any]:
    return [span for span in spans.ended if span.name == name]


def counts(spans: Spans, metric: str) -> dict[str, int]:
    """Sums of a counter by the names of operations."""
    found: dict[str, int] = {}
    for point in spans.points(metric):
        name = point.attributes["messaging.operation.name"]
        found[name] = found.get(name, 0) + point.value
    return found


@in_loop
async def test_a_producer_and_a_handler_need_no_line_for_spans_and_metrics(
    instrumented: Spans,
) -> None:
    handled: list[bytes] = []

    async def handle(message: Any) -> None:
        handled.append(message.body)
        if len(handled) == 1:
            raise ValueError("not yet")

    async with running_broker() as broker:
        await broker.create_topic("orders", 1)
        async with (
            Producer(broker.namesrv) as producer,
            PushConsumer(
                broker.namesrv, group="g", topic="orders", handler=handle, consume_from=FIRST
            ),
        ):
            await producer.send("orders", b"a")
            await producer.send_batch([Message("orders", b"b"), Message("orders", b"c")])
            await until(lambda: len(handled) >= 3)
            await until(lambda: len(named(instrumented, "process orders")) >= 3)
    sent, batch = named(instrumented, "send orders")
    first = named(instrumented, "process orders")[0]
    assert first.attributes["messaging.rocketmq.consumption_model"] == "clustering"
    assert first.parent.span_id == sent.get_span_context().span_id
    assert (first.status.status_code, first.attributes["error.type"]) == (
        StatusCode.ERROR,
        "ValueError",
    )
    assert batch.attributes["messaging.batch.message_count"] == 2
    assert counts(instrumented, SENT) == {"send": 3}
    assert counts(instrumented, CONSUMED) == {"process": len(handled)}
    (sends,) = instrumented.points(OPERATION_S)
    assert sends.count == 2
    assert sends.explicit_bounds[:2] == (0.005, 0.01)
    assert sends.attributes == {
        "messaging.system": "rocketmq",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": "0",
        "server.address": "127.0.0.1",
        "server.port": sent.attributes["server.port"],
    }
    failed = [point for point in instrumented.points(PROCESS_S) if "error.type" in point.attributes]
    assert [(point.count, point.attributes["error.type"]) for point in failed] == [
        (1, "ValueError")
    ]
    assert failed[0].attributes["messaging.consumer.group.name"] == "g"


@in_loop
async def test_a_reader_without_a_handler_has_a_span_from_the_message_to_its_end(
    instrumented: Spans,
) -> None:
    async with running_broker() as broker:
        await broker.create_topic("orders", 1)
        async with Producer(broker.namesrv) as producer:
            for body in (b"a", b"b", b"c"):
                await producer.send("orders", body)
        async with PushConsumer(
            broker.namesrv, group="g", topic="orders", consume_from=FIRST
        ) as consumer:
            async for message in consumer:
                if message.body == b"a":
                    observer = telemetry()
                    assert isinstance(observer, OpenTelemetry)
                    with observer.processing(message, group="g") as span:
                        span.set_attribute("mine", 1)
                    message.done()
                elif message.body == b"b":
                    message.retry(reason=KeyError("no such book"))
                else:
                    message.done()
                    break
    sent = named(instrumented, "send orders")
    processed = named(instrumented, "process orders")
    assert [span.kind for span in processed] == [SpanKind.CONSUMER] * 3
    assert [span.parent.span_id for span in processed] == [
        span.get_span_context().span_id for span in sent
    ]
    assert processed[0].attributes["mine"] == 1
    assert processed[1].attributes["messaging.rocketmq.consumption_model"] == "clustering"
    assert processed[1].attributes["error.type"] == "KeyError"
    assert counts(instrumented, CONSUMED) == {"process": 3}
    assert sum(point.count for point in instrumented.points(PROCESS_S)) == 3


@in_loop
async def test_calls_that_receive_and_acknowledge_have_spans_linked_to_the_sends(
    instrumented: Spans,
) -> None:
    async with running_broker() as broker:
        await broker.create_topic("orders", 1)
        async with Producer(broker.namesrv) as producer:
            for body in (b"a", b"b"):
                await producer.send("orders", body)
        async with SimpleConsumer(
            broker.namesrv, group="s", topic="orders", consume_from=FIRST
        ) as simple:
            received: list[Any] = []
            while len(received) < 2:
                received += await simple.receive(timeout=1)
            await simple.ack(received)
        async with LitePullConsumer(
            broker.namesrv, group="l", topic="orders", consume_from=FIRST
        ) as lite:
            polled: list[Any] = []
            while len(polled) < 2:
                polled += await lite.poll(1)
        async with PullConsumer(broker.namesrv, group="p") as puller:
            (queue,) = await puller.queues("orders")
            assert len((await puller.pull(queue, 0)).messages) == 2
    sends = {span.get_span_context().span_id for span in named(instrumented, "send orders")}
    groups: dict[str, set[int]] = {}
    for span in named(instrumented, "receive orders"):
        assert span.kind is SpanKind.CLIENT
        group = span.attributes["messaging.consumer.group.name"]
        groups.setdefault(group, set()).update(link.context.span_id for link in span.links)
    assert groups == {"s": sends, "l": sends, "p": sends}
    (ack,) = named(instrumented, "ack orders")
    assert ack.attributes["messaging.operation.type"] == "settle"
    assert {link.context.span_id for link in ack.links} == sends
    assert counts(instrumented, CONSUMED) == {"receive": 6}
    operations = {
        point.attributes["messaging.operation.name"] for point in instrumented.points(OPERATION_S)
    }
    assert operations == {"send", "receive", "ack"}


def test_a_hook_and_a_handler_of_the_program_s_own_are_not_doubled(instrumented: Spans) -> None:
    with BrokerThread() as broker:
        broker.create_topic("orders", queues=1)
        seen: list[bytes] = []
        handler = instrumented.telemetry.traced(lambda message: seen.append(message.body))
        with (
            blocking.Producer(broker.namesrv, hooks=[instrumented.telemetry]) as producer,
            blocking.PushConsumer(
                broker.namesrv, group="g", topic="orders", handler=handler, consume_from=FIRST
            ),
        ):
            producer.send("orders", b"a")
            asyncio.run(until(lambda: named(instrumented, "process orders")))
    assert len(named(instrumented, "send orders")) == 1
    assert len(named(instrumented, "process orders")) == 1


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ("", {"messaging.rocketmq.message.tag", "messaging.rocketmq.client_group"}),
        ("http", {"messaging.rocketmq.message.tag", "messaging.rocketmq.client_group"}),
        ("http,messaging", {"rocketmq.message.tag"}),
        (
            "messaging/dup,messaging",
            {
                "rocketmq.message.tag",
                "messaging.rocketmq.message.tag",
                "messaging.rocketmq.client_group",
            },
        ),
    ],
)
def test_the_environment_selects_the_names_of_attributes(
    monkeypatch: pytest.MonkeyPatch, given: str, names: set[str]
) -> None:
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", given)
    found = NameStyle.selected().named(
        {"rocketmq.message.tag": "t", "rocketmq.client_group": "g", "messaging.system": "rocketmq"}
    )
    assert set(found) == names | {"messaging.system"}


PROGRAM = """\
import sys
import turbopump.blocking
with turbopump.blocking.Producer(sys.argv[1]) as producer:
    producer.send("orders", b"a book", tags="new")
"""


def test_opentelemetry_instrument_finds_the_clients(tmp_path: Path) -> None:
    pytest.importorskip("opentelemetry.instrumentation", reason="its command is not installed")
    root = Path(turbopump.__file__).parents[2]
    package = tmp_path / "installed" / "turbopump-0.dist-info"
    package.mkdir(parents=True)
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    group = "opentelemetry_instrumentor"
    entry = project["entry-points"][group]["turbopump"]
    (package / "entry_points.txt").write_text(f"[{group}]\nturbopump = {entry}\n")
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: turbopump\nVersion: 0\n")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    paths = [str(package.parent), str(root), *filter(None, sys.path)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_METRICS_EXPORTER": "console",
        "OTEL_LOGS_EXPORTER": "none",
        "OTEL_SEMCONV_STABILITY_OPT_IN": "messaging",
    }
    command = "from opentelemetry.instrumentation.auto_instrumentation import run; run()"
    with BrokerThread() as broker:
        broker.create_topic("orders", queues=1)
        ended = subprocess.run(
            [sys.executable, "-c", command, sys.executable, str(program), broker.namesrv],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert ended.returncode == 0, ended.stderr
    assert '"name": "send orders"' in ended.stdout
    assert '"rocketmq.message.tag": "new"' in ended.stdout
    assert '"messaging.rocketmq.' not in ended.stdout
    assert '"name": "messaging.client.sent.messages"' in ended.stdout
