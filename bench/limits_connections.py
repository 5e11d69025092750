"""Peers that do not read what they asked for, do not end their frames, talk nonsense, or are many.

Loads that take long take their seconds as a parameter. Their answers say what others saw: how long
the requests of a good client took alone and beside the load (p99), and how many connections the
broker closed.
"""

import os
import resource
import select
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from bench import wire
from bench.brokers import RunningBroker
from bench.limits_requests import Client
from bench.memory import MIB, anonymous_of
from bench.remote import SEND_MESSAGE_V2, create_topic
from bench.stalls import Answered, Figure, Load, Scenario

TOPIC, GROUP = "limits-connections", "limits-connections"
BIG = 4_000_000
"""Bytes of the largest message: 4 MiB with its properties."""
QUIET_S = 4.0
"""Seconds for which peers that do not read are watched."""
TIMES_P99, LAST_ANSWER_MS, NORMAL_AFTER_S = 2.0, 300.0, 5.0
"""Goals: the p99 of a good client in that of it alone; answers under overload, refusals among them;
the time after it until sends are taken as ever."""
NONSENSE = b"GET /\x1b[31m\nroot HTTP/1.1\r\nHost: x\r\n\r\n"


def pull(client: Client, offset: int = 0, hold_ms: int = 0) -> bytes:
    flags = wire.SUBSCRIPTION | (wire.SUSPEND if hold_ms else 0)
    fields = wire.pull_fields(GROUP, TOPIC, 0, offset, sys_flag=flags, hold_ms=hold_ms)
    return client.request(wire.PULL_MESSAGE, fields | {"subscription": "*"})


def send(client: Client, size: int) -> bytes:
    fields = {"a": "limits", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0", "h": "0"}
    fields |= {"g": str(time.time_ns() // 1_000_000), "i": "", "j": "0", "k": "false", "m": "false"}
    return client.request(SEND_MESSAGE_V2, fields, bytes(size))


def one_queue(broker: RunningBroker) -> None:
    create_topic(broker.port, TOPIC, 1)


def messages(count: int, size: int) -> Callable[[RunningBroker], None]:
    """Return a function that prepares a queue with ``count`` messages of ``size`` bytes."""

    def prepare(broker: RunningBroker) -> None:
        one_queue(broker)
        with Client(broker) as client:
            for _ in range(count):
                assert client.ask(send(client, size)) == "code 0"

    return prepare


# --- who does not read


def pulls(client: Client, size: int) -> Iterator[bytes]:
    """Yield pulls from the start of the queue, ``size`` bytes of them."""
    while size > 0:
        frame = pull(client)
        size -= len(frame)
        yield frame


def unread(broker: RunningBroker) -> str:
    """246 KiB of pulls of the largest message, and nothing is read; then all of it is."""
    with Client(broker) as client:
        asked = list(pulls(client, 246 * 1024))
        client.send(asked)
        time.sleep(QUIET_S)
        begun = time.monotonic()
        try:
            found = client.receive(50)
        except ConnectionError:
            return "closed"
        return f"50 of {len(asked)} then read in {time.monotonic() - begun:.1f} s: " + ", ".join(
            sorted({f"code {answer.code}" for answer in found})
        )


def held(broker: RunningBroker) -> str:
    """50 connections hold 20 pulls each, a message of 4 MiB comes, and nobody reads."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(broker)) for _ in range(50)]
        for client in clients:
            client.send(pull(client, hold_ms=60_000) for _ in range(20))
            client.ask(client.request(30, {"topic": TOPIC, "queueId": "0"}))  # behind all of them
        with Client(broker) as sender:
            sender.ask(send(sender, BIG))
        time.sleep(QUIET_S)
        return f"{sum(map(is_closed, clients))} of 50 closed"


def silent(broker: RunningBroker) -> Answered:
    """50 connections pull and do not read; a good reader pulls beside them."""
    alone = good_reader(broker, 3.0)
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(broker)) for _ in range(50)]
        begun = time.monotonic()
        for client in clients:
            with suppress(OSError):
                client.send(pulls(client, 246 * 1024))
        beside = good_reader(broker, max(begun + 5.0 - time.monotonic(), 1.0))
        closed = sum(map(is_closed, clients))
    return Answered(
        f"{closed} of 50 closed; a reader's p99 {alone:.1f} -> {beside:.1f} ms",
        (Figure("times a reader's p99", beside / alone, TIMES_P99),),
    )


def good_reader(broker: RunningBroker, seconds: float) -> float:
    """p99 in ms of pulls, one after the other, each read at once."""
    with Client(broker) as client:
        return p99(lambda: client.ask(pull(client)), seconds)


def p99(action: Callable[[], object], seconds: float) -> float:
    waits: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end or not waits:
        begun = time.monotonic()
        action()
        waits.append(time.monotonic() - begun)
        time.sleep(0.002)
    waits.sort()
    return waits[int(len(waits) * 0.99)] * 1000


def is_closed(client: Client) -> bool:
    """Return True if the broker has closed the connection, perhaps after unread bytes."""
    poll = select.poll()
    poll.register(client.socket, select.POLLRDHUP)
    return bool(poll.poll(0))


# --- who does not end a frame


def unfinished(count: int, size: int) -> Load:
    """Return a load of ``count`` connections. Each sends ``size`` bytes of a longer frame."""

    def load(broker: RunningBroker) -> str:
        with ExitStack() as stack:
            clients = [stack.enter_context(Client(broker)) for _ in range(count)]
            push(clients, struct.pack(">II", 16_000_000, 100) + bytes(size), 20.0)
            time.sleep(1.0)
            return f"{sum(map(is_closed, clients))} of {count} closed"

    return load


def push(clients: list[Client], data: bytes, seconds: float) -> None:
    """Write to all at the same time, until everything is written or the time is up."""
    left = {client.socket: memoryview(data) for client in clients}
    for one in left:
        one.setblocking(False)
    end = time.monotonic() + seconds
    while left and time.monotonic() < end:
        _, writable, _ = select.select([], left, [], 0.1)
        for one in writable:
            try:
                left[one] = left[one][one.send(left[one][:262_144]) :]
            except BlockingIOError:
                continue
            except OSError:
                del left[one]
                continue
            if not left[one]:
                del left[one]


# --- who does not end a handshake

HANDSHAKE_MS, FLAT_MIB, FLAT_PULLS_MIB = 5000.0, 16.0, 32.0
"""Goals: the longest handshake of a client beside them; what rounds after the second add. Pulls
that are dropped leave holes of changing size in Python's own heap."""


def client_hello() -> bytes:
    """The first bytes of a client that speaks TLS."""
    received, to_send = ssl.MemoryBIO(), ssl.MemoryBIO()
    with suppress(ssl.SSLWantReadError):
        anyone().wrap_bio(received, to_send).do_handshake()
    return to_send.read()


def anyone() -> ssl.SSLContext:
    """Takes any certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def handshakes(rounds: int, count: int, size: int | None) -> Load:
    """Return a load of rounds of connections from three addresses. Each connection sends ``size``
    bytes of a ClientHello (None: all of it) and no more. Between the rounds, a client of one of
    these addresses completes a handshake."""

    def load(broker: RunningBroker) -> Answered:
        with many_descriptors():
            return _handshakes(broker, rounds, count, client_hello()[:size])

    return load


def _handshakes(broker: RunningBroker, rounds: int, count: int, data: bytes) -> Answered:
    memory: list[float] = []
    waits: list[float] = []
    for _ in range(rounds):
        with ExitStack() as stack:
            for number in range(count):
                one = connect_from(f"127.0.0.{2 + number % 3}", broker)
                stack.callback(one.close)
                one.sendall(data)
                if number % (count // 10) == count // 20:
                    begun = time.monotonic()
                    with anyone().wrap_socket(connect_from("127.0.0.2", broker)):
                        waits.append((time.monotonic() - begun) * 1000)
            time.sleep(1.0)
        time.sleep(1.0)
        memory.append(anonymous_of(broker.pid) / MIB)
    return Answered(
        f"{len(waits)} clients shook hands, median {sorted(waits)[len(waits) // 2]:.0f} ms; "
        f"after the rounds {', '.join(f'{size:.0f}' for size in memory)} MiB",
        (
            Figure("ms of a handshake", max(waits), HANDSHAKE_MS),
            Figure("MiB after the second round", memory[-1] - memory[1], FLAT_MIB),
        ),
    )


# --- who leaves pulls behind


def left_pulls(rounds: int, connections: int, count: int) -> Load:
    """Return a load of rounds of connections. Each sends ``count`` pulls, which are held, and
    closes."""

    def load(broker: RunningBroker) -> Answered:
        closed = 0
        memory: list[float] = []
        for _ in range(rounds):
            with ExitStack() as stack:
                clients = [stack.enter_context(Client(broker)) for _ in range(connections)]
                for client in clients:
                    with suppress(OSError):  # it is closed
                        client.send(pull(client, hold_ms=110_000) for _ in range(count))
                        client.ask(client.request(30, {"topic": TOPIC, "queueId": "0"}))
                closed += sum(map(is_closed, clients))
            time.sleep(2.0)
            memory.append(anonymous_of(broker.pid) / MIB)
        return Answered(
            f"{closed} of {rounds * connections} closed; "
            f"after the rounds {', '.join(f'{size:.0f}' for size in memory)} MiB",
            (Figure("MiB after the second round", memory[-1] - memory[1], FLAT_PULLS_MIB),),
        )

    return load


# --- who talks nonsense


def nonsense(broker: RunningBroker) -> str:
    """24,000 connections, 200 at a time, each with bytes that are no frame."""
    before = log_size(broker.pid)
    for number in range(120):
        connections = [connect_from(f"127.0.0.{2 + number // 20}", broker) for _ in range(200)]
        for one in connections:
            one.sendall(NONSENSE)
        for one in connections:
            with suppress(OSError):
                one.recv(1)
            one.close()
    after = log_size(broker.pid)
    return "closed" if after is None else f"closed; {(after - (before or 0)) / 1024:.0f} KiB of log"


def connect_from(address: str, broker: RunningBroker) -> socket.socket:
    """From another address of loopback: one has 28,000 ports."""
    one = socket.socket()
    one.settimeout(30)
    one.bind((address, 0))
    one.connect(("127.0.0.1", broker.port))
    return one


def log_size(pid: int) -> int | None:
    """Bytes of the file that a process writes as its standard error, if it is a file."""
    path = Path(f"/proc/{pid}/fd/2")
    return path.stat().st_size if path.resolve().is_file() else None


# --- many


def crowd(seconds: float) -> Load:
    """6,000 idle connections, 6,000 with 8 KiB of a frame, one that reads slowly, and a client that
    sends and pulls."""

    def load(broker: RunningBroker) -> Answered:
        with many_descriptors():
            return _crowd(broker, seconds)

    return load


@contextmanager
def many_descriptors() -> Iterator[None]:
    """Open as many files as the limit allows, within the block."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _crowd(broker: RunningBroker, seconds: float) -> Answered:
    with Client(broker) as normal:

        def work() -> None:
            normal.ask(send(normal, 1024))
            normal.ask(pull(normal))

        alone = p99(work, 5.0)
        begun = time.monotonic()
        with ExitStack() as stack:
            half = struct.pack(">II", 65536, 100) + bytes(8192)
            for number in range(12_000):
                one = connect_from(f"127.0.0.{2 + number % 2}", broker)
                stack.callback(one.close)
                if number % 2:
                    one.sendall(half)
            slow = stack.enter_context(Client(broker))
            stack.enter_context(reading_slowly(slow))
            crowded = time.monotonic()
            beside = p99(work, max(seconds - (crowded - begun), 5.0))
    return Answered(
        f"12,001 connections in {crowded - begun:.0f} s, of {seconds:.0f} s; "
        f"a client's p99 {alone:.1f} -> {beside:.1f} ms",
        (Figure("times a client's p99", beside / alone, TIMES_P99),),
    )


@contextmanager
def reading_slowly(client: Client) -> Iterator[None]:
    """Pulls without end, of which 64 KiB are read every 100 ms."""
    ended = threading.Event()

    def read() -> None:
        with suppress(OSError):
            client.send(pulls(client, 246 * 1024))
            while not ended.wait(0.1):
                client.socket.recv(65536)

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


OUTSTANDING = 10_000
"""Sends of 1 KiB that wait for their answers. From 1,000 on one broker of ours stores no more a
second: 14,000 with 100, 23,000 with 500, 25,500 with 1,000, 24,000 with 2,000 and 5,000."""


def overload(seconds: float) -> Load:
    """Ten times the sends that saturate it, on 100 connections."""

    def load(broker: RunningBroker) -> Answered:
        with ExitStack() as stack:
            senders = [Burst(stack.enter_context(Client(broker))) for _ in range(100)]
            end = time.monotonic() + seconds
            poll = select.poll()
            by_number = {sender.number: sender for sender in senders}
            for sender in senders:
                poll.register(sender.number, select.POLLIN)
                sender.begin()
            while time.monotonic() < end:
                for number, _ in poll.poll(1000):
                    by_number[number].receive()
            busy = sum(sender.busy for sender in senders)
            taken = sum(sender.answered for sender in senders) - busy
            longest = max(sender.longest for sender in senders)
        normal_s = normal_again(broker)
        return Answered(
            f"for {seconds:.0f} s {taken / seconds:,.0f}/s stored, "
            f"{busy / seconds:,.0f}/s code 2, the longest wait "
            f"{longest * 1000:.0f} ms; normal after {normal_s:.1f} s",
            (
                Figure("ms until the last is answered", longest * 1000, LAST_ANSWER_MS),
                Figure("s until it is normal", normal_s, NORMAL_AFTER_S),
            ),
        )

    return load


class Burst:
    """A connection that writes its sends together, and again when all are answered."""

    def __init__(self, client: Client) -> None:
        self._size = OUTSTANDING // 100
        self._frames = b"".join(send(client, 1024) for _ in range(self._size))
        self._socket = client.socket
        self._rest = b""
        self.number = self._socket.fileno()
        self.answered = self.busy = 0
        self.longest = 0.0

    def begin(self) -> None:
        self._left, self._begun = self._size, time.monotonic()
        self._socket.sendall(self._frames)

    def receive(self) -> None:
        data = self._rest + self._socket.recv(1 << 18)
        busy = data.count(b'"code":2,')
        at = 0
        while at + 4 <= len(data):
            end = at + 4 + int.from_bytes(data[at : at + 4])
            if end > len(data):
                break
            at = end
            self._left -= 1
            self.answered += 1
        self._rest = data[at:]
        busy -= self._rest.count(b'"code":2,')
        self.busy += busy
        self.longest = max(self.longest, time.monotonic() - self._begun)
        if not self._left:
            self.begin()


def normal_again(broker: RunningBroker) -> float:
    """Seconds until 20 sends in a row were taken within 20 ms each."""
    begun = time.monotonic()
    in_a_row = 0
    with Client(broker) as client:
        while in_a_row < 20 and time.monotonic() - begun < 60:
            sent = time.monotonic()
            taken = client.ask(send(client, 1024)) == "code 0"
            in_a_row = in_a_row + 1 if taken and time.monotonic() - sent < 0.02 else 0
    return time.monotonic() - begun


LONG_S = float(os.environ.get("LIMITS_SECONDS", "0"))
"""For a quick look: seconds of the loads that take minutes (120 and 60). Their answers say how many
they were."""

SCENARIOS = (
    Scenario(
        "unread",
        "246 KiB of pulls of a message of 4 MiB, unread",
        unread,
        prepare=messages(1, BIG),
        grown_mib=16,
    ),
    Scenario(
        "held-unread",
        "50 connections × 20 held pulls woken by a message of 4 MiB, unread",
        held,
        prepare=one_queue,
        grown_mib=180,
    ),
    Scenario(
        "silent-readers",
        "50 connections × 246 KiB of pulls, unread, beside a good reader",
        silent,
        prepare=messages(32, 8192),
        grown_mib=180,
    ),
    Scenario(
        "unfinished",
        "150 connections × 12 MiB of an unfinished frame",
        unfinished(150, 12 << 20),
        prepare=one_queue,
        grown_mib=180,
    ),
    Scenario(
        "handshakes",
        "3 rounds of 15,000 TLS handshakes of 44 bytes",
        handshakes(3, 15_000, 44),
        grown_mib=150,
    ),
    Scenario(
        "handshakes-few",
        "14 rounds of 2,000 TLS handshakes of 44 bytes",
        handshakes(14, 2_000, 44),
        grown_mib=150,
    ),
    Scenario(
        "handshakes-whole",
        "3 rounds of 2,000 TLS handshakes that stop after a whole ClientHello",
        handshakes(3, 2_000, None),
        grown_mib=150,
    ),
    Scenario(
        "left-pulls",
        "3 rounds of 250,000 held pulls on 5 connections that close",
        left_pulls(3, 5, 50_000),
        prepare=one_queue,
        grown_mib=180,
    ),
    Scenario("nonsense", "24,000 connections with bytes that are no frame", nonsense, grown_mib=50),
    Scenario(
        "crowd",
        "6,000 idle connections, 6,000 unfinished frames, a slow reader",
        crowd(LONG_S or 120.0),
        prepare=messages(32, 8192),
        grown_mib=180,
    ),
    Scenario(
        "overload",
        "ten times the outstanding sends that saturate it",
        overload(LONG_S or 60.0),
        prepare=one_queue,
        stall_ms=300.0,
        grown_mib=180,
    ),
)
