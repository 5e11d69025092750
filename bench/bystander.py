"""Bystander: a client that sends one byte every 10 ms, and measures the waiting time of each send:
`python -m bench.bystander PORT PID`.

The one rule: the time of a send counts from the moment when it was due. So a broker that stops
cannot hide it. The bystander is a process of its own, with a higher priority where the system
permits it, so that it measures the broker alone. Each line on its standard input ends a window and
prints it. The process ends with its input. The other clients are unknown here.
"""

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count

import msgspec

from bench import wire
from bench.remote import SEND_MESSAGE_V2

TOPIC = "limits-bystander"
INTERVAL_S = 0.010
PATIENCE_S = 60.0
"""Longest wait for an answer before it counts as lost."""
CPUCLOCK_SCHED = 2


class Window(msgspec.Struct, frozen=True):
    """Result of one window.

    - Times are in milliseconds, from when a send was due to its answer.
    - ``cpu_ms``: the most CPU time of the broker's process within one such wait.
    - ``refused``: answers with another code than 0.
    - ``lost``: sends without an answer.
    """

    sends: int
    longest_ms: float
    p999_ms: float
    p99_ms: float
    cpu_ms: float
    refused: int
    lost: int


class Bystander:
    """The sending side. ``due`` has the sends without an answer: when each was due, and the
    broker's CPU time then."""

    def __init__(self, port: int, pid: int) -> None:
        self._port = port
        self._clock_of_broker = (~pid << 3) | CPUCLOCK_SCHED
        self._opaques = count(1)
        self._number = 0
        self._connect()
        self.reset()

    def _connect(self) -> None:
        self.socket = socket.create_connection(("127.0.0.1", self._port), timeout=PATIENCE_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = wire.Answers()
        self.due: dict[int, tuple[float, float]] = {}

    def reset(self) -> None:
        """Begin a window."""
        self._waits: list[float] = []
        self._cpu = 0.0
        self._refused = self._lost = 0

    def send(self, due: float) -> None:
        opaque = next(self._opaques)
        self.due[opaque] = (due, self._broker_cpu())
        fields = {"a": "bystander", "b": TOPIC, "c": "TBW102", "d": "4", "e": "0", "f": "0"}
        fields |= {"g": str(time.time_ns() // 1_000_000), "h": "0"}
        fields |= {"i": f"UNIQ_KEY\x01{time.time_ns():032X}\x02", "j": "0", "k": "false"}
        fields |= {"m": "false"}
        try:
            self.socket.sendall(wire.request(SEND_MESSAGE_V2, opaque, fields, b"b"))
        except OSError:
            self._begin_again()

    def receive(self) -> None:
        """Take the answers that are there."""
        try:
            data = self.socket.recv(65536)
        except OSError:
            data = b""
        now, cpu = time.monotonic(), self._broker_cpu()
        for answer in self._answers.feed(data):
            due, cpu_then = self.due.pop(answer.opaque)
            self._waits.append(now - due)
            self._cpu = max(self._cpu, cpu - cpu_then)
            self._refused += answer.code != wire.SUCCESS
        if not data:
            self._begin_again()

    def give_up_late_ones(self, now: float) -> None:
        late = [opaque for opaque, (due, _) in self.due.items() if now - due > PATIENCE_S]
        self._lose(late, now)

    def window(self) -> Window:
        waits = sorted(self._waits) or [0.0]
        rank = [min(int(len(waits) * part), len(waits) - 1) for part in (0.999, 0.99)]
        return Window(
            len(self._waits),
            waits[-1] * 1000,
            waits[rank[0]] * 1000,
            waits[rank[1]] * 1000,
            self._cpu * 1000,
            self._refused,
            self._lost,
        )

    def _begin_again(self) -> None:
        self._lose(list(self.due), time.monotonic())
        with suppress(OSError):
            before, _ = self.socket, self._connect()
            before.close()

    def _lose(self, opaques: Sequence[int], now: float) -> None:
        for opaque in opaques:
            self._waits.append(now - self.due.pop(opaque)[0])
        self._lost += len(opaques)

    def _broker_cpu(self) -> float:
        try:
            return time.clock_gettime(self._clock_of_broker)
        except OSError:  # it is gone
            return 0.0


@contextmanager
def running_bystander(port: int, pid: int) -> Iterator["subprocess.Popen[bytes]"]:
    """A bystander whose first send was answered. The broker must have its topic."""
    command = [sys.executable, "-m", "bench.bystander", str(port), str(pid)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        window_of(process)
        yield process
    finally:
        process.kill()
        process.communicate()


def window_of(process: "subprocess.Popen[bytes]") -> Window:
    """End a running bystander's window, after the missing answers have arrived.

    Raises ChildProcessError if the bystander has ended.
    """
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(b"\n")
        process.stdin.flush()
    line = process.stdout.readline()
    if not line:
        raise ChildProcessError(f"the bystander ended with {process.wait()}")
    return msgspec.json.decode(line, type=Window)


def main() -> None:
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    bystander = Bystander(int(sys.argv[1]), int(sys.argv[2]))
    due = time.monotonic()
    while True:
        now = time.monotonic()
        while due <= now:
            bystander.send(due)
            due += INTERVAL_S
        wait = max(due - time.monotonic(), 0.0)
        readable, _, _ = select.select([bystander.socket, 0], [], [], wait)
        if bystander.socket in readable:
            bystander.receive()
        if 0 not in readable:
            bystander.give_up_late_ones(time.monotonic())
            continue
        if not os.read(0, 1):
            return
        while bystander.due:
            if select.select([bystander.socket], [], [], 1.0)[0]:
                bystander.receive()
            bystander.give_up_late_ones(time.monotonic())
        print(msgspec.json.encode(bystander.window()).decode(), flush=True)
        bystander.reset()
        due = time.monotonic()


if __name__ == "__main__":
    main()
