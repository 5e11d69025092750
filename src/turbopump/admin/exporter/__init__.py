"""Metrics of a whole cluster from requests alone, under the names of Apache's rocketmq-exporter."""

from turbopump.admin.exporter.collector import Collector

__all__ = ["Collector"]
