"""Consume queues: rows of units that point into the log. Messages are read through these units."""
