"""A master with a slave that acts for it, and another master, on a simulated network."""

from typing import Any

from tests.unit.broker.replicas import MASTER, SLAVE, Replicas, a_round_later, eventually, same_logs
from tests.unit.broker.talking import Client

from turbopump.broker.acting.acting import Acting
from turbopump.broker.broker import Broker
from turbopump.config.broker_config import BrokerRole
from turbopump.message.codec import decode_entries
from turbopump.message.properties import encode_properties

OTHER = "10.0.1.8"
ACTS: dict[str, Any] = {
    "enable_slave_acting_master": True,
    "enable_remote_escape": True,
    "message_delay_level": "5s 20s",
    "transaction_time_out": 6000,
    "transaction_check_interval": 3000,
}


class ActingCluster:
    """Master broker-a with its slave, and the master broker-b, which has the same topics."""

    def __init__(self, replicas: Replicas) -> None:
        self.replicas = replicas
        self.master = replicas.client_of(MASTER)
        self.slave = replicas.client_of(SLAVE)
        self.other = replicas.client_of(OTHER)

    async def start(self, **config: Any) -> None:
        settings = {**ACTS, **config}
        await self.start_master(**config)
        await self.replicas.slave(**settings)
        await self.replicas.broker(
            OTHER, BrokerRole.ASYNC_MASTER, broker_name="broker-b", **settings
        )
        for client in (self.master, self.other):
            await client.create()
            await client.join("c1")

    async def start_master(self, **config: Any) -> Broker:
        return await self.replicas.master(**{**ACTS, **config})

    def broker(self, host: str) -> Broker:
        return self.replicas.brokers[host]

    async def copied(self) -> None:
        """Wait until the slave has the log and the tables."""
        await same_logs(self.broker(MASTER), self.broker(SLAVE))
        await a_round_later(self.broker(SLAVE))

    @property
    def acting(self) -> Acting:
        """What the slave does for its master."""
        acting = self.broker(SLAVE).acting
        assert acting is not None
        return acting

    async def until_acting(self) -> None:
        await eventually(lambda: self.acting.active)

    async def until_following(self) -> None:
        """Wait until the slave copies from its master again."""
        link = self.broker(SLAVE).parts.listening.replication.slave
        assert link is not None
        await eventually(lambda: link.accepted and not self.acting.active)

    def stored(self, host: str, topic: str = "T") -> list[bytes]:
        """Bodies in all queues of the topic at a broker."""
        store = self.broker(host).store
        found = []
        for queue in [queue for queue in store.queues if queue.topic == topic]:
            offset = queue.min_index
            while offset < queue.max_index:
                result = store.get(topic, queue.queue_id, offset, 32)
                found += [message.body for message in decode_entries(result.data)]
                offset = result.next_offset
        return found

    def now_ms(self, host: str = MASTER) -> int:
        return self.replicas.simulation.clock(host).now_ms()


async def at(client: Client, body: bytes, **fields: Any) -> None:
    """Send a message with these properties."""
    texts = {name: str(value) for name, value in fields.items()}
    unique = f"U{body.hex()}"
    await client.send(body, properties=encode_properties({"UNIQ_KEY": unique, **texts}))
