"""Delayed sends of PyPI `rocketmq` (the C++ client behind ctypes), for somebody else to read: by
level, and by time, for which the client has no call but the property that Java's sets. As
Producing.java it leaves in "places" a line per topic, number, queue (unknown: 0), queue offset and
message id.

    python delaying.py NAMESRV PREFIX COUNT
"""

import json
import os
import sys
import time

from rocketmq.client import Message, Producer, SendStatus

NAMESRV, PREFIX = sys.argv[1:3]
FEW = 24
PATIENCE_SECONDS = 180.0  # only a failure waits that long, or a machine busy with much else
TAGS = ("red", "green", "blue")
TEXT = 'plain é 漢字 🚀 "quoted" \\ \n\t'


def message(topic, n):
    made = Message(topic)
    made.set_tags(TAGS[n % 3])
    made.set_keys(f"key-{n} shared")
    made.set_property("n", str(n))
    made.set_property("text", TEXT.strip() + str(n))
    made.set_property("größe", f"ü{n}")
    made.set_body(f"letter {n} {TEXT}".encode())
    return made


def level(made, n):
    made.set_delay_time_level(n % 4)


def timer(made, n):
    due = str(time.time_ns() // 1_000_000 + 3000 + 100 * n)
    made.set_property("due", due)
    made.set_property("TIMER_DELIVER_MS", due)


def routed(send):
    """As in main.py: what had no route was not sent."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return send()
        except Exception as error:
            if "No route info" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def main():
    producer = Producer(f"{PREFIX}-producer")
    producer.set_namesrv_addr(NAMESRV)
    # after the usual 3 s on a busy machine it would send again: duplicates
    producer.set_timeout(60_000)
    producer.start()
    places, passed = [], True
    for name, delay in (("levels", level), ("timers", timer)):
        start, topic = time.monotonic(), f"{PREFIX}-{name}"
        report = {"scenario": name, "ok": True, "detail": f"{FEW} messages"}
        for n in range(FEW):
            made = message(topic, n)
            delay(made, n)
            result = routed(lambda one=made: producer.send_sync(one))
            if result.status != SendStatus.OK:
                report |= {"ok": False, "detail": f"message {n}: {result}"}
            places.append(f"{topic}\t{n}\t0\t{result.offset}\t{result.msg_id}\n")
        print(json.dumps(report | {"seconds": round(time.monotonic() - start, 2)}), flush=True)
        passed = passed and report["ok"]
    with open("places", "w") as file:
        file.writelines(places)
    os._exit(0 if passed else 1)  # without the destructors, which hang or abort


if __name__ == "__main__":
    main()
