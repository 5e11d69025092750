"""Runs every scenario of PyPI `rocketmq` (the C++ client behind ctypes) at once against the name
server given.

Each scenario has topics and groups that start with the prefix given and prints one JSON line as it
ends; exits 0 only when all passed. With INTEROP_SCENARIOS=a,b in the environment: those alone.
Bodies and properties are C strings in this binding: nothing
after a zero byte would survive, so there is none in what is sent here.

    python main.py NAMESRV PREFIX COUNT
"""

import json
import os
import re
import socket
import struct
import subprocess
import sys
import threading
import time
import traceback

from rocketmq.client import Message, Producer, PullConsumer, PushConsumer, SendStatus

NAMESRV, PREFIX, COUNT = sys.argv[1], sys.argv[2], int(sys.argv[3])
PATIENCE_SECONDS = 180.0  # only a failure waits that long, or a machine busy with much else
QUEUES = 4  # of a topic that a send created
FIRST_HALF, VERIFIED = "first-half", "verified"
# Destroying a producer or consumer, or shutting one down, ends one that other threads still use (a
# boost lock error, or an interruption that nobody catches, aborts the process): keep all.
KEPT = []
TAGS = ("red", "green", "blue")
TEXT = 'plain é 漢字 "quoted" \\ \n\t'


def signing_for(user, client):
    """The client, which signs for the user of an environment variable, as ACCESS:SECRET, if there
    is one."""
    if pair := os.environ.get(user):
        client.set_session_credentials(*pair.split(":"), "ALIYUN")
    return client


def eventually(what, question):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if question():
            return
        time.sleep(0.02)
    raise AssertionError(f"never came true: {what}")


def routed(send):
    """The result of a send, asked again while the client has no route to a new topic: threads that
    look up routes at once lose each other's answers. What had no route was not sent, so nothing is
    sent twice."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return send()
        except Exception as error:
            if "No route info" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


class Letters:
    """What one scenario sends, and the comparison of what came back with it."""

    def __init__(self, topic, count):
        self.topic = topic
        self.bodies = [f"letter {n} {TEXT}".encode() for n in range(count)]
        self.results = {}
        self.again = set()

    def numbers(self, *tags):
        return [n for n in range(len(self.bodies)) if TAGS[n % 3] in tags]

    def message(self, n):
        message = Message(self.topic)
        message.set_tags(TAGS[n % 3])
        message.set_keys(f"key-{n} shared")
        message.set_property("n", str(n))
        message.set_property("text", TEXT.strip() + str(n))
        message.set_property("größe", f"ü{n}")
        message.set_body(self.bodies[n])
        KEPT.append(message)  # asynchronous sends read it after they return
        return message

    def send(self, producer, numbers):
        for n in numbers:
            self.acknowledged(n, routed(lambda number=n: producer.send_sync(self.message(number))))

    def acknowledged(self, n, result):
        assert result.status == SendStatus.OK, result
        self.results[n] = result

    def check(self, numbers, received):
        """`received` are the dicts of `copied`: each expected message once, nothing else, all as it
        was sent. A letter of which a send failed was sent again; it may be there twice, for the
        failure says nothing of whether it was stored."""
        received = [
            e
            for e in received
            if e["n"] not in self.again or e["offset"] == self.results[e["n"]].offset
        ]
        got = sorted(entry["n"] for entry in received)
        assert got == sorted(numbers), f"{self.topic}: wanted {sorted(numbers)}, got {got}"
        for entry in received:
            n = entry["n"]
            which = f"{self.topic} message {n}"
            assert entry["topic"] == self.topic, f"{which}: {entry['topic']}"
            assert entry["body"] == self.bodies[n], f"{which}: body of {len(entry['body'])} bytes"
            assert entry["tags"] == TAGS[n % 3].encode(), f"{which}: tags {entry['tags']}"
            assert entry["keys"].strip() == f"key-{n} shared".encode(), (
                f"{which}: keys {entry['keys']}"
            )
            assert entry["text"] == (TEXT.strip() + str(n)).encode(), (
                f"{which}: text {entry['text']}"
            )
            assert entry["größe"] == f"ü{n}".encode(), f"{which}: größe {entry['größe']}"
            if n in self.results:
                assert entry["offset"] == self.results[n].offset, (
                    f"{which}: offset {entry['offset']}"
                )
        places = {(entry["queue"], entry["offset"]) for entry in received}
        assert len(places) == len(received), f"{self.topic}: two messages at one place"


def once(received):
    """Without repeats of the same stored message: delivery is at least once when a queue changes
    hands. The same letter stored twice stays twice."""
    return list({(entry["queue"], entry["offset"]): entry for entry in received}.values())


def distinct(received):
    return len({entry["n"] for entry in received})


def copied(message):
    """The client's message lives only while its handler runs."""
    return {
        "n": int(message.get_property("n")),
        "topic": message.topic,
        "body": message.body,
        "tags": message.tags,
        "keys": message.keys,
        "text": message.get_property("text"),
        "größe": message.get_property("größe"),
        "queue": message.queue_id,
        "offset": message.queue_offset,
    }


def start_producer():
    """One for all: several that start at once in one process lose each other's routes and
    connections."""
    producer = signing_for("INTEROP_PRODUCER", Producer(f"{PREFIX}-producer"))
    producer.set_namesrv_addr(NAMESRV)
    # after the usual 3 s on a busy machine it would send again: duplicates
    producer.set_timeout(60_000)
    producer.start()
    warm_up = Message(f"{PREFIX}-warm-up")
    warm_up.set_body("first")
    producer.send_sync(warm_up)
    return producer


def push(group, instance, topic, expression, received, credentials=None):
    consumer = signing_for("INTEROP_CONSUMER", PushConsumer(group))
    consumer.set_namesrv_addr(NAMESRV)
    if credentials:
        consumer.set_session_credentials(*credentials)
    consumer.set_instance_name(f"{group}-{instance}")
    consumer.set_thread_count(1)
    consumer.subscribe(topic, lambda message: received.append(copied(message)), expression)
    consumer.start()
    KEPT.append(consumer)
    return consumer


def ask(address, code, **fields):
    """One request on a connection of its own: the answer's header and body. The client asks this
    too, but tells nobody."""
    header = {
        "code": code,
        "language": "CPP",
        "version": 0,
        "opaque": 1,
        "flag": 0,
        "extFields": fields,
    }
    data = json.dumps(header).encode()
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(struct.pack(">II", 4 + len(data), len(data)) + data)
        stream = connection.makefile("rb")
        size, header_size = struct.unpack(">II", stream.read(8))
        reply = stream.read(size - 4)
    split = header_size & 0xFFFFFF
    return json.loads(reply[:split]), reply[split:]


def settled(topic, messages):
    """Wait until the group's offsets at the broker are past `messages` messages: who takes over a
    queue then gets none of them again. The client commits one-way, every few seconds."""
    _, route = ask(NAMESRV, 105, topic=topic)  # fastjson's dialect, not JSON
    broker = re.search(r'"([\d.]+:\d+)"', route.decode()).group(1)

    def committed():
        offsets = [
            ask(broker, 14, consumerGroup=f"{topic}-group", topic=topic, queueId=str(q))[0]
            for q in range(QUEUES)
        ]
        return (
            sum(
                max(0, int(header["extFields"]["offset"]))
                for header in offsets
                if header["code"] == 0
            )
            == messages
        )

    eventually(f"offsets of {messages} messages", committed)


def read_all(topic, wanted):
    """All messages by pulls from offset 0, asked again until there are enough."""
    received = []
    reader = signing_for("INTEROP_CONSUMER", PullConsumer(f"{topic}-reader"))
    reader.set_namesrv_addr(NAMESRV)
    reader.start()
    KEPT.append(reader)

    def enough():
        received.extend(copied(message) for message in reader.pull(topic))
        return distinct(received) >= wanted

    eventually(f"{topic}: {wanted} messages", enough)
    return received


def compare(letters):
    received = read_all(letters.topic, len(letters.bodies))
    letters.check(range(len(letters.bodies)), received)
    return f"{len(received)} messages" + (
        f", {len(letters.again)} sent again" if letters.again else ""
    )


def send_sync(topic):
    producer = PRODUCER
    letters = Letters(topic, COUNT)
    letters.send(producer, range(COUNT))
    return compare(letters)


def send_async(topic):
    producer = PRODUCER
    letters = Letters(topic, COUNT)
    letters.send(producer, [0])
    failures = []
    done = threading.Semaphore(0)

    def sent(n):
        def callback(result):
            letters.acknowledged(n, result)
            done.release()

        return callback

    def failed(n):
        def callback(error):
            failures.append(error.args)
            letters.again.add(n)
            done.release()

        return callback

    for n in range(1, COUNT):
        producer.send_async(letters.message(n), sent(n), failed(n))
    for _ in range(1, COUNT):
        assert done.acquire(timeout=PATIENCE_SECONDS), "a callback is missing"
    # on a busy machine it gives up one or the other, and does not say why
    assert len(failures) <= 8, failures
    letters.send(producer, sorted(letters.again))
    return compare(letters)


def send_oneway(topic):
    producer = PRODUCER
    letters = Letters(topic, COUNT)
    letters.send(producer, [0])
    for n in range(1, COUNT):
        producer.send_oneway(letters.message(n))
    return compare(letters)


def send_by_selector(topic):
    producer = PRODUCER
    letters = Letters(topic, COUNT)
    for n in range(COUNT):
        letters.acknowledged(
            n, routed(lambda number=n: producer.send_orderly(letters.message(number), number))
        )
    received = read_all(topic, COUNT)
    letters.check(range(COUNT), received)
    queues = {}
    for entry in received:
        queues.setdefault(entry["queue"], []).append(entry)
    for queue, entries in queues.items():
        numbers = [entry["n"] for entry in entries]
        assert [entry["offset"] for entry in entries] == list(range(len(entries))), (
            f"queue {queue}: offsets"
        )
        assert numbers == sorted(numbers), f"queue {queue}: order {numbers}"
        assert len({n % len(queues) for n in numbers}) == 1, f"queue {queue}: {numbers}"
    return f"{len(queues)} queues"


def send_large(topic):
    producer = PRODUCER
    producer.set_max_message_size(4 << 20)
    letters = Letters(topic, 0)
    noise = bytes(byte % 255 + 1 for byte in os.urandom(1 << 20))  # no zero bytes
    letters.bodies = [b"compressible " * 500, b"compressible " * 80_000, noise[:5_000], noise, b"x"]
    letters.send(producer, range(len(letters.bodies)))
    return compare(letters)


def push_tag_filter(topic):
    producer = PRODUCER
    letters = Letters(topic, COUNT)
    letters.send(producer, range(COUNT))
    received = []
    push(f"{topic}-group", "a", topic, "red || blue", received)
    wanted = letters.numbers("red", "blue")
    eventually("red and blue", lambda: len(received) >= len(wanted))
    letters.check(wanted, received)
    return f"{len(received)} of {COUNT} messages"


def push_signed(topic):
    """AccessKey, Signature and OnsChannel beside the fields of each request: ignored without access
    control."""
    letters = Letters(topic, 8)
    letters.send(PRODUCER, range(8))
    received = []
    push(f"{topic}-group", "a", topic, "*", received, ("nobody", "nothing", "ALIYUN"))
    eventually("all", lambda: len(received) >= 8)
    letters.check(range(8), received)
    return "8 messages"


def push_while_sending(topic):
    producer = PRODUCER
    letters = Letters(topic, COUNT)
    letters.send(producer, range(COUNT // 2))
    received = []
    push(f"{topic}-group", "a", topic, "*", received)
    eventually("first half", lambda: len(received) >= COUNT // 2)
    letters.send(producer, range(COUNT // 2, COUNT))
    eventually("second half", lambda: len(received) >= COUNT)
    letters.check(range(COUNT), received)
    return f"{len(received)} messages"


def push_two_balance(topic):
    """Rounds of messages go out until in one of them each consumer got some queues and no queue
    went to both. Every message arrives; one that was in hand when its queue changed hands may be
    seen twice."""
    letters = Letters(topic, 1)
    letters.send(PRODUCER, [0])
    received = [[], []]
    for i in range(2):
        push(f"{topic}-group", str(i), topic, "*", received[i])
        if i == 0:
            eventually("the first message", lambda: received[0])
            settled(topic, 1)
    rounds = 0

    def shared():
        nonlocal rounds
        rounds += 1
        first = len(letters.bodies)
        letters.bodies += [f"letter {n} {TEXT}".encode() for n in range(first, first + 2 * QUEUES)]
        letters.send(PRODUCER, range(first, len(letters.bodies)))
        eventually(
            "all of the round", lambda: distinct(received[0] + received[1]) == len(letters.bodies)
        )
        queues = [{entry["queue"] for entry in part if entry["n"] >= first} for part in received]
        return queues[0] and queues[1] and not queues[0] & queues[1]

    eventually("a round in which both have their own queues", shared)
    letters.check(range(len(letters.bodies)), once(received[0] + received[1]))
    return f"{len(received[0])} and {len(received[1])} messages, {rounds} rounds"


def push_resume(topic):
    """The first half is consumed by a process of its own: a consumer that is shut down interrupts
    threads, and now and then ends the whole process by that (boost::thread_interrupted)."""
    letters = Letters(topic, COUNT)
    first, second = range(COUNT // 2), range(COUNT // 2, COUNT)
    letters.send(PRODUCER, first)
    command = [sys.executable, __file__, NAMESRV, topic, str(COUNT), FIRST_HALF]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=2 * PATIENCE_SECONDS)
    assert VERIFIED in child.stdout, (
        f"the first half's process ended with {child.returncode}: {child.stdout}"
    )
    letters.send(PRODUCER, second)
    received = []
    push(f"{topic}-group", "second", topic, "*", received)
    eventually("the second half", lambda: len(received) >= len(second))
    letters.check(second, received)
    return "half and half"


def first_half(topic):
    """The child process of push_resume. What happens after it said so does not matter."""
    letters = Letters(topic, COUNT)
    received = []
    consumer = push(f"{topic}-group", "first", topic, "*", received)
    eventually("the first half", lambda: len(received) >= COUNT // 2)
    settled(topic, COUNT // 2)
    letters.check(range(COUNT // 2), received)
    print(VERIFIED, flush=True)
    consumer.shutdown()


def refused(topic):
    """Those who may not are told so, and get no message; those who may, beside them, do. STALE has
    the right secret for the name server, another one for the broker."""
    letters = Letters(topic, COUNT)
    letters.send(PRODUCER, [0])
    stolen, received = [], []
    stale = (*os.environ["INTEROP_STALE"].split(":"), "ALIYUN")
    push(f"{topic}-stale", "a", topic, "*", stolen, stale)
    push(f"{topic}-group", "a", topic, "*", received)
    for user in ("INTEROP_STALE", "INTEROP_CONSUMER", "INTEROP_NOBODY"):
        # in a process of its own: all producers of a process sign as the first of them
        environment = {**os.environ, "INTEROP_PRODUCER": os.environ[user]}
        command = [sys.executable, __file__, NAMESRV, topic, "0"]
        child = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=environment)
        assert child.returncode != 0, f"{user} has sent"
        # whatever a broker has answered, this client says so
        assert "ProducerSendSyncFailed: No route info" in child.stderr, f"{user}: {child.stderr}"
    letters.send(PRODUCER, range(1, COUNT))
    eventually("all", lambda: len(received) >= COUNT)
    assert not stolen, f"{len(stolen)} messages of who has a wrong key"
    letters.check(range(COUNT), received)
    return "three were refused"


PRODUCER = None if FIRST_HALF in sys.argv else start_producer()

SCENARIOS = [
    send_sync,
    send_async,
    send_oneway,
    send_by_selector,
    send_large,
    push_tag_filter,
    push_signed,
    push_while_sending,
    push_two_balance,
    push_resume,
]


def run(scenario, passed):
    start = time.monotonic()
    report = {"scenario": scenario.__name__, "ok": True}
    try:
        report["detail"] = scenario(f"{PREFIX}-{scenario.__name__}")
    except BaseException as error:
        traceback.print_exc()
        report |= {"ok": False, "detail": f"{type(error).__name__}: {error}"}
    report["seconds"] = round(time.monotonic() - start, 2)
    passed.append(report["ok"])
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()


def main():
    if FIRST_HALF in sys.argv:
        first_half(PREFIX)
        os._exit(0)
    passed = []
    wanted = os.environ.get("INTEROP_SCENARIOS", "").split(",")
    scenarios = [s for s in [*SCENARIOS, refused] if s.__name__ in wanted] or SCENARIOS
    threads = [threading.Thread(target=run, args=(scenario, passed)) for scenario in scenarios]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(0 if all(passed) else 1)  # without the destructors, which hang or abort


if __name__ == "__main__":
    main()
