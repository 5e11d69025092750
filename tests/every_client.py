"""Every kind of client in turn, against servers that run elsewhere: `python tests/every_client.py
NAME_SERVER TRUSTED_CERTIFICATE DIRECTORY`. A line is printed for each kind that has done its work.

The program needs nothing but Turbopump, so that it runs on any system that clients run on: on Linux
it is also run without all that Windows lacks (`as_windows.py`).
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import turbopump
from patient import wait_for_servers
from turbopump import (
    ClientTls,
    ConnectError,
    ConsumeFrom,
    Delivery,
    LitePullConsumer,
    Message,
    MessageFinder,
    Producer,
    PullConsumer,
    PushConsumer,
    Retry,
    SimpleConsumer,
    TransactionProducer,
    TransactionState,
    blocking,
)
from turbopump.cli import main as command
from turbopump.cli.entry import COMMANDS
from turbopump.disk.durable_files import FileLockedError, lock_file

COUNT = 20
PATIENCE_S = 60.0
FIRST: dict[str, Any] = {"consume_from": ConsumeFrom.FIRST}


class Received:
    """Bodies that a handler has received, and a wait for a number of them."""

    def __init__(self, count: int) -> None:
        self.bodies: list[str] = []
        self._count = count
        self._enough = asyncio.Event()

    async def handle(self, message: Delivery) -> None:
        self.bodies.append(message.body.decode())
        if len(self.bodies) >= self._count:
            self._enough.set()

    async def wait(self) -> list[str]:
        async with asyncio.timeout(PATIENCE_S):
            await self._enough.wait()
        return self.bodies


def numbers(begin: int = 0, end: int = COUNT) -> list[str]:
    return [str(number) for number in range(begin, end)]


def done(what: str, *, agrees: bool) -> None:
    assert agrees, what
    print("done", what, flush=True)


def interrupt() -> None:
    """Press Ctrl-C, about now: the main thread may wait for something else by then."""
    number = threading.get_ident()
    press = partial(signal.raise_signal, signal.SIGINT)
    if hasattr(signal, "pthread_kill"):
        press = partial(signal.pthread_kill, number, signal.SIGINT)
    threading.Thread(target=press).start()


# --- with an event loop


async def send_and_push(servers: str, topic: str, **how: Any) -> None:
    async with Producer(servers, **how) as producer:
        for number in numbers():
            await producer.send(topic, number, keys=number)
    received = Received(COUNT)
    async with PushConsumer(
        servers, group="push", topic=topic, handler=received.handle, **FIRST, **how
    ):
        bodies = await received.wait()
    done(topic, agrees=sorted(bodies, key=int) == numbers())


async def in_order(servers: str) -> None:
    async with Producer(servers) as producer:
        for number in numbers():
            await producer.send("ordered", number, sharding_key="one queue")
    received = Received(COUNT)
    async with PushConsumer(
        servers, group="ordered", topic="ordered", handler=received.handle, ordered=True, **FIRST
    ):
        done("ordered", agrees=await received.wait() == numbers())


async def broadcast(servers: str, directory: Path) -> None:
    """The second consumer goes on where the file of the first one ends."""
    settings: dict[str, Any] = {
        "group": "broadcast",
        "topic": "broadcast",
        "broadcast": True,
        "offsets_directory": directory,
    } | FIRST
    half = COUNT // 2
    async with Producer(servers) as producer:
        for begin, end in ((0, half), (half, COUNT)):
            for number in numbers(begin, end):
                await producer.send("broadcast", number)
            received = Received(half)
            async with PushConsumer(servers, handler=received.handle, **settings):
                bodies = await received.wait()
            assert sorted(bodies, key=int) == numbers(begin, end), bodies
    (file,) = directory.glob("*/broadcast/offsets.json")
    done("broadcast", agrees=file.with_name("offsets.json.bak").exists())


async def lite_pull_and_pull(servers: str) -> None:
    bodies: list[str] = []
    async with LitePullConsumer(servers, group="lite", topic="push", **FIRST) as lite:
        while len(bodies) < COUNT:
            bodies += [message.body.decode() for message in await lite.poll(timeout=PATIENCE_S)]
    done("lite pull", agrees=sorted(bodies, key=int) == numbers())
    bodies = []
    async with PullConsumer(servers, group="pull") as pull:
        for queue in await pull.queues("push"):
            result = await pull.pull(queue, await pull.min_offset(queue))
            bodies += [message.body.decode() for message in result.messages]
    done("pull", agrees=sorted(bodies, key=int) == numbers())


async def pop(servers: str) -> None:
    bodies: list[str] = []
    async with SimpleConsumer(servers, group="pop", topic="push", **FIRST) as simple:
        while len(bodies) < COUNT:
            messages = await simple.receive(timeout=PATIENCE_S)
            bodies += [message.body.decode() for message in messages]
            await simple.ack(messages)
    done("pop", agrees=sorted(bodies, key=int) == numbers())


async def transact(servers: str) -> None:
    async def execute(_message: Message, state: TransactionState) -> TransactionState:
        return state

    async def check(_message: Any) -> TransactionState:
        return TransactionState.COMMIT

    received = Received(1)
    async with TransactionProducer(
        servers, group="transacts", executor=execute, checker=check, topics=["transacted"]
    ) as producer:
        for state in (TransactionState.ROLLBACK, TransactionState.COMMIT):
            message = Message("transacted", state.name)
            assert (await producer.send_in_transaction(message, state)).state is state
        async with PushConsumer(
            servers, group="reads", topic="transacted", handler=received.handle, **FIRST
        ):
            done("transaction", agrees=await received.wait() == ["COMMIT"])


async def ask(servers: str) -> None:
    async def answer(request: Delivery) -> None:
        await consumer.reply(request, request.body + b"!")

    async with Producer(servers) as producer:
        await producer.send("asked", "makes the topic")
        async with PushConsumer(
            servers, group="answers", topic="asked", handler=answer, **FIRST
        ) as consumer:
            reply = await producer.request(Message("asked", "what"), timeout=PATIENCE_S)
            done("request and reply", agrees=reply.body == b"what!")


async def find(servers: str) -> None:
    async with MessageFinder(servers) as finder:
        found = await finder.by_key("push", "7")
    done("finder", agrees={message.body for message in found.messages} == {b"7"})


async def stop_by_a_signal(servers: str) -> None:
    consumer = PushConsumer(servers, group="stopped", topic="push", **FIRST)
    seen = 0
    async with turbopump.stop_on_signals(consumer.stop) as stop, consumer:
        async for _ in consumer:
            seen += 1
            signal.raise_signal(signal.SIGINT)
            await stop.wait()
    done("stop_on_signals", agrees=seen == 1)


async def stop_while_nothing_comes(servers: str) -> None:
    consumer = PushConsumer(servers, group="idle", topic="push", tags="none")
    async with turbopump.stop_on_signals(consumer.stop), consumer:
        interrupt()
        assert [message async for message in consumer] == []
    done("stop_on_signals without messages", agrees=True)


async def bury(servers: str) -> None:
    """Make a dead letter, for the commands."""
    received = Received(1)

    async def fail(message: Delivery) -> Retry:
        await received.handle(message)
        return Retry(level=-1)

    async with (
        Producer(servers) as producer,
        PushConsumer(servers, group="dead", topic="buried", handler=fail, **FIRST),
    ):
        await producer.send("buried", "nobody wants it")
        await received.wait()


def lock(directory: Path) -> None:
    """Another process cannot resend the same dead letters, and reads who does."""
    held = lock_file(directory / "lock")
    try:
        lock_file(directory / "lock")
        text = "nobody"
    except FileLockedError as error:
        text = str(error)
    os.close(held)
    os.close(lock_file(directory / "lock"))
    done("lock", agrees=f"process {os.getpid()} on " in text)


async def refused() -> None:
    """Errors of the system are words, and not its numbers."""
    try:
        async with Producer("127.0.0.1:1") as producer:
            await producer.send("nowhere", "nothing")
    except turbopump.RouteNotFoundError as error:
        text = str(error)
    print("refused", text, flush=True)
    assert "refused" in text, text
    assert ConnectError.__name__ not in text


async def with_a_loop(servers: str, trust: str, directory: Path) -> None:
    await send_and_push(servers, "push")
    await send_and_push(servers, "push-tls", tls=ClientTls(trust=trust))
    await in_order(servers)
    await broadcast(servers, directory / "offsets")
    await lite_pull_and_pull(servers)
    await pop(servers)
    await transact(servers)
    await ask(servers)
    await find(servers)
    await stop_by_a_signal(servers)
    await stop_while_nothing_comes(servers)
    await bury(servers)
    await refused()
    lock(directory)


# --- without one


def without_a_loop(servers: str, trust: str, directory: Path) -> None:
    for tls in (False, ClientTls(trust=trust)):
        topic = f"blocking-{'plain' if tls is False else 'tls'}"
        with blocking.Producer(servers, tls=tls) as producer:
            for number in numbers():
                producer.send(topic, number)
        bodies: list[str] = []
        with blocking.PushConsumer(servers, group="b", topic=topic, tls=tls, **FIRST) as consumer:
            for message in consumer:
                bodies.append(message.body.decode())
                if len(bodies) == COUNT:
                    message.done()
                    break
        done(topic, agrees=sorted(bodies, key=int) == numbers())

    with blocking.PushConsumer(
        servers,
        group="b",
        topic="push",
        broadcast=True,
        offsets_directory=directory / "blocking",
        **FIRST,
    ) as consumer:
        bodies = [message.body.decode() for message in consumer.take(COUNT)]
    done("blocking broadcast", agrees=0 < len(bodies) <= COUNT)

    bodies = []
    with blocking.SimpleConsumer(servers, group="b-pop", topic="push", **FIRST) as simple:
        while len(bodies) < COUNT:
            messages = simple.receive(timeout=PATIENCE_S)
            bodies += [message.body.decode() for message in messages]
            simple.ack(messages)
    done("blocking pop", agrees=sorted(bodies, key=int) == numbers())

    consumer = blocking.PushConsumer(servers, group="b-stopped", topic="push", **FIRST)
    seen = 0
    with blocking.stop_on_signals(consumer.stop) as stop, consumer:
        for _ in consumer:
            seen += 1
            signal.raise_signal(signal.SIGTERM)
            assert stop.wait(PATIENCE_S)
    done("blocking stop_on_signals", agrees=seen == 1)

    with blocking.PushConsumer(servers, group="b-idle", topic="push", tags="none") as consumer:
        try:
            interrupt()
            next(iter(consumer))
        except KeyboardInterrupt:
            done("Ctrl-C while nothing comes", agrees=True)


# --- commands


def run(*arguments: str, text: bytes = b"") -> None:
    """Run a command of `turbopump` with this standard input. What it prints is the test's."""
    end, begin = os.pipe()
    os.write(begin, text)
    os.close(begin)
    os.dup2(end, 0)
    os.close(end)
    code = command(arguments)
    sys.stdout.flush()
    assert code == 0, (arguments, code)


def commands(servers: str, trust: str, directory: Path) -> None:
    for name in COMMANDS:
        run(name, "--help")
    at = ("-n", servers)
    run("produce", "commands", *at, "--raw", text=b"one\ntwo\n")
    run("consume", "commands", *at, "--count", "2", "--group", "g-commands", "--raw")
    run("consume", "commands", *at, "--count", "2", "--raw", "--tls-trust", trust)
    run("topic", "list", *at)
    run("topic", "create", "made", *at)
    run("topic", "route", "made", *at)
    run("consumer", "list", *at)
    run("consumer", "show", "g-commands", *at)
    run("offset", "show", "g-commands", *at)
    run("cluster", "ha", *at)
    run("dlq", "resend", "dead", "--all", *at, "--journal", str(directory / "journal"))
    run("message", "by-key", "push", "7", *at)
    done("commands", agrees=True)


if __name__ == "__main__":
    wait_for_servers()  # as long as a busy machine needs
    name_servers, certificate, place = sys.argv[1:]
    asyncio.run(with_a_loop(name_servers, certificate, Path(place)))
    without_a_loop(name_servers, certificate, Path(place))
    commands(name_servers, certificate, Path(place))
