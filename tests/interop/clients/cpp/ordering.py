"""What Ordering.java is, with PyPI `rocketmq` (the C++ client behind ctypes). The handler is
registered as in beside.py.

python ordering.py NAMESRV TOPIC GROUP ordered|broadcast
"""

import os
import sys
import time

from rocketmq.client import MessageModel, PushConsumer, RecvMessage
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import dll

CONSUMED, LATER = 0, 1


def say(what, message):
    sys.stdout.write(
        f"{what} {message.queue_id} {message.queue_offset} {time.time_ns() // 1_000_000}\n"
    )
    sys.stdout.flush()


def main():
    namesrv, topic, group, mode = sys.argv[1:]
    failed = set()

    def in_order(_, pointer):
        message = RecvMessage(pointer)
        place = message.queue_id, message.queue_offset
        say("B", message)
        time.sleep(0.005)
        if message.queue_offset % 10 == 3 and place not in failed:
            failed.add(place)
            say("F", message)
            return LATER
        say("E", message)
        return CONSUMED

    def by_itself(_, pointer):
        say("E", RecvMessage(pointer))
        return CONSUMED

    ordered = mode == "ordered"
    consumer = PushConsumer(
        group,
        orderly=ordered,
        message_model=MessageModel.CLUSTERING if ordered else MessageModel.BROADCASTING,
    )
    consumer.set_namesrv_addr(namesrv)
    consumer.set_instance_name(f"{group}-ordering-{os.getpid()}")
    consumer.set_thread_count(1)
    ffi_check(dll.Subscribe(consumer._handle, topic.encode(), b"*"))
    consumer._register_callback(in_order if ordered else by_itself)
    consumer.start()
    print("ready", flush=True)
    sys.stdin.read()
    consumer.shutdown()  # gives its locks back
    os._exit(0)  # without the destructors, which hang or abort


if __name__ == "__main__":
    main()
