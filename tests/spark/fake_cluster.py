"""Small name server and broker on one port, whose queues are lists. Tests use it for answers that a
real broker cannot be made to give.

It answers 105, 106, 206, 351, 11, 14, 15, 29, 30 and 31 as Apache's brokers do; of filters it knows
only tags. A test may replace ``answer`` to give another answer to a request, or None to break the
connection.
"""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tests.spark.stored_messages import property_bytes, stored_message

from turbopump.message.java import tags_code
from turbopump.protocol.codes import FLAG_RESPONSE, RequestCode, ResponseCode
from turbopump.protocol.command import Command, decode_command, encode_command
from turbopump.protocol.frame import FrameReader


@dataclass
class FakeQueue:
    """``entries[i]`` is the stored message with queue offset ``offset_min + i``."""

    entries: list[bytes] = field(default_factory=list)
    times_ms: list[int] = field(default_factory=list)
    tags: list[str | None] = field(default_factory=list)
    offset_min: int = 0

    @property
    def offset_max(self) -> int:
        return self.offset_min + len(self.entries)

    def put(
        self,
        body: bytes,
        *,
        stored_ms: int = 1_700_000_000_000,
        tag: str | None = None,
        **fields: Any,
    ) -> None:
        if tag is not None:
            fields["properties"] = property_bytes({"TAGS": tag})
        self.entries.append(
            stored_message(body, queue_offset=self.offset_max, stored_ms=stored_ms, **fields)
        )
        self.times_ms.append(stored_ms)
        self.tags.append(tag)

    def remove_oldest(self, count: int) -> None:
        del self.entries[:count], self.times_ms[:count], self.tags[:count]
        self.offset_min += count


class FakeCluster:
    """``with FakeCluster({"T": 2}) as cluster:`` serves topic T with two queues on
    ``cluster.address``."""

    def __init__(
        self, topics: dict[str, int], *, broker_name: str = "broker-a", pull_max: int = 32
    ) -> None:
        self.queues = {
            (topic, queue_id): FakeQueue()
            for topic, count in topics.items()
            for queue_id in range(count)
        }
        self.broker_name = broker_name
        self.broker_id = 0
        self.pull_max = pull_max
        self.scan_max = 100
        """Maximum entries that a pull with a filter checks."""
        self.groups: dict[str, dict[tuple[str, int], int]] = {}
        """Committed offsets of the groups. A pull creates its group, a commit does not."""
        self.attributes: dict[str, str] = {}
        self.requests: list[Command] = []
        self.connections = 0
        """Number of connections opened so far."""
        self.answer: Callable[[Command], Command | None] = self.usual_answer
        cluster = self

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                cluster.connections += 1
                self.request.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                frames = FrameReader()
                while data := self.request.recv(1 << 16):
                    for frame in frames.feed(data):
                        request = decode_command(frame)
                        cluster.requests.append(request)
                        answer = cluster.answer(request)
                        if answer is None:
                            return
                        answer.opaque, answer.flag = request.opaque, FLAG_RESPONSE
                        self.request.sendall(encode_command(answer))

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    def __enter__(self) -> FakeCluster:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def fill(self, topic: str, queue_id: int, count: int, **fields: Any) -> None:
        queue = self.queues[topic, queue_id]
        for _ in range(count):
            queue.put(
                f"{topic}-{queue_id}-{queue.offset_max}".encode(),
                topic=topic,
                queue_id=queue_id,
                **fields,
            )

    def answer_code(self, code: int, answer: Command | None) -> None:
        """Answer all requests of this code alike from now on. None breaks the connection."""

        def answered(request: Command) -> Command | None:
            return answer if request.code == code else self.usual_answer(request)

        self.answer = answered

    def usual_answer(self, request: Command) -> Command:
        ext = request.ext or {}
        if request.code == RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER:
            names = sorted({name for name, _ in self.queues} | {self.broker_name, "c", "TBW102"})
            return Command(0, body=json.dumps({"topicList": names}).encode())
        if request.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            brokers = {self.broker_name: {"brokerName": self.broker_name, "cluster": "c"}}
            table = {"brokerAddrTable": brokers, "clusterAddrTable": {"c": [self.broker_name]}}
            return Command(0, body=json.dumps(table).encode())
        topic = ext["topic"]
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            return self._route(topic)
        if request.code == RequestCode.GET_TOPIC_CONFIG:
            body = {"topicName": topic, "attributes": self.attributes}
            return Command(0, body=json.dumps(body).encode())
        queue = self.queues.get((topic, int(ext["queueId"])))
        if queue is None:
            return Command(ResponseCode.INVALID_PARAMETER, remark="no such queue")
        if request.code == RequestCode.PULL_MESSAGE:
            self.groups.setdefault(ext["consumerGroup"], {})
            tags = ext["subscription"]
            codes = None if tags == "*" else {tags_code(tag) for tag in tags.split(" || ")}
            return self._pull(queue, int(ext["queueOffset"]), int(ext["maxMsgNums"]), codes)
        if request.code in (RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET):
            return self._group_offset(request.code, ext)
        offset = {
            RequestCode.GET_MIN_OFFSET: lambda: queue.offset_min,
            RequestCode.GET_MAX_OFFSET: lambda: queue.offset_max,
            # a guess of the worst kind
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda: queue.offset_min,
        }[RequestCode(request.code)]()
        return Command(0, ext={"offset": str(offset)})

    def _route(self, topic: str) -> Command:
        count = sum(name == topic for name, _ in self.queues)
        if not count:
            return Command(
                ResponseCode.TOPIC_NOT_EXIST,
                remark="No topic route info in name server for the topic: " + topic,
            )
        body = (
            f'{{"brokerDatas":[{{"brokerAddrs":{{{self.broker_id}:"{self.address}"}},"brokerName":"{self.broker_name}","cluster":"c"}}],'
            f'"queueDatas":[{{"brokerName":"{self.broker_name}","perm":6,"readQueueNums":{count},"writeQueueNums":{count}}}]}}'
        )
        return Command(0, body=body.encode())

    def _group_offset(self, code: int, ext: dict[str, str]) -> Command:
        group, queue = ext["consumerGroup"], (ext["topic"], int(ext["queueId"]))
        if code == RequestCode.UPDATE_CONSUMER_OFFSET:
            if group not in self.groups:
                return Command(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, remark="no such group")
            self.groups[group][queue] = int(ext["commitOffset"])
            return Command(0)
        offset = self.groups.get(group, {}).get(queue)
        if offset is None:
            return Command(ResponseCode.QUERY_NOT_FOUND, remark="Not found, maybe a new group")
        return Command(0, ext={"offset": str(offset)})

    def _pull(self, queue: FakeQueue, offset: int, count: int, codes: set[int] | None) -> Command:
        def places(go_on: int) -> dict[str, str]:
            low, high = str(queue.offset_min), str(queue.offset_max)
            return {
                "nextBeginOffset": str(go_on),
                "minOffset": low,
                "maxOffset": high,
                "suggestWhichBrokerId": "0",
            }

        if offset < queue.offset_min:
            return Command(
                ResponseCode.PULL_OFFSET_MOVED,
                ext=places(queue.offset_min),
                remark="OFFSET_TOO_SMALL",
            )
        if offset > queue.offset_max:
            return Command(
                ResponseCode.PULL_OFFSET_MOVED,
                ext=places(queue.offset_max),
                remark="OFFSET_OVERFLOW_BADLY",
            )
        begin = offset - queue.offset_min
        if codes is not None and begin < len(queue.entries):
            matching: list[bytes] = []
            at = begin
            while at < min(begin + self.scan_max, len(queue.entries)):
                if len(matching) == min(count, self.pull_max):
                    break
                if tags_code(queue.tags[at] or "") in codes:
                    matching.append(queue.entries[at])
                at += 1
            ext = places(queue.offset_min + at)
            if matching:
                return Command(0, ext=ext, body=b"".join(matching), remark="FOUND")
            return Command(
                ResponseCode.PULL_RETRY_IMMEDIATELY, ext=ext, remark="NO_MATCHED_MESSAGE"
            )
        found = queue.entries[begin : begin + min(count, self.pull_max)]
        if not found:
            return Command(
                ResponseCode.PULL_NOT_FOUND, ext=places(offset), remark="OFFSET_OVERFLOW_ONE"
            )
        return Command(0, ext=places(offset + len(found)), body=b"".join(found), remark="FOUND")
