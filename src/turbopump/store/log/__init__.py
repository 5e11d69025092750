"""Commit log: appending, flushing, reading and dispatching of entries."""
