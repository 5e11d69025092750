"""What Beside.java is, with PyPI `rocketmq` (the C++ client behind ctypes).

The handler is registered below `PushConsumer.subscribe`, which raises every exception again inside
of ctypes' callback: what the client is then told is undefined. The client has no retries of its own
to allow; the group's settings at the broker say how many.

    python beside.py NAMESRV TOPIC GROUP
"""

import os
import sys

from rocketmq.client import PushConsumer, RecvMessage
from rocketmq.exceptions import ffi_check
from rocketmq.ffi import dll

CONSUMED, LATER = 0, 1


def main():
    namesrv, topic, group = sys.argv[1:]

    def handle(_, pointer):
        message = RecvMessage(pointer)
        attempt = message.reconsume_times
        fails = message.get_property("fails")
        bad = attempt < int(fails or 0)
        words = (
            int(message.get_property("n")),
            attempt,
            message.queue_id,
            message.topic,
            "failed" if bad else "ok",
        )
        sys.stdout.write(" ".join(map(str, words)) + "\n")
        sys.stdout.flush()
        return LATER if bad else CONSUMED

    consumer = PushConsumer(group)
    consumer.set_namesrv_addr(namesrv)
    consumer.set_instance_name(f"{group}-beside-{os.getpid()}")
    consumer.set_thread_count(1)
    ffi_check(dll.Subscribe(consumer._handle, topic.encode(), b"*"))
    consumer._register_callback(handle)
    consumer.start()
    print("ready", flush=True)
    sys.stdin.read()
    os._exit(0)  # without the destructors, which hang or abort


if __name__ == "__main__":
    main()
