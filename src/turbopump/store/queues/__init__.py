"""Consume queues: rows of units that point into the log, and reading messages through them."""
