"""Counters of events that no table of the broker remembers, by subject, for the metrics.

Handlers and background work add to them when the event happens. Each module declares the metrics of
its counters. ``broker/metrics/`` reads everything else, at the scrape.
"""
