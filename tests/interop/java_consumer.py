"""Apache's Java consumer as a reader: clients/java/Receiving.java reads topics and writes down what
it got; here that is judged.

The one rule: the program judges nothing, and what it wrote is compared by number, as in
``our_clients``.
"""

from __future__ import annotations

from base64 import b64decode
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop.foreign import ClientRun, ForeignClient, java_client, pair, run

from turbopump import Credentials, Message, SendResult


@dataclass(frozen=True, slots=True)
class Arrived:
    """A message as Java's ordered push consumer got it. ``arrived_ms`` by the clock of its machine,
    which is ours."""

    topic: str
    queue_id: int
    queue_offset: int
    msg_id: str
    arrived_ms: int
    body: bytes
    properties: dict[str, str]

    @property
    def number(self) -> int:
        return int(self.properties["n"])


def read_by_java(
    version: str,
    namesrv: str,
    wanted: dict[tuple[str, str], int],
    directory: Path,
    user: Credentials | None = None,
) -> tuple[ClientRun, defaultdict[str, list[Arrived]]]:
    """What Java's consumer got of each topic, in the order of arrival. ``wanted``: (namespace as in
    Receiving.java, topic) → messages; ``user``: who signs."""
    directory.mkdir(parents=True)
    spec = directory / "wanted"
    spec.write_text(
        "".join(f"{space}\t{topic}\t{count}\n" for (space, topic), count in wanted.items())
    )
    client = ForeignClient(
        f"java-{version}",
        ("receiving",),
        lambda: [*java_client(version, program="Receiving"), str(spec)],
        lambda: {} if user is None else {"INTEROP_CONSUMER": pair(user)},
    )
    outcome = run(client, namesrv, "java-reads", directory)
    received: defaultdict[str, list[Arrived]] = defaultdict(list)
    file = directory / "received"
    for line in file.read_text().splitlines() if file.exists() else ():
        topic, queue, offset, msg_id, at, body, *pairs = line.split("\t")
        names = [b64decode(word).decode() for word in pairs]
        properties = dict(zip(names[::2], names[1::2], strict=True))
        received[topic].append(
            Arrived(topic, int(queue), int(offset), msg_id, int(at), b64decode(body), properties)
        )
    return outcome, received


def check_read(
    sent: Sequence[Message],
    received: Collection[Arrived],
    results: Sequence[SendResult | None],
    *,
    in_order: bool = True,
    placed: bool = True,
) -> None:
    """Every message once, as it was sent, with the id that its sender was told, and (``placed``) at
    the place that he was told; each queue from 0 without a gap, in the order of its offsets, and
    with ``in_order`` in that of the sends.
    """
    by_number = {message.number: message for message in received}
    assert len(by_number) == len(received), "delivered twice"
    assert sorted(by_number) == sorted(int(message.properties["n"]) for message in sent)
    for message, result in zip(sent, results, strict=True):
        got = by_number[int(message.properties["n"])]
        assert got.topic == message.topic
        assert got.body == message.body, (
            f"body of {got.number}: {len(got.body)} bytes, {len(message.body)} sent"
        )
        assert {name: got.properties.get(name) for name in message.properties} == message.properties
        if result is not None:
            assert got.msg_id == result.msg_id
            assert not placed or (got.queue_id, got.queue_offset) == (
                result.queue.queue_id,
                result.queue_offset,
            )
    queues: defaultdict[int, list[Arrived]] = defaultdict(list)
    for arrived in received:
        queues[arrived.queue_id].append(arrived)
    for entries in queues.values():
        assert [entry.queue_offset for entry in entries] == list(range(len(entries)))
        assert not in_order or [entry.number for entry in entries] == sorted(
            entry.number for entry in entries
        )
