"""Reports of the metrics of a server, at intervals: to a collector of OpenTelemetry, or to the log.

The event loop reads the values in steps, because they belong to it. A thread sends them, so a slow
or absent collector stops nobody. The first report follows one interval after the start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from turbopump.config.metrics import MetricsConfig, MetricsExporterType
from turbopump.errors import ConfigError
from turbopump.log_keys import LogKeys
from turbopump.metrics.collecting import Collector, Report
from turbopump.metrics.family import Distribution, Family, Metrics
from turbopump.remoting.turns import Turns

if TYPE_CHECKING:
    from turbopump.remoting.otlp_sender import OtlpSender

log = logging.getLogger(__name__)

LINES_MAX: Final = 10_000
"""Maximum number of lines of one report in the log."""
FAILURES_A_LINE: Final = 60
"""Number of failed reports after which a failure is logged again."""


class MetricsReports:
    """Reports of one server, if ``metricsExporterType`` is OTLP_GRPC or LOG.

    - ``turns``: shares the event loop between a report and other long work.
    """

    def __init__(self, config: MetricsConfig, metrics: Metrics, turns: Turns | None = None) -> None:
        self._config = config
        self._turns = turns or Turns()
        self._collector = Collector(metrics, in_delta=config.metrics_in_delta)
        self._sender: OtlpSender | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self.failures = 0
        """Number of failed reports since the last one that arrived."""

    def start(self) -> None:
        """Begin with the reports, if the settings ask for them.

        Raises ConfigError if OTLP_GRPC needs a package that is not installed.
        """
        config = self._config
        interval_ms = config.metric_logging_exporter_interval_in_mills
        if config.metrics_exporter_type is MetricsExporterType.OTLP_GRPC:
            interval_ms = config.metric_grpc_exporter_interval_in_mills
            self._sender = _sender(config)
            self._thread = ThreadPoolExecutor(1, "turbopump-metrics")
        elif config.metrics_exporter_type is not MetricsExporterType.LOG:
            return
        log.info("metrics reports begin target=%s interval_ms=%d", self._target, interval_ms)
        self._task = asyncio.get_running_loop().create_task(
            self._repeat(interval_ms / 1000), name="turbopump metrics"
        )

    async def close(self) -> None:
        """Make the last report, and end. The method may be called twice.

        There is no last report if the report before failed. The call takes no longer than two
        reports may take.
        """
        task = self._task
        if task is None:
            return
        self._task = None
        self._closing.set()
        await task
        if self._sender is not None and self._thread is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._sender.close)
            self._thread.shutdown()

    async def _repeat(self, interval_s: float) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._closing.wait()
            last = self._closing.is_set()
            if not (last and self.failures):
                await self._report()
            if last:
                return

    async def _report(self) -> None:
        """Make one report. A failure is logged, and its growth is part of the next report."""
        try:
            report = await self._turns.outcome(self, self._collector.steps())
            if self._sender is None:
                await self._write_lines(report)
            else:
                assert self._thread is not None
                loop = asyncio.get_running_loop()
                await loop.run_in_executor(self._thread, self._sender.send, report)
        except Exception as error:
            if self.failures % FAILURES_A_LINE == 0:
                log.warning(
                    "metrics not sent, tried again target=%s failures=%d cause=%s",
                    self._target,
                    self.failures + 1,
                    error,
                )
            self.failures += 1
            return
        if self.failures:
            log.info("metrics sent again target=%s failures=%d", self._target, self.failures)
        self.failures = 0
        self._collector.note_arrival(report)

    @property
    def _target(self) -> str:
        return "log" if self._sender is None else self._config.metrics_grpc_exporter_target

    async def _write_lines(self, report: Report) -> None:
        """Log one line for each series."""
        common = {name: text for name, text in report.labels.items() if name != "otel_scope_name"}
        series = 0
        for family, samples in report.families:
            for values, value in samples:
                series += 1
                if series > LINES_MAX:
                    continue
                labels = LogKeys(common | family.own_labels(values))
                if isinstance(value, Distribution):
                    log.info(
                        "metric name=%s count=%d sum=%s buckets=%s %s",
                        family.name,
                        sum(value.counts),
                        value.total,
                        bucket_text(family, value),
                        labels,
                    )
                else:
                    log.info("metric name=%s value=%s %s", family.name, value, labels)
                await self._turns.pause()
        if series > LINES_MAX:
            log.warning("metrics not logged, too many series=%d limit=%d", series, LINES_MAX)


def bucket_text(family: Family, value: Distribution) -> str:
    """Return the buckets that have observations, as ``UPPER_BOUND:COUNT`` separated by commas."""
    bounds = [*map(str, family.bounds), "inf"]
    pairs = zip(bounds, value.counts, strict=True)
    return ",".join(f"{bound}:{count}" for bound, count in pairs if count) or "none"


def _sender(config: MetricsConfig) -> OtlpSender:
    # Otherwise gRPC prints a line on standard error for each failed handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        from turbopump.remoting.otlp_sender import OtlpSender
    except ImportError as error:
        raise ConfigError(
            f"metricsExporterType=OTLP_GRPC needs {error.name}, which is not installed: "
            "pip install 'turbopump[otel]'"
        ) from None
    return OtlpSender(
        config.collector_url,
        config.collector_headers,
        config.metric_grpc_exporter_time_out_in_mills / 1000,
    )
