"""Delayed messages: timer wheel, timer log, their checkpoint and recovery."""
