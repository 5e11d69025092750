"""Inner batches as Apache's broker gives them to clients: a broker of ours whose topic ``B`` is
read as a BatchCQ topic is. A pull gets whole entries, from the one on that holds the offset asked
for, whatever tags it wants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from turbopump.broker.broker import Broker
from turbopump.broker.topics import plain_topic
from turbopump.message.batch import encode_batch
from turbopump.message.codec import encode_host
from turbopump.message.message import Message
from turbopump.message.properties import SysFlag
from turbopump.store.log.cold_reads import ReadSteps
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.queues.read_result import GetResult, GetStatus
from turbopump.testing import BrokerThread

BODIES = [b"%d" % number for number in range(12)]
INNER = int(SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)


@dataclass(frozen=True)
class InnerBatch:
    """The body of one entry, its flags, and of how many messages it says that it has."""

    body: bytes
    count: int
    sys_flag: int = INNER


def three_batches() -> list[InnerBatch]:
    """Of four messages each, tags a and b in turns, as a Java 5 client sends them."""
    batches = []
    for first in range(0, len(BODIES), 4):
        messages = (
            Message(
                "B", BODIES[number], tags="ab"[number % 2], properties={"UNIQ_KEY": f"ID{number}"}
            )
            for number in range(first, first + 4)
        )
        batches.append(InnerBatch(encode_batch(messages), 4))
    return batches


def store_inner(store: MessageStore, topic: str, batch: InnerBatch, number: int) -> None:
    """Store a batch at the end of queue 0 of a plain topic; the offsets of its other messages are
    gaps."""
    queue = store.queues.find_or_make(topic, 0)
    base = queue.max_index
    text = f"UNIQ_KEY\x01BATCH{number}\x02INNER_NUM\x01{batch.count}\x02INNER_BASE\x01{base}\x02"
    host = encode_host("127.0.0.1", 10911)
    store.put(
        topic,
        0,
        NewMessage(batch.body, text.encode(), 0),
        sys_flag=batch.sys_flag,
        born_timestamp=1_700_000_000_000,
        born_host=host,
        store_host=host,
    )
    queue.fill_gap(base + batch.count, store.log.end)
    queue.end.advance(queue.max_index)


async def serve_batches(
    broker: Broker, topic: str = "B", batches: list[InnerBatch] | None = None
) -> None:
    """Make the topic, store the batches, and answer pulls of them as Apache's broker does."""
    batches = three_batches() if batches is None else batches
    store = broker.store
    broker.tables.topics.put(plain_topic(topic, 1))
    for number, batch in enumerate(batches):
        store_inner(store, topic, batch, number)
    _read_whole(store, topic, batches)


def serve_batches_in(thread: BrokerThread, *batches: InnerBatch, topic: str = "B") -> None:
    """The same of a broker that runs in a thread."""
    broker = thread.running.broker
    thread.run(serve_batches(broker, topic, list(batches) or None))


def in_steps(result: GetResult) -> ReadSteps[GetResult]:
    yield []
    return result


def entries_from(end: Any, entries: list[tuple[int, bytes]], offset: int) -> GetResult:
    first = max(number for number, (begin, _) in enumerate(entries) if begin <= offset)
    data = b"".join(entry for _, entry in entries[first:])
    return GetResult(GetStatus.FOUND, end, 0, end, data, end - entries[first][0])


def _read_whole(store: MessageStore, topic: str, batches: list[InnerBatch]) -> None:
    reader: Any = store.reader
    entries: list[tuple[int, bytes]] = []
    base = 0
    for batch in batches:
        entries.append((base, store.get(topic, 0, base, 1).data))
        base += batch.count
    end = base

    def replaced(name: str, answer: Callable[[GetResult], object]) -> None:
        plain = getattr(reader, name)

        def read(of: str, queue_id: int, offset: int, *rest: Any, **more: Any) -> Any:
            if of == topic and 0 <= offset < end:
                return answer(entries_from(end, entries, offset))
            return plain(of, queue_id, offset, *rest, **more)

        setattr(reader, name, read)

    replaced("at_once", lambda result: result)
    replaced("steps", in_steps)
