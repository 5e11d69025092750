"""The same work of Apache's Java client on Apache's broker and on ours: no metric, type or label
key of Apache's is missing in ours, and the counters agree.

Apache's names are those of metrics that its broker really showed. What the two do inside themselves
(records of POP, reads of transactions, times of requests) is not compared in numbers.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest
from tests.interop.apache import NEWEST
from tests.interop.foreign import java_client
from tests.interop.measured import Labels, Scrape, metrics_after_the_work
from tests.interop.tools import skipping_without_tools

NAMES_TEXT: Final = """
processor_watermark broker_permission topic_number consumer_group_number
messages_in_total throughput_in_total message_size messages_out_total throughput_out_total
topic_create_execution_time_milliseconds consumer_group_create_execution_time_milliseconds
producer_connections consumer_connections
consumer_lag_messages consumer_lag_latency_milliseconds consumer_inflight_messages
consumer_queueing_latency_milliseconds consumer_ready_messages send_to_dlq_messages_total
commit_messages_total rollback_messages_total finish_message_latency_milliseconds half_messages
storage_size_bytes storage_flush_behind_bytes storage_dispatch_behind_bytes
storage_message_reserve_time_milliseconds
timer_enqueue_lag timer_enqueue_latency_milliseconds timer_dequeue_lag
timer_dequeue_latency_milliseconds timing_messages timer_message_snapshot timer_enqueue_total
timer_dequeue_total delay_message_latency_seconds
rpc_latency_milliseconds
pop_buffer_scan_time_consume_milliseconds pop_revive_in_message_total
pop_revive_out_message_total pop_revive_retry_messages_total pop_revive_lag_milliseconds
pop_revive_latency_milliseconds pop_offset_buffer_size pop_checkpoint_buffer_size
"""
NAMES: Final = tuple(f"rocketmq_{name}" for name in NAMES_TEXT.split())
"""Metrics of Apache's broker, except those of RocksDB, of tiered storage and of lite topics."""

EXACT_TEXT: Final = """
messages_in_total throughput_in_total message_size_count message_size_sum message_size_bucket
messages_out_total throughput_out_total send_to_dlq_messages_total commit_messages_total
rollback_messages_total finish_message_latency_milliseconds_count half_messages
topic_create_execution_time_milliseconds_count consumer_connections producer_connections
consumer_group_create_execution_time_milliseconds_count
consumer_lag_messages consumer_inflight_messages consumer_ready_messages
topic_number consumer_group_number broker_permission
timer_enqueue_total timer_dequeue_total pop_revive_retry_messages_total
"""
EXACT: Final = tuple(f"rocketmq_{name}" for name in EXACT_TEXT.split())
"""Series that must have the same value, within a hundredth."""

INSIDE: Final = ("rmq_sys_REVIVE_LOG_DefaultCluster",)
"""Topics whose messages are records of the broker itself."""
OTHER_BYTES: Final = ("DefaultCluster_REPLY_TOPIC",)
"""Topics whose messages are stored with other properties: Apache's broker adds to the stored copy
of a reply when it was passed on. Our copies of popped messages in retry topics have two more
properties, and so other sizes, too."""


def test_metrics_are_those_of_apaches_broker_after_the_same_work(
    tmp_path: Path, summary: list[str]
) -> None:
    with skipping_without_tools():
        java_client(NEWEST, program="Measured")  # built before anything is started
    with ThreadPoolExecutor() as pool:
        apache_later = pool.submit(metrics_after_the_work, "apache", tmp_path / "apache")
        ours_later = pool.submit(metrics_after_the_work, "ours", tmp_path / "ours")
        apache, ours = apache_later.result(), ours_later.result()
    shown = [name for name in NAMES if apache.names_of(name)]
    faults = [fault for name in shown for fault in missing(name, apache, ours)]
    compared = 0
    for name in EXACT:
        for labels, value in apache.series.get(name, {}).items():
            fault = difference(name, labels, value, ours)
            compared += 1
            if fault is not None:
                faults.append(fault)
    assert not faults, "\n".join(faults)
    assert len(shown) > 40, sorted(set(NAMES) - set(shown))
    summary.append(f"metrics: {len(shown)} names and {compared} series as Apache's {NEWEST} has")


def missing(name: str, apache: Scrape, ours: Scrape) -> list[str]:
    """What ours lacks of one metric: the name, the type, or keys of labels."""
    if not ours.names_of(name):
        return [f"{name}: missing"]
    faults = []
    if ours.types.get(name) != apache.type_of(name):
        faults.append(f"{name}: type {ours.types.get(name)}, Apache's is {apache.type_of(name)}")
    lacking = apache.keys_of(name) - ours.keys_of(name)
    if lacking:
        faults.append(f"{name}: labels missing: {', '.join(sorted(lacking))}")
    return faults


def difference(name: str, labels: Labels, value: float, ours: Scrape) -> str | None:
    """The line of one series that ours lacks, or that has another value; None if it is equal."""
    topic = dict(labels).get("topic")
    of_bytes = "throughput" in name or "_size" in name
    if topic in INSIDE or (of_bytes and (topic in OTHER_BYTES or ("is_retry", "true") in labels)):
        return None
    mine = ours.series.get(name, {}).get(labels)
    if mine == pytest.approx(value, rel=0.01):
        return None
    own = {key: text for key, text in sorted(labels) if key not in ("cluster", "otel_scope_name")}
    return f"{name} {own}: Apache's {value}, ours {mine}"
