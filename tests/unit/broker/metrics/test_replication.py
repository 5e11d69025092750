"""Metrics of a master and a slave."""

from tests.loops import in_loop
from tests.unit.broker.metrics.reading import series, value
from tests.unit.broker.replicas import MASTER, SLAVE, Replicas, eventually, same_logs, with_replicas

from turbopump.broker.metrics.replication import (
    BEHIND,
    COPIES,
    IN_SYNC,
    REFUSED,
    SLAVE_IN_SYNC,
    SLAVES,
)
from turbopump.config.broker_config import BrokerRole


@in_loop(with_replicas)
async def test_a_master_counts_its_slaves_and_what_they_lack(replicas: Replicas, /) -> None:
    master = await replicas.master()
    assert (value(master, SLAVES), value(master, IN_SYNC), value(master, REFUSED)) == (0, 0, 0)
    client = replicas.client_of(MASTER)
    await client.create()
    await client.send()
    slave = await replicas.slave()
    await same_logs(master, slave)
    await eventually(lambda: value(master, IN_SYNC) == 1)
    ((address, behind),) = series(master, BEHIND).items()
    assert address[0].startswith(f"{SLAVE}:")
    assert behind == 0
    assert series(master, SLAVE_IN_SYNC) == {address: 1}
    assert (value(slave, COPIES), value(master, REFUSED)) == (1, 0)
    replicas.kill(SLAVE)
    await eventually(lambda: value(master, SLAVES) == 0)
    assert series(master, BEHIND) == {}


@in_loop(with_replicas)
async def test_a_slave_that_is_not_allowed_is_counted_as_refused(replicas: Replicas, /) -> None:
    master = await replicas.master(ha_allowed_peers="10.0.1.77")
    slave = await replicas.broker(SLAVE, BrokerRole.SLAVE)
    await eventually(lambda: value(master, REFUSED) > 0)
    assert value(slave, COPIES) == 0
