"""Fill a store directory with messages and end as a kill would: `python fill_store.py DIRECTORY
BYTES`.

Messages of 1 KiB with a unique key each, whole-entry CRCs, 1 GiB segments and index files of the
usual size.
"""

import os
import random
import sys
from pathlib import Path

from turbopump.clock import SystemClock
from turbopump.disk.system_disk import SystemDisk
from turbopump.store.files import StorePaths
from turbopump.store.message_store import MessageStore, NewMessage
from turbopump.store.store_config import StoreConfig

TOPIC = "crash"
QUEUES = 8
HOST = bytes([127, 0, 0, 1]) + (10911).to_bytes(4, "big")


def main(directory: Path, size: int) -> None:
    config = StoreConfig(
        StorePaths(directory), with_crc=True, index_slots=5_000_000, index_entries=20_000_000
    )
    clock = SystemClock()
    store = MessageStore.open(config, SystemDisk(), clock, print)
    body = random.Random(1).randbytes(850)
    number = 0
    while store.log.end < size:
        unique = f"{number:032X}"
        message = NewMessage(body, f"UNIQ_KEY\x01{unique}\x02".encode(), 0, unique=unique)
        now = clock.now_ms()
        store.put(
            TOPIC,
            number % QUEUES,
            message,
            sys_flag=0,
            born_timestamp=now,
            born_host=HOST,
            store_host=HOST,
        )
        number += 1
        if number % 10_000 == 0:
            store.flusher.flush_log()
    print(number, flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
