"""Messages that wait for their time: timer wheel, timer log, their checkpoint and recovery."""
