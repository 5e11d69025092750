"""Consume queues: rows of units that point into the log, and reads of messages through them."""
