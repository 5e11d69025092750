"""Counters of events that no table of the broker remembers, by subject, for the metrics."""
