"""State of replication of a broker in the loop of a test."""

import asyncio

from turbopump.broker.broker import Broker
from turbopump.protocol.requests.replication import HARuntimeInfo


def ha_status(master: Broker) -> HARuntimeInfo:
    return master.parts.listening.replication.status(asyncio.get_running_loop().time())
