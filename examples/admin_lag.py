"""A topic and a group from a program, and how far the group is behind.

Start `turbopump dev`, then run `python examples/admin_lag.py`.
"""

from __future__ import annotations

import asyncio
import os

from turbopump import Admin, Producer

NAME_SERVER = os.environ.get("NAMESRV_ADDR", "127.0.0.1:9876")
TOPIC, GROUP = "parcels", "couriers"


async def main() -> None:
    async with Admin(NAME_SERVER) as admin, Producer(NAME_SERVER) as producer:
        await admin.topics.create(TOPIC, read_queues=2, write_queues=2)
        await admin.groups.create(GROUP, retry_max_times=3)
        await admin.offsets.reset(GROUP, TOPIC, "end")
        for number in range(3):
            await producer.send(TOPIC, f"parcel {number}")
        for group in await admin.topics.groups(TOPIC):
            lag = await admin.groups.lag(group, TOPIC)
            members = await admin.groups.members(group)
            print(
                f"{group}: {lag.messages} messages behind, {lag.seconds or 0:.0f} s, "
                f"{len(members.members)} consumers"
            )


if __name__ == "__main__":
    asyncio.run(main())
