"""Ranges of a queue of inner batches, as Apache's broker gives it: each offset once, wherever a
range begins and ends."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.client.stored_batches import BODIES, serve_batches_in

from turbopump.message.message import MessageQueue
from turbopump.spark.cluster import Cluster
from turbopump.spark.decode import decode
from turbopump.spark.offsets import OffsetRange
from turbopump.spark.options import read_options
from turbopump.spark.reading import read_range
from turbopump.testing import BrokerThread


def test_a_range_that_begins_and_ends_within_batches_is_read_exactly() -> None:
    with BrokerThread() as broker:
        serve_batches_in(broker)
        queue = MessageQueue("B", "broker-test", 0)
        with Cluster([broker.namesrv]) as cluster:
            for begin, end, batch in [
                (0, 12, 32),
                (2, 7, 32),
                (5, 6, 32),
                (4, 8, 1),
                (1, 12, 3),
                (11, 12, 32),
            ]:
                read = {}
                wanted = OffsetRange(queue, begin, end)
                options = read_options({"nameServer": "x:1", "topic": "T"})
                options = replace(options, pull_batch_size=batch, pull_timeout_ms=500)
                for chunk in read_range(cluster, wanted, options):
                    for rows in decode(
                        chunk, "b", ("queueOffset", "body"), queue_offsets=range(begin, end)
                    ):
                        pairs = list(
                            zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True)
                        )
                        assert not read.keys() & dict(pairs).keys(), "given twice"
                        read.update(pairs)
                assert read == dict(list(enumerate(BODIES))[begin:end])
